"""Choices from the data: rho and lam follow the units and the number of rows, and lam is the curvature that autograd finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.data.sources import source_of
from liftednn.training import choices, plan
from liftednn.training.biases import best_biases
from liftednn.training.initial import random_weights, unit_of


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draw(500, 4) @ draw(4, 4, seed=1)
LABELS = (X[:, 0] * X[:, 1] > 0).long() + (X[:, 2] > 0.5).long()
REAL = torch.sin(X[:, :1]) * X[:, 1:2]
FUNCTIONS: dict[str, Any] = {
    "softplus": torch.nn.functional.softplus,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "fenchel_relu": torch.relu,
}
SMOOTH = ["softplus", "tanh", "sigmoid"]


def mlp(activation: str | lnn.Activation, loss: str = "softmax", outputs: int = 3) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([4, 6, 5, outputs], activation=activation, loss=loss)


def lams(network: lnn.LiftedNetwork) -> np.ndarray:
    return np.array([layer.lam for layer in network.layers])


def rhos(network: lnn.LiftedNetwork) -> np.ndarray:
    return np.array([layer.penalty.ridge for layer in network.layers])


@pytest.mark.parametrize(
    ("loss", "y", "outputs"), [("softmax", LABELS, 3), ("squared", 10 * REAL, 1)], ids=["softmax", "squared"]
)
@pytest.mark.parametrize("activation", ["fenchel_relu", "fenchel_leaky_relu", "identity"])
def test_units_of_the_inputs_scale_out(activation: str, loss: str, y: Tensor, outputs: int) -> None:
    """X -> tX takes the first weights to 1 / t times themselves and leaves every state as it is: rho W^2 must stay, and lam."""
    network = mlp(activation, loss, outputs)
    one, ten = lnn.automatic(network, X, y), lnn.automatic(network, 10 * X, y)
    np.testing.assert_allclose(rhos(ten), rhos(one) * [100, 1, 1], rtol=1e-9)
    np.testing.assert_allclose(lams(ten), lams(one), rtol=1e-6)
    assert lams(one)[-1] == lams(ten)[-1] == 1


@pytest.mark.parametrize("activation", ["fenchel_relu", "tanh"])
def test_rho_of_the_first_layer_follows_the_units_and_not_the_origin(activation: str) -> None:
    one, ten, moved = (lnn.automatic(mlp(activation), x, LABELS) for x in (X, 10 * X, X + 5))
    assert rhos(ten)[0] == pytest.approx(100 * rhos(one)[0], rel=1e-12)
    assert rhos(moved)[0] == pytest.approx(rhos(one)[0], rel=1e-10)
    np.testing.assert_allclose(rhos(ten)[1:], rhos(one)[1:], rtol=1e-9)


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_rho_is_the_variance_of_the_layer_s_inputs_by_the_root_of_rows(activation: str) -> None:
    network = mlp(activation)
    found = lnn.automatic(network, X, LABELS, seed=3)
    weights = random_weights(network, 3, X, network.loss.encode(LABELS, 3).double(), None, unit_of(network, X))
    states = [X]
    for w, b in weights[:-1]:
        states.append(FUNCTIONS[activation](states[-1] @ w.T + b))
    expected = [1.3e-3 * np.cov(state.numpy(), rowvar=False, bias=True).trace() / 500**0.5 for state in states]
    np.testing.assert_allclose(rhos(found), expected, rtol=1e-9)


def nearly_copied(x: Tensor, times: int) -> Tensor:
    """Rows that are as good as new ones of the same distribution."""
    noise = torch.randn(times * len(x), x.shape[1], generator=torch.Generator().manual_seed(times), dtype=x.dtype)
    return x.repeat(times, 1) + 1e-9 * noise


@pytest.mark.parametrize("times", [2, 4, 8])
def test_rho_falls_like_the_root_of_the_number_of_rows_but_not_for_copies(times: int) -> None:
    network, half = mlp("fenchel_relu"), LABELS[:250]
    once, often = (lnn.automatic(network, nearly_copied(X, t), LABELS.repeat(t)) for t in (1, times))
    np.testing.assert_allclose(rhos(often), rhos(once) / times**0.5, rtol=1e-6)
    contradicting = X[:250].repeat(2, 1), torch.cat([half, (half + 1) % 3])
    for x, y in ((X, LABELS), contradicting):
        once, often = (lnn.automatic(network, x.repeat(t, 1), y.repeat(t)) for t in (1, times))
        np.testing.assert_allclose(rhos(often), rhos(once), rtol=1e-9)


def test_rho_falls_where_only_a_sample_of_the_rows_is_read() -> None:
    network = mlp("fenchel_relu")
    few, many = (lnn.automatic(network, nearly_copied(X, t), LABELS.repeat(t)) for t in (4, 100))
    np.testing.assert_allclose(rhos(many), rhos(few) / 5, rtol=0.1)


def test_an_unknown_number_of_rows_is_taken_as_50000() -> None:
    network = mlp("fenchel_relu")
    known = lnn.automatic(network, X, LABELS)
    unknown = lnn.automatic(network, [(X[:200], LABELS[:200]), (X[200:], LABELS[200:])])
    np.testing.assert_allclose(rhos(unknown), rhos(known) * (500 / 50_000) ** 0.5, rtol=1e-9)


def prepared(network: lnn.LiftedNetwork, x: Tensor, y: Tensor, seed: int) -> tuple[lnn.LiftedNetwork, list[Affine]]:
    """What the choice is made from: random features, and a head fitted under the rho that it chose."""
    found = lnn.automatic(network, x, y, seed)
    encoded = network.loss.encode(y, network.layers[-1].operator.out_width).to(x.dtype)
    weights = random_weights(network, seed, x, encoded, None, unit_of(network, x))
    weights = best_biases(network, weights, seed, x, encoded)
    return found, choices.fitted_head(found, weights, x, encoded)


def exact_curvatures(activation: str, weights: list[Affine], x: Tensor, top: float) -> list[float]:
    """The mean over rows and units of diag(J' top J), J the Jacobian of a row's scores in u_l, by autograd."""
    found = []
    for place in range(len(weights) - 1):
        state = x
        for w, b in weights[:place]:
            state = FUNCTIONS[activation](state @ w.T + b)
        u = (state @ weights[place].w.T + weights[place].b).requires_grad_()
        state = FUNCTIONS[activation](u)
        for w, b in weights[place + 1 : -1]:
            state = FUNCTIONS[activation](state @ w.T + b)
        scores = state @ weights[-1].w.T + weights[-1].b
        rows = [torch.autograd.grad(scores[:, k].sum(), u, retain_graph=True)[0] for k in range(scores.shape[1])]
        found.append(top * float(torch.stack(rows).square().sum(0).mean()))
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("activation", SMOOTH)
def test_lam_is_100_times_the_curvature_exactly_for_one_output(activation: str, seed: int) -> None:
    """With one output the square of a sign is 1: the probe is no longer random."""
    network = mlp(activation, "squared", 1)
    found, weights = prepared(network, X, REAL, seed)
    expected = exact_curvatures(activation, weights, X, network.loss.curvature)
    np.testing.assert_allclose(lams(found)[:-1], 100 * np.array(expected), rtol=1e-4)


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_lam_is_100_times_the_curvature_on_average_for_several_outputs(activation: str) -> None:
    network, x, y = mlp(activation), X.repeat(8, 1), LABELS.repeat(8)  # eight draws of the probe for each row
    found, weights = prepared(network, x, y, 0)
    expected = exact_curvatures(activation, weights, X, network.loss.curvature)
    np.testing.assert_allclose(lams(found)[:-1], 100 * np.array(expected), rtol=0.08)


def test_lam_includes_the_weight_of_the_loss() -> None:
    *hidden, last = mlp("tanh", "squared", 1).layers
    heavy = lnn.Layer(last.operator, last.divergence, last.penalty, 7.0)
    found, weights = prepared(lnn.LiftedNetwork([*hidden, heavy]), X, REAL, 0)
    expected = exact_curvatures("tanh", weights, X, 7.0 * last.divergence.curvature)
    np.testing.assert_allclose(lams(found)[:-1], 100 * np.array(expected), rtol=1e-4)
    assert lams(found)[-1] == 7.0


def test_the_network_s_own_lam_and_rho_do_not_matter() -> None:
    one = lnn.LiftedNetwork.mlp([4, 6, 5, 3], activation="softplus", lam=1.0, rho=1e-3)
    two = lnn.LiftedNetwork.mlp([4, 6, 5, 3], activation="softplus", lam=[0.1, 9.0], rho=0.7)
    assert lnn.automatic(one, X, LABELS) == lnn.automatic(two, X, LABELS)


def test_the_fitted_head_fits() -> None:
    network = mlp("tanh", "squared", 1)
    weights = random_weights(network, 0, X, REAL, None, unit_of(network, X))
    *same, head = choices.fitted_head(network, weights, X, REAL)
    assert all(a is b for a, b in zip(same, weights[:-1], strict=True))
    features = network.propagate(weights, X)[-1].numpy()
    centred, target = features - features.mean(0), (REAL - REAL.mean(0)).numpy()
    scale, rho = network.loss.curvature / 2, 1e-3  # scale |.|^2 is the loss
    gram = scale * centred.T @ centred / 500 + rho * np.eye(5)
    w = np.linalg.solve(gram, scale * centred.T @ target / 500).T
    np.testing.assert_allclose(head.w.numpy(), w, rtol=1e-8)
    np.testing.assert_allclose(head.b.numpy(), REAL.mean(0).numpy() - w @ features.mean(0), rtol=1e-8)


def test_penalties_that_are_no_squared_norms_stay() -> None:
    dense, penalties = lnn.operators.Dense, lnn.penalties
    others: list[lnn.Penalty] = [
        penalties.L1(0.02),
        penalties.NonNegative(0.3),
        penalties.ElasticNet(0.1),
        penalties.GroupL2(0.1),
        penalties.Mask(torch.ones(6, 4).bool()),
    ]
    for other in others:
        first = lnn.Layer(dense(4, 6), lnn.activations.Tanh(), other)
        network = lnn.LiftedNetwork(
            [first, lnn.Layer(dense(6, 3), lnn.losses.SoftmaxCrossEntropy(), penalties.L2(0.5))]
        )
        found = lnn.automatic(network, X, LABELS)
        assert found.layers[0].penalty is other
        assert 0 < (found.layers[1].penalty.ridge or 0) < 0.1
        assert found.layers[0].lam != 1


def test_without_hidden_layer_only_rho_is_chosen() -> None:
    found = lnn.automatic(lnn.LiftedNetwork.mlp([4, 3]), X, LABELS)
    assert lams(found).tolist() == [1.0]
    assert rhos(found)[0] == pytest.approx(1.3e-3 * float(X.var(0, unbiased=False).sum()) / 500**0.5)


def test_the_same_seed_gives_the_same_choice() -> None:
    one, two, other = (lnn.automatic(mlp("tanh"), X, LABELS, seed) for seed in (1, 1, 2))
    assert one == two
    assert (lams(one)[:-1] != lams(other)[:-1]).all()


def test_no_graph_is_kept() -> None:
    network = mlp("softplus", "squared", 1)
    graph = lnn.automatic(network, X.clone().requires_grad_(), REAL.clone().requires_grad_())
    assert graph == lnn.automatic(network, X, REAL)


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 50), (5000, 50), (5100, 51), (12_345, 123), (50_000, 500), (10**9, 500), (None, 500)],
)
def test_a_batch_is_a_hundredth_of_the_rows_within_bounds(rows: int | None, size: int) -> None:
    assert plan.batch_size(rows) == size


@pytest.mark.parametrize(
    ("rows", "classes", "size"),
    [(1, 1, 1), (80, 1, 40), (202, 2, 68), (202, 1, 41), (300, 1, 50), (1200, 2, 150), (8000, 1, 80), (50_000, 2, 500)],
)
def test_batches_are_larger_where_rows_are_few(rows: int, classes: int, size: int) -> None:
    assert plan.larger_batch_size(rows, classes) == size


@pytest.mark.parametrize(("rows", "size"), [(80, 40), (300, 60), (500, 100), (1250, 97), (8000, 100), (20_000, 200)])
def test_batches_of_real_responses_are_larger_where_hidden_layers_are_several(rows: int, size: int) -> None:
    assert plan.larger_batch_size(rows, hidden=2) == size
    assert plan.larger_batch_size(rows, classes=2, hidden=2) == plan.larger_batch_size(rows, classes=2)


def test_several_hidden_layers_take_longer_steps_only_in_short_runs() -> None:
    assert plan.larger_step(4500, 150, 30) == 3.0
    assert plan.larger_step(4500, 100, 30, hidden=2) == 1.0
    assert plan.larger_step(1237, 96, 30, hidden=2) == pytest.approx(600 / (30 * 13))
    assert plan.larger_step(750, 94, 33, hidden=2) == pytest.approx(94 / 50)
    assert plan.larger_step(20_000, 200, 30, hidden=2) == 1.0


def test_training_of_two_hidden_layers_is_stable_on_heavy_tailed_inputs() -> None:
    random = np.random.RandomState(3)
    x = random.standard_t(3, (6000, 10))
    y = x[:, 0] * x[:, 1] + x[:, 2]
    model = lnn.LiftedRegressor(random_state=3).fit(x[:4500], y[:4500])
    assert len(model.coefs_) == 3
    assert max(model.loss_curve_[1:]) < 1.0  # the loss of a constant
    assert model.score(x[4500:], y[4500:]) > 0.95


@pytest.mark.parametrize("classes", [1, 2])
def test_the_last_larger_batch_is_about_as_large_as_the_others(classes: int) -> None:
    for rows in range(100, 20_000, 37):
        size = plan.larger_batch_size(rows, classes)
        steps = -(-rows // size)
        assert size - (rows - (steps - 1) * size) < steps


@pytest.mark.parametrize(
    ("rows", "width", "damping"),
    [
        (50_000, 784, 1.568),
        (None, 784, 1.568),
        (60_000, 6, 0.01),
        (60_000, 5, 0.01),
        (100, 784, 10.0),
        (1000, 100, 10.0),
        (1000, 99, 9.9),
    ],
)
def test_damping_grows_with_the_directions_per_row_within_bounds(rows: int | None, width: int, damping: float) -> None:
    assert choices.damping(rows, width) == pytest.approx(damping, rel=1e-12)
    assert choices.damping(rows, width, positions=True) == pytest.approx(max(3.0, damping), rel=1e-12)


def test_signs_are_balanced_independent_and_reproducible() -> None:
    like = torch.zeros(4000, 3, dtype=torch.float32)
    one, again, other = (choices.probes(like, seed)[0] for seed in (4, 4, 5))
    assert one.dtype == torch.float32
    assert one.unique().tolist() == [-1.0, 1.0]
    assert torch.equal(one, again)
    # Means of 4000 signs: within five standard deviations of what independence gives.
    assert float(one.mean(0).abs().max()) <= 5 / 4000**0.5
    assert float((one * other).mean(0).abs().max()) <= 5 / 4000**0.5
    between = one.T @ one / 4000 - torch.eye(3)
    assert float(between.abs().max()) <= 5 / 4000**0.5


@pytest.mark.parametrize(("rows", "fitted"), [(60, True), (None, True), (61, False)])
def test_a_head_on_convolutions_is_fitted_to_all_rows_or_to_none(rows: int | None, fitted: bool) -> None:
    x = torch.randn(60, 16, generator=torch.Generator().manual_seed(0))
    network = lnn.LiftedNetwork.cnn((1, 4, 4), [2, "avgpool"], 2, "fenchel_relu")
    y = torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).float()
    weights = choices.random_features(network, 0, x, y, None, [(None, None)] * 2, rows)
    assert bool(weights[-1].w.any()) is fitted


@pytest.mark.parametrize(
    ("loss", "y", "outputs"), [("softmax", LABELS, 3), ("squared", REAL, 1)], ids=["softmax", "squared"]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_run_from_the_weights_of_the_choices_is_one_without(
    loss: str, y: Tensor, outputs: int, weighted: bool
) -> None:
    source = source_of(X, y, draw(500, seed=2).abs() if weighted else None)
    network, weights = choices.automatic_start(mlp("fenchel_relu", loss, outputs), source, 3)
    assert weights is not None
    runs = [lnn.MiniBatch(2, seed=3, learn_rho=True).run(network, source, weights=given) for given in (weights, None)]
    for one, other in zip(*(run.weights for run in runs), strict=True):
        assert torch.equal(one.w, other.w)
        assert torch.equal(one.b, other.b)


def test_a_run_of_a_network_with_convolutions_draws_its_own_weights() -> None:
    conv = lnn.LiftedNetwork.cnn((1, 2, 2), [2, "avgpool"], 2, "fenchel_relu")
    assert choices.automatic_start(conv, source_of(X, LABELS.clamp(max=1)), 0)[1] is None


@pytest.mark.parametrize("weighted", [False, True])
def test_lam_of_the_first_rows_is_that_of_all(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(4000, 4, seed=1)
    counts = draw(4000, seed=2).abs() if weighted else None
    source, found = source_of(x, x[:, 0] * x[:, 1], counts), []
    for rows in (512, 4096):
        monkeypatch.setattr(choices, "_FIRST", rows)
        found.append(choices.automatic_start(mlp("fenchel_relu", "squared", 1), source, 0)[0].layers[0].lam)
    assert found[0] == pytest.approx(found[1], rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_lam_is_chosen_where_none_of_the_first_rows_counts(seed: int) -> None:
    x = draw(4000, 4, seed=1)
    source = source_of(x, x[:, 0] * x[:, 1], (torch.arange(4000) == 7).double() + (torch.arange(4000) == 8).double())
    network, _ = choices.automatic_start(mlp("fenchel_relu", "squared", 1), source, seed)
    assert 0 < network.layers[0].lam < float("inf")
