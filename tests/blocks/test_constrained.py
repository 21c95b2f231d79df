"""W-steps under constraints: closed forms against scipy, numpy and brute force, projected steps against many other points."""

from __future__ import annotations

import itertools
import math

import cvxpy as cp
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen
from liftednn.blocks import Design, WeightStep, update_weights
from liftednn.losses import SoftmaxCrossEntropy, SquaredError

N = 70


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(p: int, q: int) -> tuple[Tensor, Tensor]:
    """Inputs with directions of unlike variance, and targets that depend on them."""
    x = draw(N, p) @ torch.diag(torch.linspace(0.3, 2, p, dtype=torch.float64)) + 2
    return x, x @ draw(p, q, seed=1) / 2 + draw(N, q, seed=2)


def step(
    penalty: lnn.Penalty,
    x: Tensor,
    z: Tensor,
    divergence: lnn.Divergence | None = None,
    start: Tensor | None = None,
    bias: bool = True,
    **options,
) -> WeightStep:
    operator = lnn.operators.Dense(x.shape[1], z.shape[1], bias)
    layer = lnn.Layer(operator, divergence or SquaredError(), penalty, 1.5)
    w = penalty.prox(draw(*operator.weight_shape, seed=4) if start is None else start, 0.0)
    begin = lnn.Affine(w.to(x), torch.zeros(len(w), dtype=x.dtype))
    return update_weights(layer, Design(x, bias), z, begin, **{"tol": 1e-10, "max_iter": 5000, **options})


def objective(w: lnn.Affine, x: Tensor, z: Tensor, divergence: lnn.Divergence | None = None) -> float:
    return 1.5 * float((divergence or SquaredError()).value(x @ w.w.T + w.b, z).mean())


def best(w: Tensor, x: Tensor, z: Tensor) -> Tensor:
    """Of many weights (m, q, p), each with the best intercept."""
    residuals = torch.einsum("mqp,np->mnq", w, x - x.mean(0)) - (z - z.mean(0))
    return 1.5 * SquaredError().value(residuals, torch.zeros_like(residuals)).mean(1)


