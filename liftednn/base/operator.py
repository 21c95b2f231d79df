"""The protocol of A(x; w, b): operators, which map between a sample's shapes and the regression that the W-step solves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["Affine", "Operator", "SelfAdjoint", "regress"]

Shape = tuple[int, ...]

# Conjugate gradients stop at this residual relative to the right-hand side, or after this many steps.
_PRECISION, _STEPS = 1e-12, 1000


class Affine(NamedTuple):
    """The weights of one layer: `w` of shape (out, in), as in torch.nn.Linear, or (groups, out, in), and `b` with one entry per output.

    >>> weights = lnn.Affine(torch.ones(2, 3), torch.zeros(2))
    >>> lnn.operators.Dense(3, 2).forward([torch.ones(1, 3)], weights).tolist()
    [[3.0, 3.0]]
    """

    w: Tensor
    b: Tensor


def regress(rows: Tensor, weights: Affine) -> Tensor:
    """rows w' + b, (m, p) -> (m, q); with groups each on its own columns, (m, g p) -> (m, g q)."""
    w, b = weights
    if w.ndim == 2:
        return torch.addmm(b, rows, w.T)
    grouped = rows.view(len(rows), len(w), -1).transpose(0, 1)
    return (grouped @ w.mT).transpose(0, 1).reshape(len(rows), -1) + b


class SelfAdjoint:
    """A'A for fixed weights, on rows (n, width).

    apply   x -> A'A x
    form    returns the matrix (width, width); None where it is too large to be formed
    """

    def __init__(self, width: int, apply: Callable[[Tensor], Tensor], form: Callable[[], Tensor] | None) -> None:
        self.width, self.apply, self._form = width, apply, form
        self._factors: dict[float, Tensor] = {}

    @property
    def small(self) -> bool:
        """Whether A'A is small enough to be formed as a matrix."""
        return self._form is not None

    def matrix(self) -> Tensor:
        if self._form is None:
            raise ValueError(f"a matrix of {self.width} columns is too large to be formed: use apply and solve")
        return self._form()

    def solve(self, shift: float, rhs: Tensor) -> Tensor:
        """(A'A + shift I)^-1 on every row of rhs, shift > 0: by a Cholesky factor in float64, or by conjugate gradients."""
        if not self.small:
            return _conjugate_gradients(lambda x: torch.add(self.apply(x), x, alpha=shift), rhs)
        if shift not in self._factors:
            matrix = self.matrix().double()
            matrix = (matrix + matrix.T) / 2
            matrix.diagonal().add_(shift)
            self._factors[shift] = torch.linalg.cholesky(matrix)
        return torch.cholesky_solve(rhs.double().T, self._factors[shift]).T.to(rhs.dtype)


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], rhs: Tensor) -> Tensor:
    """For each row of rhs alone: every row has its own step lengths, and stops changing once it has converged."""
    x, r = torch.zeros_like(rhs), rhs.clone()
    direction, square = r.clone(), r.square().sum(1)
    goal = (max(_PRECISION, 4 * torch.finfo(rhs.dtype).eps) ** 2) * square
    for _ in range(_STEPS):
        active = square > goal
        if not bool(active.any()):
            break
        image = apply(direction)
        length = torch.where(active, square / (direction * image).sum(1).clamp(min=torch.finfo(x.dtype).tiny), 0.0)
        x, r = x + length[:, None] * direction, r - length[:, None] * image
        fresh = r.square().sum(1)
        ratio = torch.where(active, fresh / square.clamp(min=torch.finfo(x.dtype).tiny), 0.0)
        direction, square = r + ratio[:, None] * direction, fresh
    return x


