"""The X-step over all layers at once (sec. 6.2, JCR): where every divergence is jointly convex, one convex problem per sample.

Smooth divergences: proximal gradient on all states. Others: splitting, with a copy of every pair (u_l, X_{l+1}) and its joint prox.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, SelfAdjoint
from liftednn.blocks.readers import added, row_scales, spans
from liftednn.blocks.states import StateStep, gather
from liftednn.network import Layer, LiftedNetwork, States, Weights
from liftednn.solvers import prox_gradient, splitting
from liftednn.solvers.splitting import ROWS

__all__ = ["update_all_states", "why_not_joint"]


def why_not_joint(network: LiftedNetwork) -> str:
    """Why the states of all layers cannot be updated at once; empty if they can."""
    kinds = [layer.uncertainty for layer in network.layers if layer.uncertainty is not None]
    for number, activation in enumerate(network.hidden):
        for kind in kinds:
            if not kind.joint:
                return f"with a {type(kind).__name__} the states must be updated layer by layer"
        if not activation.joint:
            return f"layer {number}: {activation!r} is not jointly convex, so its states must be updated layer by layer"
    return ""


def _smooth(network: LiftedNetwork) -> bool:
    return all(activation.quadratic for activation in network.hidden) and network.loss.curvature < torch.inf


def update_all_states(
    network: LiftedNetwork, weights: Weights, states: States, tol: float = 1e-3, max_iter: int = 500
) -> StateStep:
    """The X_1, ..., X_L that minimise the objective together, from the present ones."""
    reason = why_not_joint(network)
    if reason:
        raise ValueError(f"joint=True is not possible: {reason}")
    smooth = _smooth(network)
    blocks = [[state[rows] for state in states] for rows in spans(states[0], None if smooth else ROWS)]
    if not smooth:
        normal = _stacked(network, weights)
        parts = [(_Copied(network, weights, rows, normal), rows) for rows in blocks]
        scale = reduce.largest(*(problem.smooth.largest_term(rows) for problem, rows in parts)) or 1.0
        return gather(_split(problem, rows, scale, tol, max_iter) for problem, rows in parts)
    step, problems = 1 / _lipschitz(network, weights), [_Smooth(network, weights, rows) for rows in blocks]
    sizes = [problem.at_zero() for problem in problems]
    scales = torch.split(row_scales(torch.cat(sizes)), [len(each) for each in sizes])
    return gather(
        _descend(problem, rows, step, scale, tol, max_iter)
        for problem, rows, scale in zip(problems, blocks, scales, strict=True)
    )


def _descend(problem: _Smooth, states: States, step: float, scale: Tensor, tol: float, max_iter: int) -> StateStep:
    result = prox_gradient(problem, list(states[1:-1]), step, tol, max_iter, scale)
    return StateStep(result.x, result.kkt, result.n_iter, "prox_gradient")


def _split(problem: _Copied, states: States, scale: float, tol: float, max_iter: int) -> StateStep:
    result = splitting(problem, torch.cat(list(states[1:-1]), 1), 1.0, tol, 50 * max_iter, scale)
    return StateStep(problem.unstack(result.x), result.kkt, result.n_iter, "splitting")


class _Smooth:
    """All hidden states as one `Composite`. A jointly convex quadratic D is |u - z|^2 on a domain, and phi projects on it.

    A x are the pre-activations of the layers that read a hidden state; those of the others, `constant`, never change.
    """

    def __init__(self, network: LiftedNetwork, weights: Weights, states: States) -> None:
        self.network, self.weights, self.x, self.y = network, weights, states[0], states[-1]
        reads = network.connections.reads
        self.constant = {
            number: network.preactivation(number, weights, states[:1])
            for number in range(len(network.layers))
            if not any(reads[number])
        }
        self.moving = [number for number in range(len(network.layers)) if number not in self.constant]
        self.readers = [
            [(self.moving.index(reader), reader, index) for reader, index in pairs]
            for pairs in network.connections.readers[1:]
        ]

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        states = [self.x, *x]
        return [self.network.preactivation(number, self.weights, states) for number in self.moving]

    def preactivations(self, ax: Sequence[Tensor]) -> list[Tensor]:
        """The pre-activations of all layers."""
        known = self.constant | dict(zip(self.moving, ax, strict=True))
        return [known[number] for number in range(len(self.network.layers))]

    def _pairs(self, x: list[Tensor], ax: list[Tensor]) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        return zip(self.network.layers, self.preactivations(ax), [*x, self.y], strict=True)

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        return torch.stack([layer.lam * layer.divergence.value(u, z) for layer, u, z in self._pairs(x, ax)]).sum(0)

    def adjoint(self, us: Sequence[Tensor]) -> list[Tensor]:
        """For each hidden state, the sum over the layers that read it."""
        return [
            added(self._back(reader, us[position], index) for position, reader, index in readers)
            for readers in self.readers
        ]

    def _back(self, reader: int, r: Tensor, index: int) -> Tensor:
        return self.network.layers[reader].operator.adjoint(r, self.weights[reader], index)

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        u_gradients = [layer.lam * layer.divergence.grad(u, z) for layer, u, z in self._pairs(x, ax)]
        after = self.adjoint([u_gradients[number] for number in self.moving])
        return [later - own for later, own in zip(after, u_gradients, strict=False)]

    def at_zero(self) -> Tensor:
        """max |gradient at 0| of each row."""
        zero = [self.x.new_zeros(len(self.x), layer.width) for layer in self.network.layers[:-1]]
        return torch.cat(self.gradient(zero, self.forward(zero)), 1).abs().amax(1)

    def largest_term(self, states: States) -> float:
        """The largest entry of the terms that the gradient is the sum of, which its residual is relative to."""
        x = list(states[1:-1])
        terms = [layer.lam * layer.divergence.grad(u, z) for layer, u, z in self._pairs(x, self.forward(x))]
        back = [self._back(reader, terms[reader], index) for readers in self.readers for _, reader, index in readers]
        return reduce.largest(*terms[:-1], *back)

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return [activation(state) for activation, state in zip(self.network.hidden, x, strict=True)]


def _lipschitz(network: LiftedNetwork, weights: Weights) -> float:
    """Block Gershgorin bound on the norm of the joint Hessian, of lam c |u_l - z|^2 / 2 each: for every state, the sum over the blocks of
    its row, from its own layer and from those that read it."""
    reads, curvatures = network.connections.reads, [layer.lam * layer.divergence.curvature for layer in network.layers]
    norms = [
        [layer.operator.norm(w, index) if state else 0.0 for index, state in enumerate(reads[number])]
        for number, (layer, w) in enumerate(zip(network.layers, weights, strict=True))
    ]
    rows = [curvatures[state] * (1 + sum(norms[state])) for state in range(len(network.layers) - 1)]
    for state, readers in enumerate(network.connections.readers[1:]):
        for reader, index in readers:
            rows[state] += curvatures[reader] * norms[reader][index] * (1 + sum(norms[reader]))
    return max(rows)


class _Copied:
    """All hidden states side by side, (n, widths), as one `Separable`: A x is (states, pre-activations), the arguments of f."""

    def __init__(self, network: LiftedNetwork, weights: Weights, states: States, normal: SelfAdjoint | None) -> None:
        self.network, self.weights, self.normal = network, weights, normal
        self.smooth = _Smooth(network, weights, states)
        self.widths = [layer.width for layer in network.layers[:-1]]
        self.preactivation_widths = [network.layers[number].operator.out_width for number in self.smooth.moving]

    def unstack(self, x: Tensor) -> list[Tensor]:
        return [part.contiguous() for part in torch.split(x, self.widths, 1)]

    def _parts(self, ax: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        states, preactivations = torch.split(ax, [sum(self.widths), sum(self.preactivation_widths)], 1)
        return self.unstack(states), [
            part.contiguous() for part in torch.split(preactivations, self.preactivation_widths, 1)
        ]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *self.smooth.forward(self.unstack(x))], 1)

    def adjoint(self, u: Tensor) -> Tensor:
        states, preactivations = self._parts(u)
        back = self.smooth.adjoint(preactivations)
        return torch.cat([state + part for state, part in zip(states, back, strict=True)], 1)

    def solve(self, x: Tensor) -> Tensor:
        assert self.normal is not None
        return self.normal.solve(1.0, x)

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        """Pair by pair: (u_l, X_{l+1}), u_L against the responses; where u_l is constant, X_{l+1} alone."""
        z, v = self._parts(u)
        moved = dict(zip(self.smooth.moving, v, strict=True))
        states: list[Tensor] = []
        for number, (activation, state) in enumerate(zip(self.network.hidden, z, strict=True)):
            size = self.network.layers[number].lam * step
            if number in moved:
                moved[number], state = activation.prox_joint(moved[number], state, size)
            else:
                state = activation.prox(state, self.smooth.constant[number], size)
            states.append(state)
        last = len(self.network.layers) - 1
        head = self.network.layers[last]
        moved[last] = head.divergence.prox_u(moved[last], self.smooth.y, head.lam * step)
        return torch.cat([*states, *moved.values()], 1)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return x

    def value(self, x: Tensor) -> Tensor:
        states = self.unstack(x)
        return self.smooth.value(states, self.smooth.forward(states))

    def retract(self, x: Tensor) -> Tensor:
        """Layer by layer, project each state on the domain that its pre-activation allows."""
        states = [self.smooth.x]
        for number, (activation, state) in enumerate(zip(self.network.hidden, self.unstack(x), strict=True)):
            states.append(activation.prox(state, self.network.preactivation(number, self.weights, states), 0.0))
        return torch.cat(states[1:], 1)


def _stacked(network: LiftedNetwork, weights: Weights) -> SelfAdjoint:
    """A'A for the A of `_Copied`, its matrix formed column by column."""
    double = [Affine(w.double(), b.double()) for w, b in weights]
    total = sum(layer.width for layer in network.layers[:-1])
    like = double[0].w

    def apply(x: Tensor) -> Tensor:
        zeros = [like.new_zeros(len(x), width) for width in (network.in_width, network.layers[-1].width)]
        linear = _Copied(network, double, [zeros[0], zeros[1]], None)
        return linear.adjoint(linear.forward(x.double()) - linear.forward(torch.zeros_like(x.double()))).to(x.dtype)

    return SelfAdjoint(total, apply, lambda: apply(torch.eye(total, dtype=like.dtype, device=like.device)))
