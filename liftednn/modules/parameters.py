"""Checks that parameters can be those of a lifted layer: real, and not overlapping in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from liftednn.modules.calls import Step, unsupported

__all__ = ["check_parameters"]

_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_parameters(step: Step, parts: Sequence[Tensor], seen: Sequence[Tensor]) -> None:
    """A parameter may be used again, but must not share memory with another one."""
    for part in parts:
        if part.dtype not in _REAL:
            raise unsupported(
                step, f"has weights of {part.dtype}: convert it to float32 or float64, or to a 16-bit float"
            )
        if part.layout != torch.strided or any(
            n > 1 and not stride for n, stride in zip(part.shape, part.stride(), strict=True)
        ):
            raise unsupported(step, "has weights that are sparse or expanded, so that some share memory: copy them")
        if any(part is not other and _overlap(part, other) for other in seen):
            raise unsupported(
                step,
                "has weights that share memory with another parameter: to share them, use one and the same parameter in both layers, "
                "otherwise copy them",
            )


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two parameters share memory, as a transposed view does; neighbouring slices of one vector do not."""
    if a.is_meta or b.is_meta or a.device != b.device or not a.numel() or not b.numel():
        return False
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(x: Tensor) -> int:
    """The address after the last entry."""
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.element_size()
