"""The rows of X as a trainer reads them: standardised a batch at a time, so that no second copy of X is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from liftednn.data.sources import Gathered, Mapped, Source, as_tensor, weighted
from liftednn.estimators.scaling import Array, Scaling

__all__ = ["Rows", "blocks"]

# Rows that are read at a time.
_ROWS = 8192
# A copy for training may take this many bytes, or this share of X if that is more.
_SMALL, _SHARE = 64 << 20, 0.4


def blocks(count: int) -> Iterator[slice]:
    """Slices that cover `count` rows."""
    return (slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS))


@dataclass(frozen=True)
class Rows:
    """Rows of an array of any layout and numeric type, converted to `dtype` and scaled when they are read.

    chosen   the numbers of the rows that are used; None for all
    """

    x: Array
    dtype: np.dtype
    scaling: Scaling
    chosen: Array | None = None

    @classmethod
    def of(cls, x: Array, dtype: str | None) -> Rows:
        """Unscaled, in `dtype`; None: float32 if X is float32, otherwise float64."""
        exact = np.dtype(dtype or (np.float32 if x.dtype.newbyteorder("=") == np.float32 else np.float64))
        return cls(x, exact, Scaling.none(x.shape[1]))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.x if self.chosen is None else self.chosen), self.x.shape[1]

    def __getitem__(self, key: slice | Array) -> Array:
        rows = self.x[key if self.chosen is None else self.chosen[key]]
        with np.errstate(over="ignore"):  # the trainer refuses values that are infinite in `dtype`
            return self.scaling(np.asarray(rows, self.dtype))

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

    def source(self, y: Tensor, row_weights: Array | None, device: str | None) -> Source:
        """The source for a trainer on a device. A memory map that is not small is read in runs of rows; other arrays in any order."""
        each, size = (
            None if row_weights is None else torch.as_tensor(row_weights),
            self.dtype.itemsize * math.prod(self.shape),
        )
        if _is_mapped(self.x) and size > _SMALL:
            return weighted(Mapped(self, y.numpy()), each)
        spare = math.inf if str(device).startswith("cuda") else max(_SMALL, _SHARE * size)
        return weighted(Gathered(self, y, spare=spare), each)


def _is_mapped(x: object) -> bool:
    """Whether an array is a view of a memory map."""
    while x is not None and not isinstance(x, np.memmap):
        x = getattr(x, "base", None)
    return x is not None
