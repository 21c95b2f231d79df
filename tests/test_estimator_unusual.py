"""Data on which a user expects no more than that it works: constant columns, far outliers, rows that do not count, far responses."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from liftednn import LiftedClassifier, LiftedRegressor

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(400, 4)
REAL = X[:, 0] + np.sin(2 * X[:, 1])
LABELS = (X[:, 0] > 0.5).astype(int)
NEW = RANDOM.randn(400, 4)
EXPECTED = NEW[:, 0] + np.sin(2 * NEW[:, 1])


def regressor(**more: Any) -> LiftedRegressor:
    return LiftedRegressor(random_state=0, **more)


def classifier(**more: Any) -> LiftedClassifier:
    return LiftedClassifier(random_state=0, **more)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 3.7, 1e5 + 0.1])
@pytest.mark.parametrize("rows", [300, 2000])
@pytest.mark.thin(10)
def test_constant_columns_give_the_mean_response(value: float, rows: int) -> None:
    x, y = np.full((rows, 3), value), (np.arange(rows) % 3 == 0).astype(int)
    share = y.mean()
    np.testing.assert_allclose(classifier().fit(x, y).predict_proba(x[:1]), [[1 - share, share]], atol=0.02)
    np.testing.assert_allclose(regressor().fit(x, 1.0 * y).predict(x[:1]), [share], atol=0.02)


@pytest.mark.parametrize("loss", ["absolute", "huber", "quantile"])
@pytest.mark.parametrize("outlier", [1e4, 1e6, 1e9])
@pytest.mark.thin(4)
def test_losses_of_bounded_slope_ignore_one_outlier(loss: str, outlier: float) -> None:
    y = REAL.copy()
    y[0] = outlier
    assert regressor(loss=loss).fit(X, y).score(NEW, EXPECTED) > 0.95


def test_a_stream_of_frames_knows_the_categories_that_their_type_names() -> None:
    frame = pd.DataFrame({"kind": pd.Categorical(RANDOM.choice(list("xyz"), 1000), categories=list("xyz"))})
    y = 1.0 * frame.kind.cat.codes.to_numpy()
    model = regressor().partial_fit(frame[:1], y[:1])
    for start in range(1, 1000, 200):
        model.partial_fit(frame[start : start + 200], y[start : start + 200])
    assert model.score(frame, y) > 0.99


def test_tails_of_sparse_columns_are_compressed_as_those_of_dense_ones() -> None:
    x = np.exp(3 * RANDOM.randn(300, 5)) * (RANDOM.rand(300, 5) < 0.5)
    y = np.log1p(x[:, 0]) + np.log1p(x[:, 1])
    dense = regressor().fit(x, y)
    np.testing.assert_allclose(regressor().fit(sparse.csr_matrix(x), y).predict(x), dense.predict(x), atol=1e-6)
    assert dense.score(x, y) > 0.99


def test_rows_held_back_count_by_their_weights() -> None:
    wrong = RANDOM.rand(400) < 0.6
    y, weights = np.where(wrong, -REAL, REAL), np.where(wrong, 1e-6, 1.0)
    model = regressor(early_stopping=True).fit(X, y, weights)
    assert model.score(NEW, EXPECTED) > 0.9
    scores = [score for score in model.validation_scores_ or [] if score is not None]
    assert max(scores) > 0.9


def test_rows_of_weight_0_are_as_if_they_were_not_there() -> None:
    weights = np.ones(400)
    weights[:3] = 0
    counts = weights > 0
    gaps = X.copy()
    gaps[0, 1] = np.nan
    frame = pd.DataFrame(X, columns=list("abcd")).assign(e=RANDOM.choice(["u", "v"], 400))
    frame.loc[:2, "e"] = ["p", "q", "r"]
    for x in (gaps, frame):
        model = regressor(max_iter=5)  # weights of 1 change the last digits, and all passes would change more of them
        found, expected = clone(model).fit(x, REAL, weights), clone(model).fit(x[counts], REAL[counts])
        assert found.coefs_[0].shape == expected.coefs_[0].shape
        np.testing.assert_allclose(found.predict(x[counts]), expected.predict(x[counts]), atol=1e-9)
    weights = np.where((LABELS == 1) & (RANDOM.rand(400) < 0.7), 0.0, 1.0)
    counts = weights > 0
    found, expected = (
        classifier(class_weight="balanced", max_iter=5).fit(*given)
        for given in ((X, LABELS, weights), (X[counts], LABELS[counts]))
    )
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e7, 1.7e9])
@pytest.mark.thin(3)
def test_responses_far_from_0_keep_their_digits_in_float32(offset: float) -> None:
    x, y = X.astype(np.float32), offset + 10 * REAL
    model = regressor(warm_start=True).fit(x, y)
    assert model.score(x, y) > 0.99
    assert model.coefs_[0].dtype == (np.float64 if offset else np.float32)
    assert model.set_params(max_iter=2).fit(x, y).score(x, y) > 0.99


def test_read_only_weights_are_taken_without_a_warning() -> None:
    weights = np.ones(400)
    weights.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor(max_iter=30).fit(X, REAL, weights)


def test_settings_of_the_wrong_kind_are_refused() -> None:
    for name, value in (("early_stopping", "auto"), ("warm_start", "no"), ("verbose", "yes")):
        with pytest.raises(ValueError, match=f"{name} must be True or False"):
            regressor(**{name: value}).fit(X, REAL)
    with pytest.raises(ValueError, match="categorical_features must be None, 'from_dtype' or a list"):
        regressor(categorical_features=3).fit(X, REAL)
    regressor(categorical_features=[], max_iter=30).fit(X, REAL)


def test_columns_unlike_those_of_the_last_fit_are_refused_in_words() -> None:
    model = regressor(max_iter=30, warm_start=True).fit(X, REAL)
    with pytest.raises(ValueError, match="X has 3 features, but LiftedRegressor is expecting 4"):
        model.fit(X[:, :3], REAL)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = regressor(max_iter=2, warm_start=True).fit(frame, REAL)
    with pytest.raises(ValueError, match="feature names should match"):
        model.fit(frame[list("dcba")], REAL)
    with pytest.raises(ValueError, match=r"columns of text, \['a'\]: they had numbers in fit"):
        regressor(max_iter=30).fit(frame, REAL).predict(frame.assign(a="z"))


def test_categories_that_vary_little_are_not_left_out() -> None:
    random = np.random.RandomState(0)
    numbers, category, means = random.normal(size=(2500, 20)), random.randint(0, 250, 2500), random.normal(size=250)
    x, y = np.concatenate([np.eye(250)[category], numbers], 1), means[category] + numbers[:, 0]
    model = LiftedRegressor(random_state=0, max_iter=20).fit(x[:2000], y[:2000])
    assert model.score(x[2000:], y[2000:]) > 0.98


@pytest.mark.parametrize(
    "column",
    [pd.date_range("2020", periods=40), pd.to_timedelta(np.arange(40), unit="s"), np.arange(40) * 1j],
    ids=["dates", "durations", "complex"],
)
@pytest.mark.parametrize("more", [{}, {"number": np.arange(40.0)}, {"text": ["a", "b"] * 20}], ids=str)
def test_columns_that_are_no_numbers_are_named(column: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\['when'\]: give real numbers"):
        LiftedRegressor(max_iter=1).fit(pd.DataFrame({"when": column, **more}), np.arange(40.0))


def test_a_fraction_of_numpy_and_weights_in_read_only_memory_are_taken() -> None:
    x = np.random.RandomState(0).normal(size=(60, 3))
    model = LiftedRegressor(
        (4,), max_iter=2, early_stopping=True, validation_fraction=np.float32(0.2), random_state=0
    ).fit(x, x[:, 0])
    before = model.predict(x)
    for part in (*model.coefs_, *model.intercepts_):
        part.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model.predict(x), before)


def test_dates_may_be_categories() -> None:
    when = pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"] * 30))
    x, y = pd.DataFrame({"when": when, "number": np.arange(60.0)}), np.arange(60) % 2.0
    model = LiftedRegressor((8,), categorical_features=["when"], random_state=0).fit(x, y)
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_a_few_more_rows_keep_what_was_learned_in_directions_that_they_do_not_vary_in(rows: int) -> None:
    random = np.random.RandomState(0)
    x = random.normal(size=(1500, 5))
    x[:, 4] = random.rand(1500) < 0.5
    y = ((x[:, 0] > 0) ^ (x[:, 4] > 0)).astype(int)
    model = LiftedClassifier(random_state=0, max_iter=20).fit(x[:1000], y[:1000])
    before = model.score(x[1200:], y[1200:])
    chosen = 1000 + np.flatnonzero(x[1000:1200, 4] == 1)[:rows]
    model.partial_fit(x[chosen], y[chosen])
    assert model.score(x[1200:], y[1200:]) > before - 0.02


def test_a_stream_of_single_rows_keeps_what_was_learned() -> None:
    x = np.random.RandomState(1).normal(size=(1600, 5))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2]
    model = LiftedRegressor(random_state=0).partial_fit(x[:500], y[:500])
    before = model.score(x[600:], y[600:])
    for row in range(500, 530):
        model.partial_fit(x[row : row + 1], y[row : row + 1])
    assert model.score(x[600:], y[600:]) > before - 0.02


def test_a_first_call_of_few_rows_learns_as_much_as_fit_would() -> None:
    """Only calls that go on from weights take shorter steps."""
    x = np.random.RandomState(2).normal(size=(20, 3))
    model = LiftedRegressor((8,), random_state=0).partial_fit(x, x[:, 0])
    assert model.score(x, x[:, 0]) > 0.8


@pytest.mark.parametrize("loss", [None, 5, ["squared"]])
@pytest.mark.parametrize("kind", [LiftedRegressor, LiftedClassifier])
def test_what_is_no_loss_is_refused_in_words(kind: Any, loss: Any) -> None:
    with pytest.raises(ValueError, match=r"loss must be a name or an object of liftednn\.losses, got"):
        kind(loss=loss).fit([[0.0], [1.0]], [0, 1])


def test_early_stopping_waits_until_the_rate_has_fallen() -> None:
    generator = np.random.default_rng(2)
    x, new = generator.normal(size=(200, 8)), generator.normal(size=(1000, 8))
    y, expected = (part[:, 0] + abs(part[:, 1]) for part in (x, new))
    model = regressor(early_stopping=True).fit(x, y + generator.normal(size=200))
    assert model.score(new, expected) > 0.7
    assert model.n_iter_ >= 60  # 100 passes at most: half of them, and n_iter_no_change


def test_dates_as_python_objects_are_refused_in_words() -> None:
    frame = pd.DataFrame({"z": [1.0, 2.0, 3.0], "day": [datetime.date(2020, 1, day) for day in (1, 2, 3)]})
    with pytest.raises(ValueError, match=r"columns of dates, durations or complex numbers, \['day'\]"):
        regressor().fit(frame, [1.0, 2.0, 3.0])
