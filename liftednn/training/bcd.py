"""Block-coordinate descent (sec. 6) over full passes; the states of all rows are kept.

A pass updates the states from the last layer to the first, then all weights. Every block minimises the same objective over its own
variables, so the objective does not rise at any of them. History starts at pass 0, random features with a fitted head, as a
baseline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.blocks import (
    Design,
    Granularities,
    designs_of,
    granularities_of,
    plain_layer,
    state_problem,
    update_activation,
    update_all_states,
    update_layer,
    update_shared,
    update_state,
    why_not_joint,
)
from liftednn.checks import check_callable, check_count, check_number, check_seed
from liftednn.data.validation import check_exact, check_trainable, checked_row_weights, inputs, matrix_shapes, responses
from liftednn.network import Layer, LiftedNetwork
from liftednn.runtime.memory import check_memory
from liftednn.runtime.precision import exact_arithmetic
from liftednn.training.initial import given_weights, random_weights
from liftednn.training.result import Fit, Record, Status, copies

__all__ = ["BCD", "Block", "State"]

# A block whose residual is more than so many times block_tol is named in the result.
_FAR = 10.0


class Block(NamedTuple):
    """One block that has just been minimised: its name ("x2", "w0", "phi1", "x" for all states together), residual and iterations."""

    name: str
    kkt: float
    n_iter: int
    method: str


@dataclass
class State:
    """The state of a run: weights, states (X_0, ..., X_{L+1}), and the regressions on X_0, whose Gram matrices never change, by layer.

    `kkt` holds the last residual of each block, `network` the network with the activations learned so far.
    """

    weights: list[Affine]
    states: list[Tensor]
    designs: dict[int, list[Design]]
    sample_weight: Tensor | None = None
    kkt: dict[str, float] = field(default_factory=dict)
    network: LiftedNetwork | None = None


@dataclass(frozen=True)
class BCD:
    """Full-batch block-coordinate descent.

    passes             the most passes over all blocks
    tol                stop when a pass lowers the objective by less than this fraction of it
    joint              update the states of all layers at once; every activation must be jointly convex
    seed               of the initial weights
    block_tol          relative KKT residual to which each block is solved
    block_iter         the most iterations in a block
    learn_activation   learn the activations' own parameters, one for a "layer" or one for each "unit"; a sequence has one for each layer

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> network = lnn.LiftedNetwork.mlp([3, 5, 1], loss="squared")
    >>> fit = lnn.BCD(passes=3, tol=0.0).run(network, x, x[:, 0])
    >>> fit.status, fit.history[-1].objective < fit.history[0].objective
    ('finished', True)
    """

    passes: int = 20
    tol: float = 1e-4
    joint: bool = False
    seed: int = 0
    block_tol: float = 1e-3
    block_iter: int = 200
    learn_activation: Granularities = None

    def __post_init__(self) -> None:
        check_count("passes", self.passes)
        check_count("block_iter", self.block_iter, least=1)
        check_number("tol", self.tol, zero=True, infinite=True)
        check_number("block_tol", self.block_tol, infinite=True)
        check_seed(self.seed)

    @exact_arithmetic
    def run(
        self,
        network: LiftedNetwork,
        x: Any,
        y: Any,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        callback: Callable[[Record], object] | None = None,
        sample_weight: Any = None,
    ) -> Fit:
        """Train the network on rows x (n, inputs) and responses y, tensors or arrays; returns a `Fit`.

        network         a `LiftedNetwork`
        x, y            rows, and what the loss takes: labels are integers, (n,), real responses (n,) or (n, outputs)
        weights         where to start; None for random features with a fitted head
        callback        called with each pass's record; a true result stops the run. Ctrl-C stops it too and keeps what it has
        sample_weight   (n,), the weight of each row: means over rows become weighted ones. Each row has states of its own,
                        so the X-step does not depend on them
        """
        started = time.perf_counter()
        check_callable("callback", callback)
        state = self.init(network, x, y, weights, sample_weight)
        history: list[Record] = []
        status: Status = "finished"
        try:
            for record in self._records(network, state, started):
                history.append(record)
                if callback is not None and callback(record):
                    status = "stopped"
                    break
                if len(history) > 1 and _converged(history[-2].objective, record.objective, self.tol):
                    status = "converged"
                    break
        except KeyboardInterrupt:
            status = "stopped"
        sentence, final = _sentence(status, history, self.tol, self.block_tol), state.network or network
        return Fit(copies(state.weights), history, status, sentence, final, state.states)

    def init(
        self,
        network: LiftedNetwork,
        x: Any,
        y: Any,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        sample_weight: Any = None,
    ) -> State:
        """The `State` that a run starts from: He weights with a fitted head, or `weights`, and the states of the recursion.

        network, x, y, weights and sample_weight are those of `run`, and are checked here.
        """
        check_trainable(network)
        check_exact(network)
        if self.joint and why_not_joint(network):
            raise ValueError(f"joint=True is not possible: {why_not_joint(network)}")
        granularities_of(network, self.learn_activation)
        x = inputs(network, x)
        y = responses(network, y, x)
        row_weights = checked_row_weights(sample_weight, x)
        check_memory(matrix_shapes(network), x, len(x) * sum(layer.operator.out_width for layer in network.layers))
        start = (
            random_weights(network, self.seed, x, y, row_weights)
            if weights is None
            else given_weights(network, weights, x)
        )
        state = State(start, [*network.propagate(start, x), y], {}, row_weights)
        last = len(network.layers) - 1
        if weights is None and network.connections.alone(last):
            head = self._update_weights(network, state, last)
            state.kkt = {head.name: head.kkt}
        return state

    def blocks(self, network: LiftedNetwork, state: State) -> Iterator[Block]:
        """One pass, block by block; `state` is up to date at every yield."""
        network = state.network or network
        hidden = len(network.layers) - 1
        if self.joint and hidden:
            plain = LiftedNetwork(_plain(network, state))
            step = update_all_states(plain, state.weights, state.states, self.block_tol, self.block_iter)
            state.states = [state.states[0], *step.states, state.states[-1]]
            yield Block("x", step.kkt, step.n_iter, step.method)
        else:
            for number in range(hidden, 0, -1):
                yield self._update_state(network, state, number)
        for number in range(hidden + 1):
            if network.connections.owners[number] == number:
                yield self._update_weights(network, state, number)
            if number < hidden and granularities_of(network, self.learn_activation)[number]:
                yield self._update_activation(network, state, number)
                network = state.network or network

    def _update_state(self, network: LiftedNetwork, state: State, number: int) -> Block:
        problem = state_problem(network, state.weights, state.states, number, _plain(network, state, number))
        step = update_state(problem, state.states[number], self.block_tol, self.block_iter)
        state.states[number] = step.states[0]
        return Block(f"x{number}", step.kkt, step.n_iter, step.method)

    def _update_weights(self, network: LiftedNetwork, state: State, owner: int) -> Block:
        """The W-step of one layer, or of all that share its w."""
        members, limits = network.connections.sharing(owner), (self.block_tol, self.block_iter)
        layers, xs = [network.layers[each] for each in members], [network.read(each, state.states) for each in members]
        designs, zs = [_designs(network, state, each) for each in members], [state.states[each + 1] for each in members]
        if len(members) == 1:
            step = update_layer(layers[0], designs[0], xs[0], zs[0], state.weights[owner], *limits)
            state.weights[owner] = step.weights
        else:
            currents = [state.weights[each] for each in members]
            found, step = update_shared(layers, designs, xs, zs, currents, *limits)
            for each, weights in zip(members, found, strict=True):
                state.weights[each] = weights
        return Block(f"w{owner}", step.kkt, step.n_iter, step.method)

    def _update_activation(self, network: LiftedNetwork, state: State, number: int) -> Block:
        u = network.preactivation(number, state.weights, state.states)
        per = granularities_of(network, self.learn_activation)[number] or "layer"
        w, z = state.weights[number].w, state.states[number + 1]
        step = update_activation(network, number, w, u, z, state.sample_weight, per)
        state.network = step.network
        # Rows that do not count have no part in the choice, and may be outside new bounds.
        if state.sample_weight is not None:
            absent = (state.sample_weight == 0)[:, None]
            state.states[number + 1] = torch.where(absent, step.network.hidden[number](u), z)
        return Block(f"phi{number + 1}", step.kkt, 1, "learned")

    def _records(self, network: LiftedNetwork, state: State, started: float) -> Iterator[Record]:
        for number in range(self.passes + 1):
            if number:
                state.kkt = {block.name: block.kkt for block in self.blocks(network, state)}
            evaluation = (state.network or network).evaluate(state.weights, state.states, state.sample_weight)
            yield Record(
                number=number,
                objective=evaluation.objective,
                gaps=evaluation.gaps,
                loss=evaluation.loss,
                score=evaluation.score,
                seconds=time.perf_counter() - started,
                terms=evaluation.terms,
                penalties=evaluation.penalties,
                kkt=state.kkt,
            )


def _plain(network: LiftedNetwork, state: State, number: int | None = None) -> list[Layer]:
    """The layers as an X-step takes them, at the present weights and states; with a number, only those at that state change."""
    layers, readers = list(network.layers), network.connections.readers
    for each in range(len(layers)) if number is None else {number - 1, *(reader for reader, _ in readers[number])}:
        xs, z = network.read(each, state.states), state.states[each + 1]
        layers[each] = plain_layer(layers[each], state.weights[each], xs, z, state.sample_weight)
    return layers


def _designs(network: LiftedNetwork, state: State, number: int) -> list[Design]:
    """The regressions of a layer; those on the inputs are computed once."""
    if any(network.connections.reads[number]):
        return designs_of(network.layers[number], network.read(number, state.states), state.sample_weight)
    if number not in state.designs:
        read = network.read(number, state.states)
        state.designs[number] = designs_of(network.layers[number], read, state.sample_weight)
    return state.designs[number]


def _converged(before: float, after: float, tol: float) -> bool:
    return abs(before - after) <= tol * abs(before)


def _sentence(status: str, history: list[Record], tol: float, block_tol: float) -> str:
    done = max(len(history) - 1, 0)
    falling = f", and the objective was still falling by more than {tol:g} of itself" if done else ""
    residuals = history[-1].kkt if history else {}
    worst = max(residuals, key=lambda name: residuals[name], default=None)
    far = worst is not None and residuals[worst] > _FAR * block_tol
    found = {
        "converged": f"{'ended' if far else 'converged'}: pass {done} changed the objective by less than {tol:g} of itself",
        "finished": f"finished: all {done} passes done{falling}",
        "stopped": f"stopped: interrupted after {done} complete passes; the weights and states are the last ones reached",
    }[status]
    if worst is None or not far:
        return found
    return (
        f"{found}; in the last one block {worst} ended at a KKT residual of {residuals[worst]:.1g}, not {block_tol:g}"
    )
