"""The geometries of mini-batch steps for a w with groups, or that several layers share; `Metric` is that of a plain w."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from liftednn.blocks.regressions import some_rows
from liftednn.blocks.shared import Sylvester
from liftednn.network import Layer, LiftedNetwork, States
from liftednn.training.metric import Metric
from liftednn.training.spectral import SpectralMetric

__all__ = ["Geometry", "Grouped", "SharedMetric", "geometries_of"]

Free = tuple[bool, bool]


class Geometry(Protocol):
    """How a gradient in one w, and in the intercepts of the layers that have it, becomes a step; everything is updated in place.

    layer      the one that owns the w
    proxed     whether a step on w ends with the penalty's prox
    spectral   whether it takes gradients that are averaged over steps (spectral.py)
    """

    @property
    def layer(self) -> Layer: ...

    @property
    def proxed(self) -> bool: ...

    @property
    def spectral(self) -> bool: ...

    def add_rows(self, rows: Sequence[Tensor], row_weights: Sequence[Tensor | None]) -> None:
        """Add the rows of every layer to the running moments, and reduce the weight of older rows."""

    def refresh(self, curvatures: Sequence[float], extra: Tensor | None = None) -> None:
        """Factor again, for the curvature of every layer and, if given, an extra curvature (p, p) in w."""

    def set_rho_factor(self, factor: float) -> None:
        """Multiply the penalty's rho by this factor, from the next refresh on."""

    def limit(self, allowed: float) -> None:
        """Let one batch move the outputs, at rate 1, by no more than this: the mean square, summed over outputs."""

    def shorten(self, factor: float) -> None:
        """Make every step shorter by this factor, until the next refresh."""

    def step_length(self) -> float:
        """The mean length of a step of rate 1 along the gradient in w."""

    def mean_outputs(self, w: Tensor) -> list[Tensor]:
        """For every layer, the mean over rows of what w gives, without the intercept; 0 where that is fixed."""

    def direction(
        self, w: Tensor, w_gradients: Sequence[Tensor], b_gradients: Sequence[Tensor], samples: int
    ) -> tuple[list[Tensor], Tensor | float]:
        """A direction in w and in the intercept of every layer, and a length: their product is what a step of rate 1 subtracts.

        w_gradients   of every layer, the gradient in its w, summed over the rows of that many samples; they may be overwritten
        b_gradients   of every layer, that in its intercept
        """

    def state(self) -> dict[str, Tensor]: ...

    def load(self, named: dict[str, Tensor]) -> None: ...


def geometries_of(
    network: LiftedNetwork,
    layers: Sequence[Layer],
    states: States,
    damping: float,
    scale: Tensor | None = None,
    row_weights: Tensor | None = None,
    free: Sequence[Free] | None = None,
    spectral: bool = False,
) -> list[Geometry]:
    """One for every w of a network, from the states of some samples.

    layers     with the penalties, in the coordinates that the inputs are given in
    scale      of the whitened inputs of the first layer; None where they are not whitened
    spectral   whether hidden layers take the steps of spectral.py, where they can
    """
    free, found = [(True, True)] * len(layers) if free is None else free, []
    for owner in sorted(set(network.connections.owners)):
        numbers = network.connections.sharing(owner)
        moves = all(free[number][0] for number in numbers)
        members = [
            _Member(
                layers[number],
                *some_rows(layers[number].operator, network.read(number, states), row_weights),
                (moves, free[number][1]),
            )
            for number in numbers
        ]
        geometry = _geometry(members, damping, scale if owner == 0 else None)
        hidden = owner < len(layers) - 1
        found.append(SpectralMetric(geometry) if spectral and hidden and _allows_spectral(geometry) else geometry)
    return found


def _allows_spectral(geometry: Geometry) -> TypeGuard[Metric]:
    """Whether a regression is a plain one: spectral steps know neither proximal maps nor uncertain rows."""
    if not isinstance(geometry, Metric) or geometry.white:
        return False
    return geometry.free[0] and geometry.layer.penalty.ridge is not None and geometry.layer.uncertainty is None


class _Member(NamedTuple):
    """A layer that has a w, its rows and their weights, and whether w and b may move."""

    layer: Layer
    rows: Tensor
    row_weights: Tensor | None
    free: Free


