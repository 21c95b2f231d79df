"""Scikit-learn's own checks of the estimators, at the defaults and at odd mixtures of parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

import liftednn as lnn
from liftednn import LiftedClassifier, LiftedRegressor


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """Where random_state is None, numpy's global generator gives the seed."""
    np.random.seed(0)  # noqa: NPY002


IGNORED = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.SkipTestWarning", "ignore:early_stopping holds back:UserWarning"
)
# One that trains for 1000 passes, and those that repeat another check with the same rows held in another way.
LONG = ("check_class_weight_classifiers", "check_estimator_sparse_matrix", "readonly_memmap")
ROUNDING = "float32 has rounding errors beyond 1e-7"


def not_exact(model: Any) -> dict[str, str]:
    """Checks that a weight of 2 is a repeated row to 1e-7. Over one batch in float64 they hold, see also test_row_weights.py."""
    reason = ROUNDING if model.dtype == "float32" else ""
    kinds = ("dense", "sparse") if reason else ()
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in kinds}


def with_checks(*estimators: BaseEstimator) -> Any:
    """The checks as parameters of a test; those of `LONG` are slow."""
    plain = parametrize_with_checks(list(estimators), expected_failed_checks=not_exact).mark
    names, found = plain.args[0], []
    for each in plain.args[1]:
        long = any(name in str(each[1]) for name in LONG)
        found.append(pytest.param(*each, marks=pytest.mark.slow) if long else each)
    return pytest.mark.parametrize(names, found, **plain.kwargs)


@IGNORED
@with_checks(LiftedClassifier(max_iter=5), LiftedRegressor(max_iter=5))
def test_estimators_pass_at_the_defaults(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", [LiftedClassifier(), LiftedRegressor()], ids=["classifier", "regressor"])
def test_a_weight_is_a_repeated_row_after_all_passes_of_the_defaults(estimator: BaseEstimator) -> None:
    check_sample_weight_equivalence_on_dense_data(type(estimator).__name__, estimator)


@pytest.mark.slow
@IGNORED
@with_checks(
    LiftedClassifier(),
    LiftedRegressor(),
    LiftedRegressor((8,), divergence="euclidean", max_iter=3),
    LiftedClassifier((8,), prediction="lifted", max_iter=3),
    LiftedClassifier((8,), divergence="euclidean", max_iter=3),
    LiftedRegressor((8,), prediction="lifted", max_iter=3),
)
def test_estimators_pass_with_every_rule_and_divergence(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.thin(5)
@IGNORED
@with_checks(
    LiftedClassifier((6,), max_iter=5, early_stopping=True, n_iter_no_change=5),
)
def test_estimators_pass_with_early_stopping_on_few_rows(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.slow
@IGNORED
@with_checks(LiftedClassifier((), max_iter=15, penalty="elastic_net", dtype="float32"))
def test_estimators_pass_in_float32(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)


@pytest.mark.slow
@IGNORED
@with_checks(
    LiftedRegressor((6, 5), max_iter=8, activation="tanh", penalty="l1", loss="huber"),
    LiftedClassifier((), max_iter=15, penalty="elastic_net", compress_tails=False),
    LiftedRegressor((6,), max_iter=15, activation="leaky_relu", learn_activation="unit", early_stopping=True),
    LiftedClassifier((6,), max_iter=15, activation="softplus", batch_size=30),
    LiftedRegressor((6,), max_iter=4, divergence="euclidean", activation="hardtanh", penalty="l1"),
    LiftedClassifier((6,), max_iter=15, penalty="orthogonal", activation="identity", categorical_features=None),
    LiftedRegressor((6,), max_iter=15, penalty=["group", "l2"], robust=0.1, dtype="float64"),
    LiftedClassifier((4,), max_iter=15, activation="logistic", lam=1.0, alpha=0.001, tol=0.01),
    LiftedRegressor((6,), max_iter=15, loss=lnn.losses.Quantile(0.6), penalty="low_rank:3", validation_fraction=0.3),
)
def test_estimators_pass_with_nine_odd_mixtures(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)
