"""The arithmetic of training and prediction: without gradients, and in the precision of the data, even under autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

__all__ = ["plain_arithmetic"]

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
