"""X-steps between two neighbouring layers, as most tests have them."""

from dataclasses import dataclass

from torch import Tensor

import liftednn as lnn
from liftednn.blocks import Reader, StateProblem, StateStep
from liftednn.blocks import update_state as update

__all__ = ["Link", "update_state"]


@dataclass(frozen=True)
class Link:
    """A layer, the one that reads its state, and the weights of that."""

    layer: lnn.Layer
    following: lnn.Layer
    weights: lnn.Affine


def update_state(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float = 1e-3, max_iter: int = 200) -> StateStep:
    """The minimising state of the first layer: u is its pre-activation, x_next the state that the second gives."""
    problem = StateProblem(link.layer, u, (Reader(link.following, link.weights),), ((z,),), (x_next,))
    return update(problem, z, tol, max_iter)
