"""The two blocks of the descent (sec. 6): weights with the states fixed, states with the weights fixed."""

from liftednn.blocks.joint import joint_refusal, update_all_states
from liftednn.blocks.states import Link, StateStep, update_state
from liftednn.blocks.weights import Design, WeightStep, update_weights

__all__ = [
    "Design",
    "Link",
    "StateStep",
    "WeightStep",
    "joint_refusal",
    "update_all_states",
    "update_state",
    "update_weights",
]
