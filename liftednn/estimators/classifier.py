"""The classifier."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from liftednn.estimators.common import Array, Lifted, dtypes
from liftednn.losses import SoftmaxCrossEntropy

__all__ = ["LiftedClassifier"]


class LiftedClassifier(ClassifierMixin, Lifted):  # type: ignore[misc]
    """A neural network classifier trained by lifted blocks; nothing needs tuning.

    Parameters, named as in MLPClassifier where they mean the same
    ----------
    hidden_layer_sizes   widths of the hidden layers
    activation           "relu", "leaky_relu", "tanh", "logistic", "softplus", "hardtanh", "hardsigmoid", "identity", or an Activation
    divergence           "fenchel": mini-batches; "euclidean": the paper's jointly convex model, by sweeps over all rows
    loss                 "auto": the softmax's cross-entropy; or a Loss whose responses are labels
    lam                  how closely the states obey the recursion: one number, one per hidden layer, or "auto"
    alpha                weight of the penalty, alpha |W|^2 in every layer, beside the mean loss; or "auto"
    penalty              "l2", "l1", or a Penalty
    max_iter             passes over the rows (sweeps), or "auto"; the step is decayed over all of them, so this is also a schedule
    tol                  sweeps: stop when one lowers the objective by less than this share; early stopping: what counts as better
    batch_size           rows per step, or "auto"
    prediction           "feedforward", or "lifted": the class of smallest energy (sec. 5.2)
    random_state         of the initial weights and the order of rows
    warm_start           go on from the weights of the last fit
    early_stopping       hold back `validation_fraction` of the rows, stop after `n_iter_no_change` passes without a better score on
                         them, and keep the best weights
    verbose              print a line per pass
    device               where to train and predict, "cuda" say; None for the CPU
    dtype                "float32", "float64", or None: that of X

    Fitted attributes
    ----------
    classes_, coefs_ (in, out), intercepts_, network_, history_ (a record per pass), loss_curve_, validation_scores_, n_iter_,
    n_outputs_, n_features_in_, feature_names_in_
    """

    task_loss, stratified = "softmax", True
    classes_: Array

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:  # noqa: N803
        """Train on rows X (n, features) and labels y (n,); row i counts `sample_weight[i]` times."""
        self._check_parameters()
        x, labels = validate_data(self, X, y, dtype=dtypes(self.dtype))
        check_classification_targets(labels)
        found = np.unique(column_or_1d(labels, warn=True))
        if self.warm_start and hasattr(self, "classes_") and not np.array_equal(found, self.classes_):
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
        """One pass over some more rows; the first call names all `classes`."""
        self._check_parameters()
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs all classes: give classes=[...]")
        x, labels = validate_data(self, X, y, dtype=dtypes(self.dtype), reset=first)
        if classes is not None:
            given = np.unique(np.asarray(classes))
            if not first and not np.array_equal(given, self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_}, got {given}")
            self.classes_, self.n_outputs_ = given, len(given)
        self._fit(x, self._encode(labels), sample_weight, passes=1)
        return self

    def _encode(self, labels: Array) -> Array:
        places: Array = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[places] != labels
        if unknown.any():
            raise ValueError(f"y holds {labels[unknown][0]!r}, which is not one of the classes {self.classes_}")
        return places

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803
        """The label of each row, (n,)."""
        scores = self._scores(X)
        labels: Array = self.classes_[scores.argmax(1).numpy()]
        return labels

    def predict_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """Probabilities (n, classes), in the order of `classes_`; by the lifted rule, the softmax of minus the energies."""
        scores = self._scores(X)
        return (scores.softmax(1) if self.prediction == "lifted" else self.network_.loss(scores)).numpy()

    def predict_log_proba(self, X: ArrayLike) -> Array:  # noqa: N803
        """Logarithms of `predict_proba`."""
        scores = self._scores(X)
        if self.prediction == "lifted" or isinstance(self.network_.loss, SoftmaxCrossEntropy):
            return scores.log_softmax(1).numpy()
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))
