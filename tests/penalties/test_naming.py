"""Penalties by name."""

from __future__ import annotations

from typing import Any

import pytest

from liftednn.base import Penalty
from liftednn.penalties import (
    L1,
    L2,
    Ball,
    ElasticNet,
    GroupL2,
    LowRank,
    NonNegative,
    NoPenalty,
    Orthogonal,
    named,
    one_each,
)


@pytest.mark.parametrize(
    ("name", "penalty"),
    [
        ("l2", L2()),
        ("L1:0.5", L1(0.5)),
        ("elastic_net", ElasticNet()),
        ("none", NoPenalty()),
        ("nonnegative", NonNegative()),
        ("group:0.01", GroupL2(0.01)),
        ("orthogonal", Orthogonal()),
        ("orthogonal:2", Orthogonal(2.0)),
        ("low-rank:5", LowRank(5)),
        ("ball:3", Ball(3.0)),
    ],
)
def test_names(name: str, penalty: Penalty) -> None:
    assert named(name) == penalty


def test_rho_is_the_strength_where_there_is_one() -> None:
    assert named("l1", 0.2) == L1(0.2)
    assert named("l1:0.3", 0.2) == L1(0.3)
    assert named("low_rank:4", 0.2) == LowRank(4, 0.2)
    assert named("orthogonal", 0.2) == Orthogonal()


def test_one_for_all_or_one_for_each() -> None:
    assert one_each(L1(), 3) == [L1()] * 3
    assert one_each("nonnegative", 2) == [NonNegative()] * 2
    assert one_each("orthogonal", 3, 0.1) == [Orthogonal(), Orthogonal(), L2(0.1)]
    assert one_each("orthogonal", 1) == [Orthogonal()]
    assert one_each(["group:1", NonNegative()], 2) == [GroupL2(1.0), NonNegative()]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("l3", "unknown penalty 'l3': give one of l2, l1, "),
        ("none:3", "none has no parameter, got '3': leave it out"),
        ("group:much", "after the colon comes a number, got 'much'"),
        ("low_rank:2.5", "after the colon comes a whole number, got '2.5'"),
        ("group:-1", "rho must be non-negative"),
        (["l2"], "penalty has 1 entries for 2 layers: give one for all or one each"),
        (["l2", 3], "penalty must be a name .* a Penalty, or a sequence of these, got 3"),
        (3, "penalty must be a name .* a Penalty, or a sequence of these, got 3"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        one_each(given, 2)
