"""Losses (sec. 3, 5.1, 6.2): the last divergence, its state fixed at the responses."""

from __future__ import annotations

from liftednn.base import Loss
from liftednn.losses.entropy import CrossEntropy, SoftmaxCrossEntropy
from liftednn.losses.matching import Matching
from liftednn.losses.regression import AbsoluteError, Huber, Quantile
from liftednn.losses.split import Split
from liftednn.losses.squared import SquaredError

__all__ = [
    "AbsoluteError",
    "CrossEntropy",
    "Huber",
    "Matching",
    "Quantile",
    "SoftmaxCrossEntropy",
    "Split",
    "SquaredError",
]


def named(name: str) -> Loss:
    """The loss of that name with its default parameters: "softmax", "squared", "absolute", "huber" or "quantile"."""
    losses: dict[str, type[Loss]] = {
        "absolute": AbsoluteError,
        "huber": Huber,
        "quantile": Quantile,
        "softmax": SoftmaxCrossEntropy,
        "squared": SquaredError,
    }
    if name not in losses:
        raise ValueError(f"unknown loss {name!r}: give one of {', '.join(sorted(losses))}, or a Loss")
    return losses[name]()
