"""Uncertainty together with other features: learned activations, records, checkpoints, pruning, arrays, and its error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelLeakyReLU, FenchelReLU, ReLU, Scaled, Sigmoid
from liftednn.base import Activation, Affine, Divergence, Uncertainty
from liftednn.data.identity import described
from liftednn.data.sources import source_of
from liftednn.losses import AbsoluteError, CrossEntropy, Huber, Quantile, Split, SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.penalties import L2
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.training.batch import x_step
from liftednn.training.checkpoint import Checkpoint
from liftednn.training.choices import with_input_uncertainty
from liftednn.training.descent import Descent
from liftednn.training.metric import Metric
from liftednn.training.run import Run

KINDS: list[Uncertainty] = [Noise(0.3), FrobeniusBall(0.4), BoxBall(0.2)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def net(activation: Activation, kind: Uncertainty | None, last: Uncertainty | None = None) -> LiftedNetwork:
    first = Layer(Dense(4, 3), activation, L2(1e-3), 2.0, kind)
    return LiftedNetwork([first, Layer(Dense(3, 1), SquaredError(), L2(1e-3), 1.0, last)])


@each_kind
def test_a_recorded_step_does_not_read_curvatures(kind: Uncertainty, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learned slope on a GPU that would be a number copied from it: updated with the geometry, it is a tensor instead."""
    x, y = draw(30, 4), draw(30, 1, seed=1)
    alpha = torch.tensor(0.5, dtype=torch.float64)
    network = net(FenchelLeakyReLU(alpha), kind)
    weights = [Affine(draw(3, 4, seed=2), draw(3, seed=3)), Affine(draw(1, 3, seed=4), draw(1, seed=5))]
    parts = zip(network.layers, network.propagate(weights, x), strict=True)
    descent = Descent(network, weights, [Metric.of(layer, z, 0.1) for layer, z in parts], 0.9)
    alpha.fill_(3.0)
    descent.refresh(descent.gradients(x, y), y, torch.ones_like(y)[None])
    assert float(descent.state()["0.divergence_curvature"]) == 3.0
    descent.rate.fill_(0.1)

    def read(self: FenchelLeakyReLU) -> float:
        raise AssertionError("a recorded step reads the curvature")

    monkeypatch.setattr(FenchelLeakyReLU, "curvature", property(read))
    before = descent.values.clone()
    descent.step(x, y)
    assert not torch.equal(before, descent.values)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda k: type(k).__name__)  # noise does not change the states
def test_history_is_taken_at_the_robust_states(kind: Uncertainty) -> None:
    x, y = draw(50, 4), draw(50, 1, seed=1)
    run = Run(lnn.MiniBatch(batch_size=50), net(FenchelReLU(), kind, kind), source_of(x, y))
    run._advance(*next(iter(run.feed.batches(50, 0, 0))), 0)
    rows, responses, _ = next(iter(run.feed.batches(50, 0, 1)))
    taken = run._evaluation(rows, responses, None)
    inner, weights, terms = run.descent.network, run.descent.weights, run.descent.terms
    found = [
        inner.objective(weights, [rows, *x_step(inner, weights, rows, responses, None, given).states, responses])
        for given in (terms, ())
    ]
    assert taken.objective == pytest.approx(found[0], rel=1e-12)
    assert found[0] != pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("scale", [1.5, torch.tensor(1.5)], ids=["number", "tensor"])
@pytest.mark.slow
def test_a_scaled_activation_in_a_box(scale: float | Tensor) -> None:
    x, network = draw(12, 4), net(Scaled(FenchelReLU(), scale), BoxBall(0.1))
    history = lnn.BCD(passes=1, block_iter=2).run(network, x, x[:, 0]).history
    assert history[1].objective < history[0].objective
    activation = Scaled(Sigmoid(), scale)
    u, z = draw(40, 3), torch.sigmoid(draw(40, 3, seed=1))
    steps = draw(40, 3, seed=2).exp()
    together = activation.prox_u(u, z, steps)  # type: ignore[arg-type]
    alone = activation.prox_u(u[:1, :1], z[:1, :1], float(steps[0, 0]))
    assert float(together[0, 0]) == pytest.approx(float(alone))


def test_noise_on_a_column_that_does_not_vary() -> None:
    x = draw(60, 5).float().numpy()
    x[:, 4] = 2.0
    only = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    plain, robust = (
        lnn.LiftedRegressor((3,), alpha=1e-4, max_iter=3, random_state=0, robust=each).fit(x, x[:, 0])
        for each in (None, Noise(only))
    )
    np.testing.assert_allclose(plain.predict(x), robust.predict(x), atol=1e-4)


