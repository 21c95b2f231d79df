"""The one encoding of columns, of the estimators and of the command line."""

from __future__ import annotations

import numpy as np
import pytest

from liftednn.data.columns import Column, Columns, medians

NAN = np.nan


def test_numbers_flags_and_categories_by_hand() -> None:
    encode = Columns(
        (
            Column("a", "number", mean=1.0, scale=2.0, fill=5.0, flagged=True),
            Column("b", "text", categories=("u", "v", "w")),
            Column("c", "number"),
        )
    )
    assert encode.width == 6
    values = np.array([[3.0, 0, 7], [NAN, 2, NAN], [1, NAN, 0], [1, -1, 0]])
    wanted = [[1, 0, 1, 0, 0, 7], [2, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(encode(values), wanted)
    assert encode(values.astype(np.float32)).dtype == np.float32


def test_numbers_without_gaps_are_not_copied() -> None:
    encode, values = Columns((Column("a", "number", fill=4.0), Column("b", "number"))), np.ones((3, 2))
    assert encode(values) is values
    values[1] = NAN
    np.testing.assert_array_equal(encode(values), [[1, 1], [4, 0], [1, 1]])


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0, 2, 1, 3])])
def test_the_median_leaves_gaps_out_and_counts_weights(weights: np.ndarray | None) -> None:
    values = np.array([4.0, 9, NAN, 1, 7])
    repeated = values if weights is None else values.repeat(weights.astype(int))
    found, other = medians(np.column_stack([values, [1.0, 1, 1, 1, 1]]), weights)
    below, above = np.mean(repeated[~np.isnan(repeated)] < found), np.mean(repeated[~np.isnan(repeated)] > found)
    assert below <= 0.5 >= above
    assert other == 1
    assert medians(np.full((3, 1), NAN)) == [0]
