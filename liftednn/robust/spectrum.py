"""The W-step of a layer whose rows lie in a ball (FrobeniusBall), for a quadratic divergence and a squared norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.moments import Moments
from liftednn.network import Layer

__all__ = ["ball_weights"]


def ball_weights(problem: WeightProblem, eps: float, least: float) -> WeightStep:
    """The minimiser over w and t together. In the Gram matrix's eigenbasis, w(t) and both parts of the term are sums, and
    t in [least, 1 - least] is the root of an increasing function."""
    spectrum, current = _Spectrum.of(problem, eps), problem.current
    low, high = least, 1 - least
    for _ in range(60):
        fraction = (low + high) / 2
        low, high = (fraction, high) if spectrum.slope(fraction) < 0 else (low, fraction)
    fraction = (low + high) / 2
    w = spectrum.weights(fraction).to(current.w)
    b = spectrum.moments.bias(w.double())
    return WeightStep(Affine(w, b.to(current.b)), spectrum.residual(fraction, w.double()), 1, "ball, ridge")


@dataclass(frozen=True)
class _Spectrum:
    """min over w of  lam mean D / t + lam (c/2) eps^2 |w|^2 / (1 - t) + rho |w|^2  for a quadratic D, for every t."""

    layer: Layer
    eps: float
    moments: Moments
    values: Tensor
    vectors: Tensor
    cross: Tensor
    constant: float

    @classmethod
    def of(cls, problem: WeightProblem, eps: float) -> _Spectrum:
        layer, design, z = problem.layer, problem.design, problem.z
        moments = design.moments(z)
        values, vectors = design.spectrum
        # The part of D that c/2 |u - z|^2 does not include.
        constant = float(reduce.mean(layer.divergence.value(z, z).double(), design.sample_weight))
        return cls(layer, eps, moments, values, vectors, vectors.T @ moments.cross, constant)

    def _parts(self, fraction: float) -> tuple[float, float]:
        """The weight of |x w' - z|^2, and of |w|^2."""
        layer = self.layer
        data = layer.lam * layer.divergence.curvature / 2
        return data / fraction, (layer.penalty.ridge or 0.0) + data * self.eps**2 / (1 - fraction)

    def _coefficients(self, fraction: float) -> Tensor:
        data, shrinkage = self._parts(fraction)
        return data * self.cross / (data * self.values + shrinkage)[:, None]

    def residual(self, fraction: float, w: Tensor) -> float:
        """The residual of the optimality condition in w, relative to the gradient at 0."""
        data, shrinkage = self._parts(fraction)
        gradient = data * (w @ self.moments.gram - self.moments.cross.T) + shrinkage * w
        size = data * self.moments.cross.abs().max()
        return float(gradient.abs().max() / size.clamp(min=torch.finfo(size.dtype).tiny))

    def weights(self, fraction: float) -> Tensor:
        return (self.vectors @ self._coefficients(fraction)).T

    def slope(self, fraction: float) -> float:
        """The derivative in t of the minimum over w, up to a positive factor."""
        a = self._coefficients(fraction)
        squares = (self.values[:, None] * a * a - 2 * a * self.cross).sum() + self.moments.zz / self.moments.weight
        mean = self.layer.divergence.curvature / 2 * float(squares) + self.constant
        norm = self.layer.divergence.curvature / 2 * self.eps**2 * float(a.square().sum())
        return norm / (1 - fraction) ** 2 - max(mean, 0.0) / fraction**2
