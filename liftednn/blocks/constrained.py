"""The W-step (sec. 6.1) under a non-convex penalty, and every W-step that needs the data only through its Gram matrix.

With the centred moments G of the inputs and C of inputs and targets, and a = lam curvature / 2, a quadratic divergence leaves

    min_w  a (tr(w G w') - 2 tr(w C)) + pi(w)

The penalty may have a formula for the minimiser (Procrustes, reduced-rank regression). Otherwise the quadratic is majorised at w by the
one of curvature 2 a lambda_max(G), whose minimiser is one prox; for orthogonal matrices

    w <- polar(w (tau I - G) + C'),    tau = lambda_max(G)

and the objective does not rise. For other divergences of finite curvature the same is done with pseudo-targets, updated at every step.
Steps are extrapolated, and repeated without extrapolation where the objective would rise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.blocks.design import NEGLIGIBLE
from liftednn.solvers import Factor

__all__ = ["Quadratic", "Smooth", "majorised"]

# Steps on the Gram matrix for each new set of pseudo-targets, which costs two passes over the rows.
_INNER = 10

Point = list[Tensor]


@dataclass(frozen=True)
class Quadratic:
    """a (tr(w G w') - 2 tr(w C)) + pi(w), in float64.

    weight    a
    largest   the largest eigenvalue of G
    factor    (a, rho) -> the factor of a G + rho I
    """

    gram: Tensor
    cross: Tensor
    weight: float
    penalty: Penalty
    largest: float
    factor: Callable[[float, float], Factor]

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant of the gradient; any positive number for constant inputs."""
        return 2 * self.weight * (self.largest if self.largest > NEGLIGIBLE else 1.0)

    @property
    def scale(self) -> float:
        """max |gradient at 0|."""
        return float(2 * self.weight * self.cross.abs().max()) or 1.0

    def forward(self, x: Point) -> Point:
        return [x[0] @ self.gram]

    def value(self, x: Point, ax: Point) -> Tensor:
        quadratic = (ax[0] * x[0]).sum() - 2 * (x[0].T * self.cross).sum()
        return self.weight * quadratic + self.penalty.value(x[0])

    def gradient(self, x: Point, ax: Point) -> Point:
        return [2 * self.weight * (ax[0] - self.cross.T)]

    def prox(self, x: Point, step: float) -> Point:
        return [self.penalty.prox(x[0], step)]

    def step(self, w: Tensor, ax: Tensor | None = None) -> tuple[Tensor, float]:
        """The minimiser of the majorant at w, and the residual: its distance from w times the curvature, relative to `scale`."""
        gradient = self.gradient([w], self.forward([w]) if ax is None else [ax])[0]
        moved = self.penalty.prox(w - gradient / self.lipschitz, 1 / self.lipschitz)
        return moved, self.lipschitz * float((moved - w).abs().max()) / self.scale

    def _ridge(self, rho: float) -> Tensor:
        return self.factor(self.weight, rho).solve(self.weight * self.cross).T

    def minimise(self, start: Tensor, tol: float, max_iter: int) -> tuple[Tensor, int]:
        """The minimiser where a formula is known, else steps from `start` until the residual is at most `tol`; and the number of steps."""
        exact = self.penalty.minimiser(self.cross, self._ridge)
        if exact is not None:
            return exact, 1

        def advance(x: Point) -> tuple[Point, float]:
            moved, residual = self.step(*x)
            return [moved, *self.forward([moved])], residual

        begin = [start, *self.forward([start])]
        found, count = _descend(begin, advance, lambda x: float(self.value(x[:1], x[1:])), tol, max_iter)
        return found[0], count


class Smooth(Protocol):
    """lam mean D in centred coordinates (w, c), in the precision of the data."""

    def forward(self, x: Point) -> Point: ...

    def value(self, x: Point, ax: Point) -> Tensor: ...

    def gradient(self, x: Point, ax: Point) -> Point: ...


def majorised(
    problem: Smooth, start: Point, quadratic: Callable[[Tensor], Quadratic], scale: float, tol: float, max_iter: int
) -> tuple[Point, float, int]:
    """Descent on pseudo-targets; `quadratic` maps a cross moment C to the problem of a quadratic divergence of the same curvature.

    Returns the point, its residual and the number of steps.
    """

    def majorant(x: Point) -> tuple[Quadratic, Tensor, float]:
        """At x, with t = u - grad / curvature for w, the gradient in c, and the residual."""
        gradient = problem.gradient(x[:2], x[2:])
        model, w = quadratic(gradient[0].double().T), x[0].double()
        model = replace(model, cross=model.gram @ w.T - model.cross / (2 * model.weight))
        largest = max(model.step(w)[1] * model.scale, float(gradient[1].abs().max()))
        return model, gradient[1], largest / scale

    def advance(x: Point) -> tuple[Point, float]:
        model, slope, residual = majorant(x)
        w, _ = model.minimise(x[0].double(), tol, _INNER)
        moved = [w.to(x[0].dtype), x[1] - slope / (2 * model.weight)]
        return [*moved, *problem.forward(moved)], residual

    begin = [*start, *problem.forward(start)]
    found, count = _descend(begin, advance, lambda x: float(problem.value(x[:2], x[2:])), tol, max_iter)
    return found[:2], majorant(found)[2], count


def _descend(
    start: Point,
    advance: Callable[[Point], tuple[Point, float]],
    value: Callable[[Point], float],
    tol: float,
    max_iter: int,
) -> tuple[Point, int]:
    """Nesterov's extrapolation, undone where the value would rise; `advance` returns the next point and the residual of the given one.

    A point may also hold A x, linear in its variables, after them: it is extrapolated too, and need not be computed again.
    """
    x, previous, best, momentum = start, start, value(start), 1.0
    rounding = 4 * torch.finfo(start[0].dtype).eps
    for count in range(1, max_iter + 1):
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        beta = (momentum - 1) / following
        trial, residual = advance([torch.lerp(old, new, 1 + beta) for old, new in zip(previous, x, strict=True)])
        reached = value(trial)
        if not reached <= best and beta > 0:
            following = 1.0
            trial, residual = advance(x)
            reached = value(trial)
        if not reached <= best + rounding * abs(best):
            return x, count
        previous, x, best, momentum = x, trial, min(reached, best), following
        if residual <= tol:
            return x, count
    return x, max_iter
