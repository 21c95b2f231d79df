"""The generalised cross-validation (Golub, Heath, Wahba 1979) of ridge regressions with an intercept, for choices between inputs:

GCV = min_r  |y - H_r y|^2 / (1 - trace(H_r) / n)^2 / n,      H_r the ridge regression's hat matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.moments import Moments

__all__ = ["CLEARLY", "cross_validated", "error_of", "left_out"]

# What costs more than another choice must lower the error to this fraction.
CLEARLY = 0.95
# The ridge's strengths, in units of the inputs' mean variance.
_STRENGTHS = tuple(10.0**k for k in range(-8, 3))


def cross_validated(x: Tensor, y: Tensor, rows: int, row_weights: Tensor | None = None) -> float:
    """The GCV error of the best ridge regression of y (n, q) on x (n, p); `rows` of these n are different."""
    moments = Moments.of(x, y, row_weights)
    values, vectors = torch.linalg.eigh(moments.gram)
    values, inner = values.clamp(min=0), (vectors.T @ moments.cross).square().sum(1)
    return error_of(values, inner, float(values.mean()), float(moments.zz / moments.weight), rows)


def error_of(values: Tensor, inner: Tensor, unit: float, spread: float, rows: int) -> float:
    """The same from a spectrum.

    values   eigenvalues of the Gram matrix (k,), in which ridges have strengths that are multiples of `unit`
    inner    the squares of the covariances of y with these directions, summed over outputs (k,)
    spread   the variance of y, summed over outputs
    """
    strengths = values.new_tensor(_STRENGTHS)[:, None] * unit
    inverse = 1 / (values + strengths + torch.finfo(values.dtype).tiny)  # a row for every strength
    left = 1 - (1 + (values * inverse).sum(1)) / rows
    errors = (spread - (inner * inverse * (2 - values * inverse)).sum(1)) / left.square()
    return float(torch.where(left > 0, errors, torch.inf).min())


def left_out(x: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
    """The leave-one-out error of the best ridge regression of y (n, q) on x (n, p), both in float64: the mean over rows."""
    weights = x.new_ones(len(x)) if row_weights is None else row_weights / row_weights.mean()
    root = weights.sqrt()[:, None]
    x, y = ((part - (weights @ part) / weights.sum()) * root for part in (x, y))
    values, vectors = torch.linalg.eigh(x @ x.T)
    values, inner = values.clamp(min=0), vectors.T @ y
    strengths = values.new_tensor(_STRENGTHS) * (values.sum() / x.shape[1])
    best = torch.inf
    for strength in strengths:
        share = values / (values + strength + torch.finfo(values.dtype).tiny)
        leverage = (vectors.square() @ share + weights / weights.sum()).clamp(max=1 - 1e-6)
        residual = (y - vectors @ (share[:, None] * inner)) / (1 - leverage)[:, None]
        best = min(best, float(residual.square().sum() / len(x)))
    return best
