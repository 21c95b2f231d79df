"""Penalties pi_l on the weights (sec. 2, 3). A bias is never penalised."""

from liftednn.penalties.balls import Ball
from liftednn.penalties.constraints import Mask, NonNegative
from liftednn.penalties.manifolds import LowRank, Orthogonal
from liftednn.penalties.naming import named as named
from liftednn.penalties.naming import one_each as one_each
from liftednn.penalties.norms import L1, L2, ElasticNet, GroupL2, NoPenalty

__all__ = [
    "L1",
    "L2",
    "Ball",
    "ElasticNet",
    "GroupL2",
    "LowRank",
    "Mask",
    "NoPenalty",
    "NonNegative",
    "Orthogonal",
]
