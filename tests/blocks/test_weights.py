"""The W-step against scikit-learn, cvxpy and long runs of plain descent."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen
from liftednn.blocks import Design, WeightStep, update_weights
from liftednn.losses import SoftmaxCrossEntropy, Split, SquaredError

N, P, Q = 80, 5, 3


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = draw(N, P) + 2, draw(N, Q, seed=1)
START = lnn.Affine(0.1 * draw(Q, P, seed=2), torch.zeros(Q, dtype=torch.float64))


def step(divergence: lnn.Divergence, penalty: lnn.Penalty, z: Tensor = Z, lam: float = 2.0, **options) -> WeightStep:
    layer = lnn.Layer(lnn.operators.Dense(P, Q), divergence, penalty, lam)
    return update_weights(layer, Design(X), z, START, **{"tol": 1e-9, "max_iter": 2000, **options})


def test_quadratic_with_l2_is_ridge() -> None:
    found = step(SquaredError(), pen.L2(0.3))
    oracle = Ridge(alpha=0.3 * N / 2.0).fit(X.numpy(), Z.numpy())
    np.testing.assert_allclose(found.weights.w.numpy(), oracle.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.weights.b.numpy(), oracle.intercept_, rtol=1e-9)
    assert (found.method, found.kkt < 1e-12) == ("ridge", True)


def test_without_bias_it_is_ridge_through_the_origin() -> None:
    layer = lnn.Layer(lnn.operators.Dense(P, Q, bias=False), SquaredError(), pen.L2(0.3), 2.0)
    found = update_weights(layer, Design(X, bias=False), Z, START)
    oracle = Ridge(alpha=0.3 * N / 2.0, fit_intercept=False).fit(X.numpy(), Z.numpy())
    np.testing.assert_allclose(found.weights.w.numpy(), oracle.coef_, rtol=1e-9)
    assert not found.weights.b.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decades", [0, 1, 3, 5])
def test_non_negative_weights_reach_the_tolerance_in_all_units(decades: float, dtype: torch.dtype) -> None:
    """The residual that is reported is the larger of two, and nnls stops by one of them."""
    x = draw(2000, 60) @ draw(60, 60, seed=1) * 10 ** (decades * torch.linspace(-1, 1, 60, dtype=torch.float64))
    z = draw(2000, 30, seed=2) + (x / x.std(0))[:, :30]
    x, z = x.to(dtype), z.to(dtype)
    layer = lnn.Layer(lnn.operators.Dense(60, 30), SquaredError(), pen.NonNegative())
    start = lnn.Affine(x.new_zeros(30, 60), z.mean(0))
    found = update_weights(layer, Design(x), z, start, 1e-3)
    assert (found.method, found.kkt <= 1e-3) == ("nnls", True)
    again = update_weights(layer, Design(x), z, found.weights, 1e-3)
    assert again.kkt <= 1e-3
    assert again.n_iter <= found.n_iter


def test_softmax_with_l2_is_logistic_regression() -> None:
    labels = torch.arange(N) % Q
    found = step(SoftmaxCrossEntropy(), pen.L2(0.01), SoftmaxCrossEntropy().encode(labels, Q).double(), lam=1.0)
    oracle = LogisticRegression(C=1 / (2 * 0.01 * N), tol=1e-12, max_iter=10000).fit(X.numpy(), labels.numpy())
    np.testing.assert_allclose(found.weights.w.numpy(), oracle.coef_, atol=1e-6)
    shifted = found.weights.b - found.weights.b.mean()
    np.testing.assert_allclose(shifted.numpy(), oracle.intercept_ - oracle.intercept_.mean(), atol=1e-5)
    assert (found.method, found.kkt <= 1e-9) == ("majorised", True)


def test_quadratic_with_elastic_net_is_scikit_learns() -> None:
    found = step(SquaredError(), pen.ElasticNet(0.2, 0.5), lam=1.0, max_iter=5000)
    oracle = ElasticNet(
        alpha=0.15, l1_ratio=1 / 3, tol=1e-12, max_iter=100000
    )  # (1/2) mean |.|^2 + 0.05 |w|_1 + 0.05 |w|^2
    np.testing.assert_allclose(found.weights.w.numpy(), oracle.fit(X.numpy(), Z.numpy()).coef_, atol=1e-6)
    assert found.method == "prox_gradient"


@pytest.mark.parametrize(
    ("penalty", "oracle"),
    [
        (pen.NonNegative(0.05), lambda w: (0.05 * cp.sum_squares(w), [w >= 0])),
        (pen.GroupL2(0.3, "output"), lambda w: (0.3 * cp.sum(cp.norm(w, 2, axis=1)), [])),
        (pen.GroupL2(0.3, "input"), lambda w: (0.3 * cp.sum(cp.norm(w, 2, axis=0)), [])),
        (
            pen.Mask(torch.eye(Q, P).bool(), 0.05),
            lambda w: (0.05 * cp.sum_squares(w), [cp.multiply(w, 1 - np.eye(Q, P)) == 0]),
        ),
        (pen.L1(0.3), lambda w: (0.3 * cp.sum(cp.abs(w)), [])),
    ],
)
def test_other_penalties_against_a_conic_solver(penalty: lnn.Penalty, oracle) -> None:
    found = step(SquaredError(), penalty, max_iter=5000)
    w, b = cp.Variable((Q, P)), cp.Variable(Q)
    value, constraints = oracle(w)
    fit = cp.sum_squares(X.numpy() @ w.T + np.ones((N, 1)) @ cp.reshape(b, (1, Q), order="C") - Z.numpy())
    cp.Problem(cp.Minimize(2.0 / N * fit + value), constraints).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found.weights.w.numpy(), w.value, atol=2e-4)
    np.testing.assert_allclose(found.weights.b.numpy(), b.value, atol=5e-4)


def test_l1_relu_is_least_absolute_deviations() -> None:
    z = Z.relu()
    found = step(act.ReLU("l1"), pen.L2(0.02), z, lam=1.0, tol=1e-7)
    w, b = cp.Variable((Q, P)), cp.Variable(Q)
    fit = cp.sum(cp.abs(X.numpy() @ w.T + np.ones((N, 1)) @ cp.reshape(b, (1, Q), order="C") - z.numpy()))
    goal = cp.Problem(cp.Minimize(fit / N + 0.02 * cp.sum_squares(w)))
    goal.solve(solver=cp.CLARABEL)
    value = (X @ found.weights.w.T + found.weights.b - z).abs().sum(1).mean() + 0.02 * found.weights.w.square().sum()
    assert float(value) == pytest.approx(goal.value, rel=1e-5)
    assert found.method == "splitting"


def test_leaky_relu_stays_in_its_coupled_domain_and_reaches_the_optimum() -> None:
    leaky = act.LeakyReLU(0.2)
    layer = lnn.Layer(lnn.operators.Dense(P, Q), leaky, pen.L2(0.02), 1.0)
    z = leaky(X @ START.w.T + START.b) + Z.abs()
    found = update_weights(layer, Design(X), z, START, tol=1e-7, max_iter=400)
    w, b = cp.Variable((Q, P)), cp.Variable(Q)
    u = X.numpy() @ w.T + np.ones((N, 1)) @ cp.reshape(b, (1, Q), order="C")
    goal = cp.Problem(cp.Minimize(cp.sum_squares(u - z.numpy()) / N + 0.02 * cp.sum_squares(w)), [0.2 * u <= z.numpy()])
    goal.solve(solver=cp.CLARABEL)
    value = leaky.value(X @ found.weights.w.T + found.weights.b, z).mean() + 0.02 * found.weights.w.square().sum()
    assert float(value) == pytest.approx(goal.value, rel=1e-4)


@pytest.mark.parametrize("divergence", [act.FenchelReLU(), act.Sigmoid(), act.Softplus(), Split()])
def test_majorised_steps_reach_a_stationary_point(divergence: lnn.Divergence) -> None:
    z = Z.sigmoid()
    found = step(divergence, pen.L2(0.02), z, tol=1e-8)
    w, b = (part.clone().requires_grad_() for part in found.weights)
    u = X @ w.T + b
    value = 2.0 * divergence.value(u, z).mean() + 0.02 * w.square().sum()
    gradients = torch.autograd.grad(value, [w, b])
    assert max(float(g.abs().max()) for g in gradients) < 1e-7


def test_the_design_forms_its_gram_matrix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    design = Design(X)
    first = design.moments(Z)
    assert torch.equal(first.xx, design.inputs.xx)
    monkeypatch.setattr("liftednn.blocks.design.Moments.of", lambda *a: pytest.fail("formed again"))
    second = design.moments(2 * Z)
    assert second.xx is first.xx
    torch.testing.assert_close(second.xz, 2 * first.xz)
    assert design.factor(1.0, 0.1) is design.factor(1.0, 0.1)


@pytest.mark.parametrize("penalty", [pen.L2(1e-3), pen.NoPenalty(), pen.NonNegative(), pen.Mask(None)], ids=repr)
@pytest.mark.parametrize("units", [(1e3, 1e-2), (1e-3, 1e2)])
def test_columns_in_other_units_keep_their_weights(penalty: lnn.Penalty, units: tuple[float, float]) -> None:
    """From the minimiser, the objective does not rise; in float32 the rounding of one column is larger than all of the other."""
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor(units)
    y = x.double() @ torch.tensor([[0.0], [1 / units[1]]]).double()
    network = lnn.LiftedNetwork.mlp([2, 1], loss="squared").with_penalty([penalty])
    rho = getattr(penalty, "rho", 0.0)
    centred = (x - x.mean(0)).double()
    gram = centred.T @ centred / 300 + rho * torch.eye(2).double()
    best = torch.linalg.solve(gram, centred.T @ (y - y.mean(0)) / 300)
    fit = lnn.BCD(passes=2, block_tol=1e-6).run(network, x, y.float())
    torch.testing.assert_close(fit.weights[0].w.double()[0, 1], best[1, 0], rtol=1e-4, atol=0.0)
    assert fit.history[-1].kkt["w0"] < 1e-4


@pytest.mark.parametrize("rho", [0.0, 1e-10, 1e-8])
def test_a_tiny_rho_on_repeated_columns_does_not_stop_classification(rho: float) -> None:
    a = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    labels = (a[:, 0] + a[:, 1] * a[:, 2] > 0).long()
    network = lnn.LiftedNetwork.mlp([10, 2], loss="softmax", rho=rho)
    fit = lnn.BCD(passes=5).run(network, torch.cat([a, a], 1), labels)
    alone = lnn.BCD(passes=5).run(lnn.LiftedNetwork.mlp([5, 2], loss="softmax", rho=rho), a, labels)
    assert fit.history[-1].objective == pytest.approx(alone.history[-1].objective, rel=1e-4)
