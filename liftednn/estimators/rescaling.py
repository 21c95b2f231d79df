"""Moments and weights carried over from one scaling of the inputs to the next, for `partial_fit`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from liftednn.base import Affine
from liftednn.estimators.scaling import Scaling
from liftednn.moments import Moments

__all__ = ["rescaled", "shrunk"]

# Weights on a column whose scale has grown by more than this factor are made smaller.
_GROWTH = 3.0


def rescaled(moments: Moments, before: Scaling, after: Scaling) -> Moments:
    """The moments of inputs in one scaling, for the same inputs in another."""
    factor = torch.from_numpy(before.scale / after.scale)
    shift = torch.from_numpy((before.mean - after.mean) / after.scale)
    return replace(
        moments,
        mean_x=moments.mean_x * factor + shift,
        xx=moments.xx * torch.outer(factor, factor),
        xz=moments.xz * factor[:, None],
    )


def shrunk(first: Affine, before: Scaling, after: Scaling) -> Affine:
    """Weights on inputs as they are given, for a change of their scaling. They stay as they are, except on a column whose scale has
    grown more than threefold: there they were learned on a small part of its range, and would give huge states on the rest of it. Their
    outputs for rows at the mean `before` stay."""
    factor = first.w.new_tensor(np.minimum(1.0, _GROWTH * before.scale / after.scale))
    w = first.w * factor
    return Affine(w, first.b + (first.w - w) @ first.w.new_tensor(before.mean))
