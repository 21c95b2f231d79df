"""Steps on learned parameters: direction, length, limits and roll-back; equality of networks, and errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from test_learning import ALPHA, planted, slopes
from torch import Tensor, nn

import liftednn as lnn
from liftednn import losses
from liftednn.activations import FenchelClip, FenchelLeakyReLU, FenchelReLU, Scaled, Sigmoid, Softplus, Tanh
from liftednn.base import Activation
from liftednn.cli import main
from liftednn.data.sources import source_of
from liftednn.functional import within
from liftednn.init import to_module
from liftednn.modules.slopes import started
from liftednn.network import Layer
from liftednn.operators import Dense
from liftednn.robust import Noise
from liftednn.training.choices import smoothed
from liftednn.training.learning import snapshot
from liftednn.training.run import Run

SUMMED: list[Any] = [FenchelLeakyReLU(0.2), Scaled(Tanh(), 0.5), Scaled(Sigmoid(), 2.0), Scaled(Softplus())]


def drawn(activation: Activation, n: int = 400) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Rows, the outputs of a network with this activation, and its weights."""
    generator = torch.Generator().manual_seed(0)
    x, w, b, v = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((n, 5), (4, 5), (4,), (2, 4))
    )
    return x, activation(x @ w.T + b) @ v.T, [(w, b), (v, torch.zeros(2, dtype=torch.float64))]


def learned(phi: Any) -> Tensor:
    (name,) = phi.learned
    return torch.as_tensor(getattr(phi, name), dtype=torch.float64)


@pytest.mark.parametrize("per", ["layer", "unit"])
@pytest.mark.parametrize("activation", SUMMED, ids=repr)
def test_a_step_goes_against_the_gradient_of_the_loss(activation: Any, per: Any) -> None:
    """By autograd through the feed-forward network, entry by entry."""
    x, y, weights = drawn(activation)
    y = y + torch.linspace(-1, 1, len(x), dtype=torch.float64)[:, None] * x[:, :2]
    network = lnn.LiftedNetwork.mlp([5, 4, 2], activation, "squared", lam=1e4)
    run = Run(lnn.MiniBatch(learn_activation=per), network, source_of(x, y), weights)
    run.descent.rate.fill_(1e-4)
    (name,), (phi,) = activation.learned, run.network.hidden
    before = getattr(phi, name).clone()
    theta = before.clone().requires_grad_()
    (w, b), (v, c) = weights
    same = copy.copy(phi)
    object.__setattr__(same, name, theta)
    scores = same(x @ w.T + b) @ v.T + c
    (slope,) = torch.autograd.grad((scores - y).square().sum(1).mean(), theta)
    run.learner.step(run.coordinates.whiten(x), y, None, 0)
    assert torch.equal((getattr(phi, name) - before).sign(), -slope.sign())


@pytest.mark.parametrize(
    ("activation", "per"), list(zip(SUMMED, ["layer", "unit", "layer", "unit"], strict=True)), ids=str
)
@pytest.mark.thin(4)
def test_with_known_weights_batches_find_the_true_parameter(activation: Any, per: Any) -> None:
    x, y, weights = drawn(activation)
    (name,) = activation.learned
    wrong = type(activation)(**{**vars(activation), name: 2.5 * getattr(activation, name)})
    network = lnn.automatic(lnn.LiftedNetwork.mlp([5, 4, 2], wrong, "squared"), x, y)
    fit = lnn.MiniBatch(passes=40, batch_size=20, learn_activation=per).run(network, x, y, weights, fixed=weights)
    assert torch.equal(fit.weights[0].w, weights[0][0])
    assert bool((learned(fit.network.hidden[0]) / learned(activation)).log().abs().max() < 0.06)


@pytest.mark.parametrize("loss", ["huber", "absolute", "quantile"])
@pytest.mark.slow
def test_a_loss_of_bounded_slope_recovers_the_true_slope_too(loss: str) -> None:
    """Scaled by the curvature of a rounded kink, which few residuals have, steps would be far too short. The best of six random starts in
    the training loss: others end in local minima of the weights."""
    x, y = planted()
    network, runs = lnn.LiftedNetwork.mlp([5, 3, 3], FenchelLeakyReLU(0.01), smoothed(losses.named(loss), y)), []
    for seed in range(6):
        trainer = lnn.MiniBatch(passes=120, batch_size=50, learn_activation="layer", seed=seed)
        runs.append(trainer.run(lnn.automatic(network, x, y, seed), x, y))
    best = min(runs, key=lambda fit: fit.history[-1].loss)
    assert best.history[-1].score > 0.99
    assert float(slopes(best.network.hidden[0])) == pytest.approx(ALPHA, abs=0.01)


