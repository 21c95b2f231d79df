"""`liftednn.optim.Lifted` with one part off or swapped at a time, for the experiment `ablate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from liftednn.optim import Lifted
from liftednn.step.polar import polar

__all__ = ["VARIANTS"]

# Steps before which Gram matrices are measured, besides every `_EVERY`-th; the weight of older ones; the rows of a batch that are taken.
_EARLY, _EVERY, _FORGET, _ROWS = (0, 2, 5, 10, 20), 60, 0.9, 20_000
_LEAST_DAMPING, _MOST_DAMPING = 0.3, 10.0


class FollowsWeights(Lifted):
    """A step is a share of the norm that a weight has now."""

    def _polar_step(self, params: list[Tensor], group: Mapping[str, Any]) -> None:
        for p in params:
            matrices = p.reshape(self._matrices[p], len(p) // self._matrices[p], -1)
            self.state[p]["length"] = torch.linalg.matrix_norm(matrices)
        super()._polar_step(params, group)


class PolarLast(Lifted):
    """The last weight takes polar steps too."""

    def __init__(self, module: nn.Module, criterion: Any, **more: Any) -> None:
        super().__init__(module, criterion, **more)
        self._by_adamw = set()


class AdamFor(Lifted):
    """AdamW moves all convolutions, or all other weights."""

    def __init__(self, convolutions: bool, module: nn.Module, criterion: Any, **more: Any) -> None:
        super().__init__(module, criterion, **more)
        self._by_adamw |= {p for p in self._matrices if (p.ndim > 2) == convolutions}


class GramMatrix(Lifted):
    """Along polar(M R') R with R' R = (gram + d I)^-1, gram the mean product of a layer's inputs, as long in the outputs as without it: the
    step of Newton-Muon. Without `turned`, along M (gram + d I)^-1. For Linear and convolutions without groups, of which it sees calls."""

    def __init__(self, module: nn.Module, criterion: Any, turned: bool = True, **more: Any) -> None:
        super().__init__(module, criterion, **more)
        self.turned, self.taken = turned, 0
        self.grams: dict[Tensor, Tensor] = {}
        self.roots: dict[Tensor, Tensor] = {}
        for each in module.modules():
            if isinstance(each, nn.Linear) or (isinstance(each, nn.Conv2d) and each.groups == 1):
                each.register_forward_pre_hook(self._see)

    @property
    def due(self) -> bool:
        return self.taken in _EARLY or self.taken % _EVERY == 0

    @torch.no_grad()
    def _see(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not (self.due and layer.training):
            return
        x = args[0].float()
        with torch.autocast(x.device.type, enabled=False):
            if isinstance(layer, nn.Conv2d):
                positions = x.shape[-1] * x.shape[-2] // math.prod(layer.stride)
                some = x[: max(16, _ROWS // positions)]
                rows = fn.unfold(some, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
                x = rows.mT.flatten(0, 1)
            rows = x.flatten(0, -2)
            gram, w = rows.mT @ rows / len(rows), layer.weight
            assert isinstance(w, Tensor)
            self.grams[w] = gram if w not in self.grams else _FORGET * self.grams[w] + (1 - _FORGET) * gram
            mean, fraction = gram.diagonal().mean(), 2 * len(gram) / len(rows)
            damped = self.grams[w] + mean * min(max(fraction, _LEAST_DAMPING), _MOST_DAMPING) * torch.eye(len(gram)).to(
                gram
            )
            lower = torch.linalg.cholesky(damped)
            root = torch.linalg.solve_triangular(lower, torch.eye(len(gram)).to(gram), upper=False)
            self.roots[w] = root / (torch.einsum("ij,jk,ik->", root, self.grams[w], root) / mean / len(gram)).sqrt()

    def _polar_step(self, params: list[Tensor], group: Mapping[str, Any]) -> None:
        for p in params:
            if p not in self.roots:
                super()._polar_step([p], group)
                continue
            held, momentum, root = self.state[p], float(group["momentum"]), self.roots[p]
            assert p.grad is not None
            held["velocity"].mul_(momentum).add_(p.grad)
            x = (p.grad + momentum * held["velocity"]).flatten(1).float() @ root.T
            x = polar(x[None])[0] if self.turned else x * (math.sqrt(min(x.shape)) / x.norm().clamp(min=1e-30))
            step = x @ root * (held["length"] / math.sqrt(min(x.shape)))
            p.sub_(group["lr"] * step.reshape(p.shape))

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        self.taken += 1
        return found


_WITH = "Lifted, "
VARIANTS: dict[str, Callable[[nn.Module, nn.Module], Lifted]] = {
    "Lifted": Lifted,
    f"{_WITH}Gram matrices": GramMatrix,
    f"{_WITH}regression instead of polar": partial(GramMatrix, turned=False),
    f"{_WITH}lengths that follow the weights": FollowsWeights,
    f"{_WITH}the last weight polar too": PolarLast,
    f"{_WITH}convolutions by AdamW": partial(AdamFor, True),
    f"{_WITH}all but convolutions by AdamW": partial(AdamFor, False),
    f"{_WITH}no weight decay": partial(Lifted, weight_decay=0.0),
    f"{_WITH}a third of the weight decay": partial(Lifted, weight_decay=0.05),
    f"{_WITH}three times the weight decay": partial(Lifted, weight_decay=0.45),
    f"{_WITH}half the rate": partial(Lifted, lr=0.01),
    f"{_WITH}twice the rate": partial(Lifted, lr=0.04),
}
