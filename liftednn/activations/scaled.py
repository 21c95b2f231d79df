"""phi(s u): an activation with a scale (gain) s that can be learned (sec. 4 with Phi / s in place of Phi)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from liftednn.activations.fenchel import Fenchel, Softmax, Tanh
from liftednn.base import Activation, Box, Granularity
from liftednn.functional import as_given, granularity, largest, like, positive, root, spread, totals

__all__ = ["Scaled", "in_float64"]


@dataclass(frozen=True, eq=False)
class Scaled(Fenchel):
    """phi_s(u) = phi(s u);  D_s(u, z) = D(s u, z) / s, the Fenchel divergence of Phi / s; curvature s times that of D.

    activation   an activation with a Fenchel divergence, whose own parameters are numbers, not tensors
    scale        s > 0, a number, or a tensor with one entry for the layer or one per unit

    With t = 1 / s, D = t Phi(z) + t Phi*(u / t) - <u, z>, the perspective of Phi*, is convex in t, and its derivative is
    Phi(z) - Phi(phi(s u)). So `refit` finds the s at which states and outputs have the same sum of Phi,

        sum Phi(phi(s u)) = sum Phi(z),        Phi(z) = D(0, z) - Phi*(0),

    and the left side rises with s: a bracketed root.

    >>> phi = lnn.activations.Scaled(lnn.activations.FenchelHardTanh(), scale=0.5)
    >>> phi(torch.tensor([[-3.0, 1.0]])).tolist()
    [[-1.0, 0.5]]
    """

    activation: Fenchel = field(default_factory=Tanh)
    scale: Tensor | float = 1.0
    learned, limits = ("scale",), (1e-2, 1e2)

    def __post_init__(self) -> None:
        if not positive(self.scale):
            raise ValueError(f"scale must be positive, got {self.scale}")
        if not isinstance(self.activation, Fenchel):
            raise ValueError(
                f"Scaled needs an activation with a Fenchel divergence, got {self.activation!r}: use its Fenchel form"
            )
        if any(isinstance(part, Tensor) for part in vars(self.activation).values()):
            raise ValueError(
                f"Scaled needs an activation whose parameters are numbers, got {self.activation!r}: give one number for all units"
            )
        if granularity(self.scale, "layer") == "unit":
            self._check_units()

    def _check_units(self) -> None:
        if not self.activation.unitwise:
            kind = type(self.activation).__name__
            raise ValueError(
                f"the units of {kind} depend on each other, so they cannot have one scale each: give a number, or declare "
                f"{kind}.unitwise = True if they do not"
            )

    @property
    def curvature(self) -> float:
        return largest(self.scale) * self.activation.curvature

    @property
    def homogeneous(self) -> bool:  # type: ignore[override]
        return self.activation.homogeneous

    @property
    def boxed(self) -> bool:  # type: ignore[override]
        return self.activation.boxed

    @property
    def unitwise(self) -> bool:  # type: ignore[override]
        return self.activation.unitwise

    def __call__(self, u: Tensor) -> Tensor:
        return self.activation(like(self.scale, u) * u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        scale = like(self.scale, u)
        if granularity(self.scale, "layer") == "layer":
            return self.activation.value(scale * u, z) / scale
        return (self._entries(scale * u, z) / scale).sum(-1)

    def _entries(self, u: Tensor, z: Tensor) -> Tensor:
        """D of the activation entry by entry, (n, p): every entry is passed as one row."""
        return self.activation.value(u[..., None], z[..., None])

    def resolvent(self, y: Tensor, step: float) -> Tensor:
        inner = step / like(self.scale, y)
        return self.activation.resolvent(y, float(inner) if torch.as_tensor(inner).numel() == 1 else cast(float, inner))

    def box(self, u: Tensor) -> Box:
        scale = like(self.scale, u)
        box = self.activation.box(scale * u)
        return box._replace(weight=box.weight / scale, linear=box.linear / scale)

    def refit(self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Granularity = "layer") -> Scaled:
        per = granularity(self.scale, per)
        if per == "unit":
            self._check_units()
        u, z, given = u.double(), in_float64(self, z), u
        goal = self._total_entropy(z, sample_weight, per)

        def excess(log_scale: Tensor) -> Tensor:
            return self._total_entropy(self.activation(log_scale.exp() * u), sample_weight, per) - goal

        now, low, high = (spread(bound, goal).log() for bound in (self.scale, *self.limits))
        found = root(excess, now.minimum(low), now.maximum(high))
        known = excess(now.maximum(high)) > excess(now.minimum(low))  # False where all u are 0
        return Scaled(self.activation, as_given(torch.where(known, found, now).exp(), self.scale, given))

    def _total_entropy(self, z: Tensor, sample_weight: Tensor | None, per: Granularity) -> Tensor:
        """sum Phi(z), up to a constant."""
        zero = torch.zeros_like(z)
        entries = self._entries(zero, z) if per == "unit" else self.activation.value(zero, z)[:, None]
        return totals(entries, sample_weight, per)


def in_float64(activation: Activation, z: Tensor) -> Tensor:
    """States z (n, p) in float64. Those of a softmax, whose sums are 1 in their own precision, are divided by these."""
    while isinstance(activation, Scaled):
        activation = activation.activation
    z = z.double()
    return z / z.sum(-1, keepdim=True) if isinstance(activation, Softmax) else z
