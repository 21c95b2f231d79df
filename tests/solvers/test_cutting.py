"""How rows are cut into calls and blocks changes no row's solution: loose tolerances, so that every row stops long before its limit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from liftednn.solvers import gradient_scale, nnls, prox_gradient
from liftednn.solvers.prox_gradient import Point

N, P = 120, 12
# Where the rows are cut, single rows included.
CUTS = [[0, 60, N], [0, 1, 2, 30, N - 1, N], [*range(0, N, 9), N]]


def pieces(cuts: list[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(cuts)]


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratic(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """h, q and a start; rows of very different sizes, so that some are done early and some late."""
    w = rows(9, P, seed=seed)
    sizes = torch.logspace(-2, 1, N, dtype=torch.float64)[:, None]
    return (
        w.T @ w + 0.1 * torch.eye(P, dtype=torch.float64),
        sizes * rows(N, P, seed=seed + 1),
        rows(N, P, seed=seed + 2),
    )


def assert_same(pieces: list[Tensor], whole: Tensor) -> None:
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tol", [1e-1, 1e-3])
def test_nnls_of_some_rows_is_that_of_all(tol: float) -> None:
    h, q, z = quadratic(seed=3)
    whole, scale = nnls(h, q, z, tol, upper=1.0), q.abs().max().item()
    for cuts in CUTS:
        found = [nnls(h, q[part], z[part], tol, upper=1.0, scale=scale) for part in pieces(cuts)]
        assert_same([each.z for each in found], whole.z)
        assert max(each.n_iter for each in found) == whole.n_iter
        assert max(each.kkt for each in found) == pytest.approx(whole.kkt, rel=1e-6)


@pytest.mark.parametrize("block_rows", [7, 50, N - 1])
def test_nnls_in_blocks_is_that_at_once(block_rows: int) -> None:
    (h, q, z), tol = quadratic(seed=6), 1e-3
    lower = -rows(N, P, seed=9).abs()
    whole = nnls(h, q, z, tol, lower=lower)
    blocks = nnls(h, q, z, tol, lower=lower, block_rows=block_rows)
    assert_same([blocks.z], whole.z)
    assert (blocks.n_iter, blocks.status) == (whole.n_iter, whole.status)


def test_scale_is_what_the_residual_of_nnls_is_measured_against() -> None:
    h, q, z = quadratic(seed=3)
    first, second = (nnls(h, q, z, max_iter=0, scale=scale) for scale in (1.0, 10.0))
    assert first.kkt == pytest.approx(10 * second.kkt)
    with pytest.raises(ValueError, match="scale must be non-negative and finite, got -1"):
        nnls(h, q, scale=-1)


@dataclass
class Logistic:
    """sum_j log(1 + e^(x a'_j)) - y_j x a'_j + |x|_1 / 10 for every row x, on two tensors, the columns of x."""

    a: Tensor
    y: Tensor

    @property
    def step(self) -> float:
        return 4 / float(torch.linalg.matrix_norm(self.a, 2)) ** 2

    def take(self, part: slice) -> Logistic:
        return Logistic(self.a, self.y[part])

    def forward(self, x: Point) -> Point:
        return [torch.cat(x, 1) @ self.a.T]

    def value(self, x: Point, ax: Point) -> Tensor:
        loss = torch.nn.functional.softplus(ax[0]) - self.y * ax[0]
        return loss.sum(1) + sum(part.abs().sum(1) for part in x) / 10

    def gradient(self, x: Point, ax: Point) -> Point:
        gradient = (torch.sigmoid(ax[0]) - self.y) @ self.a
        return list(gradient.split([part.shape[1] for part in x], 1))

    def prox(self, x: Point, step: float) -> Point:
        return [torch.nn.functional.softshrink(part, step / 10) for part in x]


def logistic() -> tuple[Logistic, Point]:
    """Rows that begin near and far from their solution."""
    sizes = torch.logspace(-2, 1, N, dtype=torch.float64)[:, None]
    a = rows(15, P, seed=1) * torch.linspace(0.1, 2, P, dtype=torch.float64)
    return Logistic(a, torch.sigmoid(rows(N, 15, seed=2))), list((sizes * rows(N, P, seed=3)).split([4, 8], 1))


@pytest.mark.parametrize(("tol", "max_iter"), [(1e-1, 500), (1e-2, 500), (1e-9, 30)])
@pytest.mark.thin(3)
def test_prox_gradient_of_some_rows_is_that_of_all(tol: float, max_iter: int) -> None:
    problem, start = logistic()
    whole = prox_gradient(problem, start, problem.step, tol, max_iter)
    for cuts in CUTS:
        parts = [(problem.take(part), [x[part] for x in start]) for part in pieces(cuts)]
        scale = max(gradient_scale(*part) for part in parts)
        found = [prox_gradient(*part, problem.step, tol, max_iter, scale) for part in parts]
        assert_same([torch.cat(each.x, 1) for each in found], torch.cat(whole.x, 1))
        assert max(each.n_iter for each in found) == whole.n_iter
        assert max(each.kkt for each in found) == pytest.approx(whole.kkt, rel=1e-6)


def test_a_row_that_has_converged_stays_where_it_is() -> None:
    problem, start = logistic()
    near = prox_gradient(problem, start, problem.step, 1e-2).x
    mixed = [torch.cat([a[:60], b[60:]]) for a, b in zip(near, start, strict=True)]
    again = prox_gradient(problem, mixed, problem.step, 1e-2)
    assert again.n_iter > 0
    assert all(torch.equal(a[:60], b[:60]) for a, b in zip(again.x, near, strict=True))


def test_rows_that_stall_do_not_stop_the_others() -> None:
    """One row cannot move, and the rest converge as without it."""
    problem, start = logistic()
    others = prox_gradient(problem.take(slice(1, N)), [x[1:] for x in start], problem.step, 1e-4, 5000, 1.0)
    stiff = Stiff(problem.a, problem.y)
    together = prox_gradient(stiff, start, problem.step, 1e-4, 5000, 1.0)
    assert others.status == "converged"
    assert together.status == "stalled"
    assert_same([torch.cat(together.x, 1)[1:]], torch.cat(others.x, 1))


class Stiff(Logistic):
    """The gradient of the first row is that of the negative function, so that no step lowers it."""

    def gradient(self, x: Point, ax: Point) -> Point:
        sign = torch.ones(len(self.y), 1, dtype=torch.float64)
        sign[0] = -1
        return [sign * part for part in super().gradient(x, ax)]
