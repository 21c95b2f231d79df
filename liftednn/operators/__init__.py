"""Operators A_l(x; w, b): affine in the state, linear in the weights."""

from liftednn.operators.dense import Dense
from liftednn.operators.sum import Residual, Sum

__all__ = ["Dense", "Residual", "Sum"]
