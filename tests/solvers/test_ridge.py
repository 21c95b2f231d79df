"""Ridge on moments against scikit-learn and numpy; its sketch against the exact solution."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from liftednn.moments import Moments
from liftednn.solvers import Factor, ridge, sketch


def data(n: int = 60, p: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x = draw(n, p) + 3
    return x, x @ draw(p, 2) + draw(n, 2) - 1


def objective(
    x: Tensor, z: Tensor, w: Tensor, b: Tensor, lam: float, rho: float, anchor: Tensor | float = 0.0
) -> Tensor:
    return lam * (x @ w.T + b - z).square().sum(-1).mean() + rho * (w - anchor).square().sum()


@pytest.mark.parametrize("lam", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rho", [1e-6, 0.1, 10.0])
def test_ridge_equals_sklearn_with_intercept(lam: float, rho: float) -> None:
    x, z = data()
    found, expected = ridge(Moments.of(x, z), lam, rho), Ridge(alpha=rho * len(x) / lam).fit(x.numpy(), z.numpy())
    np.testing.assert_allclose(found.w.numpy(), expected.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.b.numpy(), expected.intercept_, rtol=1e-8, atol=1e-10)


def test_ridge_equals_sklearn_without_intercept() -> None:
    x, z = data()
    found = ridge(Moments.of(x, z).about_zero(), 2.0, 0.5)
    expected = Ridge(alpha=0.5 * len(x) / 2.0, fit_intercept=False).fit(x.numpy(), z.numpy())
    np.testing.assert_allclose(found.w.numpy(), expected.coef_, rtol=1e-9)
    assert bool((found.b == 0).all())


def test_ridge_equals_sklearn_with_sample_weights() -> None:
    x, z = data()
    weight = torch.linspace(0.1, 3, len(x), dtype=torch.float64)
    found = ridge(Moments.of(x, z, weight), 1.0, 0.2)
    expected = Ridge(alpha=0.2 * float(weight.sum())).fit(x.numpy(), z.numpy(), sample_weight=weight.numpy())
    np.testing.assert_allclose(found.w.numpy(), expected.coef_, rtol=1e-8)
    np.testing.assert_allclose(found.b.numpy(), expected.intercept_, rtol=1e-8)


def test_rho_shrinks_towards_the_anchor() -> None:
    (x, z), anchor = data(), torch.linspace(-4, 4, 10, dtype=torch.float64).reshape(2, 5)
    found = ridge(Moments.of(x, z), 1.5, 0.7, anchor)
    shifted = Ridge(alpha=0.7 * len(x) / 1.5).fit(x.numpy(), (z - x @ anchor.T).numpy())
    np.testing.assert_allclose(found.w.numpy(), shifted.coef_ + anchor.numpy(), rtol=1e-8)
    np.testing.assert_allclose(ridge(Moments.of(x, z), 1.0, 1e9, anchor).w.numpy(), anchor.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rho", [1e-2, 1e-8])
def test_the_anchor_stays_in_directions_without_variance(rho: float, dtype: torch.dtype) -> None:
    x, z = data(n=50, p=3)
    x = torch.cat([x, x[:, :1]], 1)  # the first and the last weight may be traded for each other
    anchor = torch.tensor([[3.0, 0.0, 0.0, -3.0], [-1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    w = ridge(Moments.of(x.to(dtype), z.to(dtype)), 1.0, rho, anchor).w
    torch.testing.assert_close(w[:, 0] - w[:, 3], anchor[:, 0] - anchor[:, 3], rtol=1e-3, atol=1e-3)


def test_ridge_minimises_its_objective() -> None:
    x, z = data()
    found = ridge(Moments.of(x, z), 0.8, 0.05)
    w, b = found.w.clone().requires_grad_(), found.b.clone().requires_grad_()
    slopes = torch.autograd.grad(objective(x, z, w, b, 0.8, 0.05), [w, b])
    assert max(float(slope.abs().max()) for slope in slopes) <= 1e-11


@pytest.mark.parametrize("case", ["duplicate columns", "fewer rows than columns", "constant column"])
def test_without_penalty_the_solution_has_minimum_norm(case: str) -> None:
    x, z = data()
    if case == "duplicate columns":
        x = torch.cat([x, x[:, :2]], 1)
    elif case == "fewer rows than columns":
        x, z = data(n=6, p=9)
    else:
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    found = ridge(Moments.of(x, z), 3.0, 0.0)
    centred_x, centred_z = x - x.mean(0), z - z.mean(0)
    expected = np.linalg.lstsq(centred_x.numpy(), centred_z.numpy(), rcond=1e-10)[0].T
    np.testing.assert_allclose(found.w.numpy(), expected, atol=1e-8)
    np.testing.assert_allclose(found.b.numpy(), (z.mean(0) - torch.from_numpy(expected) @ x.mean(0)).numpy(), atol=1e-7)


def test_no_variation_at_all_gives_zero_weights() -> None:
    found = ridge(Moments.of(torch.ones(4, 3).double(), torch.full((4, 1), 2.0).double()), 1.0, 0.0)
    assert found.w.tolist() == [[0.0, 0.0, 0.0]]
    assert found.b.tolist() == [2.0]


def test_float32_rows_are_solved_in_float64() -> None:
    x, z = data()
    found, exact = ridge(Moments.of(x.float(), z.float()), 1.0, 0.1), ridge(Moments.of(x, z), 1.0, 0.1)
    assert found.w.dtype == found.b.dtype == torch.float64
    torch.testing.assert_close(found.w, exact.w, rtol=1e-5, atol=1e-5)


def test_float32_duplicates_are_detected_as_singular() -> None:
    x, z = data()
    doubled = Moments.of(torch.cat([x, x], 1).float(), z.float())
    factor = Factor.of(doubled.gram, 1.0, 0.0, doubled.eps)
    assert factor.singular
    w = ridge(doubled, 1.0, 0.0, factor=factor).w
    torch.testing.assert_close(w[:, :5], w[:, 5:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_one_factor_serves_every_target(rho: float) -> None:
    (x, z), (_, other) = data(), data(seed=1)
    x = torch.cat([x, x[:, :1]], 1)
    first, second = Moments.of(x, z), Moments.of(x, other)
    factor = Factor.of(first.gram, 2.0, rho, first.eps)
    assert factor.singular == (rho == 0)
    torch.testing.assert_close(ridge(second, 2.0, rho, factor=factor).w, ridge(second, 2.0, rho).w)


def test_factoring_leaves_the_gram_matrix_alone() -> None:
    found = Moments.of(*data())
    before = found.gram.clone()
    Factor.of(found.gram, 1.0, 5.0, found.eps)
    assert torch.equal(found.gram, before)


@pytest.mark.parametrize(("lam", "rho"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1)])
def test_wrong_strengths_are_refused(lam: float, rho: float) -> None:
    with pytest.raises(ValueError, match=f"lam must be positive and rho non-negative, got lam={lam} and rho={rho}"):
        ridge(Moments.of(*data()), lam, rho)


def test_the_error_of_the_sketch_falls_with_its_size() -> None:
    x, z = data(n=4000, p=8)
    exact = ridge(Moments.of(x, z), 1.0, 1e-3).w
    sizes, seeds = (40, 160, 640, 2560), range(12)
    errors = [
        np.mean([float((sketch(x, z, 1.0, 1e-3, size, seed=s).w - exact).norm()) for s in seeds]) for size in sizes
    ]
    assert all(later < 0.75 * earlier for earlier, later in pairwise(errors))


def test_the_sketch_is_unbiased_enough_to_average_out() -> None:
    x, z = data(n=2000, p=4)
    exact = ridge(Moments.of(x, z), 1.0, 0.0).w
    found = [sketch(x, z, 1.0, 0.0, 200, seed=s).w for s in range(60)]
    single = np.mean([float((w - exact).norm()) for w in found])
    assert float((torch.stack(found).mean(0) - exact).norm()) < 0.4 * single


@pytest.mark.parametrize("rho", [0.0, 1e-2, 1.0])
def test_refinement_converges_to_the_exact_solution(rho: float) -> None:
    x, z = data(n=3000, p=6)
    exact = ridge(Moments.of(x, z), 2.0, rho)
    errors = [float((sketch(x, z, 2.0, rho, 600, refine=k).w - exact.w).abs().max()) for k in (0, 2, 5, 15)]
    assert errors == sorted(errors, reverse=True)
    found = sketch(x, z, 2.0, rho, 600, refine=15)
    torch.testing.assert_close(found.w, exact.w, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.b, exact.b, rtol=0, atol=1e-7)


def test_a_sketch_is_that_of_its_seed() -> None:
    x, z = data(n=300)
    first, again, other = (sketch(x, z, 1.0, 0.1, 50, seed=s).w for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [0, -3, 61])
def test_a_sketch_of_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"size must lie in 1 \.\. 60, the number of rows, got {size}"):
        sketch(*data(), 1.0, 0.1, size)


@pytest.mark.parametrize(("lam", "rho"), [(0.0, 1.0), (1.0, -0.1)])
def test_a_sketch_with_wrong_strengths_is_refused(lam: float, rho: float) -> None:
    with pytest.raises(ValueError, match="lam must be positive and rho non-negative"):
        sketch(*data(), lam, rho, 20)


def test_what_are_no_moments_or_no_square_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"moments must be Moments, got NoneType: give Moments\.of\(x, z\)"):
        ridge(None, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"gram must be a square matrix \(p, p\), got shape \(2, 3\)"):
        Factor.of(torch.zeros(2, 3), 1.0, 1.0, 1e-7)


@pytest.mark.parametrize("rho", [0.0, 1e-12])
def test_a_constant_or_repeated_column_does_not_remove_one_in_small_units(rho: float) -> None:
    a, b = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    for other in (torch.ones(200), a):
        x = torch.stack([a, other, 1e-4 * b], 1)
        w, c = ridge(Moments.of(x, b[:, None]), 1.0, rho)
        assert float((x.double() @ w.T + c - b[:, None]).square().mean()) < 1e-3


@pytest.mark.parametrize("scale", [torch.ones(6), torch.tensor([1.0, 1e3, 1e-3, 1.0, 1e2, 1e-2])])
def test_a_pseudo_inverse_gives_the_solution_of_minimum_norm(scale: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    a, y = (torch.randn(50, width, generator=generator, dtype=torch.float64) for width in (3, 2))
    x = torch.cat([a, a @ torch.randn(3, 3, generator=generator, dtype=torch.float64)], 1) * scale.double()
    w, _ = ridge(Moments.of(x, y), 1.0, 0.0)
    expected = torch.linalg.pinv(x - x.mean(0), rtol=1e-10) @ (y - y.mean(0))
    torch.testing.assert_close(w.T, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rho", [1e-8, 1e-12, 1e-16])
def test_a_tiny_rho_on_dependent_columns_of_float32_multiplies_no_rounding(rho: float) -> None:
    generator = torch.Generator().manual_seed(0)
    a, mixed, noise = (torch.randn(*shape, generator=generator) for shape in ((200, 5), (5, 6), (200, 3)))
    x, y = torch.cat([a, a @ mixed], 1), a[:, :3] + 0.1 * noise
    least, w = (ridge(Moments.of(x, y), 1.0, each).w for each in (0.0, rho))
    torch.testing.assert_close(w, least, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [10, 40, 100])
def test_refinements_of_a_coarse_sketch_converge(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(2000, width, generator=generator, dtype=torch.float64) for width in (20, 2))
    z[:, 0] += x[:, 0]
    best = ridge(Moments.of(x, z), 1.0, 1e-3).w
    errors = [float((sketch(x, z, 1.0, 1e-3, size, refine=steps).w - best).norm()) for steps in (0, 2, 8, 60)]
    assert errors[0] > errors[1] > errors[2] > 1e6 * errors[3]
    assert sketch(x, 0 * z, 1.0, 1e-3, size, refine=3).w.abs().max() == 0
