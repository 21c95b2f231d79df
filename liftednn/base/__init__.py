"""The protocols. Read this first.

The package minimises one function, the lifted objective (eq. 5 and 10 of the paper),

    F(W, b, X) = mean over rows of sum_l lam_{l+1} D_l(A_l(X_l; W_l, b_l), X_{l+1}) + sum_l pi_l(W_l),

with X_0 the data and X_{L+1} the encoded responses. Rows are samples. `u` is always a pre-activation, `z` always a state, and a
divergence is always written D(u, z). The loss is the last divergence, so the first and the last layer need no special case.

A `Divergence` is D as a function of u. An `Activation` is a divergence whose z is a variable too. A `Loss` is a divergence whose z is
fixed at the responses. A `Penalty` is pi, an `Operator` is A, and an `Uncertainty` says how the true rows may differ from the given ones.
"""

from __future__ import annotations

from liftednn.base.divergence import Activation, Box, Divergence, Granularity, LayerXStep, Loss
from liftednn.base.operator import Affine, Operator, SelfAdjoint, regress
from liftednn.base.penalty import Penalty
from liftednn.base.uncertainty import Uncertainty

__all__ = [
    "Activation",
    "Affine",
    "Box",
    "Divergence",
    "Granularity",
    "LayerXStep",
    "Loss",
    "Operator",
    "Penalty",
    "SelfAdjoint",
    "Uncertainty",
    "regress",
]