@pytest.mark.parametrize(("p", "q"), [(3, 6), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_orthogonal_columns_are_scipys_procrustes(p: int, q: int, scale: float) -> None:
    x, z = problem(p, q)
    found = step(pen.Orthogonal(scale), x, z)
    centred, targets = (x - x.mean(0)).numpy(), (z - z.mean(0)).numpy()
    if p == q:
        rotation, _ = scipy.linalg.orthogonal_procrustes(centred, targets)
        np.testing.assert_allclose(found.weights.w.numpy(), scale * rotation.T, atol=1e-10)
    else:
        polar, _ = scipy.linalg.polar(targets.T @ centred)
        np.testing.assert_allclose(found.weights.w.numpy(), scale * polar, atol=1e-10)
    assert (found.method, found.n_iter, found.kkt < 1e-9) == ("projected", 1, True)


def test_without_bias_it_is_procrustes_about_zero() -> None:
    x, z = problem(4, 4)
    found = step(pen.Orthogonal(), x, z, bias=False)
    rotation, _ = scipy.linalg.orthogonal_procrustes(x.numpy(), z.numpy())
    np.testing.assert_allclose(found.weights.w.numpy(), rotation.T, atol=1e-10)
    assert not found.weights.b.any()


def test_one_orthogonal_row_against_all_points_of_a_circle() -> None:
    x, z = problem(2, 1)
    angles = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    every = best(torch.stack([angles.cos(), angles.sin()], 1)[:, None], x, z)
    reached = {objective(step(pen.Orthogonal(), x, z, start=draw(1, 2, seed=s)).weights, x, z) for s in range(8)}
    assert min(reached) == pytest.approx(float(every.min()), abs=1e-6)


def test_two_orthogonal_rows_in_space_against_a_fine_search() -> None:
    """Stiefel's manifold of pairs in R^3, by angles: a grid, then a finer one around its best point."""
    x, z = problem(3, 2)
    centre, width = np.array([math.pi, math.pi / 2, math.pi]), np.array([math.pi, math.pi / 2, math.pi])
    least = math.inf
    for _ in range(5):
        grids = [np.linspace(c - h, c + h, 17) for c, h in zip(centre, width, strict=True)]
        points = np.stack(np.meshgrid(*grids, indexing="ij"), -1).reshape(-1, 3)
        values = best(pairs(*points.T), x, z)
        centre, width = points[int(values.argmin())], width / 5
        least = min(least, float(values.min()))
    reached = min(objective(step(pen.Orthogonal(), x, z, start=draw(2, 3, seed=s)).weights, x, z) for s in range(8))
    assert reached <= least + 1e-9
    assert reached == pytest.approx(least, abs=1e-3)


def pairs(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Tensor:
    """Orthonormal rows (m, 2, 3): points of the sphere, and directions at a right angle to them."""
    u = np.stack([np.cos(a) * np.sin(b), np.sin(a) * np.sin(b), np.cos(b)], 1)
    e = np.stack([-np.sin(a), np.cos(a), np.zeros_like(a)], 1)
    return torch.from_numpy(np.stack([u, np.cos(c)[:, None] * e + np.sin(c)[:, None] * np.cross(u, e)], 1))


@pytest.mark.parametrize("rho", [0.0, 0.3])
@pytest.mark.parametrize(("p", "q", "rank"), [(6, 4, 2), (4, 6, 3), (5, 5, 1)])
def test_low_rank_is_reduced_rank_regression(p: int, q: int, rank: int, rho: float) -> None:
    """The best approximation of the ridge regression's fit, on rows extended by sqrt(rho) I (Izenman; Mukherjee and Zhu)."""
    x, z = problem(p, q)
    found = step(pen.LowRank(rank, rho), x, z)
    rows = np.concatenate([(x - x.mean(0)).numpy(), math.sqrt(rho * N / 1.5) * np.eye(p)])
    targets = np.concatenate([(z - z.mean(0)).numpy(), np.zeros((p, q))])
    full = np.linalg.lstsq(rows, targets, rcond=None)[0]
    _, _, right = np.linalg.svd(rows @ full, full_matrices=False)
    oracle = full @ right[:rank].T @ right[:rank]
    np.testing.assert_allclose(found.weights.w.numpy(), oracle.T, atol=1e-9)
    assert (found.method, found.n_iter, found.kkt < 1e-9) == ("projected", 1, True)


@pytest.mark.parametrize("penalty", [pen.Orthogonal(), pen.LowRank(2), pen.LowRank(2, 0.1)], ids=repr)
@pytest.mark.parametrize("divergence", [SoftmaxCrossEntropy(), act.Sigmoid(), act.FenchelReLU()], ids=repr)
@pytest.mark.parametrize(("p", "q"), [(3, 5), (5, 3)])
@pytest.mark.thin(2)
def test_pseudo_targets_reach_a_stationary_point(
    penalty: lnn.Penalty, divergence: lnn.Divergence, p: int, q: int
) -> None:
    x, z = problem(p, q)
    z = z.softmax(1)
    found = step(penalty, x, z, divergence, tol=1e-7)
    assert found.kkt <= 1e-6
    assert float(penalty.value(found.weights.w)) < torch.inf
    w, b = (part.clone().requires_grad_() for part in found.weights)
    value = 1.5 * divergence.value(x @ w.T + b, z).mean() + getattr(penalty, "rho", 0.0) * w.square().sum()
    gradient, slope = torch.autograd.grad(value, [w, b])
    assert float(slope.abs().max()) < 1e-5
    assert float(tangent(penalty, w.detach(), gradient).abs().max()) < 1e-5


def tangent(penalty: lnn.Penalty, w: Tensor, g: Tensor) -> Tensor:
    """The Riemannian gradient, from the textbook (Absil, Mahony and Sepulchre; Vandereycken)."""
    if isinstance(penalty, pen.Orthogonal):
        if w.shape[0] >= w.shape[1]:
            return g - w @ (w.T @ g + g.T @ w) / 2
        return g - (g @ w.T + w @ g.T) / 2 @ w
    u, _, v = torch.linalg.svd(w, full_matrices=False)
    u, v = u[:, : penalty.rank], v[: penalty.rank]  # type: ignore[attr-defined]
    return g - (g - u @ (u.T @ g)) @ (torch.eye(w.shape[1], dtype=w.dtype) - v.T @ v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("divergence", [SquaredError(), SoftmaxCrossEntropy()], ids=repr)
@pytest.mark.thin(2)
def test_no_step_raises_the_objective(divergence: lnn.Divergence, dtype: torch.dtype) -> None:
    x, z = problem(6, 4)
    x, z = x.to(dtype), z.softmax(1).to(dtype)
    values = []
    for count in (1, 2, 3, 5, 9, 20):
        found = step(pen.Orthogonal(), x, z, divergence, tol=1e-12, max_iter=count)
        values.append(
            objective(lnn.Affine(found.weights.w.double(), found.weights.b.double()), x.double(), z, divergence)
        )
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(values))
    assert values[-1] < values[0]


BALLS = [
    (pen.Ball(0.8, "frobenius"), lambda w: [cp.norm(w, "fro") <= 0.8]),
    (pen.Ball(0.5, "spectral"), lambda w: [cp.sigma_max(w) <= 0.5]),
    (pen.Ball(0.4, "row"), lambda w: [cp.norm(w, 2, axis=1) <= 0.4]),
    (pen.Ball(1.0, "l1"), lambda w: [cp.sum(cp.abs(w)) <= 1]),
]


@pytest.mark.parametrize(("ball", "constraints"), BALLS, ids=lambda x: repr(x) if isinstance(x, pen.Ball) else "")
def test_least_squares_in_a_ball_is_cvxpys(ball: pen.Ball, constraints) -> None:
    x, z = problem(5, 3)
    found = step(ball, x, z)
    w, b = cp.Variable((3, 5)), cp.Variable(3)
    fit = cp.sum_squares(x.numpy() @ w.T + np.ones((N, 1)) @ cp.reshape(b, (1, 3), order="C") - z.numpy())
    cp.Problem(cp.Minimize(fit), constraints(w)).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found.weights.w.numpy(), w.value, atol=1e-4)
    np.testing.assert_allclose(found.weights.b.numpy(), b.value, atol=5e-4)
    assert (found.method, found.kkt <= 1e-9) == ("prox_gradient", True)


def test_inputs_that_do_not_vary_leave_the_weights_in_the_set() -> None:
    x, z = torch.ones(N, 4, dtype=torch.float64), draw(N, 3)
    for penalty in (pen.Orthogonal(), pen.LowRank(2), pen.Ball(1.0)):
        found = step(penalty, x, z)
        assert float(penalty.value(found.weights.w)) < torch.inf
        torch.testing.assert_close(x @ found.weights.w.T + found.weights.b, z.mean(0).expand(N, 3))


def test_a_set_without_convexity_needs_a_finite_curvature() -> None:
    layers = [
        lnn.Layer(lnn.operators.Dense(4, 3), act.LeakyReLU(), pen.Orthogonal()),
        lnn.Layer(lnn.operators.Dense(3, 2), SoftmaxCrossEntropy()),
    ]
    sentence = r"layer 0: Orthogonal\(scale=1.0\) is not convex, and LeakyReLU.* has no finite curvature"
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD().run(lnn.LiftedNetwork(layers), draw(8, 4), torch.arange(8) % 2)
