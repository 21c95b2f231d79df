"""Whether a linear regression is as good as the network: then hidden units would only fit noise.

It is where two things hold, on the same rows. Trained, the network leaves nearly the residuals that the regression leaves. And hidden units
that are not trained hardly lower the regression's leave-one-out error: kinks at the quartiles of single columns, random units of two
columns and of all, and products of two columns. A difference of more than two standard errors counts however small it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Array
from liftednn.functional.tensors import quartiles
from liftednn.solvers import Factor, ridge
from liftednn.training.biases import biases_at_quantiles
from liftednn.training.cross_validation import BestRidge

__all__ = ["as_good", "fitted"]

# Errors that are within these fractions of the regression's, on the rows trained on and on those left out, are taken for the same, unless
# they differ by so many standard errors.
_TRAINED, _LEFT_OUT, _SURE = 2 / 3, 0.99, 2.0
# Units of each kind.
_UNITS = 100


def as_good(x: Tensor, y: Tensor, trained: Tensor, seed: int, row_weights: Tensor | None = None) -> BestRidge | None:
    """The best linear regression of responses y (n, q) on x (n, p), if it is as good as the network, which gives `trained` (n, q) on these
    rows; all in float64."""
    linear = BestRidge.of(x, y, row_weights)
    if float((linear.weights * (trained - y).square().sum(1)).mean()) < _TRAINED * linear.trained:
        return None
    alone, together = linear.errors, linear.errors_with(_hidden(x, seed, row_weights))
    gain = alone - together
    sure = float(gain.mean()) > _SURE * float(gain.std(correction=0)) / math.sqrt(len(gain))
    return None if sure or float(together.mean()) < _LEFT_OUT * float(alone.mean()) else linear


def fitted(x: Rows, y: Tensor, row_weights: Array | None, rho: float) -> Affine:
    """The linear regression of y (n, q) on all rows, with rho |w|^2 beside the mean squared error; in the precision of the rows."""
    w, b = ridge(x.moments(row_weights, y), 1.0, rho) if x.shape[1] <= len(x) else _from_rows(x, y, row_weights, rho)
    return Affine(w.to(x.like), b.to(x.like))


def _from_rows(x: Rows, y: Tensor, row_weights: Array | None, rho: float) -> Affine:
    """The same by an (n, n) system, w = x' (x x' + n rho)^-1 y with x and y centred, for more columns than rows."""
    rows, targets = x.tensor().double(), y.double()
    weights = torch.ones(len(rows)) if row_weights is None else torch.as_tensor(row_weights)
    share = (weights.double() / weights.double().sum())[:, None]
    centre, mean = (share * rows).sum(0), (share * targets).sum(0)
    rows, targets = (rows - centre) * share.sqrt(), (targets - mean) * share.sqrt()
    factor = Factor.of(rows @ rows.T, 1.0, rho, torch.finfo(x.like.dtype).eps)
    w = (rows.T @ factor.solve(targets)).T
    return Affine(w, mean - w @ centre)


def _hidden(x: Tensor, seed: int, row_weights: Tensor | None) -> Tensor:
    """The hidden units (n, k), every kind with the same total variance."""
    generator, width = torch.Generator().manual_seed(seed), x.shape[1]
    columns = torch.arange(width) if width <= _UNITS else torch.randperm(width, generator=generator)[:_UNITS]
    kinks = [(x[:, columns] - each).relu() for each in quartiles(x[:, columns], row_weights)]
    first, second = torch.randint(width, (2, _UNITS), generator=generator)
    mixed = torch.randn(2, _UNITS, generator=generator, dtype=x.dtype)
    two = x[:, first] * mixed[0] + x[:, second] * mixed[1]
    every = x @ torch.randn(width, _UNITS, generator=generator, dtype=x.dtype)
    units = [(u + biases_at_quantiles(u, generator, row_weights)).relu() for u in (two, every)]
    left, right = (
        torch.triu_indices(width, width) if width < 20 else torch.randint(width, (2, 2 * _UNITS), generator=generator)
    )
    kinds = [torch.cat(kinks, 1), *units, x[:, left] * x[:, right]]
    return torch.cat([kind / kind.std(0).clamp(min=1e-9) / math.sqrt(kind.shape[1]) for kind in kinds], 1)
