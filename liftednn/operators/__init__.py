"""Operators A_l(x; w, b): affine in the state, linear in the weights."""

from liftednn.operators.dense import Dense

__all__ = ["Dense"]
