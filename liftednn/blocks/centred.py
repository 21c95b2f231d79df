"""A W-step in centred coordinates, with the intercept c = b + w mean(x): w and c do not depend on each other where the Gram matrix is
that of centred rows."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.blocks.design import Design
from liftednn.network import Layer

__all__ = ["Centred"]

# Gradients in w below this many units of rounding of those at 0 say nothing.
_ROUNDING = 10


class Centred:
    """The block as a `Composite` in (w unit, c): one scalar value, from the data.

    unit   of the rows, so that the gradients in both have the same units: a number, or one for each column (p,) where the penalty is a
           squared norm, which needs no prox
    """

    def __init__(self, layer: Layer, design: Design, z: Tensor, unit: Tensor | float = 1.0) -> None:
        self.layer, self.design, self.bias, self.z, self.unit = layer, design, design.bias, z, unit
        self.mean, self.gram = design.inputs.mean_x.to(z.dtype), design.inputs.gram
        self.row_weights, self.total = design.sample_weight, design.total
        # A squared norm is part of the smooth term, so that a preconditioner can include it.
        self.ridge = layer.penalty.ridge if layer.divergence.curvature < torch.inf else None
        self.noise = None if design.noise is None else layer.lam * layer.divergence.curvature * design.noise.to(z.dtype)

    def centre(self, weights: Affine) -> list[Tensor]:
        return [weights.w * self.unit, weights.b + weights.w @ self.mean]

    def uncentre(self, x: list[Tensor]) -> tuple[Tensor, Tensor]:
        w, c = x[0] / self.unit, x[1]
        return w, c - w @ self.mean

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        w, b = self.uncentre(x)
        return [self.design.forward(Affine(w, b))]

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        mean, w = reduce.mean(self.layer.divergence.value(ax[0], self.z), self.row_weights), x[0] / self.unit
        noise = 0.0 if self.noise is None else ((w @ self.noise) * w).sum(dtype=torch.float64) / 2
        return self.layer.lam * mean + noise + self.layer.penalty.value(w)

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        found, c = self.adjoint(self.layer.divergence.grad(ax[0], self.z), self.layer.lam)
        w = x[0] / self.unit
        found = found if self.noise is None else found + w @ self.noise / self.unit
        return [found + 2 * self.ridge * w / self.unit if self.ridge else found, c]

    def scale(self, intercepts: Tensor) -> float:
        """max |gradient in w| at w = 0 and these centred intercepts (q,), which residuals are relative to: no offset of z is part of it,
        however large. Where w can explain nothing, so that this is rounding alone, max |gradient at 0|."""
        zero = self.z.new_zeros(len(self.z), self.layer.operator.weight_shape[-2])
        largest = reduce.largest(*self._adjoint_at(zero)) or 1.0
        found = reduce.largest(self._adjoint_at(zero + intercepts)[0])
        return found if _ROUNDING * torch.finfo(self.z.dtype).eps * largest < found < torch.inf else largest

    def _adjoint_at(self, u: Tensor) -> list[Tensor]:
        return self.adjoint(self.layer.divergence.grad(u, self.z), self.layer.lam)

    def adjoint(self, r: Tensor, weight: float = 1.0) -> list[Tensor]:
        """The adjoint of (w unit, c) -> u in the weighted mean over rows, times `weight`."""
        r, scale = r if self.row_weights is None else r * self.row_weights.to(r)[:, None], weight / self.total
        c = (reduce.total(r) * scale).to(r)
        w = torch.addr(self.design.product(r, scale), c, self.mean, alpha=-1) / self.unit
        return [w, c if self.bias else torch.zeros_like(c)]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return x if self.ridge is not None else self.proxed(x, step)

    def proxed(self, x: list[Tensor], step: float) -> list[Tensor]:
        """The prox of the penalty."""
        assert isinstance(self.unit, float)
        return [self.layer.penalty.prox(x[0] / self.unit, step / self.unit**2) * self.unit, x[1]]
