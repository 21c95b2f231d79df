"""Accelerated proximal gradient that does not rise, for  F(x) = f(A x, x) + g(x)  on a list of tensors.

An iteration costs one forward and one adjoint product. Every few of them F is looked at. Where it separates over rows its value is one
number per row, and each row is judged on its own: where F has risen beyond rounding, the row goes back to where it was and takes plain
steps, which cannot raise F (step <= 1 / curvature), until the next look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from liftednn.checks import check_count, check_number, check_tensors

__all__ = ["Composite", "ProxResult", "prox_gradient"]

# Steps between two looks at F and at the residual, and the looks without progress after which a solve counts as stalled.
_CHECK, _PATIENCE = 4, 8

Point = list[Tensor]
Metric = Callable[[Point], Point]
Status = Literal["converged", "max_iter", "stalled"]


class Composite(Protocol):
    """What the solver needs to know of a problem."""

    def image(self, x: Point) -> Point:
        """A x, affine."""

    def value(self, x: Point, image: Point) -> Tensor:
        """F(x): a scalar, or (n,) where F separates over the rows of every tensor in x."""

    def gradient(self, x: Point, image: Point) -> Point:
        """Gradient of the smooth part."""

    def prox(self, x: Point, step: float) -> Point:
        """argmin_v g(v) + |v - x|^2 / (2 step), in the precision of x: float64 for the residual."""


@dataclass(frozen=True)
class ProxResult:
    """kkt = L max |x - prox(x - gradient / L, 1 / L)| / scale, the residual of the optimality condition at the returned point.

    L = 1 / step is the curvature, so that the units of x do not matter; where the step is a metric, kkt = max |gradient| / scale.
    """

    x: Point
    kkt: float
    n_iter: int
    status: Status


def prox_gradient(
    problem: Composite,
    start: Point,
    step: float | Metric,
    tol: float = 1e-6,
    max_iter: int = 500,
    scale: float | None = None,
    convexity: float = 0.0,
) -> ProxResult:
    """Minimise F from a start inside its domain.

    step        1 / (Lipschitz constant of the gradient), or a metric: a function that maps the gradient of a problem without prox to
                the step of a quadratic upper bound (one Cholesky factor, say)
    scale       what the residual is measured against; None for max |gradient at 0|
    convexity   modulus of strong convexity of g, where it is known: bounds the momentum
    """
    check_number("step", 1.0 if callable(step) else step, infinite=True)
    check_number("tol", tol, zero=True)
    check_number("convexity", convexity, zero=True)
    check_count("max_iter", max_iter)
    check_number("scale", 1.0 if scale is None else scale, zero=True, infinite=True)
    if not isinstance(start, (list, tuple)) or not start:
        raise ValueError(f"start must be a list of tensors, at least one, got {start!r}")
    check_tensors(**{f"start[{index}]": part for index, part in enumerate(start)})
    at = _Iterate.begin(problem, start, step, _momentum_bound(step, convexity))
    scale = scale or _largest(problem.gradient(*_origin(problem, start))) or 1.0
    n_iter = 0
    while at.residual > tol * scale and n_iter < max_iter and at.idle < _PATIENCE:
        count = min(_CHECK, max_iter - n_iter)
        for _ in range(count):
            at.advance(problem)
        at.look(problem)
        n_iter += count
    status: Status = "converged" if at.residual <= tol * scale else "stalled" if at.idle >= _PATIENCE else "max_iter"
    return ProxResult(at.best, at.residual / scale, n_iter, status)


@dataclass
class _Iterate:
    """The iterate x, the extrapolated y, the momentum, which rows take plain steps (None: none), and what was best at the last look."""

    x: Point
    y: Point
    step: float | Metric
    bound: float
    best: Point
    value: Tensor
    residual: float
    momentum: float = 1.0
    plain: Tensor | None = None
    idle: int = 0

    @classmethod
    def begin(cls, problem: Composite, x: Point, step: float | Metric, bound: float) -> _Iterate:
        image = problem.image(x)
        value = problem.value(x, image)
        if not bool(value.isfinite().all()):
            raise ValueError("prox_gradient must start inside the domain: the objective is not finite at `start`")
        return cls(x, x, step, bound, x, value, _residual(problem, x, image, step))

    def advance(self, problem: Composite) -> None:
        new = _step(problem, self.y, self.step)
        momentum = (1 + math.sqrt(1 + 4 * self.momentum**2)) / 2
        beta = min((self.momentum - 1) / momentum, self.bound)
        self.y = [torch.lerp(old, a, 1 + beta) for a, old in zip(new, self.x, strict=True)]
        if self.plain is not None:
            self.y = _pick(self.plain, new, self.y)
        self.x, self.momentum = new, momentum

    def look(self, problem: Composite) -> None:
        """Keep what did not rise, send the rest back; the momentum begins anew where that is most of them."""
        image = problem.image(self.x)
        value = problem.value(self.x, image)
        rounding = 4 * torch.finfo(self.x[0].dtype).eps * self.value.abs()
        risen = ~(value <= self.value + rounding)
        self.plain = risen if bool(risen.any()) else None
        if self.plain is not None:
            self.x = _pick(risen, self.best, self.x)
            self.y = _pick(risen, self.x, self.y)
            self.momentum = 1.0 if 2 * int(risen.sum()) > risen.numel() else self.momentum
            image = problem.image(self.x)
        residual = _residual(problem, self.x, image, self.step)
        progress = residual < 0.9 * self.residual or bool((value < self.value - rounding).any())
        self.idle = 0 if progress else self.idle + 1
        self.best, self.value, self.residual = self.x, torch.fmin(value, self.value), residual


def _pick(rows: Tensor, there: Point, elsewhere: Point) -> Point:
    """`there` in those rows (or everywhere, if `rows` is one answer for all), `elsewhere` in the others."""
    return [torch.where(rows[..., None], a, b) for a, b in zip(there, elsewhere, strict=True)]


def _momentum_bound(step: float | Metric, convexity: float) -> float:
    """Nesterov's constant momentum for a problem of known condition, 1 where it is not known."""
    if callable(step) or not convexity:
        return 1.0
    root = math.sqrt(1 + 1 / (step * convexity))
    return (root - 1) / (root + 1)


def _origin(problem: Composite, x: Point) -> tuple[Point, Point]:
    zero = [torch.zeros_like(part) for part in x]
    return zero, problem.image(zero)


def _largest(parts: Point) -> float:
    return max((float(part.abs().max()) for part in parts if part.numel()), default=0.0)


def _step(problem: Composite, y: Point, step: float | Metric) -> Point:
    """The minimiser of the quadratic upper bound at y."""
    gradient = problem.gradient(y, problem.image(y))
    if callable(step):
        return [a - d for a, d in zip(y, step(gradient), strict=True)]
    return problem.prox([torch.add(a, g, alpha=-step) for a, g in zip(y, gradient, strict=True)], step)


def _residual(problem: Composite, x: Point, image: Point, step: float | Metric) -> float:
    """In float64 from the gradient on: x - prox(x - step gradient) is a small difference of large numbers, and never counts as less
    than their rounding."""
    gradient = problem.gradient(x, image)
    if callable(step):
        return _largest(gradient)
    precise = [part.double() for part in x]
    moved = problem.prox([torch.add(a, g.double(), alpha=-step) for a, g in zip(precise, gradient, strict=True)], step)
    distance = _largest([a - m for a, m in zip(precise, moved, strict=True)])
    return max(distance, torch.finfo(torch.float64).eps / 2 * _largest(precise)) / step
