"""Which states each layer reads and which layers share their weights, from the layers' names and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.network.layer import Layer

__all__ = ["Connections"]

DATA = "x0"


@dataclass(frozen=True)
class Connections:
    """Layer number l gives state l + 1; state 0 is the data, the last state the responses.

    reads     for each layer, the states that its operator reads
    readers   for each state but the last, pairs (number of a layer that reads it, index of the state among those the layer reads)
    owners    for each layer, the first layer with the same key, whose w it shares; itself without a key
    """

    reads: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[tuple[int, int], ...], ...]
    owners: tuple[int, ...]

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Connections:
        """The connections of these layers; an error says where names, shapes or keys do not fit."""
        names = [DATA, *(layer.name or f"x{number}" for number, layer in enumerate(layers, start=1))]
        if len(set(names)) < len(names):
            raise ValueError(
                f"every state needs a name of its own other than 'x0', the name of the data, got {names[1:]}"
            )
        reads = tuple(_reads(number, layer, names) for number, layer in enumerate(layers))
        readers = tuple(
            tuple((number, each.index(state)) for number, each in enumerate(reads) if state in each)
            for state in range(len(layers))
        )
        for state, found in enumerate(readers):
            if not found:
                raise ValueError(
                    f"no layer reads the state {names[state]!r}: remove its layer, or add the name to the `reads` of a layer"
                )
        _check_shapes(layers, readers)
        return cls(reads, readers, tuple(_owner(number, layers) for number in range(len(layers))))

    @property
    def chain(self) -> bool:
        """Whether every layer reads the previous state only and shares its w with no other."""
        numbers = range(len(self.reads))
        return all(self.reads[number] == (number,) and self.alone(number) for number in numbers)

    def alone(self, number: int) -> bool:
        """Whether a layer shares its w with no other."""
        return self.owners.count(self.owners[number]) == 1

    def sharing(self, owner: int) -> tuple[int, ...]:
        """The layers that share the w of `owner`, which comes first."""
        return tuple(number for number, other in enumerate(self.owners) if other == owner)


def _reads(number: int, layer: Layer, names: Sequence[str]) -> tuple[int, ...]:
    given, allowed = layer.reads or (names[number],), list(names[: number + 1])
    wrong = [name for name in given if name not in allowed]
    if wrong or len(set(given)) < len(given):
        raise ValueError(f"layer {number} reads {given}: give names of states before it, each once: {allowed}")
    if len(given) != len(layer.operator.in_shapes):
        raise ValueError(
            f"layer {number}: {layer.operator!r} reads {len(layer.operator.in_shapes)} states, and reads={given} names {len(given)}"
        )
    return tuple(allowed.index(name) for name in given)


def _check_shapes(layers: Sequence[Layer], readers: Sequence[Sequence[tuple[int, int]]]) -> None:
    """A state is read in its own shape, or as a vector of as many entries."""
    for state, found in enumerate(readers):
        first, index = found[0]
        shape = layers[state - 1].shape if state else layers[first].operator.in_shapes[index]
        for number, own_index in found:
            needed = layers[number].operator.in_shapes[own_index]
            if math.prod(needed) != math.prod(shape) or (len(needed) > 1 < len(shape) and needed != shape):
                what = f"layer {state - 1} gives" if state else f"layer {first} takes"
                sizes = (math.prod(shape), math.prod(needed))
                have, want = sizes if len(needed) < 2 and len(shape) < 2 else (shape, needed)
                raise ValueError(f"{what} {have} states, but layer {number} takes {want}")


def _same(a: Penalty, b: Penalty) -> bool:
    """Whether two penalties have the same class and fields, tensors compared by content."""
    if a is b or type(a) is not type(b):
        return a is b
    fields = zip(vars(a).items(), vars(b).items(), strict=True)
    return all(
        x == y and (torch.equal(p, q) if isinstance(p, Tensor) and isinstance(q, Tensor) else bool(p == q))
        for (x, p), (y, q) in fields
    )


def _owner(number: int, layers: Sequence[Layer]) -> int:
    layer = layers[number]
    same = [other for other, each in enumerate(layers) if layer.key and each.key == layer.key]
    if not same:
        return number
    owner = layers[same[0]]
    shape, needed = layer.operator.weight_shape, owner.operator.weight_shape
    if owner.transposed:
        raise ValueError(
            f"layer {same[0]} is the first with the key {layer.key!r}, so its w cannot be transposed: leave transposed=False there"
        )
    needed = needed[::-1] if layer.transposed else needed
    if shape != needed:
        raise ValueError(
            f"layers {same[0]} and {number} share the key {layer.key!r}, so w of layer {number} should have shape {needed}, and has {shape}"
        )
    if not _same(layer.penalty, owner.penalty):
        raise ValueError(
            f"layers {same[0]} and {number} share the key {layer.key!r}, so they must have one penalty, got {owner.penalty!r} and "
            f"{layer.penalty!r}"
        )
    return same[0]
