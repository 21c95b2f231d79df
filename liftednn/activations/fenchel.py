"""Bi-convex activations (sec. 4, eq. 6 to 8): the Fenchel divergence of a convex Phi.

    Phi(z) = integral_0^z phi^-1,    D(u, z) = Phi(z) + Phi*(u) - <u, z> >= 0,    D = 0 exactly at z = phi(u)

The paper's form Phi(z) - <u, z> has the same argmin; the term Phi*(u), which sec. 4 allows to be added, makes D convex in u with
gradient phi(u) - z, so that its curvature is the Lipschitz constant of phi.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from liftednn.base import Activation, Granularity, LayerXStep
from liftednn.functional import (
    as_given,
    barrier,
    conjugate_softplus,
    entropy_prox,
    granularity,
    largest,
    like,
    log_partition,
    positive,
    root,
    softmax,
    spread,
    totals,
    within,
)

# Steps beyond which Moreau's identity loses digits of float32.
_LONG = 10.0

__all__ = [
    "FenchelLeakyReLU",
    "Sigmoid",
    "Sin",
    "Softmax",
    "Softplus",
    "Tanh",
]


class Fenchel(Activation):
    """D(u, z) = Phi(z) + Phi*(u) - <u, z>; a subclass gives phi, the value, and the resolvent of Phi.

    Equality is by value. A dataclass with a field that may be a tensor needs `eq=False`, since the generated `__eq__` cannot compare
    tensors. The hash uses a tensor's shape instead of its entries, so that it stays the same while training changes them.
    """

    joint = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), *(_shape(part) for part in vars(self).values())))

    def _key(self) -> tuple[object, ...]:
        return tuple(
            (_shape(part), part.tolist() if isinstance(part, Tensor) else None) for part in vars(self).values()
        )

    @abstractmethod
    def resolvent(self, y: Tensor, step: float) -> Tensor:
        """argmin_z Phi(z) + |z - y|^2 / (2 step)."""

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self(u) - z

    def argmin(self, u: Tensor, g: Tensor) -> Tensor:
        return self(u - g)

    def phi_and_x_step(self, u: Tensor) -> tuple[Tensor, LayerXStep]:
        if type(self).grad is not Fenchel.grad or type(self).argmin is not Fenchel.argmin:
            return super().phi_and_x_step(u)
        phi = self(u)

        def x_step(g: Tensor, lam: float) -> tuple[Tensor, Tensor]:
            z = self(torch.sub(u, g, alpha=1 / lam))
            return z, (phi - z).mul_(lam)

        return phi, x_step

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return self.resolvent(v + step * u, step)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        if v.dtype == torch.float32 and step > _LONG:
            return self.prox_u(v.double(), z.double(), step).to(v.dtype)
        y = v + step * z
        return y - step * self.resolvent(y / step, 1 / step)  # Moreau's identity


def _shape(part: object) -> object:
    """The part of a field that training does not change: the shape of a tensor, else the field itself."""
    return (Tensor, *part.shape) if isinstance(part, Tensor) else part


@dataclass(frozen=True, eq=False)
class FenchelLeakyReLU(Fenchel):
    """phi(u) = max(u, alpha u) for alpha < 1, u or alpha u by sign in general;  Phi of eq. 8; curvature max(1, alpha).

    alpha is a number, or a tensor with one entry for the layer or one per unit. With z_- = min(z, 0),
    D(u, z) = z_-^2 / (2 alpha) + alpha u_-^2 / 2 + terms without alpha, so that `refit` gives alpha = sqrt(sum z_-^2 / sum u_-^2).

    >>> lnn.activations.FenchelLeakyReLU(alpha=0.5)(torch.tensor([[-2.0, 0.5]])).tolist()
    [[-1.0, 0.5]]
    """

    alpha: Tensor | float = 0.01
    homogeneous, unitwise, learned, limits = True, True, ("alpha",), (1e-3, 10.0)

    def __post_init__(self) -> None:
        if not positive(self.alpha):
            raise ValueError(f"alpha must be positive, got {self.alpha}: for slope 0 use FenchelReLU")

    @property
    def curvature(self) -> float:
        return max(1.0, largest(self.alpha))

    def __call__(self, u: Tensor) -> Tensor:
        return torch.where(u < 0, like(self.alpha, u) * u, u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        p, slope = self(u), torch.where(z < 0, like(self.alpha, z), torch.ones_like(z))
        # Phi(z) + u phi(u) / 2 - u z: a square where u and z have one sign, and three terms >= 0 where not.
        apart = z * z / (2 * slope) + u * p / 2 - u * z
        return torch.where((u < 0) == (z < 0), (z - p).square() / (2 * slope), apart).sum(-1)

    def resolvent(self, y: Tensor, step: float) -> Tensor:
        return torch.where(y < 0, y / (1 + step / like(self.alpha, y)), y / (1 + step))

    def refit(
        self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Granularity = "layer"
    ) -> FenchelLeakyReLU:
        per = granularity(self.alpha, per)
        of_u, of_z = (totals(a.clamp(max=0).square(), sample_weight, per) for a in (u, z))
        now, found = (
            spread(self.alpha, of_u),
            (of_z / of_u).sqrt(),
        )  # NaN (0 / 0) where no entry is negative: alpha then stays as it is
        clamped = within(found, now, self.limits)
        return FenchelLeakyReLU(as_given(torch.where(found.isnan(), now, clamped), self.alpha, u))


class _Entropic(Fenchel):
    """Sums over entries of closed-form Phi and Phi*; the resolvent needs phi alone.

    z + step phi^-1(z) = y has z = phi(w) with step w + phi(w) = y: an increasing function of w with slope at least `step`.
    """

    unitwise = True

    @abstractmethod
    def entropy(self, z: Tensor) -> Tensor:
        """Phi(z), +inf outside its domain, entry by entry."""

    @abstractmethod
    def conjugate(self, u: Tensor) -> Tensor:
        """Phi*(u), entry by entry."""

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        """In float64, since near z = phi(u) the terms cancel."""
        exact, near = u.double(), z.double()
        return (self.entropy(near) + self.conjugate(exact) - exact * near).sum(-1).to(u)

    def resolvent(self, y: Tensor, step: float) -> Tensor:
        return resolvent_of(self, y, step)


def resolvent_of(phi: Callable[[Tensor], Tensor], y: Tensor, step: float) -> Tensor:
    """The z of z + step phi^-1(z) = y, for an increasing phi."""
    w0 = y / (step + 1)
    half_width = (step * w0 + phi(w0) - y).abs() / step
    return phi(root(lambda w: step * w + phi(w) - y, w0 - half_width, w0 + half_width))


def _xlogx(z: Tensor) -> Tensor:
    """z log z, 0 at 0 and +inf below."""
    return torch.where(z < 0, torch.inf, torch.xlogy(z, z.clamp(min=0)))


@dataclass(frozen=True)
class Sigmoid(_Entropic):
    """phi(u) = 1 / (1 + e^-u);  Phi(z) = z log z + (1-z) log(1-z) on [0, 1], Phi*(u) = softplus(u); curvature 1/4.

    >>> lnn.activations.Sigmoid()(torch.tensor([[-200.0, 0.0]])).tolist()
    [[0.0, 0.5]]
    """

    curvature = 0.25

    def __call__(self, u: Tensor) -> Tensor:
        return u.sigmoid()

    def entropy(self, z: Tensor) -> Tensor:
        return _xlogx(z) + _xlogx(1 - z)

    def conjugate(self, u: Tensor) -> Tensor:
        return softplus(u, threshold=50)


@dataclass(frozen=True)
class Tanh(_Entropic):
    """phi = tanh (printed as "arctanh" in sec. 4);  Phi(z) = ((1-z) log(1-z) + (1+z) log(1+z)) / 2 on [-1, 1]; curvature 1.

    >>> lnn.activations.Tanh()(torch.tensor([[0.0, 100.0]])).tolist()
    [[0.0, 1.0]]
    """

    curvature = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return u.tanh()

    def entropy(self, z: Tensor) -> Tensor:
        return (_xlogx(1 - z) + _xlogx(1 + z)) / 2

    def conjugate(self, u: Tensor) -> Tensor:
        return u.abs() + torch.log1p((-2 * u.abs()).exp()) - math.log(2)  # log cosh u


@dataclass(frozen=True)
class Softplus(_Entropic):
    """phi(u) = log(1 + e^u);  Phi*(u) = -Li_2(-e^u), Phi(z) = uz - Phi*(u) at u = log(e^z - 1), z >= 0; curvature 1.

    >>> lnn.activations.Softplus()(torch.tensor([[-200.0, 100.0]])).tolist()
    [[0.0, 100.0]]
    """

    curvature = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return softplus(u, threshold=50)

    def entropy(self, z: Tensor) -> Tensor:
        positive = z.clamp(min=torch.finfo(z.dtype).tiny)
        u = positive + torch.log(-torch.expm1(-positive))
        return torch.where(z < 0, torch.inf, u * z - conjugate_softplus(u))

    def conjugate(self, u: Tensor) -> Tensor:
        return conjugate_softplus(u)


@dataclass(frozen=True)
class Sin(_Entropic):
    """phi(u) = sin(clip(u, -pi/2, pi/2)), the monotone branch;  Phi(z) = z arcsin z + sqrt(1 - z^2) - 1 on [-1, 1]; curvature 1.

    >>> lnn.activations.Sin()(torch.tensor([[0.0, 100.0]])).round(decimals=3).tolist()
    [[0.0, 1.0]]
    """

    curvature = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return u.clamp(-torch.pi / 2, torch.pi / 2).sin()

    def entropy(self, z: Tensor) -> Tensor:
        inside = z.clamp(-1, 1)
        curve = inside * inside.arcsin() + (1 - inside * inside).sqrt() - 1
        return torch.where(z.abs() > 1, torch.inf, curve)

    def conjugate(self, u: Tensor) -> Tensor:
        inside = u.clamp(-torch.pi / 2, torch.pi / 2)
        return 1 - inside.cos() + (u - inside).abs()


@dataclass(frozen=True)
class Softmax(Fenchel):
    """phi = softmax;  Phi(z) = sum z log z on the simplex, Phi*(u) = logsumexp(u); curvature 1/2.

    >>> lnn.activations.Softmax()(torch.tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """

    curvature = 0.5

    def __call__(self, u: Tensor) -> Tensor:
        return softmax(u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        off, exact, near = (z.sum(-1, keepdim=True) - 1).abs(), u.double(), z.double()
        return ((_xlogx(near) - exact * near).sum(-1) + log_partition(exact)).to(u) + barrier(off)

    def resolvent(self, y: Tensor, step: float) -> Tensor:
        return entropy_prox(y, step)
