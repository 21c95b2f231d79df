"""Errors of ridge regressions with an intercept on rows that they are not fitted to, for choices between inputs.

With H_r the hat matrix of a ridge of strength r, the generalised cross-validation error (Golub, Heath, Wahba 1979) is

    GCV = min_r  |y - H_r y|^2 / (1 - trace(H_r) / n)^2 / n

and the leave-one-out error has 1 - (H_r)_ii for each row in place of the mean: where single rows are far from all others, these differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from liftednn.moments import Moments

__all__ = ["CLEARLY", "LeftOut", "cross_validated", "error_of", "left_out"]

# What costs more than another choice must lower the error to this fraction.
CLEARLY = 0.95
# The ridge's strengths, in units of the inputs' mean variance.
_STRENGTHS = tuple(10.0**k for k in range(-8, 3))


class LeftOut(NamedTuple):
    """The leave-one-out error of a regression, a mean over rows, and its effective parameters as a fraction of the rows."""

    error: float
    used: float


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


def left_out(x: Tensor, y: Tensor, row_weights: Tensor | None = None) -> list[LeftOut]:
    """Ridge regressions of y (n, q) on x (n, p), both in float64, from the weakest ridge to the strongest; the last is a constant."""
    weights = x.new_ones(len(x)) if row_weights is None else row_weights / row_weights.mean()
    root = weights.sqrt()[:, None]
    x, y = ((part - (weights @ part) / weights.sum()) * root for part in (x, y))
    values, vectors = torch.linalg.eigh(x @ x.T)
    values, inner = values.clamp(min=0), vectors.T @ y
    strengths = values.new_tensor(_STRENGTHS) * (values.sum() / x.shape[1]) + torch.finfo(values.dtype).tiny
    found = []
    for rest in [*(strength / (values + strength) for strength in strengths), torch.ones_like(values)]:
        # `rest` is what the regression leaves of each direction, `unused` 1 minus the leverage; a constant is always fitted.
        unused = (vectors.square() @ rest - weights / weights.sum()).clamp(min=1e-13)
        residual = vectors @ (rest[:, None] * inner) / unused[:, None]
        found.append(LeftOut(float(residual.square().sum() / len(x)), 1 - float(unused.mean())))
    return found
