"""The problem of an X-step: a state, the layer that gives it, and the layers that read it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Affine, SelfAdjoint
from liftednn.functional import quantile
from liftednn.network import Layer, LiftedNetwork, States, Weights
from liftednn.solvers import select

__all__ = ["Reader", "StateProblem", "added", "plain_layer", "row_scales", "spans", "state_problem"]

# Samples that an iterative method solves together: few enough for a CPU's cache, many for a GPU.
_CPU_ROWS, _GPU_ROWS = 2048, 1 << 17
# The dual is solved where the readers' caps are at most as many: it has a matrix of one row and column for each.
_MOST_CAPS = 2048
# The fraction of rows that are no larger than what the residuals of all are relative to, at least.
_MOST_ROWS = 0.9


@dataclass(frozen=True)
class Reader:
    """A layer that reads the state, at position `index` of the states it reads, and its weights: the same for all samples."""

    layer: Layer
    weights: Affine
    index: int = 0

    @cached_property
    def normal(self) -> SelfAdjoint:
        return self.layer.operator.normal(self.weights, self.index)

    @cached_property
    def lipschitz(self) -> float:
        """Lipschitz constant of the gradient of the layer's term in the state."""
        curvature = self.layer.lam * self.layer.divergence.curvature
        return curvature * self.layer.operator.norm(self.weights, self.index) ** 2

    def forward(self, xs: Sequence[Tensor], z: Tensor) -> Tensor:
        """The layer's pre-activation for states xs, with z instead of the state that is being updated."""
        xs = [z] if len(xs) == 1 else [*xs[: self.index], z, *xs[self.index + 1 :]]
        return self.layer.operator.forward(xs, self.weights)

    def adjoint(self, r: Tensor) -> Tensor:
        return self.layer.operator.adjoint(r, self.weights, self.index)


@dataclass(frozen=True)
class StateProblem:
    """One X-step:  min_z  lam D(u, z) + sum over readers of lam_r D_r(A_r z, after_r).

    layer     the layer that gives the state, and u its pre-activation
    readers   the layers that read it
    xs        for each of them, the states that it reads; the entry for z is not used
    after     for each of them, the state that it gives
    """

    layer: Layer
    u: Tensor
    readers: tuple[Reader, ...]
    xs: tuple[tuple[Tensor, ...], ...]
    after: tuple[Tensor, ...]

    @property
    def activation(self) -> Activation:
        assert isinstance(self.layer.divergence, Activation)
        return self.layer.divergence

    def preactivations(self, z: Tensor) -> list[Tensor]:
        return [reader.forward(xs, z) for reader, xs in zip(self.readers, self.xs, strict=True)]

    def adjoint(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over readers."""
        return added(reader.adjoint(part) for reader, part in zip(self.readers, parts, strict=True))

    def u_gradients(self, us: Sequence[Tensor]) -> list[Tensor]:
        """lam_r grad D_r of every reader."""
        terms = zip(self.readers, us, self.after, strict=True)
        return [reader.layer.lam * reader.layer.divergence.grad(u, z) for reader, u, z in terms]

    def energy(self, us: Sequence[Tensor], z: Tensor) -> Tensor:
        """The objective of each row, (n,)."""
        terms = zip(self.readers, us, self.after, strict=True)
        parts = [reader.layer.lam * reader.layer.divergence.value(u, after) for reader, u, after in terms]
        return added(parts) + self.layer.lam * self.activation.value(self.u, z)

    def at_zero(self, z: Tensor) -> Tensor:
        """The gradient of the readers' terms at 0; z gives the shape."""
        return self.adjoint(self.u_gradients(self.preactivations(torch.zeros_like(z))))

    def scale(self, z: Tensor) -> Tensor:
        """What the residual of each row is relative to, (n,), from max |gradient of the readers' terms at 0|."""
        return row_scales(torch.cat([part.at_zero(x).abs().amax(1) for part, x in self.cut(z)]))

    def cut(self, z: Tensor, size: int | None = None) -> Iterator[tuple[StateProblem, Tensor]]:
        """The problem and z, cut into blocks of rows; `size` as in `spans`."""
        for rows in spans(z, size):
            xs = tuple(tuple(x[rows] for x in each) for each in self.xs)
            yield replace(self, u=self.u[rows], xs=xs, after=tuple(x[rows] for x in self.after)), z[rows]

    def method(self) -> str:
        """The method of `select` for one reader; a method that is valid for all of them where there are several."""
        kinds = {str(select(reader.layer.divergence, self.activation)) for reader in self.readers}
        layers = [reader.layer for reader in self.readers]
        caps = sum(layer.operator.out_width for layer in layers if layer.divergence.capped)
        small = all(reader.normal.small for reader in self.readers) and caps <= _MOST_CAPS
        formed = small or not kinds & {"nnls", "dual"}
        if formed and len(kinds) == 1:
            return kinds.pop()
        if formed and kinds == {"nnls", "dual"}:
            return "dual"
        return "splitting" if kinds & {"splitting", "dual"} else "prox_gradient"


def row_scales(sizes: Tensor) -> Tensor:
    """What the residual of each row is relative to, from the sizes of all rows (n,): its own or, if that is smaller, the one that most rows
    do not exceed. A row that is far larger than others hides nothing of them."""
    common = quantile(sizes[:, None], _MOST_ROWS)
    scales = torch.maximum(sizes, common.to(sizes))
    return torch.where(scales > 0, scales, 1.0)


def added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors of one shape, without allocating zeros to start from."""
    return functools.reduce(torch.add, parts)


def spans(like: Tensor, size: int | None = None) -> Iterator[slice]:
    """Blocks of rows that an iterative method solves together: of `size` where blocks change the solution, otherwise of a fast size."""
    size = size or (_CPU_ROWS if like.device.type == "cpu" else _GPU_ROWS)
    return (slice(start, start + size) for start in range(0, len(like), size))


def plain_layer(
    layer: Layer, weights: Affine, xs: Sequence[Tensor], z: Tensor, row_weights: Tensor | None = None
) -> Layer:
    """A layer without uncertainty that an X-step can use instead: its term is a majorant of the robust one, up to a constant, and equal to
    it at the states xs and z."""
    kind = layer.uncertainty
    if kind is None:
        return layer
    robust = layer.robust_divergence(weights.w)

    def mean() -> float:
        energy = robust.value(layer.operator.forward(xs, weights), z).double()
        return float(reduce.mean(energy, row_weights))

    slope = kind.slope(mean, layer.divergence.curvature, weights.w)
    return replace(layer, divergence=robust, lam=layer.lam * slope, uncertainty=None)


def state_problem(
    network: LiftedNetwork, weights: Weights, states: States, number: int, layers: Sequence[Layer] | None = None
) -> StateProblem:
    """The X-step of state `number`, with the readers whose own states are among `states`.

    layers   layers to use instead of the network's
    """
    layers = network.layers if layers is None else layers
    found = [pair for pair in network.connections.readers[number] if pair[0] + 1 < len(states)]
    readers = tuple(Reader(layers[reader], weights[reader], index) for reader, index in found)
    xs = tuple(tuple(network.read(reader, states)) for reader, _ in found)
    u = network.preactivation(number - 1, weights, states)
    return StateProblem(layers[number - 1], u, readers, xs, tuple(states[reader + 1] for reader, _ in found))
