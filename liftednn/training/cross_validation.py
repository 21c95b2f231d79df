"""Errors of ridge regressions with an intercept on rows that they are not fitted to, for choices between inputs.

With H_r the hat matrix of a ridge of strength r, the generalised cross-validation error (Golub, Heath, Wahba 1979) is

    GCV = min_r  |y - H_r y|^2 / (1 - trace(H_r) / n)^2 / n

and the leave-one-out error has 1 - (H_r)_ii for each row in place of the mean: where single rows are far from all others, these differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn.moments import Moments

__all__ = ["CLEARLY", "BestRidge", "LeftOut", "cross_validated", "error_of", "left_out", "relative"]

# What costs more than another choice must lower the error to this fraction.
CLEARLY = 0.95
# The ridge's strengths, in units of the inputs' mean variance.
_STRENGTHS = tuple(10.0**k for k in range(-8, 3))

# Differences that are smaller fractions than this are rounding.
_ROUNDING = 1e-5


class LeftOut(NamedTuple):
    """The leave-one-out error of a regression, a mean over rows, and its effective parameters as a fraction of the rows."""

    error: float
    used: float


def cross_validated(x: Tensor, y: Tensor, rows: int, row_weights: Tensor | None = None) -> float:
    """The GCV error of the best ridge regression of y (n, q) on x (n, p); `rows` of these n are different. In float64: with weak ridges on
    nearly collinear columns it would otherwise be rounding."""
    moments = Moments.of(x.double(), y.double(), row_weights)
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


def left_out(
    x: Tensor, y: Tensor, row_weights: Tensor | None = None, strengths: Sequence[float] = _STRENGTHS
) -> list[LeftOut]:
    """Ridge regressions of y (n, q) on x (n, p), both in float64, from the weakest ridge to the strongest; the last is a constant.

    strengths   of the ridges, in units of the mean variance of x
    """
    weights = relative(row_weights, x)
    x, y = _centred(x, weights), _centred(y, weights)
    directions, values, inner, outside, free = _spectrum(x, y, weights)
    ridges = [strength / (values + strength) for strength in _strengths(values, x.shape[1], strengths)]
    rest = torch.stack([*ridges, torch.ones_like(values)])  # what each regression leaves of each direction
    unused = (free + rest @ directions.square().T).clamp(min=1e-13)
    residuals = (outside + directions @ (rest[:, :, None] * inner)) / unused[:, :, None]
    errors, used = residuals.square().sum((1, 2)) / len(x), 1 - unused.mean(1)
    return [LeftOut(*each) for each in zip(errors.tolist(), used.tolist(), strict=True)]


@dataclass(frozen=True)
class BestRidge:
    """The ridge regression of y (n, q) on x (n, p) with the smallest leave-one-out error.

    With hat matrix H and M = I - H it leaves the residual M y, and the leave-one-out errors (M y)_i / M_ii. Further columns h with a ridge
    of strength r, and G = M h, change these to M y - G (h'G + r)^-1 h'M y and M_ii - (G (h'G + r)^-1 G')_ii.

    residual    (n, q), of centred rows multiplied by the roots of their weights
    unused      M_ii (n,)
    directions  the left singular vectors of x (n, k), of which H keeps the fractions `kept` (k,)
    weights     those of the rows (n,), with mean 1
    strength    of its ridge: it minimises the weighted sum of squared residuals plus strength |w|^2
    """

    residual: Tensor
    unused: Tensor
    directions: Tensor
    kept: Tensor
    weights: Tensor
    strength: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor, row_weights: Tensor | None = None) -> BestRidge:
        """From x and y in float64."""
        weights = relative(row_weights, x)
        x, y = _centred(x, weights), _centred(y, weights)
        directions, values, inner, outside, free = _spectrum(x, y, weights)
        found, squares = [], directions.square()
        for strength in _strengths(values, x.shape[1]):
            rest = strength / (values + strength)
            residual, unused = outside + directions @ (rest[:, None] * inner), free + squares @ rest
            found.append(cls(residual, unused, directions, 1 - rest, weights, float(strength)))
        return min(found, key=lambda each: float(each.errors.mean()))

    @property
    def errors(self) -> Tensor:
        """The squared leave-one-out errors (n, q), those of a row times its weight."""
        return _squared_errors(self.residual, self.unused)

    @property
    def rho(self) -> float:
        """The same ridge beside the mean of squared residuals."""
        return self.strength / len(self.weights)

    def weighted(self, part: Tensor) -> Tensor:
        """Columns of the same rows, centred and multiplied by the roots of the weights."""
        return _centred(part, self.weights)

    def errors_with(self, h: Tensor) -> Tensor:
        """`errors` of the regression on x and h (n, k), with the best ridge on h."""
        h = self.weighted(h)
        g = h - self.directions @ (self.kept[:, None] * (self.directions.T @ h))
        values, vectors = torch.linalg.eigh(h.T @ g)
        values, g, inner = values.clamp(min=0), g @ vectors, vectors.T @ (h.T @ self.residual)
        inverses = 1 / (values[:, None] + _strengths(values, h.shape[1]))  # a column for every strength
        fitted = g @ (inverses.T[:, :, None] * inner)
        unused = self.unused[:, None] - g.square() @ inverses
        # Where h fits a row so closely that only rounding is left, a strength does not count.
        sound = (unused > _ROUNDING * self.unused[:, None]).all(0)
        every = [
            _squared_errors(self.residual - part, rest)
            for part, rest in zip(fitted[sound], unused.T[sound], strict=True)
        ]
        return min([self.errors, *every], key=lambda errors: float(errors.mean()))


def relative(row_weights: Tensor | None, x: Tensor) -> Tensor:
    """The weights of rows x, with mean 1."""
    return x.new_ones(len(x)) if row_weights is None else row_weights / row_weights.mean()


def _centred(part: Tensor, weights: Tensor) -> Tensor:
    """Columns minus their means, rows times the roots of their weights."""
    return (part - (weights @ part) / weights.sum()) * weights.sqrt()[:, None]


def _spectrum(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of centred rows: left singular vectors, the squares of singular values, y along these directions, and what no regression on x fits,
    of y and of each row; sums of small parts, since differences of large ones would be rounding."""
    directions, values = _left_directions(x)
    inner = directions.T @ y
    free = (1 - weights / weights.sum() - directions.square().sum(1)).clamp(min=0)
    return directions, values, inner, y - directions @ inner, free


def _left_directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left singular vectors of x (n, p) that are not of rounding alone, and the squares of its singular values."""
    wide = x.shape[1] > len(x)
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    seen = values > len(values) * torch.finfo(x.dtype).eps * values[-1:]
    values, vectors = values[seen], vectors[:, seen]
    return vectors if wide else (x @ vectors) / values.sqrt(), values


def _strengths(values: Tensor, columns: int, strengths: Sequence[float] = _STRENGTHS) -> Tensor:
    """The ridge's strengths for a matrix of so many columns that has these squared singular values."""
    return values.new_tensor(strengths) * (values.sum() / columns) + torch.finfo(values.dtype).tiny


def _squared_errors(residual: Tensor, unused: Tensor) -> Tensor:
    return (residual / unused.clamp(min=1e-13)[:, None]).square()
