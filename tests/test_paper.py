"""One test per numbered equation of "Lifted Neural Networks". The paper's matrices are the transposes of ours (docs/notation.md)."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from scipy.special import xlogy
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.losses import CrossEntropy, Split, SquaredError
from liftednn.losses.split import entropic_projection
from tests.chains import Link, update_state


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: lnn.LiftedNetwork) -> list[lnn.Affine]:
    shapes = [layer.operator.weight_shape for layer in network.layers]
    return [lnn.Affine(draw(*s, seed=i), draw(s[0], seed=50 + i)) for i, s in enumerate(shapes)]


def columns(t: Tensor) -> np.ndarray:
    """Ours to the paper's: samples in columns."""
    return t.numpy().T


def test_eq_1_and_2_the_recursion() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation="relu", loss="squared")
    weights, x = weights_of(network), draw(7, 4, seed=9)
    state = columns(x)
    for place, (w, b) in enumerate(weights):
        state = w.numpy() @ state + b.numpy()[:, None]
        state = np.maximum(state, 0) if place < 2 else state
    np.testing.assert_allclose(network.scores(weights, x).numpy().T, state, rtol=1e-12)
    np.testing.assert_allclose(network.scores(weights, x[:1]).numpy().T, state[:, :1], rtol=1e-12)


@pytest.mark.parametrize("activation", ["fenchel_relu", "sigmoid", "tanh", "softplus"])
def test_eq_3_the_standard_problem_is_the_lifted_one_where_the_recursion_holds(activation: str) -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation=activation, loss="squared", lam=[0.7, 3.0], rho=0.01)
    weights, x, y = weights_of(network), draw(7, 4), draw(7, 2, seed=3)
    standard = (network.scores(weights, x) - y).square().sum() / 7 + sum(0.01 * w.w.square().sum() for w in weights)
    assert network.objective(weights, [*network.propagate(weights, x), y]) == pytest.approx(float(standard), rel=1e-9)


def test_eq_4_relu_is_the_nearest_non_negative_point() -> None:
    for u in np.linspace(-3, 3, 13):
        nearest = minimize_scalar(
            lambda v, u=u: abs(v - u), bounds=(0, 10), method="bounded", options={"xatol": 1e-9}
        ).x
        assert float(act.ReLU()(torch.tensor(u))) == pytest.approx(nearest, abs=1e-6)


def test_eq_5_the_lifted_problem_of_a_relu_network() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation="relu", loss="squared", lam=[0.7, 3.0], rho=0.01)
    weights, states = weights_of(network), [draw(7, 4), draw(7, 5).abs(), draw(7, 3).abs(), draw(7, 2)]
    X, W = [columns(s) for s in states], [w.w.numpy() for w in weights]
    b = [w.b.numpy()[:, None] for w in weights]
    fro2 = lambda a: np.linalg.norm(a) ** 2  # noqa: E731
    paper = fro2(X[3] - W[2] @ X[2] - b[2])
    paper += sum(lam * fro2(X[i + 1] - W[i] @ X[i] - b[i]) for i, lam in enumerate([0.7, 3.0]))
    expected = paper / 7 + sum(0.01 * fro2(w) for w in W)  # the mean over samples is our convention
    assert network.objective(weights, states) == pytest.approx(expected, rel=1e-12)
    states[1][0, 0] = -1
    assert network.objective(weights, states) == np.inf


def test_eq_6_phi_is_the_integral_of_the_inverse() -> None:
    sigmoid = act.Monotone(torch.tanh, torch.atanh)
    for z in (-0.9, -0.2, 0.0, 0.4, 0.95):
        expected = quad(np.arctanh, 0, z)[0]
        assert float(sigmoid.entropy(torch.tensor([z], dtype=torch.float64))) == pytest.approx(expected, abs=1e-6)
        assert float(act.Tanh().entropy(torch.tensor([z], dtype=torch.float64))) == pytest.approx(expected, abs=1e-10)


def test_eq_7_its_argmin_is_phi_and_its_value_minus_the_conjugate() -> None:
    sigmoid = act.Sigmoid()
    for u in (-4.0, -0.3, 0.0, 2.5):
        found = minimize_scalar(
            lambda z, u=u: xlogy(z, z) + xlogy(1 - z, 1 - z) - u * z,
            bounds=(0, 1),
            method="bounded",
            options={"xatol": 1e-10},
        )
        at = torch.tensor([u], dtype=torch.float64)
        assert float(sigmoid(at)) == pytest.approx(found.x, abs=1e-6)
        assert float(sigmoid.conjugate(at)) == pytest.approx(-found.fun, abs=1e-10)


