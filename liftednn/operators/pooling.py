"""Average pooling: a linear map without weights and without a state, composed with the operator that reads the pooled state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as fn
from torch import Tensor

from liftednn.base import Affine, Operator
from liftednn.operators.convolution import Conv2d, Sizes, as_sizes, one_each

__all__ = ["AvgPool1d", "AvgPool2d", "Composed", "Pooling"]

# Up to this many inputs the norm of a composed operator is exact, beyond it is at most the product of the two norms.
_EXACT = 512


@dataclass(frozen=True)
class Pooling:
    """Means over windows of the last dimensions of samples (channels, ...), for any number of dimensions."""

    _dimensions: ClassVar[int] = 1
    kernel_size: Sizes = 2
    stride: Sizes | None = None
    padding: Sizes = 0

    def __post_init__(self) -> None:
        """Sequences become tuples of ints, so that equal poolings compare as equal; impossible arguments are refused."""
        for name in ("kernel_size", "stride", "padding"):
            object.__setattr__(self, name, as_sizes(getattr(self, name)))
        if any(2 * p > k for k, _, p in self._sizes()):
            raise ValueError(f"padding is at most half of kernel_size {self.kernel_size}, got {self.padding}")

    def _sizes(self) -> list[tuple[int, int, int]]:
        """Window, stride and padding of every dimension."""
        stride = self.kernel_size if self.stride is None else self.stride
        given = ((self.kernel_size, "kernel_size", 1), (stride, "stride", 1), (self.padding, "padding", 0))
        return list(zip(*(one_each(size, self._dimensions, name, least) for size, name, least in given), strict=True))

    def out_shape(self, in_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a pooled sample."""
        if len(in_shape) != self._dimensions + 1:
            raise ValueError(
                f"{self!r} takes samples of {self._dimensions + 1} dimensions, channels first, got {in_shape}"
            )
        sizes = zip(in_shape[1:], self._sizes(), strict=True)
        found = in_shape[0], *((n + 2 * p - k) // s + 1 for n, (k, s, p) in sizes)
        if min(found) < 1:
            raise ValueError(f"the windows of {self!r} do not fit in samples of {in_shape}: give a smaller kernel_size")
        return found

    def _as_images(self, in_shape: tuple[int, ...]) -> tuple[list[int], list[list[int]]]:
        """Height and width, and (window, stride, padding), of samples with two dimensions: of one are the rest."""
        ones = 2 - self._dimensions
        sizes = [(1, 1, 0)] * ones + self._sizes()
        return [1] * ones + list(in_shape[1:]), [list(each) for each in zip(*sizes, strict=True)]

    def forward(self, x: Tensor, in_shape: tuple[int, ...]) -> Tensor:
        """Samples (n, width) -> (n, pooled width)."""
        shape, (kernel, stride, padding) = self._as_images(in_shape)
        images = x.reshape(len(x), in_shape[0], *shape)
        return fn.avg_pool2d(images, kernel, stride, padding).reshape(len(x), -1)

    def adjoint(self, r: Tensor, in_shape: tuple[int, ...]) -> Tensor:
        """(n, pooled width) -> (n, width)."""
        shape, (kernel, stride, padding) = self._as_images(in_shape)
        pooled, _ = self._as_images(self.out_shape(in_shape))
        like = r.new_empty(1).expand(len(r), in_shape[0], *shape)  # of the result; its entries are not used
        images = r.reshape(len(r), in_shape[0], *pooled)
        back: Tensor = torch.ops.aten.avg_pool2d_backward(images, like, kernel, stride, padding, False, True, None)
        return back.reshape(len(r), -1)

    def norm(self, in_shape: tuple[int, ...]) -> float:
        """The spectral norm: the product of those of the pooling along each dimension."""
        found = 1.0
        for n, (k, s, p) in zip(in_shape[1:], self._sizes(), strict=True):
            windows = torch.eye(n + 2 * p, dtype=torch.float64).unfold(0, k, s).mean(-1)[:, p : p + n]
            found *= float(torch.linalg.matrix_norm(windows, 2))
        return found


@dataclass(frozen=True)
class AvgPool1d(Pooling):
    """Average pooling as in torch.nn.AvgPool1d, for samples (channels, length).

    kernel_size, stride, padding   as in torch.nn.AvgPool1d: stride=None is kernel_size, and zeros of the padding count

    >>> lnn.operators.AvgPool1d(2).forward(torch.tensor([[1.0, 3.0, 5.0, 7.0]]), in_shape=(1, 4)).tolist()
    [[2.0, 6.0]]
    """


@dataclass(frozen=True)
class AvgPool2d(Pooling):
    """Average pooling as in torch.nn.AvgPool2d, for samples (channels, height, width).

    kernel_size, stride, padding   as in torch.nn.AvgPool2d: stride=None is kernel_size, and zeros of the padding count

    >>> lnn.operators.AvgPool2d(2).out_shape((16, 28, 28))
    (16, 14, 14)
    """

    _dimensions: ClassVar[int] = 2


@dataclass(frozen=True)
class Composed(Operator):
    """A(x; w, b) = operator(pool(x); w, b): the layer reads a state and pools it first.

    operator   the operator with the weights; it reads one state, the pooled one
    pool       an AvgPool1d or AvgPool2d
    in_shape   shape of one sample before pooling

    >>> conv = lnn.operators.Conv2d((16, 14, 14), 32, kernel_size=3, padding=1)
    >>> operator = lnn.operators.Composed(conv, lnn.operators.AvgPool2d(2), in_shape=(16, 28, 28))
    >>> operator.in_shapes, operator.out_shape
    (((16, 28, 28),), (32, 14, 14))
    """

    operator: Operator = field(default_factory=Conv2d)
    pool: Pooling = field(default_factory=AvgPool2d)
    in_shape: tuple[int, ...] = (1, 8, 8)

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_shape", as_sizes(self.in_shape))
        pooled, shapes = self.pool.out_shape(self.in_shape), self.operator.in_shapes
        if len(shapes) != 1 or shapes[0] not in (pooled, (math.prod(pooled),)):
            raise ValueError(f"{self.pool!r} gives samples of {pooled}, which {self.operator!r} does not take")

    bias = property(lambda self: self.operator.bias)
    skips = property(lambda self: self.operator.skips)
    _formed = property(lambda self: self.operator._formed)
    in_shapes = property(lambda self: (self.in_shape,))
    out_shape = property(lambda self: self.operator.out_shape)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.operator.weight_shape

    resizable = property(lambda self: self.operator.resizable)

    def resized(self, inputs: int, outputs: int) -> Self:
        channels = self.in_shape[0] * inputs // self.weight_shape[-1]
        return replace(self, operator=self.operator.resized(inputs, outputs), in_shape=(channels, *self.in_shape[1:]))

    def _pooled(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [self.pool.forward(xs[0], self.in_shape)]

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        return self.operator.rows(self._pooled(xs))

    def by_group(self, xs: Sequence[Tensor]) -> list[tuple[Operator, list[Tensor]]] | None:
        return self.operator.by_group(self._pooled(xs))

    def targets(self, u: Tensor) -> Tensor:
        return self.operator.targets(u)

    def fold(self, targets: Tensor) -> Tensor:
        return self.operator.fold(targets)

    def offset(self, xs: Sequence[Tensor]) -> Tensor:
        return self.operator.offset(self._pooled(xs))

    def forward(self, xs: Sequence[Tensor], weights: Affine) -> Tensor:
        return self.operator.forward(self._pooled(xs), weights)

    def weight_gradient(self, xs: Sequence[Tensor], u_gradient: Tensor) -> Tensor:
        return self.operator.weight_gradient(self._pooled(xs), u_gradient)

    def bias_gradient(self, u_gradient: Tensor) -> Tensor:
        return self.operator.bias_gradient(u_gradient)

    def adjoint(self, r: Tensor, weights: Affine, index: int = 0) -> Tensor:
        return self.pool.adjoint(self.operator.adjoint(r, weights), self.in_shape)

    def norm(self, weights: Affine, index: int = 0) -> float:
        if self.in_widths[0] <= _EXACT:
            return super().norm(weights, index)
        return self.operator.norm(weights) * self.pool.norm(self.in_shape)
