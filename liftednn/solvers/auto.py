"""The choice of a solver for a block, made here only, by one rule for the W-step and the X-step."""

from __future__ import annotations

from typing import Literal

import torch

from liftednn.base import Activation, Divergence, Penalty

__all__ = ["Method", "select"]

Method = Literal["ridge", "nnls", "majorised", "prox_gradient", "dual", "splitting", "projected"]


def select(smooth: Divergence, proxable: Penalty | Activation) -> Method:
    """The method for  min_v  smooth(affine(v)) + proxable(v), from the properties that the two declare.

    W-step: `smooth` is the layer's divergence in u, `proxable` its penalty. X-step: the next layer's divergence in u, and this
    layer's activation in z.

    dual           quadratic below a cap + quadratic on a box: the dual is non-negative least squares with one shared matrix
    splitting      `smooth` has infinite curvature
    ridge          quadratic + squared norm: one linear system
    nnls           quadratic + quadratic on a box: bounded least squares with one matrix shared by all rows
    majorised      smooth + squared norm: a few ridge steps on updated pseudo-targets, with one factor for all
    projected      smooth + a non-convex set: the exact minimiser where a formula is known, or projected majorised steps
    prox_gradient  everything else

    >>> lnn.solvers.select(lnn.losses.SquaredError(), lnn.penalties.L2())
    'ridge'
    """
    if isinstance(proxable, Penalty) and not proxable.convex:
        if smooth.curvature == torch.inf:
            raise ValueError(
                f"{proxable!r} is not convex, and {smooth!r} has no finite curvature: no method descends on both, so use the "
                "Fenchel form of the activation, or a convex penalty"
            )
        return "projected"
    if smooth.capped and proxable.boxed and isinstance(proxable, Activation):
        return "dual"
    if smooth.curvature == torch.inf:
        return "splitting"
    if proxable.ridge is not None:
        return "ridge" if smooth.quadratic else "majorised"
    if smooth.quadratic and proxable.boxed:
        return "nnls"
    return "prox_gradient"
