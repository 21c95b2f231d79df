"""From a lifted network and its weights to a torch module (eq. 1 and 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from liftednn.activations import Identity, MaxPoolReLU, Pooled, Scaled
from liftednn.base import Activation, Affine, Operator
from liftednn.losses import Matching, Split
from liftednn.modules.feedforward import FeedForward, Rule, State
from liftednn.modules.layers import layer_of
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.operators import AvgPool1d, Composed, Conv1d, Conv2d, Dense, Sum
from liftednn.operators.pooling import Pooling

__all__ = ["to_module"]


def to_module(network: LiftedNetwork, weights: Weights) -> nn.Module:
    """The network's feed-forward rule as Linear layers, convolutions, poolings and activations of torch, with the dtype and device of the
    weights. A module that begins with a convolution takes samples in their shape, (n, channels, ...), the others take rows.

    A chain becomes a Sequential. Layers that read other states than the one before, add states or share weights become a `FeedForward`,
    in which a shared weight is one parameter.

    The last Linear gives the scores: logits, for a softmax. After it comes the activation of a `Matching` or `Split` loss. The scale of
    a `Scaled` activation is multiplied into the weights before it. The scores of a last convolution keep their shape, (n, channels, ...),
    unless they have one position: then they are rows.

    network   of dense layers, convolutions, average pooling before these and max-pooling after them, and sums with them
    weights   one `Affine` for each layer

    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    >>> again, x = lnn.init.to_module(*lnn.init.from_module(module)), torch.ones(2, 3)
    >>> torch.equal(again(x), module(x))
    True
    """
    operators = [_inner(number, layer) for number, layer in enumerate(network.layers)]
    network.check_shared(weights)
    follows: list[list[nn.Module]] = []
    scaled: list[Affine] = []
    for number, weight in enumerate(weights):
        activation, weight = _follows(network, number, weight)
        last, shape = number == len(network.layers) - 1, network.layers[number].shape
        follows.append([*activation, nn.Flatten()] if last and len(shape) > 1 == math.prod(shape[1:]) else activation)
        scaled.append(weight)
    affine = [_affine(*each) for each in zip(operators, scaled, _shapes(network), strict=True)]
    if network.connections.chain and not any(isinstance(layer.operator, Sum) for layer in network.layers):
        pairs = zip(affine, follows, strict=True)
        return nn.Sequential(*(each for before, after in pairs for each in (*before, *after)))
    return _feedforward(network, operators, affine, scaled, follows)


def _inner(number: int, layer: Layer) -> Operator:
    """The operator of a layer, alone or in a sum."""
    found = layer.operator.operator if isinstance(layer.operator, Sum) else layer.operator
    last = found
    while isinstance(last, Composed):
        last = last.operator
    if not isinstance(last, Dense | Conv1d | Conv2d):
        raise ValueError(
            f"layer {number}: torch has no standard layer for {layer.operator!r}: only Dense, Conv1d and Conv2d, with average pooling "
            "before them, and sums with these can be converted"
        )
    return found


def _shapes(network: LiftedNetwork) -> list[tuple[int, ...]]:
    """For each layer, the shape of the sample that enters it: as the layer before gives it."""
    rules = [_rule(network, number) for number in range(len(network.layers))]
    return [_state_shape(network, rule.enters[0]) for rule in rules]


def _state_shape(network: LiftedNetwork, state: int) -> tuple[int, ...]:
    """The shape of one sample of a state, as the layer gives it, or as the data are given."""
    reader, index = network.connections.readers[0][0]
    return network.layers[state - 1].shape if state else network.layers[reader].operator.in_shapes[index]


def _views(network: LiftedNetwork, operators: Sequence[Operator]) -> dict[str, nn.Module]:
    """For states that are added to others of another shape."""
    found: dict[str, nn.Module] = {}
    for number, (operator, shape) in enumerate(zip(operators, _shapes(network), strict=True)):
        rule = _rule(network, number)
        wanted = {f"{number} in {at}": (at, shape) for at in rule.enters}
        wanted |= {f"{number} {at}": (at, operator.out_shape) for at in rule.added}
        for name, (at, want) in wanted.items():
            if views := _reshaped(_state_shape(network, at), want):
                found[name] = views[0]
    return found


def _affine(operator: Operator, weights: Affine, shape: tuple[int, ...]) -> list[nn.Module]:
    """The torch layers that compute an operator for samples of a shape."""
    if isinstance(operator, Composed):
        pool, pooled = _pool(operator.pool), operator.pool.out_shape(operator.in_shape)
        return [*_reshaped(shape, operator.in_shape), pool, *_affine(operator.operator, weights, pooled)]
    layer = _linear(operator, weights) if isinstance(operator, Dense) else _convolution(operator, weights)
    return [*_reshaped(shape, operator.in_shapes[0]), layer]


def _reshaped(have: tuple[int, ...], want: tuple[int, ...]) -> list[nn.Module]:
    if have == want:
        return []
    return [nn.Flatten() if len(want) == 1 else nn.Unflatten(1, want)]


def _pool(pool: Pooling) -> nn.Module:
    kind: Callable[..., nn.Module] = nn.AvgPool1d if isinstance(pool, AvgPool1d) else nn.AvgPool2d
    return kind(pool.kernel_size, pool.stride, pool.padding)


def _follows(network: LiftedNetwork, number: int, weight: Affine) -> tuple[list[nn.Module], Affine]:
    """The torch layers after a Linear or a convolution, none for the identity, and its weights."""
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
    if isinstance(follows, nn.Softmax) and len(layer.operator.out_shape) > 1:
        follows = nn.Softmax(1)  # over channels
    parts = list(follows) if isinstance(follows, nn.Sequential) else [follows]
    if isinstance(phi, Pooled | MaxPoolReLU):
        parts = [*_reshaped(layer.operator.out_shape, (layer.shape[0], *phi.shape[1:])), *parts]
    return [part.to(weight.w) for part in parts if not isinstance(part, nn.Identity)], weight


def _activation(layer: Layer) -> Activation:
    """What follows the affine map of a layer: its activation, or that of its loss."""
    if isinstance(layer.divergence, Activation):
        return layer.divergence
    return layer.divergence.activation if isinstance(layer.divergence, (Matching, Split)) else Identity()


def _unscaled(phi: Activation, weight: Affine) -> tuple[Activation, Affine]:
    """The activation without its scale s, and s times the weights: phi(s u) = phi((s w) x + s b)."""
    while isinstance(phi, Scaled):
        scale = torch.as_tensor(phi.scale, dtype=weight.w.dtype, device=weight.w.device).reshape(-1)
        phi, weight = phi.activation, Affine(scale[:, None] * weight.w, scale * weight.b)
    return phi, weight


def _linear(operator: Dense, weights: Affine) -> nn.Module:
    """Created on the meta device, so that torch's global generator is not advanced."""
    return _filled(nn.Linear(operator.in_features, operator.out_features, operator.bias, device="meta"), weights)


