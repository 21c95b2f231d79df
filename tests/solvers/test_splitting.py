"""Operator splitting on its own: problems without a smooth term, against a conic solver."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from liftednn.solvers import splitting


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shrink(v: Tensor, threshold: float) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp(min=0)


@dataclass
class AbsoluteDeviations:
    """|a x - y|_1 + alpha |x|_1 for x (p,), or one problem a row for x (rows, p) and y (rows, n)."""

    a: Tensor
    y: Tensor
    alpha: float
    nonnegative: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.a.T

    def adjoint(self, u: Tensor) -> Tensor:
        return u @ self.a

    def solve(self, x: Tensor) -> Tensor:
        matrix = self.a.T @ self.a + torch.eye(self.a.shape[1], dtype=x.dtype)
        return torch.linalg.solve(matrix, x.T).T if x.ndim == 2 else torch.linalg.solve(matrix, x)

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        return self.y + shrink(u - self.y, step)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return (x - step * self.alpha).clamp(min=0) if self.nonnegative else shrink(x, step * self.alpha)

    def value(self, x: Tensor) -> Tensor:
        energy = (self.forward(x) - self.y).abs().sum(-1) + self.alpha * x.abs().sum(-1)
        return torch.where((x < 0).any(-1), torch.inf, energy) if self.nonnegative else energy

    def retract(self, x: Tensor) -> Tensor:
        return x


@dataclass
class BasisPursuit(AbsoluteDeviations):
    """min |x|_1 subject to a x = y, membership to 1e-7."""

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        return self.y.expand_as(u)

    def value(self, x: Tensor) -> Tensor:
        inside = (self.forward(x) - self.y).abs().amax(-1) <= 1e-7
        return torch.where(inside, x.abs().sum(-1), torch.inf)

    def retract(self, x: Tensor) -> Tensor:
        return x + (self.y - self.forward(x)) @ torch.linalg.pinv(self.a).T


def deviations(alpha: float = 0.5, nonnegative: bool = False) -> AbsoluteDeviations:
    a = rows(30, 6)
    noise = rows(30, seed=2) * (torch.arange(30) % 5 == 0) * 4
    return AbsoluteDeviations(a, a @ rows(6, seed=1) + noise, alpha, nonnegative)


@pytest.mark.parametrize(
    ("alpha", "nonnegative", "sigma"),
    [(0.0, False, 0.1), (0.5, False, 1.0), (4.0, False, 10.0), (0.0, True, 10.0), (0.5, True, 1.0), (4.0, True, 0.1)],
)
@pytest.mark.thin(6)
def test_least_absolute_deviations_equal_cvxpy(alpha: float, nonnegative: bool, sigma: float) -> None:
    problem = deviations(alpha, nonnegative)
    result = splitting(problem, torch.zeros(6).double(), sigma=sigma, tol=1e-7, max_iter=20000, scale=30.0)
    v = cvxpy.Variable(6, nonneg=nonnegative)
    best = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.norm1(problem.a.numpy() @ v - problem.y.numpy()) + alpha * cvxpy.norm1(v))
    )
    best.solve(solver=cvxpy.CLARABEL)
    assert result.status == "converged"
    assert float(problem.value(result.x)) == pytest.approx(best.value, rel=1e-6)
    np.testing.assert_allclose(result.x.numpy(), v.value, atol=1e-4)


def test_an_absent_second_term_converges_without_a_given_scale() -> None:
    """g = 0 makes both terms of A'f' + g' vanish at the solution: their size cannot be the scale."""
    result = splitting(deviations(0.0), torch.zeros(6).double(), tol=1e-6, max_iter=2000)
    assert result.status == "converged"


def test_more_iterations_do_not_give_a_worse_point() -> None:
    problem = deviations(0.0)
    short, long = (splitting(problem, torch.zeros(6).double(), max_iter=k).x for k in (200, 2000))
    assert float(problem.value(long)) <= float(problem.value(short)) * (1 + 1e-6)


def test_a_bad_initial_sigma_is_corrected() -> None:
    problem = deviations(2.0, nonnegative=True)
    result = splitting(problem, torch.zeros(6).double(), sigma=0.01, tol=1e-6, max_iter=10000, scale=30.0)
    assert result.status == "converged"


def test_basis_pursuit_equals_cvxpy() -> None:
    a, truth = rows(8, 20), torch.zeros(20).double()
    truth[[3, 11]] = torch.tensor([2.0, -1.0]).double()
    problem = BasisPursuit(a, a @ truth, 1.0)
    start = torch.linalg.pinv(a) @ problem.y
    result = splitting(problem, start, tol=1e-8, max_iter=50000)
    v = cvxpy.Variable(20)
    best = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(v)), [a.numpy() @ v == problem.y.numpy()])
    best.solve(solver=cvxpy.CLARABEL)
    assert float(problem.value(result.x)) == pytest.approx(best.value, abs=1e-5)
    torch.testing.assert_close(result.x, truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_iter", [1, 2, 7, 25, 26, 60])
def test_the_result_is_in_the_domain_and_never_above_the_start(max_iter: int) -> None:
    for problem, start in [
        (deviations(0.5, nonnegative=True), rows(6, seed=3).abs()),
        (deviations(), rows(6, seed=1)),
        (BasisPursuit(rows(3, 6), rows(3, seed=1), 1.0), torch.linalg.pinv(rows(3, 6)) @ rows(3, seed=1)),
    ]:
        result = splitting(problem, start, max_iter=max_iter, tol=0.0)
        assert (result.status, result.n_iter) == ("max_iter", max_iter)
        assert float(problem.value(result.x)) <= float(problem.value(start))


def test_starting_at_the_solution_stays_there() -> None:
    problem = deviations()
    best = splitting(problem, torch.zeros(6).double(), tol=1e-9, max_iter=50000).x
    again = splitting(problem, best, tol=1e-6)
    assert float(problem.value(again.x)) <= float(problem.value(best))
    torch.testing.assert_close(again.x, best, rtol=0, atol=1e-5)


def test_rows_that_separate_are_judged_each_on_its_own() -> None:
    a, targets = rows(12, 4), rows(3, 12, seed=2)
    together = AbsoluteDeviations(a, targets, 0.3)
    result = splitting(together, torch.zeros(3, 4).double(), tol=1e-8, max_iter=50000)
    for target, found in zip(targets, result.x, strict=True):
        alone = AbsoluteDeviations(a, target, 0.3)
        expected = splitting(alone, torch.zeros(4).double(), tol=1e-9, max_iter=50000).x
        assert float(alone.value(found)) == pytest.approx(float(alone.value(expected)), rel=1e-7)


def test_the_stationarity_can_be_measured_against_a_given_scale() -> None:
    problem = deviations()
    result = splitting(problem, torch.zeros(6).double(), tol=1e-7, max_iter=50000, scale=30.0)
    reference = splitting(problem, torch.zeros(6).double(), tol=1e-9, max_iter=50000)
    assert result.status == "converged"
    assert result.kkt <= 1e-7
    torch.testing.assert_close(result.x, reference.x, rtol=0, atol=1e-5)


def test_a_start_outside_the_domain_is_refused() -> None:
    with pytest.raises(ValueError, match="splitting must start inside the domain"):
        splitting(deviations(nonnegative=True), -torch.ones(6).double())
