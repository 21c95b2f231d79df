"""The two blocks (sec. 6): weights with the states fixed, states with the weights fixed; whole, or one step on a batch."""

from liftednn.blocks.batch import Answer, answer, curvatures, descent_refusal, recursion
from liftednn.blocks.descent import Descent, reach_of
from liftednn.blocks.geometry import Geometry, geometries_of
from liftednn.blocks.joint import joint_refusal, update_all_states
from liftednn.blocks.metric import Metric
from liftednn.blocks.model import LiftedModel, Model, Seen
from liftednn.blocks.readers import Reader, StateProblem, plain_layer, state_problem
from liftednn.blocks.refits import Grains, RefitStep, grains_of, parameters, update_activation, with_activation
from liftednn.blocks.regressions import designs_of, update_layer
from liftednn.blocks.robust_term import RobustTerm
from liftednn.blocks.shared import update_shared
from liftednn.blocks.states import StateStep, update_state
from liftednn.blocks.weights import Design, WeightProblem, WeightStep, update_weights

__all__ = [
    "Answer",
    "Descent",
    "Design",
    "Geometry",
    "Grains",
    "LiftedModel",
    "Metric",
    "Model",
    "Reader",
    "RefitStep",
    "RobustTerm",
    "Seen",
    "StateProblem",
    "StateStep",
    "WeightProblem",
    "WeightStep",
    "answer",
    "curvatures",
    "descent_refusal",
    "designs_of",
    "geometries_of",
    "grains_of",
    "joint_refusal",
    "parameters",
    "plain_layer",
    "reach_of",
    "recursion",
    "state_problem",
    "update_activation",
    "update_all_states",
    "update_layer",
    "update_shared",
    "update_state",
    "update_weights",
    "with_activation",
]
