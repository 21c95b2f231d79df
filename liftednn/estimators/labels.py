"""The responses of a classifier: one label for each row, or any number of them as an indicator matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from torch import Tensor

from liftednn.base import Loss
from liftednn.estimators.scaling import Array
from liftednn.losses import Matching, SoftmaxCrossEntropy

__all__ = ["Classes", "Indicator", "labels_of"]

ClassWeight = Any  # None, "balanced", or what scikit-learn takes as a dictionary


@dataclass(frozen=True)
class Classes:
    """One label for each row: an output for each class, and the cross-entropy of the softmax."""

    classes: Array
    loss: ClassVar[Loss] = SoftmaxCrossEntropy()
    stratified: ClassVar[bool] = True

    def encode(self, y: Array) -> Array:
        """The indices of labels y (n,)."""
        labels = column_or_1d(y)
        indices: Array = np.searchsorted(self.classes, labels).clip(max=len(self.classes) - 1)
        unknown = self.classes[indices] != labels
        if unknown.any():
            raise ValueError(f"y holds {labels[unknown][0]!r}, which is not one of the classes {self.classes}")
        return indices

    def weights(self, class_weight: ClassWeight, y: Array, counts: Array) -> Array:
        """The weight of each row, (n,), from that of its class; `counts` (n,) says which rows count in "balanced"."""
        labels = column_or_1d(y)
        each = np.zeros(len(self.classes))
        known = np.isin(self.classes, labels[counts])
        if known.all() or not isinstance(class_weight, str):
            each[:] = compute_class_weight(class_weight, classes=self.classes, y=labels[counts])
        elif known.any():  # rows of the other classes have weight 0 anyway
            each[known] = compute_class_weight(class_weight, classes=self.classes[known], y=labels[counts])
        return each[self.encode(y)]

    def decode(self, scores: Tensor) -> Array:
        labels: Array = self.classes[scores.argmax(1).numpy()]
        return labels

    def probabilities(self, scores: Tensor, loss: Loss, energies: bool) -> Array:
        """`energies`: the scores are minus the energy of each class."""
        return (scores.softmax(1) if energies else loss(scores)).numpy()

    def log_probabilities(self, scores: Tensor, loss: Loss, energies: bool) -> Array:
        if energies or loss == self.loss:
            return scores.log_softmax(1).numpy()
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities(scores, loss, energies))


@dataclass(frozen=True)
class Indicator:
    """Any number of labels for each row, as zeros and ones (n, labels): an output and a binary cross-entropy for each label."""

    classes: Array
    loss: ClassVar[Loss] = Matching()
    stratified: ClassVar[bool] = False

    def encode(self, y: Array) -> Array:
        if y.ndim != 2 or y.shape[1] != len(self.classes):
            raise ValueError(f"y has shape {y.shape}: give zeros and ones of shape (n, {len(self.classes)})")
        if not np.isin(y, (0, 1)).all():
            raise ValueError("y must hold only zeros and ones, since there are several labels for each row")
        return y.astype(np.float64)

    def weights(self, class_weight: ClassWeight, y: Array, counts: Array) -> Array:
        some = None if counts.all() or not isinstance(class_weight, str) else np.flatnonzero(counts)
        found: Array = compute_sample_weight(class_weight, y, indices=some)
        return found

    def decode(self, scores: Tensor) -> Array:
        labels: Array = (scores > 0).numpy().astype(np.int64)
        return labels

    def probabilities(self, scores: Tensor, loss: Loss, energies: bool) -> Array:
        """The probability of each label; both prediction rules give scores."""
        return loss(scores).numpy()

    def log_probabilities(self, scores: Tensor, loss: Loss, energies: bool) -> Array:
        return (-(-scores).logaddexp(scores.new_zeros(()))).numpy()


def labels_of(y: Array, classes: ArrayLike | None = None) -> Classes | Indicator:
    """The kind of the labels y, and their classes; those that are given, where y may lack some."""
    check_classification_targets(y)
    kind = type_of_target(y)
    if kind == "multiclass-multioutput":
        raise ValueError(
            f"y has shape {y.shape} and holds other numbers than 0 and 1: give one label for each row, (n,), or an indicator of "
            "several labels, (n, labels)"
        )
    if kind == "multilabel-indicator":
        found = np.arange(y.shape[1]) if classes is None else np.unique(np.asarray(classes))
        return Indicator(found)
    return Classes(np.unique(column_or_1d(y, warn=True) if classes is None else np.asarray(classes)))
