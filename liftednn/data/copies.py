"""How many rows tell something new: copies of a row do not, whether they are repeated or a weight says so.

Equal inputs may occur many times by themselves, in columns with few values. Then some of them have different responses, and every row
counts; if equal inputs always have equal responses, only the different ones do.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["distinct_columns", "independent_rows"]

_MOST = 100_000


def independent_rows(parts: Iterable[tuple[Tensor, Tensor]], rows: int, total: int) -> int:
    """The number of different rows if equal inputs always have equal responses, otherwise `total`, the number of rows or the sum of their
    weights. Not counted where there are very many: then it makes no difference.

    parts   of the rows (n, p) and responses, (n,) or (n, q)
    """
    if rows > _MOST:
        return total
    hashed = [(_hashes(x, 0), _hashes(y, 1)) for x, y in parts]
    x, y = (torch.cat(each) for each in zip(*hashed, strict=True))  # x + 3 y is as good a hash of both
    inputs = len(torch.unique(x))
    pairs = inputs if inputs == len(x) else len(torch.unique(x + 3 * y))
    return inputs if pairs == inputs else total


def distinct_columns(x: Tensor) -> int:
    """The number of columns of x (n, p) that vary, without copies of others; at least 1."""
    varies = x.amin(0) < x.amax(0)
    return max(1, len(torch.unique(_hashes(x[:, varies].T, 0))))


def _hashes(rows: Tensor, seed: int) -> Tensor:
    """One integer for each row, equal for equal rows: the sum of the bits of its entries, as integers, times random odd numbers."""
    rows = rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)
    bits = (rows.double() + 0.0).view(torch.int64)  # -0.0 + 0.0 is 0.0
    odd = torch.randint(1 << 62, (rows.shape[1],), generator=torch.Generator().manual_seed(seed)) * 2 + 1
    mixed = bits * odd.to(bits.device)
    return (mixed ^ (mixed >> 29)).sum(1)
