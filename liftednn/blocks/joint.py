"""The X-step over all layers at once (sec. 6.2, JCR): where every divergence is jointly convex, one convex problem per sample.

Smooth divergences are descended together. Others are split: every pair (u_l, X_{l+1}) gets a copy, and its prox is taken in both.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from liftednn.blocks.states import StateStep, chunks, gather
from liftednn.losses import Split
from liftednn.network import Layer, LiftedNetwork, States, Weights
from liftednn.solvers import Factor, prox_gradient, splitting

__all__ = ["joint_refusal", "update_all_states"]


def joint_refusal(network: LiftedNetwork) -> str:
    """Why the states of all layers cannot be updated at once; empty if they can."""
    kinds = [layer.uncertainty for layer in network.layers if layer.uncertainty is not None]
    for place, activation in enumerate(network.hidden):
        for kind in kinds:
            if not kind.joint:
                return f"with a {type(kind).__name__} the states must be updated layer by layer"
        if not activation.joint:
            return f"layer {place}: {activation!r} is not jointly convex, so its states must be updated layer by layer"
    if isinstance(network.loss, Split) and not _smooth(network):
        return "a split loss goes with activations of finite curvature only: update the states layer by layer"
    return ""


def _smooth(network: LiftedNetwork) -> bool:
    return all(activation.quadratic for activation in network.hidden) and network.loss.curvature < torch.inf


def update_all_states(
    network: LiftedNetwork, weights: Weights, states: States, tol: float = 1e-3, max_iter: int = 500
) -> StateStep:
    """The minimising X_1, ..., X_L together, from the present ones."""
    refusal = joint_refusal(network)
    if refusal:
        raise ValueError(f"joint=True is not possible: {refusal}")
    if not _smooth(network):
        factor = _stacked_factor(network, weights)
        return gather(_split(_Copied(network, weights, rows, factor), rows, tol, max_iter) for rows in chunks(*states))
    step = 1 / _lipschitz(network, weights)
    return gather(_descend(_Smooth(network, weights, rows), rows, step, tol, max_iter) for rows in chunks(*states))


def _descend(problem: _Smooth, states: States, step: float, tol: float, max_iter: int) -> StateStep:
    result = prox_gradient(problem, list(states[1:-1]), step, tol, max_iter)
    return StateStep(result.x, result.kkt, result.n_iter, "prox_gradient")


def _split(problem: _Copied, states: States, tol: float, max_iter: int) -> StateStep:
    result = splitting(problem, torch.cat(list(states[1:-1]), 1), 1.0, tol, 50 * max_iter, problem.smooth.pull(states))
    return StateStep(problem.unstack(result.x), result.kkt, result.n_iter, "splitting")


class _Smooth:
    """All hidden states as one `Composite`. A jointly convex quadratic D is |u - z|^2 on a domain, and phi projects on it."""

    def __init__(self, network: LiftedNetwork, weights: Weights, states: States) -> None:
        self.network, self.weights, self.y = network, weights, states[-1]
        self.u0 = network.preactivation(0, weights, states[0])

    def image(self, x: list[Tensor]) -> list[Tensor]:
        return [self.network.preactivation(place, self.weights, state) for place, state in enumerate(x, start=1)]

    def _pairs(self, x: list[Tensor], image: list[Tensor]) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        return zip(self.network.layers, [self.u0, *image], [*x, self.y], strict=True)

    def value(self, x: list[Tensor], image: list[Tensor]) -> Tensor:
        return torch.stack([layer.lam * layer.divergence.value(u, z) for layer, u, z in self._pairs(x, image)]).sum(0)

    def gradient(self, x: list[Tensor], image: list[Tensor]) -> list[Tensor]:
        pulls = [layer.lam * layer.divergence.grad(u, z) for layer, u, z in self._pairs(x, image)]
        layers = zip(self.network.layers[1:], self.weights[1:], pulls, pulls[1:], strict=False)
        return [layer.operator.adjoint(after, weights) - before for layer, weights, before, after in layers]

    def pull(self, states: States) -> float:
        """The largest of the terms that the gradient adds up: what its residual is measured against."""
        x = list(states[1:-1])
        terms = [layer.lam * layer.divergence.grad(u, z) for layer, u, z in self._pairs(x, self.image(x))]
        layers = zip(self.network.layers[1:], self.weights[1:], terms[1:], strict=True)
        down = [layer.operator.adjoint(term, weights) for layer, weights, term in layers]
        return max(float(each.abs().max()) for each in [*terms[:-1], *down]) or 1.0

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return [activation(state) for activation, state in zip(self.network.hidden, x, strict=True)]


def _lipschitz(network: LiftedNetwork, weights: Weights) -> float:
    """Block Gershgorin bound on the norm of the joint Hessian."""
    curvatures = [layer.lam * layer.divergence.curvature for layer in network.layers]
    norms = [layer.operator.norm(w) for layer, w in zip(network.layers, weights, strict=True)]
    norms[0] = 0.0  # the data are not a variable
    before = [c * (1 + s) for c, s in zip(curvatures, norms, strict=True)]
    after = [c * (s * s + s) for c, s in zip(curvatures, norms, strict=True)]
    return max(b + a for b, a in zip(before, after[1:], strict=False))


class _Copied:
    """All hidden states side by side, (n, widths), as one `Separable`: its image is (states, pre-activations), where f lives."""

    def __init__(self, network: LiftedNetwork, weights: Weights, states: States, factor: Factor) -> None:
        self.network, self.weights, self.factor = network, weights, factor
        self.smooth = _Smooth(network, weights, states)
        self.widths = [state.shape[1] for state in states[1:-1]]
        self.fans = [layer.operator.out_width for layer in network.layers[1:]]

    def unstack(self, x: Tensor) -> list[Tensor]:
        return list(torch.split(x, self.widths, 1))

    def _parts(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        states, preactivations = torch.split(image, [sum(self.widths), sum(self.fans)], 1)
        return self.unstack(states), list(torch.split(preactivations, self.fans, 1))

    def image(self, x: Tensor) -> Tensor:
        return torch.cat([x, *self.smooth.image(self.unstack(x))], 1)

    def adjoint(self, u: Tensor) -> Tensor:
        states, preactivations = self._parts(u)
        layers = zip(self.network.layers[1:], self.weights[1:], preactivations, states, strict=True)
        return torch.cat([state + layer.operator.adjoint(r, weights) for layer, weights, r, state in layers], 1)

    def solve(self, x: Tensor) -> Tensor:
        return self.factor.solve(x.double().T).T.to(x.dtype)

    def prox_image(self, u: Tensor, step: float) -> Tensor:
        """Pair by pair: X_1 against the data, (u_l, X_{l+1}) between hidden layers, u_L against the responses."""
        z, v = self._parts(u)
        first, last, hidden = self.network.layers[0], self.network.layers[-1], self.network.hidden
        states, preactivations = [hidden[0].prox(z[0], self.smooth.u0, first.lam * step)], []
        for place in range(1, len(hidden)):
            pair = hidden[place].prox_joint(v[place - 1], z[place], self.network.layers[place].lam * step)
            preactivations.append(pair[0])
            states.append(pair[1])
        preactivations.append(last.divergence.prox_u(v[-1], self.smooth.y, last.lam * step))
        return torch.cat([*states, *preactivations], 1)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return x

    def value(self, x: Tensor) -> Tensor:
        states = self.unstack(x)
        return self.smooth.value(states, self.smooth.image(states))

    def retract(self, x: Tensor) -> Tensor:
        """Layer by layer, each state moved into the domain that its pre-activation leaves it."""
        states, u = [], self.smooth.u0
        for place, (activation, state) in enumerate(zip(self.network.hidden, self.unstack(x), strict=True), start=1):
            states.append(activation.prox(state, u, 0.0))
            u = self.network.preactivation(place, self.weights, states[-1])
        return torch.cat(states, 1)


def _stacked_factor(network: LiftedNetwork, weights: Weights) -> Factor:
    """(A'A + I)^-1 for the image of `_Copied`: block diagonal, 2 I + the layer's own Gram matrix."""
    blocks = [layer.operator.gram(w).double() for layer, w in zip(network.layers[1:], weights[1:], strict=True)]
    stacked: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return Factor.of(stacked, 1.0, 2.0, 0.0)
