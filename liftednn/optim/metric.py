"""The geometry in which a layer of a torch module takes its step: `training.metric.Metric` for groups and for blocks of columns.

With G the gradient of the objective in w (g, q, p), b that in the intercepts (g, q), and the moments of the layer's rows, a step of
rate 1 subtracts

    (G - b mean') (c (gram + d I))^-1   from w,    b / c - (what is subtracted from w) mean   from the intercepts,

where c is the curvature of the objective in the layer's outputs, summed over rows, and d the damping (see stack.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liftednn.optim.moments import BlockMoments
from liftednn.solvers import Factor
from liftednn.training.metric import damping_of

__all__ = ["LayerMetric", "damping_fraction", "refresh_all"]

# The factor on the weight of older rows at each refresh.
_FORGET = 0.9
# Of the rule for the damping: the least, that of patches which overlap, so that they are alike, the factor on columns over rows, the most.
_LEAST, _ALIKE, _PER_ROW, _MOST = 0.3, 1.0, 2.0, 10.0
_STATE = ("curvature", "centre", "allowed", "inverse", "root")


@dataclass
class LayerMetric:
    """The geometry of one layer.

    moments     of its rows, with less weight for older ones
    inverse     for every block of columns, the inverse matrix (g, block, block)
    root        of a layer with spectral steps, instead of these: matrices r with r' r the inverse, for c = 1
    curvature   c; infinite for a layer that no probe reaches, which takes no step
    centre      the mean of the rows, (g, p), or 0 where the intercepts do not move
    allowed     the most that one batch may move the outputs by at rate 1: the mean square, summed over the outputs of a group
    """

    moments: BlockMoments
    inverse: list[Tensor]
    root: list[Tensor]
    curvature: Tensor
    centre: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, moments: BlockMoments, spectral: bool = False) -> LayerMetric:
        """Without any curvature, until `refresh`."""
        infinite = torch.full_like(moments.count, torch.inf)
        zeros = [torch.zeros_like(each) for each in moments.xx]
        matrices = ([], zeros) if spectral else (zeros, [])
        return cls(moments, *matrices, infinite, torch.zeros_like(moments.mean), infinite.clone())

    @property
    def spectral(self) -> bool:
        """Whether the layer takes the steps of training/spectral.py."""
        return bool(self.root)

    def add(self, moments: BlockMoments) -> None:
        """Add the moments of new rows, and reduce the weight of older ones."""
        self.moments = _FORGET * self.moments + moments

    def refresh(self, curvature: float, fraction: float, centred: bool) -> list[Regularised]:
        """The matrices to invert, for this curvature and a damping of this fraction of the mean diagonal of all blocks; `centred` where
        the intercepts move with the weights."""
        mean = self.moments.mean
        curvature = 1.0 if self.spectral else curvature  # those steps do not depend on it
        self.curvature = torch.full_like(self.moments.count, curvature)
        self.centre = mean if centred else torch.zeros_like(mean)
        self.limit(torch.full_like(self.moments.count, torch.inf))
        grams = self.moments.grams(centred)
        if curvature == math.inf:
            self.replace([torch.zeros_like(gram) for gram in grams])
            return []
        diagonal = torch.cat([gram.diagonal(dim1=1, dim2=2) for gram in grams], 1)
        if centred:  # one row has no spread: the size of its entries takes that place
            diagonal = diagonal + mean.square() * (2 - self.moments.count).clamp(min=0)
        d = damping_of(diagonal, mean, fraction, torch.finfo(mean.dtype).eps)
        return [Regularised.of(gram, curvature, curvature * d) for gram in grams]

    def invert(self, matrices: Sequence[Regularised], singular: Iterator[bool]) -> None:
        """Invert what `refresh` has returned; `singular` says it of each group of each."""
        found = [(matrix, list(islice(singular, len(matrix.gram)))) for matrix in matrices]
        if found:
            self.replace([matrix.root(flags) if self.spectral else matrix.inverse(flags) for matrix, flags in found])

    def replace(self, matrices: list[Tensor]) -> None:
        """Set the matrices that a step multiplies with."""
        if self.spectral:
            self.root = matrices
        else:
            self.inverse = matrices

    def limit(self, allowed: Tensor) -> None:
        """Let one batch move the outputs by no more than this: the mean square, summed over all outputs."""
        self.allowed = allowed / len(self.moments.mean)

    def shorten(self, factor: Tensor) -> None:
        """Make every step shorter by this factor, until the next refresh."""
        self.inverse = [each / factor for each in self.inverse]
        self.curvature = self.curvature * factor

    def state(self) -> dict[str, Any]:
        """Tensors, and lists of tensors, by name."""
        moments = {"count": self.moments.count, "mean": self.moments.mean, "xx": self.moments.xx}
        return moments | {name: getattr(self, name) for name in _STATE}

    @classmethod
    def from_state(cls, named: Mapping[str, Any]) -> LayerMetric:
        moments = BlockMoments(named["count"], named["mean"], named["xx"])
        named = {"root": []} | dict(named)  # a state that was saved before layers had roots has none
        return cls(moments, **{name: named[name] for name in _STATE})


class Regularised(NamedTuple):
    """c gram + shift I of every group, with its Cholesky factor as far as that exists.

    gram       (g, p, p)
    shift      (g,)
    singular   (g,), whether it does not
    """

    gram: Tensor
    c: float
    shift: Tensor
    lower: Tensor
    singular: Tensor

    @classmethod
    def of(cls, gram: Tensor, c: float, shift: Tensor) -> Regularised:
        matrix = c * gram
        matrix.diagonal(dim1=1, dim2=2).add_(shift[:, None])
        lower, info = torch.linalg.cholesky_ex(matrix)
        return cls(gram, c, shift, lower, (info != 0) | (shift == 0))

    def inverse(self, singular: Sequence[bool]) -> Tensor:
        """The inverse of every group; the pseudo-inverse of the singular ones."""
        groups = [group for group, is_singular in enumerate(singular) if is_singular]
        if groups:
            self.lower[groups] = torch.eye(self.gram.shape[-1]).to(self.gram)
        inverse = torch.cholesky_inverse(self.lower)
        for group in groups:
            inverse[group] = self._pseudo_inverse(group)
        return inverse

    def root(self, singular: Sequence[bool]) -> Tensor:
        """Matrices r with r' r the inverse, of every group."""
        identity = torch.eye(self.gram.shape[-1]).to(self.gram)
        groups = [group for group, is_singular in enumerate(singular) if is_singular]
        if groups:
            self.lower[groups] = identity
        root: Tensor = torch.linalg.solve_triangular(self.lower, identity.expand_as(self.lower), upper=False)
        for group in groups:
            values, vectors = torch.linalg.eigh(self._pseudo_inverse(group))
            root[group] = values.clamp(min=0).sqrt()[:, None] * vectors.mT
        return root

    def _pseudo_inverse(self, group: int) -> Tensor:
        gram, shift = self.gram[group].double(), float(self.shift[group])
        return Factor.of(gram, self.c, shift, torch.finfo(self.gram.dtype).eps).inverse()


def refresh_all(metrics: Sequence[LayerMetric], settings: Sequence[tuple[float, float, bool]]) -> None:
    """Refresh every metric with its settings, and invert. Reading which matrices are singular waits for the device: once for all."""
    matrices = [metric.refresh(*each) for metric, each in zip(metrics, settings, strict=True)]
    every = [matrix for found in matrices for matrix in found]
    if not every:
        return
    flags = iter(torch.cat([matrix.singular.to(every[0].singular.device) for matrix in every]).tolist())
    for metric, found in zip(metrics, matrices, strict=True):
        metric.invert(found, flags)


def damping_fraction(damping: float | None, columns: int, rows: float, alike: bool) -> float:
    """d as a fraction of the mean diagonal, for so many rows of a batch: what is given, times columns over rows where rows are fewer; or,
    for None, twice columns over rows, from .3 to 10, and at least 1 for rows that are `alike`, as overlapping patches of an image are."""
    if damping is not None:
        return damping * max(1.0, columns / rows)
    return min(_MOST, max(_ALIKE if alike else _LEAST, _PER_ROW * columns / rows))
