"""Lifted networks (sec. 3 and 5.1): layers, which states they read, the objective, and pruning."""

from liftednn.network.layer import Layer
from liftednn.network.network import Evaluation, LiftedNetwork, States, Weights

__all__ = ["Evaluation", "Layer", "LiftedNetwork", "States", "Weights"]
