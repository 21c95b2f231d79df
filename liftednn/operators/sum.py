"""Sums of states before and after an operator, for residual networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from liftednn.base import Affine, Operator
from liftednn.operators.dense import Dense

__all__ = ["Residual", "Sum"]


@dataclass(frozen=True)
class Sum(Operator):
    """A(xs; w, b) = operator(sum of the states that enter it; w, b) + sum of the states that are added to it.

    operator   the operator with the weights
    enters     for each state read, whether it is part of the sum that `operator` is applied to
    added      for each state read, whether it is added to the output; a state may do both

    The default reads two states: operator(x_0) + x_1.

    >>> weights = lnn.Affine(torch.ones(2, 3), torch.zeros(2))
    >>> lnn.operators.Sum(lnn.operators.Dense(3, 2)).forward([torch.ones(1, 3), torch.ones(1, 2)], weights).tolist()
    [[4.0, 4.0]]
    """

    operator: Operator = field(default_factory=Dense)
    enters: tuple[bool, ...] = (True, False)
    added: tuple[bool, ...] = (False, True)

    def __post_init__(self) -> None:
        if len(self.enters) != len(self.added) or not any(self.enters):
            raise ValueError(
                f"enters and added have one entry for each state that is read, and some state must enter, got {self.enters} and "
                f"{self.added}"
            )
        if not all(a or b for a, b in zip(self.enters, self.added, strict=True)):
            raise ValueError(f"every state that is read must enter or be added, got {self.enters} and {self.added}")
        inner = self.operator
        if len(inner.in_shapes) != 1 or inner.skips:
            raise ValueError(f"a sum needs an operator that reads one state and adds none, got {inner!r}")
        if any(a and b for a, b in zip(self.enters, self.added, strict=True)) and inner.in_shapes[0] != inner.out_shape:
            raise ValueError(
                f"a state that enters and is added has the shape {inner.in_shapes[0]} before {inner!r} and {inner.out_shape} after it: "
                "give an operator whose outputs have the shape of its inputs"
            )

    bias = property(lambda self: self.operator.bias)
    skips = property(lambda self: any(self.added))
    _formed = property(lambda self: self.operator._formed)

    @property
    def in_shapes(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        return tuple(self.operator.in_shapes[0] if enters else self.operator.out_shape for enters in self.enters)

    out_shape = property(lambda self: self.operator.out_shape)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.operator.weight_shape

    def _entering(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [reduce(torch.add, [x for x, enters in zip(xs, self.enters, strict=True) if enters])]

    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        return self.operator.rows(self._entering(xs))

    def by_group(self, xs: Sequence[Tensor]) -> list[tuple[Operator, list[Tensor]]] | None:
        return self.operator.by_group(self._entering(xs))

    def targets(self, u: Tensor) -> Tensor:
        return self.operator.targets(u)

    def fold(self, targets: Tensor) -> Tensor:
        return self.operator.fold(targets)

    def offset(self, xs: Sequence[Tensor]) -> Tensor:
        return reduce(torch.add, [x for x, skips in zip(xs, self.added, strict=True) if skips])

    def forward(self, xs: Sequence[Tensor], weights: Affine) -> Tensor:
        u = self.operator.forward(self._entering(xs), weights)
        return u + self.offset(xs) if self.skips else u

    def weight_gradient(self, xs: Sequence[Tensor], u_gradient: Tensor) -> Tensor:
        return self.operator.weight_gradient(self._entering(xs), u_gradient)

    def bias_gradient(self, u_gradient: Tensor) -> Tensor:
        return self.operator.bias_gradient(u_gradient)

    def adjoint(self, r: Tensor, weights: Affine, index: int = 0) -> Tensor:
        if not self.enters[index]:
            return r.clone()
        back = self.operator.adjoint(r, weights)
        return back + r if self.added[index] else back

    def norm(self, weights: Affine, index: int = 0) -> float:
        inner = self.operator.norm(weights) if self.enters[index] else 0.0
        return inner + float(self.added[index])


def Residual(operator: Operator | None = None) -> Sum:  # noqa: N802
    """A(x; w, b) = operator(x; w, b) + x, a `Sum` that reads one state; operator=None is Dense(1, 1).

    >>> weights = lnn.Affine(torch.zeros(2, 2), torch.ones(2))
    >>> lnn.operators.Residual(lnn.operators.Dense(2, 2)).forward([torch.ones(1, 2)], weights).tolist()
    [[2.0, 2.0]]
    """
    return Sum(Dense() if operator is None else operator, (True,), (True,))
