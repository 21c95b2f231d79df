"""The worst case over a box, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Divergence, Penalty
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.robust.uncertainty import Uncertainty, check_sizes, misfit, one_each, per_column, read
from liftednn.robust.worst import Shifted, Worst

__all__ = ["BoxBall"]


@dataclass(frozen=True, eq=False)
class BoxBall(Uncertainty):
    """Rows x + delta, |delta_j| <= eps_j for every entry. Output k moves by at most r_k = sum_j eps_j |w_kj|, and the term is

        mean sum_k  max( D_k(u_k - r_k, z_k), D_k(u_k + r_k, z_k) ),

    the worst case of each output by itself (for all together, whose deltas may differ, an upper bound). For the softmax the label's
    score is lowered and the others are raised: D(u + s r, z), s = -1 at the label and 1 elsewhere; an upper bound, which takes
    |w_j| + |w_y| for |w_j - w_y|.

    eps     the half-width: a number for all inputs, or one for each, (p,)
    basis   (p, k) where the layer's rows are x @ basis, x in the box; None for the identity
    """

    eps: float | Tensor = 0.1
    basis: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", read("eps", self.eps))
        check_sizes("eps", self.eps, (0, 1))
        if self.basis is not None:
            object.__setattr__(self, "basis", basis := read("basis", self.basis))
            if not isinstance(basis, Tensor) or basis.ndim != 2 or not bool(basis.isfinite().all()):
                raise ValueError(f"basis must be a finite matrix (p, k), for rows x @ basis, got {self.basis!r}")

    def refusal(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        if penalty.ridge is None:
            return f"BoxBall goes with a squared norm, L2 or NoPenalty, got {penalty!r}"
        if not isinstance(divergence, SoftmaxCrossEntropy) and (not divergence.uniform or divergence.capped):
            return (
                "BoxBall needs a divergence declared `uniform`, a sum over units, the same for each, whose domain does not couple u "
                f"and z, or the softmax's cross-entropy, got {divergence!r}"
            )
        if not divergence.quadratic and type(divergence).prox_u is Divergence.prox_u:
            return f"BoxBall needs a divergence with a prox in u, and {divergence!r} has none: use another loss"
        if self.basis is None:
            return misfit("eps", self.eps, shape)
        if self.basis.shape[1] != shape[1]:
            return (
                f"basis has shape {tuple(self.basis.shape)}, and the layer has {shape[1]} inputs: give (p, {shape[1]})"
            )
        return misfit("eps", self.eps, (shape[0], len(self.basis)))

    def widths(self, like: Tensor) -> Tensor:
        """eps (p,) of the rows x, in the units in which the box is one."""
        count = len(self.basis) if self.basis is not None else like.shape[-1]
        return one_each("eps", self.eps, count, like)

    def on_x(self, w: Tensor) -> Tensor:
        """Weights of the layer as weights on x, where the box is."""
        return w if self.basis is None else w @ self.basis.to(w).T

    def reach(self, w: Tensor) -> Tensor:
        """r (out,), for weights of the layer."""
        on_x = self.on_x(w)
        return on_x.abs() @ self.widths(on_x)

    def seen(self, divergence: Divergence, w: Tensor) -> Divergence:
        if isinstance(divergence, SoftmaxCrossEntropy):
            return Shifted(divergence, self.reach(w))
        return Worst(divergence, self.reach(w))

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean

    def deviations(self, width: int) -> Tensor:
        sizes = self.widths(torch.empty(width, dtype=torch.float64))
        return sizes if self.basis is None else self.basis.double().abs().T @ sizes

    def scaled(self, factor: float) -> BoxBall:
        return replace(self, eps=self.eps * factor)

    def columns(self, factors: Tensor) -> BoxBall:
        if self.basis is not None:
            return self.through(torch.diag(factors))
        return replace(self, eps=per_column("eps", self.eps, factors))

    def through(self, basis: Tensor) -> BoxBall:
        return replace(self, basis=basis if self.basis is None else self.basis.to(basis) @ basis)

    def restrict(self, inputs: Tensor) -> BoxBall | None:
        if self.basis is not None:
            return replace(self, basis=self.basis[:, inputs.to(self.basis.device)])
        if not isinstance(self.eps, Tensor):
            return self
        eps = self.eps[inputs.to(self.eps.device)]
        return replace(self, eps=eps) if bool(eps.any()) else None
