from . import activations, functional, init, losses, operators, penalties, predict, robust, solvers, testing
from .base import Activation, Affine, Box, Divergence, Loss, Operator, Penalty
from .bcd import BCD, Solution
from .checkpoint import Checkpoint
from .choices import automatic
from .estimators import LiftedClassifier, LiftedRegressor
from .minibatch import Fit, MiniBatch
from .moments import Moments
from .network import Layer, LiftedNetwork
from .saving import Saved, load, save

__all__ = [
    "BCD",
    "Activation",
    "Affine",
    "Box",
    "Checkpoint",
    "Divergence",
    "Fit",
    "Layer",
    "LiftedClassifier",
    "LiftedNetwork",
    "LiftedRegressor",
    "Loss",
    "MiniBatch",
    "Moments",
    "Operator",
    "Penalty",
    "Saved",
    "Solution",
    "activations",
    "automatic",
    "functional",
    "init",
    "load",
    "losses",
    "operators",
    "penalties",
    "predict",
    "robust",
    "save",
    "solvers",
    "testing",
]

__version__: str
