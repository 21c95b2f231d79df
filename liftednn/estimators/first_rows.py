"""The first rows of a stream, for `partial_fit`. What is chosen once (lam, rho, initial weights) needs more than a few rows, and responses
that differ: from one row, or rows of one class, it would be wrong for all that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from liftednn.estimators.rows import is_sparse
from liftednn.estimators.scaling import Array

__all__ = ["FirstRows"]

# Rows from which a stream can begin: ten batches; and the most entries that are kept of them.
_ENOUGH, _ENTRIES = 500, 8_000_000


@dataclass(frozen=True)
class FirstRows:
    """Rows (n, features), their responses and weights, as they were given; rows of weight 0 are left out. `a + b` is all of both."""

    x: Any
    y: Array
    row_weights: Array | None

    @classmethod
    def of(cls, x: Any, y: Array, row_weights: Array | None) -> FirstRows:
        if row_weights is None or row_weights.all():
            return cls(x, y, row_weights)
        kept = np.flatnonzero(row_weights)
        return cls(x[kept], y[kept], row_weights[kept])

    def __add__(self, other: FirstRows) -> FirstRows:
        parts = (self, other)
        plain = all(part.row_weights is None for part in parts)
        weights = None if plain else np.concatenate([part.weights for part in parts])
        y = other.y.reshape(len(other.y), *self.y.shape[1:])  # one response may be given as (n,) or (n, 1)
        return FirstRows(_stacked(self.x, other.x), np.concatenate([self.y, y]), weights)

    @property
    def weights(self) -> Array:
        return np.ones(len(self.y)) if self.row_weights is None else self.row_weights

    @property
    def _needed(self) -> int:
        return max(1, min(_ENOUGH, _ENTRIES // int(self.x.shape[1])))

    @property
    def enough(self) -> bool:
        """Whether training can begin from these rows for good."""
        return len(self.y) >= self._needed and bool((self.y != self.y[:1]).any())

    def kept(self) -> FirstRows:
        """A copy of the last of these rows, no more than are needed."""
        last = slice(max(0, len(self.y) - self._needed), None)
        weights = None if self.row_weights is None else self.row_weights[last].copy()
        return FirstRows(self.x[last].copy(), self.y[last].copy(), weights)


def _stacked(a: Any, b: Any) -> Any:
    """Rows of a and of b, in the sparse form (csr) of either if one is sparse."""
    if not (is_sparse(a) or is_sparse(b)):
        return np.concatenate([np.asarray(a), np.asarray(b)])
    form = type(a if is_sparse(a) else b)
    parts = a, b = form(a), form(b)
    ends = np.concatenate([a.indptr, a.indptr[-1] + b.indptr[1:]])
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return form((data, indices, ends), shape=(a.shape[0] + b.shape[0], a.shape[1]))
