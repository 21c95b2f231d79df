"""Prediction (sec. 5.2): the feed-forward rule of a standard network, and the lifted rule.

The lifted rule solves the training problem at the test point: weights fixed, the states and the response variables (eq. 12). It is the
X-step again. For real responses the loss is 0 at its own output and drops out; of a split loss, its activation remains. For
classes, each candidate label has an optimal energy, and the smallest one wins. Uncertainty of the inputs is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.blocks import state_problem, update_all_states, update_state, why_not_joint
from liftednn.data.arrays import as_tensor
from liftednn.data.validation import check_exact
from liftednn.losses import Split, SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.runtime.precision import exact_arithmetic, plain_arithmetic

__all__ = ["feedforward", "lifted"]

# Rows predicted at a time.
_ROWS = 8192


@plain_arithmetic
def feedforward(network: LiftedNetwork, weights: Sequence[Affine], x: Any) -> Tensor:
    """Scores (n, outputs) by the recursion (eq. 1); `network.loss.decode` turns them into responses.

    network, weights   a `LiftedNetwork`, and one `Affine` for each layer
    x                  rows (n, inputs), a tensor or an array, converted to the precision and device of the weights

    >>> network, weights = lnn.init.from_module(torch.nn.Linear(3, 2))
    >>> lnn.predict.feedforward(network, weights, torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """
    x = network.check_rows(as_tensor(x, "x").to(weights[0].w))
    return torch.cat([network.scores(weights, rows) for rows in x.split(_ROWS)])


@exact_arithmetic
def lifted(
    network: LiftedNetwork, weights: Sequence[Affine], x: Any, tol: float = 1e-6, max_iter: int = 1000
) -> Tensor:
    """Scores (n, outputs) by the lifted rule (eq. 12).

    Real responses: the scores at the optimal states. Classes: minus the optimal energy of each class, so that the largest score wins.

    Several hidden layers are solved at once where every activation is jointly convex, elsewhere by cyclic passes over the layers, which
    end at a stationary point. For real responses the passes are cyclic always; where the domain couples u and z (LeakyReLU, MaxPool)
    they may stop above the optimum.

    network, weights, x   as for `feedforward`
    tol                   relative KKT residual to which the states are solved, against the largest over all rows of a call, and the
                          relative change of each row's energy at which cyclic passes stop
    max_iter              iterations at most in a block, and cyclic passes at most

    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    >>> network, weights = lnn.init.from_module(module)
    >>> lnn.predict.lifted(network, weights, torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """
    check_exact(network)
    x = network.check_rows(as_tensor(x, "x").to(weights[0].w))
    rule = _by_class if network.loss.classes else _by_elimination
    return torch.cat([rule(network, weights, rows, tol, max_iter) for rows in x.split(_ROWS)])


def _by_elimination(network: LiftedNetwork, weights: Sequence[Affine], x: Tensor, tol: float, max_iter: int) -> Tensor:
    """Real responses: the minimum over y removes the loss, and only the hidden layers remain."""
    freed, last = _freed(network), len(network.layers) - 1
    states = _cycle(freed, weights, freed.propagate(weights, x), tol, max_iter)
    return network.preactivation(last, weights, states)


def _freed(network: LiftedNetwork) -> LiftedNetwork:
    """The network whose states the rule minimises over. Of a split loss, its activation remains as one more layer with a free state."""
    last = network.layers[-1]
    if not isinstance(last.divergence, Split):
        return network
    split = replace(last, divergence=last.divergence.activation, lam=last.lam * last.divergence.lam)
    return LiftedNetwork(
        [*network.layers[:-1], split, Layer(Dense(split.width, 1), SquaredError(), name="the response, left free")]
    )


def _by_class(network: LiftedNetwork, weights: Sequence[Affine], x: Tensor, tol: float, max_iter: int) -> Tensor:
    """Classes: one X-step per label, all sharing their matrices."""
    start, width = network.propagate(weights, x), network.layers[-1].operator.out_width
    together = len(start) > 2 and not why_not_joint(network)
    energies = []
    for label in range(width):
        y = network.loss.encode(torch.full((len(x),), label, device=x.device), width).to(x)
        states = [*start, y]
        if together:
            states[1:-1] = update_all_states(network, weights, states, tol, 10 * max_iter).states
        else:
            states = _cycle(network, weights, states, tol, max_iter)
        energies.append(_energy(network, weights, states))
    return -torch.stack(energies, 1)


def _cycle(
    network: LiftedNetwork, weights: Sequence[Affine], states: list[Tensor], tol: float, max_iter: int
) -> list[Tensor]:
    """Passes over the hidden layers, last to first, until the energy no longer falls; one pass is exact for one layer."""
    hidden = len(network.layers) - 1
    before = states[0].new_full((len(states[0]),), torch.inf)
    for _ in range(max_iter if hidden > 1 else hidden):
        for number in range(hidden, 0, -1):
            states[number] = _state(network, weights, states, number, tol, max_iter)
        energy = _energy(network, weights, states)
        if bool((before - energy <= tol * energy.abs()).all()):
            break
        before = energy
    return states


def _state(
    network: LiftedNetwork, weights: Sequence[Affine], states: list[Tensor], number: int, tol: float, max_iter: int
) -> Tensor:
    """The optimal X_l given its neighbours; phi(u) where nothing follows it."""
    problem = state_problem(network, weights, states, number)
    if not problem.readers:
        return network.hidden[number - 1](problem.u)
    return update_state(problem, states[number], tol, max_iter).states[0]


def _energy(network: LiftedNetwork, weights: Sequence[Affine], states: list[Tensor]) -> Tensor:
    """sum_l lam_l D_l of each row, over the layers that `states` spans."""
    terms = []
    for number, layer in enumerate(network.layers[: len(states) - 1]):
        u = network.preactivation(number, weights, states)
        terms.append(layer.lam * layer.divergence.value(u, states[number + 1]))
    return torch.stack(terms).sum(0)
