"""Initial weights of a standard ReLU network (sec. 7): the paper's random ones, the fair ones it leaves out, and the lifted ones.

Biases are 0.1 for the paper's three (its Table 1), 0 for He, PCA, orthogonal and LSUV as in their own papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from experiments.datasets import Dataset
from liftednn.base import Affine
from liftednn.data.sources import source_of
from liftednn.defaults import Recipe
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork
from liftednn.training.bcd import BCD

__all__ = [
    "STARTS",
    "Sizes",
    "Start",
    "doubled_variance_scale",
    "euclidean",
    "fenchel",
    "fitted_head",
    "literal_normal",
]

Sizes = tuple[int, ...]
Start = Callable[[Sizes, int, Dataset], list[Affine]]

# Of the paper: "the regularization parameters rho = 10^-3 were held constant throughout".
_RHO = 1e-3
_ROWS = 10_000  # rows that PCA and LSUV look at
_LEAST = 1e-6  # a direction of less than this share of the largest variance is none


def _random(sizes: Sizes, seed: int, deviation: Callable[[int, int], float], bias: float) -> list[Affine]:
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for p, q in pairwise(sizes):
        w = torch.randn(q, p, generator=generator) * deviation(p, q)
        weights.append(Affine(w, torch.full((q,), bias)))
    return weights


def normal(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """sigma = 0.1, the reading of the paper's "sigma^2 = 0.1" that gives its figures."""
    return _random(sizes, seed, lambda p, q: 0.1, 0.1)


def literal_normal(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """sigma^2 = 0.1, as it is printed."""
    return _random(sizes, seed, lambda p, q: math.sqrt(0.1), 0.1)


def xavier(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """Glorot and Bengio: variance 2 / (in + out)."""
    return _random(sizes, seed, lambda p, q: math.sqrt(2 / (p + q)), 0.1)


def variance_scale(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """Variance scaling: 1 / in."""
    return _random(sizes, seed, lambda p, q: math.sqrt(1 / p), 0.1)


def doubled_variance_scale(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """Variance scaling with factor 2, the default of the paper's time in Tensorflow: 2 / in."""
    return _random(sizes, seed, lambda p, q: math.sqrt(2 / p), 0.1)


def he(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """He and others: 2 / in."""
    return _random(sizes, seed, lambda p, q: math.sqrt(2 / p), 0.0)


def orthogonal(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """Saxe and others: semi-orthogonal, with the gain of ReLU."""
    device, generator = data.x.device, torch.Generator().manual_seed(seed)
    drawn = [torch.randn(q, p, generator=generator).to(device) for p, q in pairwise(sizes)]
    return [Affine(math.sqrt(2) * _orthonormal(w), w.new_zeros(len(w))) for w in drawn]


def _orthonormal(w: Tensor) -> Tensor:
    """Uniform among matrices with orthonormal rows, or columns where there are more rows: the Q of a normal matrix, its signs undone."""
    tall = w if len(w) >= w.shape[1] else w.T
    q, r = torch.linalg.qr(tall)
    found: Tensor = q * r.diagonal().sign()
    return found if tall is w else found.T.contiguous()


def lsuv(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """Mishkin and Matas: orthogonal, then each layer scaled to pre-activations of variance 1 on the data."""
    x, weights = data.x[:_ROWS], []
    for w, b in orthogonal(sizes, seed, data):
        u = x @ w.to(x).T
        weights.append(Affine(w / float(u.std()), b))
        x = (u / u.std()).relu()
    return weights


def pca(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """After Seuret and others: rows of hidden layers along the principal directions of their inputs, centred by the bias.

    Signs are random, and one scale a layer gives pre-activations of variance 1 on average. He's rows where directions are too few, and
    in the head, whose outputs are no features.
    """
    generator = torch.Generator().manual_seed(seed)
    x, weights = data.x[:_ROWS], []
    *hidden, head = he(sizes, seed, data)
    for w, _ in hidden:
        moments = Moments.of(x, x[:, :0])
        rows = _principal(moments.gram.cpu(), len(w))
        signs = torch.randint(0, 2, (len(rows), 1), generator=generator) * 2 - 1
        w = torch.cat([(signs * rows).to(w), w[len(rows) :]])
        b = -(w.double() @ moments.mean_x.cpu()).to(w)
        weights.append(Affine(w, b))
        x = torch.addmm(b.to(x), x, w.to(x).T).relu()
    return [*weights, head]


def _principal(covariance: Tensor, count: int) -> Tensor:
    """At most `count` principal directions as rows, scaled alike so that the data vary by 1 on average over them."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = min(count, int((values > _LEAST * values[-1]).sum()))
    rows: Tensor = vectors.flip(1)[:, :kept].T
    return rows.div(values.flip(0)[:kept].mean().sqrt())


def fitted_head(sizes: Sizes, seed: int, data: Dataset) -> list[Affine]:
    """The control: He's hidden layers with the head fitted, where the lifted phase begins."""
    return BCD(seed=seed).init(LiftedNetwork.mlp(sizes, loss=_loss(data), rho=_RHO), data.x, data.y).weights


def euclidean(sizes: Sizes, seed: int, data: Dataset, lam: float, passes: int) -> list[Affine]:
    """The paper's phase: the jointly convex divergence of ReLU, full-batch block-coordinate descent, so many passes over the blocks."""
    network = LiftedNetwork.mlp(sizes, activation="relu", loss=_loss(data), lam=lam, rho=_RHO)
    solution = BCD(passes=passes, tol=0.0, seed=seed).run(network, data.x, data.y)
    return _whole(solution.weights, solution.status)


def fenchel(sizes: Sizes, seed: int, data: Dataset, passes: int | None) -> list[Affine]:
    """Mini-batch lifted training with the Fenchel divergence, lam and rho chosen from the data; passes too, where None."""
    given = LiftedNetwork.mlp(sizes, activation="fenchel_relu", loss=_loss(data))
    recipe, source = Recipe(passes=passes, initial=True, seed=seed), source_of(data.x, data.y)
    fit = recipe.trainer(source.rows).run(recipe.network(given, source, data.y), source)
    return _whole(fit.weights, fit.status)


def _loss(data: Dataset) -> str:
    return "squared" if data.y.is_floating_point() else "softmax"


def _whole(weights: list[Affine], status: str) -> list[Affine]:
    """A solver keeps what it has on Ctrl-C; a table must not be made from that."""
    if status == "stopped":
        raise KeyboardInterrupt
    return weights


STARTS: dict[str, Start] = {
    "Normal": normal,
    "Xavier": xavier,
    "sigma^2-scale": variance_scale,
    "He": he,
    "He + fitted head": fitted_head,
    "PCA": pca,
    "orthogonal": orthogonal,
    "LSUV": lsuv,
}
