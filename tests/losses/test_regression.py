"""Losses of bounded slope against torch, scikit-learn, grids and a conic solver; the linear model against scikit-learn's."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import d2_absolute_error_score, d2_pinball_score
from torch import Tensor

import liftednn as lnn
from liftednn.losses import AbsoluteError, Huber, Quantile, SquaredError
from liftednn.losses.regression import Bounded
from liftednn.penalties import L1, L2
from liftednn.testing import check_loss

KINKED: list[Bounded] = [AbsoluteError(), Quantile(), Quantile(0.1), Quantile((0.1, 0.5, 0.95))]
SMOOTH: list[Bounded] = [loss.smoothed(0.3) for loss in KINKED] + [Huber(), Huber(2.0)]


def rows(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = rows(90, 3, seed=3)
Y = X @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.5 * rows(90, 1, seed=4)[:, 0].pow(3)


@pytest.mark.parametrize("loss", [*KINKED, *SMOOTH], ids=repr)
def test_conforms(loss: Bounded) -> None:
    check_loss(loss, width=3)


def test_values_equal_torchs() -> None:
    u, y = 2 * rows(50, 3), rows(50, 3, seed=1)

    def torchs(name: str, **options: float) -> Tensor:
        return getattr(fn, name)(u, y, reduction="none", **options).sum(-1)

    torch.testing.assert_close(AbsoluteError().value(u, y), torchs("l1_loss"))
    torch.testing.assert_close(AbsoluteError(0.4).value(u, y), torchs("smooth_l1_loss", beta=0.4))
    torch.testing.assert_close(Huber(0.7).value(u, y), 2 * torchs("huber_loss", delta=0.7))
    torch.testing.assert_close(Huber(100.0).value(u, y), SquaredError().value(u, y))
    below, above = (y - u).relu(), (u - y).relu()
    torch.testing.assert_close(Quantile(0.8).value(u, y), (0.8 * below + 0.2 * above).sum(-1))


@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
def test_gradients_are_autograds(loss: Bounded) -> None:
    u, y = rows(50, 3).requires_grad_(), rows(50, 3, seed=1)
    (expected,) = torch.autograd.grad(loss.value(u, y).sum(), u)
    torch.testing.assert_close(loss.grad(u.detach(), y), expected)


@pytest.mark.parametrize("loss", [AbsoluteError(), Quantile(0.1), Quantile(0.9)], ids=repr)
def test_smoothing_is_the_moreau_envelope_within_its_bound(loss: Bounded) -> None:
    s, grid = 0.5, torch.linspace(-4, 4, 80_001, dtype=torch.float64)[:, None]
    for r in (-2.0, -0.3, 0.0, 0.04, 0.2, 1.5):
        u, zero = torch.full_like(grid, r), torch.zeros_like(grid)
        envelope = (loss.value(grid, zero) + (grid - u).square()[:, 0] / (2 * s)).min()
        smooth = loss.smoothed(s).value(u[:1], zero[:1])[0]
        torch.testing.assert_close(smooth, envelope, rtol=0, atol=1e-7)
        steepest = 1.0 if isinstance(loss, AbsoluteError) else 0.9
        assert 0 <= loss.value(u[:1], zero[:1])[0] - smooth <= s / 2 * steepest**2 + 1e-12


@pytest.mark.parametrize("loss", [*KINKED[:3], *KINKED[:1], Huber(), Quantile(0.9, 0.2)], ids=repr)
@pytest.mark.parametrize("step", [0.05, 1.0, 20.0])
def test_prox_is_the_minimum_on_a_grid(loss: Bounded, step: float) -> None:
    grid = torch.linspace(-6, 6, 120_001, dtype=torch.float64)[:, None]
    for v, y in ((2.0, 1.0), (1.01, 1.0), (-3.0, 0.5), (0.2, 0.2)):
        energy = loss.value(grid, torch.full_like(grid, y)) + (grid - v).square()[:, 0] / (2 * step)
        found = loss.prox_u(torch.tensor([[v]]).double(), torch.tensor([[y]]).double(), step)
        assert abs(float(found) - float(grid[energy.argmin()])) <= 2e-4


def test_prox_lands_on_the_kink_itself() -> None:
    v, y = 0.1 * rows(200, 2).float() + 3, torch.full((200, 2), 3.0)
    assert torch.equal(AbsoluteError().prox_u(v, y, 10.0), y)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_scores_are_scikit_learns(level: float) -> None:
    y = rows(101, 1, seed=8)
    u = y + rows(101, 1, seed=9)
    expected = d2_pinball_score(y[:, 0], u[:, 0], alpha=level)
    assert Quantile(level, 0.3).score(u, y) == pytest.approx(expected, abs=1e-9)
    assert AbsoluteError().score(u, y) == pytest.approx(d2_absolute_error_score(y[:, 0], u[:, 0]), abs=1e-9)
    assert AbsoluteError().score(u, torch.ones_like(y)) == 0


def test_the_score_of_huber_is_0_at_the_best_constant() -> None:
    y, loss = rows(100, 2).pow(3), Huber(0.4)
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    for column in range(2):
        one = y[:, column : column + 1]
        values = torch.stack([loss.value(c.expand_as(one), one).mean() for c in grid[::20]])
        best = grid[::20][values.argmin()]
        assert abs(float(loss.constants(y)[column]) - float(best)) <= 2e-3
    assert loss.score(loss.constants(y).expand_as(y), y) == pytest.approx(0, abs=1e-12)
    assert loss.score(y, y) == 1


def test_several_levels_share_one_response() -> None:
    loss = Quantile((0.1, 0.9))
    for given in (Y, Y[:, None]):
        assert torch.equal(loss.encode(given, 2), torch.stack([Y, Y], 1))
    parts = [Quantile(q).value(Y[:, None] + 1, Y[:, None]) for q in (0.1, 0.9)]
    both = torch.stack([Y, Y], 1)
    torch.testing.assert_close(loss.value(both + 1, both), sum(parts, torch.zeros(1)))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
@pytest.mark.thin(3)
def test_without_hidden_layer_bcd_is_quantile_regression(level: float) -> None:
    """scikit-learn minimises mean pinball + alpha |w|_1 as a linear program."""
    network = lnn.LiftedNetwork.mlp([3, 1], loss=Quantile(level))
    network = lnn.LiftedNetwork([lnn.Layer(network.layers[0].operator, Quantile(level), L1(0.05))])
    found = lnn.BCD(passes=1, block_tol=1e-6, block_iter=60).run(network, X, Y).weights[0]
    oracle = QuantileRegressor(quantile=level, alpha=0.05, solver="highs").fit(X, Y)

    def objective(w: np.ndarray, b: float) -> float:
        r = Y.numpy() - X.numpy() @ w - b
        return float(np.maximum(level * r, (level - 1) * r).mean() + 0.05 * np.abs(w).sum())

    reached, least = objective(found.w[0].numpy(), float(found.b)), objective(oracle.coef_, oracle.intercept_)
    assert least - 1e-9 <= reached <= least * (1 + 3e-4)


@pytest.mark.parametrize("loss", [AbsoluteError(), Huber(0.4), AbsoluteError(0.05), Quantile(0.3)], ids=repr)
@pytest.mark.thin(6)
def test_without_hidden_layer_bcd_equals_a_conic_solver(loss: Bounded) -> None:
    network = lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(3, 1), loss, L2(0.02))])
    found = lnn.BCD(passes=1, block_tol=1e-6, block_iter=400).run(network, X, Y)
    w, b = cvxpy.Variable(3), cvxpy.Variable()
    r = X.numpy() @ w + b - Y.numpy()
    terms = {
        AbsoluteError(): lambda: cvxpy.abs(r),
        Huber(0.4): lambda: cvxpy.huber(r, 0.4),
        AbsoluteError(0.05): lambda: cvxpy.huber(r, 0.05) / 0.1,
        Quantile(0.3): lambda: cvxpy.maximum(0.7 * r, -0.3 * r),
    }
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(terms[loss]()) / len(Y) + 0.02 * cvxpy.sum_squares(w)))
    problem.solve(solver="CLARABEL")
    assert found.history[-1].objective == pytest.approx(problem.value, rel=1e-5)
    np.testing.assert_allclose(found.weights[0].w[0], w.value, atol=2e-3)


@pytest.mark.parametrize(
    ("loss", "activation", "joint"),
    [
        (AbsoluteError(), "relu", True),
        (AbsoluteError(), "hardtanh", False),
        (Quantile(0.9), "relu", False),
        (Huber(0.3), "hardtanh", True),
        (Huber(0.3), "relu", False),
        (AbsoluteError(0.1), "relu", True),
    ],
    ids=str,
)
@pytest.mark.thin(3)
def test_no_block_raises_the_objective(loss: Bounded, activation: str, joint: bool) -> None:
    network = lnn.LiftedNetwork.mlp([3, 5, 1], activation, loss, lam=0.5)
    trainer = lnn.BCD(joint=joint, block_iter=10)
    state = trainer.init(network, X, Y)
    before = start = network.objective(state.weights, state.states)
    for _ in range(2):
        for block in trainer.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert after <= before + 1e-9 * (1 + abs(before)), block
            before = after
    assert before < start


def test_the_effective_curvature_lies_between_that_of_far_residuals_and_the_bound() -> None:
    u, y = rows(400, 1), torch.zeros(400, 1).double()
    curvature = [AbsoluteError(s).effective_curvature(u, y) for s in (1e-3, 1e-2, 10.0)]
    assert 1 < curvature[1] < curvature[0] < 20
    assert curvature[2] == pytest.approx(0.1)
    row_weights = torch.ones(400).double()
    assert AbsoluteError(0.1).effective_curvature(u, y, row_weights) == pytest.approx(
        AbsoluteError(0.1).effective_curvature(u, y)
    )
    assert Huber().effective_curvature(u, y) == 2 * Huber().curvature == 4


@pytest.mark.parametrize("loss", [AbsoluteError(0.1), Huber(), Quantile(0.2, 0.1)], ids=repr)
def test_scaling_changes_the_units(loss: Bounded) -> None:
    u, y = rows(40, 2), rows(40, 2, seed=1)
    ratio = loss.scaled(5.0).value(5 * u, 5 * y) / loss.value(u, y)
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: AbsoluteError(-1.0), "smoothing must be a number of at least 0, got -1.0"),
        (lambda: Quantile(0.5, float("inf")), "smoothing must be a number of at least 0, got inf"),
        (lambda: Huber(0.0), "delta must be positive, got 0.0: for delta = 0, give AbsoluteError"),
        (lambda: Quantile(1.0), "q must lie between 0 and 1"),
        (lambda: Quantile(()), "q must lie between 0 and 1"),
        (lambda: Quantile((0.1, 0.9)).encode(Y, 3), "q has 2 levels, but the network has 3 outputs"),
    ],
)
def test_refusals(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=sentence):
        make()
