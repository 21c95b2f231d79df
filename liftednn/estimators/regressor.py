"""The regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from liftednn.base import Affine
from liftednn.estimators.common import Array, Lifted, dtypes

__all__ = ["LiftedRegressor"]


class LiftedRegressor(RegressorMixin, Lifted):  # type: ignore[misc]
    """A neural network regressor trained by lifted blocks; nothing needs tuning.

    Responses, one or several, are standardised inside; `coefs_` and `intercepts_` give them in their own units, while losses and
    `alpha` are in standardised ones.

    Parameters and fitted attributes are those of LiftedClassifier, but for
    ----------
    loss         "auto": the squared error; or a Loss whose responses are real, which are then not standardised
    prediction   "feedforward", or "lifted": the response of smallest energy (sec. 5.2)
    """

    task_loss = "squared"

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Train on rows X (n, features) and responses y, (n,) or (n, outputs); row i counts `sample_weight[i]` times."""
        self._check_parameters()
        x, responses = validate_data(self, X, y, dtype=dtypes(self.dtype), multi_output=True, y_numeric=True)
        if not (self.warm_start and hasattr(self, "network_")):
            self._standardise(responses, self._counts(sample_weight, x))
        self._fit(x, self._encode(responses, x), sample_weight)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """One pass over some more rows; responses are standardised as those of the first call."""
        self._check_parameters()
        first = not hasattr(self, "network_")
        x, responses = validate_data(
            self, X, y, dtype=dtypes(self.dtype), multi_output=True, y_numeric=True, reset=first
        )
        if first:
            self._standardise(responses, self._counts(sample_weight, x))
        self._fit(x, self._encode(responses, x), sample_weight, passes=1)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _standardise(self, y: Array, counts: Array | None) -> None:
        """Keep the mean and the spread of the responses."""
        columns = y.reshape(len(y), -1).astype(np.float64)
        self.n_outputs_, self._flat = columns.shape[1], y.ndim == 1
        self._mean, self._scale = np.zeros(self.n_outputs_), np.ones(self.n_outputs_)
        if self.loss == "auto":
            self._mean = np.average(columns, axis=0, weights=counts)
            spread = np.sqrt(np.average((columns - self._mean) ** 2, axis=0, weights=counts))
            self._scale = np.where(spread > 0, spread, 1.0)

    def _encode(self, y: Array, x: Array) -> Array:
        columns = y.reshape(len(y), -1)
        if columns.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {columns.shape[1]} columns, but the network has {self.n_outputs_} outputs")
        return ((columns - self._mean) / self._scale).astype(x.dtype)

    def _keep(self, weights: list[Affine], history: list[Any], n_iter: int, interrupted: bool) -> None:
        """The last layer in the responses' own units."""
        *hidden, (w, b) = weights
        scale, mean = (b.new_tensor(part) for part in (self._scale, self._mean))
        super()._keep([*hidden, Affine(w * scale[:, None], b * scale + mean)], history, n_iter, interrupted)

    def _start(self, like: Tensor) -> list[Affine]:
        *hidden, (w, b) = self._weights(like)
        scale, mean = (b.new_tensor(part) for part in (self._scale, self._mean))
        return [*hidden, Affine(w / scale[:, None], (b - mean) / scale)]

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The response of each row, (n,) or (n, outputs)."""
        scores = self._scores(X)
        found = self.network_.loss.decode(scores).numpy()
        return found[:, 0] if self._flat else found
