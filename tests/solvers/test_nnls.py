"""The row-wise box least squares solver against scipy, cvxpy, its own certificate and its guarantees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from liftednn.solvers import nnls
from liftednn.solvers.bounds import Bounds
from liftednn.solvers.pivoting import pivoting


def gram(p: int, condition: float, seed: int = 0) -> Tensor:
    """A (p, p) matrix with log-spaced spectrum from 1 to 1 / condition and random eigenvectors."""
    noise = torch.randn(p, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    vectors = torch.linalg.qr(noise)[0]
    h = (vectors * torch.logspace(0, -math.log10(condition), p, dtype=torch.float64)) @ vectors.T
    return (h + h.T) / 2


def targets(n: int, h: Tensor, seed: int = 1) -> Tensor:
    """Right-hand sides whose solutions have about half of their entries at zero."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(n, len(h), dtype=torch.float64, generator=generator)
    return states.clamp(min=0) @ h - 0.1 * (-states).clamp(min=0)


def residual(h: Tensor, q: Tensor, z: Tensor, lower: float | Tensor = 0.0, upper: float | Tensor = math.inf) -> float:
    """The certificate from its definition, in numpy and float64; bounds as the solver's precision has them."""
    z_, g = z.double().numpy(), (z.double() @ h.double() - q.double()).numpy()
    low, high = (torch.as_tensor(bound, dtype=q.dtype).double().numpy() for bound in (lower, upper))
    left = np.where(z_ <= low, np.minimum(g, 0), np.where(z_ >= high, np.maximum(g, 0), g))
    left = np.where(low == high, 0.0, left)
    return float(np.abs(left).max() / (q.abs().max().item() or 1.0))


def energies(h: Tensor, q: Tensor, z: Tensor) -> Tensor:
    return ((z @ h) * z).sum(1) / 2 - (q * z).sum(1)


def scipy_rows(h: Tensor, q: Tensor, lower: float = 0.0, upper: float = math.inf) -> Tensor:
    """One scipy call per row on the factor form |a z - b|^2 with a'a = h, a'b = q."""
    factor = torch.linalg.cholesky(h)
    right = torch.linalg.solve_triangular(factor, q.T, upper=False).T.numpy()
    a = factor.T.contiguous().numpy()
    if lower == 0.0 and upper == math.inf:
        return torch.from_numpy(np.stack([scipy.optimize.nnls(a, b)[0] for b in right]))
    rows = [scipy.optimize.lsq_linear(a, b, (lower, upper), method="bvls", tol=1e-14).x for b in right]
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("condition", [10.0, 1e3, 1e5])
@pytest.mark.parametrize("p", [1, 2, 7, 80])
def test_equals_scipy_row_by_row(p: int, condition: float) -> None:
    h = gram(p, condition)
    q = targets(12, h)
    result = nnls(h, q, tol=1e-12)
    assert result.status == "converged"
    # |z - z*| <= kkt max|q| / lam_min of the free part, which on a few unknowns can be that of h itself
    reachable = max(1e-8, 1e-12 * condition * q.abs().max().item())
    torch.testing.assert_close(result.z, scipy_rows(h, q), rtol=0, atol=reachable)


@pytest.mark.parametrize("condition", [10.0, 1e5])
def test_equals_scipy_to_1e_minus_8_at_full_size(condition: float) -> None:
    h = gram(300, condition)
    q = targets(6, h)
    torch.testing.assert_close(nnls(h, q, tol=1e-12).z, scipy_rows(h, q), rtol=1e-8, atol=1e-8)


