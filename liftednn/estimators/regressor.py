"""The regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_pinball_score, r2_score
from torch import Tensor

from liftednn.base import Affine, Loss
from liftednn.defaults import spread
from liftednn.estimators.common import Lifted
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Array, ColumnStatistics, Scaling
from liftednn.losses import CrossEntropy, Quantile, SoftmaxCrossEntropy
from liftednn.losses.regression import Bounded

__all__ = ["LiftedRegressor"]

# The share of their spread to which responses are shown.
_DIGITS = 1e-4


class LiftedRegressor(RegressorMixin, Lifted):  # type: ignore[misc]
    """A neural network regressor trained by lifted blocks; nothing needs tuning.

    Responses, one or several, and columns of X are standardised inside, so their units do not matter (`divergence="euclidean"` takes X
    as it is); `coefs_` and `intercepts_` are for both as they are given.

    Parameters
    ----------
    hidden_layer_sizes : int, sequence of ints or "auto", default="auto"
        Widths of the hidden layers. "auto": one layer of 100 units with fewer than 500 rows; with more, two of 50, or of 100 with more
        than ten outputs. None where a linear regression does as well. docs/defaults.md has the conditions.
    activation : str or Activation, default="relu"
        "relu", "leaky_relu", "tanh", "logistic", "softplus", "hardtanh", "hardsigmoid", "identity", or an Activation.
    divergence : {"fenchel", "euclidean"}, default="fenchel"
        "fenchel" trains by mini-batches; "euclidean" is the paper's jointly convex model, by full passes over all rows.
    loss : {"auto", "squared", "absolute", "huber", "quantile"} or Loss, default="auto"
        "auto" is the squared error. `losses.Quantile(0.9)` is the quantile of that level, `losses.Quantile((0.1, 0.9))` several of them at
        once, one output each; `losses.Huber(delta)` has its delta in units of the standardised response. For these and "absolute"
        responses are standardised by median and quartiles, and mini-batches smooth the kink over a hundredth of that unit. With another
        Loss, of real responses, they are not scaled.
    lam : float, sequence of floats or "auto", default="auto"
        The weight of the hidden layers' divergences: the larger, the closer the states stay to the forward pass. One number, or one per
        hidden layer.
    alpha : float or "auto", default="auto"
        The weight rho of penalties that are given by name without a number: with "l2", alpha |W|^2 is added to the mean loss, for
        standardised inputs and responses. "auto" chooses it for "l2" and leaves the others at their defaults. Penalties with a number and
        Penalty objects keep their own, unless alpha is "auto" and they are L2.
    penalty : str, Penalty or sequence of these, default="l2"
        On the weights: one for all layers or one for each, the head's last. "l2", "l1", "elastic_net", "none", "nonnegative"; for the
        hidden layers, with "l2" on the head, "group", "orthogonal", "low_rank" and "ball", as "low_rank:5" with a parameter; or a Penalty.
        Where it bounds or fixes the size of weights (orthogonal, ball), their inputs are centred but not scaled.
    robust : None, float, str or Uncertainty, default=None
        How far true inputs may differ from X, in the units of X: a number is the standard deviation of noise on every entry; "noise:0.3",
        "ball:1.0" or "box:0.1"; or `lnn.robust.Noise(...)`, for example with a size for each column. See docs/robust.md.
    max_iter : int or "auto", default="auto"
        Passes over the rows. With mini-batches the step size is decayed over all of them, so this also sets the schedule.
    tol : float, default=1e-4
        Full passes stop when one lowers the objective by less than this fraction; for early stopping, the least rise of the score.
    batch_size : int or "auto", default="auto"
        Rows per step.
    prediction : {"feedforward", "lifted"}, default="feedforward"
        "lifted" takes the response of smallest energy (sec. 5.2 of the paper).
    random_state : int, RandomState or None, default=None
        Seed of the initial weights and the order of rows.
    warm_start : bool, default=False
        Start from the weights of the last fit.
    early_stopping : bool, default=False
        Hold back some rows, stop after `n_iter_no_change` passes without a better score on them, and keep the best weights.
    validation_fraction : float, default=0.1
        The fraction of rows that early stopping holds back.
    n_iter_no_change : int, default=10
        Passes without a gain that early stopping waits for, from half of `max_iter` on.
    verbose : bool, default=False
        Print a line per pass.
    device : str or None, default=None
        Where to train and predict, such as "cuda"; None for the CPU.
    dtype : {"float32", "float64"} or None, default=None
        The precision. None for that of X, but `fit` trains on 1,000 rows or more in float32, which is faster, where nothing needs more
        digits (docs/defaults.md); predictions have the precision of X.
    learn_activation : {"layer", "unit"} or None, default=None
        Learn the activations' own parameters, one for a layer or one for each unit: the slope of "leaky_relu", a scale before "tanh",
        "logistic", "softplus", "hardtanh" or "hardsigmoid". `network_.hidden` has them.
    categorical_features : None, "from_dtype" or list of names, indices or bools, default="from_dtype"
        Which columns of X hold categories, each an input of 0 or 1; "from_dtype" takes the columns of a frame (pandas, polars) that are
        of a category type or hold text.
    compress_tails : bool or "auto", default="auto"
        Compress columns that have an entry further than 20 spreads from their median, so that it does not set their unit; "auto" does
        not where the responses are predicted clearly better from these columns as they are, by leave-one-out; see docs/defaults.md.
        `coefs_[0]` is then for compressed columns, and `to_module()` begins with the compression.

    Attributes
    ----------
    coefs_ : list of ndarrays of shape (in, out)
        The weights of every layer. The first has a row for each encoded column: one for a number and one more where some were missing
        in training, one for each category.
    intercepts_ : list of ndarrays of shape (out,)
        The biases of every layer.
    network_ : LiftedNetwork
        The network, with all settings that were "auto" chosen.
    history_ : list of records
        One per pass of the last call; full passes begin with record 0, the start.
    loss_curve_ : list of floats
        The training loss in `history_`, of standardised responses.
    validation_scores_ : list of floats or None
        With early stopping, the score on the rows held back after each pass.
    n_iter_ : int
        Passes of the last call.
    n_outputs_ : int
        Outputs of the network.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X has some.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = lnn.LiftedRegressor(hidden_layer_sizes=10, max_iter=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.4, model.predict(X).shape
    (True, (442,))
    """

    task_loss = "squared"
    # The unit of y for the trainer: 1 where y is standardised, its spread where it is only shifted.
    _units = 1.0

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self._loss(), (CrossEntropy, SoftmaxCrossEntropy)):
            raise ValueError(
                f"loss={self.loss!r} is for labels, and a regressor has real responses: leave loss='auto', or use LiftedClassifier"
            )

    def _loss(self) -> Loss:
        loss = super()._loss()
        return loss.scaled(self._units) if isinstance(loss, Bounded) else loss

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Train on rows and responses.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, features)
            Rows.
        y : array of shape (n,) or (n, outputs)
            Responses.
        sample_weight : array of shape (n,) or None, default=None
            How much each row counts.

        Returns
        -------
        self
            The estimator, with the attributes of the class set.
        """
        return self._fit_responses(X, y, sample_weight, None)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """One pass over more rows; X and y are standardised by the mean and spread of all rows so far.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, features)
            Rows.
        y : array of shape (n,) or (n, outputs)
            Responses.
        sample_weight : array of shape (n,) or None, default=None
            How much each row counts.

        Returns
        -------
        self
            The estimator.
        """
        return self._fit_responses(X, y, sample_weight, 1)

    def _fit_responses(self, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, passes: int | None) -> Self:
        self._check_parameters()
        with self._all_or_nothing():
            rows, responses = self._read(x, y, sample_weight, passes is None, y_numeric=True)
            row_weights = self._checked_weights(sample_weight, rows)
            if self._resumes(passes is None):
                self._responses_of(responses)  # refuses another number of columns
            rows, responses, row_weights, resumes = self._rows_of_call(rows, responses, row_weights, passes is None)
            if not resumes:
                self._standardise(responses, row_weights)
            self._update_response_scaling(responses, row_weights, not resumes, passes is not None)
            encoded = self._encode(responses, Rows.of(rows, self.dtype).dtype)
            if self._levels_for(responses) != self._levels:
                raise ValueError(
                    f"warm_start and partial_fit keep the outputs of the last fit, whose loss was {self.network_.loss!r}: with "
                    f"loss={self.loss!r}, fit again with warm_start=False"
                )
            self._fit(rows, encoded, row_weights, passes, resumes)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _levels_for(self, y: Array) -> tuple[float, ...]:
        """The quantile levels of the outputs where all are of a single response; empty where each output has its own column."""
        loss = self._loss()
        return loss.q if isinstance(loss, Quantile) and isinstance(loss.q, tuple) and y.size == len(y) else ()

    def _standardise(self, y: Array, row_weights: Array | None) -> None:
        """Keep the mean and the spread of the responses."""
        columns = y.reshape(len(y), -1).astype(np.float64)
        loss, levels = self._loss(), self._levels_for(y)
        self._levels, self._flat = levels, y.ndim == 1 and not levels
        columns = columns.repeat(max(len(levels), 1), axis=1)
        self.n_outputs_ = columns.shape[1]
        units = Scaling.robust if isinstance(loss, Bounded) else Scaling.of
        self._responses = units(columns, row_weights) if loss.invariant else Scaling.none(self.n_outputs_)
        self._units = 1.0
        if self._penalties()[-1].scale_sensitive:
            self._units = spread(columns, row_weights)
            self._responses = self._responses.shift

    def _update_response_scaling(self, y: Array, row_weights: Array | None, first: bool, stream: bool) -> None:
        """Where all calls were of `partial_fit`, responses are scaled by the mean and the spread of all so far. Those of a loss of bounded
        slope, which needs medians, stay as the first call has scaled them."""
        before: ColumnStatistics | None = None if first else getattr(self, "_response_statistics", None)
        self._response_statistics = None
        if (
            not stream
            or isinstance(self._loss(), Bounded)
            or (before is None and not first)
            or not self._loss().invariant
        ):
            return
        fresh = ColumnStatistics.of(self._responses_of(y), row_weights)
        self._response_statistics = fresh if before is None else before + fresh
        if before is not None:
            found = self._response_statistics.scaling(np.dtype(np.float64))
            self._responses = found.shift if self._penalties()[-1].scale_sensitive else found

    def _responses_of(self, y: Array) -> Array:
        """One column for each output."""
        columns = y.reshape(len(y), -1).astype(np.float64)
        width = 1 if self._levels else self.n_outputs_
        if columns.shape[1] != width:
            raise ValueError(f"y has {columns.shape[1]} columns, but the network has {width} outputs")
        return columns.repeat(max(len(self._levels), 1), axis=1)

    def _encode(self, y: Array, dtype: np.dtype) -> Array:
        return self._responses(self._responses_of(y)).astype(dtype)

    def _keep(self, weights: list[Affine], history: list[Any], n_iter: int) -> None:
        if weights[0].w.dtype != torch.float64 and self._far():
            weights = [Affine(w.double(), b.double()) for w, b in weights]
        super()._keep([*weights[:-1], self._responses.from_scaled_outputs(weights[-1])], history, n_iter)

    def _far(self) -> bool:
        """Whether responses are so far from 0 that float32 would show less than four digits of what varies in them."""
        rounding = np.finfo(np.float32).eps * np.abs(self._responses.mean)
        return bool((rounding > _DIGITS * self._responses.scale).any())

    def _start(self, like: Tensor) -> list[Affine]:
        self._check_resumable(self._penalties()[-1], self._responses, "responses")
        *hidden, last = super()._start(like.double())
        return [Affine(w.to(like), b.to(like)) for w, b in (*hidden, self._responses.to_scaled_outputs(last))]

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The response of each row of X (n, features), an array of shape (n,) or (n, outputs).

        Quantiles of one response are put in the order of their levels, which moves them no farther from the true ones (Chernozhukov et al.,
        2010).
        """
        scores = self._scores(X)
        found = self.network_.loss.decode(scores).numpy()
        if self._levels:
            found = np.sort(found, axis=1)[:, np.argsort(np.argsort(self._levels))]
        return found[:, 0] if self._flat else found

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """R^2 of the predictions for X (n, features) against y, (n,) or (n, outputs), as scikit-learn's regressors have it.

        Of several quantiles of one response, the mean of their D^2. sample_weight (n,) is how much each row counts.
        """
        found = self.predict(X)
        if not self._levels:
            return float(r2_score(y, found, sample_weight=sample_weight))
        scores = [
            d2_pinball_score(y, column, sample_weight=sample_weight, alpha=level)
            for column, level in zip(found.T, self._levels, strict=True)
        ]
        return float(np.mean(scores))
