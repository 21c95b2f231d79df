"""Accelerated proximal gradient on its own: lasso and logistic regression against scikit-learn, and its guarantees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, LogisticRegression
from torch import Tensor

from liftednn.solvers import prox_gradient
from liftednn.solvers.prox_gradient import Point


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shrink(v: Tensor, threshold: float) -> Tensor:
    return v.sign() * (v.abs() - threshold).clamp(min=0)


@dataclass
class L1Regression:
    """|a x - y|^2 / (2 n) + alpha |x|_1, for one target (n,)."""

    a: Tensor
    y: Tensor
    alpha: float

    @property
    def step(self) -> float:
        return len(self.a) / float(torch.linalg.matrix_norm(self.a, 2)) ** 2

    def forward(self, x: Point) -> Point:
        return [self.a @ x[0]]

    def value(self, x: Point, ax: Point) -> Tensor:
        return (ax[0] - self.y).square().sum() / (2 * len(self.a)) + self.alpha * x[0].abs().sum()

    def gradient(self, x: Point, ax: Point) -> Point:
        return [self.a.T @ (ax[0] - self.y) / len(self.a)]

    def prox(self, x: Point, step: float) -> Point:
        return [shrink(x[0], step * self.alpha)]


@dataclass
class L1Rows(L1Regression):
    """The same for many targets at once, y (rows, n): one problem a row, x (rows, p)."""

    def forward(self, x: Point) -> Point:
        return [x[0] @ self.a.T]

    def value(self, x: Point, ax: Point) -> Tensor:
        return (ax[0] - self.y).square().sum(-1) / (2 * len(self.a)) + self.alpha * x[0].abs().sum(-1)

    def gradient(self, x: Point, ax: Point) -> Point:
        return [(ax[0] - self.y) @ self.a / len(self.a)]


@dataclass
class Logistic:
    """mean log(1 + e^(-s (a w + b))) + rho |w|^2 / 2 on two tensors, w (1, p) and b (1,)."""

    a: Tensor
    sign: Tensor
    rho: float

    def forward(self, x: Point) -> Point:
        return [self.a @ x[0][0] + x[1]]

    def value(self, x: Point, ax: Point) -> Tensor:
        return torch.nn.functional.softplus(-self.sign * ax[0]).mean() + self.rho / 2 * x[0].square().sum()

    def gradient(self, x: Point, ax: Point) -> Point:
        slope = -self.sign * torch.sigmoid(-self.sign * ax[0]) / len(self.a)
        return [(slope @ self.a)[None] + self.rho * x[0], slope.sum()[None]]

    def prox(self, x: Point, step: float) -> Point:
        return x


@dataclass
class BoxedQuadratic:
    """sum (x - c)^2 / 2 on x >= 0, one value a row."""

    c: Tensor

    def forward(self, x: Point) -> Point:
        return [x[0]]

    def value(self, x: Point, ax: Point) -> Tensor:
        return torch.where((x[0] < 0).any(-1), torch.inf, (x[0] - self.c).square().sum(-1) / 2)

    def gradient(self, x: Point, ax: Point) -> Point:
        return [x[0] - self.c]

    def prox(self, x: Point, step: float) -> Point:
        return [x[0].clamp(min=0)]


def lasso(alpha: float = 0.1, n: int = 80, p: int = 20) -> L1Regression:
    truth = rows(p, seed=1) * (torch.arange(p) % 4 == 0)
    a = rows(n, p) * torch.linspace(0.2, 3, p, dtype=torch.float64)
    return L1Regression(a, a @ truth + 0.1 * rows(n, seed=2), alpha)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
def test_lasso_equals_sklearn(alpha: float) -> None:
    problem = lasso(alpha)
    result = prox_gradient(problem, [torch.zeros(20, dtype=torch.float64)], problem.step, tol=1e-10, max_iter=20000)
    expected = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100000).fit(
        problem.a.numpy(), problem.y.numpy()
    )
    assert result.status == "converged"
    np.testing.assert_allclose(result.x[0].numpy(), expected.coef_, atol=1e-7)
    assert torch.equal(result.x[0] == 0, torch.from_numpy(expected.coef_ == 0))


def test_logistic_regression_on_two_tensors_equals_sklearn() -> None:
    a, rho = rows(150, 4) + 0.5, 0.02
    sign = torch.where(a @ rows(4, seed=3) + rows(150, seed=4) > 0.3, 1.0, -1.0).double()
    largest = float(torch.linalg.matrix_norm(torch.cat([a, torch.ones(150, 1).double()], 1), 2)) ** 2 / 150
    start = [torch.zeros(1, 4).double(), torch.zeros(1).double()]
    result = prox_gradient(Logistic(a, sign, rho), start, 1 / (largest / 4 + rho), tol=1e-10, max_iter=20000)
    expected = LogisticRegression(C=1 / (rho * 150), tol=1e-12, max_iter=10000).fit(a.numpy(), sign.numpy())
    assert result.status == "converged"
    np.testing.assert_allclose(result.x[0].numpy(), expected.coef_, atol=1e-6)
    np.testing.assert_allclose(result.x[1].numpy(), expected.intercept_, atol=1e-6)


ROUNDING = 4 * torch.finfo(torch.float64).eps


def test_nothing_rises_from_check_to_check() -> None:
    """F is evaluated every four steps, so that the points after 4, 8, 12, ... steps are those of one run."""
    problem, start = lasso(0.05), [3 * rows(20, seed=8)]
    values = [float(problem.value(start, problem.forward(start)))]
    for k in range(4, 240, 4):
        x = prox_gradient(problem, start, problem.step, tol=0.0, max_iter=k).x
        values.append(float(problem.value(x, problem.forward(x))))
    assert all(later <= earlier * (1 + ROUNDING) for earlier, later in pairwise(values))


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 9, 30])
def test_the_result_is_never_above_the_start(max_iter: int) -> None:
    problem = lasso(0.05)
    for seed in range(10):
        start = prox_gradient(problem, [3 * rows(20, seed=seed)], problem.step, tol=0.0, max_iter=seed).x
        x = prox_gradient(problem, start, problem.step, tol=0.0, max_iter=max_iter).x
        before, after = (float(problem.value(point, problem.forward(point))) for point in (start, x))
        assert after <= before * (1 + ROUNDING)


def test_too_long_a_step_still_never_raises_the_result() -> None:
    problem, start = lasso(0.05), [rows(20, seed=8)]
    x = prox_gradient(problem, start, 3 * problem.step, tol=0.0, max_iter=40).x
    assert float(problem.value(x, problem.forward(x))) <= float(problem.value(start, problem.forward(start)))


def test_known_convexity_reaches_the_same_point() -> None:
    problem, c = BoxedQuadratic(rows(4, 5)), 0.5
    plain, bounded = (
        prox_gradient(problem, [torch.ones(4, 5).double()], 0.2, tol=1e-10, convexity=m) for m in (0.0, c)
    )
    assert bounded.status == "converged"
    torch.testing.assert_close(bounded.x[0], plain.x[0], rtol=0, atol=1e-9)


def test_acceleration_needs_fewer_steps() -> None:
    """Plain proximal gradient, written out, is far behind after the same number of steps."""
    problem = lasso(0.01)
    plain = torch.zeros(20, dtype=torch.float64)
    for _ in range(60):
        (gradient,) = problem.gradient([plain], problem.forward([plain]))
        (plain,) = problem.prox([plain - problem.step * gradient], problem.step)
    best = prox_gradient(problem, [plain], problem.step, tol=1e-12, max_iter=50000).x
    fast = prox_gradient(problem, [torch.zeros(20, dtype=torch.float64)], problem.step, tol=0.0, max_iter=60).x
    least, slow, quick = (float(problem.value(x, problem.forward(x))) for x in (best, [plain], fast))
    assert quick - least < 0.2 * (slow - least)


def test_rows_that_separate_are_solved_each_on_its_own() -> None:
    shared = lasso(0.1)
    scales = torch.tensor([1e-3, 1.0, 1e3, 0.0], dtype=torch.float64)
    targets = scales[:, None] * rows(4, 80, seed=5)
    together = prox_gradient(
        L1Rows(shared.a, targets, 0.1), [torch.zeros(4, 20).double()], shared.step, tol=1e-13, max_iter=20000
    ).x[0]
    for target, found in zip(targets, together, strict=True):
        alone = L1Regression(shared.a, target, 0.1)
        expected = prox_gradient(alone, [torch.zeros(20).double()], shared.step, tol=1e-12, max_iter=20000).x[0]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_no_row_rises_even_while_others_fall() -> None:
    problem = L1Rows(lasso().a, torch.tensor([[1e-3], [1.0], [1e3]]).double() * rows(3, 80, seed=5), 0.1)
    start = [rows(3, 20, seed=6)]
    before = problem.value(start, problem.forward(start))
    for k in range(4, 160, 4):
        x = prox_gradient(problem, start, problem.step, tol=0.0, max_iter=k).x
        after = problem.value(x, problem.forward(x))
        assert bool((after <= before * (1 + ROUNDING)).all())
        before = after


def test_a_metric_takes_the_newton_step() -> None:
    """On a quadratic without prox, the exact Hessian as metric is done in one step."""
    problem = lasso(0.0)
    factor = torch.linalg.cholesky(problem.a.T @ problem.a / len(problem.a))
    metric = lambda gradient: [torch.cholesky_solve(gradient[0][:, None], factor)[:, 0]]  # noqa: E731
    result = prox_gradient(problem, [torch.zeros(20).double()], metric, tol=1e-10)
    expected = np.linalg.lstsq(problem.a.numpy(), problem.y.numpy(), rcond=None)[0]
    assert result.n_iter <= 4
    np.testing.assert_allclose(result.x[0].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9])
def test_kkt_is_the_residual_of_the_optimality_condition(tol: float) -> None:
    problem = lasso()
    result = prox_gradient(problem, [torch.zeros(20).double()], problem.step, tol=tol, max_iter=20000)
    x = result.x[0]
    gradient = problem.a.T @ (problem.a @ x - problem.y) / 80
    scale = (problem.a.T @ problem.y / 80).abs().max()
    step = problem.step
    by_hand = float((x - shrink(x - step * gradient, step * problem.alpha)).abs().max() / step / scale)
    assert result.kkt == pytest.approx(by_hand, rel=1e-6, abs=1e-14)
    assert by_hand <= tol


def test_scale_is_what_the_residual_is_measured_against() -> None:
    problem, start = lasso(), [torch.zeros(20).double()]
    first = prox_gradient(problem, start, problem.step, max_iter=0, scale=1.0)
    second = prox_gradient(problem, start, problem.step, max_iter=0, scale=10.0)
    assert first.kkt == pytest.approx(10 * second.kkt)


def test_statuses_say_how_it_ended() -> None:
    problem, start = lasso(), [torch.zeros(20).double()]
    stopped = prox_gradient(problem, start, problem.step, tol=1e-12, max_iter=3)
    assert (stopped.status, stopped.n_iter) == ("max_iter", 3)
    stalled = prox_gradient(problem, start, problem.step, tol=0.0, max_iter=100000)
    assert stalled.status == "stalled"
    assert stalled.kkt <= 1e-12
    done = prox_gradient(problem, stalled.x, problem.step, tol=1e-8)
    assert (done.status, done.n_iter) == ("converged", 0)


def test_a_start_is_never_written_into() -> None:
    problem, start = lasso(), [rows(20, seed=8)]
    prox_gradient(problem, start, problem.step)
    assert torch.equal(start[0], rows(20, seed=8))


def test_a_problem_with_zero_gradient_at_zero_still_has_a_scale() -> None:
    result = prox_gradient(BoxedQuadratic(torch.zeros(2, 3).double()), [torch.ones(2, 3).double()], 1.0)
    assert result.status == "converged"
    assert bool((result.x[0] == 0).all())


def test_every_iterate_stays_in_the_domain() -> None:
    target = rows(5, 4)
    result = prox_gradient(BoxedQuadratic(target), [rows(5, 4, seed=1).abs()], 0.3, tol=1e-9)
    torch.testing.assert_close(result.x[0], target.clamp(min=0), rtol=0, atol=1e-8)


def test_a_start_outside_the_domain_is_refused() -> None:
    start = torch.ones(3, 2, dtype=torch.float64)
    start[1, 1] = -1
    with pytest.raises(ValueError, match="must start inside the domain: the objective is not finite at `start`"):
        prox_gradient(BoxedQuadratic(torch.zeros(3, 2).double()), [start], 1.0)


def test_float32_is_kept_and_stalls_at_its_own_rounding() -> None:
    exact = lasso()
    problem = L1Regression(exact.a.float(), exact.y.float(), 0.1)
    result = prox_gradient(problem, [torch.zeros(20)], 0.99 * exact.step, tol=0.0, max_iter=20000)
    reference = prox_gradient(exact, [torch.zeros(20).double()], exact.step, tol=1e-12, max_iter=20000)
    assert result.x[0].dtype == torch.float32
    assert result.status == "stalled"
    torch.testing.assert_close(result.x[0].double(), reference.x[0], rtol=1e-3, atol=1e-3)


class RoundedSum:
    """Rows (x - 3)^2 / 2 + 1, whose value is too large by twelve units of rounding near the minimum, as that of a long sum may be."""

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        return x

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        distance = (ax[0] - 3).abs().amax(1)
        return (1 + distance.square() / 2) * (1 + 12 * torch.finfo(torch.float32).eps * (distance < 3e-4))

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        return [ax[0] - 3]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return x


def test_a_rounded_value_that_rises_does_not_stop_rows_whose_residual_falls() -> None:
    result = prox_gradient(RoundedSum(), [torch.zeros(2, 3)], step=0.3, tol=1e-6)
    assert result.status == "converged"
    torch.testing.assert_close(result.x[0], torch.full((2, 3), 3.0), rtol=0, atol=1e-5)


def test_a_rise_by_rounding_that_was_accepted_does_not_stop_later_steps() -> None:
    """Values of about 1,000 with a residual near their rounding: the best point may lie above the least value seen."""
    generator = torch.Generator().manual_seed(17)
    condition = 10 ** float(torch.rand((), generator=generator) * 1.5)
    a = (
        torch.randn(10, 10, generator=generator, dtype=torch.float64)
        * torch.logspace(0, -np.log10(condition), 10).double()
    )
    y = 10 * torch.randn(12, 10, generator=generator, dtype=torch.float64)

    class Together(BoxedQuadratic):
        def forward(self, x: Point) -> Point:
            return [x[0] @ a.T]

        def value(self, x: Point, ax: Point) -> Tensor:
            return ((ax[0] - y).square().sum(-1) / 2 + 5 * x[0].abs().sum(-1) + 1000).sum()

        def gradient(self, x: Point, ax: Point) -> Point:
            return [(ax[0] - y) @ a]

        def prox(self, x: Point, step: float) -> Point:
            return [shrink(x[0], 5 * step)]

    step = 1 / float(torch.linalg.matrix_norm(a, 2)) ** 2
    result = prox_gradient(Together(y), [torch.zeros_like(y)], step, tol=1e-9)
    assert result.status == "converged"


@pytest.mark.parametrize("start", [[], None])
def test_no_tensor_to_start_from_is_refused(start: object) -> None:
    with pytest.raises(ValueError, match="start must be a list of tensors, at least one, got"):
        prox_gradient(None, start, 1.0)
