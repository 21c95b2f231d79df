"""Warnings about a trained network, in sentences, from some of the rows that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.penalties import L2
from liftednn.training.choices import fitted_head
from liftednn.training.schedule import NEGLIGIBLE

__all__ = ["problems_of"]

# Up to this many halvings of the step, and this fraction of constant hidden units, there is no warning.
_HALVINGS, _CONSTANT = 2, 1 / 3
# With fewer rows there are no warnings about predictions.
_FEWEST = 40
# The fraction by which losses must differ, and the standard errors by which the mean difference must exceed 0.
_MARGIN, _ERRORS = 0.01, 2.0
# The size of a row, over the median one, from which on it is named as a cause.
_OUTLIER = 100.0
# rho of the linear models that are compared: just enough to be well-posed, since they are judged on other rows.
_RHO = 1e-6


def problems_of(
    network: LiftedNetwork,
    weights: Sequence[Affine],
    x: Tensor,
    white: Tensor,
    y: Tensor,
    row_weights: Tensor | None,
    halved: int,
) -> tuple[str, ...]:
    """Sentences that say what happened and what to try; none where all is well.

    x, y, row_weights   some of the rows trained on, encoded responses, and the weights of the rows
    white          the same rows in the coordinates of training, for a linear model
    halved         how often the rate was halved
    """
    found = []
    if halved > _HALVINGS:
        found.append(
            f"the rate was halved {halved} times, since training diverged, its loss rose or all predictions became the same: try "
            "another seed, larger batches or a larger penalty"
        )
    if len(x) >= _FEWEST and bool((x != x[0]).any()):
        found += [*_constant_units(network, weights, x), *_comparisons(network, weights, x, white, y, row_weights)]
    return tuple(found)


def _constant_units(network: LiftedNetwork, weights: Sequence[Affine], x: Tensor) -> Iterator[str]:
    """Layers whose penalty may set units to 0 are left out."""
    states = zip(network.layers[:-1], network.propagate(weights, x)[1:], strict=True)
    ends = [reduce.ends(z) for layer, z in states if layer.penalty.ridge is not None]
    constant, units = sum(int((low == high).sum()) for low, high in ends), sum(len(low) for low, _ in ends)
    if constant > _CONSTANT * units:
        yield (
            f"{constant} of {units} hidden units give one and the same value on all of {len(x)} training rows, so they do nothing: try "
            "another seed, larger batches, or the activation leaky_relu"
        )


def _comparisons(
    network: LiftedNetwork, weights: Sequence[Affine], x: Tensor, white: Tensor, y: Tensor, row_weights: Tensor | None
) -> Iterator[str]:
    """Compare with the best constant, and with a linear model that is fitted to one half of the rows and judged on the other."""
    ours = network.loss.value(network.scores(weights, x), y)
    constant = _constants_loss(network, x, y, row_weights)
    ours, constant = (_weighted(part, row_weights) for part in (ours, constant))
    own, theirs = (float(reduce.mean(part)) for part in (ours, constant))
    least = NEGLIGIBLE * theirs  # two models that explain all but this are alike
    if theirs <= torch.finfo(x.dtype).eps:
        return  # there is nothing to explain
    if not theirs - own > _MARGIN * theirs:
        yield (
            f"the predictions are no better than one and the same for all rows (loss {own:.4g} against "
            f"{theirs:.4g} on {len(x)} training rows): {_outlier(x) or 'the responses may not depend on the inputs'}; otherwise try "
            "more passes, a smaller penalty or another seed"
        )
        return
    if not _is_plain(network):
        return
    half = len(x) // 2
    if float(ours.min()) >= 0 and float(reduce.mean(ours[half:])) <= least:
        return  # a loss of 0 would not be better by more than this
    linear = _weighted(_heads_loss(network, white, y, row_weights, half), row_weights)[half:]
    worse = ours[half:] - linear
    excess, variance = reduce.mean_and_variance(worse)
    theirs, own = (float(reduce.mean(part)) for part in (linear, ours[half:]))
    certain = _ERRORS * (float(variance) / (len(worse) - 1)) ** 0.5
    if float(excess) > max(certain, _MARGIN * theirs, least):
        yield (
            f"a linear model fitted to {half} other rows does better (loss {theirs:.4g} against {own:.4g} "
            f"on {len(worse)} training rows): try more passes, a smaller penalty, another seed, or no hidden layer"
        )


def _outlier(x: Tensor) -> str:
    """What to do about the largest row, if it is so large that all others are alike beside it; otherwise empty."""
    size = x.abs().amax(1)
    times = float(size.max()) / max(float(size.median()), torch.finfo(x.dtype).tiny)
    if times <= _OUTLIER:
        return ""
    return f"a row of x has entries {times:.2g} times as large as most rows: leave it out, or clip it"


def _is_plain(network: LiftedNetwork) -> bool:
    """Whether a linear model is a fair comparison: hidden layers, all under squared norms and none with uncertain inputs."""
    layers = network.layers
    free = all(layer.penalty.ridge is not None and layer.uncertainty is None for layer in layers)
    return free and len(layers) > 1


def _heads_loss(network: LiftedNetwork, x: Tensor, y: Tensor, row_weights: Tensor | None, fitted: int) -> Tensor:
    """The loss of each row, (n,), of a head on inputs x that is fitted to the first rows."""
    last = network.layers[-1]
    head = LiftedNetwork([Layer(Dense(x.shape[1], last.operator.out_width), last.divergence, L2(_RHO), last.lam)])
    few = None if row_weights is None else row_weights[:fitted]
    mean = reduce.mean(y[:fitted], few).to(y)
    start = [Affine(x.new_zeros(len(mean), x.shape[1]), mean)]
    return head.loss.value(head.scores(fitted_head(head, start, x[:fitted], y[:fitted], few), x), y)


def _constants_loss(network: LiftedNetwork, x: Tensor, y: Tensor, row_weights: Tensor | None) -> Tensor:
    """The loss of each row, (n,), of the best constant scores."""
    if isinstance(network.loss, SoftmaxCrossEntropy):
        return network.loss.value(network.loss.constants(y, row_weights).to(x).expand_as(y), y)
    return _heads_loss(network, torch.zeros_like(x[:, :1]), y, row_weights, len(x))


def _weighted(values: Tensor, row_weights: Tensor | None) -> Tensor:
    """In float64, times the row weights."""
    return values.double() if row_weights is None else values.double() * row_weights
