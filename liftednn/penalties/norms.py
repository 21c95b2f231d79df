"""Penalties pi(w) that are norms (sec. 2, 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.checks import check_count, check_number
from liftednn.functional import soft_threshold

__all__ = ["L1", "L2", "ElasticNet", "GroupL2", "NoPenalty", "check_strength"]


def check_strength(name: str, rho: float) -> None:
    check_number(name, rho, zero=True)


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """pi(w) = 0.

    >>> float(lnn.penalties.NoPenalty().value(torch.ones(2, 3)))
    0.0
    """

    ridge = 0.0

    def value(self, w: Tensor) -> Tensor:
        return w.new_zeros((), dtype=torch.float64)

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w


@dataclass(frozen=True)
class L2(Penalty):
    """pi(w) = rho |w|_F^2, the penalty of the paper.

    >>> float(lnn.penalties.L2(rho=0.5).value(torch.ones(2, 3)))
    3.0
    """

    rho: float = 1e-3

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)

    @property
    def ridge(self) -> float:
        return self.rho

    def value(self, w: Tensor) -> Tensor:
        return self.rho * w.double().square().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w / (1 + 2 * step * self.rho)


@dataclass(frozen=True)
class L1(Penalty):
    """pi(w) = rho |w|_1: sets single weights to 0.

    >>> lnn.penalties.L1(rho=1.0).prox(torch.tensor([[3.0, -0.5]]), step=1.0).tolist()
    [[2.0, 0.0]]
    """

    rho: float = 1e-3

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)

    def value(self, w: Tensor) -> Tensor:
        return self.rho * w.double().abs().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        return soft_threshold(w, step * self.rho)


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """pi(w) = rho (l1_ratio |w|_1 + (1 - l1_ratio) |w|_F^2).

    >>> float(lnn.penalties.ElasticNet(rho=1.0, l1_ratio=0.5).value(torch.tensor([[2.0, 0.0]])))
    3.0
    """

    rho: float = 1e-3
    l1_ratio: float = 0.5

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)
        if not 0 <= self.l1_ratio <= 1:
            raise ValueError(f"l1_ratio must lie in [0, 1], got {self.l1_ratio}")

    def value(self, w: Tensor) -> Tensor:
        w = w.double()
        return self.rho * (self.l1_ratio * w.abs().sum() + (1 - self.l1_ratio) * w.square().sum())

    def prox(self, w: Tensor, step: float) -> Tensor:
        shrink = step * self.rho
        return soft_threshold(w, shrink * self.l1_ratio) / (1 + 2 * shrink * (1 - self.l1_ratio))


@dataclass(frozen=True)
class GroupL2(Penalty):
    """pi(w) = rho sum_g |w_g|_2 over rows (by="output": sets whole units to 0) or columns (by="input": whole features).

    Rows of a convolution are its filters, so that by="output" sets whole channels to 0.

    size   by="input" only: so many neighbouring columns are one group. All weights that read one channel are in it where size is the
           number of entries of a kernel (9 for kernels of 3 x 3), or for a dense layer that of a channel's positions

    >>> lnn.penalties.GroupL2(rho=1.0).prox(torch.tensor([[0.0, 2.0], [0.5, 0.5]]), step=1.0).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    rho: float = 1e-3
    by: Literal["output", "input"] = "output"
    size: int = 1

    def __post_init__(self) -> None:
        check_strength("rho", self.rho)
        if self.by not in ("output", "input"):
            raise ValueError(f"by must be 'output' or 'input', got {self.by!r}")
        check_count("size", self.size, least=1)
        if self.size > 1 and self.by == "output":
            raise ValueError(f"size is for by='input', got {self.size} with by='output': leave size=1")

    def _norms(self, w: Tensor) -> Tensor:
        """The norm of every group, (q, 1) or (1, groups)."""
        if self.by == "output":
            rows: Tensor = torch.linalg.vector_norm(w, dim=1, keepdim=True)
            return rows
        # The weights of each group in one column.
        norms: Tensor = torch.linalg.vector_norm(w.reshape(len(w), -1, self.size).mT.flatten(0, 1), dim=0, keepdim=True)
        return norms

    def value(self, w: Tensor) -> Tensor:
        return self.rho * self._norms(w.double()).sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        norms = self._norms(w).clamp(min=torch.finfo(w.dtype).tiny)
        return w * (1 - step * self.rho / norms).clamp(min=0).repeat_interleave(self.size, 1)

    def fits(self, shape: tuple[int, int]) -> bool:
        return shape[1] % self.size == 0

    def restrict(self, outputs: Tensor, inputs: Tensor) -> Penalty:
        """Only where every group is kept or removed as a whole."""
        groups = inputs[:: self.size] // self.size
        if not torch.equal((groups[:, None] * self.size + torch.arange(self.size).to(groups)).flatten(), inputs):
            raise ValueError(
                f"{self!r} has groups of {self.size} columns, of which only some would be removed: give the layer another penalty"
            )
        return self
