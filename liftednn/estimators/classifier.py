"""The classifier."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from liftednn.estimators.common import Lifted
from liftednn.estimators.scaling import Array
from liftednn.losses import Matching, SoftmaxCrossEntropy

__all__ = ["LiftedClassifier"]


class LiftedClassifier(ClassifierMixin, Lifted):  # type: ignore[misc]
    """A neural network classifier trained by lifted blocks; nothing needs tuning.

    Columns of X are standardised inside, so their units do not matter (`divergence="euclidean"` takes them as they are); `coefs_` and
    `intercepts_` are for X as it is given.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of ints, default=(100,)
        Widths of the hidden layers.
    activation : str or Activation, default="relu"
        "relu", "leaky_relu", "tanh", "logistic", "softplus", "hardtanh", "hardsigmoid", "identity", or an Activation.
    divergence : {"fenchel", "euclidean"}, default="fenchel"
        "fenchel" trains by mini-batches; "euclidean" is the paper's jointly convex model, by full passes over all rows.
    loss : "auto" or Loss, default="auto"
        "auto" is the softmax's cross-entropy; or a Loss whose responses are labels.
    lam : float, sequence of floats or "auto", default="auto"
        How closely the states obey the recursion: one number, or one per hidden layer.
    alpha : float or "auto", default="auto"
        rho of the penalties that are given by name without a number, alpha |W|^2 for "l2", beside the mean loss, on standardised
        inputs. "auto" chooses it for "l2" and leaves the others at their defaults. Penalties with a number and Penalty objects
        keep their own, unless alpha is "auto" and they are L2.
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
        Passes that early stopping waits for.
    verbose : bool, default=False
        Print a line per pass.
    device : str or None, default=None
        Where to train and predict, such as "cuda"; None for the CPU.
    dtype : {"float32", "float64"} or None, default=None
        The precision; None for that of X.
    learn_activation : {"layer", "unit"} or None, default=None
        Learn the activations' own parameters, one for a layer or one for each unit: the slope of "leaky_relu", a scale before "tanh",
        "logistic", "softplus", "hardtanh" or "hardsigmoid". `network_.hidden` has them.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    coefs_ : list of ndarrays of shape (in, out)
        The weights of every layer.
    intercepts_ : list of ndarrays of shape (out,)
        The biases of every layer.
    network_ : LiftedNetwork
        The network, with all settings that were "auto" chosen.
    history_ : list of records
        One per pass of the last call; full passes begin with record 0, the start.
    loss_curve_ : list of floats
        The training loss in `history_`, of a pass the mean over all its batches.
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
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = lnn.LiftedClassifier(hidden_layer_sizes=10, max_iter=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9, model.predict_proba(X).shape
    (True, (150, 3))
    """

    task_loss, stratified = "softmax", True
    classes_: Array

    def _check_parameters(self) -> None:
        super()._check_parameters()
        loss = self._loss()
        if loss.invariant or isinstance(loss, Matching):
            raise ValueError(
                f"loss={self.loss!r} is for real responses, and a classifier has labels: leave loss='auto', or use LiftedRegressor"
            )

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Train on rows and labels.

        Parameters
        ----------
        X : array of shape (n, features)
            Rows.
        y : array of shape (n,)
            Labels.
        sample_weight : array of shape (n,) or None, default=None
            How much each row counts.

        Returns
        -------
        self
            The estimator, with the attributes of the class set.
        """
        self._check_parameters()
        with self._all_or_nothing():
            x, labels = validate_data(self, X, y)
            check_classification_targets(labels)
            found = np.unique(column_or_1d(labels, warn=True))
            if self.warm_start and hasattr(self, "coefs_") and not np.array_equal(found, self.classes_):
                raise ValueError(f"warm_start needs the classes of the last fit, {self.classes_}, got {found}")
            self.classes_, self.n_outputs_ = found, len(found)
            self._fit(x, self._encode(labels), sample_weight)
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
        X : array of shape (n, features)
            Rows.
        y : array of shape (n,)
            Labels.
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
        with self._all_or_nothing():
            x, labels = validate_data(self, X, y, reset=first)
            given = self.classes_ if classes is None else np.unique(np.asarray(classes))
            if not first and not np.array_equal(given, self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_}, got {given}")
            self.classes_, self.n_outputs_ = given, len(given)
            self._fit(x, self._encode(labels), sample_weight, passes=1)
        return self

    def _encode(self, labels: Array) -> Array:
        indices: Array = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[indices] != labels
        if unknown.any():
            raise ValueError(f"y holds {labels[unknown][0]!r}, which is not one of the classes {self.classes_}")
        return indices

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The label of each row of X (n, features), an array of shape (n,)."""
        scores = self._scores(X)
        labels: Array = self.classes_[scores.argmax(1).numpy()]
        return labels

    def predict_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """The probabilities of each row of X (n, features), an array of shape (n, n_classes) in the order of `classes_`.

        By the lifted rule they are the softmax of minus the energies.
        """
        scores = self._scores(X)
        return (scores.softmax(1) if self.prediction == "lifted" else self.network_.loss(scores)).numpy()

    def predict_log_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """Logarithms of `predict_proba` for each row of X (n, features), an array of shape (n, n_classes)."""
        scores = self._scores(X)
        if self.prediction == "lifted" or isinstance(self.network_.loss, SoftmaxCrossEntropy):
            return scores.log_softmax(1).numpy()
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))
