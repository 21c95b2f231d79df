"""Hidden units that give one value on all rows are drawn anew: they have no gradient, and would never change by themselves.

The constant is added to the next layer's bias and the unit's weights there become 0, so the network's scores stay the same; the unit gets a
random direction, pre-activations of the same size as its neighbours', and a kink at a random quantile of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.network import LiftedNetwork
from liftednn.training.biases import biases_at_quantiles

__all__ = ["redraw_constant_units"]

# Rows that units are tested on; most are not constant on the first few of them.
_ROWS, _FEW = 2048, 256


def redraw_constant_units(
    network: LiftedNetwork,
    weights: Sequence[Affine],
    velocity: Sequence[Affine],
    x: Tensor,
    seed: int,
    row_weights: Tensor | None = None,
    free: Sequence[tuple[bool, bool]] | None = None,
) -> int:
    """Draw constant units anew, in place, with zero velocity; returns how many there were.

    x      rows of the network's inputs
    free   for every layer, whether its w and b may move
    """
    x, counts = x[:_ROWS], None if row_weights is None else row_weights[:_ROWS]
    generator, found = torch.Generator().manual_seed(seed), 0
    for number in range(len(weights) - 1):
        if _possible(network, number) and (free is None or (all(free[number]) and all(free[number + 1]))):
            if not bool(_constant(network.propagate(list(weights), x[:_FEW])[number + 1]).any()):
                continue
            states = network.propagate(list(weights), x)
            found += _redraw_layer(states[number], states[number + 1], weights, velocity, number, generator, counts)
    return found


def _possible(network: LiftedNetwork, number: int) -> bool:
    """Whether a layer's units are read by the next layer alone, both are dense, and no penalty wants units to be 0."""
    pair, connections = network.layers[number : number + 2], network.connections
    dense = all(layer.operator.plain and layer.operator.bias and layer.penalty.ridge is not None for layer in pair)
    alone = connections.readers[number + 1] == ((number + 1, 0),) and connections.reads[number] == (number,)
    own = all(connections.alone(each) for each in (number, number + 1))
    return dense and alone and own and pair[0].divergence.unitwise and pair[0].uncertainty is None


def _constant(states: Tensor) -> Tensor:
    """The units that give one value on all rows."""
    low, high = reduce.ends(states)
    return high <= low


def _redraw_layer(
    inputs: Tensor,
    states: Tensor,
    weights: Sequence[Affine],
    velocity: Sequence[Affine],
    number: int,
    generator: torch.Generator,
    row_weights: Tensor | None,
) -> int:
    constant, low = _constant(states), states[0]
    count, ((w, b), (after, after_b)) = int(constant.sum()), weights[number : number + 2]
    if not 0 < count < len(b):
        return 0
    drawn = torch.randn(count, w.shape[1], generator=generator, dtype=torch.float64).to(w)
    sizes = reduce.mean_and_variance(inputs @ w[~constant].T, row_weights)[1].mean().sqrt()
    spread = reduce.mean_and_variance(inputs @ drawn.T, row_weights)[1].sqrt().clamp(min=torch.finfo(w.dtype).tiny)
    drawn = drawn * (sizes / spread).to(w)[:, None]
    after_b.add_(after[:, constant] @ low[constant])
    w[constant], b[constant] = drawn, biases_at_quantiles(inputs @ drawn.T, generator, row_weights)
    after[:, constant] = 0
    for part in (velocity[number].w, velocity[number].b):
        part[constant] = 0
    velocity[number + 1].w[:, constant] = 0
    return count
