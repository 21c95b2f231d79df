"""Estimators at their defaults, and what one fit of them gives: for the experiments `tables` and `curves`.

Ours takes X and y as they are. MLP and the linear model have standardised columns, and MLP standardised responses, without which they
would be compared on the units of a table; trees need neither.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from experiments.interrupts import interruptible
from experiments.settings import threads
from liftednn import LiftedClassifier, LiftedRegressor

__all__ = ["DEEP", "METHODS", "OPTIONAL", "Fitted", "calibration_error", "class_scores", "fit", "installed", "model"]

Array = NDArray[Any]
# The module that each needs. The deep ones take minutes for a set, and are run only where they are named.
OPTIONAL = {"XGBoost": "xgboost", "RealMLP": "pytabkit", "TabM": "pytabkit"}
DEEP = ("RealMLP", "TabM")
METHODS = ("lifted", "MLP", "boosting", "forest", "linear", *OPTIONAL)


def installed() -> tuple[str, ...]:
    """The methods that can be run here."""
    return tuple(who for who in METHODS if who not in OPTIONAL or find_spec(OPTIONAL[who]) is not None)


def model(who: str, classes: bool, seed: int, **limits: Any) -> Any:
    """One of `METHODS`, not fitted, for classes or for a real response; limits are for the networks, in quick runs."""
    return _classifier(who, seed, limits) if classes else _regressor(who, seed, limits)


def _classifier(who: str, seed: int, limits: dict[str, Any]) -> Any:
    match who:
        case "lifted":
            return LiftedClassifier(random_state=seed, **limits)
        case "MLP":
            return _scaled(MLPClassifier(random_state=seed, **limits))
        case "boosting":
            return HistGradientBoostingClassifier(random_state=seed)
        case "forest":
            return RandomForestClassifier(random_state=seed)
        case "linear":
            return _scaled(LogisticRegression(max_iter=1000))
        case "XGBoost":
            from xgboost import XGBClassifier

            return XGBClassifier(random_state=seed, n_jobs=1)
        case "RealMLP" | "TabM":
            import pytabkit

            kind = pytabkit.RealMLP_TD_Classifier if who == "RealMLP" else pytabkit.TabM_D_Classifier
            return kind(random_state=seed, device="cpu", n_threads=1)
    raise ValueError(f"no method {who!r}, the names are: {', '.join(METHODS)}")


def _regressor(who: str, seed: int, limits: dict[str, Any]) -> Any:
    match who:
        case "lifted":
            return LiftedRegressor(random_state=seed, **limits)
        case "MLP":
            network = MLPRegressor(random_state=seed, **limits)
            return TransformedTargetRegressor(_scaled(network), transformer=StandardScaler())
        case "boosting":
            return HistGradientBoostingRegressor(random_state=seed)
        case "forest":
            return RandomForestRegressor(random_state=seed)
        case "linear":
            return _scaled(Ridge())
        case "XGBoost":
            from xgboost import XGBRegressor

            return XGBRegressor(random_state=seed, n_jobs=1)
        case "RealMLP" | "TabM":
            import pytabkit

            kind = pytabkit.RealMLP_TD_Regressor if who == "RealMLP" else pytabkit.TabM_D_Regressor
            return kind(random_state=seed, device="cpu", n_threads=1)
    raise ValueError(f"no method {who!r}, the names are: {', '.join(METHODS)}")


def _scaled(estimator: Any) -> Pipeline:
    return Pipeline([("scale", StandardScaler()), ("model", estimator)])


class Fitted(NamedTuple):
    """A fitted estimator, the processor's seconds of its fit on one thread, and how the warnings it gave begin."""

    model: Any
    seconds: float
    warnings: list[str]

    @property
    def cost(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "warnings": self.warnings}


def fit(
    who: str, x: Array, y: Array, classes: bool, seed: int, sample_weight: Array | None = None, quick: bool = False
) -> Fitted:
    """Fit one of `METHODS`; quickly: networks for two passes over the rows, and seconds that include what is loaded at first use."""
    if not quick:
        warm_up(who, classes)
    estimator, weight = model(who, classes, seed, **({"max_iter": 2} if quick else {})), {}
    if sample_weight is not None:
        weight["model__sample_weight" if who in ("MLP", "linear") else "sample_weight"] = sample_weight
    with one_thread(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        started = time.thread_time()  # those of the process count threads too that wait for work after an earlier fit
        with interruptible():
            estimator.fit(x, y, **weight)
        seconds = time.thread_time() - started
    return Fitted(estimator, seconds, sorted({_first_words(str(each.message)) for each in seen}))


def _first_words(message: str, count: int = 8) -> str:
    return " ".join(message.split()[:count])


@contextmanager
def one_thread() -> Iterator[None]:
    """For torch, BLAS and OpenMP."""
    with threads(1), threadpool_limits(1):
        yield


@cache
def warm_up(who: str, classes: bool) -> None:
    """Fit once in this process, so that what is loaded then is in no figure."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    fit(who, x, (x[:, 0] > 0).astype(int) if classes else x[:, 0], classes, 0, quick=True)


def class_scores(estimator: Any, x: Array, y: Array) -> dict[str, float]:
    """Accuracy, log-loss and calibration error of a fitted classifier; classes are numbered from 0."""
    predicted = np.asarray(estimator.predict_proba(x), np.float64)
    predicted /= predicted.sum(1, keepdims=True)
    return {
        "accuracy": float((estimator.predict(x) == y).mean()),
        "log_loss": float(log_loss(y, predicted, labels=estimator.classes_)),
        "calibration": calibration_error(predicted, estimator.classes_[predicted.argmax(1)] == y),
    }


def calibration_error(predicted: Array, right: Array, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - mean confidence| over bins of equal width, weighted by their rows."""
    confidence = predicted.max(1)
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(bin_of, right.astype(np.float64), bins) - np.bincount(bin_of, confidence, bins)
    return float(np.abs(gap).sum() / len(confidence))
