"""Accelerated proximal gradient with a monotone objective, for  F(x) = f(A x, x) + g(x)  on a list of tensors.

An iteration costs one forward and one adjoint product. F is checked every few iterations. Where F has risen beyond rounding, the iterate
returns to the last check, its momentum restarts, and it takes plain steps, which cannot raise F (step <= 1 / curvature), until the next
check. Where F separates over rows its value is one number per row, and each row is iterated independently: it has its own momentum,
returns alone, and stops at the first check where it has converged or stalled. Other rows affect it only through the scale of the
residual, which can be given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.checks import check_count, check_number, check_tensors

__all__ = ["Composite", "ProxResult", "gradient_scale", "prox_gradient"]

# Steps between two checks of F and of the residual, and the checks without progress after which a solve is taken as stalled.
_CHECK, _PATIENCE = 4, 8
# How many units of rounding F may rise by, and how many where the residual falls: F is a sum, whose parts may be larger than itself.
_ROUNDING, _ROUNDING_OF_SUMS = 4, 64

Point = list[Tensor]
Metric = Callable[[Point], Point]
Status = Literal["converged", "max_iter", "stalled"]


class Composite(Protocol):
    """The problem, as the solver needs it: f through `forward` and `gradient`, g through `prox`, F through `value`.

    >>> class Lasso:
    ...     def forward(self, x):
    ...         return x
    ...     def value(self, x, ax):
    ...         return (ax[0] - 3).square().sum() / 2 + x[0].abs().sum()
    ...     def gradient(self, x, ax):
    ...         return [ax[0] - 3]
    ...     def prox(self, x, step):
    ...         return [lnn.functional.soft_threshold(x[0], step)]
    >>> lnn.solvers.prox_gradient(Lasso(), [torch.zeros(2)], step=1.0).x[0].round(decimals=3)
    tensor([2., 2.])
    """

    def forward(self, x: Point) -> Point:
        """A x, affine; where F separates, row by row too."""

    def value(self, x: Point, ax: Point) -> Tensor:
        """F(x): a scalar, or (n,) where F separates over the rows of every tensor in x."""

    def gradient(self, x: Point, ax: Point) -> Point:
        """Gradient of the smooth part."""

    def prox(self, x: Point, step: float) -> Point:
        """argmin_v g(v) + |v - x|^2 / (2 step), in the precision of x: float64 for the residual."""


@dataclass(frozen=True)
class ProxResult:
    """What `prox_gradient` returns.

    x        the minimiser, a list of tensors
    kkt      L max |x - prox(x - gradient / L, 1 / L)| / scale, the residual of the optimality condition at x. L = 1 / step is the
             curvature, so that the units of x do not matter; where the step is a metric, kkt = max |gradient| / scale
    n_iter   the number of iterations
    status   "converged" (kkt <= tol), "max_iter", or "stalled" where further steps do not help

    Where F separates over rows, kkt and n_iter are the largest of all rows.

    >>> lnn.solvers.ProxResult([torch.zeros(2)], kkt=1e-7, n_iter=8, status="converged").status
    'converged'
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
    scale: float | Tensor | None = None,
    convexity: float = 0.0,
) -> ProxResult:
    """Minimise F from a start inside its domain; returns a `ProxResult`.

    problem     a `Composite`
    start       a list of tensors
    step        1 / (Lipschitz constant of the gradient), or a metric: a function that maps the gradient of a problem without prox to
                the step of a quadratic upper bound (by a Cholesky factor, for example)
    tol         the relative residual `kkt` at which to stop
    max_iter    iterations at most
    scale       the residual is relative to this; None for max |gradient at 0|. Where the problem holds only some of the rows, give the
                largest `gradient_scale` of all parts: each row then has the solution of one call for all rows. Where the problem
                separates over rows, one for each, (n,), is possible too
    convexity   modulus of strong convexity of g, if known: it bounds the momentum

    >>> from types import SimpleNamespace
    >>> nearest = SimpleNamespace(  # the non-negative point nearest to (-1, 2)
    ...     forward=lambda x: x,
    ...     value=lambda x, ax: (ax[0] - torch.tensor([-1.0, 2.0])).square().sum() / 2,
    ...     gradient=lambda x, ax: [ax[0] - torch.tensor([-1.0, 2.0])],
    ...     prox=lambda x, step: [x[0].relu()],
    ... )
    >>> lnn.solvers.prox_gradient(nearest, [torch.zeros(2)], step=1.0).x[0].round(decimals=3)
    tensor([0., 2.])
    """
    check_number("step", 1.0 if callable(step) else step, infinite=True)
    check_number("tol", tol, zero=True)
    check_number("convexity", convexity, zero=True)
    check_count("max_iter", max_iter)
    if not isinstance(scale, Tensor):
        check_number("scale", 1.0 if scale is None else scale, zero=True, infinite=True)
    if not isinstance(start, (list, tuple)) or not start:
        raise ValueError(f"start must be a list of tensors, at least one, got {start!r}")
    check_tensors(**{f"start[{index}]": part for index, part in enumerate(start)})
    scale = reduce.largest(gradient_scale(problem, start)) if scale is None else scale
    scale = torch.where(scale > 0, scale, 1.0) if isinstance(scale, Tensor) else scale or 1.0
    at = _Iterate.begin(problem, start, step, _momentum_bound(step, convexity), tol * scale)
    n_iter = 0
    while n_iter < max_iter and not bool(at.done.all()):
        count = min(_CHECK, max_iter - n_iter)
        for _ in range(count):
            at.advance(problem)
        at.check(problem)
        n_iter += count
    converged, done = bool((at.residual <= at.goal).all()), bool(at.done.all())
    status: Status = "converged" if converged else "stalled" if done else "max_iter"
    kkt = float((at.residual / scale).max()) if at.residual.numel() else 0.0
    return ProxResult(at.best, kkt, n_iter, status)


