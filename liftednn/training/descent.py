"""One step on a batch: the X-step once for every layer (batch.py), then the W-step once.

With c the curvature in u of what comes after a layer, a step on W is one step of the ridge regression with the quadratic bound
(c/2)|u - t|^2, pseudo-target t = u - g / c with g the gradient in u, on running moments of the layer's inputs:

    W <- W - rate * (g' x / n + 2 rho W) (c (gram + d I) + 2 rho I)^-1,   with momentum

Hidden layers of networks with convolutions take the steps of spectral.py instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Operator
from liftednn.blocks.regressions import some_rows
from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import LiftedNetwork, Weights
from liftednn.runtime.graphs import InOrder, work_on
from liftednn.training.geometry import Geometry
from liftednn.training.model import BatchGradients, LiftedModel, Model
from liftednn.training.spectral import LEAST_SIZE, SPECTRAL_TRUST, SpectralMetric

__all__ = ["EARLY", "ONE_BATCH", "Descent", "norm_limit_of", "refresh_due", "trust_of"]

# Steps before which the geometry is refreshed besides every `refresh`-th: the first ones change the network most.
EARLY = (0, 2, 5, 10, 20)
# The same for spectral steps, which need no curvature.
_SPECTRAL_EARLY = (0, 5, 20)
# Steps from one refresh to the next: the first, or where they double after so many steps; with curvatures, after this many times as many.
_DOUBLED, _SLOWLY = (60, 120, 240), 4
# By how much more a single batch may move pre-activations than the one that the step was shortened for.
ONE_BATCH = 2.0
_TRUST = 0.3
# Averages of weights are mostly over the latest one of so many parts of the steps.
_PARTS = 9
# A row whose squared norm is more than this many times the mean one gets a smaller weight.
_NORM_LIMIT = 10.0

# The moves of a w and its intercepts, and the length for a rate of 1.
Direction = tuple[list[Tensor], Tensor | float]


def trust_of(layers: int) -> float:
    """The fraction of its size by which a step of rate 1 may move a layer's pre-activations: at most 1 over the number of layers, since
    all of them move at once."""
    return min(_TRUST, 1 / max(layers, 1))


def refresh_due(taken: int, refreshed: int, every: int | None, spectral: bool, learns_rho: bool = False) -> bool:
    """Whether the geometry is refreshed after that many steps.

    refreshed    the number of steps before the last refresh, after which another one soon is left out
    every        the steps from one refresh to the next; None for 60, and for up to 240 later in a run with spectral steps only, or in one
                 that learns rho, whose updates refresh it too
    """
    if taken in (_SPECTRAL_EARLY if spectral else EARLY):
        return True
    if every is None:
        after = 1 if spectral else _SLOWLY if learns_rho else math.inf
        every = next((each for each in _DOUBLED if taken <= after * each), _DOUBLED[-1])
    return taken % every == 0 and 2 * (taken - refreshed) >= min(every, taken)


def norm_limit_of(x: Tensor, row_weights: Tensor | None) -> Tensor | None:
    """The squared norm beyond which a row of whitened inputs (n, p) gets a smaller weight; None where all are 0."""
    norm_limit = _NORM_LIMIT * x.shape[1] * reduce.mean_square(x, row_weights)
    return norm_limit if float(norm_limit) > 0 else None


def _subtract(velocities: list[Tensor], moves: list[Tensor], scale: Tensor | float) -> None:
    """Subtract the moves times a number, or a 0-dim tensor."""
    if isinstance(scale, Tensor):
        torch._foreach_sub_(velocities, torch._foreach_mul(moves, scale))
    else:
        torch._foreach_add_(velocities, moves, alpha=-scale)


class Descent:
    """The weights of a network under mini-batch descent, updated in place; they are views of one vector, as is their velocity. A w that
    layers share is in it once.

    Spectral steps are as long near a minimum as elsewhere, so weights oscillate until the rate has fallen. Their averages over steps, of
    which later ones count more (Shamir and Zhang 2013), predict better until then.

    geometries       one for every w, in the order of the layers that own it
    norm_limit       rows of whitened inputs with a squared norm above it get a smaller weight, in proportion: one outlier would
                     otherwise move the weights by more than its own residual
    model            gives rows, gradients and curvatures; None for the lifted network itself
    spectral_trust   the fraction of their size by which a spectral step of rate 1 moves a layer's outputs
    """

    def __init__(
        self,
        network: LiftedNetwork,
        weights: Weights,
        geometries: list[Geometry],
        momentum: float,
        norm_limit: Tensor | None = None,
        model: Model | None = None,
        spectral_trust: float = SPECTRAL_TRUST,
    ) -> None:
        self.network, self.momentum, self.norm_limit = network, momentum, norm_limit
        members = [network.connections.sharing(owner) for owner in sorted(set(network.connections.owners))]
        # Those with spectral steps last, so that the others are one part of the vector.
        order = sorted(range(len(members)), key=lambda at: geometries[at].spectral)
        self.geometries, self.members = [geometries[at] for at in order], [members[at] for at in order]
        parts = [
            part for layers in self.members for part in (weights[layers[0]].w, *(weights[each].b for each in layers))
        ]
        self.shapes = [part.shape for part in parts]
        self.values = torch.cat([part.reshape(-1) for part in parts])
        self.velocity = torch.zeros_like(self.values)
        self.velocities, self.parts = self._parts(self.velocity), self._parts(self.values)
        self.nonspectral = [at for at, geometry in enumerate(self.geometries) if not geometry.spectral]
        last, others = len(network.layers) - 1, [layer for at in self.nonspectral for layer in self.members[at]]
        self.spectral = others == [last] and last > 0  # all layers but the last, and at least one, take spectral steps
        size = sum(part.numel() for at in self.nonspectral for part in self.parts[at])
        self.nonspectral_parts = self.values[:size], self.velocity[:size]
        # Spectral steps need no curvature: a layer that nothing reads has no gradient and stays. A jointly convex divergence has one even
        # there, and only its curvature of 0 says that the layer must stay.
        self.probed = not self.spectral or any(activation.joint for activation in network.hidden)
        self.rate, self.newest = self.values.new_zeros(()), self.values.new_ones(())  # of the next step
        self.trust, self.spectral_trust = trust_of(len(network.layers)), spectral_trust
        self.weights = self.views(self.values)
        self.model: Model = LiftedModel(network, self.weights) if model is None else model
        self.proxed = [at for at, geometry in enumerate(self.geometries) if geometry.proxed]
        self.averaged = any(geometry.spectral for geometry in geometries) and not self.proxed  # averages are not sparse
        self.average = self.values.clone() if self.averaged else self.values
        self.averages = self.views(self.average)

    @property
    def terms(self) -> Sequence[RobustTerm | None]:
        """The robust terms, None for layers without uncertain inputs."""
        return self.model.terms if isinstance(self.model, LiftedModel) else ()

    def _parts(self, flat: Tensor) -> list[list[Tensor]]:
        """For every w, itself and the intercepts of the layers that have it; they share their memory with a vector."""
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes])
        views = iter([piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)])
        return [[next(views) for _ in range(1 + len(layers))] for layers in self.members]

    def views(self, flat: Tensor) -> list[Affine]:
        """Weights that share their memory with a vector."""
        found: dict[int, Affine] = {}
        for layers, (w, *intercepts) in zip(self.members, self._parts(flat), strict=True):
            for each, b in zip(layers, intercepts, strict=True):
                found[each] = Affine(w.T if self.network.layers[each].transposed else w, b)
        return [found[number] for number in range(len(found))]

    def begin_step(self, rate: float, taken: int) -> None:
        """Set the rate of the next step, and how much it counts in the averages, from the number of steps taken."""
        self.rate.fill_(rate)
        if self.averaged:
            self.newest.fill_(_PARTS / (taken + _PARTS))

    def step(self, x: Tensor, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """Nesterov's momentum on the preconditioned direction, all layers at once; row i has weight `row_weights[i]`. Returns the scores
        before the step."""
        rate = self.rate if self.rate.is_cuda else float(self.rate)
        before = [w.clone() for w, *_ in self.parts] if self.proxed else []
        with work_on(self.values.device) as work:
            batch = self._gradients(x, y, row_weights, work)
            found = [work.run(self.members[at], self._direction, at, batch) for at in self.nonspectral]
            for at in range(len(found), len(self.members)):
                work.run(self.members[at], self._spectral_step, at, batch, rate)
        # With v the old velocity and v' the new one, the step m v' - rate move is (1 + m) v' - m v.
        values, velocity = self.nonspectral_parts
        values.sub_(velocity.mul_(self.momentum))
        for velocities, (moves, length) in zip(self.velocities, found, strict=False):
            _subtract(velocities, moves, rate * length)
        values.add_(velocity, alpha=1 + self.momentum)
        for at in self.proxed:
            self._prox(at, before[at])
        if self.averaged:
            self.average.lerp_(self.values, self.newest if self.newest.is_cuda else float(self.newest))
        return batch.scores

    def _spectral_step(self, at: int, batch: BatchGradients, rate: Tensor | float) -> Direction:
        """A whole step on the w of a layer and its intercept, and its direction and length. Nesterov's momentum is on the gradients, which
        are the velocities here. A layer whose gradient is all 0 in this batch stays: old averages would move it as far as new ones, and
        without end."""
        (layer,), samples = self.members[at], batch.scores.shape[0]
        w, b = batch.w_gradients[layer], batch.b_gradients[layer]
        reached = w.any() | b.any()
        for velocity, gradient in zip(self.velocities[at], (w, b), strict=True):
            velocity.mul_(self.momentum).add_(gradient)
            gradient.add_(velocity, alpha=self.momentum).mul_(1 - self.momentum)
        moves, length = self.geometries[at].direction(self.parts[at][0], [w], [b], samples)
        length = length * reached / (1 - self.momentum)
        length = length if length.is_cuda else float(length)
        _subtract(self.parts[at], moves, rate * length)
        return moves, length

    def gradients(self, x: Tensor, y: Tensor, row_weights: Tensor | None = None) -> BatchGradients:
        """Rows and gradients of every layer on a batch."""
        with work_on(self.values.device) as work:
            return self._gradients(x, y, row_weights, work)

    def _gradients(self, x: Tensor, y: Tensor, row_weights: Tensor | None, work: InOrder) -> BatchGradients:
        return self.model.gradients(self.weights, x, y, row_weights, self._outlier_weights(x), work)

    def _direction(self, at: int, batch: BatchGradients) -> Direction:
        layers, samples = self.members[at], batch.scores.shape[0]  # len() of a tensor takes longer
        w_gradients, b_gradients = (
            [batch.w_gradients[each] for each in layers],
            [batch.b_gradients[each] for each in layers],
        )
        return self.geometries[at].direction(self.weights[layers[0]].w, w_gradients, b_gradients, samples)

    def _prox(self, at: int, before: Tensor) -> None:
        """The penalty's prox, and the velocity that the weights then have. Intercepts keep the mean of the outputs: where a constraint
        undoes the step of w, they would go on to move against it."""
        geometry, w = self.geometries[at], self.weights[self.members[at][0]].w
        step = (1 + self.momentum) * float(self.rate) * geometry.step_length()  # the length of this gradient step
        found = geometry.layer.penalty_prox(w, step)
        lost = geometry.mean_outputs(w - found)
        w.copy_(found)
        self.velocities[at][0].copy_(w - before)
        for b, velocity, shift in zip(self.parts[at][1:], self.velocities[at][1:], lost, strict=True):
            b.add_(shift)
            velocity.add_(shift)

    def drop_outlier_weights(self, x: Tensor) -> None:
        """Give all rows the same weight from now on, if all rows of x, the whole data, lie within `norm_limit`."""
        if self.norm_limit is not None and bool((x.square().sum(1) <= self.norm_limit).all()):
            self.norm_limit = None

    def _outlier_weights(self, x: Tensor) -> Tensor | None:
        return None if self.norm_limit is None else (self.norm_limit / torch.linalg.vecdot(x, x)).clamp_(max=1)

    def refresh(
        self,
        batch: BatchGradients,
        y: Tensor,
        probes: Tensor,
        row_weights: Tensor | None = None,
        early: bool = False,
    ) -> None:
        """Update every layer's geometry from a batch, with its `gradients` at the present weights; `probes` as for `curvatures`.

        early   in the first steps: while the head leaves 0, gradients are far too small beside that of the penalty, and spectral steps
                leave it out

        Steps are shortened where one of rate 1 would move the layer's pre-activations by more than a fraction of their size: the gates
        of a ReLU would then differ from those that the curvature was measured with. Outliers count for these sizes as little as they do for
        gradients: one alone could make them so large that the other rows might move by many times their own.
        """
        found, extra = self.model.probe(self.weights, batch, y, probes if self.probed else None, row_weights)
        outliers = self._outlier_weights(batch.inputs[0][0])
        counted = row_weights if outliers is None else outliers if row_weights is None else outliers * row_weights
        for at, (layers, geometry) in enumerate(zip(self.members, self.geometries, strict=True)):
            rows = [some_rows(self._operator(each), batch.inputs[each], row_weights) for each in layers]
            geometry.add_rows([x for x, _ in rows], [weights for _, weights in rows])
            geometry.refresh([found[each] for each in layers], extra[layers[0]])
            if isinstance(geometry, SpectralMetric):
                geometry.limit(self._spectral_limit(layers[0], batch, counted))
                if early:
                    geometry.penalty.zero_()
                continue
            geometry.limit(torch.inf)
            moves, length = self._direction(at, batch)
            w, *intercepts = (length * move for move in moves)
            sizes = [float(reduce.mean_square(batch.preactivations[each], counted)) for each in layers]
            motions = [self._motion(each, w, b, batch, counted) for each, b in zip(layers, intercepts, strict=True)]
            excess = [motion / size for motion, size in zip(motions, sizes, strict=True) if size > 0]
            if 1 < (factor := math.sqrt(max(excess, default=0.0)) / self.trust) < torch.inf:
                geometry.shorten(factor)
            # A batch with a rare row, which this one may lack, has a far larger gradient.
            outputs = self._operator(layers[0]).weight_shape[-2]
            geometry.limit(outputs * (ONE_BATCH * self.trust) ** 2 * sizes[0] or torch.inf)

    def _spectral_limit(self, number: int, batch: BatchGradients, row_weights: Tensor | None) -> float:
        """The mean square by which a spectral step of rate 1 moves the outputs of a layer, summed over outputs."""
        size = float(reduce.mean_square(batch.preactivations[number], row_weights))
        if not size:  # all weights are 0: not in general, since weights of inputs in large units are small
            size = LEAST_SIZE**2 * float(reduce.mean_square(batch.inputs[number][0], row_weights))
        return self._operator(number).weight_shape[-2] * self.spectral_trust**2 * size

    def _operator(self, number: int) -> Operator:
        return self.network.layers[number].operator

    def _motion(self, number: int, w: Tensor, b: Tensor, batch: BatchGradients, row_weights: Tensor | None) -> float:
        """The mean square by which a move of (w, b) moves a layer's pre-activations."""
        w = w.T if self.network.layers[number].transposed else w
        operator, xs = self._operator(number), batch.inputs[number]
        moved = operator.forward(xs, Affine(w, b))
        return float(reduce.mean_square(moved - operator.offset(xs) if operator.skips else moved, row_weights))

    @property
    def finite(self) -> bool:
        """Whether the weights, and the sum of their squares, are finite."""
        return math.isfinite(float(torch.dot(self.values, self.values)))

    def restore(self, values: Tensor) -> None:
        """Set the weights to earlier values, with zero velocity."""
        self.values.copy_(values)
        self.velocity.zero_()
        self.forget()

    def forget(self) -> None:
        """Set the averages to the weights, as at the end of a run whose rate has fallen, where weights are steady."""
        if self.averaged:
            self.average.copy_(self.values)

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name."""
        named = {"values": self.values, "velocity": self.velocity, "rate": self.rate} | self.model.state()
        if self.averaged:
            named["average"] = self.average
        if self.norm_limit is not None:
            named["norm_limit"] = self.norm_limit
        for layers, geometry in zip(self.members, self.geometries, strict=True):
            named |= {f"{layers[0]}.{name}": part for name, part in geometry.state().items()}
        return named

    def load(self, named: dict[str, Tensor]) -> None:
        """Load what `state` returned, in place."""
        self.values.copy_(named["values"])
        self.velocity.copy_(named["velocity"])
        self.rate.copy_(named["rate"])
        if self.averaged:
            self.average.copy_(named["average"])
        self.norm_limit = named["norm_limit"].to(self.values) if "norm_limit" in named else None
        self.model.load(named)
        for layers, geometry in zip(self.members, self.geometries, strict=True):
            geometry.load({name: named[f"{layers[0]}.{name}"] for name in geometry.state()})