@pytest.mark.parametrize("given", [np.eye(4) * 0.1, (0.1 * np.eye(4)).tolist(), torch.eye(4) * 0.1], ids=type)
def test_a_covariance_may_be_an_array(given: Any) -> None:
    w = draw(3, 4)
    layer = Layer(Dense(4, 3), SquaredError(), uncertainty=Noise(given))
    assert layer.term(0.0, w) == pytest.approx(0.1 * float(w.square().sum()))


def test_arrays_are_copied_and_numbers_are_numbers() -> None:
    sizes = np.array([0.1, 0.2], dtype=np.float32)
    sizes.flags.writeable = False
    kind = BoxBall(sizes)  # type: ignore[arg-type]
    assert isinstance(kind.eps, Tensor)
    assert kind.eps.dtype == torch.float32
    assert FrobeniusBall(np.float32(0.5)).eps == 0.5  # type: ignore[arg-type]
    assert isinstance(Noise(np.int64(1)).sigma, float)  # type: ignore[arg-type]
    metric = FrobeniusBall(0.5, np.eye(2)).metric  # type: ignore[arg-type]
    assert isinstance(metric, Tensor)


def test_no_curvature_is_refused_by_name_at_the_door() -> None:
    network = LiftedNetwork.mlp([4, 3, 2], ReLU(norm="l1"))
    for kind in KINDS[:2]:
        with pytest.raises(ValueError, match=r"ReLU\(norm='l1'\) has no finite curvature"):
            with_input_uncertainty(network, kind)
    x = draw(40, 4).numpy()
    with pytest.raises(ValueError, match="no finite curvature"):
        lnn.LiftedClassifier((3,), activation=ReLU(norm="l1"), robust=0.1).fit(x, x[:, 0] > 0)


@pytest.mark.parametrize("loss", [AbsoluteError(), AbsoluteError(0.01), Quantile(0.3), Quantile((0.1, 0.9), 0.01)])
def test_curvature_gives_no_bound_for_a_smoothed_kink(loss: AbsoluteError | Quantile) -> None:
    for kind in KINDS[:2]:
        with pytest.raises(ValueError, match=r"has curvature only in its smoothed kink(.|\n)*use BoxBall, or Huber"):
            Layer(Dense(3, 2), loss, uncertainty=kind)
    Layer(Dense(3, 2), Huber(), uncertainty=Noise())
    with pytest.raises(ValueError, match="only in its smoothed kink"):
        lnn.LiftedRegressor((), loss="absolute", robust=0.1).fit(draw(40, 3).numpy(), draw(40).numpy())


def test_the_absolute_error_in_a_box_is_not_shrunk_away() -> None:
    x = draw(400, 3).float()
    y = x @ torch.tensor([2.0, -1.0, 0.5]) + 0.3 * draw(400, seed=1).float()
    model = lnn.LiftedRegressor((), loss="absolute", robust="box:0.01", max_iter=30, random_state=0).fit(x.numpy(), y)
    np.testing.assert_allclose(model.coefs_[0][:, 0], [2.0, -1.0, 0.5], atol=0.15)


def pruned(kind: Uncertainty) -> LiftedNetwork:
    """Of three hidden units, the middle one is removed."""
    network = LiftedNetwork([Layer(Dense(4, 3), FenchelReLU()), Layer(Dense(3, 1), SquaredError(), uncertainty=kind)])
    first = draw(3, 4)
    first[1] = 0.0
    return network.prune([Affine(first, draw(3, seed=1)), Affine(draw(1, 3, seed=2), draw(1, seed=3))])[0]


@pytest.mark.parametrize(
    "kind",
    [
        Noise(torch.tensor([0.1, 0.2, 0.3])),
        Noise(torch.diag(torch.tensor([0.1, 0.2, 0.3]))),
        FrobeniusBall(0.5, torch.diag(torch.tensor([0.1, 0.2, 0.3]))),
        BoxBall(torch.tensor([0.1, 0.2, 0.3])),
        BoxBall(torch.tensor([0.1, 0.2]), draw(2, 3)),
        BoxBall(0.2),
        Noise(0.2),
    ],
    ids=repr,
)
def test_pruning_keeps_the_sizes_of_the_inputs_that_stay(kind: Uncertainty) -> None:
    last = pruned(kind).layers[1]
    w = draw(1, 2, seed=5)
    wide = torch.stack([w[:, 0], torch.zeros(1, dtype=w.dtype), w[:, 1]], 1)
    whole = replace(last, operator=Dense(3, 1), uncertainty=kind)
    u, z = draw(10, 1), draw(10, 1, seed=1)
    terms = [
        layer.term(float(layer.robust_divergence(v).value(u, z).mean()), v) for layer, v in ((last, w), (whole, wide))
    ]
    assert terms[0] == pytest.approx(terms[1])
    assert terms[0] > last.lam * float((u - z).square().mean())


