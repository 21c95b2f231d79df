"""The weights that training starts from: given ones, checked, or random features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss
from liftednn.data.arrays import as_tensor
from liftednn.data.validation import check_start
from liftednn.losses.regression import Bounded
from liftednn.network import LiftedNetwork

__all__ = ["Features", "fixed_together", "given_weights", "pairs_of", "random_weights", "unit_of", "with_fixed"]

# A factor on the first layer's initial pre-activations where the activation is homogeneous: smaller ones learn better features. An
# activation that saturates must start where it is curved.
_SPREAD = 0.3
# A mean response whose loss is this many times that of scores of 0 is no score to begin with.
_FAR = 10.0


class Features(list[Affine]):
    """Random weights with a fitted head, as a run draws them: it treats them as its own draw."""

    def to(self, like: Tensor) -> list[Affine]:
        return [Affine(w.to(like), b.to(like)) for w, b in self]


def given_weights(
    network: LiftedNetwork, weights: Sequence[tuple[Tensor, Tensor]], x: Tensor, frozen: Sequence[int] = ()
) -> list[Affine]:
    """Weights to start from, checked; `frozen` are the numbers of layers whose w must not change."""
    pairs = pairs_of(weights, "weights")
    if len(pairs) != len(network.layers):
        raise ValueError(
            f"the network has {len(network.layers)} layers, weights were given for {len(pairs)}: give a pair (w, b) for each"
        )
    check_start(network, x)
    start = [Affine(*(as_tensor(part, "a weight").to(x) for part in pair)) for pair in pairs]
    for number, (layer, (w, b)) in enumerate(zip(network.layers, start, strict=True)):
        shape, units = layer.operator.weight_shape, (layer.operator.outputs,)
        if w.shape != shape or b.shape != units:
            raise ValueError(f"layer {number} takes w {shape} and b {units}, got {tuple(w.shape)} and {tuple(b.shape)}")
        if not bool(w.isfinite().all() and b.isfinite().all()):
            raise ValueError(f"the weights of layer {number} hold NaN or infinity: give finite ones")
        if not layer.operator.bias and bool(b.any()):
            raise ValueError(f"layer {number} has no bias, but its b is not 0: give zeros")
        if network.connections.owners[number] == number and not bool(layer.penalty_value(w).isfinite()):
            remedy = "give penalty.prox(w, 0.0), which satisfies it"
            if number in frozen:
                remedy = "the layer is frozen (requires_grad=False, or fixed): train it, or give it another penalty"
            raise ValueError(f"the weights of layer {number} break the constraint {layer.penalty!r}: {remedy}")
    network.check_shared(start)
    return start


def with_fixed(weights: Sequence[Affine], fixed: Sequence[tuple[Tensor | None, Tensor | None]]) -> list[Affine]:
    """The weights, with the fixed ones put in."""
    kept = pairs_of(fixed, "fixed")
    if len(kept) != len(weights):
        raise ValueError(f"fixed has {len(kept)} entries for {len(weights)} layers: give a pair for each")
    return [
        Affine(
            *(part if own is None else as_tensor(own, "fixed").to(part) for part, own in zip(pair, stay, strict=True))
        )
        for pair, stay in zip(weights, kept, strict=True)
    ]


def fixed_together(network: LiftedNetwork, fixed: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The fixed weights, where a w that is fixed in one layer is fixed in all that share it."""
    whole = list(fixed)
    if len(whole) != len(network.layers):
        return whole  # `with_fixed` raises the error
    for number, layer in enumerate(network.layers):
        for other in network.connections.sharing(network.connections.owners[number]):
            w = whole[other][0]
            if whole[number][0] is None and w is not None:
                w = as_tensor(w, "fixed")
                whole[number] = (w.T if layer.transposed != network.layers[other].transposed else w, whole[number][1])
    return whole


def pairs_of(given: Any, name: str) -> list[tuple[Any, Any]]:
    """A list of (w, b), one for each layer, from any iterable of pairs."""
    try:
        return [(w, b) for w, b in given]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a sequence of pairs (w, b), one for each layer, got {error}") from error


def random_weights(
    network: LiftedNetwork, seed: int, x: Tensor, y: Tensor, row_weights: Tensor | None = None, unit: float = 1.0
) -> list[Affine]:
    """He's normal weights, drawn on the CPU so that all devices agree, and projected on what the penalty allows.

    The head is constant, at the mean response if that is a score to begin with; or near it, where the penalty does not allow 0.

    unit   the unit of the inputs, see `unit_of`: the first layer's weights are divided by it
    """
    check_start(network, x)
    generator = torch.Generator().manual_seed(seed)
    weights: list[Affine] = []
    sums = sum(layer.operator.skips for layer in network.layers[:-1])
    for index, layer in enumerate(network.layers[:-1]):
        shape, b = layer.operator.weight_shape, x.new_zeros(layer.operator.outputs)
        if network.connections.owners[index] < index:
            weights.append(Affine(network.shared(index, weights), b))
            continue
        w = torch.randn(shape, generator=generator, dtype=torch.float64) * (2 / shape[-1]) ** 0.5
        if network.connections.reads[index] == (0,) and network.connections.alone(index):
            w = w / unit  # a w that other layers share too is not scaled to the inputs
        w = w / sums**0.5 if layer.operator.skips else w  # each sum adds to the variance of the states
        weights.append(Affine(layer.penalty_prox(w.to(x), 0.0), b))
    return [*weights, _initial_head(network, weights, x, y, row_weights)]


def _initial_head(
    network: LiftedNetwork, weights: list[Affine], x: Tensor, y: Tensor, row_weights: Tensor | None
) -> Affine:
    last, head = len(network.layers) - 1, network.layers[-1].operator
    mean = _constant(network.loss, y, row_weights)
    mean = head.targets(mean[None]).mean(0) if head.positions > 1 else mean
    b = mean if head.bias else torch.zeros_like(mean)
    if network.connections.owners[last] < last:
        return Affine(network.shared(last, weights), b)
    return Affine(network.layers[-1].penalty_prox(x.new_zeros(head.weight_shape), 0.0), b)


def _constant(loss: Loss, y: Tensor, row_weights: Tensor | None) -> Tensor:
    """The mean response or, for a loss of bounded slope, its best constant: from a mean that an outlier moved it would not return. 0 where
    the mean is no score to begin with, as that of counts whose logarithm is predicted."""
    if isinstance(loss, Bounded):
        return loss.constants(y, row_weights).to(y)
    mean = reduce.mean(y, row_weights).to(y)
    at_mean, at_zero = (
        reduce.mean(loss.value(each.expand_as(y), y), row_weights) for each in (mean, mean.new_zeros(1))
    )
    return mean if bool(at_mean <= _FAR * at_zero.abs()) or not bool(at_zero.isfinite()) else torch.zeros_like(mean)


def unit_of(network: LiftedNetwork, x: Tensor, row_weights: Tensor | None = None) -> float:
    """The unit of x (n, p), which the first layer's initial weights are divided by: the root of the mean variance of its columns,
    divided by 0.3 where the layer's activation is homogeneous.

    Pre-activations then begin with a standard deviation of sqrt(2), or 0.3 sqrt(2), whatever the units of x as a whole. Rows are
    weighted by `row_weights`; 1 where nothing varies, to the precision of x.
    """
    mean, variances = reduce.mean_and_variance(x, row_weights)
    variance = float(variances.mean())
    varies = variance > (torch.finfo(x.dtype).eps * float(mean.abs().max())) ** 2
    spread = _SPREAD if network.layers[0].divergence.homogeneous else 1.0
    return math.sqrt(variance) / spread if varies else 1.0
