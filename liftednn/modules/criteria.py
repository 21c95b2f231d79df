"""torch's losses as losses of liftednn, for `loss=`."""

from __future__ import annotations

from torch import nn

from liftednn.activations import Sigmoid
from liftednn.base import Loss
from liftednn.losses import AbsoluteError, Huber, Matching, SoftmaxCrossEntropy, SquaredError

__all__ = ["CRITERIA", "loss_of"]

CRITERIA = "MSELoss, L1Loss, HuberLoss, SmoothL1Loss, CrossEntropyLoss or BCEWithLogitsLoss"


def loss_of(criterion: object) -> Loss | None:
    """A loss of torch as a Loss with the same minimiser; None for anything else.

    Losses here are summed over outputs, torch's are means or sums over all entries; HuberLoss(delta) is half of Huber(delta), and
    SmoothL1Loss(beta) is 1 / (2 beta) of Huber(beta), |u - y| for beta = 0. CrossEntropyLoss is SoftmaxCrossEntropy, and
    BCEWithLogitsLoss, up to a constant of y, Matching(Sigmoid()), both without weights of classes.
    """
    if isinstance(criterion, nn.MSELoss):
        return SquaredError()
    if isinstance(criterion, nn.HuberLoss):
        return Huber(float(criterion.delta))
    if isinstance(criterion, nn.SmoothL1Loss):
        return Huber(float(criterion.beta)) if criterion.beta else AbsoluteError()
    if isinstance(criterion, (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)):
        _check_plain(criterion)
        return SoftmaxCrossEntropy() if isinstance(criterion, nn.CrossEntropyLoss) else Matching(Sigmoid())
    return AbsoluteError() if isinstance(criterion, nn.L1Loss) else None


def _check_plain(criterion: nn.CrossEntropyLoss | nn.BCEWithLogitsLoss) -> None:
    """Refuse options that change the minimiser; a negative `ignore_index`, the default of torch, has no effect."""
    found = [name for name in ("weight", "pos_weight") if getattr(criterion, name, None) is not None]
    if isinstance(criterion, nn.CrossEntropyLoss):
        found += ["label_smoothing"] * (criterion.label_smoothing != 0) + ["ignore_index"] * (
            criterion.ignore_index >= 0
        )
    if found:
        kind = type(criterion).__name__
        raise ValueError(f"loss={kind} with {' and '.join(found)} has no lifted form: give {kind}() without")