@pytest.mark.parametrize(
    ("planted_beyond", "start", "limit"),
    [
        (FenchelLeakyReLU(30.0), FenchelLeakyReLU(8.0), 10.0),
        (FenchelLeakyReLU(1e-5), FenchelLeakyReLU(2e-3), 1e-3),
        (Scaled(Tanh(), 1e-4), Scaled(Tanh(), 0.02), 1e-2),
    ],
)
def test_batches_and_the_exact_block_stop_at_the_same_limits(planted_beyond: Any, start: Any, limit: float) -> None:
    x, y, weights = drawn(planted_beyond)
    u = x @ weights[0][0].T + weights[0][1]
    assert float(learned(start.refit(u, planted_beyond(u)))) == pytest.approx(limit)
    network = lnn.LiftedNetwork.mlp([5, 4, 2], start, "squared", lam=1e4)
    fit = lnn.MiniBatch(passes=10, batch_size=20, step=0.5, learn_activation="layer").run(
        network, x, y, weights, fixed=weights
    )
    assert float(learned(fit.network.hidden[0])) == pytest.approx(limit)


def test_a_slope_outside_the_limits_stays_outside() -> None:
    x, y = planted(300)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(1e-5), "squared")
    run = Run(lnn.MiniBatch(learn_activation="layer"), network, source_of(x, y))
    run.descent.rate.fill_(0.05)
    run.learner.step(run.coordinates.whiten(x), y, None, 0)
    assert 0 < float(learned(run.network.hidden[0])) <= 1.25e-5
    now, found = torch.tensor([1e-5, 1.0, 1.0, 300.0]), torch.tensor([1e-7, 1e-7, 1e7, 1e7])
    assert torch.equal(within(found, now, (1e-3, 10.0)), torch.tensor([1e-5, 1e-3, 10.0, 300.0]))


@pytest.mark.parametrize("back", ["_roll_back", "roll_back_if_diverged"])
def test_on_the_way_back_the_slopes_go_with_the_weights(back: str) -> None:
    x, y = planted(300)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(0.1), "squared")
    run = Run(lnn.MiniBatch(learn_activation="unit", batch_size=50), network, source_of(x, y))
    next(run.passes())
    kept = (run.descent.values.clone(), learned(run.network.hidden[0]).clone(), run.learner.means.clone())
    run._refresh(run.coordinates.whiten(x), y, None)
    run.descent.values.fill_(torch.nan)
    run.network.hidden[0].alpha.mul_(50)  # type: ignore[attr-defined]
    run.learner.means.mul_(7)
    run._roll_back(torch.inf) if back == "_roll_back" else run.roll_back_if_diverged()
    now = (run.descent.values, learned(run.network.hidden[0]), run.learner.means)
    assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))


def test_a_checkpoint_has_the_slopes_to_roll_back_to(tmp_path: Path) -> None:
    x, y = planted(300)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(0.1), "squared")

    def run() -> Run:
        return Run(
            lnn.MiniBatch(learn_activation="unit", batch_size=20),
            network,
            source_of(x, y),
            checkpoint=lnn.Checkpoint(tmp_path / "r"),
        )

    first = run()
    next(first.passes())
    again = run()
    for each in (first, again):
        each._roll_back(torch.inf)
    assert not torch.equal(learned(first.network.hidden[0]), torch.full((4,), 0.1, dtype=torch.float64))
    assert torch.equal(learned(again.network.hidden[0]), learned(first.network.hidden[0]))


def regressor(**options: Any) -> Any:
    return lnn.LiftedRegressor((6,), random_state=0, **options)