def test_gaussian_right_hand_sides_with_large_solutions() -> None:
    h = gram(60, 1e5)
    q = torch.randn(10, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = scipy_rows(h, q)
    assert expected.max() > 50
    result = nnls(h, q, tol=1e-13)
    torch.testing.assert_close(result.z / expected.max(), expected / expected.max(), rtol=0, atol=1e-8)


def test_both_bounds_equal_bounded_least_squares() -> None:
    h = gram(30, 100.0)
    q = 3 * targets(8, h)
    result = nnls(h, q, tol=1e-12, lower=-0.5, upper=1.0)
    expected = scipy_rows(h, q, -0.5, 1.0)
    assert (expected == -0.5).any()
    assert (expected == 1.0).any()
    torch.testing.assert_close(result.z, expected, rtol=1e-8, atol=1e-8)


def test_per_entry_bounds_equal_a_conic_solver() -> None:
    cvxpy = pytest.importorskip("cvxpy")
    p, n = 12, 4
    h = gram(p, 50.0)
    q = targets(n, h)
    generator = torch.Generator().manual_seed(5)
    lower = -torch.rand(n, p, dtype=torch.float64, generator=generator)
    upper = lower + torch.rand(n, p, dtype=torch.float64, generator=generator)
    lower[:, 0], upper[:, 1] = -math.inf, math.inf
    upper[:, 2] = lower[:, 2]
    result = nnls(h, q, tol=1e-12, lower=lower, upper=upper)
    variable = cvxpy.Variable((n, p))
    factor = torch.linalg.cholesky(h).numpy()
    objective = cvxpy.sum_squares(variable @ factor) / 2 - cvxpy.sum(cvxpy.multiply(q.numpy(), variable))
    finite = (
        variable[:, 1:] >= lower[:, 1:].numpy(),
        variable[:, [0, *range(2, p)]] <= upper[:, [0, *range(2, p)]].numpy(),
    )
    cvxpy.Problem(cvxpy.Minimize(objective), list(finite)).solve(solver=cvxpy.CLARABEL)
    torch.testing.assert_close(result.z, torch.from_numpy(variable.value), rtol=0, atol=1e-5)
    assert result.status == "converged"
    assert torch.equal(result.z[:, 2], lower[:, 2])


def test_column_bounds_equal_the_same_bounds_written_out() -> None:
    h = gram(20, 1e3)
    q = targets(9, h)
    lower, upper = torch.linspace(-1, 0, 20, dtype=torch.float64), torch.linspace(0.5, 1, 20, dtype=torch.float64)
    short = nnls(h, q, tol=1e-11, lower=lower, upper=upper)
    full = nnls(h, q, tol=1e-11, lower=lower.expand(9, 20), upper=upper.expand(9, 20), block_rows=4)
    torch.testing.assert_close(short.z, full.z, rtol=0, atol=1e-7)
    assert (short.z >= lower).all()
    assert (short.z <= upper).all()


@pytest.mark.parametrize("condition", [10.0, 1e4])
def test_no_bounds_is_a_linear_solve(condition: float) -> None:
    h = gram(40, condition)
    q = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) @ h
    result = nnls(h, q, tol=1e-12, lower=-math.inf)
    assert result.status == "converged"
    torch.testing.assert_close(result.z, torch.linalg.solve(h, q.T).T, rtol=1e-7, atol=1e-7)


problems = st.tuples(st.integers(1, 12), st.integers(1, 9), st.floats(0, 6), st.integers(0, 10_000))
boxes = st.sampled_from([(0.0, math.inf), (-0.3, 0.4), (-math.inf, 0.1), (0.5, 0.5), (-math.inf, math.inf)])


