"""Penalties pi_l on the weights (sec. 2, 3). A bias is never penalised."""

from liftednn.penalties.constraints import Mask, NonNegative
from liftednn.penalties.norms import L1, L2, ElasticNet, GroupL2, NoPenalty

__all__ = ["L1", "L2", "ElasticNet", "GroupL2", "Mask", "NoPenalty", "NonNegative"]
