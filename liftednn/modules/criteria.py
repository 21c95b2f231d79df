"""torch's losses of real responses as ours: what `loss=` takes besides a name and a Loss."""

from __future__ import annotations

from torch import nn

from liftednn.base import Loss
from liftednn.losses import AbsoluteError, Huber, SquaredError

__all__ = ["loss_of"]


def loss_of(criterion: object) -> Loss | None:
    """MSELoss, L1Loss, HuberLoss or SmoothL1Loss as a Loss with the same minimiser; None for anything else.

    Ours are summed over outputs, torch's are means or sums over all entries; HuberLoss(delta) is half of Huber(delta), and
    SmoothL1Loss(beta) is 1 / (2 beta) of Huber(beta), |u - y| for beta = 0.
    """
    if isinstance(criterion, nn.MSELoss):
        return SquaredError()
    if isinstance(criterion, nn.HuberLoss):
        return Huber(float(criterion.delta))
    if isinstance(criterion, nn.SmoothL1Loss):
        return Huber(float(criterion.beta)) if criterion.beta else AbsoluteError()
    return AbsoluteError() if isinstance(criterion, nn.L1Loss) else None
