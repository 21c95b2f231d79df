"""How columns of numbers and categories become the inputs of a network: the one encoding of the estimators and of the command line.

Values are a matrix (n, columns): a number as it is, a category by its index in training, NaN where a number is missing or a category is
unknown. A number becomes one input, with its median where it is missing, and a second one that says where it was missing, if some were
in training. A category becomes one 0-or-1 input for each category of training, all 0 where it is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from liftednn.functional import quantile

__all__ = ["MOST_CATEGORIES", "Column", "Columns", "Kind", "medians"]

# More categories than this would make one column wider than most tables.
MOST_CATEGORIES = 1000

Kind = Literal["number", "text", "truth"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """How one column is encoded: a number by (value - mean) / scale, text and true/false by one 0-or-1 input per category.

    fill      what a missing number is replaced by; None: the mean
    flagged   whether a further 0-or-1 input says where a number is missing
    """

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[Any, ...] = ()
    fill: float | None = None
    flagged: bool = False

    @property
    def width(self) -> int:
        return len(self.categories) or 1 + self.flagged

    @property
    def constant(self) -> bool:
        return len(self.categories) == 1 or self.scale == 0


@dataclass(frozen=True)
class Columns:
    """The encoding of several columns, in their order."""

    each: tuple[Column, ...]

    @property
    def width(self) -> int:
        return int(self.starts[-1])

    def __call__(self, values: Array) -> Array:
        """Values (n, columns) -> inputs (n, width) of the same precision; the values themselves where they already are the inputs."""
        if self._plain and not np.isnan(values).any():
            return values
        numbers, flagged, categories = self._numbers, self._flagged, self._categories
        found = np.zeros((len(values), self.width), values.dtype)
        given = values[:, numbers]
        fill, mean, scale = self._affine
        found[:, self.starts[numbers]] = (np.where(np.isnan(given), fill, given) - mean) / scale
        found[:, self.starts[flagged] + 1] = np.isnan(values[:, flagged])
        indices = values[:, categories]
        row, column = np.nonzero(indices >= 0)
        found[row, self.starts[categories][column] + indices[row, column].astype(int)] = 1
        return found

    @cached_property
    def starts(self) -> Array:
        """The number of each column's first input, and the width."""
        return np.cumsum([0, *(column.width for column in self.each)])

    @cached_property
    def _plain(self) -> bool:
        """Whether inputs are the values where none is missing."""
        numbers = all(column.kind == "number" and not column.flagged for column in self.each)
        return numbers and not self._affine[1].any() and bool((self._affine[2] == 1).all())

    @cached_property
    def _affine(self) -> tuple[Array, Array, Array]:
        """What missing numbers are replaced by, the mean and the scale of each column of numbers."""
        numbers = [self.each[index] for index in self._numbers]
        fills = [column.mean if column.fill is None else column.fill for column in numbers]
        means, scales = [column.mean for column in numbers], [column.scale for column in numbers]
        return np.array(fills, float), np.array(means, float), np.array(scales, float)

    @cached_property
    def _numbers(self) -> Array:
        return self._where([column.kind == "number" for column in self.each])

    @cached_property
    def _flagged(self) -> Array:
        return self._where([column.flagged for column in self.each])

    @cached_property
    def _categories(self) -> Array:
        return self._where([column.kind != "number" for column in self.each])

    def _where(self, mask: Sequence[bool]) -> Array:
        return np.flatnonzero(np.asarray(mask, bool))


def medians(values: Array, row_weights: Array | None = None) -> list[float]:
    """The median of each column of values (n, p), of what is not NaN, weighted by `row_weights`; 0 where all are."""
    missing = np.isnan(values)
    weights = None if row_weights is None else torch.as_tensor(row_weights, dtype=torch.float64)
    found = quantile(torch.from_numpy(np.where(missing, 0.0, values)), 0.5, weights).numpy()
    for index in np.flatnonzero(missing.any(axis=0)):
        there = ~missing[:, index]
        part = None if row_weights is None else row_weights[there]
        found[index] = medians(values[there, index, None], part)[0] if there.any() else 0.0
    return [float(each) for each in found]
