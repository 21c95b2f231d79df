"""Independent noise on the rows: the expected energy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Divergence, Operator, Penalty, Uncertainty
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.robust.sizes import (
    check_covariance,
    check_sizes,
    misfit,
    one_each,
    per_column,
    quadratic_form,
    read,
    why_not_smooth,
)
from liftednn.robust.terms import NoiseTerm

__all__ = ["Noise"]

# For an operator with several positions: the most entries of a sample, and the rows that are formed at a time.
_MOST, _ROWS = 4096, 8192


@dataclass(frozen=True, eq=False)
class Noise(Uncertainty):
    """Rows x + delta, E delta = 0, cov delta = Sigma, independent of everything else. The term is

        mean D(u, z) + (c/2) tr(w Sigma w')  >=  E mean D(u + delta w', z),     c the curvature of D in u,

    with equality for a quadratic D. For a convolution delta is on the entries of a sample, and Sigma that of its patches, added up over
    positions; there is none in the padding.

    sigma   the standard deviation: a number for all inputs, or one for each, (p,); or Sigma itself, (p, p)
    Arrays and lists become tensors.

    >>> layer = lnn.Layer(lnn.operators.Dense(2, 1), lnn.losses.SquaredError(), uncertainty=lnn.robust.Noise(sigma=0.5))
    >>> round(layer.term(mean=1.0, w=torch.tensor([[0.6, 0.8]])), 4)
    1.25
    """

    sigma: float | Tensor = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", read("sigma", self.sigma))
        check_sizes("sigma", self.sigma, (0, 1, 2))
        if self._matrix is not None:
            check_covariance("a covariance matrix", self._matrix)

    @property
    def _matrix(self) -> Tensor | None:
        """Sigma, where that was given."""
        return self.sigma if isinstance(self.sigma, Tensor) and self.sigma.ndim == 2 else None

    def covariance(self, width: int, like: Tensor) -> Tensor:
        """Sigma (p, p), as `like` is."""
        if self._matrix is not None:
            return self._matrix.to(like)
        deviations = one_each("sigma", self.sigma, width, like)
        return torch.diag(deviations.square())

    def why_not_operator(self, operator: Operator) -> str:
        """Positions are added up, each with the noise of its own entries; a sum of states would add the noise to the outputs too."""
        if operator.grouped or operator.skips or len(operator.in_shapes) > 1:
            return f"noise needs an operator of one state, without groups and without a residual sum, got {operator!r}"
        if not operator.plain and operator.in_widths[0] > _MOST:
            return f"noise on the rows of {operator!r} is computed for at most {_MOST} entries of a sample, got {operator.in_widths[0]}"
        return ""

    def of_rows(self, operator: Operator) -> Noise:
        """With S'S = Sigma, its covariance is R'R, R the rows of S, since these are linear in the state."""
        p = operator.weight_shape[-1]
        found = torch.zeros(p, p, dtype=torch.float64)
        for part in torch.split(self._root(operator.in_widths[0]), max(1, _ROWS // operator.positions)):
            rows = operator.rows([part])
            found += rows.T @ rows
        return replace(self, sigma=found)

    def _root(self, width: int) -> Tensor:
        """S (p, p) in float64, on the CPU."""
        if self._matrix is None:
            return torch.diag(one_each("sigma", self.sigma, width, torch.empty(0, dtype=torch.float64)))
        values, vectors = torch.linalg.eigh(self._matrix.double().cpu())
        root: Tensor = values.clamp(min=0).sqrt()[:, None] * vectors.T
        return root

    def why_not(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        return why_not_smooth("noise", divergence) or misfit("sigma", self.sigma, shape)

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean + curvature / 2 * quadratic_form(w, self.covariance(w.shape[1], w.double()))

    def update_weights(self, problem: WeightProblem) -> WeightStep:
        """A plain step: the Gram matrix is that of the noisy rows."""
        return problem.solve(noise=self.covariance(problem.width, problem.gram))

    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        return NoiseTerm(divergence, lam, self.covariance(w.shape[1], w))

    def deviations(self, width: int) -> Tensor:
        return self.covariance(width, torch.empty(0, dtype=torch.float64)).diagonal().sqrt()

    def scaled(self, factor: float) -> Noise:
        return replace(self, sigma=self.sigma * (factor if self._matrix is None else factor**2))

    def columns(self, factors: Tensor) -> Noise:
        return replace(self, sigma=per_column("sigma", self.sigma, factors))

    def through(self, basis: Tensor) -> Noise:
        precise = basis.double()
        covariance = precise.T @ self.covariance(len(basis), precise) @ precise
        return replace(self, sigma=(covariance + covariance.T) / 2)

    def restrict(self, inputs: Tensor) -> Noise | None:
        if not isinstance(self.sigma, Tensor):
            return self
        kept = inputs.to(self.sigma.device)
        sigma = self.sigma[kept] if self._matrix is None else self.sigma[kept][:, kept]
        return replace(self, sigma=sigma) if bool(sigma.any()) else None
