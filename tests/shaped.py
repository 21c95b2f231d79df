"""Operators that only tests have: a 1x1 convolution with stride, one matrix on two halves, and a grouped layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import liftednn as lnn


@dataclass(frozen=True)
class Pointwise(lnn.Operator):
    """A 1x1 convolution with stride on (channels, size, size)."""

    channels: int = 2
    outputs_: int = 3
    size: int = 4
    stride: int = 2
    bias: bool = True

    in_shapes = property(lambda self: ((self.channels, self.size, self.size),))
    out_shape = property(lambda self: (self.outputs_, *[-(-self.size // self.stride)] * 2))
    weight_shape = property(lambda self: (self.outputs_, self.channels))

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        kept = xs[0].view(-1, *self.in_shapes[0])[:, :, :: self.stride, :: self.stride]
        return kept.flatten(2).transpose(1, 2).reshape(-1, self.channels)

    def adjoint(self, r: Tensor, weights: lnn.Affine, index: int = 0) -> Tensor:
        back = r.new_zeros(len(r), *self.in_shapes[0])
        shaped = r.view(len(r), *self.out_shape)
        back[:, :, :: self.stride, :: self.stride] = torch.einsum("nqij,qc->ncij", shaped, weights.w)
        return back.flatten(1)


@dataclass(frozen=True)
class Halves(lnn.Operator):
    """One matrix on both halves of its input: positions come first."""

    width: int = 4
    units: int = 3
    bias: bool = True

    in_shapes = property(lambda self: ((2, self.width),))
    out_shape = property(lambda self: (2, self.units))
    weight_shape = property(lambda self: (self.units, self.width))

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        return xs[0].reshape(-1, self.width)

    def targets(self, u: Tensor) -> Tensor:
        return u.reshape(-1, self.units)

    def fold(self, targets: Tensor) -> Tensor:
        return targets.reshape(-1, 2 * self.units)

    def adjoint(self, r: Tensor, weights: lnn.Affine, index: int = 0) -> Tensor:
        return (r.view(-1, self.units) @ weights.w).view(len(r), -1)


@dataclass(frozen=True)
class Grouped(lnn.Operator):
    """Groups of inputs, each with a matrix of its own."""

    groups: int = 2
    fan_in: int = 3
    units: int = 2
    bias: bool = True

    in_shapes = property(lambda self: ((self.groups * self.fan_in,),))
    out_shape = property(lambda self: (self.groups * self.units,))
    weight_shape = property(lambda self: (self.groups, self.units, self.fan_in))

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        return xs[0]

    def adjoint(self, r: Tensor, weights: lnn.Affine, index: int = 0) -> Tensor:
        return torch.einsum("ngq,gqp->ngp", r.view(len(r), self.groups, -1), weights.w).flatten(1)
