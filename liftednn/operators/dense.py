"""The fully connected layer (eq. 1 and 2): u = x w' + b."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn.base import Affine, Operator

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense(Operator):
    """A(x; w, b) = x w' + b, x (n, in_features) -> (n, out_features). With bias=False, b stays 0."""

    in_features: int = 1
    out_features: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        if min(self.in_features, self.out_features) < 1:
            raise ValueError(
                f"a dense layer needs at least 1 input and 1 output, got {self.in_features} and {self.out_features}"
            )

    in_width = property(lambda self: self.in_features)
    out_width = property(lambda self: self.out_features)

    @property
    def weight_shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    def forward(self, x: Tensor, weights: Affine) -> Tensor:
        return torch.addmm(weights.b, x, weights.w.T)

    def adjoint(self, r: Tensor, weights: Affine) -> Tensor:
        return r @ weights.w

    def unfold(self, x: Tensor) -> Tensor:
        return x

    def gram(self, weights: Affine) -> Tensor:
        return weights.w.T @ weights.w

    def norm(self, weights: Affine) -> float:
        w = weights.w.double()
        small = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
        return float(torch.linalg.eigvalsh(small)[-1].clamp(min=0).sqrt())
