"""The W-step of a layer with any operator (sec. 6.1): written as one regression, or one for each group, and solved by weights.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.base import Affine, Divergence, Operator
from liftednn.blocks.design import Design
from liftednn.blocks.patches import Patches
from liftednn.blocks.weights import WeightStep, update_weights
from liftednn.network import Layer
from liftednn.operators import Dense

__all__ = ["POSITIONS", "SAMPLES", "Regression", "designs_of", "regressions", "repeated", "some_rows", "update_layer"]


# The most rows, and the fewest samples, that moments are taken from in mini-batches where a sample has several rows.
POSITIONS, SAMPLES = 32768, 32
# The rows that a Gram matrix needs, at least, and for each of its columns.
_FEWEST, _PER_COLUMN = 8192, 8


@dataclass(frozen=True)
class Regression:
    """One W-step in the form that weights.py solves: a layer, its rows, the states z that it gives, and the present weights."""

    layer: Layer
    design: Design
    z: Tensor
    current: Affine


def repeated(row_weights: Tensor | None, positions: int) -> Tensor | None:
    """The weight of each row of a regression, (n t,), from the weight of each sample, (n,)."""
    return row_weights if row_weights is None or positions == 1 else row_weights.repeat_interleave(positions)


def some_rows(operator: Operator, xs: Sequence[Tensor], row_weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The rows of a regression and their weights; with several positions, such as those of a convolution, of the first samples that
    count: as many as a Gram matrix of so many columns needs."""
    needed = min(POSITIONS, max(_FEWEST, _PER_COLUMN * operator.weight_shape[-1]))
    count = max(SAMPLES, needed // operator.positions) if operator.positions > 1 else len(xs[0])
    few: slice | Tensor = slice(count)
    if operator.positions > 1 and row_weights is not None and bool(row_weights.any()):
        few = torch.nonzero(row_weights).flatten()[:count]
    weights = None if row_weights is None else row_weights[few]
    return operator.rows([x[few] for x in xs]), repeated(weights, operator.positions)


def designs_of(layer: Layer, xs: Sequence[Tensor], sample_weight: Tensor | None) -> list[Design]:
    """The rows of a layer, one design for each group: reuse them while the states xs that it reads stay the same.

    The rows of several positions are not held in memory, unless the operator has groups and no operator for each.
    """
    operator, row_weights = layer.operator, repeated(sample_weight, layer.operator.positions)
    parts = operator.by_group(xs) if operator.grouped else [(operator, list(xs))]
    if operator.positions > 1 and parts is not None:
        return [Patches(part, read, row_weights) for part, read in parts]
    rows = torch.split(operator.rows(xs), operator.weight_shape[-1], 1)
    return [Design(part.contiguous(), operator.bias, row_weights) for part in rows]


def regressions(
    layer: Layer, designs: Sequence[Design], xs: Sequence[Tensor], z: Tensor, current: Affine, by_moments: bool = True
) -> list[Regression]:
    """The layer's W-step, one regression for each group.

    by_moments   a quadratic divergence is used only through moments, so that z may be outside its domain

    The objective is a mean over samples of sums over t positions, the regression's a mean over all rows: its lam is t times as large.
    """
    operator, grouped = layer.operator, layer.operator.grouped
    if operator.plain:
        return [Regression(layer, designs[0], z, current)]
    width, t = operator.weight_shape[-2], operator.positions
    whole = layer.divergence
    if t > 1 or grouped:
        whole, z = whole.by_unit(z)
        z = operator.targets(z)
    offset = operator.targets(operator.offset(xs)) if operator.skips else None
    if offset is not None and whole.quadratic and by_moments:
        z, offset = z - offset, None
    # A regression is dense on its rows. Its means are over rows, not samples, and so is its uncertainty.
    dense, kind = Dense(operator.weight_shape[-1], width, operator.bias), layer.row_uncertainty
    found = []
    for group, design in enumerate(designs):
        columns = slice(group * width, (group + 1) * width) if grouped else slice(None)
        divergence = whole if offset is None else WithOffset(whole, offset[:, columns])
        uncertainty = None if kind is None else kind.scaled(t**-0.5)
        posed = replace(layer, operator=dense, divergence=divergence, lam=layer.lam * t, uncertainty=uncertainty)
        w = current.w[group] if grouped else current.w
        found.append(Regression(posed, design, z[:, columns], Affine(w, current.b[columns])))
    return found


def update_layer(
    layer: Layer,
    designs: Sequence[Design],
    xs: Sequence[Tensor],
    z: Tensor,
    current: Affine,
    tol: float = 1e-3,
    max_iter: int = 200,
) -> WeightStep:
    """The minimising weights of a layer without shared w, from the present ones; xs are the states that it reads, z the one it gives."""
    posed = regressions(layer, designs, xs, z, current)
    steps = [update_weights(each.layer, each.design, each.z, each.current, tol, max_iter) for each in posed]
    if not layer.operator.grouped:
        return steps[0]
    weights = Affine(torch.stack([step.weights.w for step in steps]), torch.cat([step.weights.b for step in steps]))
    return WeightStep(weights, max(s.kkt for s in steps), max(s.n_iter for s in steps), steps[0].method)


class WithOffset(Divergence):
    """D(u + offset, z), for a layer with a part of the pre-activation that does not depend on its weights."""

    def __init__(self, divergence: Divergence, offset: Tensor) -> None:
        self.divergence, self.shift = divergence, offset
        self.capped, self.unitwise = divergence.capped, divergence.unitwise

    uniform = property(lambda self: self.divergence.uniform)
    curvature = property(lambda self: self.divergence.curvature)

    def __call__(self, u: Tensor) -> Tensor:
        return self.divergence(u + self.shift)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return self.divergence.value(u + self.shift, z)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self.divergence.grad(u + self.shift, z)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return self.divergence.prox_u(v + self.shift, z, step) - self.shift

    def cap(self, z: Tensor) -> Tensor:
        return self.divergence.cap(z) - self.shift

    def width(self, p: int) -> int:
        return self.divergence.width(p)

    def preactivation_width(self, width: int) -> int:
        return self.divergence.preactivation_width(width)
