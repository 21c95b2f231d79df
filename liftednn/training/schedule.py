"""The passes of a mini-batch run: all that are given, or fewer where classes are so easy to tell apart that nothing is left to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.network import LiftedNetwork
from liftednn.training.result import Record

__all__ = ["NEGLIGIBLE", "Schedule", "negligible_loss"]

# The fraction of the loss of the best constant below which a loss, or a difference of losses, is negligible.
NEGLIGIBLE = 1e-3
# Rows for each input of a layer, from which on a small loss is not due to chance: up to half a row for each, any labels can be separated
# (Cover 1965).
_ROWS_PER_INPUT = 10
# The part of the passes in which the loss must become negligible.
_SOON = 0.1


@dataclass(frozen=True)
class Schedule:
    """`passes` in all; those of a run whose loss falls below `negligible` in the first tenth of them end after as many again."""

    passes: int
    negligible: float = 0.0

    def planned(self, history: Sequence[Record]) -> int:
        """The number of passes, by the records so far."""
        soon = max(1, int(_SOON * self.passes))
        done = next((record.number for record in history[:soon] if record.loss < self.negligible), self.passes)
        return min(self.passes, 2 * done)


def negligible_loss(network: LiftedNetwork, y: Tensor, row_weights: Tensor | None, rows: int | None) -> float:
    """The loss below which nothing is left to gain, from encoded responses y of some of that many rows; 0 where there always is: for real
    responses, with few rows, under penalties that go on to make weights 0, and for robust training."""
    layers = network.layers
    inputs = max(layer.operator.weight_shape[-1] for layer in layers)
    plain = all(layer.penalty.ridge is not None and layer.uncertainty is None for layer in layers)
    if (
        rows is None
        or rows < _ROWS_PER_INPUT * inputs
        or not plain
        or not isinstance(network.loss, SoftmaxCrossEntropy)
    ):
        return 0.0
    fractions = reduce.mean(y, row_weights)
    return -NEGLIGIBLE * float(torch.xlogy(fractions, fractions).sum())