def test_eq_8_phi_of_the_leaky_relu() -> None:
    alpha, z, u = 0.3, draw(200, 1), draw(200, 1, seed=1)
    phi = 0.5 * torch.maximum((-z).relu() ** 2 / alpha, z.relu() ** 2)
    conjugate = torch.where(u < 0, alpha * u * u, u * u) / 2
    torch.testing.assert_close(act.FenchelLeakyReLU(alpha).value(u, z), (phi + conjugate - u * z).sum(-1))


def test_eq_9_max_pooling_of_two_blocks() -> None:
    u = draw(20, 5)
    for pool in (act.MaxPool((2, 3)), act.MaxPool((2, 3), form="paper")):
        torch.testing.assert_close(pool(u), torch.stack([u[:, :2].amax(1), u[:, 2:].amax(1)], 1))
    paper = act.MaxPool((2, 3), form="paper", c=0.5)
    z, spread = draw(20, 2, seed=4), torch.tensor([0, 0, 1, 1, 1])
    expected = 0.5 * z.sum(1) + (u - z[:, spread]).relu().sum(1)
    torch.testing.assert_close(paper.value(u, z), expected)


def test_eq_10_the_objective_is_the_sum_over_layers() -> None:
    network = lnn.LiftedNetwork.mlp(
        [4, 5, 3, 2], activation=["sigmoid", "hardtanh"], loss="squared", lam=[0.7, 3.0], rho=0.01
    )
    weights = weights_of(network)
    states = [draw(7, 4), draw(7, 5).sigmoid(), draw(7, 3).clamp(-1, 1), draw(7, 2)]
    expected = 0.0
    for layer, (w, b), x, z in zip(network.layers, weights, states, states[1:], strict=False):
        expected += layer.lam * float(layer.divergence.value(x @ w.T + b, z).mean()) + float(layer.penalty.value(w))
    assert network.objective(weights, states) == pytest.approx(expected, rel=1e-12)


def test_eq_11_the_softmax_cross_entropy_network() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3], activation="relu", loss="softmax", lam=2.0, rho=0.01)
    weights, labels = weights_of(network), torch.tensor([0, 2, 1, 1, 0, 2, 2])
    y = network.loss.encode(labels, 3).double()
    states = [draw(7, 4), draw(7, 5).abs(), y]
    u = states[1] @ weights[1].w.T + weights[1].b
    fit = -torch.log(u.exp() / u.exp().sum(1, keepdim=True)).gather(1, labels[:, None]).mean()
    hidden = (states[1] - states[0] @ weights[0].w.T - weights[0].b).square().sum(1).mean()
    expected = fit + 2.0 * hidden + sum(0.01 * w.w.square().sum() for w in weights)
    assert network.objective(weights, states) == pytest.approx(float(expected), rel=1e-12)


def test_eq_12_the_lifted_rule_against_a_conic_solver() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation="relu", loss="squared", lam=[0.7, 3.0])
    weights, x = weights_of(network), draw(3, 4, seed=2)
    scores = lnn.predict.lifted(network, weights, x, tol=1e-12)
    (w0, b0), (w1, b1), (w2, b2) = [(w.numpy(), b.numpy()) for w, b in weights]
    for row, found in zip(x.numpy(), scores.numpy(), strict=True):
        z1, z2, y = cp.Variable(5, nonneg=True), cp.Variable(3, nonneg=True), cp.Variable(2)
        terms = 0.7 * cp.sum_squares(z1 - w0 @ row - b0) + 3 * cp.sum_squares(z2 - w1 @ z1 - b1)
        cp.Problem(cp.Minimize(terms + cp.sum_squares(y - w2 @ z2 - b2))).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found, y.value, atol=1e-4)


