"""Choices made from the data: how closely the states obey (lam), how small the weights stay (rho), how far the Gram
matrices are trusted (damping), how large a batch is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.blocks import Design, curvatures, recursion, update_weights
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2
from liftednn.sources import Once, source_of
from liftednn.start import inputs, random_weights, responses

__all__ = ["automatic", "batch_size", "damping", "fitted_head", "signs"]

# Rows that choices are made from.
_ROWS = 4096
# Taken for the number of rows where only a pass over the data could tell.
_MANY = 50_000
# lam against the curvature of what follows: the X-step moves states by about 1 / sqrt(this) of what would undo the residual.
_STIFFNESS = 100.0
# A lam at which the X-step is linear to many digits.
_STIFF = 1e8
_SHRINKAGE = 1.3e-3


def batch_size(rows: int | None) -> int:
    """A hundredth of the rows, from 50 to 500."""
    return max(50, min(500, (rows or _MANY) // 100))


def damping(rows: int | None, width: int) -> float:
    """d as a share of the mean diagonal of the inputs' Gram matrix: more where rows are few and directions many."""
    return min(10.0, max(0.01, 100.0 * width / (rows or _MANY)))


@torch.no_grad()
def automatic(network: LiftedNetwork, x: Any, y: Any = None, seed: int = 0) -> LiftedNetwork:
    """The network with lam and rho chosen from the data, for `MiniBatch`; penalties other than `L2` stay as they are.

    rho_l = 1.3e-3 (variance of the layer's inputs, summed) / sqrt(rows): the same for inputs in any units, and vanishing as rows grow.
    lam_l = 100 times the mean curvature, in u_l, of what the layer feels through the layers after it.
    """
    source = source_of(x, y)
    if isinstance(source, Once):
        raise ValueError(
            "an iterator would lose the rows that choices are made from: give some rows and responses instead"
        )
    raw_x, raw_y = source.sample(_ROWS, seed)
    x = inputs(network, raw_x)
    y = responses(network, raw_y, x)
    weights = random_weights(network, seed, x, y)
    states = network.propagate(weights, x)
    scales = [float(state.double().var(0, unbiased=False).sum()) for state in states]
    layers = [
        replace(layer, penalty=L2(_SHRINKAGE * scale / math.sqrt(source.rows or _MANY)))
        if isinstance(layer.penalty, L2)
        else layer
        for layer, scale in zip(network.layers, scales, strict=True)
    ]
    chosen = LiftedNetwork(layers)
    weights = fitted_head(chosen, weights, x, y)
    lams = [_STIFFNESS * c for c in _stiff_curvatures(chosen, weights, x, seed)[:-1]]
    return LiftedNetwork([*(replace(layer, lam=lam) for layer, lam in zip(layers, lams, strict=False)), layers[-1]])


def fitted_head(network: LiftedNetwork, weights: list[Affine], x: Tensor, y: Tensor) -> list[Affine]:
    """Random features with the last layer fitted, to a loose residual: where training begins."""
    rows = network.layers[-1].operator.unfold(network.propagate(weights, x)[-1])
    design = Design(rows, network.layers[-1].operator.bias)
    return [*weights[:-1], update_weights(network.layers[-1], design, y, weights[-1], 1e-2, 12).weights]


def signs(like: Tensor, seed: int) -> Tensor:
    """+1 or -1, drawn on the CPU so that all devices agree."""
    drawn = torch.randint(0, 2, like.shape, generator=torch.Generator().manual_seed(seed))
    return (2 * drawn - 1).to(like)


def _stiff_curvatures(network: LiftedNetwork, weights: list[Affine], x: Tensor, seed: int) -> list[float]:
    """The curvatures in the limit of large lam, where the probe is linear: in float64, since it is a difference of near numbers."""
    stiff = LiftedNetwork([*(replace(layer, lam=_STIFF) for layer in network.layers[:-1]), network.layers[-1]])
    precise = [Affine(w.double(), b.double()) for w, b in weights]
    _, preactivations = recursion(stiff, precise, x.double())
    found = curvatures(stiff, precise, preactivations, signs(preactivations[-1], seed))
    return [float(c) for c in found]