def test_pruning_may_leave_nothing_uncertain() -> None:
    for kind in (Noise(torch.tensor([0.0, 1.0, 0.0])), BoxBall(torch.tensor([0.0, 1.0, 0.0]))):
        assert pruned(kind).layers[1].uncertainty is None


def test_a_checkpoint_compares_every_digit_of_a_covariance(tmp_path: Path) -> None:
    x, y = draw(60, 40).float(), draw(60, 1).float()
    other = 0.1 * torch.eye(40)
    other[20, 20] = 0.3  # a repr leaves the middle out
    networks = [
        LiftedNetwork([Layer(Dense(40, 1), SquaredError(), uncertainty=Noise(sigma))])
        for sigma in (0.1 * torch.eye(40), other)
    ]
    assert repr(networks[0]) == repr(networks[1])
    path = tmp_path / "run.safetensors"
    trainer = lnn.MiniBatch(passes=1)
    trainer.run(networks[0], x, y, checkpoint=Checkpoint(path))
    trainer.run(networks[0], x, y, checkpoint=Checkpoint(path))
    with pytest.raises(ValueError, match="a run with other network: "):
        trainer.run(networks[1], x, y, checkpoint=Checkpoint(path))
    plain = LiftedNetwork.mlp([4, 2])
    assert described(plain) == repr(plain)


class WithoutProx(Split):
    prox_u = Divergence.prox_u


def layer(kind: Any, divergence: Any = None) -> Callable[[], Layer]:
    return lambda: Layer(Dense(3, 2), SquaredError() if divergence is None else divergence, uncertainty=kind)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (layer(0.3), r"uncertainty must be None or an Uncertainty such as robust.Noise\(0.3\), got 0.3"),
        (layer("noise:0.3"), "got 'noise:0.3'"),
        (layer(FrobeniusBall(0.3, torch.eye(4))), "metric has shape"),
        (layer(BoxBall(0.3, torch.eye(5))), r"basis has shape \(5, 5\), and the layer has 3 inputs"),
        (layer(BoxBall(torch.ones(2), torch.eye(3))), "2 inputs, and the layer has 3"),
        (layer(BoxBall(), WithoutProx()), "a prox in u, and WithoutProx.* has none"),
        (layer(BoxBall(), FenchelLeakyReLU(torch.tensor([0.1, 0.2]))), "the same function"),
        (layer(Noise(), CrossEntropy()), "or the softmax's cross-entropy"),
        (lambda: FrobeniusBall(0.3, -torch.eye(3)), "a metric must have no negative eigenvalues"),
        (lambda: FrobeniusBall(0.3, torch.eye(3) * torch.nan), "symmetric and finite"),
        (lambda: FrobeniusBall(0.3, torch.ones(3)), "symmetric and finite"),
        (lambda: BoxBall(0.3, torch.eye(3) * torch.nan), "basis must be a finite matrix"),
        (lambda: Noise(np.array([[1.0, 0.0], [0.5, 1.0]])), "symmetric"),
        (lambda: Noise("0.3"), "sigma must be a number, a tensor or an array, got '0.3'"),
        (lambda: FrobeniusBall(np.ones(2)), "eps must be a positive number"),
    ],
)
def test_refusals(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize("trainer", [lnn.BCD, lnn.MiniBatch])
@pytest.mark.thin(2)
def test_one_parameter_for_each_unit_is_refused_in_a_box(trainer: Any) -> None:
    x, network = draw(12, 4), net(FenchelLeakyReLU(0.5), BoxBall(0.1))
    with pytest.raises(
        ValueError, match="layer 0: with a BoxBall all units share one parameter: give learn_activation='layer'"
    ):
        trainer(passes=1, learn_activation="unit").run(network, x, x[:, :1])
    trainer(passes=1, learn_activation="layer").run(network, x, x[:, :1])
