"""Copies of rows and of columns, and weights that stand for copies, change no default."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import liftednn as lnn
from liftednn.data.copies import distinct_columns, independent_rows
from liftednn.data.sources import source_of

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()


def test_copies_do_not_count_but_equal_inputs_with_different_responses_do() -> None:
    assert source_of(X, LABELS).rows == 50
    assert source_of(X.repeat(3, 1), LABELS.repeat(3)).rows == 50
    assert source_of(X, LABELS, torch.full((50,), 1e6)).rows == 50
    assert source_of(X.repeat(2, 1), torch.cat([LABELS, 1 - LABELS])).rows == 100
    contradicting = X.repeat(2, 1), torch.cat([LABELS, 1 - LABELS])
    assert source_of(*contradicting, torch.full((100,), 3.0)).rows == 100
    assert source_of(*(torch.cat([part] * 3) for part in contradicting)).rows == 100
    assert source_of(X[:, :1].round(), X[:, 1]).rows == 50


def test_blocks_and_signed_zeros_make_no_difference() -> None:
    zeros = torch.tensor([[0.0], [-0.0], [1.0]])
    assert independent_rows(lambda: [(zeros, torch.zeros(3))], 3) == 2
    assert independent_rows(lambda: [(X, LABELS), (X[:20], LABELS[:20])], 70) == 50
    assert independent_rows(list, 1_000_000) == 1_000_000  # too many to be counted


def test_rows_and_columns_that_differ_in_few_places_are_told_apart() -> None:
    x = torch.zeros(301, 300)
    x[1:].fill_diagonal_(1.0)
    assert distinct_columns(x) == 300
    for parts in ([x, x], [torch.cat([x, x])], [x[:5], x, x[5:]]):
        pairs = [(part, part[:, 0]) for part in parts]
        assert independent_rows(pairs.copy, 602) == 301
    assert independent_rows(lambda: [(x, x[:, 0]), (x, 1 - x[:, 0])], 602) == 602


def test_columns_that_are_constant_or_copies_do_not_count() -> None:
    assert distinct_columns(X) == 3
    assert distinct_columns(torch.cat([X, X, torch.ones(50, 4)], 1)) == 3
    assert distinct_columns(torch.ones(5, 2)) == 1


@pytest.mark.parametrize("weight", [100.0, 1e6])
def test_uniform_weights_change_nothing(weight: float) -> None:
    x, y = X.double().numpy(), (X[:, 0] * X[:, 1]).double().numpy()
    one, many = (
        lnn.LiftedRegressor((8,), max_iter=20, random_state=0).fit(x, y, np.full(50, size)) for size in (1.0, weight)
    )
    np.testing.assert_allclose(one.predict(x), many.predict(x), rtol=1e-6, atol=1e-6)


def test_uniform_weights_change_nothing_where_equal_inputs_have_different_responses() -> None:
    x = X.round().double().numpy()
    one, many = (
        lnn.LiftedClassifier((8,), max_iter=20, random_state=0).fit(x, LABELS.numpy(), np.full(50, size))
        for size in (1.0, 1e6)
    )
    np.testing.assert_allclose(one.predict_proba(x), many.predict_proba(x), rtol=1e-6, atol=1e-6)
