"""Penalties pi(w) that are constraints (sec. 2: "convex constraints, network structure"), each with an optional rho |w|_F^2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn.base import Box, Penalty
from liftednn.functional import barrier, box_prox
from liftednn.penalties.norms import check_strength

__all__ = ["Mask", "NonNegative"]


class _Boxed(Penalty):
    """pi(w) = rho |w|_F^2 on a box, +inf outside."""

    boxed = True
    rho: float

    def value(self, w: Tensor) -> Tensor:
        w, box = w.double(), self.box()
        lower, upper = (torch.as_tensor(bound, dtype=w.dtype, device=w.device) for bound in (box.lower, box.upper))
        outside = torch.maximum(lower - w, w - upper)
        return self.rho * w.square().sum() + barrier(outside.flatten())

    def prox(self, w: Tensor, step: float) -> Tensor:
        return box_prox(self.box(), w, step)


@dataclass(frozen=True)
class NonNegative(_Boxed):
    """pi(w) = rho |w|_F^2 on w >= 0.

    >>> lnn.penalties.NonNegative().prox(torch.tensor([[-1.0, 2.0]]), step=1.0).tolist()
    [[0.0, 2.0]]
    """

    rho: float = 0.0

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)

    def box(self) -> Box:
        return Box(0.0, torch.inf, 2 * self.rho, 0.0)


@dataclass(frozen=True, eq=False)
class Mask(_Boxed):
    """pi(w) = rho |w|_F^2 where `mask` (out, in) is true, w = 0 elsewhere: a fixed sparsity pattern. mask=None leaves all weights free.

    >>> lnn.penalties.Mask(torch.tensor([[True, False]])).prox(torch.tensor([[3.0, 2.0]]), step=1.0).tolist()
    [[3.0, 0.0]]
    """

    mask: Tensor | None = None
    rho: float = 0.0

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)
        if self.mask is not None and not isinstance(self.mask, Tensor):
            raise ValueError(f"mask must be None or a tensor of shape (out, in), got {type(self.mask).__name__}")

    def box(self) -> Box:
        if self.mask is None:
            return Box(-torch.inf, torch.inf, 2 * self.rho, 0.0)
        free = torch.where(self.mask.bool(), torch.inf, 0.0)
        return Box(-free, free, 2 * self.rho, 0.0)

    def fits(self, shape: tuple[int, int]) -> bool:
        """The mask must broadcast to the shape: 1 row or column is allowed."""
        if self.mask is None:
            return True
        given = (1,) * (2 - self.mask.ndim) + tuple(self.mask.shape)
        return len(given) == 2 and all(own in (1, width) for own, width in zip(given, shape, strict=True))

    def restrict(self, outputs: Tensor, inputs: Tensor) -> Penalty:
        if self.mask is None:
            return self
        mask = self.mask.reshape((1,) * (2 - self.mask.ndim) + tuple(self.mask.shape))
        mask = mask if len(mask) == 1 else mask[outputs.to(mask.device)]
        return Mask(mask if mask.shape[1] == 1 else mask[:, inputs.to(mask.device)], self.rho)
