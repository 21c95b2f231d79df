"""The estimators: scikit-learn's tools, fitted weights, error messages, and quality."""

import builtins
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from joblib import parallel_config  # type: ignore[import-untyped]
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_digits, load_wine, make_friedman1
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import liftednn as lnn
from liftednn import LiftedClassifier, LiftedRegressor
from liftednn import activations as act
from liftednn.estimators import stopping
from liftednn.estimators.rows import Rows, needs_float64
from liftednn.estimators.work import Work

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 5))
Y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)
REAL = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
NAMES = ["relu", "leaky_relu", "tanh", "logistic", "softplus", "hardtanh", "hardsigmoid", "identity"]
BY_HAND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda u: np.maximum(u, 0),
    "tanh": np.tanh,
    "logistic": lambda u: 1 / (1 + np.exp(-u)),
    "softplus": lambda u: np.logaddexp(0, u),
    "hardtanh": lambda u: np.clip(u, -1, 1),
    "hardsigmoid": lambda u: np.clip(u, 0, 1),
    "identity": lambda u: u,
}
BOTH = pytest.mark.parametrize(
    ("kind", "y"), [(LiftedClassifier, Y), (LiftedRegressor, REAL)], ids=["classifier", "regressor"]
)


def small(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, **options})


def small_regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, **options})


def equal(a: BaseEstimator, b: BaseEstimator) -> bool:
    pairs = zip([*a.coefs_, *a.intercepts_], [*b.coefs_, *b.intercepts_], strict=True)
    return all(np.array_equal(p, q) for p, q in pairs)


def states_by_hand(model: Any, x: np.ndarray, activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    for w, b in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        x = activation(x @ w + b)
    return x


def scores_by_hand(model: Any, x: np.ndarray, activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return states_by_hand(model, x, activation) @ model.coefs_[-1] + model.intercepts_[-1]


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """Where random_state is None, numpy's global generator gives the seed."""
    np.random.seed(0)  # noqa: NPY002


@pytest.mark.parametrize("seed", [43, 84, 88])
def test_a_fit_on_a_few_rows_does_not_break_down(seed: int) -> None:
    """As many features as rows, and one step a pass."""
    x = np.random.RandomState(0).normal(size=(10, 10))
    model = LiftedRegressor(random_state=seed).fit(x, x[:, 0])
    assert model.score(x, x[:, 0]) > 0.5


# scikit-learn's tools


def test_a_grid_search_tries_widths_and_penalties() -> None:
    grid = {"hidden_layer_sizes": [(), (8,)], "alpha": [1e-4, 30.0]}
    search = GridSearchCV(small(max_iter=20), grid, cv=2).fit(X, Y)
    assert search.best_params_ == {"hidden_layer_sizes": (8,), "alpha": 1e-4}
    assert search.best_estimator_.network_.layers[0].penalty == lnn.penalties.L2(1e-4)
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()


def test_a_pipeline_with_a_scaler_is_the_scaler_and_then_the_network() -> None:
    shifted = X * [1, 10, 100, 1e3, 1e4] + 5
    model = make_pipeline(StandardScaler(), small()).fit(shifted, Y)
    scaled = (shifted - shifted.mean(0)) / shifted.std(0)
    np.testing.assert_allclose(model.predict_proba(shifted), small().fit(scaled, Y).predict_proba(scaled), rtol=1e-6)


def test_two_jobs_give_what_one_gives() -> None:
    with parallel_config(
        backend="threading"
    ):  # processes take seconds to start, and threads share all there is to share
        one, two = (cross_val_score(small(), X, Y, cv=2, n_jobs=jobs, scoring="neg_log_loss") for jobs in (1, 2))
    assert np.array_equal(one, two)


def test_a_clone_is_unfitted_and_fits_the_same() -> None:
    model = small(lam=(3.0,), penalty=lnn.penalties.L1(1e-3), activation=act.Softplus()).fit(X, Y)
    copy = clone(model)
    assert repr(copy.get_params()) == repr(model.get_params())
    with pytest.raises(NotFittedError):
        copy.predict(X)
    assert equal(copy.fit(X, Y), model)


@BOTH
@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
def test_a_pickle_predicts_the_same(kind: Any, y: np.ndarray, divergence: str) -> None:
    model = kind((8,), divergence=divergence, max_iter=3, random_state=0).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.transform(X), model.transform(X))
    assert equal(again, model)


def test_pandas_frames_in_and_out() -> None:
    frame = pd.DataFrame(X, columns=list("abcde"), index=np.arange(len(X)) + 1000)
    names = pd.Series(np.array(["low", "mid", "top"])[Y], index=frame.index)
    model, plain = small().fit(frame, names), small().fit(X, Y)
    assert list(model.feature_names_in_) == list("abcde")
    assert list(model.classes_) == ["low", "mid", "top"]
    assert equal(model, plain)
    assert list(model.predict(frame)) == list(np.array(["low", "mid", "top"])[plain.predict(X)])
    with pytest.raises(ValueError, match="order as they were in fit"):
        model.predict(frame[list("badce")])
    out = model.set_output(transform="pandas").transform(frame)
    assert list(out.columns) == [f"liftedclassifier{unit}" for unit in range(8)]
    assert out.index.equals(frame.index)
    np.testing.assert_array_equal(out.to_numpy(), plain.transform(X))
    assert list(model.get_feature_names_out()) == list(out.columns)


# precision and seeds


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_precision_is_that_of_the_rows(dtype: type, divergence: str) -> None:
    x: np.ndarray = X.astype(dtype)
    model = small(divergence=divergence, max_iter=2).fit(x, Y)
    regressor = small_regressor(divergence=divergence, max_iter=2).fit(x, REAL)
    found = [*model.coefs_, *model.intercepts_, *regressor.coefs_, *regressor.intercepts_]
    found += [model.transform(x), model.predict_proba(x), regressor.transform(x), regressor.predict(x)]
    assert {part.dtype for part in found} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("options", "rows", "trained"),
    [
        ({}, 1200, torch.float32),
        ({}, 1110, torch.float64),
        ({"dtype": "float64"}, 1200, torch.float64),
        ({"penalty": "orthogonal"}, 1200, torch.float64),
        ({"learn_activation": "layer", "activation": "leaky_relu"}, 1200, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [LiftedClassifier, LiftedRegressor])
def test_many_rows_are_trained_on_in_float32(
    kind: type, options: dict[str, Any], rows: int, trained: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 3))
    seen: set[torch.dtype] = set()
    run = lnn.MiniBatch.run

    def spy(self: lnn.MiniBatch, *given: Any, **named: Any) -> lnn.Fit:
        fit = run(self, *given, **named)
        seen.add(fit.weights[0].w.dtype)
        return fit

    monkeypatch.setattr(lnn.MiniBatch, "run", spy)
    y = (x[:, 0] * x[:, 1] > 0) if kind is LiftedClassifier else x[:, 0] * x[:, 1]
    model = kind(hidden_layer_sizes=4, max_iter=1, random_state=0, early_stopping=True, **options).fit(x, y)
    assert seen == {trained}
    assert {part.dtype for part in (*model.coefs_, *model.intercepts_)} == {np.dtype(np.float64)}


@pytest.mark.parametrize(("noise", "loses"), [(1e-2, False), (3e-4, True), (0.0, False)])
def test_columns_that_nearly_agree_are_not_rounded(noise: float, loses: bool) -> None:
    """The direction in which they differ would have no variance in float32; copies have none at all."""
    draws = np.random.default_rng(0).normal(size=(1500, 2))
    x = draws[:, :1] + np.array([0, noise]) * draws[:, 1:]
    first, second = (torch.from_numpy(draws[:, column]) for column in (0, 1))
    assert needs_float64(Rows.of(x, None), second) == loses
    assert needs_float64(Rows.of(x, None), (second > 0).long()) == loses
    assert needs_float64(Rows.of(x, None), second, np.ones(1500)) == loses
    assert not needs_float64(Rows.of(x, None), first)  # the responses do not depend on it
    assert not needs_float64(Rows.of(draws, None), second)


def test_numbers_that_float32_has_not_are_no_error() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1200, 3))
    y = x[:, 0] * x[:, 1]
    weights = np.exp(-np.arange(1200)[::-1] / 5)  # down to 1e-104
    assert small_regressor(max_iter=10).fit(x, y, weights).score(x[-20:], y[-20:]) > 0.5
    y[3] = 1e18
    assert small_regressor(hidden_layer_sizes=(50,), loss="huber", max_iter=20).fit(x, y).score(x[4:], y[4:]) > 0.9