def gradient_scale(problem: Composite, start: Point) -> float:
    """max |gradient at 0| of a `problem`, which its residual is relative to; `start` has the shapes of a point.

    >>> from types import SimpleNamespace
    >>> problem = SimpleNamespace(forward=lambda x: x, gradient=lambda x, ax: [ax[0] - 3])
    >>> lnn.solvers.gradient_scale(problem, [torch.zeros(2)])
    3.0
    """
    zero = [torch.zeros_like(part) for part in start]
    gradient = problem.gradient(zero, problem.forward(zero))
    return max((float(part.abs().max()) for part in gradient if part.numel()), default=0.0)


@dataclass
class _Iterate:
    """The iterate x, the extrapolated y, the best point at the last check, and which rows take plain steps (None: no row).

    `value`, the least F so far, and the tensors after it have one entry per row where F separates over rows, and are scalars otherwise;
    `at_best` is F at the best point, which may be larger by rounding; `momentum` is a
    number until a row rises. Rows that are done are iterated with the others, and returned to the best point at every check.
    """

    x: Point
    y: Point
    step: float | Metric
    bound: float
    goal: Tensor | float
    best: Point
    ax: Point
    value: Tensor
    at_best: Tensor
    residual: Tensor
    without_progress: Tensor
    done: Tensor
    momentum: Tensor | float = 1.0
    plain: Tensor | None = None

    @classmethod
    def begin(cls, problem: Composite, x: Point, step: float | Metric, bound: float, goal: Tensor | float) -> _Iterate:
        ax = problem.forward(x)
        value = problem.value(x, ax)
        if not bool(value.isfinite().all()):
            raise ValueError("prox_gradient must start inside the domain: the objective is not finite at `start`")
        residual = _residual(problem, x, ax, step, value)
        without_progress = torch.zeros_like(value, dtype=torch.long)
        return cls(x, x, step, bound, goal, x, ax, value, value, residual, without_progress, residual <= goal)

    def advance(self, problem: Composite) -> None:
        new = _step(problem, self.y, self.step)
        self.momentum, weight = _next_momentum(self.momentum, self.bound)
        self.y = [_extrapolated(old, a, weight) for a, old in zip(new, self.x, strict=True)]
        if self.plain is not None:
            self.y = _pick(self.plain, new, self.y)
        self.x = new

    def check(self, problem: Composite) -> None:
        """Keep rows that did not rise and return the others to the best point; rows that are done do not change."""
        ax = problem.forward(self.x)
        value = problem.value(self.x, ax)
        residual = _residual(problem, self.x, ax, self.step, value)
        unit, closer = torch.finfo(self.x[0].dtype).eps * self.value.abs(), residual < 0.9 * self.residual
        most = self.value + _ROUNDING_OF_SUMS * unit
        allowed = torch.where(closer, most, torch.minimum(most, self.at_best + _ROUNDING * unit))
        risen = ~(value <= allowed) & ~self.done
        self.plain, back = risen if bool(risen.any()) else None, risen | self.done
        if self.plain is not None:
            self.x, ax = _pick(back, self.best, self.x), _pick(back, self.ax, ax)
            self.y = _pick(risen, self.x, self.y)
            self._restart(risen)
        elif bool(self.done.any()):  # their A x is not needed
            self.x = _pick(self.done, self.best, self.x)
        residual = torch.where(back, self.residual, residual)
        progress = (residual < 0.9 * self.residual) | (value < self.value - _ROUNDING * unit)
        self.without_progress = (self.without_progress + 1).masked_fill(progress, 0)
        self.best, self.ax, self.residual = self.x, ax, residual
        self.at_best = torch.where(back, self.at_best, value)
        self.value = torch.fmin(self.at_best, self.value)
        self.done = self.done | (residual <= self.goal) | (self.without_progress >= _PATIENCE)

    def _restart(self, rows: Tensor) -> None:
        """Restart the momentum of these rows."""
        if not isinstance(self.momentum, Tensor):
            self.momentum = torch.full_like(self.value, self.momentum, dtype=torch.float64)
        self.momentum = self.momentum.masked_fill(rows, 1.0)


