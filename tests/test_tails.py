"""Columns with heavy tails are compressed, others stay as they are, and the module that is exported does the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import liftednn as lnn
from liftednn.estimators.tails import Tails, _error, _furthest_rows, helps
from liftednn.training.cross_validation import left_out

RANDOM = np.random.RandomState(0)
NORMAL = RANDOM.normal(size=(600, 5))
LABELS = (NORMAL[:, 0] + NORMAL[:, 1] * NORMAL[:, 2] > 0).astype(int)


def columns() -> dict[str, Any]:
    n = 600
    one = NORMAL[:, 0].copy()
    one[3] = 1e12
    return {
        "normal": NORMAL[:, 1],
        "uniform": RANDOM.uniform(size=n),
        "exponential": RANDOM.exponential(size=n),
        "rare indicator": (np.arange(n) % 300 == 0).astype(float),
        "constant": np.ones(n),
        "many zeros": np.where(np.arange(n) % 100 == 0, np.arange(n) / 100, 0.0),
        "one far entry": one,
        "log-normal": np.exp(3 * NORMAL[:, 2]),
    }


def test_only_columns_with_heavy_tails_are_compressed() -> None:
    x = np.stack(list(columns().values()), 1)
    tails = Tails.of(x)
    assert [list(columns())[number] for number in tails.columns] == ["one far entry", "log-normal"]
    found = tails(x)
    assert np.array_equal(found[:, :6], x[:, :6])
    assert np.all(np.diff(found[np.argsort(x[:, 7]), 7]) >= 0)
    assert np.abs(found[:, 6] - np.median(found[:, 6])).max() < 40 * NORMAL[:, 0].std()
    middle = np.argsort(x[:, 6])[290:310]
    np.testing.assert_allclose(found[middle, 6], x[middle, 6], atol=1e-3)


def test_copies_and_weights_give_the_same_compression() -> None:
    x, counts = np.exp(3 * NORMAL[:, :3]), 1 + 2 * (NORMAL[:, 2] > 0)
    x[np.arange(600) % 5 > 0, 2] = 0.0  # a quartile is the median
    weighted, copied = Tails.of(x, counts.astype(float)), Tails.of(np.repeat(x, counts, axis=0))
    np.testing.assert_array_equal(weighted.centre, copied.centre)
    np.testing.assert_array_equal(weighted.unit, copied.unit)


@pytest.mark.parametrize("spoil", ["log-normal", "one far entry"])
def test_heavy_tails_cost_little(spoil: str) -> None:
    x = np.exp(3 * NORMAL) if spoil == "log-normal" else NORMAL.copy()
    if spoil == "one far entry":
        x[7, 0] = 1e12
    rest = np.arange(600) != 7
    plain, kept = (
        lnn.LiftedClassifier((30,), compress_tails=each, random_state=0).fit(x, LABELS).score(x[rest], LABELS[rest])
        for each in (False, True)
    )
    assert kept > max(0.9, plain + 0.05)


def test_the_module_compresses_too() -> None:
    x = np.exp(3 * NORMAL).astype(np.float32)
    model = lnn.LiftedRegressor((10,), max_iter=5, random_state=0).fit(x, NORMAL[:, 0])
    module = model.to_module()
    assert len(module) == 4
    predicted = module(torch.from_numpy(x)).detach().numpy()[:, 0]
    np.testing.assert_allclose(predicted, model.predict(x), rtol=1e-4, atol=1e-4)


def test_it_is_switched_off_where_it_would_not_be_understood() -> None:
    x = np.exp(3 * NORMAL)
    for options in ({"compress_tails": False}, {"robust": 0.1}, {"divergence": "euclidean"}):
        model = lnn.LiftedRegressor((4,), max_iter=2, random_state=0, **options).fit(x, NORMAL[:, 0])  # type: ignore[arg-type]
        assert len(model.to_module()) == 3
    for options in ({"robust": 0.1}, {"divergence": "euclidean"}):
        with pytest.raises(ValueError, match=f"compress_tails=True is not possible with {next(iter(options))}"):
            lnn.LiftedRegressor(compress_tails=True, **options).fit(x, NORMAL[:, 0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compress_tails=True is not possible with a stream of partial_fit"):
        lnn.LiftedRegressor(compress_tails=True).partial_fit(x, NORMAL[:, 0])
    with pytest.raises(ValueError, match="compress_tails must be True, False or 'auto', got 'yes'"):
        lnn.LiftedRegressor(compress_tails="yes").fit(x, NORMAL[:, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.thin(2)
def test_columns_stay_as_they_are_where_the_response_is_linear_in_them(classes: bool) -> None:
    x, rest = np.exp(2 * NORMAL[:, :3]), np.exp(2 * np.random.RandomState(1).normal(size=(300, 3)))
    kind = lnn.LiftedClassifier if classes else lnn.LiftedRegressor
    scores = []
    for compress in ("auto", True):
        y, y_rest = (part[:, 0] - part[:, 1] for part in (x, rest))
        y, y_rest = (y > 0, y_rest > 0) if classes else (y, y_rest)
        model = kind((30,), compress_tails=compress, random_state=0).fit(x, y)
        scores.append(model.score(rest, y_rest))
    assert scores[0] > (0.97 if classes else 0.99)
    assert scores[0] >= scores[1] - 0.01


@pytest.mark.parametrize("far", [1e3, 1e12])
@pytest.mark.thin(2)
def test_a_far_entry_that_a_sample_would_miss_is_judged_too(far: float) -> None:
    x = np.random.RandomState(2).normal(size=(5000, 3))
    y = x[:, 0] + np.sin(2 * x[:, 1])
    x[1, 0] = far
    model = lnn.LiftedRegressor((30,), max_iter=8, random_state=0).fit(x, y)
    assert list(model._tails.columns) == [0]
    assert model.score(x[2:], y[2:]) > 0.95


@pytest.mark.parametrize("constant", [0.5, 0.1, 1e-5 / 3])
def test_a_constant_column_changes_nothing(constant: float) -> None:
    """Its mean is rounded, and its spread is 0."""
    x = np.exp(1.5 * NORMAL[:400])
    with_constant, y = np.column_stack([x, np.full(400, constant)]), torch.from_numpy(x @ np.ones((5, 1)))
    errors = [_error(torch.from_numpy(rows), y, torch.ones(400).double(), 0) for rows in (x, with_constant)]
    assert errors[1] == pytest.approx(errors[0], rel=0.5)
    assert not helps(Tails.of(with_constant), with_constant, y, None, 0)


@pytest.mark.parametrize("seed", [0, 23])
def test_copies_of_rows_do_not_change_what_helps(seed: int) -> None:
    x = np.exp(1.5 * np.random.RandomState(seed).normal(size=(80, 6)))
    tails, y = Tails.of(x), torch.from_numpy(x[:, 0] + x[:, 1] > 3).long()
    one, three = (helps(tails, np.repeat(x, k, 0), y.repeat_interleave(k), None, 0) for k in (1, 3))
    assert one == three


def test_the_leave_one_out_error_is_that_of_leaving_rows_out() -> None:
    x, y, counts = NORMAL[:12, :4], NORMAL[:12, 4:], np.linspace(0.5, 2, 12)
    for weights in (None, counts):
        w = np.ones(12) if weights is None else weights / weights.mean()
        unit = (w[:, None] * np.square(x - w @ x / w.sum())).sum() / 4
        errors = []
        for strength in 10.0 ** np.arange(-8, 3):
            left = []
            for out in range(12):
                rest = np.arange(12) != out
                ridge = Ridge(alpha=strength * unit).fit(x[rest], y[rest], sample_weight=w[rest])
                left.append(w[out] * float(y[out, 0] - ridge.predict(x[out : out + 1])[0]) ** 2)
            errors.append(np.mean(left))
        given = None if weights is None else torch.from_numpy(weights)
        *ridges, constant = left_out(torch.from_numpy(x), torch.from_numpy(y), given)
        assert [each.error for each in ridges] == pytest.approx(errors, rel=1e-6)
        assert constant.error == pytest.approx(errors[-1], rel=0.1)


def test_the_rows_with_the_furthest_entries_are_judged_wherever_their_column_is() -> None:
    x = np.random.RandomState(3).normal(size=(3000, 50))
    x[np.arange(50), np.arange(50)] = 100.0
    x[2999, 49] = 1e6
    tails = Tails.of(x)
    assert len(tails.columns) == 50
    assert _furthest_rows(tails, x)[0] == 2999
