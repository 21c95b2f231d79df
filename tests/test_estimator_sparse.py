"""Sparse X, X with very many columns, and predictions on an X that must not be copied."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import liftednn as lnn
from liftednn import LiftedClassifier, LiftedRegressor
from liftednn.estimators import first_rows, reduction, rows, scaling, structure
from liftednn.estimators.rows import Rows
from liftednn.training import plan

RNG = np.random.default_rng(0)
X = np.where(RNG.random((300, 12)) < 0.3, np.round(RNG.standard_normal((300, 12)), 1), 0.0)
REAL = X[:, 0] - 2 * X[:, 1] + X[:, 2] ** 2
Y = (REAL > 0).astype(int)


def classifier(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, **options})


def regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0, **options})


def assert_same(a: Any, b: Any) -> None:
    for p, q in zip([*a.coefs_, *a.intercepts_], [*b.coefs_, *b.intercepts_], strict=True):
        np.testing.assert_array_equal(p, q)


# sparse X


@pytest.mark.parametrize("form", ["csr_matrix", "csr_array", "csc_matrix", "coo_array"])
@pytest.mark.parametrize(("make", "y"), [(classifier, Y), (regressor, REAL)], ids=["classifier", "regressor"])
@pytest.mark.thin(2)
def test_a_sparse_x_gives_what_the_dense_one_gives(form: str, make: Any, y: np.ndarray) -> None:
    given = getattr(sparse, form)(X)
    dense, found = make().fit(X, y), make().fit(given, y)
    assert_same(dense, found)
    np.testing.assert_array_equal(dense.predict(X), found.predict(given))
    np.testing.assert_array_equal(dense.transform(X), found.transform(given))


@pytest.mark.parametrize(
    "options",
    [{"early_stopping": True}, {"divergence": "euclidean"}, {"dtype": "float32"}, {"penalty": "l1", "robust": 0.1}],
    ids=str,
)
@pytest.mark.thin(2)
def test_sparse_rows_with_other_parameters(options: dict[str, Any]) -> None:
    row_weights = np.arange(300) % 3
    given = sparse.csr_array(X)
    assert_same(classifier(**options).fit(X, Y, row_weights), classifier(**options).fit(given, Y, row_weights))


def test_a_stream_of_sparse_chunks() -> None:
    dense, found = regressor(), regressor()
    for part in (slice(0, 100), slice(100, 300)):
        dense.partial_fit(X[part], REAL[part])
        found.partial_fit(sparse.csc_matrix(X[part]), REAL[part])
    assert_same(dense, found)


def test_sparse_rows_are_made_dense_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    plain = Rows._scaled

    def reading(self: Rows, key: Any) -> np.ndarray:
        found = plain(self, key)
        made.append(len(found))
        return found

    monkeypatch.setattr(Rows, "_scaled", reading)
    for module in (rows, scaling):
        monkeypatch.setattr(module, "_ENTRIES", 12 * 64)
    monkeypatch.setattr(rows, "_SMALL", 0)
    monkeypatch.setattr(rows, "_FRACTION", 0.0)
    monkeypatch.setattr("liftednn.data.sources._READ", 12 * 64)
    for name in ("_NUMBERS", "_SAMPLED"):
        monkeypatch.setattr(f"liftednn.estimators.tails.{name}", 12 * 64)
    monkeypatch.setattr("liftednn.training.run._ROWS", 96)
    monkeypatch.setattr("liftednn.training.choices._ROWS", 96)
    model = classifier(batch_size=50).fit(sparse.csr_matrix(X), Y)
    model.predict(sparse.csr_matrix(X))
    assert max(made) <= 96  # of 300: a sample, a batch or a block


# very many columns


@pytest.fixture
def few_columns_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "WIDE", 10)
    monkeypatch.setattr(reduction, "_DIRECTIONS", 8)


@pytest.mark.usefixtures("few_columns_are_many")
@pytest.mark.parametrize(("make", "y"), [(classifier, Y), (regressor, REAL)], ids=["classifier", "regressor"])
def test_many_columns_are_trained_on_in_fewer_coordinates(make: Any, y: np.ndarray) -> None:
    model = make(max_iter=30).fit(X, y)
    assert_same(model, make(max_iter=30).fit(sparse.csr_matrix(X), y))
    assert model.coefs_[0].shape == (12, 8)
    assert model.network_.in_width == 12
    inside = (model.coefs_[0] * model._inputs.scale[:, None]).astype(float)
    assert np.linalg.matrix_rank(inside, tol=1e-9) <= 8
    assert model.score(X, y) > 0.6
    np.testing.assert_allclose(model.set_params(warm_start=True).fit(X, y).score(X, y), model.score(X, y))


def test_the_coordinates_hold_what_correlates_with_the_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "_DIRECTIONS", 8)
    every = Rows.of(X - X.mean(axis=0), None)
    basis = reduction.main_directions(every, REAL[:, None], None, 0)
    np.testing.assert_allclose(basis.T @ basis, np.eye(8), atol=1e-12)
    wanted = every.x.T @ (REAL - REAL.mean())
    np.testing.assert_allclose(basis @ (basis.T @ wanted), wanted, atol=1e-9)
    few = reduction.main_directions(every.take(np.arange(6)), REAL[:6, None], None, 0)  # all rows lie in the span
    np.testing.assert_allclose(every.x[:6] @ few @ few.T, every.x[:6], atol=1e-12)


@pytest.mark.usefixtures("few_columns_are_many")
def test_a_stream_of_many_columns_keeps_what_it_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk changes the weights only along its own rows, once the stream has begun."""
    monkeypatch.setattr(first_rows, "_ENOUGH", 6)
    model = classifier(hidden_layer_sizes=(3,), alpha=0.0).partial_fit(X[:6], Y[:6], classes=[0, 1])
    before = model.coefs_[0]
    monkeypatch.setattr(plan, "batch_size", lambda rows: 6)  # so that six rows take a step of full length
    after = model.partial_fit(X[6:12], 1 - Y[6:12]).coefs_[0]  # labels that it must change for
    scale, mean = model._inputs.scale, model._inputs.mean
    span = np.linalg.qr(((X[6:12] - mean) / scale).T)[0]
    change = scale[:, None] * (after - before)
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(span @ (span.T @ change), change, atol=1e-12)


