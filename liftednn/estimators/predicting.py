"""How the estimators predict: new rows a few at a time, through the fitted network, by one of two rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from liftednn import predict
from liftednn.base import Affine
from liftednn.data.arrays import as_tensor
from liftednn.data.columns import Columns
from liftednn.estimators.columns import NO_RESPONSES, Known, read
from liftednn.estimators.rows import Rows, blocks
from liftednn.estimators.scaling import Array, Scaling
from liftednn.estimators.tails import CompressTails, Tails
from liftednn.modules import to_module
from liftednn.network import LiftedNetwork

__all__ = ["Predicting"]


class Predicting:
    """The part of `Lifted` for predictions."""

    prediction: Literal["feedforward", "lifted"]
    device: str | None
    network_: LiftedNetwork
    coefs_: list[Array]
    intercepts_: list[Array]
    _inputs: Scaling
    _known: Known | None
    _columns: Columns
    _tails: Tails

    def _weights(self, like: Tensor | None = None) -> list[Affine]:
        """The fitted weights, on the device of predictions, or with the dtype and device of `like`."""
        target = self.device or "cpu" if like is None else like
        pairs = zip(self.coefs_, self.intercepts_, strict=True)
        return [Affine(as_tensor(w.T, "coefs_").to(target), as_tensor(b, "intercepts_").to(target)) for w, b in pairs]

    def _blocks(self, x: ArrayLike) -> Iterator[Tensor]:
        """New rows, a few at a time, in the precision and on the device of the fitted network."""
        checked = read(self, x, NO_RESPONSES, self._known, reset=False)
        for part in blocks(checked.shape[0], self._inputs.width):
            rows = Rows.of(checked[part], str(self.coefs_[0].dtype), self._columns)
            yield replace(rows, tails=self._tails).tensor(self.device)

    def _scores(self, x: ArrayLike) -> Tensor:
        check_is_fitted(self)
        rule, weights = predict.lifted if self.prediction == "lifted" else predict.feedforward, self._weights()
        return torch.cat([rule(self.network_, weights, rows).cpu() for rows in self._blocks(x)])

    @property
    def _n_features_out(self) -> int:
        return len(self.coefs_[-1])

    def to_module(self) -> nn.Sequential:
        """The same network as a standard torch module; a classifier's gives logits."""
        check_is_fitted(self)
        module = to_module(self.network_, self._weights(torch.from_numpy(self.coefs_[0])))
        assert isinstance(module, nn.Sequential)  # the network is a chain
        compress = [CompressTails(self._tails, self.coefs_[0])] if self._tails else []
        return nn.Sequential(*compress, *module)
