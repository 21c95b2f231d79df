"""Independent noise on the rows: the expected energy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Divergence, Penalty
from liftednn.robust.uncertainty import Uncertainty, check_sizes, misfit, one_each, per_column, quadratic_form

__all__ = ["Noise"]


@dataclass(frozen=True, eq=False)
class Noise(Uncertainty):
    """Rows x + delta, E delta = 0, cov delta = Sigma, independent of everything else. The term is

        mean D(u, z) + (c/2) tr(w Sigma w')  >=  E mean D(u + delta w', z),     c the curvature of D in u,

    with equality for a quadratic D.

    sigma   the standard deviation: a number for all inputs, or one for each, (p,); or Sigma itself, (p, p)
    """

    sigma: float | Tensor = 0.1

    def __post_init__(self) -> None:
        check_sizes("sigma", self.sigma, (0, 1, 2))
        if isinstance(self.sigma, Tensor) and self.sigma.ndim == 2:
            matrix, size = self.sigma.double(), 1e-6 * float(self.sigma.abs().max())
            square = matrix.shape[0] == matrix.shape[1]
            if not square or not torch.allclose(matrix, matrix.T, atol=size):
                raise ValueError(f"a covariance matrix is symmetric, got shape {tuple(matrix.shape)}")
            if float(torch.linalg.eigvalsh(matrix)[0]) < -len(matrix) * size:
                raise ValueError("a covariance matrix has no negative eigenvalues, and this one has some")

    def covariance(self, width: int, like: Tensor) -> Tensor:
        """Sigma (p, p), as `like` is."""
        if isinstance(self.sigma, Tensor) and self.sigma.ndim == 2:
            return self.sigma.to(like)
        deviations = one_each("sigma", self.sigma, width, like)
        return torch.diag(deviations.square())

    def refusal(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        if divergence.curvature == torch.inf:
            return f"{divergence!r} has no finite curvature, so noise has no finite price: use its Fenchel form"
        return misfit("sigma", self.sigma, shape)

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean + curvature / 2 * quadratic_form(w, self.covariance(w.shape[1], w.double()))

    def deviations(self, width: int) -> Tensor:
        return self.covariance(width, torch.empty(0, dtype=torch.float64)).diagonal().sqrt()

    def scaled(self, factor: float) -> Noise:
        matrix = isinstance(self.sigma, Tensor) and self.sigma.ndim == 2
        return replace(self, sigma=self.sigma * (factor**2 if matrix else factor))

    def columns(self, factors: Tensor) -> Noise:
        return replace(self, sigma=per_column("sigma", self.sigma, factors))

    def through(self, basis: Tensor) -> Noise:
        wide = basis.double()
        carried = wide.T @ self.covariance(len(basis), wide) @ wide
        return replace(self, sigma=(carried + carried.T) / 2)
