"""The X-step on a batch, once for every layer, from the states of the recursion.

With X_l = phi(u_l) from the forward pass, the layers are gone through from the last to the first. Each state is updated for the
gradient g of the terms after it by  z = argmin <g, z> + lam D(u, z):  a proximal gradient step in the layer's own divergence, which is
the Bregman distance from phi(u) where D is a Fenchel divergence. It does not raise the block's objective where lam is at least
curvature(D) times the curvature of the terms after it. The layer's own regression gets lam grad_u D(u, z), the gradient in u of

    E(u) = min_z  lam D(u, z) + (terms after it, linearised)

Its curvature in u is at most that of the terms after it, and at most lam curvature(D): `curvatures` measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Affine, LayerXStep
from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import Layer, LiftedNetwork, Weights

__all__ = ["XStep", "curvatures", "probe_gradients", "recursion", "top_curvature", "why_not_minibatch", "x_step"]

# Curvature below this fraction of the loss's is taken as 0 for a layer, and below this fraction of the largest unit's for a unit.
_NEGLIGIBLE = 1e-10


class XStep(NamedTuple):
    """The X-step on a batch.

    forward            states of the recursion (X_0, ..., X_L)
    preactivations     u_0, ..., u_L of the recursion
    states             states after the X-step (X_1, ..., X_L)
    u_gradients        lam grad_u D of every layer, or of its robust form: the gradient in its pre-activations
    inputs             of every layer, the states of `forward` that it reads
    radius_gradients   for a layer whose rows lie in a box, the gradient in the radius of its pre-activations; None for the others
    """

    forward: list[Tensor]
    preactivations: list[Tensor]
    states: list[Tensor]
    u_gradients: list[Tensor]
    inputs: list[list[Tensor]]
    radius_gradients: Sequence[Tensor | None] = ()


def why_not_minibatch(network: LiftedNetwork) -> str:
    """Why mini-batch descent cannot train a network; empty if it can."""
    for number, layer in enumerate(network.layers):
        if layer.divergence.curvature == torch.inf:
            return (
                f"layer {number}: {layer.divergence!r} has no finite curvature, and mini-batch steps need one: "
                "use its Fenchel form (Pooled, for max-pooling), give a loss a smoothing, or use BCD"
            )
    return ""


def x_step(
    network: LiftedNetwork,
    weights: Weights,
    x: Tensor,
    y: Tensor,
    outlier_weights: Tensor | None = None,
    terms: Sequence[RobustTerm | None] = (),
    reached: Callable[[int], None] | None = None,
) -> XStep:
    """The X-step on a batch: forward, then one step per layer from the last to the first; `outlier_weights` (n,) weigh the loss.

    terms     the robust terms of layers whose rows are uncertain; without them all rows are taken as certain
    reached   called with the number of every layer once its gradient is there and its weights are no longer needed
    """
    forward, inputs, preactivations, x_steps = _forward(network, weights, x)
    last, term = network.layers[-1], terms[-1] if terms else None
    if term is not None:
        u_gradient, radius_gradient = term.gradients(weights[-1].w, preactivations[-1], y)
    else:
        u_gradient, radius_gradient = last.divergence.grad(preactivations[-1], y), None
        u_gradient = last.lam * u_gradient if last.lam != 1 else u_gradient
    if outlier_weights is not None:
        u_gradient = u_gradient * outlier_weights[:, None]  # a loss may give a view
        radius_gradient = None if radius_gradient is None else radius_gradient * outlier_weights[:, None]
    given = network, weights, preactivations, x_steps, u_gradient, terms, reached
    states, u_gradients, radius_gradients = _backward(*given)
    return XStep(forward, preactivations, states, u_gradients, inputs, [*radius_gradients, radius_gradient])


def curvatures(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    probes: Tensor,
    row_weights: Tensor | None = None,
    y: Tensor | None = None,
) -> list[float]:
    """c of every layer: the mean over rows, and over units with a gradient, of the curvature in u of what comes after.
    That of the loss is its bound or, with responses y, its value at the residuals.

    Probes (m, n, outputs), random signs say, times the square root of the loss's curvature, are propagated backward in place of its
    gradient; the mean square that a layer receives is the mean diagonal of J' (c_loss I) J, J the Jacobian from u to the scores. Where it
    receives 0, as below a head of zeros, c is infinite, and the layer takes no step.
    """
    if probes.ndim != 3 or not len(probes) or probes.shape[1:] != preactivations[-1].shape:
        n, outputs = preactivations[-1].shape
        raise ValueError(
            f"probes have shape {tuple(probes.shape)}: give (m, {n}, {outputs}), m >= 1 probes of the network's scores"
        )
    top = top_curvature(network, preactivations[-1], y, row_weights)
    received = probe_gradients(network, weights, preactivations, probes * top**0.5)
    found = [_mean_square(u_gradients, row_weights) for u_gradients in list(zip(*received, strict=True))[:-1]]
    limits = [layer.lam * layer.divergence.curvature for layer in network.layers]
    return [
        *(torch.inf if c < _NEGLIGIBLE * top else min(c, most) for c, most in zip(found, limits, strict=False)),
        top,
    ]


def top_curvature(
    network: LiftedNetwork, scores: Tensor, y: Tensor | None = None, row_weights: Tensor | None = None
) -> float:
    """c of the last layer: that of the loss, its bound or, with responses y, its value at the residuals."""
    loss, lam = network.loss, network.layers[-1].lam
    return lam * (loss.curvature if y is None else loss.effective_curvature(scores, y, row_weights))


def probe_gradients(
    network: LiftedNetwork, weights: Weights, preactivations: list[Tensor], probes: Tensor
) -> list[list[Tensor]]:
    """For each of the probes (m, n, outputs), the gradient in u of every layer that it causes in place of the loss's own."""
    pairs = zip(network.hidden, preactivations, strict=False)
    given = network, weights, preactivations, [activation.phi_and_x_step(u)[1] for activation, u in pairs]
    received = [_backward(*given, probe)[1] for probe in probes]
    # A jointly convex divergence has a gradient in u that is not 0 even where the states obey the recursion.
    if any(activation.joint for activation in network.hidden):
        rest = _backward(*given, torch.zeros_like(probes[0]))[1]
        received = [[g - at_rest for g, at_rest in zip(u_gradients, rest, strict=True)] for u_gradients in received]
    return received


