"""Sums over rows: a row of weight 2 is two rows, cuts change nothing but last bits, and float32 rows lose no digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from liftednn import reduce


def rows(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


COUNTS = torch.tensor([1, 0, 3, 2, 1, 5, 0])


@pytest.fixture(params=[1, 3, 8192])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of rows is added up at a time."""
    monkeypatch.setattr(reduce, "_ROWS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("shape", [(7,), (7, 4)])
@pytest.mark.parametrize("weights", [torch.float64, torch.float32, torch.long])
def test_a_row_of_weight_2_is_two_rows(shape: tuple[int, ...], weights: torch.dtype) -> None:
    x, counts = 5 + rows(*shape), COUNTS.to(weights)
    repeated = x.repeat_interleave(COUNTS, 0)
    assert reduce.count(x, counts) == len(repeated)
    for found, expected in (
        (reduce.total(x, counts), repeated.sum(0)),
        (reduce.mean(x, counts), repeated.mean(0)),
        (reduce.mean_and_variance(x, counts)[0], repeated.mean(0)),
        (reduce.mean_and_variance(x, counts)[1], repeated.var(0, correction=0)),
        (reduce.mean_and_variance(repeated)[1], repeated.var(0, correction=0)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.usefixtures("block")
def test_the_sums_of_two_pieces_add_up() -> None:
    x, counts = rows(50, 3), rows(50).abs()
    pieces = [reduce.total(x[part], counts[part]) for part in (slice(0, 13), slice(13, 50))]
    torch.testing.assert_close(pieces[0] + pieces[1], reduce.total(x, counts), rtol=0, atol=1e-14)
    assert reduce.total(x[:0]).tolist() == [0.0, 0.0, 0.0]
    assert reduce.count(x) == 50


def test_float32_rows_far_from_0_keep_their_variance() -> None:
    x = (1e4 + rows(20_000, 2)).float()
    mean, variance = reduce.mean_and_variance(x)
    wide = x.double().numpy()
    np.testing.assert_allclose(mean.numpy(), wide.mean(0), rtol=1e-14)
    np.testing.assert_allclose(variance.numpy(), wide.var(0), rtol=1e-9)


def test_the_accuracy_is_a_mean_over_rows() -> None:
    assert float(reduce.mean(rows(4) == rows(4))) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_largest_is_over_all_that_is_given(dtype: torch.dtype) -> None:
    low, high = torch.tensor([[-3.0, 2.0]], dtype=dtype), torch.tensor([2.5], dtype=dtype)
    assert reduce.largest(low) == reduce.largest(high, low, high[:0]) == 3.0
    assert reduce.largest(low, 4.0, -5.0) == 5.0
    assert reduce.largest() == reduce.largest(low[:0]) == 0.0
    assert reduce.largest(low, high * math.inf) == math.inf
    assert math.isnan(reduce.largest(high * math.nan, low))


def test_ends_are_those_of_each_column() -> None:
    x = rows(9, 4)
    low, high = reduce.ends(x)
    assert bool(((x >= low) & (x <= high)).all())
    assert bool(((x == low).any(0) & (x == high).any(0)).all())
