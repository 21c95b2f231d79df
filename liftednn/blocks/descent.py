"""One step on a batch: the X-step once for every layer, from the states of the recursion, then the W-step once.

States. With X_l = phi(u_l) from the forward pass, the layers are gone through from the last to the first. Each state answers the
gradient g of the terms after it by  z = argmin <g, z> + lam D(u, z):  a proximal gradient step in the layer's own divergence, which is
the Bregman distance from phi(u) where D is a Fenchel divergence. It does not raise the block's objective where lam is at least
curvature(D) times the curvature of the terms after it. The layer's own pull is then lam grad_u D(u, z), the gradient in u of

    E(u) = min_z  lam D(u, z) + (terms after it, linearised)

Weights. E has curvature c in u, at most that of the terms after it and at most lam curvature(D): a step on W is one step of the
ridge regression with the quadratic bound (c/2)|u - t|^2, pseudo-target t = u - pull / c, on running moments of the layer's inputs:

    W <- W - rate * (pull' x / n + 2 rho W) (c (gram + d I) + 2 rho I)^-1,   with momentum
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn.base import Activation, Affine
from liftednn.blocks.metric import Metric
from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import Layer, LiftedNetwork, Weights

__all__ = ["Answer", "Descent", "answer", "curvatures", "descent_refusal", "reach_of", "recursion"]

# The share of its size by which a step of rate 1 may move a layer's pre-activations.
_TRUST = 0.3
# A row this many times farther off than the mean one, in squares, counts for less.
_REACH = 10.0
# A layer that feels less than this share of the loss's curvature feels nothing, nor does a unit beside one that feels so much more.
_FELT = 1e-10


class Answer(NamedTuple):
    """What a batch says.

    forward          states of the recursion (X_0, ..., X_L)
    preactivations   u_0, ..., u_L of the recursion
    states           states after the X-step (X_1, ..., X_L)
    pulls            lam grad_u D of every layer, or of its robust form
    levers           for a layer whose rows lie in a box, the gradient in how far its pre-activations reach; None for the others
    """

    forward: list[Tensor]
    preactivations: list[Tensor]
    states: list[Tensor]
    pulls: list[Tensor]
    levers: Sequence[Tensor | None] = ()


def descent_refusal(network: LiftedNetwork) -> str:
    """Why mini-batch descent cannot train a network; empty if it can."""
    for place, layer in enumerate(network.layers):
        if layer.divergence.curvature == torch.inf:
            return (
                f"layer {place}: {layer.divergence!r} has no finite curvature, and mini-batch steps need one: "
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

    terms   the robust terms of layers whose rows are uncertain; without them the layers count as if they were not
    """
    forward, preactivations = recursion(network, weights, x)
    last, term = network.layers[-1], terms[-1] if terms else None
    if term is not None:
        pull, lever = term.pull(weights[-1].w, preactivations[-1], y)
    else:
        pull, lever = last.divergence.grad(preactivations[-1], y), None
        pull = last.lam * pull if last.lam != 1 else pull
    if row_weights is not None:
        pull.mul_(row_weights[:, None])
        lever = None if lever is None else lever * row_weights[:, None]
    states, pulls, levers = _backward(network, weights, preactivations, pull, terms)
    return Answer(forward, preactivations, states, pulls, [*levers, lever])


def curvatures(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    probes: Tensor,
    counts: Tensor | None = None,
    y: Tensor | None = None,
) -> list[Tensor]:
    """c of every layer, the mean over rows, and over units that feel any, of the curvature in u of what comes after, as 0-dim tensors.
    That of the loss is its bound, or with responses y what it meets there.

    Probes (m, n, outputs) of the loss's curvature, random signs say, are sent backward as pulls; the mean square that arrives is the
    mean diagonal of J' (c_loss I) J, J the Jacobian from u to the scores. Where nothing arrives, as below a head of zeros, c is
    infinite: the layer had better wait.
    """
    if probes.ndim != 3 or not len(probes) or probes.shape[1:] != preactivations[-1].shape:
        n, outputs = preactivations[-1].shape
        raise ValueError(
            f"probes have shape {tuple(probes.shape)}: give (m, {n}, {outputs}), m >= 1 probes of the network's scores"
        )
    met = network.loss.curvature if y is None else network.loss.curvature_met(preactivations[-1], y, counts)
    top = network.layers[-1].lam * met
    arrived = [_backward(network, weights, preactivations, probe * top**0.5)[1] for probe in probes]
    if any(activation.joint for activation in network.hidden):  # these pull even where the states obey the recursion
        rest = _backward(network, weights, preactivations, torch.zeros_like(probes[0]))[1]
        arrived = [[pull - still for pull, still in zip(pulls, rest, strict=True)] for pulls in arrived]
    found = [
        torch.stack([_mean_square(pull, counts) for pull in pulls]).mean() / _felt(pulls)
        for pulls in zip(*arrived, strict=True)
    ]
    limits = [layer.lam * layer.divergence.curvature for layer in network.layers]
    found = [torch.where(c < _FELT * top, torch.inf, c) for c in found]
    bounded = [torch.where(c.isinf(), c, c.clamp(max=limit)) for c, limit in zip(found, limits, strict=True)]
    return [*bounded[:-1], probes.new_full((), top)]