@settings(max_examples=150, deadline=None)
@given(problems, boxes, st.sampled_from([torch.float32, torch.float64]), st.integers(0, 60))
def test_certificate_box_and_descent(
    shape: tuple[int, int, float, int], box: tuple[float, float], dtype: torch.dtype, max_iter: int
) -> None:
    p, n, decades, seed = shape
    h = gram(p, 10**decades, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(n, p, generator=generator, dtype=torch.float64).to(dtype)
    z0 = torch.randn(n, p, generator=generator, dtype=torch.float64).to(dtype)
    result = nnls(h, q, z0, tol=1e-9, max_iter=max_iter, lower=box[0], upper=box[1])
    assert result.z.dtype == dtype
    assert result.n_iter <= max_iter
    low, high = torch.tensor(box, dtype=dtype)
    assert (result.z >= low).all()
    assert (result.z <= high).all()
    start = z0.clamp(*box)
    eps = torch.finfo(dtype).eps
    assert result.kkt == pytest.approx(
        residual(h, q, result.z, low, high), rel=1e-6, abs=100 * eps * (1 + result.z.abs().max().item())
    )
    before, after = (
        energies(h.double(), q.double(), start.double()),
        energies(h.double(), q.double(), result.z.double()),
    )
    assert (after <= before + 100 * eps * (1 + before.abs() + result.z.double().square().sum(1) * p)).all()
    assert result.status == ("converged" if result.kkt <= 1e-9 else result.status)
    assert result.status == "converged" or result.kkt > 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_block_size_does_not_matter(n: int, block_rows: int, seed: int) -> None:
    h = gram(10, 100.0, seed)
    q = targets(n, h, seed)
    whole, blocks = nnls(h, q, tol=1e-11), nnls(h, q, tol=1e-11, block_rows=block_rows)
    torch.testing.assert_close(whole.z, blocks.z, rtol=0, atol=1e-8)


def test_same_call_same_bits() -> None:
    h = gram(50, 1e4)
    q = targets(300, h)
    assert torch.equal(nnls(h, q).z, nnls(h, q).z)


def test_optimal_start_returns_at_once() -> None:
    h = gram(40, 1e4)
    q = targets(50, h)
    z = nnls(h, q, tol=1e-10).z
    again = nnls(h, q, z, tol=1e-8)
    assert again.n_iter == 0
    assert again.status == "converged"
    assert torch.equal(again.z, z)


def test_near_start_needs_fewer_steps_than_zero() -> None:
    h = gram(100, 1e3)
    q = targets(100, h)
    z = nnls(h, q, tol=1e-10).z
    near = nnls(
        h, q + 1e-4 * torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(1)), z, tol=1e-5
    )
    assert near.n_iter < nnls(h, q, tol=1e-5).n_iter


def test_slow_rows_do_not_delay_others() -> None:
    h = gram(60, 1e5)
    q = torch.cat([torch.zeros(50, 60, dtype=torch.float64), targets(2, h)])
    result = nnls(h, q, tol=1e-10)
    assert result.status == "converged"
    assert (result.z[:50] == 0).all()


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.95, 1.0])
def test_few_steps_whatever_the_fraction_of_free_entries(fraction: float) -> None:
    h = gram(100, 1e5)
    generator = torch.Generator().manual_seed(4)
    free = torch.rand(40, 100, generator=generator) < fraction
    z = torch.where(free, 0.1 + torch.rand(40, 100, dtype=torch.float64, generator=generator), 0.0)
    result = nnls(h, z @ h - 0.01 * (~free).double(), tol=1e-6)
    assert result.status == "converged"
    assert result.n_iter < 400


def test_float32_stops_at_its_precision() -> None:
    h = gram(50, 100.0).float()
    q = targets(40, gram(50, 100.0)).float()
    result = nnls(h, q, tol=1e-12, max_iter=100_000)
    assert result.status == "stalled"
    assert result.n_iter < 500
    assert result.kkt < 2e-5


