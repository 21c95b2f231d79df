"""The arithmetic of training and prediction: without gradients, and in the precision of the data, even under autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from liftednn.runtime.process import Setting

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
        with ExitStack() as stack:
            for setting in _TF32:
                stack.enter_context(setting.changed())
            return plain_arithmetic(function)(*args, **kwargs)

    return exact


def _tf32_of(kind: Any) -> Setting:
    """Whether a part of torch may round the factors of products to 10 bits."""
    return Setting(lambda: kind.allow_tf32, partial(setattr, kind, "allow_tf32"), False)


_TF32 = [_tf32_of(kind) for kind in (torch.backends.cuda.matmul, torch.backends.cudnn)]
