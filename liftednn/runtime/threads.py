"""One thread for small problems: more are no faster there, and their number changes how sums are rounded.

Training amplifies rounding: after some passes, two runs that differ in their last bits give different scores. Runs of one seed therefore
agree bit by bit only with the same number of threads; small ones always do.

On ARM processors torch gives some products of float32 to oneDNN, which keeps its own number of threads and takes longer than torch
itself, several times as long for small matrices: it is not used for small problems there, nor for the steps of networks whose layers are
dense, or convolutions of images without groups, strides and dilations.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch

from liftednn.runtime.process import Setting

__all__ = ["one_thread", "without_onednn"]

_ARM = platform.machine().lower() in ("aarch64", "arm64")


P = ParamSpec("P")
R = TypeVar("R")


def _use_onednn(used: bool) -> None:
    cast(Any, torch.backends.mkldnn).enabled = used


_ONE_THREAD = Setting(torch.get_num_threads, torch.set_num_threads, 1, by_thread=True)
_NO_ONEDNN = Setting(lambda: cast(Any, torch.backends.mkldnn).enabled, _use_onednn, False)


def without_onednn(function: Callable[P, R]) -> Callable[P, R]:
    """The function itself; on ARM without oneDNN inside, which some convolutions need and dense layers do not."""
    if not _ARM:
        return function

    @wraps(function)
    def without(*args: P.args, **kwargs: P.kwargs) -> R:
        with _NO_ONEDNN.changed():
            return function(*args, **kwargs)

    return without


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """With `small`, torch has one thread inside the block, and as many as before after it."""
    if not small:
        yield
        return
    with _ONE_THREAD.changed(), _NO_ONEDNN.changed() if _ARM else nullcontext():
        yield
