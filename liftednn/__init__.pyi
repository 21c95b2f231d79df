from . import (
    activations,
    functional,
    init,
    losses,
    nn,
    operators,
    optim,
    penalties,
    predict,
    robust,
    solvers,
    testing,
)
from .base import Activation, Affine, Box, Divergence, Loss, Operator, Penalty
from .estimators import LiftedClassifier, LiftedRegressor
from .moments import Moments
from .network import Layer, LiftedNetwork
from .saving import Saved, load, save
from .training.bcd import BCD
from .training.checkpoint import Checkpoint
from .training.choices import automatic
from .training.minibatch import MiniBatch
from .training.result import Fit, Record

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
    "Record",
    "Saved",
    "activations",
    "automatic",
    "functional",
    "init",
    "load",
    "losses",
    "nn",
    "operators",
    "optim",
    "penalties",
    "predict",
    "robust",
    "save",
    "solvers",
    "testing",
]

__version__: str
