"""The two blocks (sec. 6): weights with the states fixed, states with the weights fixed; whole, or one step on a batch."""

from liftednn.blocks.descent import (
    Answer,
    Descent,
    answer,
    curvatures,
    descent_refusal,
    reach_of,
    recursion,
)
from liftednn.blocks.joint import joint_refusal, update_all_states
from liftednn.blocks.metric import Metric
from liftednn.blocks.refits import Grains, RefitStep, grains_of, parameters, update_activation, with_activation
from liftednn.blocks.robust_term import RobustTerm
from liftednn.blocks.states import Link, StateStep, plain_layer, update_state
from liftednn.blocks.weights import Design, WeightProblem, WeightStep, update_weights

__all__ = [
    "Answer",
    "Descent",
    "Design",
    "Grains",
    "Link",
    "Metric",
    "RefitStep",
    "RobustTerm",
    "StateStep",
    "WeightProblem",
    "WeightStep",
    "answer",
    "curvatures",
    "descent_refusal",
    "grains_of",
    "joint_refusal",
    "parameters",
    "plain_layer",
    "reach_of",
    "recursion",
    "update_activation",
    "update_all_states",
    "update_state",
    "update_weights",
    "with_activation",
]
