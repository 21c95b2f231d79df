"""Learned activations in mini-batch training: the refit block, relaxed.

A batch's states lie close to the recursion, so that the minimiser theta' of the block, `Activation.refit` on them, lies close to theta:
it gives the direction of a step, but not its length. As for the weights, the length follows from the curvature of the loss. Along
d = theta' - theta the block gains  g = lam mean D_theta - lam mean D_theta',  so that its slope is -2 g, and the scores move by J d:

    theta <- theta + rate * 2 g / (c mean |J d|^2) * d,      c the curvature of the loss at its residuals

with g and c |J d|^2 as running means. Its fixed points are theta = refit(u, z), as the exact block does. Parameters are tensors that
are changed in place, so that a step recorded on a GPU sees them. They belong to the run: `as_tensors` copies what is given, `snapshot`
what is returned, and a layer without learned parameters is never written to.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.activations.scaled import in_float64
from liftednn.base import Activation
from liftednn.blocks import Granularities, granularities_of, parameters, with_activation
from liftednn.functional import within
from liftednn.network import LiftedNetwork
from liftednn.training.batch import XStep
from liftednn.training.descent import Descent

__all__ = ["Learner", "as_tensors", "named_parameters", "snapshot", "with_parameters"]

# Steps from one refit to the next: each costs about as much as a step.
_EVERY = 5
# The weight of the old value in a running mean.
_KEEP = 0.9
# The factor by which one step may change a parameter, and the relative change by which the effect on the scores is measured.
_TRUST, _PROBE = 1.25, 0.05


def as_tensors(network: LiftedNetwork, learned: Granularities, like: Tensor) -> LiftedNetwork:
    """The network with learned parameters as new tensors: one entry per unit, or the shape that was given; 0-dim for a number."""
    for number, per in enumerate(granularities_of(network, learned)):
        activation = network.hidden[number]
        if per is None:
            continue
        if not activation.summed:
            raise ValueError(
                f"layer {number}: the bounds of {activation!r} are the extreme states of all rows, which a batch does not contain: use "
                "BCD, or learn a scale, Scaled(activation)"
            )
        if len(activation.learned) != 1:
            raise ValueError(f"layer {number}: batches learn one parameter, and {activation!r} has several: use BCD")
        shape = (network.layers[number].operator.out_width,) if per == "unit" else ()
        fresh = {name: _tensor(given, shape, like) for name, given in parameters(activation).items()}
        network = with_activation(network, number, replace(activation, **fresh))  # type: ignore[type-var]
    return network


def _tensor(given: Tensor | float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    entries = torch.as_tensor(given, dtype=like.dtype, device=like.device)
    return entries.expand(shape).clone() if shape else entries.clone()


def snapshot(network: LiftedNetwork, device: str | None = None) -> LiftedNetwork:
    """The network with copies of its learned parameters, on a device if given, that training does not change; 0-dim ones as numbers."""
    for number, activation in enumerate(network.hidden):
        tensors = {name: given for name, given in parameters(activation).items() if isinstance(given, Tensor)}
        if tensors:
            kept = {
                name: given.to(device or given.device, copy=True) if given.ndim else float(given)
                for name, given in tensors.items()
            }
            network = with_activation(network, number, replace(activation, **kept))  # type: ignore[type-var]
    return network


class Learner:
    """Moves the learned parameters of a descent's network, every few steps."""

    def __init__(self, descent: Descent, learned: Granularities) -> None:
        self.descent, self.granularities = descent, granularities_of(descent.network, learned)
        self.means = descent.values.new_zeros(len(self.granularities), 2, dtype=torch.float64)  # g and c |J d|^2
        self.good = self._kept()

    def step(self, x: Tensor, y: Tensor, row_weights: Tensor | None, taken: int) -> None:
        """Every few steps (`taken` so far), move every layer's parameters towards the refit on a batch."""
        if taken % _EVERY or not any(self.granularities):
            return
        step = self.descent.gradients(x, y, row_weights).x_step
        assert step is not None
        for number, per in enumerate(self.granularities):
            if per is not None:
                self._move(number, step, y, row_weights)

    def _move(self, number: int, step: XStep, y: Tensor, row_weights: Tensor | None) -> None:
        now, per = self.descent.network.hidden[number], self.granularities[number] or "layer"
        u, z = step.preactivations[number].double(), in_float64(now, step.states[number])
        found = now.refit(u, z, row_weights, per)
        (given,), (target,) = parameters(now).values(), parameters(found).values()
        assert isinstance(given, Tensor)
        relative = (torch.as_tensor(target, dtype=u.dtype, device=u.device) - given) / given
        largest = relative.abs().max()
        if not bool(largest > 0):
            return
        scale = _PROBE / largest
        probe = replace(now, **{now.learned[0]: given * (1 + scale * relative).to(given)})  # type: ignore[type-var]
        lam, change = (
            self.descent.network.layers[number].lam,
            self._score_change(number, step, probe, y, row_weights) / scale**2,
        )
        gain = lam * (reduce.mean(now.value(u, z), row_weights) - reduce.mean(found.value(u, z), row_weights))
        fresh = torch.stack([gain, change])
        if not bool(fresh.isfinite().all()):
            return  # the run diverges, and the trainer will roll it back
        self.means[number].mul_(_KEEP).add_(fresh, alpha=1 - _KEEP)
        gain, change = self.means[number].clamp(min=torch.finfo(torch.float64).tiny)
        factor = 1 + self.descent.rate * _EVERY * 2 * gain / change * relative
        given.copy_(within(given * factor.clamp(1 / _TRUST, _TRUST).to(given), given, now.limits))

    def _score_change(
        self, number: int, step: XStep, probe: Activation, y: Tensor, row_weights: Tensor | None
    ) -> Tensor:
        """c mean |change of the scores|^2 where a layer has `probe` as its activation."""
        network, weights, states, last = (
            self.descent.network,
            self.descent.weights,
            list(step.forward),
            len(step.forward) - 1,
        )
        changed = {number + 1}
        states[number + 1] = probe(step.preactivations[number])
        for later in range(number + 1, last):
            if changed & set(network.connections.reads[later]):
                states[later + 1] = network.hidden[later](network.preactivation(later, weights, states))
                changed.add(later + 1)
        moved = network.preactivation(last, weights, states) - step.preactivations[-1]
        curvature = network.loss.effective_curvature(step.preactivations[-1], y, row_weights)
        return network.layers[-1].lam * curvature * reduce.mean(moved.double().square().sum(1), row_weights)

    def state(self) -> dict[str, Tensor]:
        """All that the next refit depends on, by name."""
        return self._now() | {f"good.{name}": tensor for name, tensor in self.good.items()}

    def _now(self) -> dict[str, Tensor]:
        hidden = [(number, phi) for number, phi in enumerate(self.descent.network.hidden) if self.granularities[number]]
        named = {f"phi.{number}.{name}": part for number, phi in hidden for name, part in parameters(phi).items()}
        tensors = {name: part for name, part in named.items() if isinstance(part, Tensor)}
        return tensors and {"phi.means": self.means, **tensors}

    def _kept(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._now().items()}

    def keep(self) -> None:
        """Keep a copy of the parameters, to roll back to."""
        self.good = self._kept()

    def restore(self) -> None:
        """Set the parameters to those last kept, in place."""
        for name, tensor in self._now().items():
            tensor.copy_(self.good[name])

    def load(self, named: dict[str, Tensor]) -> None:
        """Load what `state` returned, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(named[name])


def named_parameters(network: LiftedNetwork, like: LiftedNetwork) -> dict[str, Tensor]:
    """The parameters that are tensors in `like`, with their values in `network`, by name."""
    return {
        f"phi.{number}.{name}": torch.as_tensor(
            getattr(network.hidden[number], name), dtype=given.dtype, device=given.device
        )
        for number, activation in enumerate(like.hidden)
        for name, given in parameters(activation).items()
        if isinstance(given, Tensor)
    }


def with_parameters(network: LiftedNetwork, named: dict[str, Tensor], prefix: str = "") -> LiftedNetwork:
    """A snapshot of the network, with the values that `named_parameters` gave."""
    values = {name: named[prefix + name].to(given) for name, given in named_parameters(network, network).items()}
    for number, activation in enumerate(network.hidden):
        own = {name: values[key] for name in activation.learned if (key := f"phi.{number}.{name}") in values}
        if own:
            network = with_activation(network, number, replace(activation, **own))  # type: ignore[type-var]
    return snapshot(network)
