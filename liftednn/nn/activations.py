"""Torch's activation layers with the forward unchanged and the X-step of the lifted model as the backward.

For pre-activations u and an incoming gradient g in the states z, with D the Fenchel divergence of the activation,

    z+ = argmin_z <g, z> + L D(u, z),        gradient in u = L grad_u D(u, z+),        L = lam rms(g) / rms(u)

so that a step moves z by about 1 / lam of the size of u, whatever the units of u and of the loss. As lam grows, the gradient tends to that
of back-propagation. rms is the root mean square of all entries of the batch; for a Softmax, in which neither a number that is added to a
row nor an entry without probability counts, that of the standard deviations of the rows under these probabilities.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from liftednn.activations import FenchelLeakyReLU
from liftednn.base import Activation
from liftednn.functional import positive
from liftednn.modules.calls import Step
from liftednn.modules.layers import fenchel

__all__ = ["LIFTED", "LiftedActivation"]


class LiftedActivation(nn.Module):
    """An activation layer of torch with another backward; combined with that layer's class, whose fields it has.

    lam   in units of rms(g) / rms(u); finite
    """

    lam: float

    def forward(self, u: Tensor) -> Tensor:
        slopes = self.weight if isinstance(self, nn.PReLU) else None
        if not isinstance(u, Tensor):  # a proxy of torch.fx, which would record the forward without its backward
            raise TypeError(
                "a lifted activation cannot be traced: lnn.nn.lift(module) gives it torch's own layers again"
            )
        if not torch.is_grad_enabled():
            return self.phi(u, slopes)
        return cast(Tensor, _XStep.apply(self, u, slopes))  # type: ignore[no-untyped-call]

    def phi(self, u: Tensor, slopes: Tensor | None) -> Tensor:
        """As torch computes it; `slopes` are those of a PReLU."""
        return functional.prelu(u, slopes) if slopes is not None else cast(Tensor, super().forward(u))

    def divergence(self, slopes: Tensor | None) -> Activation:
        """The activation with its Fenchel divergence."""
        if slopes is None:
            return fenchel(Step(type(self).__name__, self))
        if not positive(slopes):
            raise ValueError(
                f"a slope of {self!r} is now {float(slopes.min()):g}, and only slopes above 0 have a divergence: use a smaller step for "
                "them, or lift the module with lam=math.inf"
            )
        return FenchelLeakyReLU(slopes)

    def rows(self, u: Tensor) -> Tensor:
        """u with the units last, as activations here have them: torch has them in dimension 1, a Softmax in its own."""
        return u.movedim(self._dimension, -1) if u.ndim > 1 else u

    def as_given(self, rows: Tensor) -> Tensor:
        """The inverse of `rows`."""
        return rows.movedim(-1, self._dimension) if rows.ndim > 1 else rows

    @property
    def _dimension(self) -> int:
        return self.dim or 1 if isinstance(self, nn.Softmax) else 1

    def extra_repr(self) -> str:
        return ", ".join(part for part in (super().extra_repr(), f"lam={self.lam:g}") if part)


class _XStep(torch.autograd.Function):
    """The activation of a layer, with the X-step as its backward."""

    @staticmethod
    def forward(ctx: Any, layer: LiftedActivation, u: Tensor, slopes: Tensor | None) -> Tensor:
        in_place = bool(getattr(layer, "inplace", False))
        ctx.layer = layer
        ctx.save_for_backward(u.clone() if in_place else u, slopes)
        z = layer.phi(u, slopes)
        if in_place:
            ctx.mark_dirty(z)  # z is u
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor, Tensor | None]:
        u, slopes = ctx.saved_tensors
        # Differences of states need more than 16 bits, and more than 32 where states are large for small u.
        wide = torch.promote_types(u.dtype, torch.float64 if isinstance(ctx.layer, _SHIFTED) else torch.float32)
        given = u.to(wide), None if slopes is None else slopes.to(wide)
        of_u, of_slopes = _gradients(ctx.layer, *given, g.to(wide))
        return None, of_u.to(u.dtype), None if of_slopes is None else of_slopes.to(slopes.dtype)


def _gradients(layer: LiftedActivation, u: Tensor, slopes: Tensor | None, g: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradients in u and, for a PReLU, in its slopes."""
    of_u, of_g = _sizes(layer, u, g)
    step = of_u / (layer.lam * of_g)  # 1 / L
    if not 0 < float(step) < torch.inf:  # u = 0, where L is infinite; g = 0; or a gradient that is not finite
        return _back_propagated(layer, u, slopes, g)
    activation, u, g = layer.divergence(slopes), layer.rows(u), layer.rows(g)
    z, gradient = activation.phi_and_x_step(u)[1](step * g, 1.0)
    of_u = layer.as_given(gradient / step)
    return of_u, None if slopes is None else _of_slopes(u, z, slopes) / step


def _sizes(layer: LiftedActivation, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """rms(u) and rms(g)."""
    if not isinstance(layer, nn.Softmax):
        return _rms(u), _rms(g)
    u, g = layer.rows(u), layer.rows(g)
    p = functional.softmax(u, -1, dtype=torch.float64)
    count = math.sqrt(max(p.numel(), 1) / p.shape[-1]) if p.shape[-1] else 1.0
    deviations = (p.sqrt() * (x - (p * x).sum(-1, keepdim=True)) for x in (u.where(p > 0, 0.0), g))
    of_u, of_g = (torch.linalg.vector_norm(each) / count for each in deviations)
    return of_u, of_g


def _rms(x: Tensor) -> Tensor:
    """In float64, where squares of small gradients are not 0."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return norm / math.sqrt(max(x.numel(), 1))


def _of_slopes(u: Tensor, z: Tensor, slopes: Tensor) -> Tensor:
    """The gradient of D(u, z) = z_-^2 / (2 slope) + slope u_-^2 / 2 + ... in the slopes; as a product, to avoid cancellation."""
    before, after = u.clamp(max=0), z.clamp(max=0) / slopes
    entries = (before - after) * (before + after) / 2
    return entries.sum().reshape(1) if len(slopes) == 1 else entries.flatten(0, -2).sum(0)


def _back_propagated(
    layer: LiftedActivation, u: Tensor, slopes: Tensor | None, g: Tensor
) -> tuple[Tensor, Tensor | None]:
    u = u.detach().requires_grad_()
    slopes = None if slopes is None else slopes.detach().requires_grad_()
    with torch.enable_grad():
        z = layer.phi(u.clone(), slopes)  # a clone, since layers may work in place
    of_u, *rest = torch.autograd.grad(z, [u] if slopes is None else [u, slopes], g)
    return of_u, rest[0] if rest else None


_KINDS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid),
    *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax),
)
# Those that are not 0 at 0.
_SHIFTED = (nn.Hardsigmoid, nn.Sigmoid, nn.Softplus, nn.Softmax)
# The class that each of torch's layers is given.
LIFTED: dict[type[nn.Module], type[nn.Module]] = {
    kind: type(f"Lifted{kind.__name__}", (LiftedActivation, kind), {"__module__": __name__}) for kind in _KINDS
}
globals().update({kind.__name__: kind for kind in LIFTED.values()})  # pickle finds a class by its name in a module
