"""The blocks of a layer whose rows are uncertain (docs/robust.md): each is an ordinary block again, or a few of them.

Noise           the W-step's Gram matrix is that of the noisy rows; the X-step does not feel it
FrobeniusBall   at a fixed share t, the layer with lam / t and noise: an upper bound that touches the term at the present point. The
                W-step minimises over w and t together
BoxBall         the X-step has the divergence at the worst end; the W-step is a splitting
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.blocks.box import box_weights
from liftednn.blocks.weights import Design, WeightStep, plain_weights
from liftednn.functional import row_mean
from liftednn.moments import Moments
from liftednn.network import Layer
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.matrix import LEAST

__all__ = ["plain_layer", "update_weights"]

# Rounds of w and t in turn, and the change of t at which they end.
_ROUNDS, _SETTLED = 8, 1e-3


def update_weights(
    layer: Layer, design: Design, z: Tensor, current: Affine, tol: float = 1e-3, max_iter: int = 200
) -> WeightStep:
    """The minimising weights, from the present ones; `tol` bounds the block's relative KKT residual."""
    kind = layer.uncertainty
    if isinstance(kind, Noise):
        noise = kind.covariance(design.rows.shape[1], design.inputs.gram)
        return plain_weights(layer, design.noisy(noise), z, current, tol, max_iter)
    if isinstance(kind, FrobeniusBall):
        quadratic = layer.divergence.quadratic and layer.penalty.ridge is not None and kind.metric is None
        return (
            _ball_at_once(layer, design, z, current)
            if quadratic
            else _in_turn(layer, design, z, current, tol, max_iter)
        )
    if isinstance(kind, BoxBall):
        return box_weights(layer, design, z, current, tol, max_iter)
    return plain_weights(layer, design, z, current, tol, max_iter)


def plain_layer(layer: Layer, weights: Affine, rows: Tensor, z: Tensor, counts: Tensor | None = None) -> Layer:
    """The layer without uncertainty that an X-step may take in its place: equal to its term at these rows and z, and never below it."""
    kind = layer.uncertainty
    if kind is None:
        return layer
    if isinstance(kind, FrobeniusBall):
        energy = layer.divergence.value(layer.operator.forward(rows, weights), z).double()
        share = kind.share(float(row_mean(energy, counts)), layer.divergence.curvature, weights.w)
        return replace(layer, lam=layer.lam / share, uncertainty=None)
    return replace(layer, divergence=layer.seen(weights.w), uncertainty=None)


def _in_turn(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> WeightStep:
    """w at fixed t, t at fixed w: neither raises the term, and it is jointly convex in both."""
    kind, weights, n_iter = layer.uncertainty, current, 0
    assert isinstance(kind, FrobeniusBall)
    share, before = _share(layer, design, z, weights), math.inf
    for _ in range(_ROUNDS):
        noise = kind.covariance(share, design.rows.shape[1], design.inputs.gram)
        plain = replace(layer, lam=layer.lam / share, uncertainty=None)
        step = plain_weights(plain, design.noisy(noise), z, weights, tol, max_iter)
        weights, n_iter, before, share = (
            step.weights,
            n_iter + step.n_iter,
            share,
            _share(layer, design, z, step.weights),
        )
        if abs(share - before) <= _SETTLED * before:
            break
    return WeightStep(weights, max(step.kkt, abs(share - before) / before), n_iter, f"ball, {step.method}")


def _share(layer: Layer, design: Design, z: Tensor, weights: Affine) -> float:
    kind = layer.uncertainty
    assert isinstance(kind, FrobeniusBall)
    u = torch.addmm(weights.b, design.rows, weights.w.T)
    mean = float(row_mean(layer.divergence.value(u, z).double(), design.sample_weight))
    return kind.share(mean, layer.divergence.curvature, weights.w)


def _ball_at_once(layer: Layer, design: Design, z: Tensor, current: Affine) -> WeightStep:
    """A quadratic divergence: with the Gram matrix's eigenvectors, w(t) and both parts of the term are sums, and t is the root of an
    increasing function."""
    spectrum = _Spectrum.of(layer, design, z)
    low, high = LEAST, 1 - LEAST
    for _ in range(60):
        share = (low + high) / 2
        low, high = (share, high) if spectrum.slope(share) < 0 else (low, share)
    share = (low + high) / 2
    w = spectrum.weights(share).to(current.w)
    b = spectrum.moments.bias(w.double())
    return WeightStep(Affine(w, b.to(current.b)), spectrum.residual(share, w.double()), 1, "ball, ridge")


@dataclass(frozen=True)
class _Spectrum:
    """min over w of  lam mean D / t + lam (c/2) eps^2 |w|^2 / (1 - t) + rho |w|^2  for a quadratic D, for every t."""

    layer: Layer
    moments: Moments
    values: Tensor
    vectors: Tensor
    cross: Tensor
    constant: float

    @classmethod
    def of(cls, layer: Layer, design: Design, z: Tensor) -> _Spectrum:
        moments = design.moments(z)
        values, vectors = design.spectrum
        # What D holds beside c/2 |u - z|^2.
        constant = float(row_mean(layer.divergence.value(z, z).double(), design.sample_weight))
        return cls(layer, moments, values, vectors, vectors.T @ moments.cross, constant)

    def _parts(self, share: float) -> tuple[float, float]:
        """The weight of |x w' - z|^2, and of |w|^2."""
        kind, layer = self.layer.uncertainty, self.layer
        assert isinstance(kind, FrobeniusBall)
        data = layer.lam * layer.divergence.curvature / 2
        return data / share, (layer.penalty.ridge or 0.0) + data * kind.eps**2 / (1 - share)

    def _coefficients(self, share: float) -> Tensor:
        data, shrinkage = self._parts(share)
        return data * self.cross / (data * self.values + shrinkage)[:, None]

    def residual(self, share: float, w: Tensor) -> float:
        """Of the optimality condition in w, relative to its size at 0."""
        data, shrinkage = self._parts(share)
        gradient = data * (w @ self.moments.gram - self.moments.cross.T) + shrinkage * w
        size = data * self.moments.cross.abs().max()
        return float(gradient.abs().max() / size.clamp(min=torch.finfo(size.dtype).tiny))

    def weights(self, share: float) -> Tensor:
        return (self.vectors @ self._coefficients(share)).T

    def slope(self, share: float) -> float:
        """The derivative in t of the minimum over w, up to a positive factor."""
        kind, a = self.layer.uncertainty, self._coefficients(share)
        assert isinstance(kind, FrobeniusBall)
        squares = (self.values[:, None] * a * a - 2 * a * self.cross).sum() + self.moments.zz / self.moments.weight
        mean = self.layer.divergence.curvature / 2 * float(squares) + self.constant
        price = self.layer.divergence.curvature / 2 * kind.eps**2 * float(a.square().sum())
        return price / (1 - share) ** 2 - max(mean, 0.0) / share**2
