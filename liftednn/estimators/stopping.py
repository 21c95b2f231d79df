"""Early stopping: the rows that are held back, and the check after every pass."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import train_test_split

from liftednn.estimators.scaling import Array
from liftednn.training.result import Record

__all__ = ["EarlyStopping", "hold_back"]


@dataclass
class EarlyStopping:
    """Called after every pass: prints a line if `verbose`, and stops the run when the validation score has not risen by `tol` for
    `patience` passes.

    unlimited   so many passes do not count: at first the rate is large and rho is not learned yet, and scores rise and fall
    """

    tol: float
    patience: int
    verbose: bool
    unlimited: int = 0
    best: float = -math.inf
    without_gain: int = 0

    @property
    def out_of_patience(self) -> bool:
        return self.without_gain >= self.patience

    def __call__(self, record: Record) -> bool:
        number, validation = record.number, record.validation_score
        if self.verbose:
            score = record.score if validation is None else validation
            print(f"Iteration {number}, loss = {record.loss:.8f}, score = {score:.4f}")
        if validation is not None:
            gains = validation > self.best + self.tol or number <= self.unlimited
            self.without_gain = 0 if gains else self.without_gain + 1
            self.best = max(self.best, validation)
        return self.out_of_patience


def hold_back(
    labels: Array | None, rows: int, fraction: float, seed: int, groups: Array | None = None
) -> tuple[Array, Array]:
    """The numbers of the rows to train on and of those to hold back, stratified by `labels` if given.

    groups   for each row the number of its group; all rows of a group stay together, and each group counts once
    """
    if groups is None:
        return _split(labels, rows, fraction, seed)
    first = np.unique(groups, return_index=True)[1]
    held = np.isin(groups, _split(None if labels is None else labels[first], len(first), fraction, seed)[1])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _split(labels: Array | None, rows: int, fraction: float, seed: int) -> tuple[Array, Array]:
    """Where there are too few rows to stratify, one row of every class is trained on, and the others are split at random."""
    count = math.ceil(fraction * rows)
    if labels is None or _can_stratify(labels, count):
        if count >= rows:
            raise ValueError(_too_few(rows, fraction, "none to train on"))
        kept, back = train_test_split(np.arange(rows), test_size=float(fraction), random_state=seed, stratify=labels)
        return kept, back
    order = np.random.RandomState(seed).permutation(rows)
    others = np.delete(order, np.unique(labels[order], return_index=True)[1])
    if not len(others):
        raise ValueError(_too_few(rows, fraction, "classes without a row to train on"))
    back = others[:count]
    warnings.warn(
        f"early_stopping holds back {len(back)} of {rows} rows drawn without regard to their class, since some class has too few rows "
        "to stratify",
        stacklevel=7,
    )
    return np.setdiff1d(order, back), back


def _can_stratify(labels: Array, count: int) -> bool:
    """What train_test_split requires: two rows of each class, and as many rows in each part as there are classes."""
    each = np.unique(labels, return_counts=True)[1]
    return bool(each.min() >= 2 and len(each) <= min(count, len(labels) - count))


def _too_few(rows: int, fraction: float, what: str) -> str:
    return (
        f"early_stopping with validation_fraction={fraction:g} of {rows} sample{'s' * (rows != 1)} leaves {what}: give more rows, a "
        "smaller validation_fraction, or early_stopping=False"
    )
