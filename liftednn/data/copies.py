"""How many rows are independent: copies of a row add no information, whether they are repeated or a weight says so.

Equal inputs may occur many times by themselves, in columns with few values. Then some of them have different responses, and every row
counts, but copies of all rows count once; if equal inputs always have equal responses, only the different ones count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["different_rows", "distinct_columns", "groups_of_copies", "independent_rows", "without_copies"]

_MOST = 100_000
# Columns that tell most rows apart.
_COLUMNS = 64


def independent_rows(parts: Callable[[], Iterable[tuple[Tensor, Tensor]]], rows: int) -> int:
    """The number of different rows if equal inputs always have equal responses, otherwise the number of rows, of which as many as all of
    them are repeated count once. Not counted where there are very many `rows`: then it makes no difference.

    parts   gives the rows (n, p) and responses, (n,) or (n, q), part by part; called up to three times
    """
    if rows > _MOST:
        return rows
    x = _all_hashes(lambda: (x for x, _ in parts()))
    inputs = len(torch.unique(x))
    if inputs == len(x):
        return inputs
    y = torch.cat([_hashes(y, 1) for _, y in parts()])
    _, copies = torch.unique(x + 3 * y, return_counts=True)  # as good a hash of both
    return inputs if len(copies) == inputs else len(x) // math.gcd(*copies.tolist())


def groups_of_copies(parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor | None:
    """For each row the number of its group, of which all rows are copies. The order of groups does not depend on that of the rows, nor on
    how many copies there are. None where equal inputs have different responses, so that every row counts.

    parts   the rows (n, p) and responses, (n,) or (n, q), part by part
    """
    x, y = (torch.cat(each) for each in zip(*((_hashes(x, 0), _hashes(y, 1)) for x, y in parts), strict=True))
    different, group = torch.unique(x + 3 * y, return_inverse=True)
    return group if len(torch.unique(x)) == len(different) else None


def without_copies(x: Tensor, y: Tensor, row_weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the rows (n, p) that differ from all before them in x or in responses y, (n,) or (n, q); for each row, which of these
    it equals, (n,); and the weights of these, with those of their copies added."""
    hashes = _all_hashes(lambda: [x]) + 3 * _hashes(y, 1)
    _, group = torch.unique(hashes, return_inverse=True)
    last = torch.full((int(group.max()) + 1,), len(x), device=x.device)
    one, order = last.scatter_reduce(0, group, torch.arange(len(x), device=x.device), "amin").sort()
    group, each = order.argsort()[group], x.new_ones(len(x)) if row_weights is None else row_weights
    return one, group, each.new_zeros(len(one)).index_add(0, group, each)


def different_rows(x: Tensor, y: Tensor, row_weights: Tensor | None, rows: int | None) -> tuple[Tensor, Tensor | None]:
    """Where copies do not count (`independent_rows`), the numbers of the rows that are no copies of others, and their weights, with those
    of their copies added; otherwise the numbers of all rows, and the weights as given.

    rows   of the whole data, without copies; in a sample of at most so many, copies are rare and stay. None where it is unknown
    """
    if rows is None or rows >= len(x) or independent_rows(lambda: [(x, y)], len(x)) == len(x):
        return torch.arange(len(x), device=x.device), row_weights
    one, _, weights = without_copies(x, y, row_weights)
    return one, weights


def distinct_columns(x: Tensor) -> int:
    """The number of columns of x (n, p) that vary, without copies of others; at least 1."""
    columns = x[:, x.amin(0) < x.amax(0)].T
    return max(1, len(torch.unique(_all_hashes(lambda: [columns]))))


def _all_hashes(parts: Callable[[], Iterable[Tensor]]) -> Tensor:
    """One integer for each row, equal for equal rows: of some of its columns, which takes a fraction of the time, and of all of them where
    another row has the same in these."""
    some = [_hashes(_some_columns(rows), 2) for rows in parts()]
    found = torch.cat(some)
    _, group, counts = torch.unique(found, return_inverse=True, return_counts=True)
    shared = counts[group] > 1
    if bool(shared.any()):
        masks = torch.split(shared, [len(each) for each in some])
        found[shared] = torch.cat([_hashes(rows[mask], 0) for rows, mask in zip(parts(), masks, strict=True)])
    return found


def _some_columns(rows: Tensor) -> Tensor:
    rows = rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)
    return rows[:, :: max(1, rows.shape[1] // _COLUMNS)]


def _hashes(rows: Tensor, seed: int) -> Tensor:
    """One integer for each row, equal for equal rows: the sum of the bits of its entries, as integers, times random odd numbers. The
    upper bits, the only ones of small whole numbers, are added to the lower ones first: a product carries upward only."""
    rows = rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)
    bits = (rows.double() + 0.0).view(torch.int64)  # -0.0 + 0.0 is 0.0
    odd = torch.randint(1 << 62, (rows.shape[1],), generator=torch.Generator().manual_seed(seed)) * 2 + 1
    mixed = (bits ^ (bits >> 29)) * odd.to(bits.device)
    return (mixed ^ (mixed >> 29)).sum(1)
