"""The X-step on a batch, once for every layer, from the states of the recursion.

With X_l = phi(u_l) from the forward pass, the layers are gone through from the last to the first. Each state is updated for the
gradient g of the terms after it by  z = argmin <g, z> + lam D(u, z):  a proximal gradient step in the layer's own divergence, which is
the Bregman distance from phi(u) where D is a Fenchel divergence. It does not raise the block's objective where lam is at least
curvature(D) times the curvature of the terms after it. The layer's own pull is then lam grad_u D(u, z), the gradient in u of

    E(u) = min_z  lam D(u, z) + (terms after it, linearised)

Its curvature in u is at most that of the terms after it, and at most lam curvature(D): `curvatures` measures it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation
from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import LiftedNetwork, Weights

__all__ = ["Answer", "answer", "curvatures", "descent_refusal", "recursion"]

# Curvature below this share of the loss's counts as 0 for a layer, and below this share of the largest unit's for a unit.
_NEGLIGIBLE = 1e-10


class Answer(NamedTuple):
    """The X-step on a batch.

    forward          states of the recursion (X_0, ..., X_L)
    preactivations   u_0, ..., u_L of the recursion
    states           states after the X-step (X_1, ..., X_L)
    pulls            lam grad_u D of every layer, or of its robust form
    reach_gradients  for a layer whose rows lie in a box, the gradient in the radius of its pre-activations; None for the others
    """

    forward: list[Tensor]
    preactivations: list[Tensor]
    states: list[Tensor]
    pulls: list[Tensor]
    reach_gradients: Sequence[Tensor | None] = ()


def descent_refusal(network: LiftedNetwork) -> str:
    """Why mini-batch descent cannot train a network; empty if it can."""
    for number, layer in enumerate(network.layers):
        if layer.divergence.curvature == torch.inf:
            return (
                f"layer {number}: {layer.divergence!r} has no finite curvature, and mini-batch steps need one: "
                "use its Fenchel form, give a loss a smoothing, or use BCD"
            )
    return ""


def answer(
    network: LiftedNetwork,
    weights: Weights,
    x: Tensor,
    y: Tensor,
    row_weights: Tensor | None = None,
    terms: Sequence[RobustTerm | None] = (),
) -> Answer:
    """The X-step on a batch: forward, then one step per layer from the last to the first; `row_weights` (n,) weigh the loss.

    terms   the robust terms of layers whose rows are uncertain; without them all rows count as certain
    """
    forward, preactivations = recursion(network, weights, x)
    last, term = network.layers[-1], terms[-1] if terms else None
    if term is not None:
        pull, reach_gradient = term.pull(weights[-1].w, preactivations[-1], y)
    else:
        pull, reach_gradient = last.divergence.grad(preactivations[-1], y), None
        pull = last.lam * pull if last.lam != 1 else pull
    if row_weights is not None:
        pull.mul_(row_weights[:, None])
        reach_gradient = None if reach_gradient is None else reach_gradient * row_weights[:, None]
    states, pulls, reach_gradients = _backward(network, weights, preactivations, pull, terms)
    return Answer(forward, preactivations, states, pulls, [*reach_gradients, reach_gradient])


def curvatures(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    probes: Tensor,
    counts: Tensor | None = None,
    y: Tensor | None = None,
) -> list[Tensor]:
    """c of every layer: the mean over rows, and over units with a gradient, of the curvature in u of what comes after; 0-dim tensors.
    That of the loss is its bound or, with responses y, its value at the residuals.

    Probes (m, n, outputs) of the loss's curvature, random signs say, are sent backward as pulls; the mean square that arrives is the
    mean diagonal of J' (c_loss I) J, J the Jacobian from u to the scores. Where nothing arrives, as below a head of zeros, c is
    infinite, and the layer takes no step.
    """
    if probes.ndim != 3 or not len(probes) or probes.shape[1:] != preactivations[-1].shape:
        n, outputs = preactivations[-1].shape
        raise ValueError(
            f"probes have shape {tuple(probes.shape)}: give (m, {n}, {outputs}), m >= 1 probes of the network's scores"
        )
    met = network.loss.curvature if y is None else network.loss.curvature_met(preactivations[-1], y, counts)
    top = network.layers[-1].lam * met
    arrived = [_backward(network, weights, preactivations, probe * top**0.5)[1] for probe in probes]
    # A jointly convex divergence has a pull that is not 0 even where the states obey the recursion.
    if any(activation.joint for activation in network.hidden):
        rest = _backward(network, weights, preactivations, torch.zeros_like(probes[0]))[1]
        arrived = [[pull - still for pull, still in zip(pulls, rest, strict=True)] for pulls in arrived]
    found = [
        torch.stack([reduce.mean_square(pull, counts) for pull in pulls]).mean() / _active_share(pulls)
        for pulls in zip(*arrived, strict=True)
    ]
    limits = [layer.lam * layer.divergence.curvature for layer in network.layers]
    found = [torch.where(c < _NEGLIGIBLE * top, torch.inf, c) for c in found]
    bounded = [torch.where(c.isinf(), c, c.clamp(max=limit)) for c, limit in zip(found, limits, strict=True)]
    return [*bounded[:-1], probes.new_full((), top)]


def _active_share(pulls: Sequence[Tensor]) -> Tensor:
    """The share of units that receive a pull on any row. Units that are constant must not lower the mean curvature: a smaller one gives
    longer steps, which make more units constant."""
    arrived = torch.stack([reduce.total(pull.square()) for pull in pulls]).sum(0)
    return torch.where(arrived.max() > 0, (arrived > _NEGLIGIBLE * arrived.max()).to(pulls[0]).mean(), 1.0)


def recursion(network: LiftedNetwork, weights: Weights, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """States (X_0, ..., X_L) and pre-activations (u_0, ..., u_L) of the forward pass."""
    states, preactivations = [x], []
    for number, layer in enumerate(network.layers):
        preactivations.append(network.preactivation(number, weights, states))
        if number + 1 < len(network.layers):
            states.append(layer.divergence(preactivations[-1]))
    return states, preactivations


def _backward(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    pull: Tensor,
    terms: Sequence[RobustTerm | None] = (),
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    last, reads = len(network.layers) - 1, network.connections.reads
    states: list[Tensor] = []
    reach_gradients: list[Tensor | None] = []
    pulls = [pull]
    gathered: list[Tensor | None] = [None] * (last + 1)  # by state, what arrives from the layers that read it
    for number in range(last, -1, -1):
        if number < last:
            z, pull, reach_gradient = _respond(network, weights, preactivations, number, gathered[number + 1], terms)
            states, pulls, reach_gradients = [z, *states], [pull, *pulls], [reach_gradient, *reach_gradients]
        operator = network.layers[number].operator
        for index, state in enumerate(reads[number]):
            if state:
                down = operator.adjoint(pull, weights[number], index)
                before = gathered[state]
                gathered[state] = down if before is None else before.add_(down)
    return states, pulls, reach_gradients


def _respond(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    number: int,
    down: Tensor | None,
    terms: Sequence[RobustTerm | None],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """State, pull and reach gradient of layer `number`, where `down` is the gradient that its state receives."""
    layer, u = network.layers[number], preactivations[number]
    assert isinstance(layer.divergence, Activation)
    assert down is not None
    down.div_(layer.lam)
    term = terms[number] if terms else None
    if term is not None:
        return term.respond(weights[number].w, u, down)
    z = layer.divergence.tilted(u, down)
    return z, layer.divergence.grad(u, z).mul_(layer.lam), None
