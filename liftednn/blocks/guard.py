"""What an uncertainty adds to a mini-batch step (docs/robust.md): the pull at the worst place, and a push on the weights themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Activation
from liftednn.functional import row_mean
from liftednn.network import Layer
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.matrix import share_of
from liftednn.robust.worst import Shifted, Worst

__all__ = ["Guard", "guard_of"]

# A weight this small against its column's others, in root mean squares, counts as near 0.
_NEAR = 1.0
# The curvature of r^2 = (sum eps |w|)^2 in w, where signs are mixed, against that of sum (eps w)^2.
_SPREAD = 4.0


@dataclass
class Guard:
    """One layer's uncertainty, as tensors beside its weights.

    matrix   Noise: Sigma. FrobeniusBall: eps^2 times its metric. BoxBall: a guess of the curvature of r^2. (k, k)
    share    t of a FrobeniusBall, renewed with the geometry; 1 for the others
    hardness the curvature of D, renewed with the geometry: to ask a learned activation for it would halt a recorded step
    near     BoxBall: the size, for each input, below which |w| is rounded off, sqrt(w^2 + near^2): steps of a finite length would
             otherwise leap over 0 for ever. Renewed with the geometry
    bend     BoxBall: the curvature in w of that rounding, for each input
    """

    layer: Layer
    matrix: Tensor
    share: Tensor
    hardness: Tensor
    near: Tensor
    bend: Tensor

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
        m = (g / (self.hardness * reach).clamp(min=torch.finfo(u.dtype).tiny)).clamp_(-1, 1)
        z = divergence.tilted(torch.addcmul(u, m, reach), g)
        high = divergence.grad(u + reach, z).mul_(1 + m).mul_(lam / 2)
        low = divergence.grad(u - reach, z).mul_(1 - m).mul_(lam / 2)
        return z, high + low, high - low

    def push(self, w: Tensor, lever: Tensor | None) -> Tensor:
        """The gradient in w of the term at fixed u; for a box, through r, from the mean over rows of `lever`."""
        kind = self.layer.uncertainty
        if not isinstance(kind, BoxBall) or lever is None:
            return w @ self.stiffness()
        on_x = kind.on_x(w)
        moved = lever.mean(0)[:, None] * kind.widths(on_x) * on_x * (on_x.square() + self.near.square()).rsqrt()
        return moved if kind.basis is None else moved @ kind.basis

    def stiffness(self) -> Tensor:
        """The curvature in w that `push` has, (k, k)."""
        hard = self.layer.lam * self.hardness * self.matrix
        kind = self.layer.uncertainty
        if isinstance(kind, BoxBall):
            return hard + (torch.diag(self.bend) if kind.basis is None else (kind.basis.T * self.bend) @ kind.basis)
        return hard / (1 - self.share) if isinstance(kind, FrobeniusBall) else hard

    def renew(self, w: Tensor, u: Tensor, z: Tensor, lever: Tensor | None, counts: Tensor | None) -> None:
        """What depends on the present point."""
        kind, divergence = self.layer.uncertainty, self.layer.divergence
        self.hardness.fill_(divergence.curvature)
        if isinstance(kind, BoxBall) and lever is not None:
            on_x = kind.on_x(w)
            self.near.copy_((_NEAR * on_x.square().mean(0).sqrt()).clamp(min=torch.finfo(w.dtype).eps))
            self.bend.copy_(lever.mean(0).abs().mean() * kind.widths(on_x) / self.near)
        if isinstance(kind, FrobeniusBall):
            mean = float(row_mean(divergence.value(u, z), counts))
            self.share.fill_(share_of(math.sqrt(max(mean, 0.0)), math.sqrt(kind.price(divergence.curvature, w))))

    def state(self) -> dict[str, Tensor]:
        return {"share": self.share, "hardness": self.hardness, "near": self.near, "bend": self.bend}

    def load(self, named: dict[str, Tensor]) -> None:
        for name, part in self.state().items():
            part.copy_(named[name])


def guard_of(layer: Layer, w: Tensor) -> Guard | None:
    """For weights like w; None where the layer has no uncertainty."""
    kind, width, one = layer.uncertainty, w.shape[1], w.new_ones(())
    hard = one * layer.divergence.curvature
    if isinstance(kind, Noise):
        return Guard(layer, kind.covariance(width, w), one, hard, 0 * one, 0 * one)
    if isinstance(kind, FrobeniusBall):
        return Guard(layer, kind.covariance(0.5, width, w), one / 2, hard, 0 * one, 0 * one)
    if isinstance(kind, BoxBall):
        eps = kind.widths(w).clone()  # on the device once: a recorded step must copy nothing to it
        kind = replace(kind, eps=eps, basis=None if kind.basis is None else kind.basis.to(w))
        matrix = _SPREAD * (torch.diag(eps**2) if kind.basis is None else (kind.basis.T * eps**2) @ kind.basis)
        return Guard(replace(layer, uncertainty=kind), matrix, one, hard, torch.zeros_like(eps), torch.zeros_like(eps))
    return None
