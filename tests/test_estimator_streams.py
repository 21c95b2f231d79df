"""`partial_fit` where the first rows are unlike the others: scaling and moments are those of all rows so far."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_classification, make_friedman1

import liftednn as lnn
from liftednn import LiftedClassifier, LiftedRegressor
from liftednn.base import Affine
from liftednn.estimators.first_rows import FirstRows
from liftednn.estimators.rescaling import rescaled, shrunk
from liftednn.estimators.scaling import ColumnStatistics, Scaling

RNG = np.random.default_rng(0)
COLUMNS = np.column_stack(
    [
        np.sort(RNG.standard_normal(300)),
        np.where(np.arange(300) < 100, 7.0, RNG.standard_normal(300)),  # constant in the first chunk
        RNG.random(300) < 0.1,
        np.where(np.arange(300) < 150, 0.0, 3.0),
        np.where(np.arange(300) < 150, 2.0, 3.0)
        * (RNG.random(300) < 0.5),  # an indicator in each half, but not in both
        1e300 * RNG.random(300),
        np.full(300, 5.0),
    ]
)


def regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (20,), "random_state": 0, **options})


@pytest.mark.parametrize("weights", [None, RNG.random(300)], ids=["plain", "weighted"])
def test_what_was_seen_in_parts_scales_as_all_at_once(weights: np.ndarray | None) -> None:
    seen, *others = (
        ColumnStatistics.of(COLUMNS[part], None if weights is None else weights[part])
        for part in (slice(0, 100), slice(100, 150), slice(150, 300))
    )
    for other in others:
        seen = seen + other
    found, wanted = seen.scaling(np.dtype(float)), Scaling.of(COLUMNS, weights)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.scale, wanted.scale, rtol=1e-12)


def test_moments_and_weights_are_carried_over_exactly() -> None:
    x = torch.from_numpy(RNG.standard_normal((50, 3)) * [1, 5, 0.1] + [0, 10, 3])
    before, after = Scaling.of(x[:20].numpy()), Scaling.of(x.numpy())
    scaled = [torch.from_numpy(each(x.numpy())) for each in (before, after)]
    moments, wanted = (lnn.Moments.of(rows, rows[:, :0]) for rows in scaled)
    found = rescaled(moments, before, after)
    torch.testing.assert_close(found.xx, wanted.xx)
    torch.testing.assert_close(found.mean_x, wanted.mean_x, atol=1e-12, rtol=0)
    first = Affine(torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64))
    assert shrunk(first, before, after).w is not first.w
    torch.testing.assert_close(shrunk(first, before, after), first)


def test_weights_on_a_column_that_grows_stay_small_on_all_of_it() -> None:
    first = Affine(torch.tensor([[1.0, 1.0]]).double(), torch.zeros(1).double())
    before = Scaling(np.array([1.0, 2.0]), np.array([1.0, 0.001]))
    found = shrunk(first, before, Scaling(np.array([1.0, 2.0]), np.array([2.0, 1.0])))
    torch.testing.assert_close(found.w, torch.tensor([[1.0, 0.003]]).double())
    mean = torch.from_numpy(before.mean)
    torch.testing.assert_close(found.w @ mean + found.b, first.w @ mean + first.b)


X, REAL = make_friedman1(3000, n_features=6, noise=0.5, random_state=0)
LOW = np.argsort(X[:2400, 0])
CENTRAL = np.argsort(np.abs(X[:2400, :3] - 0.5).max(axis=1))


def streamed(order: np.ndarray, x: np.ndarray, y: np.ndarray = REAL) -> float:
    model: Any = regressor()
    for _ in range(2):
        for start in range(0, 2400, 200):
            chosen = order[start : start + 200]
            model.partial_fit(x[chosen], y[chosen])
    return float(model.score(X[2400:], y[2400:]))


@cache
def shuffled() -> float:
    return streamed(np.arange(2400), X)


def first_then_shuffled(first: np.ndarray) -> np.ndarray:
    return np.concatenate([first, np.random.default_rng(1).permutation(np.setdiff1d(np.arange(2400), first))])


@pytest.mark.parametrize("case", ["low", "constant", "narrow", "low responses"])
@pytest.mark.thin(2)
def test_a_first_chunk_unlike_the_rest_ends_close_to_a_shuffled_stream(case: str) -> None:
    first = {"low": LOW, "constant": LOW, "narrow": CENTRAL, "low responses": np.argsort(REAL[:2400])}[case][:200]
    x = X.copy()
    if case == "constant":
        x[first, 0] = 0.1
    if case == "narrow":
        x[first, :3] = 0.5 + 1e-3 * (x[first, :3] - 0.5)
    assert streamed(first_then_shuffled(first), x) > shuffled() - 0.08


def test_a_sorted_stream_has_the_scaling_of_a_shuffled_one() -> None:
    models: list[Any] = [regressor(), regressor()]
    for order, model in zip((LOW, np.arange(2400)), models, strict=True):
        for start in range(0, 2400, 200):
            model.partial_fit(X[order[start : start + 200]], 50 * REAL[order[start : start + 200]])
    for name in ("_inputs", "_responses"):
        a, b = (getattr(model, name) for model in models)
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-10)
        np.testing.assert_allclose(a.scale, b.scale, rtol=1e-10)
    np.testing.assert_allclose(models[0]._moments.gram, models[1]._moments.gram, atol=1e-8)
    np.testing.assert_allclose(models[0]._inputs.scale, X[:2400].std(axis=0), rtol=1e-8)


@pytest.mark.parametrize(
    "options", [{"robust": 0.1}, {"penalty": "ball:2.0"}, {"penalty": "l1"}, {"loss": "absolute"}], ids=str
)
@pytest.mark.thin(2)
def test_streams_with_other_parameters_follow_too(options: dict[str, Any]) -> None:
    model: Any = regressor(**options)
    for start in range(0, 800, 200):
        model.partial_fit(X[LOW[start : start + 200]], REAL[LOW[start : start + 200]])
    np.testing.assert_allclose(model._inputs.mean, X[LOW[:800]].mean(axis=0), rtol=1e-10)
    assert np.isfinite(model.predict(X)).all()


CLUSTERS, LABELS = make_classification(1200, 8, n_informative=6, n_classes=3, class_sep=2.0, random_state=0)


def small(**options: Any) -> LiftedClassifier:
    return LiftedClassifier(**{"hidden_layer_sizes": (20,), "random_state": 0, **options})


@pytest.mark.parametrize("first", [1, 5, 100, 300])
@pytest.mark.thin(2)
def test_a_stream_may_begin_with_one_class(first: int) -> None:
    """All of the first rows are of class 0; of 600 rows, all together end where a mixed stream would."""
    zeros, rest = np.flatnonzero(LABELS[:600] == 0)[:first], np.arange(600, 1000)
    model: Any = small().partial_fit(CLUSTERS[zeros], LABELS[zeros], classes=[0, 1, 2])
    model.partial_fit(CLUSTERS[rest], LABELS[rest])
    plain = small().partial_fit(CLUSTERS[rest], LABELS[rest], classes=[0, 1, 2])
    test = slice(1000, 1200)
    assert model.score(CLUSTERS[test], LABELS[test]) > plain.score(CLUSTERS[test], LABELS[test]) - 0.05


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.thin(2)
def test_few_rows_in_parts_are_those_rows_at_once(form: Any, weighted: bool) -> None:
    x, weights = form(CLUSTERS), np.arange(1200) % 3.0 if weighted else np.ones(1200)
    parts: Any = small()
    for part in (slice(0, 1), slice(1, 50), slice(50, 300)):
        parts.partial_fit(x[part], LABELS[part], [0, 1, 2], weights[part] + (part.start == 0))
    weights[0] += 1
    whole: Any = small().partial_fit(x[:300], LABELS[:300], [0, 1, 2], weights[:300])
    for a, b in zip(parts.coefs_, whole.coefs_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", ["auto", lnn.losses.Quantile((0.1, 0.9))], ids=str)
def test_few_responses_in_parts_are_those_at_once(loss: Any) -> None:
    parts: Any = regressor(loss=loss).partial_fit(X[:1], REAL[:1]).partial_fit(X[1:80], REAL[1:80, None])
    whole = regressor(loss=loss).partial_fit(X[:80], REAL[:80])
    np.testing.assert_allclose(parts.predict(X), whole.predict(X), rtol=1e-9)
    with pytest.raises(ValueError, match="y has 2 columns"):
        parts.partial_fit(X[:9], np.stack([REAL[:9], REAL[:9]], 1))


def test_first_rows_are_kept_until_there_are_enough_that_differ() -> None:
    model: Any = small()
    chunk = CLUSTERS[:400].copy()
    model.partial_fit(chunk, LABELS[:400], classes=[0, 1, 2])
    chunk[:] = np.nan  # the caller may use its array again
    assert np.isfinite(model._first_rows.x).all()
    assert model.partial_fit(CLUSTERS[400:600], LABELS[400:600])._first_rows is None
    zeros = np.zeros(1200, int)
    model = small().partial_fit(CLUSTERS, zeros, classes=[0, 1])
    np.testing.assert_array_equal(model._first_rows.x, CLUSTERS[700:])  # never more than 500
    assert model.fit(CLUSTERS[:90], LABELS[:90])._first_rows is None


def test_first_rows_may_be_dense_and_sparse_and_of_weight_zero() -> None:
    a = FirstRows.of(np.ones((3, 2)), np.arange(3), np.array([0.0, 2.0, 1.0]))
    both = a + FirstRows.of(sparse.csr_matrix(np.eye(2)), np.arange(2), None)
    np.testing.assert_array_equal(both.x.toarray(), [[1, 1], [1, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(both.weights, [2, 1, 1, 1])
    np.testing.assert_array_equal(both.y, [1, 2, 0, 1])


def test_the_step_of_a_stream_decays_with_the_square_root_of_the_rows_so_far() -> None:
    model: Any = regressor()
    rates = [model.partial_fit(X[:1000], REAL[:1000]).history_[0].rate for _ in range(5)]
    np.testing.assert_allclose(np.array(rates) / rates[0], np.minimum(1, np.sqrt(2 / np.arange(1, 6))))
    model = regressor(max_iter=1).fit(X, REAL).partial_fit(X[:1000], REAL[:1000])
    np.testing.assert_allclose(model.history_[0].rate / rates[0], np.sqrt(2 / 4))


def test_a_stream_does_not_depend_on_the_size_of_its_weights() -> None:
    found = []
    for weights in (None, 1e-3, 1e3):
        model = regressor()
        for part in (slice(0, 600), slice(600, 1200), slice(1200, 1800)):
            model.partial_fit(X[part], REAL[part], None if weights is None else np.full(600, weights))
        found.append(model.predict(X))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3)


def test_a_call_with_most_rows_of_the_stream_has_the_whole_step() -> None:
    rates = [regressor().partial_fit(X[:800], REAL[:800]).partial_fit(X, REAL).history_[0].rate]
    rates += [regressor().partial_fit(X, REAL).history_[0].rate]
    np.testing.assert_allclose(rates[0] / rates[1], np.sqrt(3000 / 3800))


def test_after_a_fit_the_scaling_stays() -> None:
    model: Any = LiftedClassifier((5,), max_iter=3, random_state=0).fit(X, REAL > 14)
    before = model._inputs
    model.partial_fit(10 * X, REAL > 14)
    assert model._inputs is before


def test_the_penalty_s_weight_falls_with_the_rows_seen() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(2400, 10))
    labels = (generator.random(2400) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    model, rhos = LiftedClassifier(random_state=0), []
    for start in range(0, 2400, 600):
        model.partial_fit(x[start : start + 600], labels[start : start + 600], classes=[0, 1])
        rhos.append(model.network_.layers[0].penalty.rho)
    np.testing.assert_allclose(rhos, rhos[0] / np.sqrt([1, 2, 3, 4]))
    full = LiftedClassifier((5,), divergence="euclidean", random_state=0).partial_fit(
        x[:600], labels[:600], classes=[0, 1]
    )
    assert full.partial_fit(x, labels).network_.layers[0].penalty.rho == lnn.penalties.L2().rho  # no rule chose it
    fixed = LiftedClassifier(random_state=0, alpha=1e-2).partial_fit(x[:600], labels[:600], classes=[0, 1])
    assert fixed.partial_fit(x, labels).network_.layers[0].penalty.rho == 1e-2


@pytest.mark.parametrize(
    "changed", [{"hidden_layer_sizes": (5, 5)}, {"penalty": "nonnegative", "loss": "absolute"}, {"alpha": 0.01}]
)
def test_a_stream_refuses_parameters_that_it_could_not_follow(changed: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 3))
    model = LiftedRegressor(hidden_layer_sizes=20, random_state=0).partial_fit(x, x[:, 0])
    before = model.predict(x)
    model.set_params(**changed)
    with pytest.raises(ValueError, match=f"changed since then: .*{next(iter(changed))}"):
        model.partial_fit(x, x[:, 0])
    np.testing.assert_array_equal(model.predict(x), before)
    assert model.set_params(random_state=1).fit(x, x[:, 0]).score(x, x[:, 0]) > 0.5
