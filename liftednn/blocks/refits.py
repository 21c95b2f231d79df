"""The block of an activation's own parameters (sec. 4, "optimizing over parameters in activation functions"):

    min over theta of  lam mean D_theta(u, z),    weights and states fixed, each layer on its own

`Activation.refit` returns the minimiser; it is accepted if the energy does not rise. With uncertain rows that is the robust energy, which
also depends on the curvature of D_theta, so that a refit may raise it and is then rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Granularity
from liftednn.network import Layer, LiftedNetwork

__all__ = ["Granularities", "RefitStep", "granularities_of", "parameters", "update_activation", "with_activation"]

# One for all hidden layers, or one each; None for a layer whose parameters stay fixed.
Granularities = Granularity | Sequence[Granularity | None] | None


@dataclass(frozen=True)
class RefitStep:
    """The network with one activation re-estimated, and the relative change of its parameters that another refit would make."""

    network: LiftedNetwork
    kkt: float


def granularities_of(network: LiftedNetwork, learned: Granularities) -> list[Granularity | None]:
    """Per hidden layer, whether one parameter per layer or per unit is learned, or none; an error where that is impossible."""
    count = len(network.layers) - 1
    if learned in ("layer", "unit") and not count:
        raise ValueError("learn_activation is for hidden layers, and the network has none: leave learn_activation=None")
    each_layer = isinstance(learned, Sequence) and not isinstance(learned, str)
    choices: list[Any] = list(learned or ()) if each_layer else [learned]
    given = choices if each_layer else choices * count
    wrong = [each for each in choices if each not in (None, "layer", "unit")]
    if wrong or len(given) != count:
        raise ValueError(
            f"learn_activation must be None, 'layer' or 'unit', or one of them for each of the {count} hidden layers, got {learned!r}"
        )
    for number, (activation, per) in enumerate(zip(network.hidden, given, strict=True)):
        if per and not activation.learned:
            raise ValueError(
                f"layer {number}: {activation!r} has no parameter to learn: give FenchelLeakyReLU, FenchelClip or Scaled, "
                "or leave learn_activation=None"
            )
        operator = network.layers[number].operator
        if per == "unit" and (operator.positions > 1 or operator.grouped):
            raise ValueError(
                f"layer {number}: {operator!r} has several positions or groups, whose units share one parameter: give 'layer' for it"
            )
        kind = network.layers[number].uncertainty
        if per == "unit" and kind is not None and not kind.per_unit:
            raise ValueError(
                f"layer {number}: with a {type(kind).__name__} all units share one parameter: give learn_activation='layer'"
            )
    return given


def update_activation(
    network: LiftedNetwork, number: int, w: Tensor, u: Tensor, z: Tensor, sample_weight: Tensor | None, per: Granularity
) -> RefitStep:
    """The network with the activation of hidden layer `number` refitted, for its weights w, pre-activations u and states z."""
    now, layer = network.hidden[number], network.layers[number]
    found = now.refit(u, z, sample_weight, per)
    if _energy(replace(layer, divergence=found), w, u, z, sample_weight) > _energy(layer, w, u, z, sample_weight):
        return RefitStep(network, _distance(now, found))  # the gain is below rounding, or the robust energy rises
    return RefitStep(with_activation(network, number, found), _distance(found, found.refit(u, z, sample_weight, per)))


def with_activation(network: LiftedNetwork, number: int, activation: Activation) -> LiftedNetwork:
    """The network with another activation in hidden layer `number`."""
    layers = list(network.layers)
    layers[number] = replace(layers[number], divergence=activation)
    return LiftedNetwork(layers)


def parameters(activation: Activation) -> dict[str, Tensor | float]:
    """The learned parameters, by name."""
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
