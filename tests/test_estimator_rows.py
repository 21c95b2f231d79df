"""What the estimators do with X: any layout and type, no second copy of it, memory maps, several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import parallel_config  # type: ignore[import-untyped]
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from liftednn import LiftedClassifier, LiftedRegressor
from liftednn.data.sources import Gathered, Mapped, Memory
from liftednn.estimators import rows, scaling, tails
from liftednn.estimators.rows import Rows
from liftednn.estimators.scaling import Scaling

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 5))
REAL = np.abs(X[:, 0]) + X[:, 1]
Y = (REAL > 0.7).astype(int)


def classifier(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (12,), "max_iter": 10, "random_state": 0, **options})


def regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (12,), "max_iter": 10, "random_state": 0, **options})


def parts(model: Any) -> list[np.ndarray]:
    return [*model.coefs_, *model.intercepts_]


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "read-only": read_only,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@cache
def plain_fits(dtype: type[np.floating[Any]], divergence: str) -> tuple[LiftedClassifier, LiftedRegressor]:
    x, options = X.astype(dtype), {"divergence": divergence, "max_iter": 2}
    return classifier(**options).fit(x, Y), regressor(**options).fit(x, REAL)


@pytest.mark.parametrize("divergence", ["fenchel", "euclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.thin(6)
def test_the_layout_of_x_does_not_matter(layout: str, dtype: type[np.floating[Any]], divergence: str) -> None:
    x, other = X.astype(dtype), LAYOUTS[layout](X.astype(dtype))
    for plain, y in zip(plain_fits(dtype, divergence), (Y, REAL), strict=True):
        found = clone(plain).fit(other, y)
        for a, b in zip(parts(plain), parts(found), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(plain.predict(x), found.predict(other))
        np.testing.assert_array_equal(plain.transform(x), found.transform(other))
    np.testing.assert_array_equal(other, X.astype(dtype))  # and x is left as it was


def test_integers_are_their_own_values() -> None:
    whole = np.round(3 * X).astype(np.int16)
    for a, b in zip(parts(classifier().fit(whole, Y)), parts(classifier().fit(whole.astype(float), Y)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("row_weights", [None, np.arange(20_000) % 3 + 0.5], ids=["plain", "weighted"])
def test_the_scaling_of_many_rows_is_that_of_all_at_once(row_weights: np.ndarray | None) -> None:
    x = np.hstack(
        [RNG.standard_normal((20_000, 2)) * [1, 1e-3] + [1e6, 5], RNG.random((20_000, 1)) < 0.1, np.ones((20_000, 1))]
    )
    found = Scaling.of(x, row_weights)
    mean = np.average(x, axis=0, weights=row_weights)
    spread = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=row_weights))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(found.scale, [*spread[:2], 1, 1], rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("options", [{}, {"early_stopping": True}, {"dtype": "float32"}], ids=str)
@pytest.mark.thin(2)
def test_batches_whitened_one_by_one_train_as_a_whitened_copy_does(
    options: dict[str, Any], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_weights = np.arange(len(X)) % 4 if weighted else None  # some count for nothing
    copied = classifier(**options).fit(X, Y, row_weights)
    monkeypatch.setattr(rows, "_SMALL", 0)
    monkeypatch.setattr(rows, "_FRACTION", 0.0)
    monkeypatch.setattr(Memory, "batches", None)  # not used then
    streamed = classifier(**options).fit(X, Y, row_weights)
    tolerance = 1e-3 if options.get("dtype") else 1e-9
    np.testing.assert_allclose(streamed.predict_proba(X), copied.predict_proba(X), atol=tolerance)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.slow
def test_a_fit_needs_less_memory_than_half_of_x(dtype: type) -> None:
    """Linux keeps the most that a process has held, and can be asked to begin anew."""
    x = RNG.random((100 * 2**20 // (50 * np.dtype(dtype).itemsize), 50), dtype=dtype)
    y = x[:, 0] > x[:, 1]
    model = classifier(max_iter=1, batch_size=4000)
    model.fit(x[:5000], y[:5000]).predict(x[:5000])
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the most memory held cannot be measured here")
    before = _held("VmHWM")
    model.fit(x, y).predict(x)
    assert _held("VmHWM") - before < 50


def _held(name: str) -> float:
    """In MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def mapped(folder: Path) -> np.memmap:
    X.tofile(folder / "x.f64")
    return np.memmap(folder / "x.f64", np.float64, "r", shape=X.shape)


