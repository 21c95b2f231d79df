"""The scale of a classifier's scores, by leave-one-out.

The rho of the evidence suits classes that overlap. Where many classes are told apart by few rows it is too large: labels are right, but
probabilities too even. So scores are multiplied by the factor of least leave-one-out loss, where that is more than 1. The leave-one-out
scores are those of the network that is linear in its weights near the present ones,

    u_i + h_i / (1 - h_i) C_i^-1 grad L(u_i, y_i),      h_i the leverage of row i (linearised.py),

with C_i a multiple of I of the same trace. Few rows may hold no error at all, and any factor would do: as many wrong labels as one row of
n + 2 are added (Platt 1999, who scales the scores of support vector machines).
"""

from __future__ import annotations

from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.network import LiftedNetwork
from liftednn.training.linearised import Linearised, Sample, rho_of

__all__ = ["calibrated"]

# With more rows, hidden weights have been fitted to them in many steps, and leave-one-out losses with fixed hidden units are too small.
_MANY = 4000
# The largest factor, and halvings of the interval that it is in.
_LARGEST, _HALVINGS = 10.0, 24


def calibrated(network: LiftedNetwork, weights: list[Affine], sample: Sample) -> list[Affine]:
    """The weights with those of the head multiplied by one factor; as they are where the loss is not the softmax cross-entropy or the head
    not under an `L2` of its own."""
    last = len(weights) - 1
    own = rho_of(network, last) > 0 and network.connections.alone(last)
    if not own or sample.rows > _MANY or not isinstance(network.loss, SoftmaxCrossEntropy):
        return weights
    near = Linearised.of(network, weights, sample)
    factor = _best_factor(network.loss, _left_out(near, network), _with_errors(sample.y), sample.row_weights)
    return [*weights[:-1], Affine(factor * weights[-1].w, factor * weights[-1].b)]


def _left_out(near: Linearised, network: LiftedNetwork) -> Tensor:
    """The scores (n, q) of every row without it."""
    gradients = network.layers[-1].lam * network.loss.grad(near.scores, near.sample.y).double()
    return near.scores.double() + near.sensitivities[:, None] * gradients


def _with_errors(y: Tensor) -> Tensor:
    """Probabilities of classes (n, q), with as much of the other classes as one row of n + 2 has."""
    wrong = 1 / (len(y) + 2)
    return (1 - wrong) * y.double() + wrong * (1 - y.double()) / (y.shape[1] - 1)


def _best_factor(loss: Loss, u: Tensor, y: Tensor, row_weights: Tensor | None) -> float:
    """The factor on scores u of least loss, which is convex in it, within 1 and 10."""

    def slope(factor: float) -> float:
        return float(reduce.mean((u * loss.grad(factor * u, y)).sum(1, keepdim=True), row_weights))

    low, high = 1.0, _LARGEST
    if not slope(low) < 0:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return low
