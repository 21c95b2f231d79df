"""Max-pooling for mini-batches: any increasing activation of the largest pre-activation in each window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as fn
from torch import Tensor

from liftednn.activations.clips import FenchelReLU
from liftednn.activations.fenchel import Fenchel
from liftednn.activations.windows import Windowed
from liftednn.base import Activation, Box, LayerXStep

__all__ = ["Pooled"]


@dataclass(frozen=True)
class Pooled(Windowed):
    """phi(u) = activation(m(u)), m(u) the largest entry of u in every window;  D(u, z) = D_activation(m(u), z).

    As phi is increasing, this is also max-pooling after the activation. D is the activation's divergence of the entries that m selects; its
    curvature, for the selection at u (on a batch the one that the forward pass made), is that of the activation times the number of
    windows that an entry may be in. Since the selection depends on u, D is not convex in u, so this is for mini-batches (`MiniBatch`);
    exact blocks (`BCD`) have `MaxPoolReLU`.

    activation    with a Fenchel divergence that acts on every unit alone and alike, such as FenchelReLU() or Tanh(); its own parameters
                  are not learned. FenchelClip(-math.inf, math.inf) is the identity
    shape         (channels, height, width), or (channels, length), of one sample's pre-activations; -1 for any number of channels
    kernel_size   the size of a window, one number or one for each dimension
    stride        from one window to the next; None for `kernel_size`. Entries at the end that fill no window are left out, as in torch

    >>> pooled = lnn.activations.Pooled(lnn.activations.FenchelReLU(), shape=(1, 2, 4), kernel_size=2)
    >>> pooled(torch.tensor([[1.0, 3.0, -5.0, -2.0, 0.0, 2.0, -4.0, -3.0]])).tolist()
    [[3.0, 0.0]]
    """

    activation: Activation = field(default_factory=FenchelReLU)
    shape: tuple[int, ...] = (-1, 2, 2)
    kernel_size: int | tuple[int, ...] = 2
    stride: int | tuple[int, ...] | None = None
    joint = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.activation, Fenchel) or not self.activation.uniform:
            raise ValueError(
                f"Pooled needs an activation with a Fenchel divergence that acts on every unit alone and alike, got {self.activation!r}: "
                "use its Fenchel form, with one parameter for all units"
            )

    curvature = property(lambda self: self._overlap * self.activation.curvature)
    boxed = property(lambda self: self.activation.boxed)
    homogeneous = property(lambda self: self.activation.homogeneous)
    why_not_trainable = property(lambda self: self.activation.why_not_trainable)

    @property
    def why_not_exact(self) -> str:
        return (
            f"{self!r} is not convex in the pre-activations, so its blocks cannot be minimised exactly: train by MiniBatch, or use "
            "activations.MaxPoolReLU(shape, kernel_size), which is"
        )

    @property
    def _overlap(self) -> int:
        """The most windows that an entry may be in."""
        given = zip(self._kernel, self._step, self._counts, strict=True)
        return math.prod(min(-(-kernel // step), count) for kernel, step, count in given)

    def _max(self, u: Tensor) -> Tensor:
        if u.is_cuda:
            return fn.max_pool2d(self._flat(u), *self._flat_windows()).reshape(*u.shape[:-1], -1)
        return self._reduced(u, torch.maximum)

    def _flat(self, u: Tensor) -> Tensor:
        """u as two-dimensional images of one channel each; a sequence has one row."""
        image = self._image(u)
        return image if image.ndim == 3 else image[:, None]

    def _flat_windows(self) -> tuple[list[int], list[int]]:
        """Kernel and stride for the images of `_flat`."""
        rows = [1] * (3 - len(self.shape))
        return [*rows, *self._kernel], [*rows, *self._step]

    def _select(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The largest entry of every window, (n, width), and its place in its window along the last axis, then the one before; in windows
        of two, a positive number for the second one: comparisons, and products with their results, take several times as long on a CPU.

        Of equal finite entries the first of the first row, as in torch.
        """
        image, places = self._image(u), []
        for axis in range(image.ndim - 1, 0, -1):
            image, *others = self._slices(image, axis)
            if self._in_pairs(axis):
                places.append(others[0] - image)
                image = torch.maximum(image, others[0])
                continue
            place = None
            for number, other in enumerate(others, start=1):
                larger = other > image
                place = larger if place is None else torch.where(larger, number, place.to(torch.int16))
                image = torch.maximum(image, other)
            places.append(torch.zeros_like(image, dtype=torch.bool) if place is None else place)
        return image.reshape(len(u), -1), places

    def __call__(self, u: Tensor) -> Tensor:
        return self.activation(self._max(u))

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return self.activation.value(self._max(u), z)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        """The activation's gradient at the selected entries, summed where windows overlap; 0 at the others."""
        largest, spread = self._selected(u)
        return spread(self.activation.grad(largest, z))

    def phi_and_x_step(self, u: Tensor) -> tuple[Tensor, LayerXStep]:
        largest, spread = self._selected(u)
        phi, selected_step = self.activation.phi_and_x_step(largest)

        def x_step(g: Tensor, lam: float) -> tuple[Tensor, Tensor]:
            z, gradient = selected_step(g, lam)
            return z, spread(gradient)

        return phi, x_step

    def _selected(self, u: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The largest entry of every window, (n, width), and the function that puts numbers for these into their places in u."""
        if u.is_cuda:
            return self._selected_by_indices(u)
        largest, places = self._select(u)
        return largest, lambda part: self._spread(part.view_as(places[-1]), places).reshape(u.shape)

    def _selected_by_indices(self, u: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The same by torch's kernels, which are faster on a GPU and slower on a CPU."""
        image, (kernel, stride), none = self._flat(u), self._flat_windows(), [0, 0]
        largest, indices = torch.ops.aten.max_pool2d_with_indices(image, kernel, stride)
        backward = torch.ops.aten.max_pool2d_with_indices_backward

        def spread(part: Tensor) -> Tensor:
            back: Tensor = backward(part.view_as(largest), image, kernel, stride, none, [1, 1], False, indices)
            return back.reshape(u.shape)

        return largest.reshape(len(u), -1), spread

    def _in_pairs(self, axis: int) -> bool:
        """Whether windows along an axis have two entries, each in one window alone."""
        return self._kernel[axis - 1] == self._step[axis - 1] == 2

    def _spread(self, part: Tensor, places: Sequence[Tensor]) -> Tensor:
        """Numbers for the selected entries of every window, in an image."""
        for axis, place in enumerate(reversed(places), start=1):
            size, in_pairs = self.shape[axis], self._in_pairs(axis)
            new = part.new_empty if in_pairs and size % 2 == 0 else part.new_zeros
            wide = new(*part.shape[:axis], size, *part.shape[axis + 1 :])
            entries = self._slices(wide, axis)
            if in_pairs:
                second = torch.ops.aten.threshold_backward(part, place, 0)  # part where place > 0, and 0 elsewhere
                entries[1].copy_(second)
                torch.sub(part, second, out=entries[0])
            else:
                for number, each in enumerate(entries):
                    each.add_(part * (place == number))
            part = wide
        return part

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return self.activation.prox(v, self._max(u), step)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        raise TypeError(self.why_not_exact)

    def argmin(self, u: Tensor, g: Tensor) -> Tensor:
        return self.activation.argmin(self._max(u), g)

    def box(self, u: Tensor) -> Box:
        return self.activation.box(self._max(u))
