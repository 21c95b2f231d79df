"""The slopes of PReLU layers as learned activations: which are learned, their initial values, and the parameters they are written to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from liftednn.activations import FenchelLeakyReLU, FenchelReLU
from liftednn.base import Granularity
from liftednn.modules.graph import Graph
from liftednn.network import LiftedNetwork

__all__ = ["found", "granularities", "started"]

# The initial value of a learned slope that is 0.
_FIRST = 0.01

Granularities = list[Granularity | None]


def granularities(graph: Graph, learn_activation: str | None) -> Granularities:
    """What is learned of each hidden layer. A PReLU that is used twice has one slope for two layers and is not learned, nor is one with
    max-pooling."""
    if learn_activation not in ("auto", None):
        raise ValueError(
            f"learn_activation must be 'auto', to learn the slopes of PReLU layers, or None, got {learn_activation!r}"
        )
    layers = [use.after.layer if use.after else None for use in graph.uses]
    once = [layers.count(layer) == 1 and not use.pooled for use, layer in zip(graph.uses, layers, strict=True)]
    return [_granularity(layer) if learn_activation and own else None for layer, own in zip(layers, once, strict=True)][
        :-1
    ]


def _granularity(layer: nn.Module | None) -> Granularity | None:
    if not isinstance(layer, nn.PReLU) or not layer.weight.requires_grad:
        return None
    return "unit" if layer.num_parameters > 1 else "layer"


def started(network: LiftedNetwork, learned: Granularities) -> LiftedNetwork:
    """The network with an initial slope above 0 where one is learned."""
    layers = list(network.layers)
    for number, per in enumerate(learned):
        if per and isinstance(layers[number].divergence, FenchelReLU):
            layers[number] = replace(layers[number], divergence=FenchelLeakyReLU(torch.full((1,), _FIRST)))
    return LiftedNetwork(layers)


def found(graph: Graph, network: LiftedNetwork, learned: Granularities) -> list[tuple[nn.Parameter, Tensor]]:
    """Each parameter that was learned, with its new values."""
    pairs = []
    for use, phi, per in zip(graph.uses, network.hidden, learned, strict=False):
        step = use.after
        if per and step is not None and isinstance(step.layer, nn.PReLU) and isinstance(phi, FenchelLeakyReLU):
            pairs.append((step.layer.weight, torch.as_tensor(phi.alpha).expand(step.layer.num_parameters)))
    return pairs
