"""The rows of a regression in a W-step, with what is computed from them once."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.moments import Moments
from liftednn.solvers import Factor

__all__ = ["NEGLIGIBLE", "Design"]

# Inputs with a smaller variance are taken as constant.
NEGLIGIBLE = 1e-150


@dataclass
class Design:
    """The rows (n, p) of one regression, and their sample weights.

    The Gram matrix and its factors are computed at most once: reuse the object while the rows stay the same.

    noise   covariance (p, p) of independent noise on the rows: the Gram matrix becomes gram + noise
    """

    rows: Tensor
    bias: bool = True
    sample_weight: Tensor | None = None
    noise: Tensor | None = None
    _factors: dict[tuple[float, float], Factor] = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """The number of inputs p."""
        return self.rows.shape[1]

    @property
    def total(self) -> float:
        """The number of rows, or the sum of their weights."""
        return float(reduce.count(self.rows, self.sample_weight))

    def forward(self, weights: Affine) -> Tensor:
        """rows w' + b, (n, q)."""
        return torch.addmm(weights.b, self.rows, weights.w.T)

    def product(self, r: Tensor, scale: float = 1.0) -> Tensor:
        """scale r' rows, (q, p), for r (n, q)."""
        return reduce.product(r, self.rows, scale)

    @cached_property
    def _centred(self) -> Moments:
        return Moments.of(self.rows, self.rows[:, :0], self.sample_weight)

    @cached_property
    def inputs(self) -> Moments:
        """The moments of the rows without targets, about 0 where there is no intercept."""
        return self._noisy(self._centred if self.bias else self._centred.about_zero())

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, clamped at 0, and eigenvectors of the Gram matrix."""
        values, vectors = torch.linalg.eigh(self.inputs.gram)
        return values.clamp(min=0), vectors

    def _noisy(self, moments: Moments) -> Moments:
        return moments if self.noise is None else replace(moments, xx=moments.xx + moments.weight * self.noise)

    def noisy(self, noise: Tensor) -> Design:
        """The same rows with this noise; the moments of the rows are reused."""
        self._centred  # noqa: B018, computed once for both
        other = copy.copy(self)
        other.noise, other._factors = noise, {}
        for name in ("inputs", "spectrum", "largest"):
            other.__dict__.pop(name, None)
        return other

    def moments(self, z: Tensor) -> Moments:
        """The moments of the rows with targets z (n, q)."""
        both = self._retargeted(z)
        return self._noisy(both if self.bias else both.about_zero())

    def _retargeted(self, z: Tensor) -> Moments:
        return self._centred.retarget(self.rows, z, self.sample_weight)

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue of the Gram matrix."""
        return float(torch.linalg.eigvalsh(self.inputs.gram)[-1])

    @property
    def unit(self) -> float:
        """The unit of the rows: in it, no direction of them has more variance than 1; 1 where they are constant."""
        return self.largest**0.5 if self.largest > NEGLIGIBLE else 1.0

    def factor(self, lam: float, rho: float) -> Factor:
        if (lam, rho) not in self._factors:
            self._factors[lam, rho] = Factor.of(self.inputs.gram, lam, rho, self.inputs.eps)
        return self._factors[lam, rho]
