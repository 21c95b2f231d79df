"""Lifted neural networks: networks trained by convex blocks instead of back-propagation."""

from liftednn import activations, functional, losses, operators, penalties, predict, solvers, testing
from liftednn.base import Activation, Affine, Box, Divergence, Loss, Operator, Penalty
from liftednn.bcd import BCD, Solution
from liftednn.checkpoint import Checkpoint
from liftednn.choices import automatic
from liftednn.minibatch import Fit, MiniBatch
from liftednn.moments import Moments
from liftednn.network import Layer, LiftedNetwork

__all__ = [
    "BCD",
    "Activation",
    "Affine",
    "Box",
    "Checkpoint",
    "Divergence",
    "Fit",
    "Layer",
    "LiftedNetwork",
    "Loss",
    "MiniBatch",
    "Moments",
    "Operator",
    "Penalty",
    "Solution",
    "activations",
    "automatic",
    "functional",
    "losses",
    "operators",
    "penalties",
    "predict",
    "solvers",
    "testing",
]

__version__ = "0.1.0"
