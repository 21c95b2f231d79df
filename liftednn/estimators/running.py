"""The scaling of a stream: what `partial_fit` has seen of each column, and moments carried over from one scaling to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from liftednn.base import Affine
from liftednn.estimators.scaling import Array, Scaling, row_blocks, scale_of, total
from liftednn.moments import Moments

__all__ = ["Seen", "rescaled", "shrunk"]

# Weights on a column whose scale has grown by more than this factor are made smaller.
_GROWTH = 3.0


@dataclass(frozen=True)
class Seen:
    """Of all rows so far, for each column: their weight, mean and standard deviation, the least and the largest of them and 0, and
    whether all are 0 or one other number. `a + b` is of the rows of both."""

    weight: float
    mean: Array
    spread: Array
    low: Array
    high: Array
    indicates: Array

    @classmethod
    def of(cls, a: Any, row_weights: Array | None = None) -> Seen:
        """Of an array, or what gives rows for slices, rows weighted by `row_weights`."""
        weight, mean = float(len(a) if row_weights is None else row_weights.sum()), Scaling.of(a, row_weights).mean
        low, high, squares = np.zeros_like(mean), np.zeros_like(mean), np.zeros_like(mean)
        for rows, _ in row_blocks(a, None):
            low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        indicates = (low == 0) | (high == 0)
        unit = np.ldexp(1.0, np.frexp(np.maximum(high - mean, mean - low))[1] - 1)  # so that squares do not overflow
        for rows, weights in row_blocks(a, row_weights):
            squares += total(((rows - mean) / unit) ** 2, weights)
            indicates &= ((rows == 0) | (rows == low + high)).all(axis=0)
        return cls(weight, mean, unit * np.sqrt(squares / weight), low, high, indicates)

    def __add__(self, other: Seen) -> Seen:
        weight, change = self.weight + other.weight, other.mean - self.mean
        new = other.weight / weight
        within = np.hypot(np.sqrt(1 - new) * self.spread, np.sqrt(new) * other.spread)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        alike = [(part.mark == 0) | (part.mark == low + high) for part in (self, other)]
        indicates = self.indicates & other.indicates & alike[0] & alike[1] & ((low == 0) | (high == 0))
        spread = np.hypot(within, np.sqrt(new * (1 - new)) * change)
        return Seen(weight, self.mean + new * change, spread, low, high, indicates)

    @property
    def mark(self) -> Array:
        """Where all entries are 0 or one other number, that number."""
        mark: Array = self.low + self.high
        return mark

    def scaling(self, dtype: np.dtype) -> Scaling:
        """To mean 0 and variance 1, with the exceptions of `Scaling.of`."""
        return Scaling(self.mean, scale_of(self.mean, self.spread, self.indicates, self.mark, dtype))


def rescaled(moments: Moments, before: Scaling, after: Scaling) -> Moments:
    """The moments of inputs in one scaling, for the same inputs in another."""
    factor = torch.from_numpy(before.scale / after.scale)
    shift = torch.from_numpy((before.mean - after.mean) / after.scale)
    return replace(
        moments,
        mean_x=moments.mean_x * factor + shift,
        xx=moments.xx * torch.outer(factor, factor),
        xz=moments.xz * factor[:, None],
    )


def shrunk(first: Affine, before: Scaling, after: Scaling) -> Affine:
    """Weights on inputs as they are given, for a change of their scaling. They stay as they are, except on a column whose scale has
    grown more than threefold: there they were learned on a small part of its range, and would give huge states on the rest of it. Their
    outputs for rows at the mean `before` stay."""
    factor = first.w.new_tensor(np.minimum(1.0, _GROWTH * before.scale / after.scale))
    w = first.w * factor
    return Affine(w, first.b + (first.w - w) @ first.w.new_tensor(before.mean))
