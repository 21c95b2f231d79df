"""Columns with heavy tails, compressed: one entry that is far from all others would otherwise set the unit of its column.

    g(x) = c + a arsinh((x - c) / a),      c the median, a the smaller of the distances from it to the two quartiles

It is x near the median and grows like a logarithm far from it. Only columns with an entry further than 20 spreads from the median are
compressed, a spread being the interquartile range / 1.349, the standard deviation of normal data: of a million normal numbers none is
further than 6. Where a quartile is the median, as in a column of many zeros, both a and the spread are the median distance of the entries
that differ from it. Indicators, columns of two values, stay as they are.

A response that is linear in such columns is not linear in g: whether to compress is measured (`helps`), by the leave-one-out error of a
ridge regression of the responses on the columns and on random hidden units, in which a row with a far entry counts by its own error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from liftednn import reduce
from liftednn.data.arrays import as_columns
from liftednn.data.copies import without_copies
from liftednn.estimators.scaling import Array
from liftednn.functional.tensors import NORMAL_RANGE, quartiles
from liftednn.training.biases import biases_at_quantiles
from liftednn.training.cross_validation import CLEARLY, left_out

__all__ = ["CompressTails", "Tails", "helps"]

_FAR = 20.0
# Numbers that are read at a time, and those in the rows, spread over all, that quartiles are found from.
_NUMBERS, _SAMPLED = 1 << 18, 1 << 19
# Rows that compression is judged by, besides those with the furthest entries, and random hidden units.
_JUDGED, _FURTHEST, _UNITS = 256, 32, 100
# The ridge's strengths, down to very weak ones: beside one far entry, all others of its column hardly vary.
_STRENGTHS = tuple(10.0**k for k in range(-14, 3))


@dataclass(frozen=True)
class Tails:
    """The columns that are compressed, by their numbers, with c and a of each."""

    columns: Array
    centre: Array
    unit: Array

    @classmethod
    def none(cls) -> Tails:
        return cls(np.zeros(0, int), np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, x: Any, row_weights: Array | None = None) -> Tails:
        """From rows x (n, p), an array or what gives rows for slices."""
        parts = (x[block] for block in _blocks(x))
        low, high = (np.stack(ends) for ends in zip(*((part.min(0), part.max(0)) for part in parts), strict=True))
        low, high = low.min(0).astype(np.float64), high.max(0).astype(np.float64)
        step = -(-len(x) // max(20, _SAMPLED // x.shape[1]))
        rows = torch.from_numpy(np.array(x[::step], np.float64))
        counts = None if row_weights is None else torch.as_tensor(row_weights[::step]).double()
        lower, centre, upper = quartiles(rows, counts)
        below, above = centre - lower, upper - centre
        varied = (below > 0) & (above > 0)
        usual = _usual_distance(rows, centre, counts)
        unit = torch.where(varied, torch.minimum(below, above), usual)
        spread = torch.where(varied, (upper - lower) / NORMAL_RANGE, usual)
        far = np.maximum(high - centre.numpy(), centre.numpy() - low) > _FAR * spread.numpy()  # not where that is NaN
        two = ((rows == torch.from_numpy(low)) | (rows == torch.from_numpy(high))).all(0).numpy()
        chosen = np.flatnonzero(far & ~two)
        return cls(chosen, centre.numpy()[chosen], unit.numpy()[chosen])

    def __bool__(self) -> bool:
        return len(self.columns) > 0

    def __call__(self, x: Array) -> Array:
        """g(x), column by column; x itself where no column is compressed."""
        if not self:
            return x
        compressed: Array = np.array(x, order="K")
        part = np.asarray(x[:, self.columns], np.float64)
        compressed[:, self.columns] = self.centre + self.unit * np.arcsinh((part - self.centre) / self.unit)
        return compressed


def helps(tails: Tails, x: Any, y: Tensor, row_weights: Array | None, seed: int) -> bool:
    """Whether responses y, labels (n,) or numbers (n, q), are predicted as well from compressed columns as from those given.

    x   rows as they are given, an array or what gives rows for slices
    """
    spread = np.arange(0, len(x), -(-len(x) // _JUDGED))
    chosen = np.union1d(spread, _furthest_rows(tails, x)[:_FURTHEST])
    raw = np.asarray(x[chosen], np.float64)
    targets = as_columns(y[torch.from_numpy(chosen)])
    counts = None if row_weights is None else torch.as_tensor(row_weights[chosen]).double()
    one, _, counts = without_copies(torch.from_numpy(raw), targets, counts)
    both = (torch.from_numpy(rows)[one] for rows in (raw, tails(raw)))
    errors = [_error(rows, targets[one].double(), counts, seed) for rows in both]
    return not errors[0] < CLEARLY * errors[1]


def _error(x: Tensor, y: Tensor, counts: Tensor, seed: int) -> float:
    generator, varies = torch.Generator().manual_seed(seed), x.amin(0) < x.amax(0)
    mean, variance = reduce.mean_and_variance(x, counts)
    x = torch.where(varies, x - mean, 0.0) / variance.sqrt().clamp(min=torch.finfo(x.dtype).tiny)  # a mean is rounded
    u = x @ torch.randn(x.shape[1], _UNITS, generator=generator, dtype=x.dtype)
    hidden = (u + biases_at_quantiles(u, generator, counts)).relu_() / np.sqrt(x.shape[1])
    return min(left_out(torch.cat([x, hidden], 1), y, counts, _STRENGTHS)).error


def _furthest_rows(tails: Tails, x: Any) -> Array:
    """For each compressed column, the row of its entry furthest from the median; those that are furthest in units of their column first."""
    furthest, rows = np.zeros(len(tails.columns)), np.zeros(len(tails.columns), int)
    for block in _blocks(x):
        distances = np.abs(x[block][:, tails.columns] - tails.centre) / tails.unit
        largest, at = distances.max(0), block.start + distances.argmax(0)
        rows = np.where(largest > furthest, at, rows)
        furthest = np.maximum(furthest, largest)
    ordered: Array = rows[np.argsort(-furthest, kind="stable")]
    return ordered


def _blocks(x: Any) -> list[slice]:
    """Blocks of rows that are read at a time."""
    step = max(1, _NUMBERS // x.shape[1])
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]


def _usual_distance(rows: Tensor, centre: Tensor, row_weights: Tensor | None) -> Tensor:
    """For columns where a quartile is the median: the median distance from it of the entries that differ; NaN where none does."""
    distance = (rows - centre).abs()
    distance = torch.where(distance > 0, distance, torch.nan)
    if row_weights is None:
        return distance.nanmedian(0).values
    ordered, order = distance.sort(0)  # NaN last
    weights = torch.where(ordered.isnan(), 0.0, row_weights[order]).cumsum(0)
    at = (2 * weights < weights[-1:]).sum(0, keepdim=True).clamp(max=len(rows) - 1)
    return ordered.gather(0, at)[0]


class CompressTails(nn.Module):
    """`Tails` as a torch module, in front of layers of which the first has `coefs` (in, out)."""

    def __init__(self, tails: Tails, coefs: Array) -> None:
        super().__init__()
        width, dtype = len(coefs), torch.from_numpy(coefs).dtype
        chosen = torch.zeros(width, dtype=torch.bool)
        chosen[torch.from_numpy(tails.columns)] = True
        self.register_buffer("chosen", chosen)
        for name in ("centre", "unit"):
            whole = torch.ones(width, dtype=dtype)
            whole[chosen] = torch.from_numpy(getattr(tails, name)).to(dtype)
            self.register_buffer(name, whole)

    def forward(self, x: Tensor) -> Tensor:
        centre, unit, chosen = self.get_buffer("centre"), self.get_buffer("unit"), self.get_buffer("chosen")
        return torch.where(chosen, centre + unit * torch.asinh((x - centre) / unit), x)
