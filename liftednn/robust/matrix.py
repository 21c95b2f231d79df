"""The worst case over a ball of matrices (robust least squares, El Ghaoui and Lebret 1997): square-root loss + eps |w|, squared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Divergence, Penalty, Uncertainty
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.robust.sizes import check_covariance, quadratic_form, read, why_not_smooth
from liftednn.robust.spectrum import ball_weights
from liftednn.robust.terms import CurvatureTerm

__all__ = ["BallTerm", "FrobeniusBall"]

# The fraction t stays in [LEAST, 1 - LEAST]: at 0 or 1 the other block could not change any more.
LEAST = 0.05
# Rounds of alternating updates of w and t, and the relative change of t that stops them.
_ROUNDS, _CONVERGED = 8, 1e-3


@dataclass(frozen=True, eq=False)
class FrobeniusBall(Uncertainty):
    """Rows X + Delta, |Delta|_F <= eps sqrt(n): eps bounds the root mean square over rows of |Delta_i|. The term is

        min over t in [.05, .95] of  a^2 / t + b^2 / (1 - t),     a^2 = mean D(u, z),  b = sqrt(c/2) eps |w|_F,

    which is (a + b)^2, "square-root loss + eps |w|" squared, where a and b are within a factor 19, and at most 1/19 above elsewhere.
    It is an upper bound on the worst case, and (a + b)^2 is the worst case itself for a quadratic D and one output. For q outputs |w|_F
    replaces the operator norm, and is at most sqrt(min(q, p)) times as large.

    eps      the size, a number
    metric   (p, p): |w|^2 = tr(w metric w'); None for the identity

    >>> w = torch.tensor([[0.6, 0.8]])
    >>> round(lnn.robust.FrobeniusBall(eps=0.5).term(mean=1.0, curvature=2.0, w=w), 4)
    2.25
    """

    eps: float = 0.1
    metric: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", read("eps", self.eps))
        if not isinstance(self.eps, float) or not 0 < self.eps < math.inf:
            raise ValueError(f"eps must be a positive number, the size per row, got {self.eps!r}")
        if self.metric is not None:
            object.__setattr__(self, "metric", metric := torch.as_tensor(read("metric", self.metric)))
            check_covariance("a metric", metric)

    def why_not(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        if self.metric is not None and self.metric.shape != (shape[1], shape[1]):
            return f"metric has shape {tuple(self.metric.shape)}, and the layer has {shape[1]} inputs: give ({shape[1]}, {shape[1]})"
        return why_not_smooth("a ball", divergence)

    def squared_norm(self, curvature: float, w: Tensor) -> float:
        """b^2."""
        return curvature / 2 * self.eps**2 * quadratic_form(w, self.metric)

    def fraction(self, mean: float, curvature: float, w: Tensor) -> float:
        """The minimising t."""
        a, b = math.sqrt(max(mean, 0.0)), math.sqrt(self.squared_norm(curvature, w))
        return fraction_of(a, b)

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        t = self.fraction(mean, curvature, w)
        return mean / t + self.squared_norm(curvature, w) / (1 - t)

    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        return 1 / self.fraction(mean(), curvature, w)

    def update_weights(self, problem: WeightProblem) -> WeightStep:
        """Minimise over w and t: jointly where the term is quadratic in w, otherwise alternately."""
        layer = problem.layer
        if layer.divergence.quadratic and layer.penalty.ridge is not None and self.metric is None:
            return ball_weights(problem, self.eps, LEAST)
        return self._in_turn(problem)

    def _in_turn(self, problem: WeightProblem) -> WeightStep:
        """w at fixed t, t at fixed w: neither raises the term, and it is jointly convex in both."""
        weights, n_iter, curvature = problem.current, 0, problem.layer.divergence.curvature
        fraction, before = self.fraction(problem.mean(weights), curvature, weights.w), math.inf
        for _ in range(_ROUNDS):
            noise = self.covariance(fraction, problem.width, problem.gram)
            step = problem.solve(noise, problem.layer.lam / fraction, weights)
            weights, n_iter, before = step.weights, n_iter + step.n_iter, fraction
            fraction = self.fraction(problem.mean(weights), curvature, weights.w)
            if abs(fraction - before) <= _CONVERGED * before:
                break
        return WeightStep(weights, max(step.kkt, abs(fraction - before) / before), n_iter, f"ball, {step.method}")

    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BallTerm:
        return BallTerm(self, divergence, lam, w)

    def deviations(self, width: int) -> Tensor:
        """Root mean squares, for an eps that is spread evenly over the inputs of a row."""
        spread = torch.ones(width, dtype=torch.float64) if self.metric is None else self.metric.double().diagonal()
        return self.eps * (spread / width).sqrt()

    def scaled(self, factor: float) -> FrobeniusBall:
        return replace(self, eps=self.eps * factor)

    def columns(self, factors: Tensor) -> FrobeniusBall:
        if self.metric is None and bool((factors == 1).all()):
            return self
        return self.through(torch.diag(factors))

    def through(self, basis: Tensor) -> FrobeniusBall:
        precise = basis.double()
        inner = precise if self.metric is None else self.metric.to(precise) @ precise
        return replace(self, metric=precise.T @ inner)

    def restrict(self, inputs: Tensor) -> FrobeniusBall:
        if self.metric is None:
            return self
        kept = inputs.to(self.metric.device)
        return replace(self, metric=self.metric[kept][:, kept])

    def covariance(self, fraction: float, width: int, like: Tensor) -> Tensor:
        """At a fixed t the term is  (mean D + (c/2) tr(w Sigma w')) / t, that of noise with covariance Sigma; returns Sigma (p, p)."""
        identity = torch.eye(width).to(like) if self.metric is None else self.metric.to(like)
        return self.eps**2 * fraction / (1 - fraction) * identity


def fraction_of(a: float, b: float) -> float:
    """argmin over t in [LEAST, 1 - LEAST] of a^2 / t + b^2 / (1 - t)."""
    return min(max(a / (a + b) if a + b > 0 else 0.5, LEAST), 1 - LEAST)


class BallTerm(CurvatureTerm):
    """At a fixed fraction t the term is  (mean D + (c/2) tr(w Sigma w')) / t,  and `update` updates t."""

    def __init__(self, kind: FrobeniusBall, divergence: Divergence, lam: float, w: Tensor) -> None:
        super().__init__(divergence, lam, w, 0.5)
        self.kind, self.matrix = kind, kind.covariance(0.5, w.shape[1], w)  # eps^2 times the metric

    def noise(self) -> Tensor:
        return self.matrix / (1 - self.fraction)

    def update(
        self, w: Tensor, u: Tensor, z: Tensor, radius_gradient: Tensor | None, row_weights: Tensor | None
    ) -> None:
        curvature, mean = self.divergence.curvature, float(reduce.mean(self.divergence.value(u, z), row_weights))
        self.curvature.fill_(curvature)
        self.fraction.fill_(self.kind.fraction(mean, curvature, w))

    def state(self) -> dict[str, Tensor]:
        return {"share": self.fraction, "divergence_curvature": self.curvature}