@pytest.mark.parametrize("name", ["leaky_relu", "tanh"])
def test_a_warm_start_keeps_what_was_learned_where_no_more_is(name: str) -> None:
    x, y = (part.numpy() for part in planted(300))
    model = regressor(activation=name, learn_activation="unit", max_iter=5, warm_start=True).fit(x, y)
    (before,) = model.network_.hidden
    for _ in range(2):
        model.set_params(learn_activation=None, max_iter=1).fit(x, y)
        assert model.network_.hidden == [before]
    (after,) = pickle.loads(pickle.dumps(model)).set_params(learn_activation="unit").fit(x, y).network_.hidden
    assert type(after) is type(before)
    assert 0 < float((learned(after) / learned(before)).log().abs().max()) < 0.5
    assert clone(model).fit(x, y).network_.hidden != [before]


def test_a_warm_start_refuses_another_activation_than_it_has_learned() -> None:
    x, y = (part.numpy() for part in planted(300))
    model = regressor(activation="leaky_relu", learn_activation="unit", max_iter=2, warm_start=True).fit(x, y)
    before = model.network_.hidden
    changes: list[dict[str, Any]] = [
        {"activation": "tanh"},
        {"activation": FenchelLeakyReLU(0.5)},
        {"activation": "leaky_relu", "learn_activation": None, "divergence": "euclidean"},
    ]
    for change in changes:
        with pytest.raises(
            ValueError, match=r"had the activation FenchelLeakyReLU\(alpha=0.01\) and learned .* fit again"
        ):
            model.set_params(**change).fit(x, y)
        assert model.network_.hidden == before
    model.set_params(activation="tanh", divergence="fenchel", learn_activation="unit", warm_start=False).fit(x, y)
    assert isinstance(model.network_.hidden[0], Scaled)
    with pytest.raises(ValueError, match="layer 0 takes w"):
        model.set_params(hidden_layer_sizes=(8,), warm_start=True).fit(x, y)


def test_a_warm_start_without_learned_parameters_may_change_the_activation() -> None:
    x, y = (part.numpy() for part in planted(300))
    model = regressor(activation="relu", max_iter=2, warm_start=True).fit(x, y)
    assert model.set_params(divergence="euclidean").fit(x, y).network_.hidden == [lnn.activations.ReLU()]
    model.set_params(divergence="fenchel", activation=FenchelLeakyReLU(0.5), learn_activation="layer").fit(x, y)
    assert 0.3 < float(learned(model.network_.hidden[0])) < 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0, torch.tensor([0.5]), torch.tensor([0.5, 1.0, 2.0, 3.0])], ids=str)
def test_a_scale_becomes_part_of_a_modules_weights(scale: Any, dtype: torch.dtype) -> None:
    for inner, layer in ((Tanh(), nn.Tanh), (Sigmoid(), nn.Sigmoid), (Scaled(Softplus(), 0.7), nn.Softplus)):
        x, _, weights = drawn(Tanh(), 50)
        network = lnn.LiftedNetwork.mlp([5, 4, 2], Scaled(inner, scale), "squared")
        pairs = [lnn.Affine(w.to(dtype), b.to(dtype)) for w, b in weights]
        module = to_module(network, pairs)
        assert [type(each) for each in module] == [nn.Linear, layer, nn.Linear]
        scores = lnn.predict.feedforward(network, pairs, x.to(dtype))
        assert torch.allclose(module(x.to(dtype)), scores, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(
    ("activation", "sentence"),
    [
        (FenchelLeakyReLU(torch.ones(3)), r"alpha of FenchelLeakyReLU has shape \(3,\) for 4 units"),
        (Scaled(Tanh(), torch.ones(5)), r"scale of Scaled has shape \(5,\) for 4 units"),
        (FenchelClip(0.0, torch.ones(4, 1)), r"upper of FenchelClip has shape \(4, 1\) for 4 units: give a number"),
    ],
)
def test_a_layer_refuses_parameters_of_another_length(activation: Activation, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lnn.LiftedNetwork.mlp([5, 4, 2], activation, "squared")
    for allowed in (torch.tensor(0.5), torch.tensor([0.5]), torch.full((4,), 0.5)):
        assert Layer(Dense(5, 4), FenchelLeakyReLU(allowed)).width == 4


def test_activations_and_networks_with_tensors_are_equal_by_value() -> None:
    a, b = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.4])
    makers: list[Any] = [FenchelLeakyReLU, lambda given: Scaled(Tanh(), given), lambda given: FenchelClip(-1.0, given)]
    for make in makers:
        one, same, other = (lnn.LiftedNetwork.mlp([2, 3, 1], make(each.clone()), "squared") for each in (a, a, b))
        assert one == same
        assert hash(one) == hash(same)
        assert one != other
        assert make(a) != make(a[:1])
        assert make(0.5) == make(0.5) != make(0.6)
        assert len({make(a), make(a.clone()), make(b), make(0.5)}) == 3
    assert FenchelLeakyReLU(torch.tensor([0.5])) != FenchelLeakyReLU(0.5)
    assert FenchelReLU() != FenchelLeakyReLU()
    assert Scaled(Tanh()) != Scaled(Sigmoid())