def test_a_small_memory_map_is_as_an_array(tmp_path: Path) -> None:
    """So that processes which are given one by joblib fit what one process fits."""
    for a, b in zip(parts(classifier().fit(mapped(tmp_path), Y)), parts(classifier().fit(X, Y)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_large_memory_map_is_read_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_SMALL", 1000)
    monkeypatch.setattr(rows, "_ROWS", 100)
    monkeypatch.setattr(scaling, "_ROWS", 100)
    monkeypatch.setattr(tails, "_NUMBERS", 100 * X.shape[1])
    monkeypatch.setattr(tails, "_SAMPLED", 100 * X.shape[1])
    read: list[int] = []
    plain = Rows.__getitem__

    def reading(self: Rows, key: Any) -> np.ndarray:
        found = plain(self, key)
        read.append(len(found))
        return found

    monkeypatch.setattr(Rows, "__getitem__", reading)
    model = classifier(batch_size=3).fit(mapped(tmp_path), Y)
    assert max(read) <= 128  # of 300
    assert model.score(mapped(tmp_path), Y) > 0.8


def test_what_a_trainer_reads_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y, there = torch.from_numpy(Y), Rows.of(np.asarray(mapped(tmp_path)), None)
    assert isinstance(there.source(y, None, None), Gathered)
    monkeypatch.setattr(rows, "_SMALL", 1000)
    assert isinstance(there.source(y, None, None), Mapped)
    assert isinstance(there.take(np.arange(300)).source(y, None, None), Mapped)
    assert isinstance(Rows.of(X, None).source(y, None, None), Gathered)


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_a_grid_search_with_two_jobs_finds_what_one_finds(backend: str) -> None:
    grid = {"hidden_layer_sizes": [(4,), (8,)]}
    with parallel_config(backend=backend):
        one, two = (GridSearchCV(classifier(), grid, cv=2, n_jobs=jobs).fit(X, Y) for jobs in (1, 2))
    np.testing.assert_array_equal(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"])
    for a, b in zip(parts(one.best_estimator_), parts(two.best_estimator_), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_row_that_is_read_backwards_is_predicted() -> None:
    x = X[:1].astype(np.float32)
    model = regressor().fit(X.astype(np.float32), REAL)
    np.testing.assert_array_equal(model.predict(x[::-1]), model.predict(x))


def test_zeros_that_are_not_to_be_written_are_streamed() -> None:
    locked = read_only(np.zeros((4, 2)))
    assert np.isfinite(regressor().partial_fit(locked, REAL[:4]).predict(locked)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_next_to_0_gets_no_infinite_weight(dtype: type[np.floating[Any]]) -> None:
    x = X.astype(dtype)
    x[:, 0] = RNG.random(300) * np.finfo(dtype).tiny / 10
    model = classifier().fit(x, Y)
    assert np.isfinite(model.coefs_[0]).all()
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1, rtol=1e-5)


def test_columns_are_standardised_whatever_their_squares() -> None:
    x = X * 10.0 ** np.array([-300, -170, 0, 170, 300])
    found = Scaling.of(x)
    np.testing.assert_allclose(found.scale, X.std(axis=0) * (x[0] / X[0]), rtol=1e-12)


def test_what_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sum overflows in float32: scale them, or give dtype='float64'"):
        classifier(dtype="float32").fit(1e39 * X, Y)
    steep = regressor(hidden_layer_sizes=())
    with pytest.raises(ValueError, match=r"weights for X and y as they are given overflow in torch.float32: scale"):
        steep.fit((1e-30 * X).astype(np.float32), 1e30 * REAL)
    assert np.isfinite(steep.fit(1e-30 * X, 1e30 * REAL).predict(1e-30 * X)).all()


@pytest.mark.parametrize("size", [1e-45, 1e39])
def test_a_stream_with_weights_of_any_size(size: float) -> None:
    x, row_weights = (1e5 * X + 1e9).astype(np.float32), size * (1 + RNG.random(300))
    model: Any = regressor().partial_fit(x, REAL, row_weights)
    assert np.isfinite(model.predict(x)).all()
    np.testing.assert_allclose(float(model._moments.weight), row_weights.sum(), rtol=1e-4)


def test_rounding_of_a_column_that_does_not_vary_stays_small() -> None:
    x = np.full((300, 1), 1e25) * (1 + 1e-16 * X[:, :1])
    assert np.abs(Scaling.of(x)(x)).max() < 20
    assert Scaling.of(np.full((300, 1), 5.0)).scale == 1
