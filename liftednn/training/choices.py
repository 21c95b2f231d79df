"""Hyperparameters chosen from the data: how closely the states obey the recursion (lam), how small the weights stay (rho), and the damping
of the Gram matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss, Uncertainty
from liftednn.blocks import designs_of, update_layer
from liftednn.blocks.regressions import some_rows
from liftednn.data.sources import Once, Source, source_of
from liftednn.data.validation import check_network, checked_row_weights, inputs, responses
from liftednn.functional import median_and_spread
from liftednn.losses.regression import Bounded
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2
from liftednn.runtime.precision import plain_arithmetic
from liftednn.runtime.threads import one_thread
from liftednn.training.batch import curvatures, x_step
from liftednn.training.biases import best_biases
from liftednn.training.initial import Features, given_weights, random_weights, unit_of, with_fixed
from liftednn.training.plan import MANY, batch_size

__all__ = [
    "LITTLE_WORK",
    "automatic",
    "automatic_start",
    "damping",
    "fitted_head",
    "probes",
    "random_features",
    "small",
    "smoothed",
    "with_input_uncertainty",
    "with_loss",
]

# Rows that choices are made from, and that a head is fitted to; and the first of these, which lam is chosen from.
_ROWS, _FIRST = 4096, 512
# Operations in the forward pass of a batch up to which one thread is as fast as two (measured on 16 cores).
_SMALL = 1e7
# lam over the curvature of what follows: the X-step moves states by about 1 / sqrt(this) of what would remove the residual.
_LAM_FACTOR = 100.0
# lam of a layer with several positions, over rms(gradient in u) / rms(u): the X-step moves its states by about 1 / this of their size.
_GRADIENT_FACTOR = 300.0
# The fewest rows of a sample, and the multiplications that its forward pass may take where layers have several positions: of one that
# training starts from, and of one for lam, rho and the first Gram matrices.
_FEWEST, _WORK, LITTLE_WORK = 256, 1e10, 1e9
# A lam so large that the X-step is linear to many digits.
_LARGE_LAM = 1e8
_SHRINKAGE = 6.5e-4
# The width over which a kink of the loss is rounded off, as a fraction of the responses' spread.
_SMOOTHING = 0.01
# The same width where the initial head is fitted.
_LOOSE = 0.5
# Up to this many scores, each output has a probe of its own: one random probe would be noisy.
_EXACT = 256


def small(network: LiftedNetwork, size: int) -> bool:
    """Whether a step on batches of `size` rows is so little work that a second thread does not make it faster."""
    check_network(network)
    operators = [layer.operator for layer in network.layers]
    weights = sum(math.prod(operator.weight_shape) * operator.positions for operator in operators)
    return 2 * size * weights <= _SMALL


def damping(rows: int | None, width: int, positions: bool = False) -> float:
    """d as a fraction of the mean diagonal of a Gram matrix: larger for few samples and many columns of the first layer's regression. At
    least 3 where layers have several positions: those of one sample are alike, so that they measure less than as many samples would."""
    return min(10.0, max(3.0 if positions else 0.01, 100.0 * width / (rows or MANY)))


@plain_arithmetic
def automatic(network: LiftedNetwork, x: Any, y: Any = None, seed: int = 0, sample_weight: Any = None) -> LiftedNetwork:
    """The network with lam and rho chosen from the data, for `MiniBatch`; penalties other than `L2` stay as they are.

    rho_l = 6.5e-4 (variance of the layer's inputs, summed) / (curvature of the loss) / sqrt(rows): it vanishes as rows grow. Inputs
    scaled as a whole give the same predictions where a layer reads them alone, since its initial weights shrink with their spread
    (`unit_of`); columns in different units should be standardised first. Responses may have any units: where the loss does not
    change when they are shifted, hidden rho is in units of the loss, and the head's in those over the responses' squared.
    lam_l = 100 times the mean curvature of the loss in u_l, through the layers after it; for a layer with several positions, such as a
    convolution, at least 300 rms(gradient of the loss in u_l) / rms(u_l), since the curvature of one position is tiny.
    A loss with a kink is `smoothed`; for rho, one of bounded slope is taken as the squared error.

    network         a `LiftedNetwork`
    x, y            rows (n, inputs) and responses, or x alone, an iterable of batches, as for `MiniBatch.run`
    seed            of the weights that the curvature of the loss is measured at
    sample_weight   (n,), how much each row counts

    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> network = lnn.automatic(lnn.LiftedNetwork.mlp([3, 10, 1], loss="squared"), x, x[:, 0])
    >>> all(layer.lam > 0 and layer.penalty.rho > 0 for layer in network.layers)
    True
    """
    check_network(network)
    source = source_of(x, y, sample_weight)
    if isinstance(source, Once):
        raise ValueError(
            "an iterator can be read only once, and automatic would use up its first rows: give some rows and responses instead"
        )
    return automatic_start(network, source, seed)[0]


@plain_arithmetic
def automatic_start(network: LiftedNetwork, source: Source, seed: int) -> tuple[LiftedNetwork, Features | None]:
    """The network of `automatic`, and the weights that it was chosen at, which a run may start from as if it had drawn them; None where
    the network has convolutions, which start otherwise."""
    with one_thread(small(network, batch_size(source.rows))):
        return _chosen(network, source, seed)


def _chosen(network: LiftedNetwork, source: Source, seed: int) -> tuple[LiftedNetwork, Features | None]:
    most = sample_rows(network, _ROWS, LITTLE_WORK)
    raw_x, raw_y, raw_weights = source.sample(most, seed)
    x = inputs(network, raw_x)
    y, row_weights = responses(network, raw_y, x), checked_row_weights(raw_weights, x)
    network = with_loss(network, smoothed(network.loss, y, row_weights))
    weights = random_weights(network, seed, x, y, row_weights, unit_of(network, x, row_weights))
    weights = best_biases(network, weights, seed, x, y, row_weights)
    scales = _scales(network, weights, x, row_weights)
    loss_curvature = (
        2.0 if isinstance(network.loss, Bounded) else min(network.loss.curvature, 1 / torch.finfo(x.dtype).eps)
    )
    units, head = _units(network.loss, y, row_weights)
    sizes = zip(scales, [*[units] * (len(scales) - 1), head], strict=True)
    rhos = [_SHRINKAGE / loss_curvature * scale / math.sqrt(source.rows or MANY) * unit for scale, unit in sizes]
    layers = [
        replace(layer, penalty=L2(rhos[owner])) if isinstance(layer.penalty, L2) else layer
        for layer, owner in zip(network.layers, network.connections.owners, strict=True)
    ]
    chosen = LiftedNetwork(layers)
    weights = fitted_head(chosen, weights, x, y, row_weights)
    lams = _lams(chosen, weights, x, y, row_weights, seed, units)
    hidden = [replace(layer, lam=lam) for layer, lam in zip(layers, lams, strict=False)]
    return LiftedNetwork([*hidden, layers[-1]]), Features(weights) if _multiplications(network) is None else None


def _scales(network: LiftedNetwork, weights: list[Affine], x: Tensor, row_weights: Tensor | None) -> list[float]:
    """For each layer, the variance of its rows, summed over columns; for a w that layers share, the sum of theirs."""
    states, found = network.propagate(weights, x), []
    for number, layer in enumerate(network.layers):
        found.append(_variance(*some_rows(layer.operator, network.read(number, states), row_weights)))
    owners = network.connections.owners
    return [sum(scale for scale, other in zip(found, owners, strict=True) if other == owner) for owner in owners]


def smoothed(loss: Loss, y: Tensor, row_weights: Tensor | None = None) -> Loss:
    """The loss for mini-batches, from encoded responses y (n, p): a kink is rounded off over 1% of the least spread of a response."""
    if not isinstance(loss, Bounded) or loss.curvature < torch.inf:
        return loss
    return loss.smoothed(_SMOOTHING * _spread(y, row_weights))


def _units(loss: Loss, y: Tensor, row_weights: Tensor | None) -> tuple[float, float]:
    """What rho of the hidden layers and of the head are multiplied by, for responses of spread s instead of 1.

    Scores of spread s need a head s times as large and hidden weights as before. The loss is then s^2 times as large if it is the squared
    error or Huber's with delta ~ s, and s times if it is homogeneous: so much for hidden rho, and that over s^2 for the head's.
    """
    if not loss.invariant or not (loss.homogeneous or isinstance(loss, Bounded)):
        return 1.0, 1.0
    s = _size(loss, y.double(), row_weights)
    size = s * loss.half / loss.scaled(1 / s).half if isinstance(loss, Bounded) else s**2
    return size, size / s**2


def _size(loss: Loss, y: Tensor, row_weights: Tensor | None) -> float:
    """The spread of the responses that vary, to the next power of two: rho need not be more exact, and a sample of
    standardised responses then gives exactly 1. Also 1 for responses that do not vary."""
    smallest, greatest = reduce.ends(y)
    varying = y[:, smallest < greatest]
    if not varying.numel():
        return 1.0
    if isinstance(loss, Bounded):
        found = float(median_and_spread(varying, row_weights)[1].mean())
    else:
        found = math.sqrt(_variance(varying, row_weights) / varying.shape[1])
    return 2.0 ** round(math.log2(found)) if 0 < found < math.inf else 1.0


def _spread(y: Tensor, row_weights: Tensor | None) -> float:
    return float(median_and_spread(y, row_weights)[1].min())


def with_loss(network: LiftedNetwork, loss: Loss) -> LiftedNetwork:
    return LiftedNetwork([*network.layers[:-1], replace(network.layers[-1], divergence=loss)])


def with_input_uncertainty(
    network: LiftedNetwork, uncertainty: Uncertainty | None, automatic_lam: bool = True
) -> LiftedNetwork:
    """The network with uncertain inputs: its first layer gets the uncertainty, scaled to the weight it would have at the loss.

    automatic_lam   lam is the one that `automatic` chooses: 100 times the curvature of the loss through the layers after a hidden layer.
                    The uncertainty of a hidden layer is then made sqrt(100 curvature(D)) times smaller
    """
    if uncertainty is None:
        return network
    first, *others = network.layers
    if others and automatic_lam and first.operator.positions > 1:
        raise ValueError(
            f"the size of {uncertainty!r} cannot be scaled to the lam that is chosen for {first.operator!r}: give lam, or train a network "
            "whose first Layer has the uncertainty"
        )
    curvature = first.divergence.curvature
    # Without a finite curvature the size stays: a kind of uncertainty that needs one raises an error that names the layer.
    size = (_LAM_FACTOR * curvature) ** -0.5 if others and automatic_lam and curvature < torch.inf else 1.0
    return LiftedNetwork([replace(first, uncertainty=uncertainty.scaled(size)), *others])


def _variance(state: Tensor, row_weights: Tensor | None) -> float:
    """Summed over units; at least the rounding error of states that do not vary."""
    mean, variances = reduce.mean_and_variance(state, row_weights)
    return float(variances.sum() + torch.finfo(state.dtype).eps * mean.square().sum())


def random_features(
    network: LiftedNetwork,
    seed: int,
    x: Tensor,
    y: Tensor,
    row_weights: Tensor | None,
    fixed: Sequence[tuple[Tensor | None, Tensor | None]],
    rows: int | None,
) -> list[Affine]:
    """Initial weights: random hidden layers, and a head fitted to the sample x of so many rows, unless some of it is fixed. In a network
    with convolutions the head starts at the mean response if the sample is small for it, or not all rows: what it fits closely in them
    would have to be unlearned."""
    start = random_weights(network, seed, x, y, row_weights, unit_of(network, x, row_weights))
    start = with_fixed(best_biases(network, start, seed, x, y, row_weights), fixed)
    weights = given_weights(network, start, x, [number for number, (w, _) in enumerate(fixed) if w is not None])
    small = len(x) < 2 * network.layers[-1].operator.weight_shape[-1]
    unlike = _multiplications(network) is not None and (small or len(x) < (rows or 0))
    if unlike or any(part is not None for part in fixed[-1]):
        return weights
    few = None if row_weights is None else row_weights[:_ROWS]
    return fitted_head(network, weights, x[:_ROWS], y[:_ROWS], few)


def fitted_head(
    network: LiftedNetwork, weights: list[Affine], x: Tensor, y: Tensor, row_weights: Tensor | None = None
) -> list[Affine]:
    """The weights with the last layer fitted to a loose tolerance, in a few steps; for these a loss with a kink is smoothed more."""
    last, loss = replace(network.layers[-1], uncertainty=None), network.loss  # a start needs no robustness
    if isinstance(loss, Bounded):
        last = replace(last, divergence=loss.smoothed(max(loss.softness, _LOOSE * _spread(y, row_weights))))
    number = len(network.layers) - 1
    if not network.connections.alone(number):  # another layer has the same w
        return weights
    xs = network.read(number, network.propagate(weights, x))
    step = update_layer(last, designs_of(last, xs, row_weights), xs, y, weights[-1], 1e-2, 12)
    return [*weights[:-1], step.weights]


def probes(like: Tensor, seed: int) -> Tensor:
    """What `curvatures` sends backward from scores `like` (n, p): one probe of random signs, drawn on the CPU so that all devices
    agree, or, where scores are few, one exact probe for each output."""
    n, p = like.shape
    if n * p <= _EXACT:
        return (math.sqrt(p) * torch.eye(p).to(like))[:, None].expand(p, n, p)
    drawn = torch.randint(0, 2, like.shape, generator=torch.Generator().manual_seed(seed))
    return (2 * drawn - 1).to(like)[None]


def sample_rows(network: LiftedNetwork, most: int, work: float = _WORK) -> int:
    """The number of rows whose states are computed before training: `most`; fewer, but at least 256, where layers have several positions
    and the forward pass of so many rows would take more than `work` multiplications."""
    each = _multiplications(network)
    return most if each is None else max(min(most, _FEWEST), min(most, int(work / each)))


def _multiplications(network: LiftedNetwork) -> int | None:
    """The multiplications in the forward pass of a sample; None where all layers are dense."""
    operators = [layer.operator for layer in network.layers]
    if all(operator.positions == 1 for operator in operators):
        return None
    return sum(math.prod(operator.weight_shape) * operator.positions for operator in operators)


def _lams(
    network: LiftedNetwork,
    weights: list[Affine],
    x: Tensor,
    y: Tensor,
    row_weights: Tensor | None,
    seed: int,
    units: float,
) -> list[float]:
    """lam of every hidden layer, from the first rows; in float64, since in the limit of large lam, where gradients and probes act linearly,
    they are differences of nearly equal numbers."""
    hidden = [replace(layer, lam=_LARGE_LAM * units) for layer in network.layers[:-1]]
    limit = LiftedNetwork([*hidden, network.layers[-1]])
    count = _FIRST if row_weights is None or bool(row_weights[:_FIRST].any()) else len(x)
    precise, x, y = [Affine(w.double(), b.double()) for w, b in weights], x[:count].double(), y[:count].double()
    row_weights = None if row_weights is None else row_weights[:count].double()
    step = x_step(limit, precise, x, y)
    u, g = step.preactivations, step.u_gradients
    found = curvatures(limit, precise, u, probes(u[-1], seed), row_weights, y)
    neutral = found[-1]  # for a layer that no gradient reaches yet
    lams = [_LAM_FACTOR * (c if math.isfinite(c) else neutral) for c in found[:-1]]
    for number, layer in enumerate(hidden):
        size = float(reduce.mean_square(u[number], row_weights))
        if layer.operator.positions > 1 and size > 0:
            ratio = math.sqrt(float(reduce.mean_square(g[number], row_weights)) / size)
            lams[number] = max(lams[number], _GRADIENT_FACTOR * ratio)
    return lams
