"""What the estimators do with penalties that shape the weights: one for each layer, inputs that keep their units, units that go."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from liftednn import penalties
from liftednn.base import Affine, Penalty
from liftednn.estimators.scaling import Array, Scaling
from liftednn.network import LiftedNetwork

__all__ = ["Structured"]


class Structured:
    """The part of `Lifted` that knows of penalties."""

    hidden_layer_sizes: int | Sequence[int]
    penalty: str | Penalty | Sequence[str | Penalty]
    alpha: float | Literal["auto"]
    divergence: str
    network_: LiftedNetwork
    coefs_: list[Array]
    intercepts_: list[Array]

    def _penalised(self, network: LiftedNetwork) -> LiftedNetwork:
        return network.with_penalty(self.penalty, None if isinstance(self.alpha, str) else float(self.alpha))

    def _penalties(self) -> list[Penalty]:
        """One for each layer."""
        return penalties.one_each(self.penalty, len(np.atleast_1d(np.asarray(self.hidden_layer_sizes))) + 1)

    def _scaling(self, x: Array, counts: Array | None) -> Scaling:
        """Under an orthogonal first layer, say, columns are only shifted: `coefs_`, for X as it is given, must obey the constraint too."""
        if self.divergence == "euclidean":
            return Scaling.none(x.shape[1])
        scaling = Scaling.of(x, counts)
        return scaling.shift if self._penalties()[0].metric else scaling

    def prune(self) -> Self:
        """A fitted copy without the hidden units that do not matter, as penalty="group" leaves some; the same predictions."""
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
