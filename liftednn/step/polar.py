"""The polar factor of a matrix: the steepest direction among those that move the outputs of a linear map alike in every direction.

    polar(U S V') = U V'

Muon (Jordan and others, 2024) takes its steps along that of an average of gradients; so do `optim.Lifted` and, for networks with
convolutions, `MiniBatch`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as fn
from torch import Tensor

__all__ = ["by_matrix_units", "polar"]

# Of the iteration x <- a x + b (x x') x + c (x x')^2 x of Jordan and others, whose singular values end between .7 and 1.2.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
# Products of bfloat16 take longer where a side is no multiple of it, and on a CPU where matrices are small.
_ALIGNED, _LARGE = 16, 128


def polar(x: Tensor) -> Tensor:
    """Matrices (g, q, p) with their singular values replaced by about 1, those below a five-hundredth of the norm by less; 0 for 0.

    By Newton and Schulz: products of matrices alone, those of float32 in bfloat16 where that is faster: on a GPU, and on CPUs that have
    matrix units for it.
    """
    tall = x.shape[-2] > x.shape[-1]
    z = x.mT if tall else x
    # First by the largest entry: squares of entries below 1e-23 or above 1e19 are 0 or infinite in float32.
    z = z / torch.linalg.vector_norm(z, torch.inf, (-2, -1), keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
    z = z / torch.linalg.matrix_norm(z, keepdim=True).clamp(min=1)
    q, p = z.shape[-2:]
    if (z.is_cuda and z.dtype == torch.float32) or by_matrix_units(z):
        z = fn.pad(z.bfloat16(), (0, -p % _ALIGNED, 0, -q % _ALIGNED))  # zeros stay zeros
    for _ in range(_ITERATIONS):
        square = torch.bmm(z, z.mT)
        factor = torch.baddbmm(square, square, square, beta=_B, alpha=_C)
        z = torch.baddbmm(z, factor, z, beta=_A)
    z = z[..., :q, :p]
    return (z.mT if tall else z).to(x)


def by_matrix_units(x: Tensor) -> bool:
    """Whether products with x, if on a CPU, are faster in bfloat16: it is large, and the CPU has units for products of such matrices (AMX),
    which torch reaches through oneDNN."""
    onednn = cast(Any, torch.backends.mkldnn)
    found = x.dtype == torch.float32 and not x.is_cuda and min(x.shape[-2:]) >= _LARGE
    return found and bool(onednn.is_available() and onednn.enabled) and _has_tiles()


@lru_cache
def _has_tiles() -> bool:
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