def test_dtype_converts_the_rows_first() -> None:
    assert equal(small(dtype="float32").fit(X, Y), small().fit(X.astype(np.float32), Y))
    assert small(dtype="float64").fit(X.astype(np.float32), Y).coefs_[0].dtype == np.float64


@BOTH
@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
@pytest.mark.thin(2)
def test_one_random_state_one_result(kind: Any, y: np.ndarray, divergence: str) -> None:
    def fit(state: Any) -> Any:
        return kind((8,), divergence=divergence, max_iter=2, random_state=state).fit(X[:100], y[:100])

    first = fit(3)
    assert equal(first, fit(3))
    assert not equal(first, fit(4))
    assert equal(first, fit(np.random.RandomState(3)))  # an integer is the seed of one
    state = np.random.RandomState(3)
    assert equal(first, fit(state))
    assert not equal(first, fit(state))  # it has moved on


# the weights are what they say


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)], ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "leaky_relu"])
@pytest.mark.thin(2)
def test_probabilities_by_hand(name: str, hidden: tuple[int, ...]) -> None:
    model = small(hidden_layer_sizes=hidden, activation=name, max_iter=2).fit(X, Y)
    scores = scores_by_hand(model, X, BY_HAND[name])
    np.testing.assert_allclose(model.predict_proba(X), softmax(scores, axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), log_softmax(scores, axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.transform(X), states_by_hand(model, X, BY_HAND[name]), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), scores.argmax(1))
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
def test_responses_by_hand_in_their_own_units(divergence: str) -> None:
    y = np.stack([1e3 * REAL + 7, X[:, 3]], 1)
    model = small_regressor(hidden_layer_sizes=(8, 6), divergence=divergence, max_iter=3).fit(X, y)
    np.testing.assert_allclose(model.predict(X), scores_by_hand(model, X, BY_HAND["relu"]), rtol=1e-9, atol=1e-9)