def _felt(pulls: Sequence[Tensor]) -> Tensor:
    """The share of units that a pull arrives at on any row. Those that have died must not lower a mean: steps are as long as it is
    small, and longer ones let more units die."""
    arrived = torch.stack([pull.square().sum(0) for pull in pulls]).sum(0)
    return torch.where(arrived.max() > 0, (arrived > _FELT * arrived.max()).to(arrived).mean(), 1.0)


def reach_of(x: Tensor, counts: Tensor | None) -> Tensor | None:
    """The squared norm beyond which a row of whitened inputs is far off; None where all are 0."""
    reach = _REACH * x.shape[1] * _mean_square(x, counts)
    return reach if float(reach) > 0 else None


def _mean_square(a: Tensor, counts: Tensor | None) -> Tensor:
    """Over all entries, each row counting as `counts` (n,) says."""
    return a.square().mean() if counts is None else (counts @ a.square().mean(1)) / counts.sum()


def recursion(network: LiftedNetwork, weights: Weights, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """States (X_0, ..., X_L) and pre-activations (u_0, ..., u_L) of the forward pass."""
    states, preactivations = [x], []
    for place, layer in enumerate(network.layers):
        preactivations.append(network.preactivation(place, weights, states[-1]))
        if place + 1 < len(network.layers):
            states.append(layer.divergence(preactivations[-1]))
    return states, preactivations


def _backward(
    network: LiftedNetwork,
    weights: Weights,
    preactivations: list[Tensor],
    pull: Tensor,
    terms: Sequence[RobustTerm | None] = (),
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    states: list[Tensor] = []
    levers: list[Tensor | None] = []
    pulls = [pull]
    for place in range(len(network.layers) - 1, 0, -1):
        layer, u = network.layers[place - 1], preactivations[place - 1]
        assert isinstance(layer.divergence, Activation)
        down = network.layers[place].operator.adjoint(pulls[0], weights[place])
        down.div_(layer.lam)
        term = terms[place - 1] if terms else None
        lever: Tensor | None = None
        if term is not None:
            z, pull, lever = term.answer(weights[place - 1].w, u, down)
        else:
            z = layer.divergence.tilted(u, down)
            pull = layer.divergence.grad(u, z).mul_(layer.lam)
        states, pulls, levers = [z, *states], [pull, *pulls], [lever, *levers]
    return states, pulls, levers


def _term_of(layer: Layer, w: Tensor) -> RobustTerm | None:
    """For weights like w; None where the layer has no uncertainty."""
    kind = layer.uncertainty
    return None if kind is None else kind.batch_term(layer.divergence, layer.lam, w)


class Descent:
    """The weights of a network under mini-batch descent, updated in place; they are views of one vector, as is their velocity.

    reach   rows of whitened inputs with a squared norm beyond it count for less, in proportion: one far-off row would otherwise move
            the weights by more than its own residual
    """

    def __init__(
        self,
        network: LiftedNetwork,
        weights: Weights,
        metrics: list[Metric],
        momentum: float,
        reach: Tensor | None = None,
    ) -> None:
        self.network, self.metrics, self.momentum, self.reach = network, metrics, momentum, reach
        self.shapes = [part.shape for pair in weights for part in pair]
        self.values = torch.cat([part.reshape(-1) for pair in weights for part in pair])
        self.velocity = torch.zeros_like(self.values)
        self.rate = self.values.new_zeros(())
        self.weights = self._views(self.values)
        self.terms = [_term_of(layer, w) for layer, (w, _) in zip(network.layers, self.weights, strict=True)]
        self.proxed = [place for place, m in enumerate(metrics) if m.layer.penalty.ridge is None and m.free[0]]

    def _views(self, flat: Tensor) -> list[Affine]:
        """Weights that share their memory with a vector."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes])
        views = [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return [Affine(w, b) for w, b in zip(views[::2], views[1::2], strict=True)]

    def step(self, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Tensor:
        """Nesterov's momentum on the preconditioned direction, all layers at once; row i counts `counts[i]` times. Returns the scores
        before the step."""
        seen = self.see(x, y, counts)
        moves: list[Tensor] = []
        for place, metric in enumerate(self.metrics):
            rows = self.network.layers[place].operator.unfold(seen.forward[place])
            moves += metric.direction(self.weights[place], rows, seen.pulls[place], self._push(place, seen))
        move = torch.cat([part.reshape(-1) for part in moves])
        before = self._views(self.values.clone()) if self.proxed else []
        self.velocity.mul_(self.momentum).addcmul_(move, self.rate, value=-1)
        self.values.add_(self.velocity, alpha=self.momentum).addcmul_(move, self.rate, value=-1)
        for place in self.proxed:
            self._prox(place, before[place].w)
        return seen.preactivations[-1]

    def see(self, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Answer:
        """The answer of a batch: each row's states are its own affair, and its pulls then count as often as it does."""
        seen = answer(self.network, self.weights, x, y, self._row_weights(x), self.terms)
        if counts is None:
            return seen
        levers = [None if lever is None else lever * counts[:, None] for lever in seen.levers]
        return seen._replace(pulls=[pull * counts[:, None] for pull in seen.pulls], levers=levers)

    def _push(self, place: int, seen: Answer) -> Tensor | None:
        term = self.terms[place]
        return None if term is None else term.push(self.weights[place].w, seen.levers[place])

    def _prox(self, place: int, before: Tensor) -> None:
        """The penalty's prox, and the velocity that the weights then have."""
        metric, w = self.metrics[place], self.weights[place].w
        reach = metric.inverse.diagonal().mean() if metric.inverse.ndim == 2 else metric.inverse
        step = (1 + self.momentum) * float(self.rate * reach)  # as far as the gradient has gone in this step
        w.copy_(metric.layer.penalty.prox(w, step))
        self._views(self.velocity)[place].w.copy_(w - before)

    def let_go(self, x: Tensor) -> None:
        """Weigh no rows, if all that will come are x and none of them is out of reach."""
        if self.reach is not None and bool((x.square().sum(1) <= self.reach).all()):
            self.reach = None

    def _row_weights(self, x: Tensor) -> Tensor | None:
        return None if self.reach is None else (self.reach / x.square().sum(1)).clamp_(max=1)

    def refresh(self, x: Tensor, y: Tensor, probes: Tensor, counts: Tensor | None = None) -> None:
        """Renew every layer's geometry from a batch; `probes` as for `curvatures`.

        Steps are shortened where one of rate 1 would move the layer's pre-activations by more than a share of their size: the gates
        of a ReLU then no longer are what the curvature was measured with.
        """
        seen = self.see(x, y, counts)
        found = curvatures(self.network, self.weights, seen.preactivations, probes, counts, y)
        for place, term in enumerate(self.terms):
            if term is not None:
                z = [*seen.states, y][place]
                term.renew(self.weights[place].w, seen.preactivations[place], z, seen.levers[place], counts)
        if self.terms[-1] is not None:
            found = [c / self.terms[-1].share for c in found]  # to all layers the loss counts 1 / share times
        for place, (metric, curvature) in enumerate(zip(self.metrics, found, strict=True)):
            operator = self.network.layers[place].operator
            rows = operator.unfold(seen.forward[place])
            metric.absorb(rows, counts)
            term = self.terms[place]
            metric.refresh(curvature, None if term is None else term.stiffness())
            move = Affine(*metric.direction(self.weights[place], rows, seen.pulls[place], self._push(place, seen)))
            motion = _mean_square(operator.forward(seen.forward[place], move), counts)
            excess = float((motion / _mean_square(seen.preactivations[place], counts)).sqrt()) / _TRUST
            if 1 < excess < torch.inf:  # where there is no size yet, none is to be kept
                metric.shorten(excess)

    def restore(self, values: Tensor) -> None:
        """Back to earlier values, at rest."""
        self.values.copy_(values)
        self.velocity.zero_()

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name."""
        named = {"values": self.values, "velocity": self.velocity, "rate": self.rate}
        if self.reach is not None:
            named["reach"] = self.reach
        for place, term in enumerate(self.terms):
            named |= {} if term is None else {f"{place}.{name}": part for name, part in term.state().items()}
        for place, metric in enumerate(self.metrics):
            named |= {f"{place}.{name}": part for name, part in metric.state().items()}
        return named

    def load(self, named: dict[str, Tensor]) -> None:
        """Take up a state that was saved; in place."""
        self.values.copy_(named["values"])
        self.velocity.copy_(named["velocity"])
        self.rate.copy_(named["rate"])
        self.reach = named["reach"].to(self.values) if "reach" in named else None
        for place, term in enumerate(self.terms):
            if term is not None:
                term.load({name: named[f"{place}.{name}"] for name in term.state()})
        for place, metric in enumerate(self.metrics):
            metric.load({name: named[f"{place}.{name}"] for name in metric.state()})
