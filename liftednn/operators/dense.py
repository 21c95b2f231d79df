"""The fully connected layer (eq. 1 and 2): u = x w' + b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from liftednn.base import Affine, Operator, SelfAdjoint
from liftednn.checks import check_count

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense(Operator):
    """A(x; w, b) = x w' + b, x (n, in_features) -> (n, out_features). With bias=False, b stays 0.

    >>> weights = lnn.Affine(torch.ones(2, 3), torch.zeros(2))  # w (out_features, in_features), b (out_features,)
    >>> lnn.operators.Dense(3, 2).forward([torch.ones(1, 3)], weights).tolist()
    [[3.0, 3.0]]
    """

    in_features: int = 1
    out_features: int = 1
    bias: bool = True

    plain = True

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), least=1))

    in_shapes = property(lambda self: ((self.in_features,),))
    out_shape = property(lambda self: (self.out_features,))
    out_width = property(lambda self: self.out_features)
    positions = property(lambda self: 1)

    @property
    def weight_shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        return xs[0]

    def forward(self, xs: Sequence[Tensor], weights: Affine) -> Tensor:
        return linear(xs[0], weights.w, weights.b)

    def weight_gradient(self, xs: Sequence[Tensor], u_gradient: Tensor) -> Tensor:
        return u_gradient.t().mm(xs[0])

    def bias_gradient(self, u_gradient: Tensor) -> Tensor:
        return u_gradient.sum(0)

    def adjoint(self, r: Tensor, weights: Affine, index: int = 0) -> Tensor:
        return r.mm(weights.w)

    def normal(self, weights: Affine, index: int = 0) -> SelfAdjoint:
        w = weights.w
        return SelfAdjoint(self.in_features, lambda x: (x @ w.T) @ w, lambda: w.T @ w)

    def norm(self, weights: Affine, index: int = 0) -> float:
        w = weights.w.double()
        small = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
        return float(torch.linalg.eigvalsh(small)[-1].clamp(min=0).sqrt())

    def resized(self, inputs: int, outputs: int) -> Self:
        return replace(self, in_features=inputs, out_features=outputs)