def test_a_module_gives_the_same_scores() -> None:
    model = small(hidden_layer_sizes=(8, 6), activation="tanh").fit(X, Y)
    module = model.to_module()
    assert isinstance(module, torch.nn.Sequential)
    logits = module(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(logits, scores_by_hand(model, X, np.tanh), rtol=1e-9, atol=1e-12)
    regressor = small_regressor().fit(X, 1e3 * REAL)
    found = regressor.to_module()(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found[:, 0], regressor.predict(X), rtol=1e-9, atol=1e-9)


def test_curves_are_those_of_the_history() -> None:
    model = small(max_iter=7).fit(X, Y)
    assert model.n_iter_ == len(model.history_) == 7
    assert model.loss_curve_ == [record.loss for record in model.history_]
    assert model.validation_scores_ is None
    assert model.n_outputs_ == 3
    assert model.n_features_in_ == 5


# no hidden layer


def test_without_hidden_layer_it_is_logistic_regression() -> None:
    alpha, x = 0.01, StandardScaler().fit_transform(X)
    model = LiftedClassifier((), alpha=alpha, max_iter=200, random_state=0).fit(x, Y)
    oracle = LogisticRegression(C=1 / (2 * len(X) * alpha), tol=1e-10, max_iter=1000).fit(x, Y)
    np.testing.assert_allclose(model.predict_proba(x), oracle.predict_proba(x), atol=5e-3)
    np.testing.assert_allclose(model.coefs_[0].T - model.coefs_[0].mean(1), oracle.coef_, atol=1e-2)


def test_without_hidden_layer_passes_are_logistic_regression_too() -> None:
    alpha = 0.01
    model = LiftedClassifier((), divergence="euclidean", alpha=alpha, max_iter=50, tol=0.0).fit(X, Y)
    oracle = LogisticRegression(C=1 / (2 * len(X) * alpha), tol=1e-10, max_iter=1000).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), oracle.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_without_hidden_layer_passes_are_ridge_regression(weighted: bool) -> None:
    """alpha stands beside the mean square of standardised responses: Ridge does not depend on their units."""
    y = np.stack([REAL, 1e4 * X[:, 0] + 100 * REAL + 3e5], 1)
    row_weights = np.random.default_rng(1).uniform(0.1, 3, len(X)) if weighted else None
    model = LiftedRegressor((), divergence="euclidean", alpha=0.1).fit(X, y, row_weights)
    total = len(X) if row_weights is None else row_weights.sum()
    oracle = Ridge(alpha=0.1 * total).fit(X, y, row_weights)
    np.testing.assert_allclose(model.coefs_[0].T, oracle.coef_, rtol=1e-6)
    np.testing.assert_allclose(model.intercepts_[0], oracle.intercept_, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X), oracle.predict(X), rtol=1e-6, atol=1e-6)


# going on


@BOTH
def test_a_warm_start_continues(kind: Any, y: np.ndarray) -> None:
    model = kind((8,), max_iter=4, random_state=0, warm_start=True).fit(X, y)
    cold = model.loss_curve_[0]
    assert model.fit(X, y).loss_curve_[0] < cold


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
def test_a_warm_start_begins_at_the_weights_of_the_last_fit(divergence: str) -> None:
    """The first loss of the second fit is that of the first fit's weights, in one batch of all rows."""
    size = len(X) if divergence == "fenchel" else "auto"
    model = small_regressor(divergence=divergence, warm_start=True, batch_size=size).fit(X, 50 * REAL + 3)
    expected = np.square(model.predict(X) - 50 * REAL - 3).mean() / np.var(50 * REAL)
    model.fit(X, 50 * REAL + 3)
    assert model.loss_curve_[0] == pytest.approx(expected, rel=1e-9)
    classifier = small(divergence=divergence, warm_start=True, batch_size=size).fit(X, Y)
    expected = -classifier.predict_log_proba(X)[np.arange(len(Y)), Y].mean()
    assert classifier.fit(X, Y).loss_curve_[0] == pytest.approx(expected, rel=1e-9)


def test_a_warm_start_refuses_other_classes() -> None:
    model = small(warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match="warm_start needs the classes of the last fit"):
        model.fit(X, Y + 1)
    small().fit(X, Y).fit(X, Y + 1)  # a cold one does not mind


def test_a_warm_start_refuses_other_numbers_of_responses() -> None:
    model = small_regressor(warm_start=True).fit(X, REAL)
    with pytest.raises(ValueError, match="y has 2 columns, but the network has 1 outputs"):
        model.fit(X, np.stack([REAL, REAL], 1))


def test_partial_fits_improve() -> None:
    model = small(hidden_layer_sizes=(20,))
    scores = []
    for _ in range(12):
        model.partial_fit(X, Y, classes=[0, 1, 2])
        scores.append(np.log(model.predict_proba(X)[np.arange(len(Y)), Y]).mean())
        assert model.n_iter_ == 1
    assert scores[-1] > scores[0] + 0.05
    assert scores[-1] == max(scores)


