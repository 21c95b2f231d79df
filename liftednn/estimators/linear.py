"""Whether a linear regression is as good as the network: then hidden units would only fit noise.

The regression is the ridge with the smallest leave-one-out error. The network is kept if one of three checks, the cheapest first, shows for
any output that it is better:

* its residuals on the rows that it is trained on are much smaller;
* hidden units that are not trained lower the regression's leave-one-out error by more than chance: kinks at the quartiles of single
  columns, random units of two columns and of all, and products of two columns;
* with enough rows, a second network, trained on half of them, predicts the other half better than a regression on the same half.

Copies of rows count as one row with their weights added up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.data.copies import without_copies
from liftednn.estimators.reduction import widened
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Array
from liftednn.functional.tensors import quartiles
from liftednn.losses import SquaredError
from liftednn.moments import Moments
from liftednn.solvers import Factor, ridge
from liftednn.training.biases import biases_at_quantiles
from liftednn.training.cross_validation import BestRidge, relative
from liftednn.training.result import Record

__all__ = ["Learned", "as_good", "fitted", "nearly_exact", "record", "with_units"]

# The network is taken for better where its error is less than this fraction of the regression's: on the rows trained on, with few rows and
# with enough, and on rows left out. With enough rows, differences on the latter must be of so many standard errors.
_TRAINED_FEW, _TRAINED, _PREDICTED, _SURE = 2 / 3, 1 / 4, 0.99, 2.0
# Rows that are enough to train a network on half of them; and the fraction of the variance of y that a network could gain too little of.
_ENOUGH, _EXACT = 200, 1e-3
# Units of each kind.
_UNITS = 100

# From the numbers of rows to train on, and of others: what a new network gives on these (n, q).
Learned = Callable[[Array, Array], Tensor]


def as_good(
    x: Tensor, y: Tensor, trained: Tensor, seed: int, row_weights: Tensor | None, learned: Learned
) -> BestRidge | None:
    """The best linear regression of responses y (n, q) on x (n, p), if it is as good as the network, which gives `trained` (n, q) on these
    rows; all in float64."""
    one, group, weights = without_copies(x, y, relative(row_weights, x))
    linear, enough = BestRidge.of(x[one], y[one], weights), len(one) >= _ENOUGH
    error = (linear.weights[:, None] * (trained[one] - y[one]).square()).mean(0)
    if bool((error < (_TRAINED if enough else _TRAINED_FEW) * linear.residual.square().mean(0)).any()):
        return None
    better = _untrained_units_help(linear, x[one], seed, weights) or (
        enough and _predicts_better(x, y, row_weights, group, seed, learned)
    )
    return None if better else linear


def nearly_exact(x: Tensor, y: Tensor, seed: int, row_weights: Tensor | None) -> BestRidge | None:
    """The best linear regression, if it leaves next to nothing of the responses, so that no network need be trained; in float64."""
    one, _, weights = without_copies(x, y, relative(row_weights, x))
    linear = BestRidge.of(x[one], y[one], weights)
    left, whole = linear.errors.mean(0), linear.weighted(y[one]).square().mean(0)
    exact = bool((left <= _EXACT * whole).all())
    return linear if exact and not _untrained_units_help(linear, x[one], seed, weights) else None


def _untrained_units_help(linear: BestRidge, x: Tensor, seed: int, row_weights: Tensor) -> bool:
    """Whether hidden units that are not trained lower the leave-one-out error of an output: surely, or among few rows at all."""
    alone, together = linear.errors, linear.errors_with(_hidden(x, seed, row_weights))
    gain = alone - together
    seen = gain.mean(0) > _SURE * gain.std(0, correction=0) / math.sqrt(len(gain))
    return bool((seen if len(x) >= _ENOUGH else seen | (together.mean(0) < _PREDICTED * alone.mean(0))).any())


def with_units(linear: Affine, widths: Sequence[int], seed: int) -> list[Affine]:
    """A network of ReLU layers that computes the same, for training to go on from: two units of every layer for each output, since
    u = max(0, u) - max(0, -u), and random ones that the head does not use yet."""
    generator, layers = torch.Generator().manual_seed(seed), []
    for units in widths:
        (w, b), outputs = linear, len(linear.b)
        rest = units - 2 * outputs
        drawn = torch.randn(rest, w.shape[1], generator=generator, dtype=torch.float64).to(w)
        one, zeros = torch.eye(outputs).to(w), w.new_zeros(outputs, rest)
        hidden = torch.cat([w, -w, drawn * (2 / w.shape[1]) ** 0.5])
        layers.append(Affine(hidden, torch.cat([b, -b, w.new_zeros(rest)])))
        linear = Affine(torch.cat([one, -one, zeros], 1), torch.zeros_like(b))
    return [*layers, linear]


def record(linear: Affine, rho: float, x: Rows, y: Tensor, row_weights: Array | None) -> Record:
    """Of a regression that is solved at once."""
    started, loss = time.perf_counter(), SquaredError()
    u, counts = x.tensor() @ linear.w.T + linear.b, None if row_weights is None else torch.as_tensor(row_weights)
    error = float(reduce.mean(loss.value(u, y), counts))
    objective = error + rho * float(linear.w.square().sum())
    return Record(1, objective, (), error, loss.score(u, y, counts), time.perf_counter() - started)


def _predicts_better(
    x: Tensor, y: Tensor, row_weights: Tensor | None, group: Tensor, seed: int, learned: Learned
) -> bool:
    """Whether a network on half of the rows predicts an output on the others better than a linear regression on the same half."""
    drawn = torch.randperm(int(group.max()) + 1, generator=torch.Generator().manual_seed(seed))
    half = (drawn < (len(drawn) + 1) // 2)[group]
    counts = relative(row_weights, x)
    own, rest = half.nonzero().flatten(), (~half).nonzero().flatten()
    one, _, weights = without_copies(x[own], y[own], relative(counts[own], x))
    linear = BestRidge.of(x[own][one], y[own][one], weights)
    w, b = _solved(x[own], y[own], counts[own], linear.rho)
    share = counts[rest, None] / counts[rest].sum()
    errors = [
        (share * (given.to(y) - y[rest]).square()).sum(0)
        for given in (learned(own.numpy(), rest.numpy()), x[rest] @ w.T + b)
    ]
    return bool((errors[0] < _PREDICTED * errors[1]).any())


def fitted(x: Rows, y: Tensor, row_weights: Array | None, rho: float) -> Affine:
    """The linear regression of y (n, q) on all rows, with rho |w|^2 beside the mean squared error; in their precision, for all columns."""
    if x.shape[1] <= len(x):
        w, b = ridge(x.moments(row_weights, y), 1.0, rho)
    else:
        counts = torch.ones(len(y)) if row_weights is None else torch.as_tensor(row_weights)
        w, b = _solved(x.tensor().double(), y.double(), counts.double(), rho)
    return widened([Affine(w.to(x.like), b.to(x.like))], x.basis, None)[0]


def _solved(x: Tensor, y: Tensor, row_weights: Tensor, rho: float) -> Affine:
    """The same in float64; with more columns than rows by an (n, n) system, w = x' (x x' + rho)^-1 y with x and y centred and weighted."""
    if x.shape[1] <= len(x):
        return ridge(Moments.of(x, y, row_weights), 1.0, rho)
    share = (row_weights / row_weights.sum())[:, None]
    centre, mean = (share * x).sum(0), (share * y).sum(0)
    rows, targets = (x - centre) * share.sqrt(), (y - mean) * share.sqrt()
    if not bool(rows.any()):  # the best rho for constant columns is next to 0
        return Affine(x.new_zeros(y.shape[1], x.shape[1]), mean)
    w = (rows.T @ Factor.of(rows @ rows.T, 1.0, rho, torch.finfo(x.dtype).eps).solve(targets)).T
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
    mixtures = (two, every) if width > 2 else (every,)
    units = [(u + biases_at_quantiles(u, generator, row_weights)).relu() for u in mixtures]
    left, right = (
        torch.triu_indices(width, width) if width < 20 else torch.randint(width, (2, 2 * _UNITS), generator=generator)
    )
    kinds = [torch.cat(kinks, 1), *units, x[:, left] * x[:, right]]
    return torch.cat([kind / kind.std(0, correction=0).clamp(min=1e-9) / math.sqrt(kind.shape[1]) for kind in kinds], 1)
