"""The rate of a mini-batch run's steps: it decays along a cosine, and is halved where it is too large.

    rate = first 2^-halved (1 + cos(pi progress)) / 2

It is halved where the run is rolled back, and where the mean loss of a pass rises, though nothing explodes. In the first steps curvatures
are those of the initial weights, and a roll-back says little about the rate: these halvings are taken back later, one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from liftednn.training.descent import EARLY
from liftednn.training.result import Record

__all__ = ["HALVINGS", "Rate"]

# Roll-backs that may halve the rate, and the halvings up to which a rising loss does.
HALVINGS, _FEWER = 8, 4
# The rise of the loss from one pass to a later one, over the loss of a constant, for which steps are too long; and the steps that a pass
# must have, since the mean over fewer depends on which they are.
_RISE, _STEPS = 0.05, 60


@dataclass
class Rate:
    """
    first    of the run
    halved   how often it is halved now
    early    those of them that are taken back
    slowed   the passes before the last one whose loss rose
    """

    first: float
    halved: int = 0
    early: int = 0
    slowed: int = 0

    @property
    def largest(self) -> float:
        """The rate without the decay."""
        return self.first * 0.5**self.halved

    def at(self, progress: float) -> float:
        """The rate after that fraction of all steps."""
        return self.largest * (1 + math.cos(math.pi * min(progress, 1.0))) / 2

    def roll_back(self, taken: int) -> None:
        """Halve it, where a run is rolled back after so many steps."""
        self.halved, self.early = self.halved + 1, self.early + (taken <= EARLY[-1])

    def take_back(self, taken: int) -> None:
        """Take back one early halving, where all is well after so many steps."""
        if self.early and taken > EARLY[-1]:
            self.early, self.halved = self.early - 1, self.halved - 1

    def compare(self, history: Sequence[Record], constant: float) -> None:
        """Halve it, where the loss of the last pass lies clearly above that of an earlier one.

        constant   the loss of a constant for real responses; 0, for classes, leaves the rate as it is
        """
        *before, last = history[self.slowed :]
        if not constant or not before or last.steps < _STEPS or self.halved >= _FEWER:
            return
        if last.loss > min(each.loss for each in before) + _RISE * constant:
            self.halved, self.slowed = self.halved + 1, last.number - 1

    def metadata(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {name: number for name, number in asdict(self).items() if name != "first"}

    def load(self, metadata: dict[str, Any]) -> None:
        self.halved, self.early, self.slowed = (metadata[name] for name in ("halved", "early", "slowed"))
