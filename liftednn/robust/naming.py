"""An uncertainty from a number, a string such as "noise:0.3", or an Uncertainty."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from liftednn.base import Uncertainty
from liftednn.robust.box import BoxBall
from liftednn.robust.gaussian import Noise
from liftednn.robust.matrix import FrobeniusBall

__all__ = ["parse", "uncertainty_of"]

KINDS: dict[str, type[Noise | FrobeniusBall | BoxBall]] = {"noise": Noise, "ball": FrobeniusBall, "box": BoxBall}

# Squares of larger numbers may overflow in float32.
_LARGEST = 1e18


def parse(words: str) -> Uncertainty:
    """The uncertainty of a string KIND:SIZE, such as noise:0.3, ball:1.0 or box:0.1."""
    kind, _, size = words.partition(":")
    try:
        number = float(size)
    except ValueError:
        number = math.nan
    if kind not in KINDS or not 0 < number < _LARGEST:
        raise ValueError(
            f"robust takes KIND:SIZE, as noise:0.3, ball:1.0 or box:0.1, up to {_LARGEST:g}, got {words!r}"
        )
    return KINDS[kind](number)


def uncertainty_of(given: Any) -> Uncertainty | None:
    """None and 0 for none; a number for `Noise` of that standard deviation; KIND:SIZE; or an Uncertainty."""
    if given is None or isinstance(given, Uncertainty):
        return given
    if isinstance(given, str):
        return parse(given)
    if isinstance(given, Real) and not isinstance(given, bool):
        return Noise(float(given)) if given else None
    raise ValueError(f"robust must be None, a number, KIND:SIZE or an uncertainty such as Noise(0.3), got {given!r}")
