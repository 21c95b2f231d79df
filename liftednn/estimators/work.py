"""What the estimators give a trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.data.arrays import as_tensor
from liftednn.data.copies import groups_of_copies
from liftednn.data.sources import Source
from liftednn.estimators.rows import Rows, blocks
from liftednn.estimators.scaling import Array
from liftednn.training.initial import Features

__all__ = ["Work"]


@dataclass(frozen=True)
class Work:
    """Rows, encoded responses, row weights, a seed, initial weights, the number of passes, None for that of the parameters, the device of
    training, whether it is in float32 whatever the precision of the rows, and the weights that a network for these rows was chosen at."""

    x: Rows
    y: Tensor
    row_weights: Array | None
    seed: int
    start: list[Affine] | None
    passes: int | None
    device: str | None
    single: bool = False
    drawn: Features | None = None

    @cached_property
    def source(self) -> Source:
        """What settings are chosen from and the network is trained on: one object, which counts its rows once."""
        rows = replace(self.x, single=True) if self.single else self.x
        return rows.source(self.y, self.row_weights, self.device)

    def starting_from(self, drawn: Features | None) -> Work:
        """The same with the weights that a network for these rows was chosen at, and the same source."""
        found = replace(self, drawn=drawn)
        found.__dict__["source"] = self.source
        return found

    def take(self, chosen: Array) -> Work:
        """The same with some of the rows, by their numbers."""
        row_weights = None if self.row_weights is None else self.row_weights[chosen]
        return replace(self, x=self.x.take(chosen), y=self.y[chosen], row_weights=row_weights, drawn=None)

    def groups(self) -> Array | None:
        """For each row the number of its group of copies, which belong together, and among which a row with a weight may stand for several;
        None where no row is a copy and weights are equal, or where every row counts (data/copies.py)."""
        parts = ((as_tensor(self.x[part], "X"), self.y[part]) for part in blocks(*self.x.shape))
        found = groups_of_copies(parts)
        alike = self.row_weights is None or bool((self.row_weights == self.row_weights[0]).all())
        return None if found is None or (alike and len(torch.unique(found)) == len(found)) else found.numpy()

    def validation(self, trained: Rows) -> tuple[Tensor, ...]:
        """These rows in the coordinates of those trained on, their responses and, where there are some, weights."""
        rows = replace(self.x, tails=trained.tails, scaling=trained.scaling, basis=trained.basis).tensor(self.device)
        weights = () if self.row_weights is None else (as_tensor(self.row_weights, "sample_weight"),)
        return rows, self.y, *weights