def _geometry(members: Sequence[_Member], damping: float, scale: Tensor | None) -> Geometry:
    """The geometry of one w, from the layers that have it."""
    operator = members[0].layer.operator
    if not operator.grouped:
        return _metric(members, damping, scale)
    cut = zip(*(torch.split(member.rows, operator.weight_shape[-1], 1) for member in members), strict=True)
    groups = [[m._replace(rows=rows) for m, rows in zip(members, part, strict=True)] for part in cut]
    return Grouped([_metric(group, damping, None) for group in groups], operator.weight_shape)


def _metric(members: Sequence[_Member], damping: float, scale: Tensor | None) -> Metric | SharedMetric:
    metrics = [Metric.of(each.layer, each.rows, damping, scale, each.row_weights, each.free) for each in members]
    return metrics[0] if len(metrics) == 1 else SharedMetric(metrics)


class Grouped:
    """A w of shape (g, q, p): each group has a geometry of its own."""

    spectral = False

    def __init__(self, groups: Sequence[Metric | SharedMetric], shape: tuple[int, ...]) -> None:
        self.groups, self.shape, self.layer = groups, shape, groups[0].layer

    @property
    def proxed(self) -> bool:
        return self.groups[0].proxed

    def _cut(self, parts: Sequence[Tensor], width: int) -> list[tuple[Tensor, ...]]:
        return list(zip(*(torch.split(part, width, 1) for part in parts), strict=True))

    def add_rows(self, rows: Sequence[Tensor], row_weights: Sequence[Tensor | None]) -> None:
        for group, part in zip(self.groups, self._cut(rows, self.shape[-1]), strict=True):
            group.add_rows(part, row_weights)

    def refresh(self, curvatures: Sequence[float], extra: Tensor | None = None) -> None:
        for group in self.groups:
            group.refresh(curvatures)

    def set_rho_factor(self, factor: float) -> None:
        for group in self.groups:
            group.set_rho_factor(factor)

    def limit(self, allowed: float) -> None:
        for group in self.groups:
            group.limit(allowed / len(self.groups))

    def shorten(self, factor: float) -> None:
        for group in self.groups:
            group.shorten(factor)

    def step_length(self) -> float:
        return sum(group.step_length() for group in self.groups) / len(self.groups)

    def mean_outputs(self, w: Tensor) -> list[Tensor]:
        groups = [group.mean_outputs(own) for group, own in zip(self.groups, w, strict=True)]
        return [torch.cat(parts) for parts in zip(*groups, strict=True)]

    def direction(
        self, w: Tensor, w_gradients: Sequence[Tensor], b_gradients: Sequence[Tensor], samples: int
    ) -> tuple[list[Tensor], float]:
        cut = zip(*(torch.split(b, self.shape[-2]) for b in b_gradients), strict=True)
        parts = zip(self.groups, w, zip(*w_gradients, strict=True), cut, strict=True)
        found = [group.direction(own, gw, gb, samples) for group, own, gw, gb in parts]
        moves = [[length * part for part in move] for move, length in found]
        intercepts = [torch.cat(each) for each in list(zip(*moves, strict=True))[1:]]
        return [torch.stack([move[0] for move in moves]), *intercepts], 1.0

    def state(self) -> dict[str, Tensor]:
        groups = enumerate(self.groups)
        return {f"{number}.{name}": part for number, group in groups for name, part in group.state().items()}

    def load(self, named: dict[str, Tensor]) -> None:
        for number, group in enumerate(self.groups):
            group.load({name: named[f"{number}.{name}"] for name in group.state()})


