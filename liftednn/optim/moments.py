"""Second moments of the rows that a layer multiplies with its weights, for groups of outputs and in blocks of columns.

`liftednn.Moments` is for one regression and in float64. Here a layer has g groups, each with p columns of its own, all computed at once,
and more columns than `COLUMNS` are cut into blocks, between which products are not computed. The precision is that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["COLUMNS", "BlockMoments", "column_blocks"]

# The most columns of one matrix: 512 channels under a 3 x 3 kernel, whose matrix takes 85 MB in float32.
COLUMNS = 4608


def column_blocks(p: int) -> list[slice]:
    """p columns, in as few blocks of nearly equal size as `COLUMNS` allows."""
    number = -(-p // COLUMNS)
    ends = [p * at // number for at in range(number + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class BlockMoments:
    """The moments of rows (r, g, p).

    count   the number of rows, ()
    mean    (g, p)
    xx      for every block of columns, the sum over rows of products of centred entries, (g, block, block)
    """

    count: Tensor
    mean: Tensor
    xx: list[Tensor]

    @classmethod
    def zeros(cls, groups: int, p: int, like: Tensor) -> BlockMoments:
        """The moments of no rows."""
        sizes = [block.stop - block.start for block in column_blocks(p)]
        return cls(
            like.new_zeros(()), like.new_zeros(groups, p), [like.new_zeros(groups, size, size) for size in sizes]
        )

    @classmethod
    def of(cls, x: Tensor) -> BlockMoments:
        mean = x.mean(0)
        centred = (x - mean).transpose(0, 1)
        parts = [centred[:, :, block] for block in column_blocks(x.shape[-1])]
        return cls(x.new_full((), len(x)), mean, [part.mT @ part for part in parts])

    def total(self) -> Tensor:
        """A number that is finite where all of these are."""
        return self.mean.sum() + sum(each.diagonal(dim1=1, dim2=2).sum() for each in self.xx)

    def __add__(self, other: BlockMoments) -> BlockMoments:
        """The moments of the rows of both (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        fraction = other.count / count.clamp(min=torch.finfo(count.dtype).tiny)
        step = other.mean - self.mean
        blocks = zip(self.xx, other.xx, column_blocks(self.mean.shape[-1]), strict=True)
        xx = [a + b + self.count * fraction * _outer(step[:, at]) for a, b, at in blocks]
        return BlockMoments(count, self.mean + fraction * step, xx)

    def __rmul__(self, forget: float) -> BlockMoments:
        """The same rows, each with `forget` times the weight."""
        return BlockMoments(forget * self.count, self.mean, [forget * each for each in self.xx])

    def summed(self, add_up: Callable[[Tensor], Tensor]) -> BlockMoments:
        """The moments of the rows of all processes; `add_up` gives the sum of a tensor over them."""
        count = add_up(self.count)
        mean = add_up(self.count * self.mean) / count.clamp(min=1)
        step, columns = self.mean - mean, column_blocks(mean.shape[-1])
        xx = [add_up(a + self.count * _outer(step[:, at])) for a, at in zip(self.xx, columns, strict=True)]
        return BlockMoments(count, mean, xx)

    def grams(self, centred: bool) -> list[Tensor]:
        """For every block, the mean product of entries, about the mean or about 0."""
        found = [each / self.count for each in self.xx]
        if centred:
            return found
        blocks = column_blocks(self.mean.shape[-1])
        return [gram + _outer(self.mean[:, at]) for gram, at in zip(found, blocks, strict=True)]


def _outer(x: Tensor) -> Tensor:
    """(g, p) -> (g, p, p)."""
    return x[:, :, None] * x[:, None, :]
