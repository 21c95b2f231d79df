"""Sums, means, variances and largest entries over the rows (samples) of a problem.

One row affects the result of another only through these numbers. If the rows were distributed over processes, each would become a sum or
a maximum over all of them, and every process would have to call these functions equally often. So a solver that gets the rows in blocks
takes such numbers from its caller.

Products and mean squares have the precision of the rows. Other sums are computed in float64, over a few thousand rows at a time: the
block size changes their last bits only, and no copy of all rows is made.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = [
    "count",
    "distance",
    "ends",
    "largest",
    "mean",
    "mean_and_variance",
    "mean_square",
    "product",
    "sums",
    "total",
]

# Rows that are summed at a time.
_ROWS = 8192


def count(rows: Tensor, row_weights: Tensor | None = None) -> Tensor:
    """The number of rows, or the sum of `row_weights`."""
    if row_weights is None:
        return torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
    return row_weights.sum(dtype=torch.float64)


def total(rows: Tensor, row_weights: Tensor | None = None) -> Tensor:
    """The sum of the rows, (n,) -> () or (n, p) -> (p,), rows weighted by `row_weights`."""
    if len(rows) <= _ROWS:
        return _weighted(rows, row_weights).sum(0, dtype=torch.float64)
    sums = torch.zeros(rows.shape[1:], dtype=torch.float64, device=rows.device)
    for part, weights in _blocks(rows, row_weights):
        sums = sums + _weighted(part, weights).sum(0, dtype=torch.float64)
    return sums


def mean(rows: Tensor, row_weights: Tensor | None = None) -> Tensor:
    """The mean of the rows, (n,) -> () or (n, p) -> (p,), rows weighted by `row_weights`."""
    return total(rows, row_weights) / (len(rows) if row_weights is None else count(rows, row_weights))


def mean_and_variance(rows: Tensor, row_weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean of the rows (n, p), and the mean of the squared distances from it, column by column."""
    centre = mean(rows, row_weights)
    if len(rows) <= _ROWS:
        return centre, mean((rows.double() - centre).square(), row_weights)
    squares = torch.zeros_like(centre)
    for part, weights in _blocks(rows, row_weights):
        squares += _weighted((part.double() - centre).square(), weights).sum(0)
    return centre, squares / (len(rows) if row_weights is None else count(rows, row_weights))


def mean_square(rows: Tensor, row_weights: Tensor | None = None) -> Tensor:
    """The mean square of all entries of rows (n, p), rows weighted by `row_weights`; in their own precision."""
    if row_weights is None:
        return rows.square().sum() / rows.numel()  # mean() takes several times as long
    return (row_weights @ rows.square().mean(1)) / row_weights.sum()


def distance(a: Tensor, b: Tensor) -> float:
    """The root of the sum of all squared entries of a - b, for rows a (n, p) and b (n, p) or (p,)."""
    return float(torch.dist(a, b))


def product(a: Tensor, b: Tensor, scale: float = 1.0, plus: Tensor | None = None) -> Tensor:
    """scale a' b + plus, a' b the sum over rows of (n, p) and (n, q) or (n,), in their own precision."""
    if plus is not None:
        return torch.addmm(plus, a.T, b, alpha=scale)
    return a.T @ b if scale == 1 else (a.T @ b).mul_(scale)


def sums(parts: list[Tensor]) -> list[Tensor]:
    """Sums over rows that were computed elsewhere, such as a gradient in weights."""
    return parts


def largest(*parts: Tensor | float) -> float:
    """The largest absolute value of all entries of all arguments, 0 where there are none; NaN where one is NaN."""
    return float(torch.tensor([0.0, *map(_size, parts)], dtype=torch.float64).amax())


def ends(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry of each column of rows (n, p)."""
    return rows.amin(0), rows.amax(0)


def _blocks(rows: Tensor, row_weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        yield rows[part], None if row_weights is None else row_weights[part]


def _weighted(rows: Tensor, row_weights: Tensor | None) -> Tensor:
    return rows if row_weights is None else rows * row_weights.reshape(-1, *[1] * (rows.ndim - 1))


def _size(part: Tensor | float) -> float:
    """max |entry|, without a copy of the part."""
    if not isinstance(part, Tensor):
        return abs(part)
    if not part.numel():
        return 0.0
    low, high = torch.aminmax(part)
    return (
        float(torch.maximum(-low, high)) if part.is_cuda else max(-float(low), float(high))
    )  # a GPU is waited for once
