"""Windows of the channels of an image or a sequence, whose entries are the flattened pre-activations of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Self

from torch import Tensor

from liftednn.base import Activation

__all__ = ["Windowed"]


class Windowed(Activation):
    """One state for each window of each channel, in torch's order: channels, then rows, then columns.

    shape         (channels, height, width), or (channels, length), of one sample's pre-activations; -1 for any number of channels
    kernel_size   the size of a window, one number or one for each dimension
    stride        from one window to the next; None for `kernel_size`. Entries at the end that fill no window are left out, as in torch
    """

    shape: tuple[int, ...]
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None

    def __post_init__(self) -> None:
        for name in ("shape", "kernel_size", "stride"):
            if isinstance(given := getattr(self, name), Sequence):
                object.__setattr__(self, name, tuple(given))
        sizes = self.shape[1:]
        if len(self.shape) not in (2, 3) or min(sizes) < 1 or (self.shape[0] < 1 and self.shape[0] != -1):
            raise ValueError(
                f"shape must be (channels, height, width) or (channels, length), with -1 for any number of channels, got {self.shape}"
            )
        for name, each in (("kernel_size", self._kernel), ("stride", self._step)):
            if len(each) != len(sizes) or min(each) < 1:
                raise ValueError(
                    f"{name} must be a positive number, or one for each of {sizes}, got {getattr(self, name)}"
                )
        if any(kernel > size for kernel, size in zip(self._kernel, sizes, strict=True)):
            raise ValueError(
                f"a window of {self._kernel} does not fit into {sizes}: give a kernel_size that is no larger"
            )

    @property
    def _kernel(self) -> tuple[int, ...]:
        return self._each(self.kernel_size)

    @property
    def _step(self) -> tuple[int, ...]:
        return self._kernel if self.stride is None else self._each(self.stride)

    def _each(self, size: int | tuple[int, ...]) -> tuple[int, ...]:
        return (size,) * (len(self.shape) - 1) if isinstance(size, int) else size

    @property
    def _counts(self) -> tuple[int, ...]:
        """The number of windows in each dimension."""
        given = zip(self.shape[1:], self._kernel, self._step, strict=True)
        return tuple((size - kernel) // step + 1 for size, kernel, step in given)

    def _channels(self, entries: int, sizes: tuple[int, ...]) -> int:
        """The number of channels among so many entries, each channel of these sizes."""
        channels, rest = divmod(entries, math.prod(sizes))
        if rest or self.shape[0] not in (-1, channels):
            raise ValueError(
                f"{self!r} makes {self._counts} states of every channel of {self.shape[1:]} pre-activations, and {entries} entries are not "
                f"{'channels' if self.shape[0] < 0 else f'{self.shape[0]} channels'} of {sizes}: give the shape of the operator's output"
            )
        return channels

    def _image(self, u: Tensor) -> Tensor:
        """u as images of one channel each, (n channels, height, width)."""
        self._channels(u.shape[-1], self.shape[1:])
        return u.reshape(-1, *self.shape[1:])

    def _slices(self, image: Tensor, axis: int) -> list[Tensor]:
        """Views of the first, second, ... entries of all windows along one axis; axis 0 is that of channels."""
        step, count = self._step[axis - 1], self._counts[axis - 1]
        before = (slice(None),) * axis
        return [image[(*before, slice(i, i + step * (count - 1) + 1, step))] for i in range(self._kernel[axis - 1])]

    def _reduced(self, u: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The entries of every window combined, (n, p) -> (n, width), along one axis after the other, which takes fewer operations than all
        at once; along columns last, whose entries lie apart in memory."""
        image = self._image(u)
        for axis in range(1, image.ndim):
            image = reduce(combine, self._slices(image, axis))
        return image.reshape(*u.shape[:-1], -1)

    def restrict(self, units: Tensor) -> Self:
        """For whole channels."""
        channels = -1 if self.shape[0] < 0 else len(units) // math.prod(self.shape[1:])
        return replace(self, shape=(channels, *self.shape[1:]))  # type: ignore[type-var]

    def width(self, p: int) -> int:
        return self._channels(p, self.shape[1:]) * math.prod(self._counts)

    def preactivation_width(self, width: int) -> int:
        return self._channels(width, self._counts) * math.prod(self.shape[1:])

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        channels = self._channels(math.prod(shape), self.shape[1:])
        if len(shape) > 1 and shape != (channels, *self.shape[1:]):
            raise ValueError(
                f"{self!r} follows an operator whose output has shape {shape}: give shape={shape}, channels first"
            )
        return (channels, *self._counts)
