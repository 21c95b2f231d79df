"""One thread for small problems: more are no faster there, and their number changes how sums are rounded.

Training amplifies rounding: after some passes, two runs that differ in their last bits give different scores. Runs of one seed therefore
agree bit by bit only with the same number of threads; small ones always do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """With `small`, torch has one thread inside the block, and as many as before after it."""
    before = torch.get_num_threads()
    if not small or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
