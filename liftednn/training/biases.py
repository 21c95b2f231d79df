"""The first layer's initial biases: 0, or such that the kink of every unit lies at a random quantile of the data.

With zero biases the kinks of all units meet at the mean of the inputs. Among many columns their directions still differ; with one or two,
such features are nearly linear. Which of the two fits better is measured, by the generalised cross-validation of a ridge regression of the
responses on the last hidden states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.data.copies import independent_rows
from liftednn.functional import quantile
from liftednn.network import LiftedNetwork
from liftednn.training.cross_validation import CLEARLY, cross_validated

__all__ = ["best_biases", "biases_at_quantiles"]

# Rows that the comparison is made on.
_ROWS = 512


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

    return through if error(through) < CLEARLY * error(weights) else weights


def biases_at_quantiles(u: Tensor, generator: torch.Generator, row_weights: Tensor | None = None) -> Tensor:
    """Biases (units,) that place the kink of every unit at a random quantile of its pre-activations u (n, units) without bias."""
    levels = torch.rand(u.shape[1], generator=generator, dtype=torch.float64).to(u.device)
    return -quantile(u, levels, row_weights)


def _generator(seed: int) -> torch.Generator:
    """Its numbers differ from those of the random weights, which have the same seed."""
    return torch.Generator().manual_seed((seed + 1) * 7919 % (1 << 62))
