"""The polar factor, against singular value decompositions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from liftednn.step.polar import polar


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def exact_polar(x: Tensor) -> Tensor:
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


@pytest.mark.parametrize("shape", [(3, 4, 9), (2, 9, 4), (1, 6, 6)])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_polar_factor_is_about_that_of_the_singular_vectors(shape: tuple[int, ...], scale: float) -> None:
    x = draw(*shape)
    found = polar(scale * x)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    # The same singular vectors: the factor between the two is symmetric and positive.
    turned = found.mT @ exact_polar(x) if shape[1] >= shape[2] else found @ exact_polar(x).mT
    torch.testing.assert_close(turned, turned.mT, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e20, 1e30])
def test_the_polar_factor_does_not_depend_on_the_scale_in_float32(scale: float) -> None:
    x = draw(2, 6, 4).float()
    torch.testing.assert_close(polar(scale * x), polar(x), rtol=1e-3, atol=1e-4)


def test_the_polar_factor_of_zeros_is_zero() -> None:
    assert torch.equal(polar(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))
