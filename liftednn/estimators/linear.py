"""Whether a linear regression is as good as the network: then hidden units would only fit noise.

It is where two things hold, on the same rows. Trained, the network leaves nearly the residuals that the regression leaves. And hidden units
that are not trained hardly lower the regression's leave-one-out error: kinks at the quartiles of single columns, random units of two
columns and of all, and products of two columns. A difference of more than two standard errors counts however small it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from liftednn.functional.tensors import quartiles
from liftednn.training.biases import biases_at_quantiles
from liftednn.training.cross_validation import BestRidge

__all__ = ["is_enough"]

# Errors that are within these fractions of the regression's, on the rows trained on and on those left out, are taken for the same, unless
# they differ by so many standard errors.
_TRAINED, _LEFT_OUT, _SURE = 2 / 3, 0.99, 2.0
# Units of each kind.
_UNITS = 100


def is_enough(x: Tensor, y: Tensor, trained: Tensor, seed: int, row_weights: Tensor | None = None) -> bool:
    """Whether responses y (n, q) are as well predicted by a linear regression on x (n, p) as by the network, which gives `trained` (n, q)
    on these rows; all in float64."""
    linear = BestRidge.of(x, y, row_weights)
    if float((linear.weights * (trained - y).square().sum(1)).mean()) < _TRAINED * linear.trained:
        return False
    alone, together = linear.errors, linear.errors_with(_hidden(x, seed, row_weights))
    gain = alone - together
    sure = float(gain.mean()) > _SURE * float(gain.std(correction=0)) / math.sqrt(len(gain))
    return not sure and float(together.mean()) > _LEFT_OUT * float(alone.mean())


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
