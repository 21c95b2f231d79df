"""The split last layer (sec. 6.2, eq. 14 and 15, App. A): a loss after an activation, with the state between them eliminated.

L(y, u) = min_z loss(z, y) + lam D(u, z),     z = target(u, y) the minimiser
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednn.activations import ReLU, Simplex
from liftednn.base import Activation, Loss
from liftednn.functional import root
from liftednn.losses.entropy import CrossEntropy, positive_root
from liftednn.losses.squared import SquaredError

__all__ = ["Split", "entropic_projection"]


@dataclass(frozen=True)
class Split(Loss):
    """L(y, u) = min_z loss(z, y) + lam D(u, z) for an activation's divergence D; curvature lam times D's.

    loss, activation   SquaredError with any jointly convex activation of finite curvature (eq. 14 for ReLU), or CrossEntropy with Simplex
                       (eq. 15): joint convexity makes L convex
    lam                the weight of D, positive

    With z fixed at its present minimiser, the right side is a majorant of L that equals L at the present u, so a step that lowers
    lam D(., z) lowers L.

    >>> loss = lnn.losses.Split(lnn.losses.SquaredError(), lnn.activations.ReLU(), lam=1.0)
    >>> loss.value(torch.tensor([[1.0]]), torch.tensor([[3.0]]))  # at z = 2
    tensor([2.])
    """

    loss: Loss = field(default_factory=SquaredError)
    activation: Activation = field(default_factory=ReLU)
    lam: float = 1.0

    link = property(lambda self: self.activation)
    classes = property(lambda self: self.loss.classes)
    unitwise = property(lambda self: self.loss.unitwise and self.activation.unitwise)
    uniform = property(lambda self: self.loss.uniform and self.activation.uniform)

    def __post_init__(self) -> None:
        if not 0 < self.lam < torch.inf:
            raise ValueError(f"lam must be positive, got {self.lam}")
        squared = (
            isinstance(self.loss, SquaredError) and self.activation.joint and self.activation.curvature < torch.inf
        )
        entropic = isinstance(self.loss, CrossEntropy) and isinstance(self.activation, Simplex)
        if not (squared or entropic):
            raise ValueError(
                f"Split cannot combine {type(self.loss).__name__} with {type(self.activation).__name__}: use SquaredError with a "
                "jointly convex activation of finite curvature, or CrossEntropy with Simplex"
            )

    @property
    def curvature(self) -> float:
        return self.lam * self.activation.curvature

    def target(self, u: Tensor, y: Tensor) -> Tensor:
        """argmin_z loss(z, y) + lam D(u, z)."""
        return self._target(u, y, self.lam)

    def _target(self, u: Tensor, y: Tensor, lam: float) -> Tensor:
        if isinstance(self.loss, SquaredError):
            return self.activation.prox(y, u, lam / 2)  # eq. 14: |z - y|^2 is a proximal term of step lam / 2
        return entropic_projection(u, y, lam)

    def __call__(self, u: Tensor) -> Tensor:
        return self.activation(u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        inner = self.target(u, z)
        return self.loss.value(inner, z) + self.lam * self.activation.value(u, inner)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self.lam * self.activation.grad(u, self.target(u, z))  # envelope theorem

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        """For D = c/2 |u - z|^2 on a domain, the minimum over u leaves lam / (1 + t) D(v, z) with t = lam c step: a target at v."""
        if not self.activation.quadratic:
            return super().prox_u(v, z, step)
        t = self.curvature * step
        return (v + t * self._target(v, z, self.lam / (1 + t))) / (1 + t)

    def encode(self, y: Tensor, width: int) -> Tensor:
        return self.loss.encode(y, width)

    def decode(self, u: Tensor) -> Tensor:
        return self.loss.decode(self.activation(u))

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return self.loss.score(self.activation(u), y, row_weights)


def entropic_projection(x: Tensor, y: Tensor, lam: float) -> Tensor:
    """argmin_z -<y, log z> + lam |z - x|^2 over the simplex, for rows x (n, p) and probabilities y (n, p): eq. 15, App. A.

    z_i = (x_i + nu)/2 + sqrt((x_i + nu)^2/4 + y_i/(2 lam)), the multiplier nu by root finding on 1'z = 1. The upper bound is App. A's;
    the lower one there contains e^theta, which overflows; 1/p - max_i(x_i + p y_i/(2 lam)) is valid and finite. Computed in float64, since
    nu is as large as 1/lam.
    """
    x64, y64, p = x.double(), y.double(), x.shape[-1]
    c = y64 / (2 * lam)
    lower = 1 / p - (x64 + p * c).amax(-1, keepdim=True)
    upper = 1 - (x64 + c).amax(-1, keepdim=True)

    def z(nu: Tensor) -> Tensor:
        return positive_root((x64 + nu) / 2, c)

    nu = root(lambda nu: z(nu).sum(-1, keepdim=True) - 1, lower, upper)
    return z(nu).to(x.dtype)
