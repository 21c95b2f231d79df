"""What the estimators give a trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from liftednn.base import Affine
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Array

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """Rows, encoded responses, row weights, a seed, initial weights, and the number of passes; None for that of the parameters."""

    x: Rows
    y: Tensor
    row_weights: Array | None
    seed: int
    start: list[Affine] | None
    passes: int | None

    def take(self, chosen: Array) -> Work:
        """The same with some of the rows, by their numbers."""
        row_weights = None if self.row_weights is None else self.row_weights[chosen]
        return replace(self, x=self.x.take(chosen), y=self.y[chosen], row_weights=row_weights)
