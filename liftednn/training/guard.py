"""Notices a mini-batch run that goes astray: its loss runs away, or all its scores have become one, as when every unit of a layer died."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from liftednn import reduce
from liftednn.network import LiftedNetwork

__all__ = ["DivergenceError", "Verdict", "Watch"]

# "good" weights are worth going back to; a run that is "away" or "lost" should go back.
Verdict = Literal["good", "doubtful", "lost", "away"]

# A loss beyond this many times the first one has run away.
_FAR = 20.0
# Scores whose loss is below this share of that of one score for all rows tell the rows apart.
_TELLING = 0.5
# Shares of the first scores' variance below which scores are lost, and below which that is to be feared; by whether these told anything.
_SHARES = {True: (1e-2, 1e-1), False: (1e-6, 1e-3)}


class DivergenceError(ArithmeticError):
    """Halving the step has not helped; the run is back at its last good weights."""


@dataclass
class Watch:
    """What a run is held against.

    first    the loss that it began with; where inputs are uncertain at least that of one score for all rows, to which fear may rightly
             bring them
    spread   the variance of its first scores; 0 where inputs are uncertain
    told     whether these told the rows apart: then it takes less to be lost
    """

    network: LiftedNetwork
    first: float = math.inf
    spread: float = 0.0
    told: bool = False

    def begin(self, scores: Tensor, y: Tensor) -> None:
        loss, constant = self._loss(scores, y), self._loss(reduce.mean(scores).to(scores).expand_as(scores), y)
        certain = all(layer.uncertainty is None for layer in self.network.layers)
        self.first = loss if certain else max(loss, constant)
        self.spread, self.told = _variance(scores) if certain else 0.0, loss < _TELLING * constant

    def judge(self, scores: Tensor, y: Tensor) -> Verdict:
        """Of the scores of a batch."""
        if not self._loss(scores, y) <= _FAR * max(self.first, 1e-3):
            return "away"
        variance, (lost, feared) = _variance(scores), _SHARES[self.told]
        if variance < lost * self.spread:
            return "lost"
        return "doubtful" if variance < feared * self.spread else "good"

    def _loss(self, scores: Tensor, y: Tensor) -> float:
        return float(reduce.mean(self.network.loss.value(scores, y)))

    def facts(self) -> dict[str, Any]:
        return {"first_loss": self.first, "first_spread": self.spread, "told": self.told}

    def load(self, facts: dict[str, Any]) -> None:
        self.first, self.spread = facts["first_loss"], facts.get("first_spread", 0.0)
        self.told = facts.get("told", False)


def _variance(scores: Tensor) -> float:
    return float(reduce.mean_and_variance(scores)[1].sum())
