"""What an uncertainty adds to a mini-batch step (docs/robust.md): the pull at the worst place, and a push on the weights themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn.base import Activation
from liftednn.network import Layer
from liftednn.robust import BoxBall, FrobeniusBall, Noise, Shifted, Worst
from liftednn.robust.matrix import share_of

__all__ = ["Guard", "guard_of"]

# The curvature of r^2 = (sum eps |w|)^2 in w, where signs are mixed, against that of sum (eps w)^2.
_SPREAD = 4.0


@dataclass
class Guard:
    """One layer's uncertainty, as tensors beside its weights.

    matrix   Noise: Sigma. FrobeniusBall: eps^2 times its metric. BoxBall: a guess of its curvature. (k, k)
    share    t of a FrobeniusBall, renewed with the geometry; 1 for the others
    """

    layer: Layer
    matrix: Tensor
    share: Tensor

    def pull(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """lam grad_u of the layer's term at a fixed z, its mean over rows left out; and for a box the gradient in r, entry by entry."""
        seen, lam = self.layer.seen(w), self.layer.lam
        if isinstance(seen, Worst | Shifted):
            signs = seen.signs(u, z)
            pull = seen.divergence.grad(torch.addcmul(u, signs, seen.reach), z).mul_(lam)
            return pull, signs * pull
        pull = seen.grad(u, z).mul_(lam)
        return pull.div_(self.share) if isinstance(self.layer.uncertainty, FrobeniusBall) else pull, None

    def answer(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """How the state answers a pull g / lam of the layers after it, and then as `pull`.

        In a box the state leaves its place only where g outweighs the fear of the other end: until then both ends are equally bad, and
        count by shares (1 - m) / 2 and (1 + m) / 2. Theirs is  m = clip(g / (c r)),  exact where phi has the slope c, or 0, between them.
        """
        divergence, lam, kind = self.layer.divergence, self.layer.lam, self.layer.uncertainty
        assert isinstance(divergence, Activation)
        if not isinstance(kind, BoxBall):
            z = divergence.tilted(u, g * self.share)
            return z, *self.pull(w, u, z)
        reach = kind.reach(w)
        m = (g / (divergence.curvature * reach).clamp(min=torch.finfo(u.dtype).tiny)).clamp_(-1, 1)
        z = divergence.tilted(torch.addcmul(u, m, reach), g)
        high = divergence.grad(u + reach, z).mul_(1 + m).mul_(lam / 2)
        low = divergence.grad(u - reach, z).mul_(1 - m).mul_(lam / 2)
        return z, high + low, high - low

    def push(self, w: Tensor, lever: Tensor | None) -> Tensor:
        """The gradient in w of the term at fixed u; for a box, through r, from the mean over rows of `lever`."""
        kind = self.layer.uncertainty
        if not isinstance(kind, BoxBall) or lever is None:
            return w @ self.stiffness()
        on_x = w if kind.basis is None else w @ kind.basis.to(w).T
        moved = lever.mean(0)[:, None] * kind.widths(on_x) * on_x.sign()
        return moved if kind.basis is None else moved @ kind.basis.to(w)

    def stiffness(self) -> Tensor:
        """The curvature in w that `push` has, (k, k)."""
        hard = self.layer.lam * self.layer.divergence.curvature * self.matrix
        return hard / (1 - self.share) if isinstance(self.layer.uncertainty, FrobeniusBall) else hard

    def renew(self, w: Tensor, u: Tensor, z: Tensor, counts: Tensor | None) -> None:
        """t at the present point."""
        kind, divergence = self.layer.uncertainty, self.layer.divergence
        if isinstance(kind, FrobeniusBall):
            energy = divergence.value(u, z)
            mean = float(energy.mean() if counts is None else (energy * counts).sum() / counts.sum())
            self.share.fill_(share_of(math.sqrt(max(mean, 0.0)), math.sqrt(kind.price(divergence.curvature, w))))


def guard_of(layer: Layer, w: Tensor) -> Guard | None:
    """For weights like w; None where the layer has no uncertainty."""
    kind, width = layer.uncertainty, w.shape[1]
    if isinstance(kind, Noise):
        return Guard(layer, kind.covariance(width, w), w.new_ones(()))
    if isinstance(kind, FrobeniusBall):
        return Guard(layer, kind.covariance(0.5, width, w), w.new_full((), 0.5))
    if isinstance(kind, BoxBall):
        eps = kind.widths(w)
        basis = torch.eye(width).to(w) if kind.basis is None else kind.basis.to(w)
        return Guard(layer, _SPREAD * (basis.T * eps.square()) @ basis, w.new_ones(()))
    return None
