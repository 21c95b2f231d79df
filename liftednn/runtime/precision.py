"""The arithmetic of training and prediction: without gradients, and in the precision of the data, even under autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = ["exact_arithmetic", "plain_arithmetic"]

P = ParamSpec("P")
R = TypeVar("R")


def plain_arithmetic(function: Callable[P, R]) -> Callable[P, R]:
    """The function without gradients and without autocast, which would round every product to 16 bits."""

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return plain


def exact_arithmetic(function: Callable[P, R]) -> Callable[P, R]:
    """The same, with products of float32 in float32 on a GPU too: torch rounds those of convolutions to 10 bits unless told otherwise,
    and certificates rest on them."""

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        with _no_tf32():
            return plain_arithmetic(function)(*args, **kwargs)

    return exact


@contextmanager
def _no_tf32() -> Iterator[None]:
    kinds: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [kind.allow_tf32 for kind in kinds]
    try:
        for kind in kinds:
            kind.allow_tf32 = False
        yield
    finally:
        for kind, allowed in zip(kinds, before, strict=True):
            kind.allow_tf32 = allowed
