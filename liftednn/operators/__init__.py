"""Operators A_l(x; w, b): affine in the state, linear in the weights; and poolings without weights, which an operator is composed with."""

from liftednn.operators.convolution import Conv1d, Conv2d
from liftednn.operators.dense import Dense
from liftednn.operators.pooling import AvgPool1d, AvgPool2d, Composed
from liftednn.operators.sum import Residual, Sum

__all__ = ["AvgPool1d", "AvgPool2d", "Composed", "Conv1d", "Conv2d", "Dense", "Residual", "Sum"]
