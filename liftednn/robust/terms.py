"""Mini-batch steps for terms that add a multiple of tr(w Sigma w'): noise, and the Frobenius ball at a fixed fraction."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from liftednn.base import Activation, Divergence
from liftednn.blocks import RobustTerm

__all__ = ["CurvatureTerm", "NoiseTerm"]


class CurvatureTerm(RobustTerm):
    """lam ( mean D / fraction + (c/2) tr(w Sigma w') ),  Sigma = noise().

    curvature   0-dim c, the curvature of D, updated by `update`: reading that of a learned activation would break a recorded CUDA graph
    """

    def __init__(self, divergence: Divergence, lam: float, like: Tensor, fraction: float) -> None:
        self.divergence, self.lam, self.fraction = divergence, lam, like.new_full((), fraction)
        self.curvature = like.new_ones(()) * divergence.curvature

    @abstractmethod
    def noise(self) -> Tensor:
        """Sigma, (in, in)."""

    def gradients(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, None]:
        return self.divergence.grad(u, z).mul_(self.lam).div_(self.fraction), None

    def x_step(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
        assert isinstance(self.divergence, Activation)
        z = self.divergence.argmin(u, g * self.fraction)
        return z, *self.gradients(w, u, z)

    def w_gradient(self, w: Tensor, radius_gradient: Tensor | None) -> Tensor:
        return w @ self.added_curvature()

    def added_curvature(self) -> Tensor:
        return self.lam * self.curvature * self.noise()


class NoiseTerm(CurvatureTerm):
    """Independent noise with covariance `matrix` (in, in) on the rows."""

    def __init__(self, divergence: Divergence, lam: float, matrix: Tensor) -> None:
        super().__init__(divergence, lam, matrix, 1.0)
        self.matrix = matrix

    def noise(self) -> Tensor:
        return self.matrix

    def update(
        self, w: Tensor, u: Tensor, z: Tensor, radius_gradient: Tensor | None, row_weights: Tensor | None
    ) -> None:
        self.curvature.fill_(self.divergence.curvature)

    def state(self) -> dict[str, Tensor]:
        return {"divergence_curvature": self.curvature}
