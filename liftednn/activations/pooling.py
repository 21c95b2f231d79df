"""Max-pooling (sec. 4, eq. 9): one state per group of pre-activations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from liftednn.activations.windows import Windowed
from liftednn.base import Activation, Box, Divergence
from liftednn.functional import barrier, box_barrier, box_prox, root

__all__ = ["MaxPool", "MaxPoolReLU"]


class _Spread(Activation):
    """D(u, z) = |Dz - u|^2 on Dz >= u and z >= `lowest`, where D spreads each z over the pre-activations of its group.

    Jointly convex, >= 0, its unique argmin the maximum over each group, or `lowest` if that is larger.
    """

    curvature, joint, capped, boxed, homogeneous, separable = torch.inf, True, True, True, True, True
    lowest: float

    @abstractmethod
    def _max(self, u: Tensor) -> Tensor:
        """The largest entry of each group."""

    @abstractmethod
    def _sum(self, u: Tensor) -> Tensor:
        """The sum over each group."""

    @abstractmethod
    def _spread(self, z: Tensor) -> Tensor:
        """Dz, (n, p)."""

    def __call__(self, u: Tensor) -> Tensor:
        return self._bounded(self._max(u))

    def _bounded(self, z: Tensor) -> Tensor:
        return z if self.lowest == -torch.inf else z.clamp(min=self.lowest)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        excess = u - self._spread(z)
        return excess.square().sum(-1) + barrier(excess, scale=u) + box_barrier(z, self.lowest, torch.inf)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - self._spread(z))

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return box_prox(self.box(u), v, step)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        top = self._spread(z)
        return torch.minimum((v + 2 * step * top) / (1 + 2 * step), top)

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """Given z, each u_i is a prox_u; z is the root of an increasing function, or `lowest`."""

        def slope(z: Tensor) -> Tensor:
            top = self._spread(z)
            binding = (a - top).relu() / step  # where u is at the cap, u moves with z
            return 2 * self._sum(top - self.prox_u(a, z, step)) - self._sum(binding) + (z - b) / step

        z = self._bounded(root(slope, torch.minimum(b, -self._max(-a)) - 1, torch.maximum(b, self._max(a)) + 1))
        return self.prox_u(a, z, step), z

    def cap(self, z: Tensor) -> Tensor:
        return self._spread(z)

    def box(self, u: Tensor) -> Box:
        return Box(self(u), torch.inf, 2 * self._sum(torch.ones_like(u[:1])), 2 * self._sum(u))

    def by_unit(self, z: Tensor) -> tuple[Divergence, Tensor]:
        return MaxPool(1), self._spread(z)


@dataclass(frozen=True)
class MaxPool(_Spread):
    """phi(u)_g = max of u over group g, (n, p) -> (n, groups); D spreads each z_g over its group, (Dz)_i = z_g(i).

    form="projection": D(u, z) = |Dz - u|^2 on Dz >= u. Jointly convex, >= 0, its unique argmin the maximum: for training.
    form="paper":      D(u, z) = c 1'z + 1'(u - Dz)_+ with 0 < c < 1. The paper's c = 1 is constant between the two largest
                       entries. It is unbounded below over the states, so training refuses it.

    groups   an int k (consecutive groups of k) or the sizes of consecutive groups
    c        the constant of form="paper"

    >>> lnn.activations.MaxPool(groups=2)(torch.tensor([[1.0, 3.0, 5.0, 2.0]])).tolist()
    [[3.0, 5.0]]
    """

    groups: int | tuple[int, ...] = 2
    form: Literal["projection", "paper"] = "projection"
    c: float = 0.5
    lowest = -torch.inf

    def __post_init__(self) -> None:
        if isinstance(self.groups, Sequence):
            object.__setattr__(self, "groups", tuple(self.groups))
        sizes = (self.groups,) if isinstance(self.groups, int) else self.groups
        if not sizes or min(sizes) < 1:
            raise ValueError(f"groups must be a positive size or a tuple of positive sizes, got {self.groups!r}")
        if self.form not in ("projection", "paper"):
            raise ValueError(f"form must be 'projection' or 'paper', got {self.form!r}")
        if not 0 < self.c < 1:
            raise ValueError(f"c must lie strictly between 0 and 1, got {self.c}")

    @property
    def why_not_trainable(self) -> str:
        if self.form == "projection":
            return ""
        return "MaxPool(form='paper') has an energy without lower bound, so it cannot be trained: use form='projection'"

    capped = property(lambda self: self.form == "projection")
    boxed = property(lambda self: self.form == "projection")
    homogeneous = property(lambda self: self.form == "projection")
    separable = property(lambda self: self.form == "projection")
    unitwise = property(lambda self: self.form == "projection" and self.groups == 1)

    def width(self, p: int) -> int:
        return len(self._sizes(p))

    def preactivation_width(self, width: int) -> int:
        if isinstance(self.groups, int):
            return width * self.groups
        if len(self.groups) != width:
            raise ValueError(
                f"MaxPool with {len(self.groups)} groups gives {len(self.groups)} states, not {width}: give {width} group sizes"
            )
        return sum(self.groups)

    def _sizes(self, p: int) -> tuple[int, ...]:
        sizes = (self.groups,) * (p // self.groups) if isinstance(self.groups, int) else self.groups
        if sum(sizes) != p:
            raise ValueError(f"groups {self.groups!r} do not divide {p} pre-activations: they must add up to it")
        return sizes

    def _index(self, u: Tensor) -> Tensor:
        """The group of each pre-activation, (p,)."""
        sizes = torch.tensor(self._sizes(u.shape[-1]), device=u.device)
        return torch.repeat_interleave(sizes)

    def _sum(self, u: Tensor) -> Tensor:
        index = self._index(u)
        return u.new_zeros(*u.shape[:-1], self.width(u.shape[-1])).index_add(-1, index, u)

    def _max(self, u: Tensor) -> Tensor:
        lowest = u.new_full((*u.shape[:-1], self.width(u.shape[-1])), -torch.inf)
        return lowest.scatter_reduce(-1, self._index(u).expand_as(u), u, "amax")

    def _spread(self, z: Tensor) -> Tensor:
        if self.groups == 1:
            return z
        p = self.preactivation_width(z.shape[-1])
        return z[..., self._index(z.new_empty(p))]

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        if self.form == "projection":
            return super().value(u, z)
        return self.c * z.sum(-1) + (u - self._spread(z)).relu().sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return super().grad(u, z) if self.form == "projection" else (u > self._spread(z)).to(u.dtype)

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        if self.form == "projection":
            return super().prox(v, u, step)
        sizes = self._sum(torch.ones_like(u))

        def slope(z: Tensor) -> Tensor:
            above = self._sum((u > self._spread(z)).to(u.dtype))
            return z - v + step * (self.c - above)

        return root(slope, v - step * self.c, v + step * (sizes - self.c))

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        if self.form == "projection":
            return super().prox_u(v, z, step)
        return torch.minimum(v, torch.maximum(v - step, self._spread(z)))

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        if self.form == "projection":
            return super().prox_joint(a, b, step)
        raise TypeError("MaxPool(form='paper') has no joint prox, since it cannot be trained: use form='projection'")

    def by_unit(self, z: Tensor) -> tuple[Divergence, Tensor]:
        return (self, z) if self.groups == 1 else super().by_unit(z)


@dataclass(frozen=True)
class MaxPoolReLU(_Spread, Windowed):
    """phi(u) = max(0, max of u over each window): the ReLU and max-pooling of an image in one divergence, for exact blocks (`BCD`).

    D(u, z) = |Dz - u|^2 on Dz >= u and z >= 0, where D spreads each z over its window; jointly convex. Mini-batches have `Pooled`.

    shape         (channels, height, width), or (channels, length), of one sample's pre-activations; -1 for any number of channels
    kernel_size   the size of a window, one number or one for each dimension, which must divide those of `shape`: windows do not overlap

    >>> pooled = lnn.activations.MaxPoolReLU(shape=(1, 2, 4), kernel_size=2)
    >>> pooled(torch.tensor([[1.0, 3.0, -5.0, -2.0, 0.0, 2.0, -4.0, -3.0]])).tolist()
    [[3.0, 0.0]]
    """

    shape: tuple[int, ...] = (-1, 2, 2)
    kernel_size: int | tuple[int, ...] = 2
    stride, lowest = None, 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size % kernel for size, kernel in zip(self.shape[1:], self._kernel, strict=True)):
            raise ValueError(
                f"windows of {self._kernel} do not divide {self.shape[1:]}: give a kernel_size that does, or train by MiniBatch with Pooled"
            )

    def _max(self, u: Tensor) -> Tensor:
        return self._reduced(u, torch.maximum)

    def _sum(self, u: Tensor) -> Tensor:
        return self._reduced(u, torch.add)

    def _spread(self, z: Tensor) -> Tensor:
        spaced = [part for count in self._counts for part in (count, 1)]
        copies = [part for pair in zip(self._counts, self._kernel, strict=True) for part in pair]
        return z.reshape(-1, *spaced).expand(-1, *copies).reshape(*z.shape[:-1], self.preactivation_width(z.shape[-1]))
