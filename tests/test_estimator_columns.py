"""Categories and missing values in the estimators: the encoding that the command line has too."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from scipy import sparse

from liftednn import LiftedClassifier, LiftedRegressor
from liftednn.data.tables import Encoding, read
from liftednn.estimators import columns

RNG = np.random.default_rng(0)
CITIES = np.array(["Oslo", "Rome", "Lima"])[RNG.integers(0, 3, 200)]
SIZES = RNG.standard_normal(200)
CODES = RNG.integers(3, 6, 200)
REAL = (CITIES == "Rome") * 2.0 + SIZES + (CODES == 4)
Y = np.where(REAL > 1, "big", "small")
FRAME = pd.DataFrame({"city": CITIES, "size": SIZES, "code": CODES})
# The same by hand: indicators in the order of columns, categories in their own order.
BY_HAND = np.column_stack([*(city == CITIES for city in ("Lima", "Oslo", "Rome")), SIZES, CODES]).astype(float)


def classifier(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (6,), "max_iter": 5, "random_state": 0, **options})


def regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (6,), "max_iter": 5, "random_state": 0, **options})


def assert_same(a: Any, b: Any) -> None:
    for p, q in zip([*a.coefs_, *a.intercepts_], [*b.coefs_, *b.intercepts_], strict=True):
        np.testing.assert_array_equal(p, q)


class Polars:
    """As much of a polars frame as is read."""

    def __init__(self, frame: pd.DataFrame, kinds: dict[str, str]) -> None:
        self.frame, self.columns, self.kinds = frame, list(frame.columns), kinds
        self.dtypes, self.shape = [kinds.get(name, "Float64") for name in frame], frame.shape

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, name: str) -> Any:
        column = self.frame[name]

        class Series:
            dtype = self.kinds.get(name, "Float64")

            def to_numpy(self) -> np.ndarray:
                return column.to_numpy()

        return Series()


# categories


@pytest.mark.parametrize("kind", [object, "category", "string"])
def test_text_and_categories_of_a_frame_are_indicators(kind: Any) -> None:
    model = classifier().fit(FRAME.astype({"city": kind}), Y)
    assert_same(model, classifier().fit(BY_HAND, Y))
    np.testing.assert_array_equal(model.predict(FRAME), classifier().fit(BY_HAND, Y).predict(BY_HAND))
    assert model.coefs_[0].shape == (5, 6)
    assert list(model.feature_names_in_) == ["city", "size", "code"]
    assert model.n_features_in_ == 3
    assert model.transform(FRAME).shape == (200, len(model.get_feature_names_out()))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(FRAME), model.predict_proba(FRAME))


@pytest.mark.parametrize(
    "named",
    [["city", "code"], [0, 2], np.array([True, False, True]), np.array([2, 0])],
    ids=["names", "numbers", "mask", "order"],
)
def test_columns_are_named_numbered_or_masked(named: Any) -> None:
    wanted = np.column_stack([BY_HAND[:, :4], *(code == CODES for code in (3, 4, 5))]).astype(float)
    assert_same(regressor(categorical_features=named).fit(FRAME, REAL), regressor().fit(wanted, REAL))


def test_an_array_of_numbers_or_of_objects_may_hold_categories() -> None:
    wanted = np.column_stack([SIZES, *(code == CODES for code in (3, 4, 5))]).astype(float)
    numbers = np.column_stack([SIZES, CODES])
    model = regressor(categorical_features=[1]).fit(numbers, REAL)
    assert_same(model, regressor().fit(wanted, REAL))
    assert_same(model, regressor(categorical_features=[1]).fit(numbers.astype(object).tolist(), REAL))
    objects = FRAME.to_numpy()
    assert_same(regressor(categorical_features=[0]).fit(objects, REAL), regressor().fit(BY_HAND, REAL))


def test_frames_of_other_libraries_are_read_by_column() -> None:
    given = Polars(FRAME, {"city": "Categorical"})
    model = regressor().fit(given, REAL)
    assert_same(model, regressor().fit(BY_HAND, REAL))
    np.testing.assert_array_equal(model.predict(given), model.predict(Polars(FRAME, {"city": "String"})))
    with pytest.raises(ValueError, match=r"X has columns of text, \['city'\]"):
        regressor(categorical_features=None).fit(Polars(FRAME, {"city": "String"}), REAL)


def test_an_unknown_category_has_no_indicator() -> None:
    model = regressor().fit(FRAME, REAL)
    zeros = np.column_stack([np.zeros((3, 3)), BY_HAND[:3, 3:]])
    for strange in ("Paris", None, np.nan):
        found = model.predict(FRAME[:3].assign(city=pd.Series([strange] * 3, dtype=object)))
        np.testing.assert_array_equal(found, regressor().fit(BY_HAND, REAL).predict(zeros))


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA], ids=str)
def test_a_missing_category_of_training_is_a_category(gap: Any) -> None:
    cities = CITIES.astype(object)
    cities[::5] = gap
    model = regressor().fit(FRAME.assign(city=cities), REAL)
    wanted = np.column_stack([BY_HAND[:, :3], np.zeros(200), BY_HAND[:, 3:]])
    wanted[::5, :3], wanted[::5, 3] = 0, 1
    assert_same(model, regressor().fit(wanted, REAL))
    other = FRAME[:1].assign(city=pd.Series([None], dtype=object))
    np.testing.assert_array_equal(
        model.predict(other), regressor().fit(wanted, REAL).predict([[0, 0, 0, 1, *wanted[0, 4:]]])
    )


def test_streams_and_warm_starts_keep_the_categories_of_the_first_call() -> None:
    model = classifier()
    for part in (slice(0, 100), slice(100, 200)):
        model.partial_fit(FRAME[part], Y[part], classes=["big", "small"])
    model.partial_fit(FRAME[:50].assign(city="Paris"), Y[:50])
    assert model.coefs_[0].shape == (5, 6)
    warm = classifier(warm_start=True).fit(FRAME, Y).fit(FRAME.assign(city="Oslo"), Y)
    assert warm.coefs_[0].shape == (5, 6)
    assert classifier().fit(FRAME, Y).fit(FRAME.assign(city="Oslo"), Y).coefs_[0].shape == (3, 6)


WRONG: list[tuple[Any, str]] = [
    ("auto", r"categorical_features must be None, 'from_dtype' or a list of names or numbers, got 'auto'"),
    (
        ["town"],
        r"categorical_features=\['town'\] must be names, indices or a mask of the columns of X, which has 3 columns",
    ),
    ([3], r"categorical_features=\[3\] must be names"),
    ([True], r"categorical_features=\[True\] must be names"),
    ([0.5], r"categorical_features=\[0.5\] must be names"),
    (
        None,
        r"X has columns of text, \['city'\]: give categorical_features='from_dtype', or name them there, or remove them",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=str)
def test_wrong_names_of_columns_are_refused_in_words(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        classifier(categorical_features=given).fit(FRAME, Y)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match=r"column 'city' of X has 1001 categories, 1000 at most: group them"):
        regressor().fit(pd.DataFrame({"city": [f"c{i}" for i in range(1001)]}), np.arange(1001))
    with pytest.raises(ValueError, match=r"columns of the same name among \['a', 'a'\]"):
        regressor().fit(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), [1.0])
    with pytest.raises(ValueError, match="categorical_features is for a dense X, and X is sparse"):
        regressor(categorical_features=[0]).fit(sparse.csr_matrix(BY_HAND), REAL)
    with pytest.raises(ValueError, match="feature names should match"):
        regressor().fit(FRAME, REAL).predict(FRAME.rename(columns={"city": "town"}))
    with pytest.raises(
        ValueError, match="column 'size' of X is one of numbers and holds 'large': give numbers, or NaN"
    ):
        regressor().fit(FRAME, REAL).predict(FRAME.assign(size="large"))


# missing numbers


def gaps(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[::4, 1] = np.nan
    return x


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_missing_number_is_the_median_and_an_indicator(weighted: bool) -> None:
    x = RNG.standard_normal((201, 3))
    row_weights = np.arange(201) % 3 if weighted else None
    given, y = gaps(x), x[:, 0] + x[:, 1]
    present = given[:, 1] if row_weights is None else given[:, 1].repeat(row_weights)
    middle = np.nanquantile(present, 0.5, method="inverted_cdf")
    wanted = np.column_stack(
        [x[:, 0], np.where(np.isnan(given[:, 1]), middle, x[:, 1]), np.isnan(given[:, 1]), x[:, 2]]
    )
    model, other = regressor().fit(given, y, row_weights), regressor().fit(wanted, y, row_weights)
    assert_same(model, other)
    np.testing.assert_array_equal(model.predict(given), other.predict(wanted))
    frame = pd.DataFrame(given, columns=["a", "b", "c"])
    assert_same(model, regressor().fit(frame, y, row_weights))
    assert_same(model, regressor().fit(frame.astype({"b": "Float64"}), y, row_weights))


def test_a_number_that_was_never_missing_is_the_median_in_predictions() -> None:
    x = RNG.standard_normal((101, 2))
    model = regressor().fit(x, x[:, 0])
    assert model.coefs_[0].shape == (2, 6)
    middle = np.median(x[:, 1])
    np.testing.assert_array_equal(model.predict([[1.0, np.nan]]), model.predict([[1.0, middle]]))


def test_where_numbers_are_missing_may_matter() -> None:
    x = RNG.standard_normal((300, 2))
    missing = RNG.random(300) < 0.5
    model = classifier(max_iter=40).fit(np.where(missing[:, None] & [True, False], np.nan, x), missing)
    assert model.score(np.where(missing[:, None] & [True, False], np.nan, x), missing) > 0.97


def test_columns_without_any_number() -> None:
    x = np.column_stack([SIZES, np.full(200, np.nan)])
    assert np.isfinite(regressor().fit(x, REAL).predict(x)).all()


@pytest.mark.parametrize(
    "options", [{"divergence": "euclidean"}, {"early_stopping": True}, {"robust": 0.1}, {"dtype": "float32"}]
)
def test_gaps_with_other_parameters(options: dict[str, Any]) -> None:
    frame = FRAME.assign(size=np.where(np.arange(200) % 7 == 0, np.nan, SIZES)).astype({"size": np.float32})
    model = regressor(**options).fit(frame, REAL)
    assert model.coefs_[0].shape == (6, 6)
    assert np.isfinite(model.predict(frame)).all()


def test_a_table_of_the_command_line_is_encoded_alike(tmp_path: Any) -> None:
    frame = FRAME.assign(
        size=np.where(np.arange(200) % 7 == 0, np.nan, SIZES), city=FRAME["city"].astype(object).where(SIZES <= 1, None)
    )
    frame.assign(y=REAL).to_csv(tmp_path / "t.csv", index=False)
    table = read(tmp_path / "t.csv", missing=[""])
    encoding = Encoding.of(table, "y", missing=[""])
    inputs = encoding.inputs(table)  # "" comes first there, and numbers are standardised
    model: Any = regressor().fit(frame, REAL)
    own = model._columns(columns._values(frame, model._known))
    order = [1, 2, 3, 0]
    np.testing.assert_array_equal(inputs[:, order], own[:, :4])
    np.testing.assert_array_equal(inputs[:, 5], own[:, 5])
    np.testing.assert_allclose(
        inputs[:, 4] * encoding.columns[1].scale + encoding.columns[1].mean, own[:, 4], atol=1e-5
    )