@pytest.mark.parametrize("per", ["layer", "unit"])
def test_a_run_changes_no_hash_and_nothing_that_it_was_given(per: Any) -> None:
    x, y = planted(300)
    given, still = (FenchelLeakyReLU(torch.full(shape, 0.1, dtype=torch.float64)) for shape in ((), (3,)))
    network = lnn.LiftedNetwork.mlp([5, 4, 3, 3], [given, still], "squared")
    run = Run(lnn.MiniBatch(learn_activation=[per, None], batch_size=50), network, source_of(x, y))
    live, kept, versions = run.network.hidden[0], snapshot(run.network), [phi.alpha._version for phi in (given, still)]  # type: ignore[union-attr]
    theirs, own = {given: 1, network: 2}, {live: 3, run.network: 4}
    next(run.passes())
    run._restore()
    next(run.passes())
    assert (theirs[given], theirs[network], own[live], own[run.network]) == (1, 2, 3, 4)
    assert [phi.alpha._version for phi in (given, still)] == versions  # type: ignore[union-attr]
    assert network.hidden == [given, still] == [FenchelLeakyReLU(phi.alpha.clone()) for phi in (given, still)]  # type: ignore[union-attr]
    assert snapshot(run.network) != kept
    assert kept == snapshot(kept)


def test_what_a_run_returns_is_not_changed_later() -> None:
    x, y = planted(300)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(0.1), "squared")
    run = Run(lnn.MiniBatch(learn_activation="unit", batch_size=50), network, source_of(x, y), validation=(x, y))
    next(run.passes())
    best = run.monitor.best_network
    assert best is not None
    before = learned(best.hidden[0]).clone()
    next(run.passes())
    assert torch.equal(learned(best.hidden[0]), before)
    assert not torch.equal(learned(run.network.hidden[0]), before)


def test_without_hidden_layers_there_is_nothing_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = planted(50)
    network = lnn.LiftedNetwork.mlp([5, 3], loss="squared")
    sentence = "learn_activation is for hidden layers, and the network has none: leave learn_activation=None"
    for trainer in (lnn.MiniBatch(learn_activation="layer"), lnn.BCD(learn_activation="unit")):
        with pytest.raises(ValueError, match=sentence):
            trainer.run(network, x, y)
    with pytest.raises(ValueError, match=sentence):
        lnn.LiftedRegressor((), "leaky_relu", learn_activation="unit").fit(x.numpy(), y.numpy())
    table = tmp_path / "table.csv"
    np.savetxt(table, torch.cat([x, y[:, :1]], 1).numpy(), "%.4f", ",", header="a,b,c,d,e,y", comments="")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "fit",
                str(table),
                "--target",
                "y",
                "--hidden",
                "0",
                "--learn-activation",
                "unit",
                "--out",
                f"{table}.safetensors",
            ]
        )
    assert ended.value.code == 2
    assert "the network has none" in " ".join(capsys.readouterr().err.split())


def test_a_first_slope_keeps_all_else_of_its_layer() -> None:
    layers = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelReLU(), "squared", lam=3.0).layers
    fear = Noise(0.5)
    guarded = lnn.LiftedNetwork([Layer(layers[0].operator, FenchelReLU(), layers[0].penalty, 3.0, fear), layers[1]])
    (first, _) = started(guarded, ["layer"]).layers
    assert isinstance(first.divergence, FenchelLeakyReLU)
    assert first.uncertainty is fear
    assert first.lam == 3.0
