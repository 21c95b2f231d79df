"""The first layer's initial biases: 0, or such that the kink of every unit lies at a random quantile of the data.

With zero biases the kinks of all units meet at the mean of the inputs. Among many columns their directions still differ; with one or two,
such features are nearly linear. Which of the two fits better is measured: by the generalised cross-validation (Golub, Heath, Wahba 1979) of
a ridge regression of the responses on the last hidden states,

    GCV = min_r  |y - H_r y|^2 / (1 - trace(H_r) / n)^2,      H_r the ridge regression's hat matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.data.copies import independent_rows
from liftednn.functional import quantile
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork

__all__ = ["best_biases", "biases_at_quantiles", "cross_validated"]

# Rows that the comparison is made on.
_ROWS = 512
# Kinks at the data must lower the error to this fraction, or biases stay 0.
_CLEARLY = 0.95
# The ridge's strengths, in units of the features' mean variance.
_STRENGTHS = tuple(10.0**k for k in range(-8, 3))


def best_biases(
    network: LiftedNetwork, weights: list[Affine], seed: int, x: Tensor, y: Tensor, row_weights: Tensor | None = None
) -> list[Affine]:
    """The weights, with the first layer's biases chosen from rows x and encoded responses y."""
    first, last, connections = network.layers[0], network.layers[-1], network.connections
    if len(network.layers) == 1 or connections.reads[0] != (0,) or not connections.alone(0):
        return weights
    if not (first.operator.plain and first.operator.bias and last.operator.positions == 1):
        return weights
    x, y, few = x[:_ROWS], y[:_ROWS].to(x), None if row_weights is None else row_weights[:_ROWS]
    w = weights[0].w
    through = [Affine(w, biases_at_quantiles(x @ w.T, _generator(seed), few)), *weights[1:]]
    rows = independent_rows(lambda: [(x, y)], len(x))

    def error(candidate: list[Affine]) -> float:
        states = network.propagate(candidate, x)
        return cross_validated(last.operator.rows(network.read(len(weights) - 1, states)), y, rows, few)

    return through if error(through) < _CLEARLY * error(weights) else weights


def biases_at_quantiles(u: Tensor, generator: torch.Generator, row_weights: Tensor | None = None) -> Tensor:
    """Biases (units,) that place the kink of every unit at a random quantile of its pre-activations u (n, units) without bias."""
    levels = torch.rand(u.shape[1], generator=generator, dtype=torch.float64).to(u.device)
    return -quantile(u, levels, row_weights)


def cross_validated(x: Tensor, y: Tensor, rows: int, row_weights: Tensor | None = None) -> float:
    """The GCV error of the best ridge regression of y (n, q) on x (n, p), with an intercept; `rows` of these n tell something new."""
    moments = Moments.of(x, y, row_weights)
    values, vectors = torch.linalg.eigh(moments.gram)
    values, inner = values.clamp(min=0), (vectors.T @ moments.cross).square().sum(1)
    strengths = values.new_tensor(_STRENGTHS)[:, None] * values.mean()
    inverse = 1 / (values + strengths + torch.finfo(values.dtype).tiny)  # a row for every strength
    left = 1 - (1 + (values * inverse).sum(1)) / rows
    errors = (moments.zz / moments.weight - (inner * inverse * (2 - values * inverse)).sum(1)) / left.square()
    return float(torch.where(left > 0, errors, torch.inf).min())


def _generator(seed: int) -> torch.Generator:
    """Its numbers differ from those of the random weights, which have the same seed."""
    return torch.Generator().manual_seed((seed + 1) * 7919 % (1 << 62))
