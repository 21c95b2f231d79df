"""Lifted neural networks: networks trained by convex blocks instead of back-propagation."""

from liftednn import activations, functional, losses, operators, penalties, predict, solvers, testing
from liftednn.base import Activation, Affine, Box, Divergence, Loss, Operator, Penalty
from liftednn.bcd import BCD, Solution
from liftednn.moments import Moments
from liftednn.network import Layer, LiftedNetwork

__all__ = [
    "BCD",
    "Activation",
    "Affine",
    "Box",
    "Divergence",
    "Layer",
    "LiftedNetwork",
    "Loss",
    "Moments",
    "Operator",
    "Penalty",
    "Solution",
    "activations",
    "functional",
    "losses",
    "operators",
    "penalties",
    "predict",
    "solvers",
    "testing",
]

__version__ = "0.1.0"
