"""The worst case over a box, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Divergence, Penalty, Uncertainty
from liftednn.blocks import RobustTerm, WeightProblem, WeightStep
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.robust.box_weights import box_weights
from liftednn.robust.sizes import check_sizes, misfit, one_each, per_column, read
from liftednn.robust.worst_case import WorstCase, WorstCaseSoftmax

__all__ = ["BoxBall", "BoxTerm"]

# |w| is smoothed near 0 on the scale of this many root mean squares of its column.
_NEAR = 1.0
# The curvature of r^2 = (sum eps |w|)^2 in w is taken as this multiple of that of sum (eps w)^2, for weights of mixed signs.
_SPREAD = 4.0


@dataclass(frozen=True, eq=False)
class BoxBall(Uncertainty):
    """Rows x + delta, |delta_j| <= eps_j for every entry. Output k moves by at most its radius r_k = sum_j eps_j |w_kj|; the term is

        mean sum_k  max( D_k(u_k - r_k, z_k), D_k(u_k + r_k, z_k) ),

    the worst case of each output alone, and an upper bound on the worst case of all outputs together, which share one delta. For the
    softmax the label's score is lowered and the others are raised: D(u + s r, z), s = -1 at the label and 1 elsewhere; this is an upper
    bound, since |w_j| + |w_y| >= |w_j - w_y|.

    eps     the half-width: a number for all inputs, or one for each, (p,)
    basis   (p, k) where the layer's rows are x @ basis, x in the box; None for the identity

    >>> w = torch.tensor([[1.0, -2.0]])
    >>> lnn.robust.BoxBall(eps=0.5).radius(w).tolist()
    [1.5]
    """

    joint, per_unit = False, False

    eps: float | Tensor = 0.1
    basis: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", read("eps", self.eps))
        check_sizes("eps", self.eps, (0, 1))
        if self.basis is not None:
            object.__setattr__(self, "basis", basis := read("basis", self.basis))
            if not isinstance(basis, Tensor) or basis.ndim != 2 or not bool(basis.isfinite().all()):
                raise ValueError(f"basis must be a finite matrix (p, k), for rows x @ basis, got {self.basis!r}")

    def why_not(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        if penalty.ridge is None:
            return f"BoxBall needs a squared norm as penalty, got {penalty!r}: use L2 or NoPenalty"
        if not isinstance(divergence, SoftmaxCrossEntropy) and (not divergence.uniform or divergence.capped):
            return (
                "BoxBall needs a divergence declared `uniform` (a sum over units of the same function) whose domain does not couple u "
                f"and z, or SoftmaxCrossEntropy, got {divergence!r}"
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
        """eps (p,), for the rows x before `basis` is applied."""
        count = len(self.basis) if self.basis is not None else like.shape[-1]
        return one_each("eps", self.eps, count, like)

    def on_x(self, w: Tensor) -> Tensor:
        """Weights of the layer (out, k) as weights on the rows x, (out, p)."""
        return w if self.basis is None else w @ self.basis.to(w).T

    def radius(self, w: Tensor) -> Tensor:
        """r (out,), for weights w of the layer: how far a delta in the box can move each output."""
        on_x = self.on_x(w)
        return on_x.abs() @ self.widths(on_x)

    def robust_divergence(self, divergence: Divergence, w: Tensor) -> WorstCase | WorstCaseSoftmax:
        if isinstance(divergence, SoftmaxCrossEntropy):
            return WorstCaseSoftmax(divergence, self.radius(w))
        return WorstCase(divergence, self.radius(w))

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean

    def update_weights(self, problem: WeightProblem) -> WeightStep:
        if self.basis is not None:
            raise ValueError(
                "the full-batch W-step needs the box in the layer's own inputs, got a basis: leave basis=None"
            )
        return box_weights(problem, self.widths(problem.design.rows))

    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BoxTerm:
        eps = self.widths(w).clone()  # copied to the device once: a recorded CUDA graph cannot copy to it
        return BoxTerm(
            replace(self, eps=eps, basis=None if self.basis is None else self.basis.to(w)), divergence, lam, eps
        )

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


class BoxTerm(RobustTerm):
    """The gradient at the worst end of the interval; the radius gradient is the gradient in r, entry by entry.

    matrix      (in, in), an estimate of the curvature of r^2
    curvature   0-dim, the curvature of D, updated by `update`: reading that of a learned activation would break a recorded CUDA graph
    near        (p,): |w| is smoothed as sqrt(w^2 + near^2), since steps of a finite length would overshoot 0 again and again. Updated by
                `update`
    bend        (p,), the curvature in w of that smoothing, updated by `update`
    """

    def __init__(self, kind: BoxBall, divergence: Divergence, lam: float, eps: Tensor) -> None:
        self.kind, self.divergence, self.lam, self.fraction = kind, divergence, lam, eps.new_ones(())
        self.curvature = self.fraction * divergence.curvature
        self.matrix = _SPREAD * self._on_inputs(eps**2)
        self.near, self.bend = torch.zeros_like(eps), torch.zeros_like(eps)

    def _on_inputs(self, diagonal: Tensor) -> Tensor:
        """A diagonal matrix on the rows x as a matrix on the layer's inputs."""
        basis = self.kind.basis
        return torch.diag(diagonal) if basis is None else (basis.T * diagonal) @ basis

    def gradients(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        robust = self.kind.robust_divergence(self.divergence, w)
        signs = robust.signs(u, z)
        u_gradient = self.divergence.grad(torch.addcmul(u, signs, robust.radius), z).mul_(self.lam)
        return u_gradient, signs * u_gradient

    def x_step(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """While |g| is small, z stays where both ends have the same energy, and they get the weights (1 - m) / 2 and (1 + m) / 2 with
        m = clip(g / (c r), -1, 1); exact where phi has the slope c, or 0, between the two ends.
        """
        assert isinstance(self.divergence, Activation)
        radius = self.kind.radius(w)
        m = (g / (self.curvature * radius).clamp(min=torch.finfo(u.dtype).tiny)).clamp_(-1, 1)
        z = self.divergence.argmin(torch.addcmul(u, m, radius), g)
        high = self.divergence.grad(u + radius, z).mul_(1 + m).mul_(self.lam / 2)
        low = self.divergence.grad(u - radius, z).mul_(1 - m).mul_(self.lam / 2)
        return z, high + low, high - low

    def w_gradient(self, w: Tensor, radius_gradient: Tensor | None) -> Tensor:
        assert radius_gradient is not None
        on_x = self.kind.on_x(w)
        moved = (
            reduce.mean(radius_gradient).to(radius_gradient)[:, None]
            * self.kind.widths(on_x)
            * on_x
            * (on_x.square() + self.near.square()).rsqrt()
        )
        return moved if self.kind.basis is None else moved @ self.kind.basis

    def added_curvature(self) -> Tensor:
        return self.lam * self.curvature * self.matrix + self._on_inputs(self.bend)

    def update(
        self, w: Tensor, u: Tensor, z: Tensor, radius_gradient: Tensor | None, row_weights: Tensor | None
    ) -> None:
        self.curvature.fill_(self.divergence.curvature)
        if radius_gradient is not None:
            on_x = self.kind.on_x(w)
            self.near.copy_((_NEAR * on_x.square().mean(0).sqrt()).clamp(min=torch.finfo(w.dtype).eps))
            self.bend.copy_(
                reduce.mean(radius_gradient).to(radius_gradient).abs().mean() * self.kind.widths(on_x) / self.near
            )

    def state(self) -> dict[str, Tensor]:
        return {"divergence_curvature": self.curvature, "near": self.near, "bend": self.bend}
