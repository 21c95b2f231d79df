"""The layers of common networks: dense ones (`mlp`), and convolutions with pooling between them (`cnn`)."""

from __future__ import annotations

import math
import operator as operations
from collections.abc import Sequence
from typing import TypeVar, cast

from liftednn import activations, losses
from liftednn.base import Activation, Divergence, Loss, Operator
from liftednn.network.layer import Layer
from liftednn.operators import AvgPool1d, AvgPool2d, Composed, Conv1d, Conv2d, Dense
from liftednn.operators.convolution import as_sizes
from liftednn.penalties import L2

__all__ = ["cnn_layers", "mlp_layers", "one_per_layer"]

Activations = str | Activation | Sequence[str | Activation]
Lams = float | Sequence[float]
Spec = int | str | tuple[str, int] | tuple[str, int, int]
Shape = tuple[int, ...]
Pool = tuple[AvgPool1d | AvgPool2d, Shape]  # with the shape before it
T = TypeVar("T")


def mlp_layers(sizes: Sequence[int], activation: Activations, loss: str | Loss, lam: Lams, rho: float) -> list[Layer]:
    """The layers of `LiftedNetwork.mlp`."""
    sizes = _widths(sizes)
    divergences = _divergences(activation, len(sizes) - 2, loss)
    operators = [Dense(p, d.preactivation_width(q)) for p, q, d in zip(sizes[:-1], sizes[1:], divergences, strict=True)]
    return _layers(operators, divergences, lam, rho)


def cnn_layers(
    in_shape: Shape,
    layers: Sequence[Spec],
    outputs: int,
    activation: Activations,
    loss: str | Loss,
    lam: Lams,
    rho: float,
) -> list[Layer]:
    """The layers of `LiftedNetwork.cnn`."""
    shape, pools, operators = as_sizes(in_shape), list[Pool](), list[Operator]()
    if not isinstance(shape, tuple) or len(shape) not in (2, 3):
        raise ValueError(f"in_shape must be (channels, height, width) or (channels, length), got {in_shape!r}")
    if not isinstance(outputs := as_sizes(outputs), int):
        raise ValueError(f"outputs must be a whole number, got {outputs!r}")
    layers = [_spec(each) for each in layers]
    divergences = _divergences(activation, sum(each not in ("avgpool", "maxpool") for each in layers), loss)
    if all(isinstance(each, tuple) and each[0] == "dense" for each in layers):
        raise ValueError(
            f"layers holds no convolution or pooling, got {layers!r}: use LiftedNetwork.mlp for dense layers alone"
        )
    for each in [*layers, ("dense", outputs)]:
        # Average pooling belongs to the next operator, max-pooling to the divergence of the layer before.
        if each == "avgpool":
            pools.append((_pooling(shape), shape))
            shape = pools[-1][0].out_shape(shape)
        elif each == "maxpool":
            if not operators or pools or len(shape) == 1 or shape != operators[-1].out_shape:
                raise ValueError("'maxpool' must follow a convolution: give it right after a number of channels")
            divergences[len(operators) - 1] = _max_pooled(divergences[len(operators) - 1], shape)
            shape = divergences[len(operators) - 1].state_shape(shape)
        else:
            operators.append(_pooled(_operator(each, shape, divergences[len(operators)]), pools))
            shape, pools = operators[-1].out_shape, []
    return _layers(operators, divergences, lam, rho)


def _pooling(shape: Shape) -> AvgPool1d | AvgPool2d:
    """Over windows of 2 in each dimension."""
    if len(shape) == 1:
        raise ValueError("'avgpool' needs channels, and a dense layer has none: give it before the dense layers")
    return AvgPool1d(2) if len(shape) == 2 else AvgPool2d(2)


def _max_pooled(activation: Divergence, shape: Shape) -> Divergence:
    """The activation after the largest of windows of 2 in each dimension."""
    if isinstance(activation, activations.ReLU):
        return activations.MaxPoolReLU(shape, 2)
    assert isinstance(activation, Activation)
    return activations.Pooled(activation, shape, 2)


def _pooled(operator: Operator, pools: Sequence[Pool]) -> Operator:
    """The operator with poolings before it."""
    for pool, shape in reversed(pools):
        operator = Composed(operator, pool, shape)
    return operator


def _spec(given: Spec) -> Spec:
    """With numbers as Python ints, from those of Python, numpy or torch."""
    found = tuple(as_sizes(each) for each in given) if isinstance(given, tuple) else as_sizes(given)
    return cast(Spec, found)


def _operator(spec: Spec, shape: Shape, divergence: Divergence) -> Operator:
    match spec:
        case ("dense", int(width)):
            return Dense(math.prod(shape), divergence.preactivation_width(width))
        case int(channels) if len(shape) == 1:
            raise ValueError(f"a convolution of {channels} channels cannot follow a dense layer: give it before")
        case int(channels):
            kind = Conv1d if len(shape) == 2 else Conv2d
            return kind(shape, channels, kernel_size=3, padding=1)
        case ("conv", int(channels), int(size)) if len(shape) > 1:
            kind = Conv1d if len(shape) == 2 else Conv2d
            return kind(shape, channels, size)
    raise ValueError(
        "layers may hold numbers of channels, ('conv', channels, size), 'avgpool', 'maxpool' and then ('dense', width), got "
        f"{spec!r}: build other layers as `Layer`s"
    )


def _layers(operators: Sequence[Operator], divergences: Sequence[Divergence], lam: Lams, rho: float) -> list[Layer]:
    lams = [*one_per_layer(lam, len(operators) - 1, "lam"), 1.0]
    return [Layer(a, d, L2(rho), x) for a, d, x in zip(operators, divergences, lams, strict=True)]


def _divergences(activation: Activations, hidden: int, loss: str | Loss) -> list[Divergence]:
    """The hidden activations and the loss."""
    given: list[str | Activation] = one_per_layer(activation, hidden, "activation")
    chosen = [activations.named(each) if isinstance(each, str) else each for each in given]
    last = losses.named(loss) if isinstance(loss, str) else loss
    if not isinstance(last, Loss):
        raise ValueError(f"loss must be a name such as 'softmax' or a Loss of liftednn.losses, got {loss!r}")
    if not all(isinstance(each, Activation) for each in chosen):
        raise ValueError(f"activation must be a name such as 'relu' or an Activation of liftednn, got {activation!r}")
    return [*chosen, last]


def _widths(sizes: Sequence[int]) -> list[int]:
    """Sizes as Python ints, from those of Python, numpy or torch."""
    try:
        widths = [operations.index(size) for size in sizes]
    except TypeError as error:
        raise ValueError(f"sizes must be whole numbers, inputs, hidden ..., outputs, got {sizes!r}") from error
    if len(widths) < 2:
        raise ValueError(f"sizes must hold at least inputs and outputs, got {widths}")
    return widths


def one_per_layer(given: T | Sequence[T], count: int, name: str) -> list[T]:
    """A list of `count` values, from one value for all or a sequence of that length."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != count:
            raise ValueError(f"{name} has {len(given)} entries for {count} hidden layers: give one for all or one each")
        return list(given)
    return [given] * count