def test_float32_reaches_a_practical_tolerance() -> None:
    h = gram(50, 1e3)
    q = targets(40, h)
    result = nnls(h.float(), q.float(), tol=1e-4)
    assert result.status == "converged"
    assert residual(h, q, result.z.double()) < 2e-4


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_singular_matrix(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    weights = torch.randn(rank, 30, dtype=torch.float64, generator=generator)
    q = torch.randn(15, rank, dtype=torch.float64, generator=generator) @ weights
    result = nnls(weights.T @ weights, q, tol=1e-8)
    assert result.status == "converged"
    assert residual(weights.T @ weights, q, result.z) <= 1.01e-8


def test_zero_rows_of_h() -> None:
    h = gram(6, 10.0)
    h[2], h[:, 2] = 0.0, 0.0
    q = targets(5, h)
    q[:, 2] = -1.0
    result = nnls(h, q, tol=1e-10)
    assert result.status == "converged"
    assert (result.z[:, 2] == 0).all()


def test_zero_matrix_goes_to_the_bounds() -> None:
    q = torch.tensor([[1.0, -2.0, 0.0]], dtype=torch.float64)
    result = nnls(torch.zeros(3, 3, dtype=torch.float64), q, upper=2.0)
    assert result.status == "converged"
    assert result.z[0, 0] == 2.0
    assert result.z[0, 1] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unbounded_problem_ends_and_says_so(dtype: torch.dtype) -> None:
    h = torch.diag(torch.tensor([1.0, 0.0], dtype=dtype))
    result = nnls(h, torch.ones(3, 2, dtype=dtype))
    assert result.status in ("stalled", "max_iter")
    assert result.kkt > 0.5
    assert torch.isfinite(result.z).all()


def test_no_rows_and_one_row() -> None:
    h = gram(5, 10.0)
    empty = nnls(h, torch.empty(0, 5, dtype=torch.float64))
    assert empty.z.shape == (0, 5)
    assert empty.status == "converged"
    assert empty.kkt == 0.0
    q = targets(1, h)
    torch.testing.assert_close(nnls(h, q, tol=1e-12).z, scipy_rows(h, q), rtol=1e-8, atol=1e-8)


def test_zero_right_hand_side_has_denominator_one() -> None:
    h = gram(5, 10.0)
    result = nnls(h, torch.zeros(2, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64), tol=1e-9)
    assert result.status == "converged"
    assert result.z.abs().max() < 1e-7


def test_badly_scaled_columns_cost_no_more() -> None:
    h = gram(50, 10.0)
    q = targets(20, h)
    scale = torch.logspace(-2, 2, 50, dtype=torch.float64)
    plain, scaled = nnls(h, q, tol=1e-8), nnls(h * scale * scale[:, None], q * scale, tol=1e-8)
    assert scaled.n_iter <= 2 * plain.n_iter
    torch.testing.assert_close(scaled.z * scale, plain.z, rtol=0, atol=1e-3)


def test_result_is_frozen_and_inputs_are_untouched() -> None:
    h = gram(5, 10.0)
    q = targets(3, h)
    kept_h, kept_q = h.clone(), q.clone()
    result = nnls(h.requires_grad_(), q)
    assert torch.equal(h, kept_h)
    assert torch.equal(q, kept_q)
    assert not result.z.requires_grad
    with pytest.raises(AttributeError):
        result.kkt = 0.0  # type: ignore[misc]


eye, ones = torch.eye(3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((torch.eye(4), ones), {}, r"h must be \(p, p\) and q \(n, p\).*got h \(4, 4\) and q \(2, 3\)"),
        ((eye, torch.ones(3)), {}, r"q \(n, p\)"),
        ((eye, ones, torch.ones(3, 3)), {}, r"z0 must have the shape of q, \(2, 3\), got \(3, 3\)"),
        ((eye.double(), ones), {}, "h must have the dtype and device of q"),
        ((eye.long(), ones.long()), {}, "q must be float32 or float64, got torch.int64"),
        ((eye, ones, ones.double()), {}, "z0 must have the dtype and device of q"),
        ((eye * math.nan, ones), {}, "h must be finite"),
        ((eye, ones * math.inf), {}, "q must be finite"),
        ((eye, ones, ones * math.nan), {}, "z0 must be finite"),
        ((eye + torch.ones(3, 3).triu(1), ones), {}, "h must be symmetric"),
        ((-eye, ones), {}, "h must be positive semi-definite"),
        ((torch.ones(3, 3) - eye, ones), {}, "h must be positive semi-definite"),
        ((eye, ones), {"tol": 0.0}, "tol must be positive, got 0.0"),
        ((eye, ones), {"tol": math.nan}, "tol must be positive"),
        ((eye, ones), {"max_iter": -1}, "max_iter must be a whole number of at least 0, got -1"),
        ((eye, ones), {"block_rows": 0}, "block_rows must be a whole number of at least 1, got 0"),
        ((eye, ones), {"lower": 1.0, "upper": 0.0}, "lower must not exceed upper"),
        ((eye, ones), {"lower": math.nan}, "lower must not exceed upper"),
        ((eye, ones), {"lower": math.inf}, "lower must not exceed upper"),
        ((eye, ones), {"upper": -ones}, "lower must not exceed upper"),
        ((eye, ones), {"upper": torch.ones(4)}, r"upper must be a number or broadcast to q, \(2, 3\), got \(4,\)"),
        ((eye, ones), {"lower": torch.zeros(3).double()}, "lower must have the dtype and device of q"),
    ],
)
def test_refusals_say_what_to_do(arguments: tuple[Tensor, ...], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        nnls(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("condition", [10.0, 1e5])
def test_cuda_equals_cpu(condition: float) -> None:
    h = gram(100, condition)
    q = targets(5000, h)
    cpu, cuda = nnls(h, q, tol=1e-11), nnls(h.cuda(), q.cuda(), tol=1e-11)
    assert cuda.z.is_cuda
    assert cuda.status == "converged"
    torch.testing.assert_close(cuda.z.cpu(), cpu.z, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "h"), [(3e38, 1.0), (1e-40, 1.0), (1.0, 3e38), (1e-30, 1e-40), (1e30, 1e38)])
def test_sizes_next_to_the_limits_of_float32(size: float, h: float) -> None:
    q = torch.tensor([[size, -size, size / 2]])
    for upper in (None, 1e39, torch.full((3,), 3e38)):
        found = nnls(h * torch.eye(3), q, torch.zeros_like(q), upper=upper).z
        torch.testing.assert_close(found.double(), (q.double() / h).clamp(min=0), rtol=1e-4, atol=1e-44)


def test_a_solution_beyond_the_precision_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"h of about 1e-30 and q of about 1e\+30 have a solution beyond the range of torch.float32"
    ):
        nnls(1e-30 * torch.eye(2), torch.full((1, 2), 1e30), upper=1.0)


