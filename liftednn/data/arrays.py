"""Arrays of any library as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

__all__ = ["as_columns", "as_tensor"]


def as_tensor(given: Any, name: str) -> Tensor:
    """Any array of numbers as a tensor, of any memory layout; also a pandas table of numbers."""
    if hasattr(given, "toarray"):
        raise ValueError(f"{name} is a sparse matrix, and training needs all its entries: give {name}.toarray()")
    try:
        given = given.to_numpy() if hasattr(given, "to_numpy") else given
        if np.ma.is_masked(given):
            raise ValueError("some entries are masked")
        given = _native(given) if isinstance(given, np.ndarray) else given
        found = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{name} cannot be read as numbers ({error}): give a tensor or an array of numbers, and labels as integers"
        ) from error
    _check_plain(found, name)
    return found


def as_columns(y: Tensor) -> Tensor:
    """Encoded responses, (n,) of labels or (n,) or (n, q) of numbers, as columns: of labels an indicator for each."""
    return y.reshape(len(y), -1) if y.is_floating_point() else one_hot(y.long())


def _native(given: NDArray[Any]) -> NDArray[Any]:
    """The array if torch can share its memory (native byte order, contiguous, writeable), otherwise a copy."""
    if given.dtype.kind not in "biufc":
        raise ValueError(f"its entries are of type {given.dtype}")
    shared = np.require(given, given.dtype.newbyteorder("="), ["C_CONTIGUOUS", "WRITEABLE"])
    return shared.copy() if min(shared.strides, default=0) < 0 else shared  # a single row is contiguous in any layout


def _check_plain(x: Tensor, name: str) -> None:
    """Refuse tensors that are not dense, real and in memory."""
    if x.layout != torch.strided or x.is_nested:
        raise ValueError(f"{name} is a sparse or nested tensor, and training needs all entries: give {name}.to_dense()")
    if x.is_complex() or x.is_quantized:
        raise ValueError(f"{name} holds {x.dtype}, and training needs real numbers: give float32 or float64")
    if x.is_meta:
        raise ValueError(f"{name} is on the meta device, where it has no values: give it on the CPU or a GPU")