class SharedMetric:
    """A w that several layers share, each with rows, a curvature c, t rows for a sample and an intercept of its own. The bound is that of
    blocks/shared.py, with a = c t and gram + d I for gram.

    left, right   the spectra's eigenvectors
    shrinkage     2 rho, as a tensor that a recorded step reads
    inverse       1 over the sums of their eigenvalues, (q, p); one number for all where the penalty has a prox
    """

    spectral = False

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics, self.layer = metrics, metrics[0].layer
        self.flips = [metric.layer.transposed for metric in metrics]
        q, p = self.layer.operator.weight_shape[-2:]
        mean = metrics[0].mean
        self.shrinkage = mean.new_full((), 2 * (self.layer.penalty.ridge or 0.0))
        self.right, self.left = (torch.eye(size, dtype=mean.dtype, device=mean.device) for size in (p, q))
        self.inverse = mean.new_zeros(q, p)
        self.turned = any(self.flips)

    @property
    def proxed(self) -> bool:
        return self.metrics[0].proxed

    def add_rows(self, rows: Sequence[Tensor], row_weights: Sequence[Tensor | None]) -> None:
        for metric, x, weights in zip(self.metrics, rows, row_weights, strict=True):
            metric.add_rows([x], [weights])

    def refresh(self, curvatures: Sequence[float], extra: Tensor | None = None) -> None:
        """A layer that no gradient reaches adds no curvature; where none is reached, w stays."""
        for metric, curvature in zip(self.metrics, curvatures, strict=True):
            metric.curvature.fill_(curvature)
        sides = [self._side(flip) for flip in (False, True)]
        if sides[0] is None and sides[1] is None:
            self.inverse.zero_()
            return
        right = (
            torch.zeros(self.right.shape, dtype=torch.float64, device=self.right.device)
            if sides[0] is None
            else sides[0]
        )
        right.diagonal().add_(float(self.shrinkage))
        bound = Sylvester.of(right, sides[1])
        if self.layer.penalty.ridge is None:
            self.inverse.fill_(1 / max(bound.largest, 1e-12))
            return
        self.right.copy_(bound.right[1])
        if bound.left is not None:
            self.left.copy_(bound.left[1])
        self.inverse.copy_(bound.inverse.expand_as(self.inverse))

    def _side(self, flip: bool) -> Tensor | None:
        """The sum of c t (gram + d I) over the layers that have w, or its transpose."""
        total: Tensor | None = None
        for metric, turned in zip(self.metrics, self.flips, strict=True):
            if turned == flip and bool(metric.curvature.isfinite()):
                assert metric.moments is not None
                gram = metric.moments.gram.clone()
                gram.diagonal().add_(metric.damped(gram))
                part = float(metric.curvature) * metric.layer.operator.positions * gram
                total = part if total is None else total + part
        return total

    def set_rho_factor(self, factor: float) -> None:
        self.shrinkage.fill_(2 * factor * (self.layer.penalty.ridge or 0.0))

    def limit(self, allowed: float) -> None:
        """Not for a shared w: its outputs are those of several layers, and `shorten` limits its steps."""

    def shorten(self, factor: float) -> None:
        self.inverse.div_(factor)
        for metric in self.metrics:
            metric.curvature.mul_(factor)

    def step_length(self) -> float:
        return float(self.inverse.mean())

    def mean_outputs(self, w: Tensor) -> list[Tensor]:
        parts = zip(self.metrics, self.flips, strict=True)
        return [metric.mean_outputs(w.T if flip else w)[0] for metric, flip in parts]

    def direction(
        self, w: Tensor, w_gradients: Sequence[Tensor], b_gradients: Sequence[Tensor], samples: int
    ) -> tuple[list[Tensor], float]:
        gradient, intercepts = self.shrinkage * w, []
        for metric, flip, w_sum, b_sum in zip(self.metrics, self.flips, w_gradients, b_gradients, strict=True):
            t = metric.layer.operator.positions
            b = b_sum / (samples * t) if metric.free[1] else torch.zeros_like(b_sum)
            part = torch.addr(w_sum / samples, b, metric.mean, alpha=-t)
            gradient = gradient + (part.T if flip else part)
            intercepts.append(b / metric.curvature)
        move = self._solved(gradient) if self.metrics[0].free[0] else torch.zeros_like(w)
        turned = [move.T if flip else move for flip in self.flips]
        free = zip(self.metrics, turned, intercepts, strict=True)
        parts = [move, *(b - own @ metric.mean if metric.free[1] else b for metric, own, b in free)]
        return parts, 1.0

    def _solved(self, gradient: Tensor) -> Tensor:
        if self.layer.penalty.ridge is None:
            return gradient * self.inverse
        inner = gradient @ self.right
        inner = (self.left.T @ inner if self.turned else inner) * self.inverse
        return (self.left @ inner if self.turned else inner) @ self.right.T

    def state(self) -> dict[str, Tensor]:
        own = {"right": self.right, "left": self.left, "scale": self.inverse}
        metrics = enumerate(self.metrics)
        return own | {f"{number}.{name}": part for number, metric in metrics for name, part in metric.state().items()}

    def load(self, named: dict[str, Tensor]) -> None:
        for name, part in {"right": self.right, "left": self.left, "scale": self.inverse}.items():
            part.copy_(named[name])
        for number, metric in enumerate(self.metrics):
            metric.load({name: named[f"{number}.{name}"] for name in metric.state()})
