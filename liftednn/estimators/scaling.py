"""Inputs and responses in units of their own spread, so that the units of columns do not matter, and conversion of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftednn.base import Affine
from liftednn.functional import median_and_spread

__all__ = ["Array", "ColumnStatistics", "Scaling"]

Array = NDArray[Any]

# Rows that are added up at a time, and their entries where there are many columns.
_ROWS, _ENTRIES = 8192, 8192 * 1024
# The least spread that weights are divided by, as a multiple of the smallest normal number.
_LEAST = 1e4


@dataclass(frozen=True)
class Scaling:
    """a -> (a - mean) / scale, column by column."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, a: Any, row_weights: Array | None = None) -> Scaling:
        """To mean 0 and variance 1, rows weighted by `row_weights`; a column that does not vary, or so little that weights on it would
        overflow, is only shifted. A column of zeros and one other number is an indicator, with that number as its unit: divided by its
        spread, a rare one would become the largest of all inputs.

        `a` as in `ColumnStatistics.of`.
        """
        return ColumnStatistics.of(a, row_weights).scaling(a.dtype)

    @classmethod
    def robust(cls, a: Array, row_weights: Array | None = None) -> Scaling:
        """To median 0 and the interquartile range of a standard normal, which outliers do not change."""
        rows = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float64))
        centre, spread = median_and_spread(
            rows, None if row_weights is None else torch.as_tensor(row_weights, dtype=rows.dtype)
        )
        return cls(centre.numpy(), spread.numpy())

    @classmethod
    def none(cls, width: int) -> Scaling:
        return cls(np.zeros(width), np.ones(width))

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def shift(self) -> Scaling:
        """To mean 0 only."""
        return Scaling(self.mean, np.ones_like(self.scale))

    def __call__(self, a: Array) -> Array:
        """a itself where nothing changes."""
        if not self.mean.any() and (self.scale == 1).all():
            return a
        scaled: Array = ((a - self.mean) / self.scale).astype(a.dtype)
        return scaled

    def _parts(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.mean), like.new_tensor(self.scale)

    def from_scaled_inputs(self, first: Affine) -> Affine:
        """Convert weights on scaled inputs to weights on unscaled inputs."""
        mean, scale = self._parts(first.w)
        w = first.w / scale
        return Affine(w, first.b - w @ mean)

    def to_scaled_inputs(self, first: Affine) -> Affine:
        mean, scale = self._parts(first.w)
        return Affine(first.w * scale, first.b + first.w @ mean)

    def from_scaled_outputs(self, last: Affine) -> Affine:
        """Convert weights that give scaled responses to weights that give unscaled ones."""
        mean, scale = self._parts(last.w)
        return Affine(last.w * scale[:, None], last.b * scale + mean)

    def to_scaled_outputs(self, last: Affine) -> Affine:
        mean, scale = self._parts(last.w)
        return Affine(last.w / scale[:, None], (last.b - mean) / scale)


@dataclass(frozen=True)
class ColumnStatistics:
    """Of some rows, for each column: their weight, mean and standard deviation, the least and the largest of them and 0, and whether all
    are 0 or one other number. `a + b` is of the rows of both."""

    weight: float
    mean: Array
    spread: Array
    low: Array
    high: Array
    indicates: Array

    @classmethod
    def of(cls, a: Any, row_weights: Array | None = None) -> ColumnStatistics:
        """Of an array, or what gives rows for slices, rows weighted by `row_weights`. It is read in blocks, and summed in float64 in an
        order that does not depend on the memory layout."""
        weight, shape = float(len(a) if row_weights is None else row_weights.sum()), a.shape[1]
        mean, squares, low, high = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        first, varies = np.asarray(a[:1], np.float64)[0], np.zeros(shape, bool)
        for rows, weights in row_blocks(a, row_weights):
            varies |= (rows != first).any(axis=0)
            with np.errstate(over="ignore", invalid="ignore"):
                mean += total(rows, weights) / weight
            low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        if not np.isfinite(mean).all():
            raise ValueError(
                f"X or y holds numbers whose sum overflows in {a.dtype}: scale them, or give dtype='float64'"
            )
        mean = np.where(varies, mean, first)  # without rounding errors, which would be all that varies
        indicates = (low == 0) | (high == 0)
        unit = np.ldexp(1.0, np.frexp(np.maximum(high - mean, mean - low))[1] - 1)  # so that squares do not overflow
        for rows, weights in row_blocks(a, row_weights):
            squares += total(((rows - mean) / unit) ** 2, weights)
            indicates &= ((rows == 0) | (rows == low + high)).all(axis=0)
        return cls(weight, mean, unit * np.sqrt(squares / weight), low, high, indicates)

    def __add__(self, other: ColumnStatistics) -> ColumnStatistics:
        weight, change = self.weight + other.weight, other.mean - self.mean
        new = other.weight / weight
        within = np.hypot(np.sqrt(1 - new) * self.spread, np.sqrt(new) * other.spread)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        alike = [(part.mark == 0) | (part.mark == low + high) for part in (self, other)]
        indicates = self.indicates & other.indicates & alike[0] & alike[1] & ((low == 0) | (high == 0))
        spread = np.hypot(within, np.sqrt(new * (1 - new)) * change)
        return ColumnStatistics(weight, self.mean + new * change, spread, low, high, indicates)

    @property
    def mark(self) -> Array:
        """Where all entries are 0 or one other number, that number."""
        mark: Array = self.low + self.high
        return mark

    def scaling(self, dtype: np.dtype) -> Scaling:
        """To mean 0 and variance 1, with the exceptions of `Scaling.of`."""
        return Scaling(self.mean, scale_of(self.mean, self.spread, self.indicates, self.mark, dtype))


def scale_of(mean: Array, spread: Array, indicates: Array, mark: Array, dtype: np.dtype) -> Array:
    """What the columns are divided by: their spread, the `mark` of an indicator, or 1 for a column that does not vary."""
    precision = np.finfo(np.float64 if dtype == np.float64 else np.float32)
    varies = spread > np.maximum(10 * precision.eps * np.abs(mean), _LEAST * precision.tiny)
    scale: Array = np.where(varies, np.where(indicates, np.abs(mark), spread), np.maximum(spread, 1.0))
    return scale


def row_blocks(a: Any, row_weights: Array | None) -> Iterator[tuple[Array, Array | None]]:
    """Rows in float64 and their weights, a few at a time."""
    step = max(1, min(_ROWS, _ENTRIES // a.shape[1]))
    for start in range(0, len(a), step):
        rows = slice(start, start + step)
        yield np.ascontiguousarray(a[rows], np.float64), None if row_weights is None else row_weights[rows]


def total(rows: Array, row_weights: Array | None) -> Array:
    """The weighted sum of rows."""
    found: Array = (rows if row_weights is None else rows * row_weights[:, None]).sum(axis=0)
    return found
