"""Jointly convex activations (sec. 4, "Jointly convex representations"): the state is a projection of the pre-activation.

    D(u, z) = |u - z|^2  on a convex domain, +inf outside,   phi(u) = argmin_z D(u, z)

D is positive at z = phi(u) where the projection changes u; joint convexity requires this (docs/notation.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from liftednn.base import Activation, Box
from liftednn.functional import barrier, box_barrier, box_prox, simplex_projection, soft_threshold

__all__ = ["HardSigmoid", "HardTanh", "Identity", "LeakyReLU", "ReLU", "Simplex"]


def _prox_square(a: Tensor, z: Tensor, step: float) -> Tensor:
    """argmin_u |u - z|^2 + |u - a|^2 / (2 step)."""
    return (a + 2 * step * z) / (1 + 2 * step)


class _Clip(Activation):
    """phi(u) = clip(u, lower, upper);  D(u, z) = |u - z|^2 on lower <= z <= upper; curvature 2."""

    curvature, quadratic, joint, boxed, unitwise = 2.0, True, True, True, True
    lower: float
    upper: float

    def __call__(self, u: Tensor) -> Tensor:
        return u.clamp(self.lower, self.upper)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u - z).square().sum(-1) + box_barrier(z, self.lower, self.upper)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z)

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return box_prox(self.box(u), v, step)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return _prox_square(v, z, step)

    def box(self, u: Tensor) -> Box:
        return Box(self.lower, self.upper, 2.0, 2 * u)


@dataclass(frozen=True)
class Identity(_Clip):
    """phi(u) = u;  D(u, z) = |u - z|^2 everywhere.

    >>> lnn.activations.Identity()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[-2.0, 0.5]]
    """

    lower, upper, homogeneous = -torch.inf, torch.inf, True


@dataclass(frozen=True)
class HardTanh(_Clip):
    """phi(u) = clip(u, -1, 1);  D(u, z) = |u - z|^2 on |z| <= 1 (sec. 4, "piecewise" sigmoid).

    >>> lnn.activations.HardTanh()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[-1.0, 0.5]]
    """

    lower, upper = -1.0, 1.0


@dataclass(frozen=True)
class HardSigmoid(_Clip):
    """phi(u) = min(1, max(0, u));  D(u, z) = |u - z|^2 on 0 <= z <= 1 (sec. 4, the piece-wise sigmoid).

    >>> lnn.activations.HardSigmoid()(torch.tensor([[-2.0, 0.5]])).tolist()
    [[0.0, 0.5]]
    """

    lower, upper = 0.0, 1.0


@dataclass(frozen=True)
class ReLU(Activation):
    """phi(u) = max(0, u) (eq. 4).

    norm="l2": D(u, z) = |u - z|^2 on z >= 0, curvature 2; the paper's model.
    norm="l1": D(u, z) = |u - z|_1 on z >= 0, not smooth; the alternative in sec. 4.

    >>> u, z = torch.tensor([[-2.0, 0.5]]), torch.tensor([[0.0, 0.5]])
    >>> torch.equal(lnn.activations.ReLU()(u), z), lnn.activations.ReLU(norm="l1").value(u, z)
    (True, tensor([2.]))
    """

    norm: Literal["l2", "l1"] = "l2"
    joint, unitwise = True, True

    def __post_init__(self) -> None:
        if self.norm not in ("l2", "l1"):
            raise ValueError(f"norm must be 'l2' or 'l1', got {self.norm!r}")

    @property
    def _squared(self) -> bool:
        return self.norm == "l2"

    @property
    def curvature(self) -> float:
        return 2.0 if self._squared else torch.inf

    quadratic = property(lambda self: self._squared)
    boxed = property(lambda self: self._squared)
    homogeneous = property(lambda self: self._squared)

    def __call__(self, u: Tensor) -> Tensor:
        return u.relu()

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        gap = (u - z).square() if self._squared else (u - z).abs()
        return gap.sum(-1) + box_barrier(z, 0.0, torch.inf)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z) if self._squared else (u - z).sign()

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        if self._squared:
            return box_prox(self.box(u), v, step)
        return (u + soft_threshold(v - u, step)).relu()

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return _prox_square(v, z, step) if self._squared else z + soft_threshold(v - z, step)

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        if self._squared:
            return super().prox_joint(a, b, step)
        z = ((a + b - soft_threshold(a - b, 2 * step)) / 2).relu()
        return z + soft_threshold(a - z, step), z

    def box(self, u: Tensor) -> Box:
        return Box(0.0, torch.inf, 2.0, 2 * u)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """phi(u) = max(u, alpha u);  D(u, z) = |u - z|^2 on z >= alpha u (sec. 4).

    alpha < 1 is the usual leaky ReLU; alpha > 1 is the paper's max(x / a, x) with a = 1 / alpha. The domain couples u and z, so
    D has no finite curvature in u.

    >>> lnn.activations.LeakyReLU(alpha=0.5)(torch.tensor([[-2.0, 0.5]])).tolist()
    [[-1.0, 0.5]]
    """

    alpha: float = 0.01
    curvature, capped, joint, boxed, homogeneous, unitwise = torch.inf, True, True, True, True, True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < torch.inf:
            raise ValueError(f"alpha must be positive, got {self.alpha}: for slope 0 use ReLU")

    def __call__(self, u: Tensor) -> Tensor:
        return torch.maximum(u, self.alpha * u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u - z).square().sum(-1) + barrier(self.alpha * u - z, scale=z)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z)

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return box_prox(self.box(u), v, step)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return torch.minimum(_prox_square(v, z, step), self.cap(z))

    def cap(self, z: Tensor) -> Tensor:
        return z / self.alpha

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        z = (2 * step * a + (1 + 2 * step) * b) / (1 + 4 * step)  # without the constraint
        u = _prox_square(a, z, step)
        edge = (a + self.alpha * b) / (1 + self.alpha**2 + 2 * step * (1 - self.alpha) ** 2)  # on z = alpha u
        outside = z < self.alpha * u
        return torch.where(outside, edge, u), torch.where(outside, self.alpha * edge, z)

    def box(self, u: Tensor) -> Box:
        return Box(self.alpha * u, torch.inf, 2.0, 2 * u)


@dataclass(frozen=True)
class Simplex(Activation):
    """phi(u) = the Euclidean projection on {z >= 0, 1'z = 1};  D(u, z) = |u - z|^2 there; curvature 2 (sec. 4).

    >>> lnn.activations.Simplex()(torch.tensor([[2.0, 0.5], [0.0, 0.0]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    curvature, quadratic, joint = 2.0, True, True

    def __call__(self, u: Tensor) -> Tensor:
        return simplex_projection(u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        off = (z.sum(-1, keepdim=True) - 1).abs()
        return (u - z).square().sum(-1) + barrier(torch.cat([-z, off], -1))

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z)

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return simplex_projection((v + 2 * step * u) / (1 + 2 * step))

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return _prox_square(v, z, step)
