"""A divergence at the worst end of an interval, at fixed weights: the divergence that BoxBall gives a layer in the X-step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednn.base import Activation, Divergence
from liftednn.functional import root
from liftednn.losses import SoftmaxCrossEntropy, SquaredError

__all__ = ["WorstCase", "WorstCaseSoftmax", "prox_of", "unit_values"]


def unit_values(divergence: Divergence, u: Tensor, z: Tensor) -> Tensor:
    """D_k(u_k, z_k), (n, p), of a `uniform` divergence."""
    return divergence.value(u[..., None], z[..., None])


def prox_of(divergence: Divergence, v: Tensor, z: Tensor, step: float | Tensor) -> Tensor:
    """argmin_u D(u, z) + |u - v|^2 / (2 step), where D is quadratic from its curvature; steps may differ from entry to entry."""
    if divergence.quadratic:
        t = divergence.curvature * step
        return (v + t * z) / (1 + t)
    return divergence.prox_u(v, z, step)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class WorstCase(Activation):
    """sum_k max(D_k(u_k - r_k, z_k), D_k(u_k + r_k, z_k)) for a D that is a sum over units. Convex in u and in z where D is; it has
    a kink where both ends have the same energy, so its curvature in u is infinite."""

    divergence: Divergence = field(default_factory=SquaredError)
    radius: Tensor = field(default_factory=lambda: torch.tensor(0.1))

    curvature, joint = torch.inf, False

    def __call__(self, u: Tensor) -> Tensor:
        """argmin_z: phi of an end, or the z at which both ends have the same energy."""
        return self._lowest(
            self.divergence(u - self.radius), self.divergence(u + self.radius), lambda z: self._tilt(u, z)
        )

    def ends(self, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return unit_values(self.divergence, u - self.radius, z), unit_values(self.divergence, u + self.radius, z)

    def _tilt(self, u: Tensor, z: Tensor) -> Tensor:
        """Above 0 where the upper end is the worse one; it rises with u and falls with z."""
        low, high = self.ends(u, z)
        return high - low

    def signs(self, u: Tensor, z: Tensor) -> Tensor:
        """1 where the upper end is the worse one, else -1."""
        return (self._tilt(u, z) >= 0).to(u).mul_(2).sub_(1)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return torch.maximum(*self.ends(u, z)).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self.divergence.grad(u + self.signs(u, z) * self.radius, z)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        high = prox_of(self.divergence, v + self.radius, z, step) - self.radius
        low = prox_of(self.divergence, v - self.radius, z, step) + self.radius
        return self._lowest(high, low, lambda u: -self._tilt(u, z))

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        assert isinstance(self.divergence, Activation)
        low, high = (self.divergence.prox(v, u + sign * self.radius, step) for sign in (-1, 1))
        return self._lowest(low, high, lambda z: self._tilt(u, z))

    @staticmethod
    def _lowest(falling: Tensor, rising: Tensor, tilt: Callable[[Tensor], Tensor]) -> Tensor:
        """The minimiser of the worse of two branches from the minimisers of each: one of those where its branch is the worse one, else
        the point between them where both are the same. `falling` <= `rising`, and `tilt` is positive where `rising`'s branch is worse.
        """
        at_falling, at_rising = tilt(falling), tilt(rising)
        lower, upper = torch.minimum(falling, rising), torch.maximum(falling, rising)
        crossing = root(lambda point: -tilt(point), lower, upper)
        return torch.where(at_falling <= 0, falling, torch.where(at_rising >= 0, rising, crossing))


@dataclass(frozen=True, eq=False)
class WorstCaseSoftmax(SoftmaxCrossEntropy):
    """D(u + s r, z) for the softmax's cross-entropy at labels, s = -1 at the label and 1 elsewhere: smooth in u."""

    divergence: SoftmaxCrossEntropy = field(default_factory=SoftmaxCrossEntropy)
    radius: Tensor = field(default_factory=lambda: torch.tensor(0.1))

    def signs(self, u: Tensor, z: Tensor) -> Tensor:
        return 1 - 2 * z

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        if not bool(((z == 0) | (z == 1)).all()):
            raise ValueError("BoxBall takes SoftmaxCrossEntropy at labels only, got probabilities: give labels")
        return self.divergence.value(u + self.signs(u, z) * self.radius, z)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self.divergence.grad(u + self.signs(u, z) * self.radius, z)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        shift = self.signs(v, z) * self.radius
        return self.divergence.prox_u(v + shift, z, step) - shift
