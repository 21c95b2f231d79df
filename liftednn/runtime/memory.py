"""Whether a run fits in memory, by an estimate before anything is allocated; otherwise the system might kill the process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["check_memory", "needed", "total"]

# Training holds the weights, their velocity, the last good ones, a step, and two copies at the start.
_WEIGHTS = 6
# Each layer has the Gram matrix of its inputs and its inverse; while one is factored, there are three more. All are in float64 here.
_KEPT, _FACTORED = 2, 3
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_memory(shapes: Sequence[tuple[int, int]], like: Tensor, kept: int = 0) -> None:
    """Refuse weights of these shapes (out, in) where training them would need more memory than there is.

    like   gives the precision and the device
    kept   the number of entries of states that are kept
    """
    need, there = needed(shapes, like.element_size(), kept), total(like.device)
    if there is not None and need > there:
        sizes = "-".join(str(size) for size in (shapes[0][1], *(shape[0] for shape in shapes)))
        raise ValueError(
            f"layers of {sizes} would need about {_gigabytes(need)} of memory, and {like.device} has {_gigabytes(there)}: give smaller "
            "layers or fewer inputs; a layer needs memory for the square of its inputs"
        )


def needed(shapes: Sequence[tuple[int, int]], size: int, kept: int = 0) -> int:
    """About how many bytes training takes; `size` is that of a number."""
    weights = sum(out * (fan_in + 1) for out, fan_in in shapes)
    squares = [(fan_in + 1) ** 2 for _, fan_in in shapes]
    return size * (_WEIGHTS * weights + kept) + 8 * (_KEPT * sum(squares) + _FACTORED * max(squares))


def total(device: torch.device) -> int | None:
    """All the memory of a device in bytes, used or not; None where it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    if device.type != "cpu" or "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _GROUP_LIMIT.read_text().strip() if _GROUP_LIMIT.exists() else ""
    return min(machine, int(limit)) if limit.isdecimal() else machine


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e9:,.0f} GB"
