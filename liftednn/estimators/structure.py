"""What the estimators do with activations, with penalties that shape the weights and with uncertain inputs: what was learned goes on, one
penalty for each layer, inputs that keep their units, units that go."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from liftednn import activations, penalties
from liftednn.base import Activation, Affine, Penalty, Uncertainty
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Array, Scaling
from liftednn.network import LiftedNetwork
from liftednn.robust.words import uncertainty_of

__all__ = ["Structured"]


class Structured:
    """The part of `Lifted` that knows of activations, penalties and uncertainty."""

    hidden_layer_sizes: int | Sequence[int]
    activation: str | Activation
    learn_activation: Literal["layer", "unit"] | None
    penalty: str | Penalty | Sequence[str | Penalty]
    divergence: str
    robust: float | str | Uncertainty | None
    network_: LiftedNetwork
    coefs_: list[Array]
    intercepts_: list[Array]
    _asked: Activation
    _inputs: Scaling

    def _activations(self, widths: list[int], goes_on: bool) -> list[Activation]:
        """One for each hidden layer: what the parameters ask for, or what the last fit has left where this one goes on from it. Other
        widths than then are refused with the weights."""
        name = "sigmoid" if self.activation == "logistic" else self.activation
        asked = activations.named(name, self.divergence) if isinstance(name, str) else name
        goes_on = goes_on and [layer.width for layer in self.network_.layers[:-1]] == widths
        chosen = self._left(asked) if goes_on else [asked] * len(widths)
        self._asked = asked
        return [activations.learnable(each) for each in chosen] if self.learn_activation else chosen

    def _left(self, asked: Activation) -> list[Activation]:
        """The activations of the last fit, if it was asked for the same. Otherwise new ones, if nothing was learned."""
        before = self.network_.hidden
        if asked == self._asked:
            return before
        if any(each != self._asked for each in before):
            raise ValueError(
                f"the last fit was asked for {self._asked!r} and has learned {before}; warm_start goes on with that, but now {asked!r} "
                "is asked for: give activation and divergence as they were, or fit anew with warm_start=False"
            )
        return [asked] * len(before)

    def _penalties(self) -> list[Penalty]:
        """One for each layer."""
        return penalties.one_each(self.penalty, len(np.atleast_1d(np.asarray(self.hidden_layer_sizes))) + 1)

    def _scaling(self, x: Rows, counts: Array | None) -> Scaling:
        """To mean 0 and variance 1, that of the feared noise included: a column that is mostly noise must not be blown up. Under an
        orthogonal first layer, say, columns are only shifted: `coefs_`, for X as it is given, must obey the constraint too."""
        if self.divergence == "euclidean":
            return x.scaling
        scaling, feared = Scaling.of(x, counts), uncertainty_of(self.robust)
        if self._penalties()[0].scale_sensitive:
            return scaling.shift
        if feared is None:
            return scaling
        return replace(scaling, scale=np.hypot(scaling.scale, feared.deviations(x.shape[1]).numpy()))

    def _uncertainty(self) -> Uncertainty | None:
        """Of the inputs, in the units that the trainer sees."""
        given = uncertainty_of(self.robust)
        return None if given is None else given.columns(torch.from_numpy(1 / self._inputs.scale))

    def _check_going_on(self, penalty: Penalty, scaling: Scaling, what: str) -> None:
        """What the last fit has scaled cannot go on under a penalty that looks at the size of weights."""
        if penalty.scale_sensitive and bool((scaling.scale != 1).any()):
            raise ValueError(
                f"warm_start and partial_fit go on with {what} as the last fit has scaled them, so coefs_ would not obey {penalty!r}: fit "
                "anew, or keep the penalty of the last fit"
            )

    def prune(self) -> Self:
        """A fitted copy without the hidden units that do not matter, as penalty="group" leaves some; the same feed-forward predictions.

        The lifted rule's may differ: to it a unit that gives a constant was a free state."""
        check_is_fitted(self)
        smaller = copy.copy(self)
        pairs = zip(self.coefs_, self.intercepts_, strict=True)
        weights = [Affine(torch.from_numpy(w.T), torch.from_numpy(b)) for w, b in pairs]
        smaller.network_, found = self.network_.prune(weights)
        smaller.coefs_, smaller.intercepts_ = [w.T.numpy() for w, _ in found], [b.numpy() for _, b in found]
        smaller.hidden_layer_sizes = tuple(len(b) for b in smaller.intercepts_[:-1])
        cut = zip(self.network_.layers, smaller.network_.layers, strict=True)
        if any(before.penalty is not after.penalty for before, after in cut):
            smaller.penalty = [layer.penalty for layer in smaller.network_.layers]
        return smaller
