"""Mini-batch steps under a term that adds a multiple of tr(w Sigma w'): noise, and what acts as noise at a fixed share."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from liftednn.base import Activation, Divergence
from liftednn.blocks import RobustTerm

__all__ = ["CurvatureTerm", "NoiseTerm"]


class CurvatureTerm(RobustTerm):
    """lam ( mean D / share + (c/2) tr(w Sigma w') ),  Sigma = noise().

    hardness   c, the curvature of D, renewed with the geometry: to ask a learned activation for it would halt a recorded step
    """

    def __init__(self, divergence: Divergence, lam: float, like: Tensor, share: float) -> None:
        self.divergence, self.lam, self.share = divergence, lam, like.new_full((), share)
        self.hardness = like.new_ones(()) * divergence.curvature

    @abstractmethod
    def noise(self) -> Tensor:
        """Sigma, (in, in)."""

    def pull(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, None]:
        return self.divergence.grad(u, z).mul_(self.lam).div_(self.share), None

    def answer(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
        assert isinstance(self.divergence, Activation)
        z = self.divergence.tilted(u, g * self.share)
        return z, *self.pull(w, u, z)

    def push(self, w: Tensor, lever: Tensor | None) -> Tensor:
        return w @ self.stiffness()

    def stiffness(self) -> Tensor:
        return self.lam * self.hardness * self.noise()


class NoiseTerm(CurvatureTerm):
    """Independent noise with covariance `matrix` (in, in) on the rows."""

    def __init__(self, divergence: Divergence, lam: float, matrix: Tensor) -> None:
        super().__init__(divergence, lam, matrix, 1.0)
        self.matrix = matrix

    def noise(self) -> Tensor:
        return self.matrix

    def renew(self, w: Tensor, u: Tensor, z: Tensor, lever: Tensor | None, counts: Tensor | None) -> None:
        self.hardness.fill_(self.divergence.curvature)

    def state(self) -> dict[str, Tensor]:
        return {"hardness": self.hardness}
