"""Units that a network can do without: those that do not vary, and those that nobody listens to.

A hidden unit whose row of w is 0 gives the constant phi(b), which moves into the next layer's bias; a unit whose column of the next
layer's w is 0 goes altogether. The first kind is looked for from the first layer to the last, since it may leave the next layer with a
row of zeros; the second from the last to the first. The feed-forward predictions stay the same; the lifted rule's
may not, since it moves the state of a constant unit too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from liftednn.base import Activation, Affine, Divergence, Operator, Penalty, Uncertainty
from liftednn.operators import Dense

__all__ = ["pruned"]

# Rows of random pre-activations by which an activation shows that it acts unit by unit.
_PROBES = 16


class _Layer(Protocol):
    @property
    def operator(self) -> Operator: ...

    @property
    def divergence(self) -> Divergence: ...

    @property
    def penalty(self) -> Penalty: ...

    @property
    def uncertainty(self) -> Uncertainty | None: ...


L = TypeVar("L", bound=_Layer)


def pruned(layers: Sequence[L], weights: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[L], list[Affine]]:
    """Layers and weights without the units that can go; a layer keeps at least one."""
    given = [Affine(w, b) for w, b in weights]
    if len(given) != len(layers):
        raise ValueError(f"the network has {len(layers)} layers, weights were given for {len(given)}")
    _check(layers)
    current, kept = list(given), [torch.arange(len(b), device=b.device) for _, b in given]
    places = range(len(layers) - 1)
    for place in places:
        _fold(layers, current, kept, place)
    for place in reversed(places):
        _narrow(current, kept, place, current[place + 1].w.any(0))
    inputs = [torch.arange(given[0].w.shape[1], device=given[0].w.device), *kept[:-1]]
    smaller = [_smaller(n, layer, *ends) for n, (layer, *ends) in enumerate(zip(layers, kept, inputs, strict=True))]
    for place, (layer, (w, _)) in enumerate(zip(smaller, current, strict=True)):
        obeyed = bool(layers[place].penalty.value(given[place].w).isfinite())
        if obeyed and not bool(layer.penalty.value(w).isfinite()):
            raise ValueError(
                f"without its pruned units, the weights of layer {place} would break {layer.penalty!r}: give that layer another penalty"
            )
    return smaller, current


def _check(layers: Sequence[_Layer]) -> None:
    for place, layer in enumerate(layers):
        if not isinstance(layer.operator, Dense):
            raise ValueError(f"layer {place}: only units of Dense layers can be pruned, got {layer.operator!r}")
        if place < len(layers) - 1 and layer.divergence.width(layer.operator.out_width) != layer.operator.out_width:
            raise ValueError(f"layer {place}: {layer.divergence!r} makes one state of several units, so none can go")


def _fold(layers: Sequence[_Layer], current: list[Affine], kept: list[Tensor], place: int) -> None:
    """Let constants join the next bias, where the next layer has one."""
    (w, b), (onward, bias) = current[place], current[place + 1]
    varies = w.any(1)
    here, operator = layers[place], layers[place + 1].operator
    phi = _without(here.divergence, here.operator.out_width, kept[place])(b[None].double())[0]
    goes = ~varies if operator.bias else ~varies & (phi == 0)
    moved = onward.double() @ torch.where(goes, phi, torch.zeros_like(phi))
    if bool(goes.all()):
        goes[0], moved = False, moved - onward[:, 0].double() * phi[0]
    current[place + 1] = Affine(onward, (bias.double() + moved).to(bias))
    _narrow(current, kept, place, ~goes)


def _narrow(current: list[Affine], kept: list[Tensor], place: int, stays: Tensor) -> None:
    """Leave units out of a layer's rows and of the next one's columns."""
    if not bool(stays.any()):
        stays = torch.zeros_like(stays)
        stays[0] = True
    (w, b), (onward, bias) = current[place], current[place + 1]
    current[place], current[place + 1] = Affine(w[stays], b[stays]), Affine(onward[:, stays], bias)
    kept[place] = kept[place][stays]


def _smaller(place: int, layer: L, outputs: Tensor, inputs: Tensor) -> L:
    operator: Any = layer.operator
    divergence = layer.divergence
    if len(outputs) < operator.out_features:
        divergence = _without(layer.divergence, operator.out_features, outputs)
        _check_units(place, layer.divergence, divergence, operator.out_features, outputs)
    narrow = replace(operator, in_features=len(inputs), out_features=len(outputs))
    penalty = layer.penalty.restrict(outputs, inputs)
    fewer = len(inputs) < operator.in_features
    uncertainty = layer.uncertainty.restrict(inputs) if layer.uncertainty and fewer else layer.uncertainty
    parts = {"operator": narrow, "divergence": divergence, "penalty": penalty, "uncertainty": uncertainty}
    return replace(layer, **parts)  # type: ignore[type-var]


def _without(divergence: Divergence, width: int, kept: Tensor) -> Divergence:
    """With the parameters of the units that stay, where each has its own."""
    assert isinstance(divergence, Activation)
    given = {name: getattr(divergence, name) for name in divergence.learned}
    own = {name: p[kept.to(p.device)] for name, p in given.items() if isinstance(p, Tensor) and p.numel() == width}
    return replace(divergence, **own) if own else divergence  # type: ignore[type-var]


def _check_units(place: int, divergence: Divergence, narrow: Divergence, width: int, kept: Tensor) -> None:
    """The states of the units that stay must not depend on the others."""
    u = torch.randn(_PROBES, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(kept.device)
    try:
        alone = narrow(u[:, kept])
    except (RuntimeError, ValueError):
        alone = u[:, kept] * torch.nan
    if not torch.allclose(divergence(u)[:, kept], alone):
        raise ValueError(
            f"layer {place}: the units of {divergence!r} depend on each other or on their places, so none can go"
        )