def _next_momentum(momentum: Tensor | float, bound: float) -> tuple[Tensor | float, Tensor | float]:
    """The next momentum, and the weight of the new point in the extrapolation."""
    if not isinstance(momentum, Tensor):
        after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        return after, 1 + min((momentum - 1) / after, bound)
    found = (1 + (1 + 4 * momentum**2).sqrt()) / 2
    return found, 1 + ((momentum - 1) / found).clamp(max=bound)


def _extrapolated(old: Tensor, new: Tensor, weight: Tensor | float) -> Tensor:
    return torch.lerp(old, new, _beside(weight, new).to(new) if isinstance(weight, Tensor) else weight)


def _pick(rows: Tensor, there: Point, elsewhere: Point) -> Point:
    """`there` where `rows` (n,), or () for all rows, is true, `elsewhere` in the others."""
    return [torch.where(_beside(rows, a), a, b) for a, b in zip(there, elsewhere, strict=True)]


def _beside(rows: Tensor, other: Tensor) -> Tensor:
    """One number per row, (n,), or one number, in a shape that broadcasts with `other`, (n, ...)."""
    return rows.reshape(rows.shape + (1,) * (other.ndim - rows.ndim))


def _momentum_bound(step: float | Metric, convexity: float) -> float:
    """Nesterov's constant momentum for a problem of known condition, 1 where it is not known."""
    if callable(step) or not convexity:
        return 1.0
    root = math.sqrt(1 + 1 / (step * convexity))
    return (root - 1) / (root + 1)


def _step(problem: Composite, y: Point, step: float | Metric) -> Point:
    """The minimiser of the quadratic upper bound at y."""
    gradient = problem.gradient(y, problem.forward(y))
    if callable(step):
        return [a - d for a, d in zip(y, step(gradient), strict=True)]
    return problem.prox([torch.add(a, g, alpha=-step) for a, g in zip(y, gradient, strict=True)], step)


def _residual(problem: Composite, x: Point, ax: Point, step: float | Metric, value: Tensor) -> Tensor:
    """In the shape of `value`. In float64 from the gradient on: x - prox(x - step gradient) is a small difference of large numbers, and
    never taken as smaller than their rounding."""
    gradient = problem.gradient(x, ax)
    if callable(step):
        return _sizes(gradient, value)
    precise = [part.double() for part in x]
    moved = problem.prox([torch.add(a, g.double(), alpha=-step) for a, g in zip(precise, gradient, strict=True)], step)
    distance = _sizes([a - m for a, m in zip(precise, moved, strict=True)], value)
    return torch.maximum(distance, torch.finfo(torch.float64).eps / 2 * _sizes(precise, value)) / step


def _sizes(parts: Point, value: Tensor) -> Tensor:
    """max |entry|, of each row where `value` has rows."""
    sizes = [part.abs().flatten(value.ndim).amax(-1) for part in parts if part.shape[value.ndim :].numel()]
    return torch.stack(sizes).amax(0) if sizes else torch.zeros_like(value)
