"""Convolutions: u = w * x + b on samples of shape (channels, length) or (channels, height, width).

The regression of the W-step has one row for each position of the output, the patch of the input that lies under the kernel there. Only
`rows` forms these patches; all other methods call torch's convolutions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as fn
from torch import Tensor

from liftednn.base import Affine, Operator
from liftednn.operators.spectrum import convolution_bound

__all__ = ["Conv1d", "Conv2d"]

# oneDNN fills channels up to blocks of this many, and the fraction of them from which another format is faster.
_BLOCK, _WASTE = 16, 0.2

Sizes = int | tuple[int, ...]


def one_each(given: Sizes, count: int, name: str, least: int) -> tuple[int, ...]:
    """`count` numbers, from one for all or one for each dimension."""
    found = as_sizes(given)
    found = (found,) * count if isinstance(found, int) else found
    if not isinstance(found, tuple) or len(found) != count or not all(type(n) is int and n >= least for n in found):
        raise ValueError(f"{name} must be a whole number of at least {least}, or {count} such numbers, got {given!r}")
    return found


def as_sizes(given: Any) -> Any:
    """A whole number of Python, numpy or torch as an int, a sequence of them as a tuple of ints; anything else as it is."""
    try:
        return operator.index(given)
    except TypeError:
        whole = isinstance(given, Iterable) and not isinstance(given, str)
    try:
        return tuple(operator.index(each) for each in given) if whole else given
    except TypeError:
        return given


@dataclass(frozen=True)
class _Convolution(Operator):
    """The implementation for any number of dimensions, that of `in_shape` less one."""

    _dimensions: ClassVar[int] = 1
    in_shape: tuple[int, ...] = (1, 4)
    out_channels: int = 1
    kernel_size: Sizes = 3
    stride: Sizes = 1
    padding: Sizes = 0
    dilation: Sizes = 1
    groups: int = 1
    bias: bool = True
    padding_mode: Literal["zeros", "circular"] = "zeros"

    _formed = 512  # beyond, two convolutions cost less than a product with the matrix A'A

    def __post_init__(self) -> None:
        """Sequences become tuples of ints, so that equal operators compare as equal; impossible arguments are refused."""
        for name in ("in_shape", "kernel_size", "stride", "padding", "dilation"):
            object.__setattr__(self, name, as_sizes(getattr(self, name)))
        for name in ("out_channels", "groups"):
            object.__setattr__(self, name, one_each(getattr(self, name), 1, name, 1)[0])
        shape, dimensions = self.in_shape, self._dimensions
        if (
            not isinstance(shape, tuple)
            or len(shape) != dimensions + 1
            or not all(type(n) is int and n > 0 for n in shape)
        ):
            raise ValueError(f"in_shape must be {dimensions + 1} positive numbers, channels first, got {shape!r}")
        if self.groups < 1 or self.in_shape[0] % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"groups must divide the channels before and after, {self.in_shape[0]} and {self.out_channels}, got {self.groups}"
            )
        if self.padding_mode not in ("zeros", "circular"):
            raise ValueError(f"padding_mode must be 'zeros' or 'circular', got {self.padding_mode!r}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.padding_mode == "circular" and any(
            p > n for p, n in zip(self._padding, self.in_shape[1:], strict=True)
        ):
            raise ValueError(f"circular padding is at most the size of a sample {self.in_shape}, got {self.padding}")
        if min(self.out_shape) < 1:
            raise ValueError(
                f"a kernel of {self._reach} entries with dilation does not fit in samples of {self.in_shape} with padding "
                f"{self.padding}: give a smaller kernel or more padding"
            )

    def _each(self, name: str, least: int = 1) -> tuple[int, ...]:
        return one_each(getattr(self, name), self._dimensions, name, least)

    _kernel = property(lambda self: self._each("kernel_size"))
    _stride = property(lambda self: self._each("stride"))
    _padding = property(lambda self: self._each("padding", 0))
    _dilation = property(lambda self: self._each("dilation"))

    @property
    def unit_steps(self) -> bool:
        """Whether there are no strides and no dilations."""
        return {*self._stride, *self._dilation} == {1}

    @property
    def _reach(self) -> tuple[int, ...]:
        """Entries from the first to the last that a kernel reads, in each dimension."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self._kernel, self._dilation, strict=True))

    @property
    def _padded(self) -> tuple[int, ...]:
        return tuple(n + 2 * p for n, p in zip(self.in_shape[1:], self._padding, strict=True))

    in_shapes = property(lambda self: (self.in_shape,))

    @property
    def out_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        sizes = zip(self._padded, self._reach, self._stride, strict=True)
        return self.out_channels, *((n - reach) // s + 1 for n, reach, s in sizes)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        fan_in = self.in_shape[0] // self.groups * math.prod(self._kernel)
        grouped = (self.groups, self.out_channels // self.groups, fan_in)
        return grouped if self.groups > 1 else grouped[1:]

    def _shaped(self, x: Tensor) -> Tensor:
        """A state (n, width) as (n, *in_shape), with circular padding where that is wanted."""
        x = x.reshape(len(x), *self.in_shape)
        if self.padding_mode == "zeros" or not any(self._padding):
            return x
        sides = [p for p in reversed(self._padding) for _ in range(2)]
        return fn.pad(x, sides, mode="circular")

    def _unpadded(self, x: Tensor) -> Tensor:
        """The adjoint of circular padding: what lies in the padding is added to the entries that it repeats."""
        if self.padding_mode == "zeros":
            return x
        for axis, p in enumerate(self._padding, start=2):
            if p:
                n = x.shape[axis] - 2 * p
                inner = x.narrow(axis, p, n).clone()
                inner.narrow(axis, n - p, p).add_(x.narrow(axis, 0, p))
                inner.narrow(axis, 0, p).add_(x.narrow(axis, p + n, p))
                x = inner
        return x

    def _kernels(self, w: Tensor) -> Tensor:
        """w in the shape of torch's convolutions."""
        return w.reshape(self.out_channels, self.in_shape[0] // self.groups, *self._kernel)

    @property
    def _zeros(self) -> list[int]:
        """The zeros that torch's convolution adds on every side."""
        return [0] * len(self._padding) if self.padding_mode == "circular" else list(self._padding)

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        x = self._shaped(xs[0])
        if any(self._zeros):
            x = fn.pad(x, [p for p in reversed(self._zeros) for _ in range(2)])
        x = x.contiguous()
        sample, channel, *steps = x.stride()
        size = (len(x), *self.out_shape[1:], self.in_shape[0], *self._kernel)
        apart = [step * s for step, s in zip(steps, self._stride, strict=True)]
        inside = [step * d for step, d in zip(steps, self._dilation, strict=True)]
        patches = x.as_strided(size, (sample, *apart, channel, *inside))
        return patches.reshape(len(x) * self.positions, -1)

    resizable = property(lambda self: self.groups == 1)

    def resized(self, inputs: int, outputs: int) -> Self:
        channels = inputs // math.prod(self._kernel)
        return replace(self, in_shape=(channels, *self.in_shape[1:]), out_channels=outputs)

    def by_group(self, xs: Sequence[Tensor]) -> list[tuple[Operator, list[Tensor]]]:
        channels, *sizes = self.in_shape
        shape, count = (channels // self.groups, *sizes), self.out_channels // self.groups
        part = replace(self, in_shape=shape, out_channels=count, groups=1)
        return [(part, [x]) for x in torch.split(xs[0], math.prod(shape), 1)]

    def _arranged(self, *images: Tensor) -> list[Tensor]:
        """Images in the memory format in which torch's convolution and its gradient in the kernels are fastest; not for `adjoint`.

        On a CPU oneDNN fills channels up to blocks of 16, unless they are the last dimension; changing the format takes time too.
        """
        channels, image = self.in_shape[0], images[0]
        onednn = (
            cast(Any, torch.backends.mkldnn).enabled and image.device.type == "cpu" and image.dtype == torch.float32
        )
        wasted = channels > _BLOCK and -channels % _BLOCK >= _WASTE * channels
        if not (onednn and wasted and self.groups == 1 and self._dimensions == 2):
            return list(images)
        # The memory format by name is unknown to torch.func.vmap.
        return [image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for image in images]

    def forward(self, xs: Sequence[Tensor], weights: Affine) -> Tensor:
        x, kernels = self._arranged(self._shaped(xs[0]), self._kernels(weights.w))
        none = [0] * len(self._kernel)
        u = torch.convolution(
            x, kernels, weights.b, self._stride, self._zeros, self._dilation, False, none, self.groups
        )
        return u.reshape(len(u), -1)

    def adjoint(self, r: Tensor, weights: Affine, index: int = 0) -> Tensor:
        size = self._padded if self.padding_mode == "circular" else self.in_shape[1:]
        shape = r.new_empty(1).expand(len(r), self.in_shape[0], *size)  # of the gradient; its entries are not used
        r = r.reshape(len(r), *self.out_shape)
        back = self._backward(r, shape, self._kernels(weights.w), (True, False))[0]
        return self._unpadded(back).reshape(len(r), -1)

    def weight_gradient(self, xs: Sequence[Tensor], u_gradient: Tensor) -> Tensor:
        shape = self._kernels(u_gradient.new_empty(1).expand(self.weight_shape))
        x, r = self._arranged(self._shaped(xs[0]), u_gradient.reshape(len(u_gradient), *self.out_shape))
        found = self._backward(r, x, shape, (False, True))[1]
        return found.reshape(self.weight_shape)

    def bias_gradient(self, u_gradient: Tensor) -> Tensor:
        return u_gradient.view(len(u_gradient), self.out_channels, -1).sum((0, 2))

    def _backward(self, r: Tensor, x: Tensor, kernels: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        """Gradients of <u, r> in the input and in the kernels."""
        sizes = (self._stride, self._zeros, self._dilation)
        found = torch.ops.aten.convolution_backward(
            r,
            x,
            kernels,
            None,
            *sizes,
            False,
            [0] * len(self._kernel),
            self.groups,
            [*wanted, False],
        )
        return found[0], found[1]

    def norm(self, weights: Affine, index: int = 0) -> float:
        return super().norm(weights, index) if self.in_widths[0] <= self._formed else self._bound(weights)

    def _bound(self, weights: Affine) -> float:
        """The norm of the same convolution on a torus that holds the padded sample; with circular padding, of the sample itself, times the
        root of how often an output is repeated."""
        kernels = self._kernels(weights.w.double())
        groups, repeats = kernels.view(self.groups, -1, *kernels.shape[1:]), 1
        sizes, strides = list(self._padded), list(self._stride)
        if self.padding_mode == "circular":
            for axis, (n, reach, s) in enumerate(zip(self.in_shape[1:], self._reach, self._stride, strict=True)):
                strides[axis] = s if n % s == 0 else 1  # fewer outputs do not raise the norm
                repeats *= -(-(self._padded[axis] - reach + 1) // n)
                sizes[axis] = n
        bounds = [convolution_bound(group, sizes, strides, self._dilation) for group in groups]
        return max(bounds) * math.sqrt(repeats)


@dataclass(frozen=True)
class Conv1d(_Convolution):
    """The convolution of torch.nn.Conv1d as an operator, x (n, channels * length) -> (n, out_channels * positions).

    in_shape       shape of one sample, (channels, length)
    out_channels, kernel_size, stride, padding, dilation, groups, bias
                   as in torch.nn.Conv1d; `padding` is a number
    padding_mode   "zeros" or "circular"

    w is (out_channels, channels * kernel_size), torch's weight flattened, or (groups, out_channels / groups, ...) with several groups.

    >>> weights = lnn.Affine(torch.ones(1, 3), torch.zeros(1))
    >>> lnn.operators.Conv1d((1, 4), 1, 3, padding=1).forward([torch.ones(1, 4)], weights).tolist()
    [[2.0, 3.0, 3.0, 2.0]]
    """


@dataclass(frozen=True)
class Conv2d(_Convolution):
    """The convolution of torch.nn.Conv2d as an operator, x (n, channels * height * width) -> (n, out_channels * positions).

    in_shape       shape of one sample, (channels, height, width)
    out_channels, kernel_size, stride, padding, dilation, groups, bias
                   as in torch.nn.Conv2d; sizes are one number, or a pair
    padding_mode   "zeros" or "circular"

    w is (out_channels, channels * kernel height * kernel width), torch's weight flattened, or (groups, out_channels / groups, ...) with
    several groups.

    >>> operator = lnn.operators.Conv2d((3, 8, 8), 16, kernel_size=3, padding=1)
    >>> operator.out_shape, operator.weight_shape
    ((16, 8, 8), (16, 27))
    """

    _dimensions: ClassVar[int] = 2
    in_shape: tuple[int, ...] = (1, 4, 4)
