"""One thread for small work: more are no faster there, and how many there are decides how sums are rounded.

Training amplifies rounding: after some passes, two runs that differ in their last bits give different scores. Runs of one seed therefore
agree bit by bit only with one number of threads; small ones, with any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """With `small`, torch has one thread within; then as many as before."""
    before = torch.get_num_threads()
    if not small or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
