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

# A loss above this many times the first one has exploded.
_FAR = 20.0
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
    beats_constant   whether the first scores were clearly better than a constant: then a stricter threshold for collapse applies
    """

    network: LiftedNetwork
    first: float = math.inf
    spread: float = 0.0
    beats_constant: bool = False

    def begin(self, scores: Tensor, y: Tensor) -> None:
        loss, constant = self._loss(scores, y), self._loss(reduce.mean(scores).to(scores).expand_as(scores), y)
        certain = all(layer.uncertainty is None for layer in self.network.layers)
        self.first = loss if certain else max(loss, constant)
        self.spread, self.beats_constant = _variance(scores) if certain else 0.0, loss < _BEATS * constant

    def judge(self, scores: Tensor, y: Tensor) -> Verdict:
        """The verdict on the scores (n, outputs) of a batch."""
        if not self._loss(scores, y) <= _FAR * max(self.first, 1e-3):
            return "exploded"
        variance, (lost, doubtful) = _variance(scores), _FRACTIONS[self.beats_constant]
        if variance < lost * self.spread:
            return "collapsed"
        return "doubtful" if variance < doubtful * self.spread else "good"

    def _loss(self, scores: Tensor, y: Tensor) -> float:
        return float(reduce.mean(self.network.loss.value(scores, y)))

    def metadata(self) -> dict[str, Any]:
        return {"first_loss": self.first, "first_spread": self.spread, "beats_constant": self.beats_constant}

    def load(self, metadata: dict[str, Any]) -> None:
        self.first, self.spread = metadata["first_loss"], metadata["first_spread"]
        self.beats_constant = metadata["beats_constant"]


def _variance(scores: Tensor) -> float:
    return float(reduce.mean_and_variance(scores)[1].sum())
