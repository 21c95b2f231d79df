"""What makes a pass of mini-batch training faster on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from liftednn.base import Operator
from liftednn.network import LiftedNetwork
from liftednn.operators import Composed, Conv2d, Sum
from liftednn.runtime.threads import without_onednn

__all__ = ["fast_on_cpu"]

P = ParamSpec("P")
R = TypeVar("R")


def fast_on_cpu(train: Callable[P, R], network: LiftedNetwork, inner: LiftedNetwork, in_memory: bool) -> Callable[P, R]:
    """The function that trains a pass, without oneDNN where that is faster (runtime/threads.py), and without what torch records for
    autograd: operations on small tensors take a sixth less time.

    inner       the network in the coordinates of training
    in_memory   whether all rows are tensors, so that no code of a user's runs
    """
    if all(_fast_without_onednn(layer.operator) for layer in network.layers):
        train = without_onednn(train)
    return torch.inference_mode()(train) if in_memory and all(map(_own, inner.layers)) else train


def _own(part: object) -> bool:
    """Whether a part of a network, and all that it is made of, belongs to this package: a user's own may use autograd."""
    if isinstance(part, tuple):
        return all(map(_own, part))
    if part is None or isinstance(part, (Tensor, Real, str)):
        return True
    return type(part).__module__.startswith("liftednn.") and all(map(_own, vars(part).values()))


def _fast_without_onednn(operator: Operator) -> bool:
    """Whether it is a dense layer, or a convolution of images without groups, strides and dilations (runtime/threads.py)."""
    while isinstance(operator, (Composed, Sum)):
        operator = operator.operator
    return operator.positions == 1 or (isinstance(operator, Conv2d) and operator.unit_steps and not operator.grouped)
