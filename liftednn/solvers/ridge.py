"""Ridge regression on moments, the W-step of a quadratic divergence (sec. 6.1):

    argmin_{w, b}  lam mean |x w' + b - z|^2 + rho |w - anchor|^2

The intercept is eliminated by centring and never penalised. Factor once, solve many: one `Factor` is used for every right-hand side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor

from liftednn.base import Affine
from liftednn.checks import check_finite, check_strengths, check_tensors
from liftednn.moments import Moments

__all__ = ["Factor", "ridge"]


@dataclass(frozen=True)
class Factor:
    """(lam gram + rho I)^-1, or its pseudo-inverse where that matrix is singular to the precision of its data; from `Factor.of`.

    lower      the Cholesky factor (p, p), or (p, r) vectors v with v v' the pseudo-inverse, when `singular`
    singular   whether it is a pseudo-inverse

    >>> factor = lnn.solvers.Factor.of(torch.eye(2), lam=1.0, rho=1.0, eps=1e-7)
    >>> factor.solve(torch.ones(2, 1)).round(decimals=3).tolist(), factor.singular
    ([[0.5], [0.5]], False)
    """

    lower: Tensor
    singular: bool

    @classmethod
    def of(cls, gram: Tensor, lam: float, rho: float, eps: float) -> Factor:
        """Factor lam gram + rho I; `eps` is the precision of the data behind gram.

        Whether the matrix is singular is decided after scaling its diagonal to 1, so that the units of a feature do not matter; the
        pseudo-inverse is that of the matrix itself. With a rho that is larger than the rounding of gram it is never truncated: where
        rounding has made gram indefinite, eigenvalues below what rho gives are raised to that.
        """
        check_tensors(gram=gram)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise ValueError(f"gram must be a square matrix (p, p), got shape {tuple(gram.shape)}: give moments.gram")
        matrix = lam * gram
        matrix.diagonal().add_(rho)
        diagonal = matrix.diagonal()
        size = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
        scaled = matrix / size[:, None] / size
        lower, info = torch.linalg.cholesky_ex(scaled)
        largest = float(diagonal.max())
        threshold = 0.0 if rho > eps * largest else len(matrix) * eps
        if int(info) == 0 and bool(lower.diagonal().square().min() > threshold):
            return cls(size[:, None] * lower, singular=False)
        check_finite("the Gram matrix", matrix)
        values, vectors = torch.linalg.eigh(scaled)
        if not threshold:
            return cls(vectors / values.clamp(min=rho / largest).sqrt() / size[:, None], singular=True)
        kept = values > threshold * values[-1]
        found = vectors[:, kept] / values[kept].sqrt() / size[:, None]
        # In other coordinates it is not yet the solution of minimum norm: that has no part in the null space.
        null = torch.linalg.qr(fn.normalize(vectors[:, ~kept] / size[:, None], dim=0)).Q
        return cls(found - null @ (null.T @ found), singular=True)

    def solve(self, right: Tensor) -> Tensor:
        """The solution for each column of `right` (p, q); of minimum norm where the matrix is singular."""
        if self.singular:
            return self.lower @ (self.lower.T @ right)
        return torch.cholesky_solve(right, self.lower)

    def inverse(self) -> Tensor:
        """The explicit inverse, for preconditioned steps that do not need full precision."""
        return self.lower @ self.lower.T if self.singular else torch.cholesky_inverse(self.lower)

    def root(self) -> Tensor:
        """A matrix r (p, p), or (r, p) where it is a pseudo-inverse, with r' r the inverse."""
        if self.singular:
            return self.lower.T
        identity = torch.eye(len(self.lower), dtype=self.lower.dtype, device=self.lower.device)
        root: Tensor = torch.linalg.solve_triangular(self.lower, identity, upper=False)
        return root


def ridge(
    moments: Moments, lam: float, rho: float, anchor: Tensor | None = None, factor: Factor | None = None
) -> Affine:
    """The minimiser (w (q, p), b (q,)), in float64. With rho = 0 and a singular Gram matrix it is the one of minimum norm.

    moments   of the rows x and the targets z, `Moments.of(x, z)`
    lam, rho  the weights of the mean square, positive, and of the squared norm, not negative
    anchor    (q, p), the point that rho shrinks w towards; None for 0
    factor    `Factor.of(moments.gram, lam, rho, moments.eps)` from an earlier call with the same Gram matrix

    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> w, b = lnn.solvers.ridge(lnn.Moments.of(x, 2 * x + 1), lam=1.0, rho=0.0)
    >>> w.round(decimals=3).tolist(), b.round(decimals=3).tolist()
    ([[2.0]], [1.0])
    """
    check_strengths(lam, rho)
    if not isinstance(moments, Moments):
        raise ValueError(f"moments must be Moments, got {type(moments).__name__}: give Moments.of(x, z)")
    inputs, outputs = moments.cross.shape
    if anchor is not None and anchor.shape != (outputs, inputs):
        raise ValueError(f"anchor must have the shape of w, {(outputs, inputs)}, got {tuple(anchor.shape)}")
    factor = factor or Factor.of(moments.gram, lam, rho, moments.eps)
    if len(factor.lower) != inputs:
        raise ValueError(
            f"factor has {len(factor.lower)} inputs, and moments has {inputs}: give Factor.of(moments.gram, ...)"
        )
    centre = torch.zeros_like(moments.cross) if anchor is None else anchor.to(moments.cross).T
    right = lam * (moments.cross - moments.gram @ centre)
    check_finite("the right-hand side, from z and the anchor,", right)
    w = (centre + factor.solve(right)).T
    return Affine(w, moments.bias(w))
