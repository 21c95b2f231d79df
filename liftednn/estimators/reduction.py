"""X with very many columns: training in a few coordinates, so that nothing of the size columns x columns is needed.

The coordinates are of an orthonormal basis B (p, k): rows become x B, and the first layer's weights w (hidden, k) mean w B'. B spans all
rows where there are at most k. Otherwise it is a block Krylov space (Musco and Musco, NeurIPS 2015) of the responses and of random
combinations of rows, [X'G, X'X X'G]: it holds the directions that correlate with the responses, and those of large variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from liftednn.base import Affine
from liftednn.estimators.rows import Rows, blocks
from liftednn.estimators.scaling import Array
from liftednn.network import LiftedNetwork

__all__ = ["WIDE", "main_directions", "narrowed", "widened", "with_inputs"]

# With more columns than this, rows are trained on in fewer coordinates; and the most of these.
WIDE, _DIRECTIONS = 8192, 256


def main_directions(rows: Rows, y: Array, row_weights: Array | None, seed: int) -> Array:
    """The basis (p, k) of the coordinates, for scaled rows and encoded responses y, (n,) of labels or (n, outputs)."""
    if len(rows) <= _DIRECTIONS:
        return _orthonormal(rows[:].T)
    random = np.random.default_rng(seed).standard_normal((len(rows), _DIRECTIONS // 2))
    responses = _columns(y)[:, : _DIRECTIONS // 4]
    random[:, : responses.shape[1]] = responses
    weights = np.ones(len(rows)) if row_weights is None else row_weights / row_weights.mean()
    first = np.zeros((rows.shape[1], random.shape[1]))
    for part in blocks(*rows.shape):
        first += rows[part].T @ (weights[part, None] * random[part])
    first = _orthonormal(first)
    second = np.zeros_like(first)
    for part in blocks(*rows.shape):
        block = rows[part]
        second += block.T @ (weights[part, None] * (block @ first))
    return _orthonormal(np.hstack([first, second])).astype(rows.dtype)


def _columns(y: Array) -> Array:
    """Responses as centred columns: of labels (n,), an indicator for each."""
    columns = y if y.ndim == 2 else (y[:, None] == np.unique(y)).astype(np.float64)
    centred: Array = columns - columns.mean(axis=0)
    return centred


def _orthonormal(columns: Array) -> Array:
    """An orthonormal basis of the span; the columns in it have the same size, so that rounding leaves no direction out."""
    sizes = np.linalg.norm(columns, axis=0)
    basis: Array = np.linalg.qr(columns / np.where(sizes > 0, sizes, 1))[0]
    return basis


def narrowed(weights: Sequence[Affine] | None, basis: Array | None) -> list[Affine] | None:
    """The weights for rows in the coordinates of `basis`."""
    if weights is None or basis is None:
        return None if weights is None else list(weights)
    first, *others = weights
    return [Affine(first.w @ torch.from_numpy(basis).to(first.w), first.b), *others]


def widened(weights: Sequence[Affine], basis: Array | None, before: Sequence[Affine] | None) -> list[Affine]:
    """The weights for all columns, with the part of the weights `before` training that lies outside the basis."""
    first, *others = weights
    if basis is None:
        return [first, *others]
    b = torch.from_numpy(basis).to(first.w)
    w = first.w @ b.T
    if before is not None:
        old = before[0].w.to(w)
        w += old - old @ b @ b.T
    return [Affine(w, first.b), *others]


def with_inputs(network: LiftedNetwork, width: int) -> LiftedNetwork:
    """The same network for inputs of that width."""
    first, *others = network.layers
    if network.in_width == width:
        return network
    return LiftedNetwork([replace(first, operator=first.operator.resized(width, first.operator.outputs)), *others])
