"""Sets of matrices without convexity: nearest points, violations after rounding, closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednn.penalties import LowRank, Orthogonal


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def no_ridge(rho: float) -> Tensor:
    raise AssertionError("not needed here")


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_the_projection_is_orthogonal_and_nearest(shape: tuple[int, int], scale: float) -> None:
    w = draw(*shape)
    found = Orthogonal(scale).prox(w, 0.7)
    sizes = torch.linalg.svdvals(found)
    torch.testing.assert_close(sizes, torch.full_like(sizes, scale))
    # |w - q|^2 = |w|^2 - 2 <w, q> + const, and no <w, q> is larger than scale times the nuclear norm (von Neumann)
    assert float((w * found).sum()) == pytest.approx(scale * float(torch.linalg.svdvals(w).sum()))


def test_brute_force_over_all_rotations_of_the_plane() -> None:
    w = draw(2, 2, seed=3)
    found = Orthogonal().prox(w, 1.0)
    best = min(
        float((w - torch.tensor([[c, -s * k], [s, c * k]], dtype=torch.float64)).square().sum())
        for k in (1.0, -1.0)
        for t in np.linspace(0, 2 * math.pi, 20001)
        for c, s in [(math.cos(t), math.sin(t))]
    )
    distance = float((w - found).square().sum())
    assert distance <= best + 1e-12
    assert distance == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("shape", [(300, 784), (784, 300), (200, 200)])
def test_float32_weights_satisfy_the_constraint_to_1e_6(shape: tuple[int, int]) -> None:
    w = draw(*shape).float()
    found = Orthogonal(2.0).prox(w, 1.0).double() / 2
    gram = found.T @ found if shape[0] >= shape[1] else found @ found.T
    assert float((gram - torch.eye(len(gram))).abs().max()) < 1e-6
    sizes = torch.linalg.svdvals(LowRank(7).prox(w, 1.0).double())
    assert float(sizes[7] / sizes[0]) < 1e-6


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
@pytest.mark.parametrize("rank", [1, 3, 4, 9])
def test_low_rank_cuts_the_singular_values(shape: tuple[int, int], rank: int) -> None:
    w = draw(*shape)
    u, s, v = np.linalg.svd(w.numpy(), full_matrices=False)
    s[rank:] = 0
    np.testing.assert_allclose(LowRank(rank).prox(w, 3.0).numpy(), (u * s) @ v, atol=1e-12)
    np.testing.assert_allclose(LowRank(rank, 0.5).prox(w, 3.0).numpy(), (u * s) @ v / 4, atol=1e-12)
    assert LowRank(rank).prox(w, 3.0).shape == shape


def test_values_are_infinite_outside_and_forgive_rounding() -> None:
    w = draw(4, 6)
    inside = Orthogonal().prox(w, 1.0)
    assert float(Orthogonal().value(w)) == torch.inf
    assert float(Orthogonal().value(inside)) == float(Orthogonal().value(inside.float())) == 0
    assert float(Orthogonal().value(1.0001 * inside)) == torch.inf
    assert float(Orthogonal(3.0).value(3 * inside)) == 0
    cut = LowRank(2).prox(w, 1.0)
    assert float(LowRank(2).value(w)) == torch.inf
    assert float(LowRank(2, 0.5).value(cut)) == pytest.approx(0.5 * float(cut.square().sum()))
    assert float(LowRank(2).value(cut.float())) == 0
    assert float(LowRank(2).value(cut + 1e-4 * w)) == torch.inf
    assert float(LowRank(9).value(w)) == 0


def test_only_orthogonal_columns_make_the_quadratic_linear() -> None:
    assert Orthogonal().minimiser(draw(5, 3), no_ridge) is None
    assert Orthogonal().minimiser(draw(3, 5), no_ridge) is not None


def test_weights_that_are_not_finite_are_returned_unchanged() -> None:
    w = draw(4, 6)
    w[1, 2] = torch.nan
    assert Orthogonal().prox(w, 1.0).isnan().any()
    assert LowRank(2).prox(w, 1.0).isnan().any()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Orthogonal(0.0), r"scale must be positive and finite, got 0\.0"),
        (lambda: LowRank(0), "rank must be a whole number of at least 1, got 0"),
        (lambda: LowRank(2.0), "rank must be a whole number of at least 1, got 2.0"),  # type: ignore[arg-type]
        (lambda: LowRank(2, -1.0), "rho must be non-negative"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(build, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()