def _convolution(operator: Operator, weights: Affine) -> nn.Module:
    assert isinstance(operator, Conv1d | Conv2d)
    kind = nn.Conv1d if isinstance(operator, Conv1d) else nn.Conv2d
    names = ("out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode")
    given = {name: getattr(operator, name) for name in names}
    return _filled(kind(operator.in_shape[0], **given, device="meta"), weights)


def _filled(layer: nn.Linear | nn.Conv1d | nn.Conv2d, weights: Affine) -> nn.Module:
    """The layer with copies of the weights, in its own shape."""
    layer.weight = nn.Parameter(weights.w.detach().reshape(layer.weight.shape).clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(weights.b.detach().clone())
    return layer


def _feedforward(
    network: LiftedNetwork,
    operators: Sequence[Operator],
    affine: Sequence[Sequence[nn.Module]],
    weights: Weights,
    follows: Sequence[Sequence[nn.Module]],
) -> FeedForward:
    links = network.connections
    own = [number for number, owner in enumerate(links.owners) if owner == number]
    others = [number for number, operator in enumerate(operators) if number not in own and operator.bias]
    for number, operator in enumerate(operators):
        if not links.alone(number) and not (isinstance(operator, Dense) and len(affine[number]) == 1):
            raise ValueError(
                f"layer {number} shares its w, and only Dense layers of rows that share theirs can be converted, got {operator!r}"
            )
    return FeedForward(
        {number: _joined(affine[number]) for number in own},
        {number: nn.Parameter(weights[number].b.detach().clone()) for number in others},
        [*(_joined(each) if each else State() for each in follows[:-1]), _joined(follows[-1] or [nn.Identity()])],
        [_rule(network, number) for number in range(len(network.layers))],
        _views(network, operators),
    )


def _joined(parts: Sequence[nn.Module]) -> nn.Module:
    return parts[0] if len(parts) == 1 else nn.Sequential(*parts)


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
