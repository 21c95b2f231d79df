"""The rows of X as a trainer reads them: made dense and standardised a batch at a time, so that no second copy of X is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednn.data.arrays import as_columns, as_tensor
from liftednn.data.columns import Columns
from liftednn.data.sources import Gathered, Mapped, Source, weighted
from liftednn.estimators.scaling import Array, Scaling
from liftednn.estimators.tails import Tails
from liftednn.moments import Moments
from liftednn.training.whitening import Spectrum

__all__ = ["Rows", "blocks", "is_sparse", "needs_float64"]

# Rows that are read at a time, and their entries where there are many columns.
_ROWS, _ENTRIES = 8192, 8192 * 1024
# A copy for training may take this many bytes, or this fraction of X if that is more.
_SMALL, _FRACTION = 64 << 20, 0.4
# The rows that directions of little variance are looked for in, and the most columns.
_LOOKED_AT, _NARROW = 1024, 512
# The fraction of the variance of responses that float32 cannot tell from none.
_EXACT = 1e-5


def blocks(count: int, width: int = 1) -> Iterator[slice]:
    """Slices that cover `count` rows of `width` columns."""
    step = max(1, min(_ROWS, _ENTRIES // width))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def is_sparse(x: object) -> bool:
    """Whether x is a sparse matrix or array of scipy, in any of its forms."""
    return hasattr(x, "toarray")


@dataclass(frozen=True)
class Rows:
    """Rows of an array of any layout and numeric type, or of a sparse matrix in rows (csr), converted to `dtype` and scaled when they
    are read.

    chosen   the numbers of the rows that are used; None for all
    columns  how columns become inputs; None: they are the inputs
    tails    the inputs with heavy tails, which are compressed before they are scaled
    basis    (inputs, k), orthonormal: rows are given by their k coordinates in it; None: by their inputs
    single   whether they are given in float32, rounded after all else
    """

    x: Any
    dtype: np.dtype
    scaling: Scaling
    columns: Columns | None = None
    chosen: Array | None = None
    basis: Array | None = None
    tails: Tails = field(default_factory=Tails.none)
    single: bool = False

    @classmethod
    def of(cls, x: Any, dtype: str | None, columns: Columns | None = None) -> Rows:
        """Unscaled, in `dtype`; None: float32 if X is float32, otherwise float64."""
        exact = np.dtype(dtype or (np.float32 if x.dtype.newbyteorder("=") == np.float32 else np.float64))
        return cls(x, exact, Scaling.none(x.shape[1] if columns is None else columns.width), columns)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        count = self.x.shape[0] if self.chosen is None else len(self.chosen)
        return count, self.scaling.width if self.basis is None else self.basis.shape[1]

    def __getitem__(self, key: slice | Array) -> Array:
        rows = self._scaled(key) if self.basis is None else self._in_basis(key, self.basis)
        if not self.single:
            return rows
        with np.errstate(over="ignore"):  # infinite entries are refused later, with an error that says so
            return rows.astype(np.float32, copy=False)

    def _in_basis(self, key: slice | Array, basis: Array) -> Array:
        numbers = np.arange(len(self))[key]
        return np.concatenate([self._scaled(numbers[part]) @ basis for part in blocks(len(numbers), len(basis))])

    def _scaled(self, key: slice | Array) -> Array:
        rows = self.x[key if self.chosen is None else self.chosen[key]]
        rows = rows.toarray() if is_sparse(rows) else rows
        with np.errstate(over="ignore"):  # the trainer refuses values that are infinite in `dtype`
            values = np.asarray(rows, self.dtype)
        return self.scaling(self.tails(values if self.columns is None else self.columns(values)))

    @property
    def like(self) -> Tensor:
        """An empty tensor of the same precision."""
        return torch.from_numpy(np.empty(0, self.dtype))

    def take(self, chosen: Array) -> Rows:
        """Some of these rows, by their numbers."""
        return replace(self, chosen=chosen if self.chosen is None else self.chosen[chosen])

    def tensor(self, device: str | None = None) -> Tensor:
        """All rows as a tensor, which must not be written to: it may share the memory of X."""
        return as_tensor(self[:], "X").to(device or "cpu")

    def moments(self, row_weights: Array | None, y: Tensor | None = None, before: Moments | None = None) -> Moments:
        """The moments of these rows, with responses y (n, q) where they are given, and of those `before`; on the CPU, so that they can be
        pickled anywhere."""
        total = before
        for part in blocks(*self.shape):
            rows = as_tensor(self[part], "X")
            # In units of the largest weight: with huge or tiny weights, sums of squares would overflow or underflow.
            unit = 1.0 if row_weights is None else float(row_weights[part].max())
            weights = None if row_weights is None else torch.as_tensor(row_weights[part] / unit).to(rows)
            fresh = unit * Moments.of(rows, rows[:, :0] if y is None else y[part].to(rows), weights)
            total = fresh if total is None else total + fresh
        assert total is not None
        return total

    def source(self, y: Tensor, row_weights: Array | None, device: str | None) -> Source:
        """The source for a trainer on a device. A memory map that is not small is read in runs of rows; other arrays in any order."""
        each = None if row_weights is None else torch.as_tensor(row_weights)
        size = self.dtype.itemsize * math.prod(self.shape)
        if _is_mapped(self.x) and size > _SMALL:
            return weighted(Mapped(self, y.numpy()), each)
        spare = math.inf if str(device).startswith("cuda") else max(_SMALL, _FRACTION * size)
        return weighted(Gathered(self, y, spare=spare / 2 if self.single else spare), each)


def needs_float64(rows: Rows, y: Tensor, row_weights: Array | None = None) -> bool:
    """Whether a linear regression of encoded responses y, (n,) or (n, q), on some of the rows needs directions that have variance to the
    precision of float64, and none to that of float32."""
    width = rows.shape[1]
    if width > _NARROW:
        return False
    chosen = np.linspace(0, len(rows) - 1, _LOOKED_AT).astype(int)
    if row_weights is not None and not row_weights[chosen].any():
        return False
    x = rows.take(chosen).tensor()
    targets = as_columns(y[torch.from_numpy(chosen)]).to(x)
    counts = None if row_weights is None else torch.as_tensor(row_weights[chosen]).to(x)
    spectrum = Spectrum.of_rows(x, counts)
    return spectrum.all_needed(spectrum.varying_to(torch.finfo(torch.float32).eps), x, targets, counts, _EXACT)


def _is_mapped(x: object) -> bool:
    """Whether an array is a view of a memory map."""
    while x is not None and not isinstance(x, np.memmap):
        x = getattr(x, "base", None)
    return x is not None