def _mean_square(u_gradients: Sequence[Tensor], row_weights: Tensor | None) -> float:
    """The mean over rows and units of squared gradients, of each of several probes; without the units that receive none on any row. Units
    that are constant must not lower the mean curvature: a smaller one gives longer steps, which make more units constant."""
    squares = torch.stack([reduce.mean(g.square(), row_weights) for g in u_gradients]).mean(0)
    active = squares >= _NEGLIGIBLE * squares.max()  # all of them where all are 0
    return float(squares.sum() / active.sum())


def recursion(network: LiftedNetwork, weights: Weights, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """States (X_0, ..., X_L) and pre-activations (u_0, ..., u_L) of the forward pass."""
    states, _, preactivations, _ = _forward(network, weights, x)
    return states, preactivations


def _forward(
    network: LiftedNetwork, weights: Weights, x: Tensor
) -> tuple[list[Tensor], list[list[Tensor]], list[Tensor], list[LayerXStep]]:
    """States, inputs of all layers and pre-activations of the forward pass, and the X-step of every hidden layer at these."""
    states, inputs, preactivations, x_steps = [x], [], [], []
    last = len(network.layers) - 1
    for number, layer in enumerate(network.layers):
        xs = network.read(number, states)
        u = layer.operator.forward(xs, weights[number])
        inputs.append(xs)
        preactivations.append(u)
        if number < last:
            phi, step = cast(Activation, layer.divergence).phi_and_x_step(u)
            states.append(phi)
            x_steps.append(step)
    return states, inputs, preactivations, x_steps


def _backward(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    x_steps: Sequence[LayerXStep],
    u_gradient: Tensor,
    terms: Sequence[RobustTerm | None] = (),
    reached: Callable[[int], None] | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    reached = reached or (lambda number: None)
    last, reads = len(network.layers) - 1, network.connections.reads
    states: list[Tensor] = []
    radius_gradients: list[Tensor | None] = []
    u_gradients = [u_gradient]
    z_gradients: dict[int, Tensor] = {}  # for each state, summed over the layers that read it
    for number in range(last, 0, -1):
        operator = network.layers[number].operator
        for index, state in enumerate(reads[number]):
            if state:
                part = operator.adjoint(u_gradient, weights[number], index)
                z_gradients[state] = z_gradients[state].add_(part) if state in z_gradients else part
        reached(number)
        z, u_gradient, radius_gradient = _layer_x_step(
            network.layers[number - 1],
            weights[number - 1],
            preactivations[number - 1],
            x_steps[number - 1],
            z_gradients[number],
            terms[number - 1] if terms else None,
        )
        states.append(z)
        u_gradients.append(u_gradient)
        radius_gradients.append(radius_gradient)
    reached(0)
    return states[::-1], u_gradients[::-1], radius_gradients[::-1]


def _layer_x_step(
    layer: Layer, weights: Affine, u: Tensor, step: LayerXStep, z_gradient: Tensor, term: RobustTerm | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """State, gradient in u and gradient in the radius of a layer; `z_gradient` is that of the later layers in its state."""
    if term is not None:
        return term.x_step(weights.w, u, z_gradient.mul_(1 / layer.lam))
    return *step(z_gradient, layer.lam), None
