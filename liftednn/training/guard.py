"""Detects a mini-batch run that diverges: its loss explodes, or its scores collapse to a constant, as when all units of a layer are 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.network import LiftedNetwork

__all__ = ["DivergenceError", "DivergenceGuard", "Verdict"]

# "good": keep these weights to roll back to. "exploded" is said of the loss, "collapsed" of the scores: both call for a roll-back.
Verdict = Literal["good", "doubtful", "collapsed", "exploded"]

# A loss above this many times the first one, which counts as at least a fraction of a constant's, has exploded. Of real responses the
# largest losses of a batch, those of a fraction of its rows, are not counted, unless all together are above as many times a constant's.
_FAR, _LEAST, _LEFT_OUT = 20.0, 1e-3, 0.05
# The variance of responses, over that of the first ones, below which scores cannot be seen to be good.
_TELLING = 1e-3
# Scores beat the constant one if their loss is below this fraction of its loss.
_BEATS = 0.5
# Scores that explain less than this fraction of what those of the weights kept last did, by more than chance in a batch, are worse.
_KEPT, _CHANCE = 0.5, 0.05
# Fractions of the first scores' variance below which scores have collapsed, and below which they are doubtful; by `beats_constant`.
_FRACTIONS = {True: (1e-2, 1e-1), False: (1e-6, 1e-3)}


class Means(NamedTuple):
    """A mean over the rows of a batch: of all rows, and without those of the largest losses."""

    whole: float
    typical: float


_NONE = Means(0.0, 0.0)


class DivergenceError(ArithmeticError):
    """Halving the step has not helped; the run is back at its last good weights."""


@dataclass
class DivergenceGuard:
    """The loss and scores at the start of a run, with which later ones are compared.

    first            the first loss; where inputs are uncertain, at least that of a constant score, which robust training may lead to
    spread           the variance of the first scores; 0 where inputs are uncertain
    responses        the variance of the first responses: a batch with a far response, or without those of the first, has another one
    constant         of real responses, the loss of the mean response in a sample
    explained        the fraction of a constant's loss that the weights kept last explained on their batch, or half of what those before
                     them did; below 0 they were worse than a constant
    kept             the variance of the scores of the weights kept last
    beats_constant   whether the first scores were clearly better than a constant: then a stricter threshold for collapse applies
    """

    network: LiftedNetwork
    first: float = math.inf
    spread: float = 0.0
    responses: float = 0.0
    constant: Means = _NONE
    explained: Means = _NONE
    kept: float = 0.0
    beats_constant: bool = False

    def begin(
        self,
        scores: Tensor,
        y: Tensor,
        row_weights: Tensor | None = None,
        sample: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:
        """From the first batch, and the responses and row weights of a larger sample where they are known."""
        mean = reduce.mean(scores, row_weights).to(scores).expand_as(scores)
        loss, constant = (self.loss(each, y, row_weights) for each in (scores, mean))
        self.responses = _variance(y, row_weights)
        if self.network.loss.invariant:
            self.constant = self._of_constant(scores.shape[1], *(sample or (y, row_weights)))
            self.explained = self._explained(scores, y, row_weights)
        self.first = loss if self._certain else max(loss, constant)
        self.spread = _variance(scores, row_weights) if self._certain else 0.0
        self.beats_constant, self.kept = loss < _BEATS * constant, self.spread

    @property
    def _certain(self) -> bool:
        return all(layer.uncertainty is None for layer in self.network.layers)

    def judge(self, scores: Tensor, y: Tensor, row_weights: Tensor | None = None) -> Verdict:
        """The verdict on the scores (n, outputs) of a batch.

        A run that is about to explode, or to collapse, must not be rolled back to where it was bad already. So scores are doubtful if they
        explain far less than those of the weights kept last did, and are worse than a constant or nearly constant themselves.
        """
        if self._exploded(scores, y, row_weights):
            return "exploded"
        ratio = _variance(y, row_weights) / self.responses if self.responses else 1.0
        variance, spread = _variance(scores, row_weights), self.spread * min(1.0, ratio)
        lost, doubtful = _FRACTIONS[self.beats_constant]
        if variance < lost * spread:
            return "collapsed"
        explained = self._explained(scores, y, row_weights) if self.network.loss.invariant else self.explained
        pairs = list(zip(explained, self.explained, strict=True))
        # With far responses, all rows say little; where the responses of few rows differ, the others do. A far response that is predicted
        # hides what the others say.
        worse = all(now < min(before, _KEPT * before) - _CHANCE for now, before in pairs)
        worse = worse and (explained.typical < -_CHANCE or variance < _FRACTIONS[True][1] * self.kept)
        if variance < doubtful * spread or ratio < _TELLING or worse:
            return "doubtful"
        self.explained = Means(*(max(now, min(before, _KEPT * before)) for now, before in pairs))
        self.kept = variance
        return "good"

    def loss(self, scores: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        """The mean over the rows of a batch."""
        return float(reduce.mean(self.network.loss.value(scores, y), row_weights))

    def _exploded(self, scores: Tensor, y: Tensor, row_weights: Tensor | None) -> bool:
        """Of real responses, those that are far from the others may have a loss as large as a constant's, one in a batch of however few
        rows; the other ones may not."""
        losses, least = (
            self.network.loss.value(scores, y),
            _LEAST * (self.constant.typical or self.constant.whole or 1.0),
        )
        whole, most = float(reduce.mean(losses, row_weights)), _FAR * max(self.first, least)
        if whole <= most or not self.network.loss.invariant or not math.isfinite(whole):
            return not whole <= most
        others = _without_largest(losses, row_weights, _far_fraction(losses, row_weights))
        constant = max(self.constant.whole, self._of_constant(scores.shape[1], y, row_weights).whole)
        return float(reduce.mean(losses, others)) > most or whole > _FAR * constant

    def _explained(self, scores: Tensor, y: Tensor, row_weights: Tensor | None) -> Means:
        """The fractions of a constant's loss that scores of real responses explain; at most 0 where inputs are uncertain. The constant's
        loss is that in this batch or, where it is larger, the typical one in the sample, which has more rows."""
        whole, typical = _means(self.network.loss.value(scores, y), row_weights)
        constants = self._of_constant(scores.shape[1], y, row_weights)
        of_all, of_typical = (max(each, self.constant.typical) for each in constants)
        found = 1 - whole / of_all if of_all else 0.0
        both = found, 1 - typical / of_typical if of_typical else found
        return Means(*(both if self._certain else (min(each, 0.0) for each in both)))

    def _of_constant(self, width: int, y: Tensor, row_weights: Tensor | None) -> Means:
        """The loss where all scores, so many for each row, are the mean response. Without the largest losses that is the mean of the rows
        that are left: far responses change the mean of all."""

        def losses(weights: Tensor | None) -> Tensor:
            return self.network.loss.value(reduce.mean(y, weights).to(y).expand(len(y), width), y)

        found = losses(row_weights)
        typical = losses(_without_largest(found, row_weights))
        return Means(float(reduce.mean(found, row_weights)), _means(typical, row_weights).typical)

    def metadata(self) -> dict[str, Any]:
        first = {"first_loss": self.first, "first_spread": self.spread, "first_responses": self.responses}
        constant = {"constant_loss": self.constant, "beats_constant": self.beats_constant}
        return first | constant | {"explained": self.explained, "kept_spread": self.kept}

    def load(self, metadata: dict[str, Any]) -> None:
        self.first, self.spread = metadata["first_loss"], metadata["first_spread"]
        self.responses = metadata["first_responses"]
        self.constant, self.beats_constant = Means(*metadata["constant_loss"]), metadata["beats_constant"]
        self.explained, self.kept = Means(*metadata["explained"]), metadata["kept_spread"]


def _variance(scores: Tensor, row_weights: Tensor | None) -> float:
    return float(reduce.mean_and_variance(scores, row_weights)[1].sum())


def _means(losses: Tensor, row_weights: Tensor | None) -> Means:
    return Means(*(float(reduce.mean(losses, each)) for each in (row_weights, _without_largest(losses, row_weights))))


def _without_largest(losses: Tensor, row_weights: Tensor | None, fraction: float = _LEFT_OUT) -> Tensor:
    """The weights of rows, without a fraction of their sum where losses are largest."""
    given = torch.ones_like(losses) if row_weights is None else row_weights.to(losses)
    order = losses.argsort(descending=True)
    beyond = given[order].cumsum(0, dtype=torch.float64) - fraction * given.sum(dtype=torch.float64)
    return torch.zeros_like(given).scatter_(0, order, beyond.to(given).clamp(min=0).minimum(given[order]))


def _far_fraction(losses: Tensor, row_weights: Tensor | None) -> float:
    """The fraction of all weight that is left out for the rows of the largest losses: as many whole rows, at least one, but not the only
    one, and at most half of the weight."""
    given = torch.ones_like(losses) if row_weights is None else row_weights.to(losses)
    rows = int((given > 0).sum())
    if rows < 2:
        return 0.0
    far = torch.where(given > 0, losses, -math.inf).topk(max(1, int(_LEFT_OUT * rows))).indices
    return min(0.5, max(_LEFT_OUT, float(given[far].sum() / given.sum())))
