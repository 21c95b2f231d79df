"""The rows of an operator with several positions, such as the patches of a convolution: a state many times over, so never held at once."""

from __future__ import annotations

import functools
import operator as operations
from collections.abc import Iterator, Sequence

from torch import Tensor

from liftednn.base import Affine, Operator
from liftednn.blocks.design import Design
from liftednn.moments import Moments

__all__ = ["Patches"]

# Rows that are formed at a time.
_ROWS = 8192


class Patches(Design):
    """The rows (n t, p) of an operator without groups, or of one group, that reads states xs, t positions for each of n samples.

    Moments are summed over blocks of samples; products with the rows are those of the operator.

    sample_weight   (n t,), the weight of each row
    """

    def __init__(self, operator: Operator, xs: Sequence[Tensor], sample_weight: Tensor | None = None) -> None:
        self.operator, self.xs = operator, list(xs)
        self.bias, self.sample_weight, self.noise, self._factors = operator.bias, sample_weight, None, {}

    @property
    def width(self) -> int:
        return self.operator.weight_shape[-1]

    @property
    def total(self) -> float:
        weights = self.sample_weight
        return float(len(self.xs[0]) * self.operator.positions if weights is None else weights.double().sum())

    def forward(self, weights: Affine) -> Tensor:
        u = self.operator.forward(self.xs, weights)
        return self.operator.targets(u - self.operator.offset(self.xs) if self.operator.skips else u)

    def product(self, r: Tensor, scale: float = 1.0) -> Tensor:
        return self.operator.weight_gradient(self.xs, self.operator.fold(r)).mul_(scale)

    def _blocks(self) -> Iterator[Tensor]:
        size = max(1, _ROWS // self.operator.positions)
        for start in range(0, len(self.xs[0]), size):
            yield self.operator.rows([x[start : start + size] for x in self.xs])

    def _weighted_blocks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The blocks with their weights; those in which all weights are 0 are left out."""
        start = 0
        for rows in self._blocks():
            weights = None if self.sample_weight is None else self.sample_weight[start : start + len(rows)]
            start += len(rows)
            if weights is None or bool(weights.any()):
                yield rows, weights

    @functools.cached_property
    def _centred(self) -> Moments:
        parts = (Moments.of(rows, rows[:, :0], weights) for rows, weights in self._weighted_blocks())
        return functools.reduce(operations.add, parts)

    def _retargeted(self, z: Tensor) -> Moments:
        return self._centred.retarget_blocks(self._blocks(), z, self.sample_weight)
