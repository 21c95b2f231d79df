"""Steps that move the outputs of a layer by the same amount in every direction, for layers that read tokens.

Of all steps D with |D gram^(1/2)| <= 1 in the spectral norm, the one of steepest descent is

    D = polar(gradient gram^(-1/2)) gram^(-1/2),    polar(U S V') = U V'

Without gram it is the step of Muon (Jordan and others, 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["polar"]

# Of the iteration x <- a x + b (x x') x + c (x x')^2 x of Jordan and others, whose singular values end between .7 and 1.2.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5


def polar(x: Tensor) -> Tensor:
    """Matrices (g, q, p) with their singular values replaced by about 1, those below a five-hundredth of the norm by less; 0 for 0.

    By Newton and Schulz: products of matrices alone, in bfloat16 on a GPU.
    """
    tall = x.shape[-2] > x.shape[-1]
    z = x.mT if tall else x
    # First by the largest entry: squares of entries below 1e-23 or above 1e19 are 0 or infinite in float32.
    z = z / torch.linalg.vector_norm(z, torch.inf, (-2, -1), keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
    z = z / torch.linalg.matrix_norm(z, keepdim=True).clamp(min=1)
    z = z.bfloat16() if z.is_cuda else z
    for _ in range(_STEPS):
        square = torch.bmm(z, z.mT)
        factor = torch.baddbmm(square, square, square, beta=_B, alpha=_C)
        z = torch.baddbmm(z, factor, z, beta=_A)
    return (z.mT if tall else z).to(x)
