"""The classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import _check_sample_weight

from liftednn.base import Activation, Loss, Penalty, Uncertainty
from liftednn.estimators.common import Lifted
from liftednn.estimators.labels import Classes, Indicator, labels_of
from liftednn.estimators.scaling import Array
from liftednn.losses import Matching

__all__ = ["LiftedClassifier"]


class LiftedClassifier(ClassifierMixin, Lifted):  # type: ignore[misc]
    """A neural network classifier trained by lifted blocks; nothing needs tuning.

    Columns of X are standardised inside, so their units do not matter (`divergence="euclidean"` takes them as they are); `coefs_` and
    `intercepts_` are for X as it is given.

    Parameters
    ----------
    hidden_layer_sizes : int, sequence of ints or "auto", default="auto"
        Widths of the hidden layers. "auto" is one layer of 100 units.
    activation : str or Activation, default="relu"
        "relu", "leaky_relu", "tanh", "logistic", "softplus", "hardtanh", "hardsigmoid", "identity", or an Activation.
    divergence : {"fenchel", "euclidean"}, default="fenchel"
        "fenchel" trains by mini-batches; "euclidean" is the paper's jointly convex model, by full passes over all rows.
    loss : "auto" or Loss, default="auto"
        "auto" is the softmax's cross-entropy, and with several labels for each row the sigmoid's, summed over labels; or a Loss whose
        responses are labels, for one label a row.
    lam : float, sequence of floats or "auto", default="auto"
        The weight of the hidden layers' divergences: the larger, the closer the states stay to the forward pass. One number, or one per
        hidden layer.
    alpha : float or "auto", default="auto"
        The weight rho of penalties that are given by name without a number: with "l2", alpha |W|^2 is added to the mean loss, for
        standardised inputs. "auto" chooses it for "l2" and leaves the others at their defaults. Penalties with a number and
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
        "lifted" takes the class of smallest energy (sec. 5.2 of the paper).
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
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, {label: weight}, which multiply `sample_weight`; "balanced" is n / (n_classes * rows of the class), for `fit`
        only. With several labels for each row, a list of one dict for each label, and the weight of a row is the product.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels; with several labels for each row, their column numbers.
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
        The training loss in `history_`, of a pass the mean over all its batches.
    validation_scores_ : list of floats or None
        With early stopping, the score on the rows held back after each pass: accuracy, or with several labels for each row R^2 of the
        probabilities.
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
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = lnn.LiftedClassifier(hidden_layer_sizes=10, max_iter=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9, model.predict_proba(X).shape
    (True, (150, 3))
    """

    task_loss = "softmax"
    classes_: Array
    _labels: Classes | Indicator

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | Literal["auto"] = "auto",
        activation: str | Activation = "relu",
        *,
        divergence: Literal["fenchel", "euclidean"] = "fenchel",
        loss: str | Loss = "auto",
        lam: float | Sequence[float] | Literal["auto"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        penalty: str | Penalty | Sequence[str | Penalty] = "l2",
        robust: float | str | Uncertainty | None = None,
        max_iter: int | Literal["auto"] = "auto",
        tol: float = 1e-4,
        batch_size: int | Literal["auto"] = "auto",
        prediction: Literal["feedforward", "lifted"] = "feedforward",
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        verbose: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        learn_activation: Literal["layer", "unit"] | None = None,
        categorical_features: Any = "from_dtype",
        compress_tails: bool | Literal["auto"] = "auto",
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation,
            divergence=divergence,
            loss=loss,
            lam=lam,
            alpha=alpha,
            penalty=penalty,
            robust=robust,
            max_iter=max_iter,
            tol=tol,
            batch_size=batch_size,
            prediction=prediction,
            random_state=random_state,
            warm_start=warm_start,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            verbose=verbose,
            device=device,
            dtype=dtype,
            learn_activation=learn_activation,
            categorical_features=categorical_features,
            compress_tails=compress_tails,
        )
        self.class_weight = class_weight

    def _stratifies(self) -> bool:
        return self._labels.stratified

    def _check_parameters(self) -> None:
        super()._check_parameters()
        loss = super()._loss()
        if loss.invariant or isinstance(loss, Matching):
            raise ValueError(
                f"loss={self.loss!r} is for real responses, and a classifier has labels: leave loss='auto', or use LiftedRegressor"
            )

    def _loss(self) -> Loss:
        return self._labels.loss if isinstance(self.loss, str) and self.loss == "auto" else super()._loss()

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Train on rows and labels.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, features)
            Rows.
        y : array of shape (n,) or (n, labels)
            Labels, or zeros and ones for several labels.
        sample_weight : array of shape (n,) or None, default=None
            How much each row counts.

        Returns
        -------
        self
            The estimator, with the attributes of the class set.
        """
        self._check_parameters()
        with self._all_or_nothing():
            x, labels = self._read(X, y, sample_weight, whole=True)
            found = labels_of(labels)
            if self.warm_start and hasattr(self, "coefs_") and not _same(found, self._labels):
                raise ValueError(
                    f"warm_start needs the classes of the last fit, {self.classes_}, got {found.classes}: give labels of the same kind"
                )
            self._fit_labels(x, labels, found, sample_weight, None)
        return self

    def partial_fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """One pass over more rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, features)
            Rows.
        y : array of shape (n,) or (n, labels)
            Labels, or zeros and ones for several labels.
        classes : array of shape (n_classes,) or None, default=None
            All labels; needed in the first call.
        sample_weight : array of shape (n,) or None, default=None
            How much each row counts.

        Returns
        -------
        self
            The estimator.
        """
        self._check_parameters()
        first = not hasattr(self, "coefs_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs all classes: give classes=[...]")
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all labels at once, and partial_fit has a part of them: give a dictionary, "
                "such as that of sklearn.utils.class_weight.compute_class_weight('balanced', classes=classes, y=y)"
            )
        with self._all_or_nothing():
            x, labels = self._read(X, y, sample_weight, whole=False)
            found = labels_of(labels, self.classes_ if classes is None else classes)
            if not first and not np.array_equal(found.classes, self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_}, got {found.classes}")
            self._fit_labels(x, labels, found if first else self._labels, sample_weight, 1)
        return self

    def _fit_labels(
        self, x: Array, y: Array, labels: Classes | Indicator, sample_weight: ArrayLike | None, passes: int | None
    ) -> None:
        self._labels, self.classes_, self.n_outputs_ = labels, labels.classes, len(labels.classes)
        if self._loss().classes != labels.loss.classes:
            raise ValueError(
                f"loss={self.loss!r} is for one label a row, and y has shape {y.shape}, several labels a row: leave loss='auto'"
            )
        encoded = labels.encode(y)
        if self.class_weight is not None:
            given = _check_sample_weight(sample_weight, x)
            sample_weight = labels.weights(self.class_weight, y, given > 0) * given
        row_weights = self._checked_weights(sample_weight, x)
        x, encoded, row_weights, resumes = self._rows_of_call(x, encoded, row_weights, passes is None)
        self._fit(x, encoded, row_weights, passes, resumes)

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The label of each row of X (n, features), an array of shape (n,); of several labels, zeros and ones of shape (n, labels)."""
        scores = self._scores(X)
        return self._labels.decode(scores)

    def predict_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """The probabilities of each row of X (n, features), an array of shape (n, n_classes) in the order of `classes_`.

        By the lifted rule they are the softmax of minus the energies. Of several labels, each has its own, and they need not add up to 1.
        """
        scores = self._scores(X)
        return self._labels.probabilities(scores, self.network_.loss, self.prediction == "lifted")

    def predict_log_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """Logarithms of `predict_proba` for each row of X (n, features), an array of shape (n, n_classes)."""
        scores = self._scores(X)
        return self._labels.log_probabilities(scores, self.network_.loss, self.prediction == "lifted")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _same(a: Classes | Indicator, b: Classes | Indicator) -> bool:
    return type(a) is type(b) and np.array_equal(a.classes, b.classes)
