"""Clipped activations in bi-convex form (sec. 4, "Non-strictly monotone examples"): Phi is a quadratic on an interval."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.activations.fenchel import Fenchel
from liftednn.base import Box, Granularity
from liftednn.functional import as_given, box_barrier, box_prox, clip, granularity, like, spread

# A range of states narrower than this fraction of the range of the bounds is taken as constant.
_NARROW = 1e-3

__all__ = ["FenchelClip", "FenchelHardSigmoid", "FenchelHardTanh", "FenchelReLU", "Sign"]


class _Clip(Fenchel):
    """phi(u) = clip((u + shift) / weight, lower, upper);  Phi(z) = weight z^2/2 - shift z on lower <= z <= upper;  curvature 1 / weight.

    With p = phi(u), D = weight/2 |z - p|^2 + <z - p, weight p - u - shift>: both terms are >= 0, so nothing cancels.
    """

    boxed, unitwise = True, True
    lower: Tensor | float
    upper: Tensor | float
    weight: float = 1.0
    shift: float = 0.0

    @property
    def curvature(self) -> float:
        return 1 / self.weight if self.weight else torch.inf

    def __call__(self, u: Tensor) -> Tensor:
        if not self.weight:
            return u.sign()
        shifted = u + self.shift if self.shift else u
        return clip(shifted if self.weight == 1 else shifted / self.weight, self.lower, self.upper)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        p = self(u)
        terms = (z - p) * (self.weight * (z + p) / 2 - (u + self.shift))
        return terms.sum(-1) + box_barrier(z, self.lower, self.upper)

    def resolvent(self, y: Tensor, step: float) -> Tensor:
        return box_prox(Box(self.lower, self.upper, self.weight, self.shift), y, step)

    def box(self, u: Tensor) -> Box:
        return Box(like(self.lower, u), like(self.upper, u), self.weight, u + self.shift)


class _Bounded(_Clip):
    """Clips whose bounds can be learned.

    D falls as the bounds move inwards, d/d upper Phi*(u) = (u + shift - weight upper)_+ >= 0, as long as all states stay inside: the
    minimisers are the smallest and the largest state. So bounds only ever move inwards, and a batch cannot estimate them. An infinite
    bound stays infinite.
    """

    learned, summed = ("lower", "upper"), False

    def refit(
        self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Granularity = "layer"
    ) -> FenchelClip:
        per = granularity(self.upper, granularity(self.lower, per))
        rows = z if sample_weight is None else z[sample_weight > 0]
        smallest, greatest = reduce.ends(rows)
        ends = (smallest, greatest) if per == "unit" else (smallest.amin(), greatest.amax())
        lower, upper = (spread(bound, ends[0]) for bound in (self.lower, self.upper))
        inner = [end.clamp(lower, upper) for end in ends]
        # A unit whose states are constant keeps its bounds.
        still = inner[1] - inner[0] <= _NARROW * (upper - lower).clamp(max=1)
        sides = zip((lower, upper), inner, (self.lower, self.upper), strict=True)
        low, high = (as_given(torch.where(still | old.isinf(), old, new), given, z) for old, new, given in sides)
        return FenchelClip(low, high, self.weight, self.shift)


@dataclass(frozen=True)
class FenchelReLU(_Clip):
    """phi(u) = max(0, u);  Phi(z) = z^2/2 on z >= 0 (sec. 4, "Non-strictly monotone examples"); curvature 1.

    >>> lnn.activations.FenchelReLU()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[0.0, 0.5]]
    """

    lower, upper, homogeneous = 0.0, torch.inf, True

    def __call__(self, u: Tensor) -> Tensor:
        return u.relu()


@dataclass(frozen=True)
class FenchelHardTanh(_Bounded):
    """phi(u) = clip(u, -1, 1);  Phi(z) = z^2/2 on |z| <= 1; curvature 1.

    >>> lnn.activations.FenchelHardTanh()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[-1.0, 0.5]]
    """

    lower, upper = -1.0, 1.0


@dataclass(frozen=True)
class FenchelHardSigmoid(_Bounded):
    """phi(u) = clip(u, 0, 1);  Phi(z) = z^2/2 on 0 <= z <= 1; curvature 1.

    >>> lnn.activations.FenchelHardSigmoid()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[0.0, 0.5]]
    """

    lower, upper = 0.0, 1.0


@dataclass(frozen=True, eq=False)
class FenchelClip(_Bounded):
    """phi(u) = clip((u + shift) / weight, lower, upper);  Phi(z) = weight z^2/2 - shift z on lower <= z <= upper; curvature 1 / weight.

    (0, 6) is torch's ReLU6, (0, 1, 6, 3) its Hardsigmoid. Bounds may be tensors, one entry per unit.

    >>> lnn.activations.FenchelClip(0.0, 6.0)(torch.tensor([[-2.0, 8.0]])).tolist()
    [[0.0, 6.0]]
    """

    lower: Tensor | float = -1.0
    upper: Tensor | float = 1.0
    weight: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        below = bool(torch.as_tensor(self.lower < self.upper).all())
        if not (below and 0 < self.weight < torch.inf):
            raise ValueError(
                f"lower must be below upper and weight positive, got {self.lower}, {self.upper} and {self.weight}"
            )


@dataclass(frozen=True)
class Sign(_Clip):
    """phi(u) = clip(u / eps, -1, 1);  Phi(z) = eps z^2/2 on |z| <= 1; curvature 1 / eps.

    The sign function of sec. 4 is the limit eps = 0, D(u, z) = |u| - uz, which is 0 for every z at u = 0: W = 0 then always solves
    the W-step. Use a positive eps for training.

    >>> lnn.activations.Sign(eps=0.5)(torch.tensor([[-2.0, 0.25]])).tolist()
    [[-1.0, 0.5]]
    """

    eps: float = 0.1
    lower, upper = -1.0, 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.eps < torch.inf:
            raise ValueError(f"eps must be non-negative, got {self.eps}")

    weight = property(lambda self: self.eps)
