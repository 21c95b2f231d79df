"""Removal of hidden units that are constant, and of units that no later layer uses.

A hidden unit whose row of w is 0 gives the constant phi(b), which is added to the next layer's bias; a unit whose column of the next
layer's w is 0 is removed. Where several layers read the state, this must hold for all of them; units of a state that is part of a sum, and
of layers that share their w, are kept. Constant units are removed from the first layer to the last, since this may leave the next layer
with a row of zeros; unused units from the last to the first. The feed-forward predictions stay the same; those of the lifted rule may
change, since it also optimises the state of a constant unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from liftednn.base import Activation, Affine
from liftednn.network.connections import Connections
from liftednn.network.layer import Layer

__all__ = ["pruned"]


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
        used = torch.stack([cut.current[reader].w.any(0) for reader, _ in connections.readers[number + 1]])
        cut.narrow(number, used.any(0))
    smaller = [_smaller(number, layer, cut.kept[number], cut.inputs(number)) for number, layer in enumerate(layers)]
    for number, (layer, (w, _)) in enumerate(zip(smaller, cut.current, strict=True)):
        obeyed = bool(layers[number].penalty_value(given[number].w).isfinite())
        if obeyed and not bool(layer.penalty_value(w).isfinite()):
            raise ValueError(
                f"without its pruned units, the weights of layer {number} would violate {layer.penalty!r}: give that layer another penalty"
            )
    return smaller, cut.current


class _Cut:
    """The weights so far, and the units of every layer that are left; `free` are the hidden layers whose units may be removed."""

    def __init__(self, layers: Sequence[Layer], connections: Connections, given: list[Affine]) -> None:
        self.layers, self.connections, self.current = layers, connections, list(given)
        self.kept = [torch.arange(len(b), device=b.device) for _, b in given]
        self.free = [number for number in range(len(layers) - 1) if self._is_free(number)]
        if len(layers) > 1 and not self.free:
            raise ValueError(
                "no unit can be removed: pruning needs a hidden layer u = x w' + b that shares its w with no other layer, and is read "
                "by such layers alone"
            )

    def _is_free(self, number: int) -> bool:
        around = [number, *(reader for reader, _ in self.connections.readers[number + 1])]
        alone = all(self.connections.alone(each) for each in around)
        if not alone or not all(self.layers[each].operator.plain for each in around):
            return False
        layer = self.layers[number]
        if layer.width != layer.operator.out_width:
            raise ValueError(
                f"layer {number}: {layer.divergence!r} makes one state of several units, so none can be removed"
            )
        return True

    def inputs(self, number: int) -> Tensor:
        """Indices of the columns of a layer's original w that are left."""
        (state, *others), device = self.connections.reads[number], self.current[number].w.device
        if state and not others and state - 1 in self.free:
            return self.kept[state - 1]
        return torch.arange(self.layers[number].operator.weight_shape[-1], device=device)

    def fold(self, number: int) -> None:
        """Add constant units to the biases of the layers that read them, if these have biases, and remove the units."""
        (w, b), readers = self.current[number], [reader for reader, _ in self.connections.readers[number + 1]]
        varies, phi = w.any(1), self.layers[number].divergence
        assert isinstance(phi, Activation)
        value = phi.restrict(self.kept[number])(b[None].double())[0]
        biased = all(self.layers[reader].operator.bias for reader in readers)
        removed = ~varies if biased else ~varies & (value == 0)
        if bool(removed.all()):
            removed[0] = False
        moved = torch.where(removed, value, torch.zeros_like(value))
        for reader in readers:
            onward, bias = self.current[reader]
            self.current[reader] = Affine(onward, (bias.double() + onward.double() @ moved).to(bias))
        self.narrow(number, ~removed)

    def narrow(self, number: int, stays: Tensor) -> None:
        """Remove units from a layer's rows and from its readers' columns; `stays` is true for those that are kept."""
        if not bool(stays.any()):
            stays = torch.zeros_like(stays)
            stays[0] = True
        w, b = self.current[number]
        self.current[number], self.kept[number] = Affine(w[stays], b[stays]), self.kept[number][stays]
        for reader, _ in self.connections.readers[number + 1]:
            onward, bias = self.current[reader]
            self.current[reader] = Affine(onward[:, stays], bias)


def _smaller(number: int, layer: Layer, outputs: Tensor, inputs: Tensor) -> Layer:
    operator, divergence = layer.operator, layer.divergence
    if not operator.plain:
        return layer
    if len(outputs) < operator.outputs:
        assert isinstance(divergence, Activation)
        if not divergence.unitwise:
            raise ValueError(
                f"layer {number}: {divergence!r} is not declared `unitwise`, so its units may depend on each other and none can be "
                "removed: use an activation that acts unit by unit"
            )
        divergence = divergence.restrict(outputs)
    narrow = operator.resized(len(inputs), len(outputs))
    penalty = layer.penalty.restrict(outputs, inputs)
    fewer = len(inputs) < operator.weight_shape[-1]
    uncertainty = layer.uncertainty.restrict(inputs) if layer.uncertainty and fewer else layer.uncertainty
    return replace(layer, operator=narrow, divergence=divergence, penalty=penalty, uncertainty=uncertainty)