def test_partial_fits_of_a_regressor_improve_and_keep_their_units() -> None:
    model = small_regressor(hidden_layer_sizes=(20,), batch_size=10)
    scores = [model.partial_fit(X[part], 100 * REAL[part] + 5).score(X, 100 * REAL + 5) for part in chunks() * 6]
    assert np.median(scores[-6:]) > scores[0] + 0.1  # after a chunk of 80 rows the score may fall
    with pytest.raises(ValueError, match="2 columns"):
        model.partial_fit(X, np.stack([REAL, REAL], 1))


def chunks() -> list[slice]:
    return [slice(start, start + 80) for start in range(0, 240, 80)]


def test_a_chunk_may_lack_a_class() -> None:
    model = small(batch_size=10).partial_fit(X[Y < 2], Y[Y < 2], classes=[2, 0, 1])
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    assert model.predict_proba(X).shape == (240, 3)
    before = model.predict_proba(X[Y == 2])[:, 2].mean()
    for _ in range(10):
        model.partial_fit(X[Y == 2], Y[Y == 2])
    assert model.predict_proba(X[Y == 2])[:, 2].mean() > before + 0.1


def test_partial_fit_refuses() -> None:
    with pytest.raises(ValueError, match="first call of partial_fit needs all classes"):
        small().partial_fit(X, Y)
    with pytest.raises(ValueError, match="which is not one of the classes"):
        small().partial_fit(X, Y, classes=[0, 1])
    model = small().partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="which is not one of the classes"):
        model.partial_fit(X, Y + 7)
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X, Y, classes=[0, 1, 2, 3])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :3], Y)


def test_a_partial_fit_of_passes_is_one_pass() -> None:
    model = small(divergence="euclidean", max_iter="auto", tol=0.0).partial_fit(X, Y, classes=[0, 1, 2])
    assert model.n_iter_ == 1


# stopping


