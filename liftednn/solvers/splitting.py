"""Operator splitting (ADMM) for  F(x) = f(A x) + g(x)  where neither term is smooth.

Each term has its own copy, u = A x and w = x, and x solves a linear system whose matrix A'A + I never changes:

    u <- prox_f(A x - p),  w <- prox_g(x - q),  p += u - A x,  q += w - x,  x <- argmin |A x - u - p|^2 + |x - w - q|^2

The penalty sigma of the two constraints only rescales the proxes and the multipliers, so changing it needs no new factor.
The copies agree only in the limit; a point is accepted only if it lies in the domain of F and does not raise F above the start.

All rows of a call share sigma and stop together: a prox takes one step length for all, so that sigma cannot be balanced row by row. Where
F separates over rows, callers cut them into blocks of `ROWS` from the first row on, the same on every device, and give `scale`: then the
solution does not depend on the memory or the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from liftednn.checks import check_count, check_number, check_tensors

__all__ = ["ROWS", "Separable", "SplittingResult", "splitting"]

# Rows that are solved together where F separates over them, few enough for a CPU's cache. Rows of a block share sigma, so that this must
# not depend on the machine.
ROWS = 2048
_RELAXATION = 1.6
_CHECK = 25


class Separable(Protocol):
    """The problem, as the solver needs it. The adjoint is that of the linear part of A, in the inner product of prox_f.

    >>> class Median:  # |x - (1, 2, 6)|_1 for one number x
    ...     y = torch.tensor([[1.0, 2.0, 6.0]])
    ...     forward = lambda self, x: x.expand(1, 3)
    ...     adjoint = lambda self, u: u.sum(1, keepdim=True)
    ...     solve = lambda self, x: x / 4
    ...     prox_f = lambda self, u, step: self.y + lnn.functional.soft_threshold(u - self.y, step)
    ...     prox = lambda self, x, step: x
    ...     value = lambda self, x: (x - self.y).abs().sum()
    ...     retract = lambda self, x: x
    >>> lnn.solvers.splitting(Median(), torch.zeros(1, 1)).x.round(decimals=3).tolist()
    [[2.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        """A x, affine."""

    def adjoint(self, u: Tensor) -> Tensor:
        """A'u."""

    def solve(self, x: Tensor) -> Tensor:
        """(A'A + I)^-1 x."""

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        """prox of step f."""

    def prox(self, x: Tensor, step: float) -> Tensor:
        """prox of step g."""

    def value(self, x: Tensor) -> Tensor:
        """F(x): a scalar, or (n,) where F separates over rows; +inf outside the domain."""

    def retract(self, x: Tensor) -> Tensor:
        """A point near x that is inside the domain where x is a little outside; x itself if none is known."""


@dataclass(frozen=True)
class SplittingResult:
    """What `splitting` returns.

    x        the minimiser, in the shape of the start
    kkt      the largest of |A x - u| and |x - w|, relative to their size, and |A'f' + g'| / scale, at the returned x
    n_iter   the number of iterations
    status   "converged" (kkt <= tol) or "max_iter"

    >>> lnn.solvers.SplittingResult(torch.zeros(1, 2), kkt=1e-7, n_iter=25, status="converged").status
    'converged'
    """

    x: Tensor
    kkt: float
    n_iter: int
    status: Literal["converged", "max_iter"]


def splitting(
    problem: Separable,
    start: Tensor,
    sigma: float = 1.0,
    tol: float = 1e-6,
    max_iter: int = 5000,
    scale: float | None = None,
) -> SplittingResult:
    """Minimise F from a start inside its domain; the result is inside too and its value no higher. Returns a `SplittingResult`.

    problem    a `Separable`
    start      a tensor, rows (n, p) where F separates over rows
    sigma      initial penalty; residual balancing changes it
    tol        the relative residual `kkt` at which to stop
    max_iter   iterations at most
    scale      the stationarity residual A'f' + g' is relative to this; None for the largest size of its two terms so far

    >>> from types import SimpleNamespace
    >>> problem = SimpleNamespace(  # |x - 3|_1 on x <= 2
    ...     forward=lambda x: x,
    ...     adjoint=lambda u: u,
    ...     solve=lambda x: x / 2,
    ...     prox_f=lambda u, step: 3 + lnn.functional.soft_threshold(u - 3, step),
    ...     prox=lambda x, step: x.clamp(max=2),
    ...     value=lambda x: (x - 3).abs().sum() + torch.where(x > 2, torch.inf, 0.0).sum(),
    ...     retract=lambda x: x.clamp(max=2),
    ... )
    >>> lnn.solvers.splitting(problem, torch.zeros(1, 1)).x.round(decimals=3).tolist()
    [[2.0]]
    """
    check_number("sigma", sigma)
    check_number("tol", tol, zero=True)
    check_count("max_iter", max_iter)
    check_number("scale", 1.0 if scale is None else scale, zero=True)
    check_tensors(start=start)
    if not start.numel():
        raise ValueError(f"start must have entries, got the shape {tuple(start.shape)}")
    at = _Copies.begin(problem, start, sigma, scale)
    ceiling = problem.value(start)
    if not bool(ceiling.isfinite().all()):
        raise ValueError("splitting must start inside the domain: the objective is not finite at `start`")
    x, kkt, n_iter, goal, balance_at = start, torch.inf, 0, tol / 4, _CHECK
    while n_iter < max_iter and kkt > tol:
        at.advance(problem)
        n_iter += 1
        if n_iter % _CHECK and n_iter < max_iter:
            continue
        if at.residual(problem, at.x) <= goal or n_iter == max_iter:
            x = _lowest(problem, start, ceiling, [at.x, at.w])
            kkt, goal = (
                at.residual(problem, x),
                goal / 4,
            )  # continue to a smaller residual if the chosen point is not good enough
        if n_iter >= balance_at:  # more and more rarely, since the copies do not converge while sigma changes
            at.balance(problem)
            balance_at = int(1.5 * n_iter)
    return SplittingResult(x, kkt, n_iter, "converged" if kkt <= tol else "max_iter")


@dataclass
class _Copies:
    """x, A x, the copies u and w, and the scaled multipliers p and q."""

    x: Tensor
    ax: Tensor
    u: Tensor
    w: Tensor
    p: Tensor
    q: Tensor
    sigma: float
    scale: float | None
    largest: float = 0.0

    @classmethod
    def begin(cls, problem: Separable, x: Tensor, sigma: float, scale: float | None) -> _Copies:
        ax = problem.forward(x)
        return cls(x, ax, ax, x, torch.zeros_like(ax), torch.zeros_like(x), sigma, scale)

    def advance(self, problem: Separable) -> None:
        ax, x = torch.lerp(self.u, self.ax, _RELAXATION), torch.lerp(self.w, self.x, _RELAXATION)
        self.u, self.w = problem.prox_f(ax - self.p, 1 / self.sigma), problem.prox(x - self.q, 1 / self.sigma)
        self.p, self.q = self.p + self.u - ax, self.q + self.w - x
        self.x = self.x + problem.solve(problem.adjoint(self.u + self.p - self.ax) + self.w + self.q - self.x)
        self.ax = problem.forward(self.x)

    def _gaps(self, problem: Separable, x: Tensor) -> tuple[float, float]:
        """How far the copies are from x, and the multipliers from stationarity, both relative."""
        ax, adjoint = problem.forward(x), problem.adjoint(self.p)
        primal = max(_relative(ax - self.u, ax, self.u), _relative(x - self.w, x, self.w))
        self.largest = max(
            self.largest, self.sigma * float(adjoint.abs().max()), self.sigma * float(self.q.abs().max())
        )
        return primal, self.sigma * float((adjoint + self.q).abs().max()) / (self.scale or self.largest or 1.0)

    def residual(self, problem: Separable, x: Tensor) -> float:
        return max(self._gaps(problem, x))

    def balance(self, problem: Separable) -> None:
        """Residual balancing: a larger sigma closes the copies, a smaller one the stationarity."""
        primal, dual = self._gaps(problem, self.x)
        factor = 2.0 if primal > 5 * dual else 0.5 if dual > 5 * primal else 1.0
        self.sigma, self.p, self.q = self.sigma * factor, self.p / factor, self.q / factor


def _relative(difference: Tensor, *parts: Tensor) -> float:
    size = max(float(part.abs().max()) for part in parts)
    return float(difference.abs().max()) / (size or 1.0)


def _lowest(problem: Separable, start: Tensor, ceiling: Tensor, candidates: list[Tensor]) -> Tensor:
    """The best candidate, row by row where F separates; the start where every candidate is outside the domain or higher."""
    best, value = start, ceiling
    for candidate in [*candidates, *map(problem.retract, candidates)]:
        energy = problem.value(candidate)
        lower = energy <= value
        best, value = torch.where(lower[..., None], candidate, best), torch.where(lower, energy, value)
    return best