def test_a_solution_below_the_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"beyond the range of torch\.float32"):
        nnls(1e25 * torch.eye(2), torch.full((1, 2), 1e-25))


def one_far_eigenvalue(n: int, p: int, size: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """h = 2 w'w + 2 I with one large w, as where a state is read by a single output."""
    generator = torch.Generator().manual_seed(seed)
    w = size * torch.randn(1, p, generator=generator, dtype=torch.float64)
    targets = size * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return 2 * w.T @ w + 2 * torch.eye(p, dtype=torch.float64), 2 * targets @ w + 2 * noise


@pytest.mark.parametrize("upper", [None, 0.05])
@pytest.mark.parametrize("size", [10.0, 100.0])
def test_one_eigenvalue_far_above_the_others_against_scipy(size: float, upper: float | None) -> None:
    h, q = one_far_eigenvalue(12, 30, size)
    found = nnls(h, q, upper=upper, tol=1e-8)
    assert found.status == "converged"
    root = torch.linalg.cholesky(h)
    for row, z in zip(q, found.z, strict=True):
        right = torch.linalg.solve_triangular(root, row[:, None], upper=False)[:, 0].numpy()
        bounds = (0, np.inf if upper is None else upper)
        oracle = scipy.optimize.lsq_linear(root.T.numpy(), right, bounds, method="bvls", tol=1e-14).x
        np.testing.assert_allclose(z.numpy(), oracle, atol=1e-3 * np.abs(oracle).max())
    assert nnls(h.float(), q.float(), upper=upper).kkt < 1e-4


@pytest.mark.parametrize("most", [3, 299, 300, 301])
def test_pivoting_counts_as_steps(most: int) -> None:
    h, q = one_far_eigenvalue(12, 30, 100.0)
    found = nnls(h, q, max_iter=most)
    assert found.n_iter <= most
    assert found.status == "max_iter"
    assert nnls(h, q, max_iter=310).status == "converged"


@pytest.mark.parametrize("rank", [8, 4])
def test_pivoting_alone_solves_any_row(rank: int) -> None:
    """From any start, with bounds of every row; a singular h too, whose solution need not be unique."""
    generator = torch.Generator().manual_seed(rank)
    factor, q = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (rank, 40))
    h, q = factor.T @ factor, q if rank == 8 else q @ factor.T @ factor
    box = Bounds(-torch.rand(40, 8, generator=generator).double(), torch.rand(1, 8, generator=generator).double())
    start = box.clip(q)
    z, steps = pivoting(h, q, box, start, torch.full((40,), 1e-7).double(), 100)
    assert 0 < steps < 100
    assert float(box.residual(z, z @ h - q).max()) < 1e-6
    assert torch.equal(pivoting(h, q, box, start, torch.zeros(40).double(), 0)[0], start)
    value = {name: ((x @ h * x).sum(1) / 2 - (q * x).sum(1)) for name, x in (("found", z), ("start", start))}
    assert bool((value["found"] <= value["start"] + 1e-9).all())
