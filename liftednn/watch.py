"""Notices a mini-batch run that goes astray: its loss runs away, or it has lost what it knew, as when every unit of a layer has died."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from liftednn.network import LiftedNetwork

__all__ = ["Watch"]

# A loss beyond this many times the first one has run away.
_FAR = 20.0
# Scores whose loss is below this share of that of one score for all rows tell the rows apart.
_TELLING = 0.5


@dataclass
class Watch:
    """What losses are held against.

    first   the loss that the run began with; where inputs are uncertain at least that of one score for all rows, to which fear may
            rightly bring them
    told    whether the first scores told the rows apart: to say no more than their own mean is then to have lost it
    """

    network: LiftedNetwork
    first: float = math.inf
    told: bool = False

    def begin(self, scores: Tensor, y: Tensor) -> None:
        loss, constant = self._losses(scores, y)
        certain = all(layer.uncertainty is None for layer in self.network.layers)
        self.first = loss if certain else max(loss, constant)
        self.told = certain and loss < _TELLING * constant

    def astray(self, scores: Tensor, y: Tensor) -> bool:
        """Whether scores of a batch are those of a run to be taken back."""
        loss, constant = self._losses(scores, y)
        return not loss <= _FAR * max(self.first, 1e-3) or (self.told and loss >= constant)

    def _losses(self, scores: Tensor, y: Tensor) -> tuple[float, float]:
        """The mean loss of the scores, and of their mean given to all rows."""
        loss = self.network.loss
        return float(loss.value(scores, y).mean()), float(loss.value(scores.mean(0).expand_as(scores), y).mean())

    def facts(self) -> dict[str, Any]:
        return {"first_loss": self.first, "told": self.told}

    def load(self, facts: dict[str, Any]) -> None:
        self.first, self.told = facts["first_loss"], facts.get("told", False)
