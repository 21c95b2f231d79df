"""Norm balls as penalties: pi(w) = 0 inside, +inf outside; prox is the projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.functional import resolved, simplex_projection, spectrum
from liftednn.penalties.manifolds import within

__all__ = ["Ball"]


@dataclass(frozen=True)
class Ball(Penalty):
    """pi(w) = 0 where |w| <= radius, +inf elsewhere.

    norm   "frobenius": of all weights together; "spectral": the largest singular value, a bound on the layer's Lipschitz constant;
           "row": the largest 2-norm of a row, one row per unit ("max-norm"); "l1": the sum of |w_ij|, which gives sparse weights

    >>> lnn.penalties.Ball(radius=1.0, norm="row").prox(torch.tensor([[0.0, 2.0], [0.5, 0.5]]), step=1.0).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """

    radius: float = 1.0
    norm: Literal["frobenius", "spectral", "row", "l1"] = "frobenius"
    scale_sensitive = True

    def __post_init__(self) -> None:
        if not 0 < self.radius < torch.inf:
            raise ValueError(f"radius must be positive and finite, got {self.radius}")
        if self.norm not in ("frobenius", "spectral", "row", "l1"):
            raise ValueError(f"norm must be 'frobenius', 'spectral', 'row' or 'l1', got {self.norm!r}")

    def size(self, w: Tensor) -> Tensor:
        """|w|, in float64."""
        w = w.double()
        if self.norm == "l1":
            return w.abs().sum()
        if self.norm == "row":
            return w.square().sum(1).max().sqrt()
        size: Tensor = torch.linalg.matrix_norm(w, "fro" if self.norm == "frobenius" else 2)
        return size

    def value(self, w: Tensor) -> Tensor:
        return within(self.size(w) / self.radius - 1)

    def prox(self, w: Tensor, step: float) -> Tensor:
        precise = w.double()
        if self.norm == "frobenius":
            found = precise * _shrinkage(precise.square().sum(), self.radius)
        elif self.norm == "row":
            found = precise * _shrinkage(precise.square().sum(1, keepdim=True), self.radius)
        else:
            found = _clipped(precise, self.radius) if self.norm == "spectral" else _sparse(precise, self.radius)
        return found.to(w.dtype)


def _shrinkage(squares: Tensor, radius: float) -> Tensor:
    """min(1, radius / norm) from squared norms."""
    return (radius / squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()).clamp(max=1)


def _clipped(w: Tensor, radius: float) -> Tensor:
    """w with its singular values clipped at the radius."""
    if w.shape[0] > w.shape[1]:
        return _clipped(w.T, radius).T
    # No singular value is larger than the Frobenius norm; a w that is not finite is returned as it is, and callers check for that.
    total = float(w.norm())
    if not radius < total < torch.inf:
        return w
    squares, vectors = spectrum(w)
    if not resolved(squares, radius**2):
        left, values, right = torch.linalg.svd(w, full_matrices=False)
        clipped: Tensor = (left * values.clamp(max=radius)) @ right
        return clipped
    outside = squares > radius**2
    kept = vectors[:, outside]
    return w - (kept * (1 - _shrinkage(squares[outside], radius))) @ (kept.T @ w)


def _sparse(w: Tensor, radius: float) -> Tensor:
    """The projection on the l1 ball: soft thresholding, with |w| projected on a simplex (Duchi et al. 2008)."""
    if not float(w.abs().sum()) > radius:
        return w
    sizes = radius * simplex_projection(w.abs().reshape(1, -1) / radius)
    return w.sign() * sizes.view_as(w)
