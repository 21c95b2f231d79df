"""The scale of a classifier's scores, by leave-one-out.

The rho of the evidence suits classes that overlap. Where many classes are told apart by few rows it is too large: labels are right, but
probabilities too even. So scores are multiplied by the factor of least leave-one-out loss, where that is more than 1. The leave-one-out
scores are those of the network that is linear in its weights near the present ones,

    u_i + h_i / (1 - h_i) C_i^-1 grad L(u_i, y_i),      h_i the leverage of row i (linearised.py),

with C_i a multiple of I of the same trace. If no row is wrong, the loss falls for ever as the factor grows: so every label is taken to be
wrong with probability 1 / (n + 2) (Platt 1999, who scales the scores of support vector machines).

With a few rows of each class these scores say too little. A ridge regression of the labels' indicators on the inputs has exact
leave-one-out scores S, of which a factor t has the least loss, and scores F on the rows themselves. If the network's scores are about a F
there, they are about a S elsewhere, and t / a is their factor. Up to 192 rows the larger of the two factors is taken.
"""

from __future__ import annotations

from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.network import LiftedNetwork
from liftednn.training.cross_validation import BestRidge
from liftednn.training.linearised import Linearised, Sample, rho_of

__all__ = ["calibrated"]

# With more rows, hidden weights have been fitted to them in many steps, and leave-one-out losses with fixed hidden units are too small.
_MANY = 4000
# The largest factor, also on indicators, and halvings of the interval that it is in.
_LARGEST, _STEEPEST, _HALVINGS = 10.0, 1000.0, 24


def calibrated(network: LiftedNetwork, weights: list[Affine], sample: Sample) -> list[Affine]:
    """The weights with those of the head multiplied by one factor; as they are where the loss is not the softmax cross-entropy or the head
    not under an `L2` of its own."""
    last = len(weights) - 1
    own = rho_of(network, last) > 0 and network.connections.alone(last)
    if not own or sample.rows > _MANY or not isinstance(network.loss, SoftmaxCrossEntropy):
        return weights
    near = Linearised.of(network, weights, sample)
    factor = _best_factor(network.loss, _left_out(near, network), _with_errors(sample.y), sample.row_weights)
    if sample.rows <= len(sample.x):
        factor = max(factor, _factor_by_regression(network.loss, near.scores.double(), sample))
    factor = min(max(factor, 1.0), _LARGEST)
    return [*weights[:-1], Affine(factor * weights[-1].w, factor * weights[-1].b)]


def _left_out(near: Linearised, network: LiftedNetwork) -> Tensor:
    """The scores (n, q) of every row without it."""
    gradients = network.layers[-1].lam * network.loss.grad(near.scores, near.sample.y).double()
    return near.scores.double() + near.sensitivities[:, None] * gradients


def _with_errors(y: Tensor) -> Tensor:
    """Probabilities of classes (n, q), with as much of the other classes as one row of n + 2 has."""
    wrong = 1 / (len(y) + 2)
    return (1 - wrong) * y.double() + wrong * (1 - y.double()) / (y.shape[1] - 1)


def _factor_by_regression(loss: Loss, u: Tensor, sample: Sample) -> float:
    """t / a for scores u (n, q); 0 where they are not like those of the regression."""
    y, given = sample.y.double(), None if sample.row_weights is None else sample.row_weights.double()
    ridge = BestRidge.of(sample.x.double(), y, given)
    residual = ridge.residual / ridge.weights.sqrt()[:, None]
    fitted = _without_mean(y - residual)
    squares = float(reduce.mean(fitted.square().sum(1), given))
    size = float(reduce.mean((u * fitted).sum(1), given)) / max(squares, 1e-12)
    if not size > 0:  # or NaN
        return 0.0
    left_out = y - residual / ridge.unused.clamp(min=1e-6)[:, None]
    return _best_factor(loss, left_out, _with_errors(y), sample.row_weights, most=_STEEPEST) / size


def _without_mean(scores: Tensor) -> Tensor:
    """What the softmax takes of them."""
    return scores - scores.mean(1, keepdim=True)


def _best_factor(loss: Loss, u: Tensor, y: Tensor, row_weights: Tensor | None, most: float = _LARGEST) -> float:
    """The factor on scores u of least loss, which is convex in it, within 0 and `most`."""

    def slope(factor: float) -> float:
        return float(reduce.mean((u * loss.grad(factor * u, y)).sum(1, keepdim=True), row_weights))

    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low