class Operator(ABC):
    """A(xs; w, b), affine in every state that it reads for fixed weights, linear in (w, b) for fixed states:

        A(xs; w, b) = fold(rows(xs) w' + b) + offset(xs)

    A sample's inputs and pre-activations have shapes; the regression of the W-step has its own layout, t rows for each sample. States and
    pre-activations are passed flattened and contiguous, (n, width); `xs` is the list of the states that the operator reads. `rows` and
    `offset` are linear in xs.

    in_shapes      shape of one sample, for each state read: (p,), (channels, height, width), (steps, width)
    out_shape      shape of one sample's pre-activation
    weight_shape   (q, p) of the regression, or (g, q, p) for g groups: w of group i maps columns i p, ..., (i + 1) p - 1 of the rows
                   to columns i q, ..., (i + 1) q - 1 of the targets
    bias           whether b may differ from 0; it has one entry for each column of the targets, not for each pre-activation
    plain          the operator is exactly x w' + b on a single state; `resized` then returns the same for other widths
    resizable      `resized` returns the operator for a w of another shape: as many columns for every channel of the one state that it
                   reads, channels in their order, and a row for every channel of the output; pruning needs it. True where plain
    skips          `offset` is not 0

    >>> operator = lnn.operators.Dense(3, 2)
    >>> operator.in_shapes, operator.out_shape, operator.weight_shape
    (((3,),), (2,), (2, 3))
    """

    in_shapes: tuple[Shape, ...]
    out_shape: Shape
    bias: bool
    plain: bool = False
    skips: bool = False
    # A'A is formed as a matrix up to this many columns.
    _formed: int = 4096

    @property
    def resizable(self) -> bool:
        return self.plain

    @property
    @abstractmethod
    def weight_shape(self) -> Shape: ...

    @property
    def in_widths(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.in_shapes)

    @property
    def out_width(self) -> int:
        return math.prod(self.out_shape)

    @property
    def outputs(self) -> int:
        """Columns of the targets: q, or g q."""
        return math.prod(self.weight_shape[:-1])

    @property
    def grouped(self) -> bool:
        """Whether w has groups, (g, q, p)."""
        return len(self.weight_shape) == 3

    @property
    def positions(self) -> int:
        """Rows of the regression for one sample, t."""
        return self.out_width // self.outputs

    @abstractmethod
    def rows(self, xs: Sequence[Tensor]) -> Tensor:
        """The rows of the regression, (n t, p) or (n t, g p); the t rows of a sample follow each other.

        xs   the states that the layer reads, in their order, each (n, width)
        """

    def targets(self, u: Tensor) -> Tensor:
        """Pre-activations (n, out_width), or a tensor in their layout, as the targets of the regression, (n t, outputs).

        The default is for an `out_shape` that begins with the outputs, as (channels, height, width) does.
        """
        if self.positions == 1:
            return u
        return u.view(len(u), self.outputs, -1).transpose(1, 2).reshape(-1, self.outputs)

    def fold(self, targets: Tensor) -> Tensor:
        """The inverse of `targets`."""
        t = self.positions
        return targets if t == 1 else targets.view(-1, t, self.outputs).transpose(1, 2).reshape(-1, self.out_width)

    def offset(self, xs: Sequence[Tensor]) -> Tensor:
        """The part that does not depend on the weights, (n, out_width), such as x in a residual sum. Required where `skips` is declared."""
        raise TypeError(f"{type(self).__name__} has no part without weights: declare `skips` and implement `offset`")

    def forward(self, xs: Sequence[Tensor], weights: Affine) -> Tensor:
        """Pre-activations (n, out_width)."""
        u = self.fold(regress(self.rows(xs), weights))
        return u + self.offset(xs) if self.skips else u

    def weight_gradient(self, xs: Sequence[Tensor], u_gradient: Tensor) -> Tensor:
        """The gradient of <forward(xs), u_gradient> in w, like w: u_gradient (n, out_width), as targets, times the rows. Override it where
        it can be computed without the rows."""
        rows, targets = self.rows(xs), self.targets(u_gradient)
        if not self.grouped:
            return targets.T @ rows
        groups = len(rows), self.weight_shape[0], -1
        return targets.view(groups).permute(1, 2, 0) @ rows.view(groups).transpose(0, 1)

    def bias_gradient(self, u_gradient: Tensor) -> Tensor:
        """The gradient of <forward(xs), u_gradient> in b, (outputs,): the sum over all rows of the targets."""
        targets = self.targets(u_gradient)
        return targets.T @ targets.new_ones(len(targets))

    @abstractmethod
    def adjoint(self, r: Tensor, weights: Affine, index: int = 0) -> Tensor:
        """The adjoint of the linear part in state `index`: <A x, r> = <x, adjoint(r)>, (n, out_width) -> (n, in_widths[index])."""

    def normal(self, weights: Affine, index: int = 0) -> SelfAdjoint:
        """A'A for state `index`, which all samples share in its X-step."""
        width = self.in_widths[index]

        def apply(x: Tensor) -> Tensor:
            xs = [x if i == index else x.new_zeros(len(x), other) for i, other in enumerate(self.in_widths)]
            return self.adjoint(self.forward(xs, weights._replace(b=torch.zeros_like(weights.b))), weights, index)

        small = width <= self._formed
        return SelfAdjoint(width, apply, (lambda: apply(torch.eye(width).to(weights.w))) if small else None)

    def norm(self, weights: Affine, index: int = 0) -> float:
        """An upper bound on the spectral norm of the linear part in state `index`; step lengths need a true bound, not an estimate."""
        normal = self.normal(Affine(*(part.double() for part in weights)), index)
        if not normal.small:
            raise TypeError(
                f"{type(self).__name__} has too many inputs for their Gram matrix: override `norm` with a bound"
            )
        matrix = normal.matrix()
        return float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1].clamp(min=0).sqrt())

    def by_group(self, xs: Sequence[Tensor]) -> list[tuple[Operator, list[Tensor]]] | None:
        """For an operator with groups, that of every group without its offset, and the states it reads, so that the rows of a group can be
        formed without those of the others. None where it has no such parts; the W-step then holds all rows in memory."""
        return None

    def resized(self, inputs: int, outputs: int) -> Self:
        """The same operator for a w of shape (outputs, inputs). Required where `plain` or `resizable` is declared."""
        raise TypeError(f"{type(self).__name__} is not declared `plain`, so it has no other widths")