def held_back(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows that a fit trains on and those that it holds back, as it asks for them."""
    asked: list[Any] = []

    def split(*args: Any, **kwargs: Any) -> Any:
        asked.append(train_test_split(*args, **kwargs))
        return asked[-1]

    monkeypatch.setattr(stopping, "train_test_split", split)
    return asked


@BOTH
def test_early_stopping_keeps_the_best_weights(kind: Any, y: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = held_back(monkeypatch)
    model = kind((30,), early_stopping=True, n_iter_no_change=3, max_iter=90, validation_fraction=0.25, random_state=0)
    model.fit(X, y)
    kept, back = asked[0]
    assert len(back) == 60
    assert set(kept) | set(back) == set(range(240))
    scores = model.validation_scores_
    assert model.n_iter_ == len(scores) < 90
    assert model.score(X[back], y[back]) == pytest.approx(max(scores), rel=1e-9)
    best, idle = -np.inf, 0
    for place, score in enumerate(scores):
        idle = 0 if score > best + model.tol or place < 45 else idle + 1
        best = max(best, score)
        assert (idle >= 3) == (place == len(scores) - 1)


def test_held_back_rows_are_stratified(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = held_back(monkeypatch)
    small(early_stopping=True, validation_fraction=0.25).fit(X, Y)
    np.testing.assert_allclose(np.bincount(Y[asked[0][1]]), np.bincount(Y) / 4, atol=1)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, line: int) -> list[str]:
    """Ctrl-C while a fit prints its line of that number; the lines so far."""
    said: list[str] = []

    def interrupting(*args: Any, **kwargs: Any) -> None:
        said.append(str(args[0]))
        if len(said) == line:
            raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "print", interrupting)
    return said


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
@pytest.mark.parametrize("fitted", [False, True], ids=["new", "fitted"])
@pytest.mark.thin(2)
def test_an_interrupted_fit_raises_and_leaves_the_estimator_as_it_was(
    divergence: str, fitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small(divergence=divergence, tol=0.0)
    if fitted:
        model.fit(X, Y)
    model.set_params(verbose=True)
    before = dict(vars(model))
    said = interrupt_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert len(said) == 3
    assert vars(model) == before
    if fitted:
        interrupt_at(monkeypatch, 1)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X, Y)
        assert vars(model) == before


def test_ctrl_c_ends_a_serial_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    said = interrupt_at(monkeypatch, 7)  # in the second fold
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(small(verbose=True), X, Y, cv=3)
    assert len(said) == 7


@pytest.mark.parametrize(
    ("labels", "rare"),
    [(np.where(np.arange(240) == 7, 3, Y), 3), (np.arange(240) // 3, 41)],
    ids=["a class of one row", "more classes than rows to hold back"],
)
def test_early_stopping_trains_on_every_class_where_rows_are_few(labels: np.ndarray, rare: int) -> None:
    with pytest.warns(UserWarning, match="holds back 24 of 240 rows drawn without regard to their class") as warned:
        model = small(early_stopping=True, max_iter=2).fit(X, labels)
    assert warned[0].filename == __file__
    assert rare in model.classes_
    kept, back = holding(labels)
    assert set(kept) | set(back) == set(range(240))
    assert len(back) == 24
    assert set(labels[kept]) == set(labels)


def test_columns_are_scaled_by_the_rows_that_are_trained_on() -> None:
    seed = np.random.RandomState(0).randint(1 << 31)
    back = stopping.hold_back(Y, 240, 0.1, seed)[1]
    far = X.copy()
    far[back[0], 0] = 1e9
    plain, other = (small(early_stopping=True, max_iter=2, random_state=0).fit(x, Y) for x in (X, far))
    assert all(np.array_equal(a, b) for a, b in zip(plain.coefs_, other.coefs_, strict=True))


def test_no_row_that_is_held_back_has_a_copy_among_those_trained_on() -> None:
    rows = np.repeat(np.arange(80), 3)
    work = Work(Rows.of(X[rows], None), torch.from_numpy(Y[rows]), None, 0, None, None, None)
    kept, back = stopping.hold_back(Y[rows], 240, 0.1, 0, work.groups())
    assert len(back) == 24  # a tenth of the different rows, with all their copies
    assert not set(rows[kept]) & set(rows[back])
    assert work.take(np.arange(0, 240, 3)).groups() is None  # no copies, so nothing to keep together
    assert replace(work, y=torch.arange(240)).groups() is None  # equal inputs with different responses are no copies


def test_a_weight_is_a_repeated_row_for_early_stopping_too() -> None:
    options = {"early_stopping": True, "max_iter": 8, "n_iter_no_change": 8, "random_state": 0, "batch_size": 500}
    counts = np.random.RandomState(0).randint(0, 4, 120)
    order = np.random.RandomState(1).permutation(np.repeat(np.arange(120), counts))
    weighted = small_regressor(**options).fit(X[:120], REAL[:120], sample_weight=counts)
    repeated = small_regressor(**options).fit(X[order], REAL[order])
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(weighted.validation_scores_, repeated.validation_scores_, rtol=1e-6)


def holding(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return stopping.hold_back(labels, len(labels), 0.1, seed=0)


def test_early_stopping_without_rows_to_hold_back_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="of 1 sample leaves none to train on: give more rows"):
        small_regressor(early_stopping=True).fit(X[:1], REAL[:1])
    with pytest.raises(ValueError, match="of 5 samples leaves classes without a row to train on: give more rows"):
        small(early_stopping=True).fit(X[:5], np.arange(5))
    with pytest.raises(ValueError, match=r"validation_fraction=0.95 of 10 samples leaves none to train on"):
        small_regressor(early_stopping=True, validation_fraction=0.95).fit(X[:10], REAL[:10])


def test_verbose_says_a_line_per_pass(capsys: pytest.CaptureFixture[str]) -> None:
    model = small(verbose=True).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"Iteration {number}" for number in range(1, 6)]
    assert [float(line.split("loss = ")[1].split(",")[0]) for line in lines] == pytest.approx(
        model.loss_curve_, abs=1e-8
    )
    small(verbose=True, divergence="euclidean", max_iter=2, tol=0.0).fit(X, Y)
    assert len(capsys.readouterr().out.splitlines()) == 3  # record 0 is the random features
    small().fit(X, Y)
    assert not capsys.readouterr().out


# parameters are respected


def test_what_is_given_is_what_the_network_holds() -> None:
    model = small(hidden_layer_sizes=(6, 4), lam=[2.0, 3.0], alpha=0.25).fit(X, Y)
    assert [layer.lam for layer in model.network_.layers] == [2.0, 3.0, 1.0]
    assert [layer.penalty for layer in model.network_.layers] == [lnn.penalties.L2(0.25)] * 3
    assert [w.shape for w in model.coefs_] == [(5, 6), (6, 4), (4, 3)]
    only_alpha = small(alpha=0.25).fit(X, Y).network_.layers
    only_lam = small(lam=2.0).fit(X, Y).network_.layers
    neither = small().fit(X, Y).network_.layers
    assert only_lam[0].lam == 2.0
    assert isinstance(only_lam[0].penalty, lnn.penalties.L2)
    assert lnn.penalties.L2(0.25) not in (only_lam[0].penalty, neither[0].penalty)
    assert only_alpha[0].penalty == only_alpha[1].penalty == lnn.penalties.L2(0.25)
    assert only_alpha[0].lam == neither[0].lam > 0
    sparse = small(penalty="l1", alpha=0.25).fit(X, Y)
    assert [layer.penalty for layer in sparse.network_.layers] == [lnn.penalties.L1(0.25)] * 2
    group = lnn.penalties.GroupL2(0.1, "input")
    assert [layer.penalty for layer in small(penalty=group).fit(X, Y).network_.layers] == [group] * 2


def test_passes_and_batches_are_counted() -> None:
    model = small(max_iter=3, batch_size=50).fit(X, Y)
    assert [record.steps for record in model.history_] == [5, 5, 5]
    assert small(divergence="euclidean", max_iter=2, tol=0.0).fit(X, Y).n_iter_ == 2
    assert small(divergence="euclidean", max_iter=50, tol=0.05).fit(X, Y).n_iter_ < 50


@pytest.mark.parametrize("name", ["max_iter", "batch_size", "hidden_layer_sizes", "n_iter_no_change"])
@pytest.mark.thin(2)
def test_numpys_integers_are_integers(name: str) -> None:
    assert equal(*(small(**{name: given}).fit(X[:60], Y[:60]) for given in (np.int64(3), 3)))


def test_an_array_of_lams_is_one_each() -> None:
    model = small(hidden_layer_sizes=np.array([6, 4]), lam=np.array([2.0, 3.0])).fit(X, Y)
    assert [layer.lam for layer in model.network_.layers] == [2.0, 3.0, 1.0]


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
def test_the_l1_penalty_meets_its_optimality_conditions(divergence: str) -> None:
    """Without hidden layer: the gradient of the mean loss is -alpha sign(w) where w is not 0, and within alpha where it is."""
    alpha, noise = 0.03, np.hstack([X[:, :3], np.random.default_rng(2).standard_normal((240, 10))])
    noise = StandardScaler().fit_transform(noise)
    options = {"batch_size": 240, "max_iter": 300} if divergence == "fenchel" else {"max_iter": 100}
    model = small(hidden_layer_sizes=(), divergence=divergence, penalty="l1", alpha=alpha, **options).fit(noise, Y)
    w = model.coefs_[0]
    gradient = noise.T @ (model.predict_proba(noise) - np.eye(3)[Y]) / len(Y)
    assert (w == 0).mean() > 0.5
    assert (np.abs(gradient) <= alpha * 1.02).all()
    np.testing.assert_allclose(gradient[w != 0], -alpha * np.sign(w[w != 0]), rtol=0.02)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thin(2)
def test_every_activation_trains(name: str) -> None:
    model = small(hidden_layer_sizes=(20,), activation=name, max_iter=30).fit(X, Y)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert name == "identity" or model.score(X, Y) > 0.75  # Y is no linear matter


def test_an_activation_itself_is_taken() -> None:
    same = small(activation=act.FenchelLeakyReLU(0.3)).fit(X, Y)
    scores = scores_by_hand(same, X, lambda u: np.maximum(u, 0.3 * u))
    np.testing.assert_allclose(same.predict_proba(X), softmax(scores, axis=1), rtol=1e-9)
    assert equal(small(activation=act.FenchelReLU()).fit(X, Y), small(activation="relu").fit(X, Y))


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "hardsigmoid", "identity"])
@BOTH
@pytest.mark.thin(2)
def test_passes_never_raise_the_objective(kind: Any, y: np.ndarray, name: str) -> None:
    model = kind((6,), name, divergence="euclidean", max_iter=4, tol=0.0, random_state=0).fit(X[:80], y[:80])
    objectives = np.array([record.objective for record in model.history_])
    assert len(objectives) == 5
    assert (np.diff(objectives) <= 1e-6 * np.abs(objectives[:-1])).all()
    assert objectives[-1] < objectives[0]
    assert [layer.lam for layer in model.network_.layers] == [1.0, 1.0]


@pytest.mark.slow
def test_a_split_loss_gives_probabilities_on_the_simplex() -> None:
    loss = lnn.losses.Split(lnn.losses.CrossEntropy(), act.Simplex())
    model = small(hidden_layer_sizes=(10,), divergence="euclidean", loss=loss, max_iter=4).fit(X, Y)
    found, scores = model.predict_proba(X), scores_by_hand(model, X, BY_HAND["relu"])
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-9)
    assert (found >= 0).all()
    for row, score in zip(found, scores, strict=True):  # the projection on the simplex, by its optimality conditions
        shift = (score - row)[row > 0]
        np.testing.assert_allclose(shift, shift[0], atol=1e-9)
        assert (score[row == 0] <= shift[0] + 1e-9).all()
    assert model.score(X, Y) > np.bincount(Y).max() / len(Y)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(model.predict_log_proba(X), np.log(found))


def test_a_loss_of_ones_own_has_responses_as_they_are() -> None:
    model = small_regressor(loss=lnn.losses.Matching(act.Sigmoid()), max_iter=30).fit(X, Y / 2)
    scores = scores_by_hand(model, X, BY_HAND["relu"])
    np.testing.assert_allclose(model.predict(X), 1 / (1 + np.exp(-scores[:, 0])), rtol=1e-9)
    assert model.score(X, Y / 2) > 0.3


# prediction by the lifted rule


@pytest.mark.slow
def test_the_lifted_rule_takes_the_class_of_least_energy() -> None:
    """min over z >= 0 of lam (|z|^2/2 + |u+|^2/2 - uz) + logsumexp(zw + b) - (zw + b)_k, by scipy."""
    model = small(lam=0.5, prediction="lifted").fit(X, Y)
    (w0, w1), (b0, b1) = model.coefs_, model.intercepts_

    def energy(u: np.ndarray, label: int) -> float:
        def value(z: np.ndarray) -> tuple[float, np.ndarray]:
            s = z @ w1 + b1
            there = 0.5 * (z @ z / 2 + np.maximum(u, 0) @ np.maximum(u, 0) / 2 - u @ z) + logsumexp(s) - s[label]
            return there, 0.5 * (z - u) + w1 @ (softmax(s) - np.eye(3)[label])

        options = {"ftol": 1e-15, "gtol": 1e-10}
        return minimize(value, np.maximum(u, 0), jac=True, bounds=[(0, None)] * len(u), options=options).fun

    energies = np.array([[energy(x @ w0 + b0, label) for label in range(3)] for x in X[:8]])
    np.testing.assert_allclose(model.predict_proba(X[:8]), softmax(-energies, axis=1), atol=1e-4)
    np.testing.assert_array_equal(model.predict(X[:8]), energies.argmin(1))
    np.testing.assert_allclose(model.predict_log_proba(X[:8]), np.log(model.predict_proba(X[:8])), atol=1e-9)


def test_the_lifted_rule_is_the_recursion_where_that_has_no_energy() -> None:
    """A Fenchel divergence is 0 on the recursion, and the best response leaves the loss at 0."""
    model = small_regressor(hidden_layer_sizes=(8, 6), max_iter=10).fit(X, 100 * REAL)
    plain = model.predict(X)
    np.testing.assert_allclose(model.set_params(prediction="lifted").predict(X), plain, rtol=1e-4, atol=1e-2)


# errors

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"divergence": "bregman"}, "divergence must be one of"),
    ({"prediction": "soft"}, "prediction must be one of"),
    ({"max_iter": 0}, "max_iter must be a whole number of at least 1 or auto, got 0"),
    ({"max_iter": 2.5}, "max_iter must be a whole number of at least 1 or auto, got 2.5"),
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1 or auto, got 0"),
    ({"batch_size": "all"}, "batch_size must be a whole number of at least 1 or auto, got 'all'"),
    ({"n_iter_no_change": 0}, "n_iter_no_change must be a whole number of at least 1, got 0"),
    ({"n_iter_no_change": "auto"}, "n_iter_no_change must be a whole number of at least 1, got 'auto'"),
    ({"alpha": -1.0}, "alpha must be a number of at least 0 or auto, got -1.0"),
    ({"alpha": float("nan")}, "alpha must be a number of at least 0 or auto, got nan"),
    ({"alpha": "none"}, "alpha must be a number of at least 0 or auto, got 'none'"),
    ({"tol": -1e-3}, "tol must be a number of at least 0, got -0.001"),
    ({"tol": float("inf")}, "tol must be a number of at least 0, got inf"),
    ({"tol": "auto"}, "tol must be a number of at least 0, got 'auto'"),
    ({"validation_fraction": 0.0}, "validation_fraction must lie between 0 and 1, got 0.0"),
    ({"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1, got 1.0"),
    ({"dtype": "float16"}, "dtype must be None, 'float32' or 'float64', got 'float16'"),
    ({"dtype": "double precision"}, "dtype must be None, 'float32' or 'float64', got 'double precision'"),
    ({"penalty": "l3"}, "unknown penalty 'l3': give one of l2, l1, "),
    ({"activation": "swish"}, "unknown activation 'swish'"),
    ({"loss": "hinge"}, "unknown loss 'hinge'"),
    ({"lam": -1.0}, "lam must be positive, got -1.0"),
    ({"lam": [1.0, 2.0, 3.0]}, "lam has 3 entries for 1 hidden layers"),
    ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be 'auto' or hold widths of at least 1"),
    ({"divergence": "euclidean", "activation": "logistic"}, "no jointly convex divergence: use divergence='fenchel'"),
    ({"divergence": "euclidean", "early_stopping": True}, "early_stopping and batch_size belong to mini-batches"),
    ({"divergence": "euclidean", "batch_size": 10}, "early_stopping and batch_size belong to mini-batches"),
    ({"activation": act.LeakyReLU()}, "no finite curvature"),
]


@pytest.mark.parametrize(
    ("options", "sentence"), WRONG, ids=[" ".join(map(str, o)) + f" {n}" for n, (o, _) in enumerate(WRONG)]
)
@BOTH
def test_wrong_parameters_are_refused_in_words(
    kind: Any, y: np.ndarray, options: dict[str, Any], sentence: str
) -> None:
    model = kind(**{"hidden_layer_sizes": (4,), "max_iter": 2, **options})
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        model.fit(X, y)


@BOTH
def test_infinite_rows_and_missing_responses_are_refused(kind: Any, y: np.ndarray) -> None:
    model, broken = kind((4,), max_iter=1, random_state=0), X.copy()
    broken[3, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model.fit(broken, y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, np.where(np.arange(240) == 3, np.nan, y))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(X, y).predict(broken)
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :4])


# quality


@pytest.mark.slow
def test_digits_are_read_as_well_as_by_scikit_learns_network() -> None:
    x, y = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(x, y, random_state=0, stratify=y)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer = MLPClassifier(random_state=0).fit(train, y_train).score(test, y_test)
    ours = LiftedClassifier(random_state=0).fit(train, y_train).score(test, y_test)
    assert ours >= 0.96
    assert ours >= peer - 0.01


@pytest.mark.slow
def test_a_smooth_response_is_learned() -> None:
    x, y = make_friedman1(2500, noise=0.3, random_state=0)
    assert LiftedRegressor(random_state=0).fit(x[:2000], y[:2000]).score(x[2000:], y[2000:]) > 0.95


def test_several_responses_are_learned_together() -> None:
    x, y = make_friedman1(1200, noise=0.1, random_state=0)
    both = np.stack([y, 1e3 * (x[:, 0] * x[:, 1]) - 4], 1)
    model = LiftedRegressor((50,), random_state=0, max_iter=40).fit(x[:1000], both[:1000])
    left = np.square(model.predict(x[1000:]) - both[1000:]).mean(0) / both[1000:].var(0)
    assert (left < 0.1).all()


def test_units_of_the_response_do_not_matter() -> None:
    plain, other = small_regressor(max_iter=20).fit(X, REAL), small_regressor(max_iter=20).fit(X, 1e6 * REAL + 3e7)
    np.testing.assert_allclose((other.predict(X) - 3e7) / 1e6, plain.predict(X), atol=1e-6)
    np.testing.assert_allclose(other.loss_curve_, plain.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(other.transform(X), plain.transform(X), atol=1e-6)


def test_a_constant_response_is_learned() -> None:
    model = small_regressor().fit(X, np.full(240, 42.0))
    np.testing.assert_allclose(model.predict(X), 42.0, atol=1e-2)


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
@pytest.mark.thin(2)
def test_rows_that_are_all_alike_give_the_mean_response(seed: int) -> None:
    y = np.random.default_rng(seed).standard_normal(30)
    model = LiftedRegressor(random_state=0).fit(np.ones((30, 3)), y)
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), y.mean(), atol=1e-3)


UNITS = np.array([1.0, 1e3, 1e-3, 50.0, 1.0]), np.array([0.0, 1e4, 5.0, -3.0, 0.0])


@pytest.mark.parametrize(
    "options", [{}, {"hidden_layer_sizes": ()}, {"sample_weight": True}], ids=["relu", "linear", "weights"]
)
def test_the_units_of_the_inputs_do_not_matter(options: dict[str, Any]) -> None:
    options = dict(options)
    row_weights = np.arange(len(X)) % 3 + 1.0 if options.pop("sample_weight", False) else None
    scale, shift = UNITS
    for make, y in ((small, Y), (small_regressor, REAL)):
        plain, other = make(**options).fit(X, y, row_weights), make(**options).fit(X * scale + shift, y, row_weights)
        scores = [model._scores(x).numpy() for model, x in ((plain, X), (other, X * scale + shift))]
        np.testing.assert_allclose(scores[1], scores[0], rtol=1e-6, atol=1e-6)


def test_indicators_keep_their_scale() -> None:
    rare = np.hstack([X, (np.arange(len(X)) == 7)[:, None]])
    scaling = small().fit(rare, Y)._inputs
    np.testing.assert_allclose(scaling.scale, [*X.std(0), 1.0])
    np.testing.assert_allclose(scaling.mean, rare.mean(0))


@pytest.mark.slow
def test_the_wine_table_needs_no_scaler() -> None:
    x, y = load_wine(return_X_y=True)
    assert cross_val_score(LiftedClassifier(random_state=0), x, y, cv=3).mean() > 0.95


@pytest.mark.parametrize("make", [small, small_regressor], ids=["classifier", "regressor"])
def test_partial_fit_continues_in_the_units_of_the_first_call(make: Callable[..., Any]) -> None:
    """The weights that a trainer would start from, kept again, are the weights there are."""
    y = Y if make is small else REAL
    scale, shift = UNITS
    model = make(warm_start=True).fit(X * scale + shift, y)
    before = [part.copy() for part in (*model.coefs_, *model.intercepts_)]
    model._keep(model._start(torch.from_numpy(model.coefs_[0])), [], 0)
    for part, old in zip((*model.coefs_, *model.intercepts_), before, strict=True):
        np.testing.assert_allclose(part, old, rtol=1e-9, atol=1e-9)


def test_a_fit_that_fails_leaves_the_estimator_as_it_was() -> None:
    model = small().fit(X, Y)
    before, proba = dict(vars(model)), model.predict_proba(X)
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):
        model.fit(X[:, :3], np.where(Y > 0, "yes", "no"), sample_weight=np.zeros(len(X)))
    assert list(model.classes_) == [0, 1, 2]
    assert model.n_features_in_ == 5
    assert set(vars(model)) == set(before)
    np.testing.assert_array_equal(model.predict_proba(X), proba)
    fresh = small()
    with pytest.raises(ValueError, match="not one of the classes"):
        fresh.partial_fit(X, Y + 1, classes=[0, 1, 2])
    fresh.partial_fit(X, Y, classes=[0, 1, 2])


def test_a_fit_does_not_use_the_moments_of_earlier_partial_fits() -> None:
    seen = small().partial_fit(X * 100, Y, classes=[0, 1, 2]).fit(X[:, :3], Y).partial_fit(X[:, :3], Y)
    plain = small().fit(X[:, :3], Y).partial_fit(X[:, :3], Y)
    assert equal(seen, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
def test_a_gpu_gives_what_the_cpu_gives(divergence: str) -> None:
    x, y = load_digits(return_X_y=True)
    x, row_weights = x[:600] / 16, np.arange(600) % 3 + 1.0
    models = [small(divergence=divergence, device=device).fit(x, y[:600], row_weights) for device in (None, "cuda")]
    assert {type(part) for part in models[1].coefs_} == {np.ndarray}
    np.testing.assert_allclose(models[1].predict_proba(x), models[0].predict_proba(x), atol=1e-3)


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_a_fit_that_diverges_warns_and_keeps_the_last_good_weights(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftednn.defaults.MiniBatch", partial(lnn.MiniBatch, step=1e12, refresh=1))
    model = small(batch_size=10)
    with pytest.warns(ConvergenceWarning, match="training diverged.*last good"):
        getattr(model, call)(X, Y, **({"classes": np.unique(Y)} if call == "partial_fit" else {}))
    assert np.isfinite(model.predict_proba(X)).all()
