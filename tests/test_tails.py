"""Columns with heavy tails are compressed, others stay as they are, and the module that is exported does the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import liftednn as lnn
from liftednn.estimators.tails import Tails

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
    x, counts = np.exp(3 * NORMAL[:, :2]), np.arange(600) % 3 + 1
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
    with pytest.raises(ValueError, match="compress_tails must be True or False, got 'yes'"):
        lnn.LiftedRegressor(compress_tails="yes").fit(x, NORMAL[:, 0])  # type: ignore[arg-type]
