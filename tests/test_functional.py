"""The pure functions against scipy, mpmath, and bisection written out again."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from scipy.special import spence, wrightomega
from torch import Tensor

from liftednn.base import Box
from liftednn.functional import (
    barrier,
    box_barrier,
    box_prox,
    clip,
    conjugate_softplus,
    log_omega,
    polar,
    quantile,
    root,
    simplex_projection,
    soft_threshold,
    softmax,
)
from liftednn.functional.tensors import quartiles

REALS = st.floats(-50, 50, allow_subnormal=False)
ROWS = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 7)), elements=REALS)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_dilogarithm_equals_scipy_spence() -> None:
    u = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    negative = u.clamp(max=30)  # spence takes 1 + e^u, which rounds to e^u far on the right
    expected = -spence(1 + np.exp(negative.numpy()))
    assert np.abs(conjugate_softplus(negative).numpy() - expected).max() <= 1e-10


@pytest.mark.parametrize("u", [-50.0, -20.0, -5.0, -1.0, -1e-8, 0.0, 1e-8, 0.3, 1.0, 7.0, 20.0, 35.0, 50.0])
def test_dilogarithm_equals_mpmath(u: float) -> None:
    with mpmath.workdps(40):
        expected = float(mpmath.re(-mpmath.polylog(2, -mpmath.exp(mpmath.mpf(u)))))
    found = float(conjugate_softplus(torch.tensor(u, dtype=torch.float64)))
    assert abs(found - expected) <= 1e-10
    assert found == pytest.approx(expected, rel=1e-12)


def test_derivative_of_the_dilogarithm_is_softplus() -> None:
    u = torch.linspace(-40, 40, 401, dtype=torch.float64)
    step = 1e-4
    slope = (conjugate_softplus(u + step) - conjugate_softplus(u - step)) / (2 * step)
    torch.testing.assert_close(slope, torch.logaddexp(u, torch.zeros_like(u)), rtol=0, atol=1e-7)


def test_log_omega_equals_scipy_wrightomega() -> None:
    x = torch.cat(
        [torch.linspace(-700, 700, 2801, dtype=torch.float64), torch.tensor([1e4, 1e8, 1e300], dtype=torch.float64)]
    )
    omega = wrightomega(x.numpy())
    np.testing.assert_allclose(log_omega(x).exp().numpy(), omega, rtol=1e-12)


def test_log_omega_solves_its_equation_far_below_the_range_of_exp() -> None:
    x = torch.tensor([-1e6, -800.0, 0.0, 1.0, 1.0 + 1e-9, 5.0], dtype=torch.float64)
    y = log_omega(x)
    torch.testing.assert_close(y + y.exp(), x, rtol=1e-14, atol=1e-14)


INCREASING = {
    "smooth": (lambda x: x**3 + x - 3, -4.0, 5.0),
    "steep": (lambda x: torch.tanh(1e8 * (x - 0.123)), -1.0, 1.0),
    "flat": (lambda x: (x - 0.7) ** 9, -2.0, 3.0),
    "exponential": (lambda x: x.exp() - 1e-30, -200.0, 50.0),
    "wide": (lambda x: x - 1e-3, -1e8, 1e9),
    "at the lower end": (lambda x: x - 1, 1.0, 2.0),
    "at the upper end": (lambda x: x - 2, 1.0, 2.0),
}


@pytest.mark.parametrize("name", INCREASING)
def test_root_equals_brentq(name: str) -> None:
    fn, a, b = INCREASING[name]
    scalar = lambda x: float(fn(torch.tensor(x, dtype=torch.float64)))  # noqa: E731
    expected = brentq(scalar, a, b, xtol=1e-15, rtol=1e-14, maxiter=500)
    found = float(root(fn, torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)))
    assert a <= found <= b
    assert abs(scalar(found)) <= abs(scalar(expected)) + 1e-12
    if name != "flat":  # where f underflows on an interval, any of its points is a root
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_root_of_a_discontinuous_function_is_the_jump() -> None:
    jump = torch.tensor([-2.3, 0.0, 1e-5, 4.0], dtype=torch.float64)
    fn = lambda x: torch.where(x < jump, -1.0, 2.0) + 0.01 * (x - jump)  # noqa: E731
    found = root(fn, torch.full_like(jump, -7), torch.full_like(jump, 9))
    torch.testing.assert_close(found, jump, rtol=1e-14, atol=1e-30)


def test_root_takes_each_entry_on_its_own() -> None:
    target = rows(3, 50)
    found = root(lambda x: x**3 - target, torch.full_like(target, -3), torch.full_like(target, 3))
    torch.testing.assert_close(found**3, target, rtol=1e-12, atol=1e-14)


def test_root_of_a_decreasing_function_is_found_too() -> None:
    lower, upper = torch.tensor([-4.0], dtype=torch.float64), torch.tensor([9.0], dtype=torch.float64)
    assert float(root(lambda x: 1 - x.exp() * 2, lower, upper)) == pytest.approx(-np.log(2), rel=1e-13)


@pytest.mark.parametrize(("offset", "end"), [(1e-16, 1.0), (-5.0, 2.0)])
def test_root_without_a_change_of_sign_is_the_better_end(offset: float, end: float) -> None:
    lower, upper = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    found = root(lambda x: (x - 1) + offset, lower, upper)
    assert float(found) == pytest.approx(end, abs=1e-15)


def test_root_with_a_lost_sign_in_one_entry_still_solves_the_others() -> None:
    target = torch.tensor([0.5, -3.0, 0.25], dtype=torch.float64)
    found = root(lambda x: x - target, torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.0, 0.25], dtype=torch.float64))


def bisected_projection(v: np.ndarray) -> np.ndarray:
    """max(v - t, 0) with t by bisection on the sum, one row."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_simplex_projection_equals_bisection(v: np.ndarray) -> None:
    found = simplex_projection(torch.from_numpy(v)).numpy()
    np.testing.assert_allclose(found, np.stack([bisected_projection(row) for row in v]), atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(ROWS, REALS)
def test_simplex_projection_is_a_projection_that_ignores_shifts(v: np.ndarray, shift: float) -> None:
    z = simplex_projection(torch.from_numpy(v))
    assert bool((z >= 0).all())
    torch.testing.assert_close(z.sum(-1), torch.ones(len(z), dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(simplex_projection(z), z, rtol=0, atol=1e-12)
    torch.testing.assert_close(simplex_projection(torch.from_numpy(v) + shift), z, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (0.0, 1e4), (1e4, 1.0)])
def test_simplex_projection_lands_on_the_simplex_in_float32(shift: float, spread: float) -> None:
    v = (shift + spread * rows(200, 10)).float()
    off = (simplex_projection(v).sum(-1) - 1).abs()
    assert float(off.max()) <= torch.finfo(torch.float32).eps ** 0.5


def test_simplex_projection_satisfies_the_variational_inequality() -> None:
    v, z = rows(100, 6), simplex_projection(rows(100, 6))
    vertices = torch.eye(6, dtype=torch.float64)
    assert bool((((v - z)[:, None] * (vertices - z[:, None])).sum(-1) <= 1e-12).all())


@settings(deadline=None, max_examples=60)
@given(ROWS, st.floats(0, 20))
def test_soft_threshold_is_the_prox_of_the_absolute_value(v: np.ndarray, threshold: float) -> None:
    expected = np.sign(v) * np.maximum(np.abs(v) - threshold, 0)
    found = soft_threshold(torch.from_numpy(v), threshold)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-13)
    as_tensor = soft_threshold(torch.from_numpy(v), torch.tensor(threshold, dtype=torch.float64))
    np.testing.assert_allclose(as_tensor.numpy(), expected, atol=1e-13)


def test_soft_threshold_takes_one_threshold_an_entry() -> None:
    v = torch.tensor([[3.0, -3.0, 0.5]], dtype=torch.float64)
    thresholds = torch.tensor([[1.0, 4.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(soft_threshold(v, thresholds), torch.tensor([[2.0, 0.0, 0.5]], dtype=torch.float64))


def test_barrier_is_zero_inside_and_infinite_outside() -> None:
    violation = torch.tensor([[-1.0, 0.0], [1e-12, -3.0], [1e-3, -3.0], [5.0, 5.0]], dtype=torch.float64)
    assert barrier(violation).tolist() == [0.0, 0.0, torch.inf, torch.inf]


def test_barrier_forgives_rounding_relative_to_the_scale() -> None:
    violation = torch.full((1, 2), 1e-6, dtype=torch.float64)
    assert float(barrier(violation)) == torch.inf
    assert float(barrier(violation, scale=1e3)) == 0.0
    assert float(barrier(violation, scale=torch.tensor([[1e3, 0.0]], dtype=torch.float64))) == torch.inf


@pytest.mark.parametrize(
    ("lower", "upper"), [(0.0, 1.0), (-1.0, torch.inf), (-torch.inf, 2.0), (-torch.inf, torch.inf)]
)
def test_box_barrier_equals_barrier_of_both_sides(lower: float, upper: float) -> None:
    z = 3 * rows(200, 2)
    violation = torch.cat([lower - z, z - upper], -1)
    assert torch.equal(box_barrier(z, lower, upper), barrier(violation))


def test_box_barrier_forgives_rounding_at_its_ends() -> None:
    z = torch.tensor([[1 + 1e-12, -1e-12], [1 + 1e-6, 0.0], [0.5, -1e-6]], dtype=torch.float64)
    assert box_barrier(z, 0.0, 1.0).tolist() == [0.0, torch.inf, torch.inf]


def test_box_prox_minimises_over_a_grid() -> None:
    v, linear = rows(1, 5), rows(1, 5, seed=1)
    box = Box(-0.5, torch.tensor([[0.1, 0.2, 0.3, 0.4, 5.0]]), 1.3, linear)
    for step in (0.01, 1.0, 30.0):
        found = box_prox(box, v, step)
        grid = torch.linspace(-0.5, 5, 55001, dtype=torch.float64)[:, None]
        energy = 0.65 * grid**2 - linear * grid + (grid - v) ** 2 / (2 * step)
        energy = energy.masked_fill(grid > torch.as_tensor(box.upper).double() + 1e-9, torch.inf)
        torch.testing.assert_close(found[0], grid[energy.argmin(0), 0], rtol=0, atol=2e-4)


def test_clip_takes_numbers_and_tensors() -> None:
    z, bound = rows(4, 3), torch.zeros(3, dtype=torch.float64)
    assert torch.equal(clip(z, 0.0, 1.0), z.clamp(0, 1))
    assert torch.equal(clip(z, bound, torch.inf), z.clamp(min=0))
    assert torch.equal(clip(z, -1.0, bound), z.clamp(-1, 0))


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 0.02, 1.0])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_polar_is_scipys(shape: tuple[int, int], noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    w, change = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    near = torch.linalg.svd(w, full_matrices=False)
    moved = near[0] @ near[2] + noise * change
    oracle = scipy.linalg.polar(moved.numpy())[0]
    np.testing.assert_allclose(polar(moved).numpy(), oracle, atol=1e-12)


def test_polar_of_a_singular_matrix_is_orthogonal_and_nearest() -> None:
    w = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w[1] = w[0] / 3
    found = polar(w)
    torch.testing.assert_close(found @ found.T, torch.eye(4, dtype=torch.float64))
    assert float((w * found).sum()) == pytest.approx(float(torch.linalg.svdvals(w).sum()))


def test_polar_of_zero_is_orthogonal() -> None:
    torch.testing.assert_close(polar(torch.zeros(3, 5)), torch.eye(3, 5))
    torch.testing.assert_close(polar(torch.zeros(5, 3)), torch.eye(5, 3))


def test_polar_gives_back_what_is_not_finite() -> None:
    w = torch.tensor([[1.0, torch.nan]])
    assert polar(w).isnan().any()


@pytest.mark.parametrize("weighted", [False, True])
def test_quartiles_are_the_quantiles_at_their_levels(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 5, (13, 3), generator=generator).double()
    row_weights = torch.rand(13, generator=generator) if weighted else None
    for level, found in zip((0.25, 0.5, 0.75), quartiles(y, row_weights), strict=True):
        assert torch.equal(found, quantile(y, level, row_weights))
        total = torch.ones(13) if row_weights is None else row_weights
        for column, value in zip(y.T, found, strict=True):
            assert float(total[column <= value].sum() / total.sum()) >= level
            assert float(total[column < value].sum() / total.sum()) < level


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 40])
@pytest.mark.parametrize("shape", [(), (1,), (70,), (3, 70)])
def test_softmax_is_that_of_scipy(columns: int, shape: tuple[int, ...]) -> None:
    """By another operation for few columns; a score far below all others has probability 0."""
    u = 30 * torch.randn(*shape, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u[..., 0] = -1e300
    np.testing.assert_allclose(softmax(u), scipy.special.softmax(u.numpy(), axis=-1), rtol=1e-12, atol=1e-300)
    assert softmax(u).shape == u.shape
