"""One thread for small problems: more are no faster there, and their number changes how sums are rounded.

Training amplifies rounding: after some passes, two runs that differ in their last bits give different scores. Runs of one seed therefore
agree bit by bit only with the same number of threads; small ones always do.

On ARM processors torch gives products of float32 to oneDNN, which keeps its own number of threads and takes several times as long as
torch itself for small matrices: it is not used for small problems there.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

__all__ = ["one_thread"]

_ARM = platform.machine().lower() in ("aarch64", "arm64")


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """With `small`, torch has one thread inside the block, and as many as before after it."""
    if not small:
        yield
        return
    threads, library = torch.get_num_threads(), cast(Any, torch.backends.mkldnn)
    used = library.enabled
    torch.set_num_threads(1)
    library.enabled = used and not _ARM
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        library.enabled = used
