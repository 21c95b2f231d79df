"""The W-step of a layer whose rows lie in a box (BoxBall): convex, by splitting.

With v >= |w| and rho = v eps the problem is  min over (w, c, v)  of  lam mean f(u, rho) + pi(w),  f the energy at the worse end.
Every row gets its own copy of (u, rho), so that the prox of f is taken row by row and unit by unit; the prox of pi on |w| <= v is a
projection on a cone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Divergence
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.blocks.centred import Centred
from liftednn.functional import root
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.robust.worst_case import prox_of, unit_values
from liftednn.solvers import Factor, splitting

__all__ = ["box_weights", "cone_prox", "ends_prox"]

# The smallest positive fraction of the step for one end.
_LEAST = 1e-6


def box_weights(given: WeightProblem, eps: Tensor) -> WeightStep:
    """The minimising weights for a box of half-widths eps (p,), from the present ones; the objective does not rise."""
    problem, current = _Boxed(given, eps), given.current
    w, c = problem.data.centre(current)
    start = torch.cat([w, c[:, None], w.abs()], 1)
    result = splitting(problem, start, given.layer.lam, given.tol, given.max_iter * 50, problem.data.scale(c))
    w, b = problem.data.uncentre([result.x[:, : problem.p], result.x[:, problem.p]])
    return WeightStep(Affine(w.to(current.w), b.to(current.b)), result.kkt, result.n_iter, "box, splitting")


class _Boxed:
    """The block as a `Separable` in the matrix [w c v], w and v times the unit of the rows; A x is [u rho], (n, 2 outputs)."""

    def __init__(self, given: WeightProblem, eps: Tensor) -> None:
        self.layer, self.z, self.p, self.unit = given.layer, given.z, given.width, given.design.unit
        self.eps = eps / self.unit
        self.data = Centred(given.layer, given.design, given.z, self.unit)
        self.factor = Factor.of(self.data.gram / self.unit**2, 1.0, 1.0, 0.0)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, : self.p], x[:, self.p], x[:, self.p + 1 :]

    def forward(self, x: Tensor) -> Tensor:
        w, c, v = self._parts(x)
        u = self.data.forward([w, c])[0]
        return torch.cat([u, (v @ self.eps).expand_as(u)], 1)

    def adjoint(self, u: Tensor) -> Tensor:
        first, radius = u.chunk(2, 1)
        w, c = self.data.adjoint(first)
        mean = reduce.mean(radius, self.data.row_weights).to(u)
        return torch.cat([w, c[:, None], mean[:, None] * self.eps], 1)

    def solve(self, x: Tensor) -> Tensor:
        """(gram + I)^-1, 1/2, and (eps eps' + I)^-1."""
        w, c, v = self._parts(x)
        w = self.factor.solve(w.double().T).T.to(x.dtype)
        v = v - ((v @ self.eps) / (1 + self.eps.square().sum()))[:, None] * self.eps
        return torch.cat([w, c[:, None] / (2 if self.data.bias else 1), v], 1)

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        first, radius = u.chunk(2, 1)
        return torch.cat(ends_prox(self.layer.divergence, first, radius, self.z, self.layer.lam * step), 1)

    def prox(self, x: Tensor, step: float) -> Tensor:
        w, c, v = self._parts(x)
        w, v = cone_prox(w, v, 1 + 2 * step * (self.layer.penalty.ridge or 0.0) / self.unit**2)
        return torch.cat([w, c[:, None], v], 1)

    def value(self, x: Tensor) -> Tensor:
        """The objective itself, at v = |w|."""
        scaled, c, _ = self._parts(x)
        w = scaled / self.unit
        rows = self.layer.robust_divergence(w).value(self.data.forward([scaled, c])[0], self.z).double()
        mean = reduce.mean(rows, self.data.row_weights)
        return self.layer.lam * mean + self.layer.penalty.value(w)

    def retract(self, x: Tensor) -> Tensor:
        return x


def cone_prox(w: Tensor, v: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """argmin over |a| <= b of  weight/2 (a - w/weight)^2 + 1/2 (b - v)^2, entry by entry."""
    inside = w.abs() / weight <= v
    edge = ((w.abs() + v) / (weight + 1)).clamp(min=0)
    return torch.where(inside, w / weight, w.sign() * edge), torch.where(inside, v, edge)


def ends_prox(divergence: Divergence, u: Tensor, radius: Tensor, z: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """argmin over (a, b) of  f(a, b) + (|a - u|^2 + |b - radius|^2) / (2 step),  f the worst of D(a - b, z) and D(a + b, z)."""
    if isinstance(divergence, SoftmaxCrossEntropy):
        signs = 1 - 2 * z  # f depends on a + s b alone, and leaves a - s b as it is
        moved, kept = divergence.prox_u(u + signs * radius, z, 2 * step), u - signs * radius
        return (moved + kept) / 2, signs * (moved - kept) / 2
    low, high = (_balanced if not divergence.quadratic else _folded)(divergence, u, radius, z, step)
    return (low + high) / 2, (high - low) / 2


def _folded(d: Divergence, u: Tensor, radius: Tensor, z: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Quadratic: f = c/2 (|e| + b)^2 with e = a - z; returns a - b and a + b."""
    t, e, sign = d.curvature * step, (u - z).abs(), (u - z).sign()
    total = (e + radius).clamp(min=0) / (1 + 2 * t)
    off = e - t * total
    a = z + sign * off.clamp(min=0)
    b = torch.where(off >= 0, radius - t * total, radius / (1 + t))
    return a - b, a + b


def _balanced(d: Divergence, u: Tensor, radius: Tensor, z: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """max(f, g) = max over theta of theta f + (1 - theta) g: each end takes its fraction of the step, chosen so that f = g."""
    low, high = u - radius, u + radius

    def ends(theta: Tensor) -> tuple[Tensor, Tensor]:
        return _part_prox(d, low, z, 2 * step * theta), _part_prox(d, high, z, 2 * step * (1 - theta))

    def tilt(theta: Tensor) -> Tensor:
        a, b = ends(theta)
        return unit_values(d, a, z) - unit_values(d, b, z)

    zero, one = torch.zeros_like(u), torch.ones_like(u)
    inner = root(tilt, zero + _LEAST, one - _LEAST)
    theta = torch.where(tilt(zero) <= 0, zero, torch.where(tilt(one) >= 0, one, inner))
    return ends(theta)


def _part_prox(d: Divergence, v: Tensor, z: Tensor, step: Tensor) -> Tensor:
    """The prox, and v itself where the step is 0."""
    return torch.where(step > 0, prox_of(d, v, z, step.where(step > 0, torch.ones_like(step))), v)
