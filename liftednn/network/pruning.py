"""Removal of hidden units that are constant, and of units that no later layer uses; the units of a convolution are its channels.

A hidden unit whose row of w is 0 gives the constant phi(b), which is added to the next layer's bias; a unit whose columns of the next
layer's w are 0 is removed. Where several layers read the state, this must hold for all of them; units of a dense layer whose state is
part of a sum, and of layers that share their w, are kept. Constant units are removed from the first layer to the last, since this may
leave the next layer with a row of zeros; unused units from the last to the first. The feed-forward predictions stay the same; those of
the lifted rule may change, since it also optimises the state of a constant unit.

A constant channel is a constant of the next layer only where all positions receive the same from it, which zeros in a padding prevent:
such channels are refused, as are those of a convolution whose state is part of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from liftednn.activations.windows import Windowed
from liftednn.base import Activation, Affine
from liftednn.network.connections import Connections
from liftednn.network.layer import Layer

__all__ = ["pruned"]

# What a constant gives at two positions differs by less, relative to the largest, where it is the same up to rounding.
_ROUNDING = 1e-12


def pruned(
    layers: Sequence[Layer], connections: Connections, weights: Sequence[tuple[Tensor, Tensor]]
) -> tuple[list[Layer], list[Affine]]:
    """Layers and weights without constant and unused units; every layer keeps at least one unit."""
    given = [Affine(w, b) for w, b in weights]
    if len(given) != len(layers):
        raise ValueError(
            f"the network has {len(layers)} layers, weights were given for {len(given)}: give one (w, b) for each layer"
        )
    cut = _Cut(layers, connections, given)
    for number in cut.free:
        cut.fold(number)
    for number in reversed(cut.free):
        cut.narrow(number, cut.used(number))
    for number, (layer, (w, _)) in enumerate(zip(cut.layers, cut.current, strict=True)):
        obeyed = bool(layers[number].penalty_value(given[number].w).isfinite())
        if obeyed and not bool(layer.penalty_value(w).isfinite()):
            raise ValueError(
                f"without its pruned units, the weights of layer {number} would violate {layer.penalty!r}: give that layer another penalty"
            )
    return cut.layers, cut.current


class _Cut:
    """The layers and weights so far; `free` are the hidden layers whose units may be removed."""

    def __init__(self, layers: Sequence[Layer], connections: Connections, given: list[Affine]) -> None:
        self.layers, self.connections, self.current = list(layers), connections, list(given)
        hidden = range(len(layers) - 1)
        self.free = [number for number in hidden if self._is_free(number)]
        for number in hidden:
            if number not in self.free:
                self._refuse_constants(number)
        if hidden and not self.free:
            raise ValueError(
                "no unit can be removed: pruning needs a hidden layer u = x w' + b, or a convolution without groups, that shares its w "
                "with no other layer, and is read by such layers alone"
            )

    def _readers(self, number: int) -> list[int]:
        return [reader for reader, _ in self.connections.readers[number + 1]]

    def _is_free(self, number: int) -> bool:
        around, layer = [number, *self._readers(number)], self.layers[number]
        alone = all(self.connections.alone(each) for each in around)
        if not alone or not all(self.layers[each].operator.resizable for each in around):
            return False
        if layer.operator.plain and layer.width != layer.operator.out_width:
            raise ValueError(
                f"layer {number}: {layer.divergence!r} makes one state of several units, so none can be removed"
            )
        return layer.shape[0] == layer.operator.outputs and all(self._by_channel(number, each) for each in around[1:])

    def _by_channel(self, number: int, reader: int) -> bool:
        """Whether a layer reads a state channel by channel: in its shape, or as a vector."""
        operator = self.layers[reader].operator
        return operator.plain or operator.in_shapes[0] == self.layers[number].shape

    def _refuse_constants(self, number: int) -> None:
        """Channels that are constant, but in a layer whose units must stay."""
        operator = self.layers[number].operator
        zero = ~self.current[number].w.flatten(0, -2).any(1)
        if not operator.plain and not operator.skips and bool(zero.any()):
            raise ValueError(
                f"layer {number}: the weights of channels {_named(zero)} are 0, but these channels cannot be removed, since the layer has "
                "groups or shares its w, or a layer that reads them has, or adds them to other channels in a sum"
            )

    def used(self, number: int) -> Tensor:
        """Which units some layer has weights for."""
        units = len(self.current[number].b)
        return torch.stack([self.current[each].w.any(0).view(units, -1).any(1) for each in self._readers(number)]).any(
            0
        )

    def fold(self, number: int) -> None:
        """Add constant units to the biases of the layers that read them, if these have biases, and remove the units."""
        readers = self._readers(number)
        values = self._constants(number)
        biased = all(self.layers[reader].operator.bias for reader in readers)
        removed = ~self.current[number].w.any(1)
        removed &= True if biased else ~values.any(1)
        if bool(removed.all()):
            removed[0] = False
        moved = torch.where(removed[:, None], values, torch.zeros_like(values))
        for reader in readers:
            onward, bias = self.current[reader]
            received = self._received(number, reader, moved)
            self.current[reader] = Affine(onward, (bias.double() + received).to(bias))
        self.narrow(number, ~removed)

    def _constants(self, number: int) -> Tensor:
        """The states of units without weights, (units, positions), in float64."""
        operator, b = self.layers[number].operator, self.current[number].b.double()
        return self.layers[number].divergence(operator.fold(b.expand(operator.positions, -1))).view(len(b), -1)

    def _received(self, number: int, reader: int, moved: Tensor) -> Tensor:
        """What the outputs of a layer receive from constant units, (outputs,); `moved` (units, positions) is 0 for the others."""
        operator, w = self.layers[reader].operator, self.current[reader].w.double()
        if operator.positions == 1 and operator.plain:
            return w @ moved.flatten()
        units = moved.any(1).nonzero().flatten().tolist()
        found = w.new_zeros(operator.outputs)
        for unit in units:
            alone = torch.zeros_like(moved)
            alone[unit] = moved[unit]
            received = operator.targets(operator.forward([alone.view(1, -1)], Affine(w, torch.zeros_like(found))))
            values = received.detach()
            if float((values - values[0]).abs().max()) > _ROUNDING * float(values.abs().max()):
                raise ValueError(
                    f"layer {number}: channel {unit} has weights of 0 and the constant value {float(moved[unit, 0]):g}, of which layer "
                    f"{reader} reads less where its windows reach into the padding, so that no bias can replace it: give the channel a "
                    "bias for which it is 0, or use convolutions without padding"
                )
            found += received[0]
        return found

    def narrow(self, number: int, stays: Tensor) -> None:
        """Remove units from a layer's rows and from its readers' columns; `stays` is true for those that are kept."""
        if not bool(stays.any()):
            stays = torch.zeros_like(stays)
            stays[0] = True
        if bool(stays.all()):
            return
        entries = math.prod(self.layers[number].shape) // len(stays)  # of the state, for one unit
        w, b = self.current[number]
        self.layers[number] = _with_units(number, self.layers[number], stays)
        self.current[number] = Affine(w[stays], b[stays])
        for reader in self._readers(number):
            onward, bias = self.current[reader]
            columns = stays.repeat_interleave(onward.shape[1] // len(stays))
            state = stays.repeat_interleave(entries).nonzero().flatten()
            self.layers[reader] = _with_inputs(self.layers[reader], columns, state)
            self.current[reader] = Affine(onward[:, columns], bias)


def _with_units(number: int, layer: Layer, stays: Tensor) -> Layer:
    """The layer with fewer units."""
    operator, divergence = layer.operator, layer.divergence
    assert isinstance(divergence, Activation)
    if not divergence.unitwise and not isinstance(divergence, Windowed):  # windows lie within a channel
        raise ValueError(
            f"layer {number}: {divergence!r} is not declared `unitwise`, so its units may depend on each other and none can be "
            "removed: use an activation that acts unit by unit"
        )
    outputs, inputs = stays.nonzero().flatten(), torch.arange(operator.weight_shape[-1], device=stays.device)
    entries = stays.repeat_interleave(operator.positions).nonzero().flatten()
    return replace(
        layer,
        operator=operator.resized(len(inputs), len(outputs)),
        divergence=divergence.restrict(entries),
        penalty=layer.penalty.restrict(outputs, inputs),
    )


def _with_inputs(layer: Layer, columns: Tensor, state: Tensor) -> Layer:
    """The layer with fewer columns of w, where `state` are the entries left of the state that it reads."""
    inputs, outputs = columns.nonzero().flatten(), torch.arange(layer.operator.outputs, device=columns.device)
    return replace(
        layer,
        operator=layer.operator.resized(len(inputs), len(outputs)),
        penalty=layer.penalty.restrict(outputs, inputs),
        uncertainty=layer.uncertainty and layer.uncertainty.restrict(state),
    )


def _named(chosen: Tensor) -> str:
    """Indices, the first of many."""
    found: list[int] = chosen.nonzero().flatten().tolist()
    return ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
