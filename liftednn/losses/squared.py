"""The squared loss (sec. 3): the divergence of the identity, with z fixed at the responses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.activations import Identity
from liftednn.base import Loss

__all__ = ["SquaredError"]


@dataclass(frozen=True)
class SquaredError(Loss):
    """L(y, u) = |u - y|^2; curvature 2, quadratic. Responses are real, (n,) or (n, p).

    >>> loss = lnn.losses.SquaredError()
    >>> loss.value(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]]))  # one number for each row
    tensor([5.])
    """

    curvature, quadratic, homogeneous, unitwise, invariant = 2.0, True, True, True, True
    classes, link = False, Identity()

    def __call__(self, u: Tensor) -> Tensor:
        return u

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u - z).square().sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return (u - z).mul_(2.0)  # 2, an integer, would take longer

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return (v + 2 * step * z) / (1 + 2 * step)

    def encode(self, y: Tensor, width: int) -> Tensor:
        return real_responses(y, width)

    def decode(self, u: Tensor) -> Tensor:
        return u

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return r_squared(u, y, row_weights)


def real_responses(y: Tensor, width: int) -> Tensor:
    """(n,) or (n, width) -> (n, width)."""
    columns = y[:, None] if y.ndim == 1 else y
    if columns.ndim != 2 or columns.shape[1] != width:
        raise ValueError(f"y has shape {tuple(y.shape)}, but the network has {width} outputs: give (n, {width})")
    return columns


def r_squared(u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
    """1 - residual / total sum of squares, in float64; 0 where the responses vary by no more than the rounding of their mean."""
    u, y, mean = u.double(), y.double(), reduce.mean(y, row_weights)
    if row_weights is not None:
        root = row_weights.double().sqrt()[:, None]
        u, y, mean = u * root, y * root, mean * root
    total, rounding = (
        reduce.distance(y, mean),
        4 * torch.finfo(y.dtype).eps * reduce.distance(y, torch.zeros_like(mean)),
    )
    return 1 - (reduce.distance(u, y) / total) ** 2 if total > rounding else 0.0
