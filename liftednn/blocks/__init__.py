"""The two blocks (sec. 6): weights with the states fixed, states with the weights fixed."""

from liftednn.blocks.design import Design
from liftednn.blocks.joint import update_all_states, why_not_joint
from liftednn.blocks.readers import Reader, StateProblem, plain_layer, state_problem
from liftednn.blocks.refits import (
    Granularities,
    RefitStep,
    granularities_of,
    parameters,
    update_activation,
    with_activation,
)
from liftednn.blocks.regressions import designs_of, update_layer
from liftednn.blocks.robust_term import RobustTerm
from liftednn.blocks.shared import update_shared
from liftednn.blocks.states import StateStep, update_state
from liftednn.blocks.weights import WeightProblem, WeightStep, update_weights

__all__ = [
    "Design",
    "Granularities",
    "Reader",
    "RefitStep",
    "RobustTerm",
    "StateProblem",
    "StateStep",
    "WeightProblem",
    "WeightStep",
    "designs_of",
    "granularities_of",
    "parameters",
    "plain_layer",
    "state_problem",
    "update_activation",
    "update_all_states",
    "update_layer",
    "update_shared",
    "update_state",
    "update_weights",
    "why_not_joint",
    "with_activation",
]