def test_eq_13_the_state_update_against_a_conic_solver() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation="relu", loss="squared", lam=[0.7, 3.0])
    weights, x, after = weights_of(network), draw(4, 4), draw(4, 3, seed=8).abs()
    u = network.preactivation(0, weights, [x])
    step = update_state(
        Link(network.layers[0], network.layers[1], weights[1]), u, u.relu(), after, tol=1e-10, max_iter=5000
    )
    w, b = weights[1].w.numpy(), weights[1].b.numpy()
    for row, target, found in zip(u.numpy(), after.numpy(), step.states[0].numpy(), strict=True):
        z = cp.Variable(5, nonneg=True)
        cp.Problem(cp.Minimize(3 * cp.sum_squares(w @ z + b - target) + 0.7 * cp.sum_squares(z - row))).solve(
            solver=cp.CLARABEL
        )
        np.testing.assert_allclose(found, z.value, atol=1e-6)


def test_eq_14_the_last_state_in_closed_form() -> None:
    y, x0 = draw(20, 3), draw(20, 3, seed=1)
    for lam in (1e-3, 0.5, 40.0):
        expected = (y / (1 + lam) + lam / (1 + lam) * x0).relu()
        torch.testing.assert_close(Split(SquaredError(), act.ReLU(), lam).target(x0, y), expected)


def test_eq_15_the_last_state_by_bisection() -> None:
    x0, y = draw(5, 4), torch.eye(4, dtype=torch.float64)[[0, 1, 2, 3, 0]]
    for lam in (0.1, 2.0):
        found = Split(CrossEntropy(), act.Simplex(), lam).target(x0, y).numpy()
        for row, one_hot, z_found in zip(x0.numpy(), y.numpy(), found, strict=True):
            z = cp.Variable(4)
            goal = cp.Minimize(-one_hot @ cp.log(z) + lam * cp.sum_squares(z - row))
            cp.Problem(goal, [z >= 0, cp.sum(z) == 1]).solve(solver=cp.CLARABEL)
            np.testing.assert_allclose(z_found, z.value, atol=1e-4)  # the cone solver's own accuracy


def test_eq_16_of_the_appendix_on_its_dual_condition() -> None:
    x0, y, lam = 10 * draw(50, 6), torch.eye(6, dtype=torch.float64).repeat(9, 1)[:50], 0.3
    z = entropic_projection(x0, y, lam)
    nu = (z - y / (2 * lam * z.clamp(min=1e-300)) - x0)[y > 0]  # from the label's own condition
    pinned = z[y == 0].reshape(50, 5) - (x0[y == 0].reshape(50, 5) + nu[:, None]).relu()
    assert float((z.sum(1) - 1).abs().max()) <= 1e-10
    assert float(pinned.abs().max()) <= 1e-9


def test_section_3_rescaling_makes_all_lambda_equal() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 3, 2], activation="relu", loss="squared", lam=[0.7, 3.0], rho=0.01)
    weights, states = weights_of(network), [draw(7, 4), draw(7, 5).abs(), draw(7, 3).abs(), draw(7, 2)]
    equal, new_weights, new_states = network.equalised(weights, states, lam=2.0)
    assert [layer.lam for layer in equal.layers] == [2.0, 2.0, 1.0]
    assert equal.objective(new_weights, new_states) == pytest.approx(network.objective(weights, states), rel=1e-12)
    torch.testing.assert_close(equal.scores(new_weights, states[0]), network.scores(weights, states[0]))


def test_section_3_rescaling_is_refused_where_it_does_not_hold() -> None:
    states = [draw(7, 4), draw(7, 5).sigmoid(), draw(7, 2)]
    network = lnn.LiftedNetwork.mlp([4, 5, 2], activation="sigmoid", loss="squared")
    with pytest.raises(ValueError, match="not homogeneous of degree 2"):
        network.equalised(weights_of(network), states)
    sparse = lnn.LiftedNetwork(
        [
            lnn.Layer(lnn.operators.Dense(4, 5), act.ReLU(), lnn.penalties.L1()),
            lnn.Layer(lnn.operators.Dense(5, 2), SquaredError()),
        ]
    )
    with pytest.raises(ValueError, match="not a squared norm"):
        sparse.equalised(weights_of(sparse), states)


def test_the_simplex_activation_is_the_euclidean_projection() -> None:
    for row in draw(4, 5).numpy():
        start = np.full(5, 0.2)
        found = minimize(
            lambda z, row=row: ((z - row) ** 2).sum(),
            start,
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(act.Simplex()(torch.tensor(row)[None])[0].numpy(), found.x, atol=1e-6)
