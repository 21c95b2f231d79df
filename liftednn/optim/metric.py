"""The geometry in which a layer of a torch module takes its step: `training.metric.Metric` for groups and for blocks of columns.

With G the gradient of the objective in w (g, q, p), b that in the intercepts (g, q), and the moments of the layer's rows, a step of
rate 1 subtracts

    (G + wd w - b mean') (c (gram + d I) + wd I)^-1   from w,    b / c - (what is subtracted from w) mean   from the intercepts,

where c is the curvature of the objective in the layer's outputs, summed over rows, d the damping and wd the weight decay (see stack.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from liftednn.optim.moments import BlockMoments
from liftednn.solvers import Factor
from liftednn.training.metric import damping_of

__all__ = ["LayerMetric"]

# The factor on the weight of older rows at each refresh.
_FORGET = 0.9
_STATE = ("curvature", "centre", "allowed", "inverse")


@dataclass
class LayerMetric:
    """The geometry of one layer.

    moments     of its rows, with less weight for older ones
    inverse     for every block of columns, the inverse matrix (g, block, block)
    curvature   c; infinite for a layer that no probe reaches, which takes no step
    centre      the mean of the rows, (g, p), or 0 where the intercepts do not move
    allowed     the most that one batch may move the outputs by at rate 1: the mean square, summed over the outputs of a group
    """

    moments: BlockMoments
    inverse: list[Tensor]
    curvature: Tensor
    centre: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, moments: BlockMoments) -> LayerMetric:
        """Without any curvature, until `refresh`."""
        infinite = torch.full_like(moments.count, torch.inf)
        zeros = [torch.zeros_like(each) for each in moments.xx]
        return cls(moments, zeros, infinite, torch.zeros_like(moments.mean), infinite.clone())

    def add(self, moments: BlockMoments) -> None:
        """Add the moments of new rows, and reduce the weight of older ones."""
        self.moments = _FORGET * self.moments + moments

    def refresh(self, curvature: Tensor, damping: float, weight_decay: float, centred: bool) -> None:
        """Invert again, for this curvature; `centred` where the intercepts move with the weights."""
        self.curvature = curvature.to(self.moments.mean)
        self.centre = self.moments.mean if centred else torch.zeros_like(self.moments.mean)
        self.limit(torch.inf)
        grams = self.moments.grams(centred)
        if bool(self.curvature.isinf()):
            self.inverse = [torch.zeros_like(gram) for gram in grams]
            return
        d = self._damped(grams, damping)
        self.inverse = [_inverse(gram, float(self.curvature), d, weight_decay) for gram in grams]

    def _damped(self, grams: list[Tensor], damping: float) -> Tensor:
        """d of every group, (g,): a fraction of the mean diagonal of all blocks, larger where there are fewer rows than columns."""
        mean = self.moments.mean
        damping *= max(1.0, mean.shape[1] / float(self.moments.count))
        diagonal = torch.cat([gram.diagonal(dim1=1, dim2=2) for gram in grams], 1)
        return damping_of(diagonal, mean, damping, torch.finfo(mean.dtype).eps)

    def limit(self, allowed: float) -> None:
        """Let one batch move the outputs by no more than this: the mean square, summed over all outputs."""
        self.allowed = torch.full_like(self.moments.count, allowed / len(self.moments.mean))

    def shorten(self, factor: float) -> None:
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
        return cls(moments, **{name: named[name] for name in _STATE})


def _inverse(gram: Tensor, c: float, d: Tensor, weight_decay: float) -> Tensor:
    """(c (gram + d I) + weight_decay I)^-1 of every group, or its pseudo-inverse where that matrix is singular."""
    shift = c * d + weight_decay
    matrix = c * gram
    matrix.diagonal(dim1=1, dim2=2).add_(shift[:, None])
    lower, info = torch.linalg.cholesky_ex(matrix)
    singular = torch.nonzero((info != 0) | (shift == 0))[:, 0]
    lower[singular] = torch.eye(gram.shape[-1]).to(gram)
    inverse = torch.cholesky_inverse(lower)
    for group in singular.tolist():
        factor = Factor.of(gram[group].double(), c, float(shift[group]), torch.finfo(gram.dtype).eps)
        inverse[group] = factor.inverse()
    return inverse
