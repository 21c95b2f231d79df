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
            for setting in _ROUNDING:
                stack.enter_context(setting.changed())
            return plain_arithmetic(function)(*args, **kwargs)

    return exact


def _setting(part: Any, name: str, exact: Any) -> Setting:
    return Setting(lambda: getattr(part, name), partial(setattr, part, name), exact)


def _rounding() -> list[Setting]:
    """Whether parts of torch may round the factors of products, to 10 bits or to fewer. Where torch has its newer names for this, the older
    ones cannot be read once a user has set those."""
    torch_s: Any = torch.backends
    if not hasattr(torch_s.cuda.matmul, "fp32_precision"):
        return [_setting(part, "allow_tf32", False) for part in (torch_s.cuda.matmul, torch_s.cudnn)]
    parts = (torch_s.cuda.matmul, torch_s.cudnn.conv, torch_s.mkldnn.matmul, torch_s.mkldnn.conv)
    return [_setting(part, "fp32_precision", "ieee") for part in parts]


_ROUNDING = _rounding()
