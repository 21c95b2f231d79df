"""From a lifted network and its weights to a torch module (eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from liftednn.activations import Identity, Scaled
from liftednn.base import Activation, Affine
from liftednn.losses import Matching, Split
from liftednn.modules.feedforward import FeedForward, Rule, State
from liftednn.modules.layers import layer_of
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.operators import Dense, Sum

__all__ = ["to_module"]


def to_module(network: LiftedNetwork, weights: Weights) -> nn.Module:
    """The network's feed-forward rule as Linear layers and activations of torch, with the dtype and device of the weights.

    A chain becomes a Sequential. Layers that read other states than the one before, add states or share weights become a `FeedForward`,
    in which a shared weight is one parameter.

    The last Linear gives the scores: logits, for a softmax. After it comes the activation of a `Matching` or `Split` loss. The scale of
    a `Scaled` activation is multiplied into the weights before it.

    network   of Dense layers, and sums with them
    weights   one `Affine` for each layer

    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    >>> again, x = lnn.init.to_module(*lnn.init.from_module(module)), torch.ones(2, 3)
    >>> torch.equal(again(x), module(x))
    True
    """
    operators = [_dense(number, layer) for number, layer in enumerate(network.layers)]
    network.check_shared(weights)
    follows: list[nn.Module] = []
    scaled: list[Affine] = []
    for number, weight in enumerate(weights):
        activation, weight = _follows(network, number, weight)
        follows.append(activation)
        scaled.append(weight)
    if network.connections.chain and all(isinstance(layer.operator, Dense) for layer in network.layers):
        pairs = zip(map(_linear, operators, scaled), follows, strict=True)
        return nn.Sequential(*(each for pair in pairs for each in pair if not isinstance(each, nn.Identity)))
    return _feedforward(network, operators, scaled, follows)


def _dense(number: int, layer: Layer) -> Dense:
    """The dense operator of a layer, alone or in a sum."""
    inner = layer.operator.operator if isinstance(layer.operator, Sum) else layer.operator
    if not isinstance(inner, Dense):
        raise ValueError(
            f"layer {number}: torch has no standard layer for {layer.operator!r}: only Dense, and sums with it, can be converted"
        )
    return inner


def _follows(network: LiftedNetwork, number: int, weight: Affine) -> tuple[nn.Module, Affine]:
    """The torch activation after a Linear, and the weights of the Linear."""
    layer = network.layers[number]
    phi = _activation(layer)
    if isinstance(phi, Scaled) and (layer.operator.skips or not network.connections.alone(number)):
        raise ValueError(
            f"layer {number}: the scale of {phi!r} would have to be multiplied into weights that another layer shares, or into "
            "states that are added: give an activation without a scale"
        )
    phi, weight = _unscaled(phi, weight)
    follows = layer_of(phi)
    if follows is None:
        raise ValueError(f"layer {number}: torch has no standard layer for {phi!r}: write a module of your own for it")
    return follows.to(weight.w), weight


def _activation(layer: Layer) -> Activation:
    """What follows the affine map of a layer: its activation, or that of its loss."""
    if isinstance(layer.divergence, Activation):
        return layer.divergence
    return layer.divergence.activation if isinstance(layer.divergence, (Matching, Split)) else Identity()


def _unscaled(phi: Activation, weight: Affine) -> tuple[Activation, Affine]:
    """The activation without its scale s, and s times the weights: phi(s u) = phi((s w) x + s b)."""
    while isinstance(phi, Scaled):
        scale = torch.as_tensor(phi.scale).to(weight.w).reshape(-1)
        phi, weight = phi.activation, Affine(scale[:, None] * weight.w, scale * weight.b)
    return phi, weight


def _linear(operator: Dense, weights: Affine) -> nn.Linear:
    """Created on the meta device, so that torch's global generator is not advanced."""
    linear = nn.Linear(operator.in_features, operator.out_features, operator.bias, device="meta")
    linear.weight = nn.Parameter(weights.w.detach().clone())
    if operator.bias:
        linear.bias = nn.Parameter(weights.b.detach().clone())
    return linear


def _feedforward(
    network: LiftedNetwork, operators: Sequence[Dense], weights: Weights, follows: Sequence[nn.Module]
) -> FeedForward:
    links = network.connections
    own = [number for number, owner in enumerate(links.owners) if owner == number]
    others = [number for number, operator in enumerate(operators) if number not in own and operator.bias]
    return FeedForward(
        {number: _linear(operators[number], weights[number]) for number in own},
        {number: nn.Parameter(weights[number].b.detach().clone()) for number in others},
        [*(State() if isinstance(each, nn.Identity) else each for each in follows[:-1]), follows[-1]],
        [_rule(network, number) for number in range(len(network.layers))],
    )


def _rule(network: LiftedNetwork, number: int) -> Rule:
    operator, links = network.layers[number].operator, network.connections
    reads = links.reads[number]
    enters, added = (operator.enters, operator.added) if isinstance(operator, Sum) else ((True,), (False,))
    return Rule(
        tuple(state for state, does in zip(reads, enters, strict=True) if does),
        tuple(state for state, does in zip(reads, added, strict=True) if does),
        links.owners[number],
        network.layers[number].transposed,
    )
