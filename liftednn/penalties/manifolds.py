"""Penalties pi(w) that are indicators of non-convex sets: orthogonal matrices (sec. 8, "unitary constraints") and matrices of low rank.

Their prox is a nearest point of the set, computed in float64: rounding to float32 then breaks orthogonality by about 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.functional import polar, resolved, spectrum
from liftednn.penalties.norms import check_strength

__all__ = ["LowRank", "Orthogonal", "within"]

# A relative violation up to this size is taken as rounding, that of float32 weights, also where they are checked in float64.
_RTOL = 1e-5


def within(excess: Tensor) -> Tensor:
    """0 where a constraint is violated by no more than rounding, +inf otherwise, in float64; `excess` is the relative violation."""
    return torch.where(excess <= _RTOL, 0.0, torch.inf).double()


@dataclass(frozen=True)
class Orthogonal(Penalty):
    """pi(w) = 0 where w'w = scale^2 I (out >= in) or w w' = scale^2 I (out < in), +inf elsewhere: unitary and semi-orthogonal weights.

    prox is scale times the polar factor. The W-step of a quadratic divergence is Procrustes' problem, with the solution
    scale polar(cross') where w'w = scale^2 I, since tr(w G w') is then constant.

    >>> w = lnn.penalties.Orthogonal().prox(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), step=1.0)
    >>> torch.allclose(w.T @ w, torch.eye(2))
    True
    """

    scale: float = 1.0
    convex, scale_sensitive = False, True

    def __post_init__(self) -> None:
        if not 0 < self.scale < torch.inf:
            raise ValueError(f"scale must be positive and finite, got {self.scale}")

    def value(self, w: Tensor) -> Tensor:
        w = w.double() / self.scale
        gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
        return within((gram - torch.eye(len(gram), dtype=w.dtype, device=w.device)).abs().max())

    def prox(self, w: Tensor, step: float) -> Tensor:
        return (self.scale * polar(w.double() / self.scale)).to(w.dtype)

    def minimiser(self, cross: Tensor, ridge: Callable[[float], Tensor]) -> Tensor | None:
        return self.scale * polar(cross.T) if cross.shape[1] >= cross.shape[0] else None


@dataclass(frozen=True)
class LowRank(Penalty):
    """pi(w) = rho |w|_F^2 where w has at most this rank, +inf elsewhere: w is a product of two thin matrices.

    prox sets the smallest singular values to 0. The W-step of a quadratic divergence is reduced-rank regression: the ridge regression's
    w, projected on the leading eigenvectors of w cross (Izenman 1975).

    >>> w = lnn.penalties.LowRank(rank=1).prox(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), step=1.0)
    >>> int(torch.linalg.matrix_rank(w))
    1
    """

    rank: int = 10
    rho: float = 0.0
    convex = False

    def __post_init__(self) -> None:
        if not isinstance(self.rank, Integral) or self.rank < 1:
            raise ValueError(f"rank must be a whole number of at least 1, got {self.rank!r}")
        check_strength("rho", self.rho)

    def value(self, w: Tensor) -> Tensor:
        w = w.double()
        sizes = torch.linalg.svdvals(w)
        beyond = sizes[self.rank] if self.rank < len(sizes) else torch.zeros_like(sizes[0])
        return self.rho * w.square().sum() + within(beyond / sizes[0].clamp(min=torch.finfo(sizes.dtype).tiny))

    def prox(self, w: Tensor, step: float) -> Tensor:
        return (_cut(w.double(), self.rank) / (1 + 2 * step * self.rho)).to(w.dtype)

    def minimiser(self, cross: Tensor, ridge: Callable[[float], Tensor]) -> Tensor | None:
        w = ridge(self.rho)
        if w.shape[0] <= w.shape[1]:
            return _leading(w @ cross, self.rank) @ w
        basis, coordinates = torch.linalg.qr(
            w
        )  # w cross lies in the column space of w, smaller than the outputs' space
        found: Tensor = basis @ (_leading(coordinates @ cross @ basis, self.rank) @ coordinates)
        return found


def _leading(explained: Tensor, rank: int) -> Tensor:
    """The projection on the leading eigenvectors of a matrix that is symmetric up to rounding."""
    vectors: Tensor = torch.linalg.eigh((explained + explained.T) / 2).eigenvectors[:, -rank:]
    return vectors @ vectors.T


def _cut(w: Tensor, rank: int) -> Tensor:
    """The nearest matrix of that rank."""
    if w.shape[0] > w.shape[1]:
        return _cut(w.T, rank).T
    if rank >= len(w) or not bool(w.any()) or not bool(w.isfinite().all()):
        return w
    squares, vectors = spectrum(w)
    leading = vectors[:, -rank:]
    if not resolved(squares, float(squares[-rank])):
        leading = torch.linalg.svd(w, full_matrices=False).U[:, :rank]
    return leading @ (leading.T @ w)
