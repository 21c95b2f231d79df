"""Norm balls: numpy's norms, and projections that stay inside after rounding. (cvxpy's proxes are in test_penalties.py.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednn.penalties import Ball, LowRank

NORMS = {
    "frobenius": lambda w: np.linalg.norm(w),
    "spectral": lambda w: np.linalg.norm(w, 2),
    "row": lambda w: np.linalg.norm(w, axis=1).max(),
    "l1": lambda w: np.abs(w).sum(),
}


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
@pytest.mark.parametrize("norm", NORMS)
def test_the_projection_lies_on_the_sphere_and_to_1e_6_in_float32(norm, shape: tuple[int, int]) -> None:
    w, radius = draw(*shape), 0.3 * float(NORMS[norm](draw(*shape).numpy()))
    ball = Ball(radius, norm)
    assert float(ball.size(w)) == pytest.approx(float(NORMS[norm](w.numpy())))
    assert NORMS[norm](ball.prox(w, 1.0).numpy()) == pytest.approx(radius, rel=1e-12)
    assert NORMS[norm](ball.prox(w.float(), 1.0).double().numpy()) <= radius * (1 + 1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_points_inside_stay_and_those_outside_have_an_infinite_value(norm) -> None:
    w = draw(4, 6)
    size = float(NORMS[norm](w.numpy()))
    assert torch.equal(Ball(1.01 * size, norm).prox(w, 1.0), w)
    assert float(Ball(1.01 * size, norm).value(w)) == 0
    assert float(Ball(0.99 * size, norm).value(w)) == torch.inf
    assert torch.equal(Ball(1.0, norm).prox(0 * w, 1.0), 0 * w)


@pytest.mark.parametrize("norm", NORMS)
def test_weights_that_are_not_finite_are_returned_unchanged(norm) -> None:
    w = draw(4, 6)
    w[1, 2] = torch.nan
    assert not Ball(1.0, norm).prox(w, 1.0).isfinite().all()


def test_the_l1_ball_makes_zeros() -> None:
    assert int((Ball(1.0, "l1").prox(draw(4, 6), 1.0) == 0).sum()) > 12


def test_mistakes_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"radius must be positive and finite, got -1\.0"):
        Ball(-1.0)
    with pytest.raises(ValueError, match="norm must be 'frobenius', 'spectral', 'row' or 'l1', got 'max'"):
        Ball(1.0, "max")  # type: ignore[arg-type]


def wide(*values: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q for n in (len(values), 5)
    )
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right[: len(values)]


def test_singular_values_of_very_different_sizes() -> None:
    for w in (wide(1e8, 2.0, 0.5), wide(1e8, 2.0, 0.5).T.contiguous()):
        for factor in (1.0, 1e15):
            ball = Ball(factor, "spectral")
            found = ball.prox(factor * w, 1.0)
            expected = factor * torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)
            torch.testing.assert_close(torch.linalg.svdvals(found), expected, rtol=1e-7, atol=0.0)
            assert float(ball.value(found)) == 0
        assert float((w - LowRank(2).prox(w, 1.0)).norm()) == pytest.approx(0.5, rel=1e-6)
