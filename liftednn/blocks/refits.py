"""The block of an activation's own parameters (sec. 4, "optimizing over parameters in activation functions"):

    min over theta of  lam mean D_theta(u, z),    weights and states fixed, each layer on its own

The minimiser is the activation's own affair, `Activation.refit`; here it is taken if the energy does not rise. Where the layer's rows
are uncertain that is the robust energy, whose price changes with the curvature of D_theta: a refit that would raise it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Grain
from liftednn.network import Layer, LiftedNetwork

__all__ = ["Grains", "RefitStep", "grains_of", "parameters", "update_activation", "with_activation"]

# One for all hidden layers, or one each; None for what stays as it is.
Grains = Grain | Sequence[Grain | None] | None


@dataclass(frozen=True)
class RefitStep:
    """The network with one activation re-estimated, and how far another refit would still move its parameters, as a share of them."""

    network: LiftedNetwork
    kkt: float


def grains_of(network: LiftedNetwork, learned: Grains) -> list[Grain | None]:
    """What is learned of each hidden layer; refused in words where it cannot be."""
    count = len(network.layers) - 1
    if learned in ("layer", "unit") and not count:
        raise ValueError("learn_activation is for hidden layers, and the network has none: leave learn_activation=None")
    each_layer = isinstance(learned, Sequence) and not isinstance(learned, str)
    asked: list[Any] = list(learned or ()) if each_layer else [learned]
    given = asked if each_layer else asked * count
    wrong = [each for each in asked if each not in (None, "layer", "unit")]
    if wrong or len(given) != count:
        raise ValueError(
            f"learn_activation must be None, 'layer' or 'unit', or one of them for each of the {count} hidden layers, got {learned!r}"
        )
    for place, (activation, per) in enumerate(zip(network.hidden, given, strict=True)):
        if per and not activation.learned:
            raise ValueError(
                f"layer {place}: {activation!r} has no parameter to learn: give FenchelLeakyReLU, FenchelClip or Scaled, "
                "or leave learn_activation=None"
            )
        operator = network.layers[place].operator
        if per == "unit" and (operator.positions > 1 or len(operator.weight_shape) > 2):
            raise ValueError(
                f"layer {place}: {operator!r} has several positions or groups, whose units share one parameter: give 'layer' for it"
            )
        kind = network.layers[place].uncertainty
        if per == "unit" and kind is not None and not kind.per_unit:
            raise ValueError(
                f"layer {place}: in a {type(kind).__name__} all units share one parameter: give learn_activation='layer'"
            )
    return given


def update_activation(
    network: LiftedNetwork, place: int, w: Tensor, u: Tensor, z: Tensor, sample_weight: Tensor | None, per: Grain
) -> RefitStep:
    """The network with layer `place`'s activation at its minimum for weights w, pre-activations u and states z."""
    now, layer = network.hidden[place], network.layers[place]
    found = now.refit(u, z, sample_weight, per)
    if _energy(replace(layer, divergence=found), w, u, z, sample_weight) > _energy(layer, w, u, z, sample_weight):
        return RefitStep(network, _distance(now, found))  # rounding has eaten the gain, or the price of uncertainty has
    return RefitStep(with_activation(network, place, found), _distance(found, found.refit(u, z, sample_weight, per)))


def with_activation(network: LiftedNetwork, place: int, activation: Activation) -> LiftedNetwork:
    """The network with another activation in a hidden layer."""
    layers = list(network.layers)
    layers[place] = replace(layers[place], divergence=activation)
    return LiftedNetwork(layers)


def parameters(activation: Activation) -> dict[str, Tensor | float]:
    """Those that are learned, by name."""
    return {name: getattr(activation, name) for name in activation.learned}


def _energy(layer: Layer, w: Tensor, u: Tensor, z: Tensor, sample_weight: Tensor | None) -> float:
    return layer.term(float(reduce.mean(layer.seen(w).value(u, z).double(), sample_weight)), w)


def _distance(a: Activation, b: Activation) -> float:
    moved = 0.0
    for p, q in zip(parameters(a).values(), parameters(b).values(), strict=True):
        p, q = (torch.as_tensor(each, dtype=torch.float64) for each in (p, q))
        finite = p.isfinite()
        if bool(finite.any()):
            moved = max(moved, float(((p - q).abs() / p.abs().clamp(min=1e-12))[finite].max()))
    return moved
