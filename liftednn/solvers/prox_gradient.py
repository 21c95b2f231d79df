"""Accelerated proximal gradient that never rises, for  F(x) = f(A x, x) + g(x)  on a list of tensors.

The affine image A x is carried along: the image of an extrapolated point is the extrapolated image, so that an iteration costs one
forward and one adjoint product. Where F separates over rows its value is one number per row, and each row accepts, extrapolates and
restarts on its own: a step that would raise F is undone and followed by a plain one, which cannot (step <= 1 / curvature). Values that
differ by less than their rounding count as equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

__all__ = ["Composite", "ProxResult", "prox_gradient"]

# The residual at x costs a gradient of its own, so it is looked at every so many steps; a solve that has made no progress beyond
# rounding at so many looks counts as stalled.
_CHECK, _PATIENCE = 4, 8

Point = list[Tensor]
Metric = Callable[[Point], Point]


class Composite(Protocol):
    """What the solver needs to know of a problem."""

    def image(self, x: Point) -> Point:
        """A x, affine."""

    def value(self, x: Point, image: Point) -> Tensor:
        """F(x): a scalar, or (n,) where F separates over the rows of every tensor in x."""

    def gradient(self, x: Point, image: Point) -> Point:
        """Gradient of the smooth part."""

    def prox(self, x: Point, step: float) -> Point:
        """argmin_v g(v) + |v - x|^2 / (2 step)."""


@dataclass(frozen=True)
class ProxResult:
    """kkt = max |x - prox(x - gradient, 1)| / scale, the residual of the optimality condition at the returned point."""

    x: Point
    kkt: float
    n_iter: int
    status: Literal["converged", "max_iter", "stalled"]


def prox_gradient(
    problem: Composite,
    start: Point,
    step: float | Metric,
    tol: float = 1e-6,
    max_iter: int = 500,
    scale: float | None = None,
) -> ProxResult:
    """Minimise F from a start inside its domain.

    step    1 / (Lipschitz constant of the gradient), or a metric: a function that maps the gradient of a problem without prox to
            the step of a quadratic upper bound (one Cholesky factor, say)
    scale   what the residual is measured against; None for max |gradient at 0|
    """
    at = _Iterate.begin(problem, start)
    scale = scale or _largest(problem.gradient(*_origin(problem, start))) or 1.0
    residual, n_iter = _residual(problem, at), 0
    while residual > tol * scale and n_iter < max_iter and not at.stalled:
        at.advance(problem, step)
        n_iter += 1
        if n_iter % _CHECK == 0 or n_iter == max_iter:
            before, residual = residual, _residual(problem, at)
            at.take_stock(residual < 0.9 * before)
    status = "converged" if residual <= tol * scale else "stalled" if at.stalled else "max_iter"
    return ProxResult(at.x, residual / scale, n_iter, status)


@dataclass
class _Iterate:
    """The point x and the extrapolated point y; for each row (or for all) the lowest value so far and the momentum."""

    x: Point
    image: Point
    lowest: Tensor
    y: Point
    y_image: Point
    momentum: Tensor
    checked: Tensor
    idle: int = 0

    @classmethod
    def begin(cls, problem: Composite, x: Point) -> _Iterate:
        image = problem.image(x)
        value = problem.value(x, image)
        if not bool(value.isfinite().all()):
            raise ValueError("prox_gradient must start inside the domain: the objective is not finite at `start`")
        return cls(x, image, value, x, image, torch.ones_like(value), value)

    @property
    def stalled(self) -> bool:
        return self.idle >= _PATIENCE

    def advance(self, problem: Composite, step: float | Metric) -> None:
        candidate = _step(problem, self.y, self.y_image, step)
        image = problem.image(candidate)
        value = problem.value(candidate, image)
        accepted = value <= self.lowest + self._rounding()
        self._move(_pick(accepted, candidate, self.x), _pick(accepted, image, self.image), accepted)
        self.lowest = torch.minimum(self.lowest, value)

    def _rounding(self) -> Tensor:
        return 4 * torch.finfo(self.x[0].dtype).eps * self.lowest.abs()

    def take_stock(self, closer: bool) -> None:
        """Count the checks since which neither the residual nor any row's value, beyond rounding, has improved."""
        progress = closer or bool((self.lowest < self.checked - self._rounding()).any())
        self.idle, self.checked = 0 if progress else self.idle + 1, self.lowest

    def _move(self, x: Point, image: Point, accepted: Tensor) -> None:
        one = torch.ones_like(self.momentum)
        momentum = torch.where(accepted, (1 + (1 + 4 * self.momentum**2).sqrt()) / 2, one)
        beta = torch.where(accepted, (self.momentum - 1) / momentum, one - 1)
        self.y, self.y_image = _extrapolate(x, self.x, beta), _extrapolate(image, self.image, beta)
        self.x, self.image, self.momentum = x, image, momentum


def _origin(problem: Composite, x: Point) -> tuple[Point, Point]:
    zero = [torch.zeros_like(part) for part in x]
    return zero, problem.image(zero)


def _largest(parts: Point) -> float:
    return max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)


def _step(problem: Composite, y: Point, image: Point, step: float | Metric) -> Point:
    """The minimiser of the quadratic upper bound at y."""
    gradient = problem.gradient(y, image)
    if callable(step):
        return [a - d for a, d in zip(y, step(gradient), strict=True)]
    return problem.prox([torch.add(a, g, alpha=-step) for a, g in zip(y, gradient, strict=True)], step)


def _residual(problem: Composite, at: _Iterate) -> float:
    gradient = problem.gradient(at.x, at.image)
    moved = problem.prox([a - g for a, g in zip(at.x, gradient, strict=True)], 1.0)
    return _largest([a - m for a, m in zip(at.x, moved, strict=True)])


def _pick(accepted: Tensor, new: Point, old: Point) -> Point:
    if accepted.device.type == "cpu" and bool(accepted.all()):  # saves a pass; on a GPU the question would cost more
        return new
    return [torch.where(accepted[..., None], a, b) for a, b in zip(new, old, strict=True)]


def _extrapolate(new: Point, old: Point, beta: Tensor) -> Point:
    return [torch.lerp(b, a, (1 + beta[..., None]).to(a.dtype)) for a, b in zip(new, old, strict=True)]
