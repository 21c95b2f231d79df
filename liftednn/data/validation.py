"""Rows, responses, sample weights, networks and devices, checked before anything is trained."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.data.arrays import as_tensor
from liftednn.data.sources import check_weights
from liftednn.network import LiftedNetwork
from liftednn.runtime.memory import check_memory
from liftednn.solvers import select

__all__ = [
    "check_device",
    "check_exact",
    "check_network",
    "check_start",
    "check_trainable",
    "checked_row_weights",
    "inputs",
    "matrix_shapes",
    "responses",
]

# Rows whose squares are summed in the data's own precision, see moments.py.
_SUMMED = 8192


def check_trainable(network: LiftedNetwork) -> None:
    check_network(network)
    for number, layer in enumerate(network.layers):
        if layer.divergence.why_not_trainable:
            raise ValueError(f"layer {number}: {layer.divergence.why_not_trainable}")
        if network.connections.owners[number] < number and not layer.penalty.convex:
            raise ValueError(f"layer {number}: layers that share their w need a convex penalty, got {layer.penalty!r}")
        try:
            select(layer.divergence, layer.penalty)
        except ValueError as error:
            raise ValueError(f"layer {number}: {error}") from error


def check_exact(network: LiftedNetwork) -> None:
    """Refuse a network whose blocks are not convex."""
    for number, layer in enumerate(network.layers):
        if layer.divergence.why_not_exact:
            raise ValueError(f"layer {number}: {layer.divergence.why_not_exact}")


def check_network(network: object) -> None:
    if not isinstance(network, LiftedNetwork):
        raise ValueError(
            f"network must be a LiftedNetwork, got {type(network).__name__}: make one by LiftedNetwork.mlp or init.from_module"
        )


def inputs(network: LiftedNetwork, x: Any) -> Tensor:
    """Rows to train on, in float32 or float64."""
    check_network(network)
    rows = as_tensor(x, "x")
    wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.to(wide)
    rows = network.check_rows(rows, finite=False)
    if not _check_squares(rows, "x"):
        network.check_rows(rows)
    return rows


def _check_squares(x: Tensor, name: str) -> bool:
    """Refuse numbers so large that sums of their squares, as Gram matrices and losses are, overflow; whether all are finite, which is known
    then too. A GPU is waited for once."""
    largest = reduce.largest(x)
    if not math.isfinite(largest):
        return False
    if largest > math.sqrt(torch.finfo(x.dtype).max / (min(len(x), _SUMMED) * x.shape[1])):
        raise ValueError(
            f"{name} holds numbers as large as {largest:.3g}, and sums of their squares overflow in {x.dtype}: scale or standardise {name}"
        )
    return True


def matrix_shapes(network: LiftedNetwork) -> list[tuple[int, int]]:
    """(out, in) of every layer's regression."""
    operators = [layer.operator for layer in network.layers]
    return [(operator.outputs, operator.weight_shape[-1]) for operator in operators]


def check_start(network: LiftedNetwork, x: Tensor) -> None:
    """Refuse a run that cannot succeed: one that does not fit in memory, or whose inputs are 0 when squared."""
    check_memory(matrix_shapes(network), x)
    largest = reduce.largest(x)
    if 0 < largest < math.sqrt(torch.finfo(x.dtype).tiny):
        raise ValueError(
            f"x holds numbers of at most {largest:.3g}, whose squares are 0 in {x.dtype}: scale or standardise x"
        )


def responses(network: LiftedNetwork, y: Any, x: Tensor) -> Tensor:
    y = as_tensor(y, "y").to(x.device)
    y = y if y.is_floating_point() else y.long()
    if not y.ndim or len(y) != len(x):
        raise ValueError(f"x has {len(x)} rows and y has {len(y) if y.ndim else 'none'}: they must agree")
    if y.is_floating_point() and not bool(y.isfinite().all()):
        raise ValueError("y holds NaN or infinity: remove those rows first")
    encoded = network.loss.encode(y, network.layers[-1].operator.out_width)
    encoded = encoded.to(x.dtype)
    if y.is_floating_point() and not _check_squares(encoded, "y"):
        raise ValueError(f"y holds numbers that are infinite in {x.dtype}, the precision of x: scale or standardise y")
    return encoded


def checked_row_weights(sample_weight: Any, x: Tensor) -> Tensor | None:
    """The weight of each row of x, (n,), 1 on average; None where all have the same."""
    if sample_weight is None:
        return None
    row_weights = as_tensor(sample_weight, "sample_weight").to(x.device).double()
    check_weights(row_weights, len(x))
    return (row_weights / reduce.mean(row_weights)).to(x)


def check_device(device: object) -> None:
    """Refuse an unknown device, and a GPU where there is none, before anything is moved to it."""
    kind = str(device).partition(":")[0]
    if device is not None and kind not in ("cpu", "cuda", "mps", "xpu"):
        raise ValueError(f"there is no device {str(device)!r} to train on: give 'cpu' or 'cuda'")
    if kind in ("mps", "xpu") and not getattr(torch, kind).is_available():
        raise ValueError(f"device {str(device)!r} is not available here: give 'cpu'")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device {str(device)!r} needs a GPU and a torch built for it, and there is none here: give 'cpu'"
        )
