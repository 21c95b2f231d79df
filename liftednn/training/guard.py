"""Detects a mini-batch run that diverges: its loss explodes, or its scores collapse to a constant, as when all units of a layer are 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from liftednn import reduce
from liftednn.network import LiftedNetwork

__all__ = ["DivergenceError", "DivergenceGuard", "Verdict"]

# "good": keep these weights to roll back to. "exploded" is said of the loss, "collapsed" of the scores: both call for a roll-back.
Verdict = Literal["good", "doubtful", "collapsed", "exploded"]

# A loss above this many times the first one has exploded. Of real responses the largest losses of a batch, this fraction of its rows, are
# not counted, unless all together are above as many times a constant's loss.
_FAR, _LEFT_OUT = 20.0, 0.05
# The variance of responses, over that of the first ones, below which scores cannot be seen to be good.
_TELLING = 1e-3
# Scores beat the constant one if their loss is below this fraction of its loss.
_BEATS = 0.5
# Fractions of the first scores' variance below which scores have collapsed, and below which they are doubtful; by `beats_constant`.
_FRACTIONS = {True: (1e-2, 1e-1), False: (1e-6, 1e-3)}


class DivergenceError(ArithmeticError):
    """Halving the step has not helped; the run is back at its last good weights."""


@dataclass
class DivergenceGuard:
    """The loss and scores at the start of a run, with which later ones are compared.

    first            the first loss; where inputs are uncertain, at least that of a constant score, which robust training may lead to
    spread           the variance of the first scores; 0 where inputs are uncertain
    responses        the variance of the first responses: a batch with a far response, or without those of the first, has another one
    constant         of real responses, the loss of the mean response in a sample
    beats_constant   whether the first scores were clearly better than a constant: then a stricter threshold for collapse applies
    """

    network: LiftedNetwork
    first: float = math.inf
    spread: float = 0.0
    responses: float = 0.0
    constant: float = 0.0
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
        certain = all(layer.uncertainty is None for layer in self.network.layers)
        self.first = loss if certain else max(loss, constant)
        self.spread, self.beats_constant = _variance(scores, row_weights) if certain else 0.0, loss < _BEATS * constant

    def judge(self, scores: Tensor, y: Tensor, row_weights: Tensor | None = None) -> Verdict:
        """The verdict on the scores (n, outputs) of a batch."""
        if self._exploded(scores, y, row_weights):
            return "exploded"
        ratio = _variance(y, row_weights) / self.responses if self.responses else 1.0
        variance, spread = _variance(scores, row_weights), self.spread * min(1.0, ratio)
        lost, doubtful = _FRACTIONS[self.beats_constant]
        if variance < lost * spread:
            return "collapsed"
        return "good" if variance >= doubtful * spread and ratio >= _TELLING else "doubtful"

    def loss(self, scores: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        """The mean over the rows of a batch."""
        return float(reduce.mean(self.network.loss.value(scores, y), row_weights))

    def _exploded(self, scores: Tensor, y: Tensor, row_weights: Tensor | None) -> bool:
        """Of real responses, those that are far from the others may have a loss as large as a constant's; the other ones may not."""
        losses, most = self.network.loss.value(scores, y), _FAR * max(self.first, 1e-3)
        whole = float(reduce.mean(losses, row_weights))
        if whole <= most or not self.network.loss.invariant or not math.isfinite(whole):
            return not whole <= most
        kept = losses.argsort()[: len(losses) - int(_LEFT_OUT * len(losses))]
        typical = float(reduce.mean(losses[kept], None if row_weights is None else row_weights[kept]))
        return typical > most or whole > _FAR * max(self.constant, self._of_constant(scores.shape[1], y, row_weights))

    def _of_constant(self, width: int, y: Tensor, row_weights: Tensor | None) -> float:
        """The loss where all scores, so many for each row, are the mean response."""
        return self.loss(reduce.mean(y, row_weights).to(y).expand(len(y), width), y, row_weights)

    def metadata(self) -> dict[str, Any]:
        first = {"first_loss": self.first, "first_spread": self.spread, "first_responses": self.responses}
        return first | {"constant_loss": self.constant, "beats_constant": self.beats_constant}

    def load(self, metadata: dict[str, Any]) -> None:
        self.first, self.spread = metadata["first_loss"], metadata["first_spread"]
        self.responses, self.constant = metadata["first_responses"], metadata["constant_loss"]
        self.beats_constant = metadata["beats_constant"]


def _variance(scores: Tensor, row_weights: Tensor | None) -> float:
    return float(reduce.mean_and_variance(scores, row_weights)[1].sum())