@pytest.mark.slow
def test_fifty_thousand_columns_need_no_square_of_them() -> None:
    """The square would take 20 GB."""
    there = RNG.random((60, 50_000)) < 0.0005
    x, y = sparse.csr_matrix(there.astype(float)), np.arange(60) % 2
    x = sparse.hstack([y[:, None], x], format="csr")
    model = classifier(hidden_layer_sizes=(), max_iter=20, alpha=1e-4).fit(x, y)
    assert model.coefs_[0].shape == (50_001, 2)
    assert model.score(x, y) == 1


# predictions without a copy


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["array", "memory map", "sparse"])
@pytest.mark.thin(2)
def test_predictions_make_no_copy_of_x(kind: str, dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    model = regressor(dtype="float64").fit(X, REAL)
    x = np.tile(X, (700, 1)).astype(dtype)  # 20 MB in float64
    x.tofile(tmp_path / "x")
    given: Any = {
        "array": lambda: x,
        "memory map": lambda: np.memmap(tmp_path / "x", dtype, "r", shape=x.shape),
        "sparse": lambda: sparse.csr_matrix(x),
    }[kind]()
    for call in (model.predict, model.transform):
        before = model.predict(given[:5])  # what is imported on the first call is not counted
        tracemalloc.start()
        found = call(given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < max(found.nbytes + x.nbytes // 8, 5_000_000) < x.nbytes + found.nbytes
        assert len(before) == 5


def test_lists_of_lists_and_infinite_entries() -> None:
    model = regressor().fit(X.tolist(), REAL.tolist())
    np.testing.assert_array_equal(model.predict(X.tolist()), model.predict(X))
    with pytest.raises(ValueError, match="inf"):
        model.predict(sparse.csr_matrix(np.where(X.max() == X, np.inf, X)))
    with pytest.raises(ValueError, match="a sparse X holds NaN: give it dense"):
        model.predict(sparse.csr_matrix(np.where(X.max() == X, np.nan, X)))
    assert lnn.LiftedRegressor().__sklearn_tags__().input_tags.sparse
