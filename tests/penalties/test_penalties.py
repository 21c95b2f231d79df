"""Penalties: values by their formulas, proxes against a conic solver."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from liftednn import penalties
from liftednn.base import Penalty
from liftednn.functional import box_prox
from liftednn.penalties import L1, L2, Ball, ElasticNet, GroupL2, LowRank, Mask, NonNegative, NoPenalty, Orthogonal
from liftednn.testing import check_penalty

TOPOLOGY = torch.tensor(
    [[1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
)
EVERY: list[Penalty] = [getattr(penalties, name)() for name in penalties.__all__] + [
    L1(0.0),
    L1(0.7),
    L2(2.0),
    ElasticNet(0.8, 0.3),
    ElasticNet(0.8, 0.0),
    ElasticNet(0.8, 1.0),
    GroupL2(0.9, "output"),
    GroupL2(0.9, "input"),
    NonNegative(0.5),
    Mask(TOPOLOGY),
    Mask(TOPOLOGY, 0.4),
    Mask(None, 0.4),
    Ball(1.5, "frobenius"),
    Ball(1.5, "spectral"),
    Ball(0.8, "row"),
    Ball(2.5, "l1"),
    Orthogonal(0.3),
    LowRank(1),
    LowRank(2, 0.4),
]


def weights(seed: int = 0) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def label(penalty: Penalty) -> str:
    return f"Mask({penalty.mask is not None}, {penalty.rho})" if isinstance(penalty, Mask) else repr(penalty)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("penalty", EVERY, ids=label)
def test_conforms(penalty: Penalty, seed: int) -> None:
    check_penalty(penalty, seed=seed)


CONIC: list[tuple[Penalty, Callable, Callable]] = [
    (NoPenalty(), lambda w: 0, lambda w: []),
    (L2(0.7), lambda w: 0.7 * cvxpy.sum_squares(w), lambda w: []),
    (L1(0.7), lambda w: 0.7 * cvxpy.norm1(cvxpy.vec(w, order="C")), lambda w: []),
    (
        ElasticNet(0.8, 0.3),
        lambda w: 0.8 * (0.3 * cvxpy.norm1(cvxpy.vec(w, order="C")) + 0.7 * cvxpy.sum_squares(w)),
        lambda w: [],
    ),
    (GroupL2(0.9, "output"), lambda w: 0.9 * cvxpy.sum(cvxpy.norm(w, 2, axis=1)), lambda w: []),
    (GroupL2(0.9, "input"), lambda w: 0.9 * cvxpy.sum(cvxpy.norm(w, 2, axis=0)), lambda w: []),
    (
        GroupL2(0.9, "input", size=3),
        lambda w: 0.9 * (cvxpy.norm(w[:, :3], "fro") + cvxpy.norm(w[:, 3:], "fro")),
        lambda w: [],
    ),
    (NonNegative(0.5), lambda w: 0.5 * cvxpy.sum_squares(w), lambda w: [w >= 0]),
    (Ball(1.5, "frobenius"), lambda w: 0, lambda w: [cvxpy.norm(w, "fro") <= 1.5]),
    (Ball(1.5, "spectral"), lambda w: 0, lambda w: [cvxpy.sigma_max(w) <= 1.5]),
    (Ball(0.8, "row"), lambda w: 0, lambda w: [cvxpy.norm(w, 2, axis=1) <= 0.8]),
    (Ball(2.5, "l1"), lambda w: 0, lambda w: [cvxpy.sum(cvxpy.abs(w)) <= 2.5]),
    (Mask(TOPOLOGY, 0.4), lambda w: 0.4 * cvxpy.sum_squares(w), lambda w: [cvxpy.multiply(~TOPOLOGY.numpy(), w) == 0]),
]


@pytest.mark.parametrize("step", [0.3, 2.5])
@pytest.mark.parametrize(
    ("penalty", "formula", "constraints"), CONIC, ids=lambda x: label(x) if isinstance(x, Penalty) else ""
)
def test_prox_equals_cvxpy(penalty: Penalty, formula: Callable, constraints: Callable, step: float) -> None:
    w, v = weights(), cvxpy.Variable((4, 6))
    objective = cvxpy.Minimize(formula(v) + cvxpy.sum_squares(v - w.numpy()) / (2 * step))
    cvxpy.Problem(objective, constraints(v)).solve(solver=cvxpy.CLARABEL)
    found = penalty.prox(w, step)
    np.testing.assert_allclose(found.numpy(), v.value, atol=1e-5)
    assert float(penalty.value(found) + (found - w).square().sum() / (2 * step)) <= objective.value + 1e-7


def test_values_are_their_formulas() -> None:
    w = weights()
    assert float(NoPenalty().value(w)) == 0.0
    assert float(L2(0.3).value(w)) == pytest.approx(0.3 * np.linalg.norm(w.numpy()) ** 2)
    assert float(L1(0.3).value(w)) == pytest.approx(0.3 * np.abs(w.numpy()).sum())
    assert float(GroupL2(0.3).value(w)) == pytest.approx(0.3 * np.linalg.norm(w.numpy(), axis=1).sum())
    assert float(GroupL2(0.3, "input").value(w)) == pytest.approx(0.3 * np.linalg.norm(w.numpy(), axis=0).sum())
    mixed = 0.3 * (0.25 * np.abs(w.numpy()).sum() + 0.75 * np.linalg.norm(w.numpy()) ** 2)
    assert float(ElasticNet(0.3, 0.25).value(w)) == pytest.approx(mixed)


def test_constraints_are_infinite_outside_their_set() -> None:
    w = weights()
    assert float(NonNegative().value(w)) == torch.inf
    assert float(NonNegative(2.0).value(w.abs())) == pytest.approx(2 * float(w.square().sum()))
    assert float(Mask(TOPOLOGY).value(w)) == torch.inf
    assert float(Mask(TOPOLOGY, 2.0).value(w * TOPOLOGY)) == pytest.approx(2 * float((w * TOPOLOGY).square().sum()))
    assert float(Mask().value(w)) == 0.0


def test_strong_penalties_make_exact_zeros() -> None:
    w = weights()
    assert int((L1(1.0).prox(w, 1.0) == 0).sum()) == int((w.abs() <= 1).sum())
    by_unit, by_feature = GroupL2(2.0).prox(w, 1.0), GroupL2(2.0, "input").prox(w, 1.0)
    assert torch.equal((by_unit == 0).all(1), w.norm(dim=1) <= 2)
    assert torch.equal((by_feature == 0).all(0), w.norm(dim=0) <= 2)
    assert bool((Mask(TOPOLOGY).prox(w, 1.0)[~TOPOLOGY] == 0).all())


def test_group_prox_of_zero_weights_is_zero() -> None:
    zero = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(GroupL2(0.5).prox(zero, 1.0), zero)


@pytest.mark.parametrize("penalty", EVERY, ids=label)
def test_prox_keeps_float32_and_value_is_float64(penalty: Penalty) -> None:
    w = weights().float()
    assert penalty.prox(w, 0.5).dtype == torch.float32
    assert penalty.value(penalty.prox(w, 0.5)).dtype == torch.float64
    torch.testing.assert_close(penalty.prox(w, 0.5).double(), penalty.prox(w.double(), 0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("penalty", EVERY, ids=label)
def test_prox_does_not_write_into_its_argument(penalty: Penalty) -> None:
    w = weights()
    penalty.prox(w, 0.5)
    assert torch.equal(w, weights())


def test_only_squared_norms_declare_ridge_and_only_constraints_a_box() -> None:
    assert {type(p) for p in EVERY if p.ridge is not None} == {L2, NoPenalty}
    assert {type(p) for p in EVERY if p.boxed} == {NonNegative, Mask}
    for penalty in (p for p in EVERY if p.boxed):
        torch.testing.assert_close(box_prox(penalty.box(), weights(), 0.9), penalty.prox(weights(), 0.9))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: L2(-1.0), r"rho must be non-negative and finite, got -1\.0"),
        (lambda: L1(float("inf")), "rho must be non-negative and finite, got inf"),
        (lambda: ElasticNet(float("nan")), "rho must be non-negative and finite, got nan"),
        (lambda: GroupL2(-2.0), "rho must be non-negative"),
        (lambda: NonNegative(-2.0), "rho must be non-negative"),
        (lambda: Mask(None, -2.0), "rho must be non-negative"),
        (lambda: ElasticNet(1.0, 1.5), r"l1_ratio must lie in \[0, 1\], got 1\.5"),
        (lambda: GroupL2(1.0, "input", 0), "size must be a whole number of at least 1, got 0"),
        (lambda: GroupL2(1.0, size=9), "size is for by='input', got 9 with by='output': leave size=1"),
        (lambda: GroupL2(1.0, "row"), "by must be 'output' or 'input', got 'row'"),
    ],
)
def test_mistakes_are_refused_with_a_sentence(build: Callable, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


def test_a_norm_has_no_box() -> None:
    with pytest.raises(TypeError, match="L1 is not quadratic on a box: use prox"):
        L1().box()


def test_groups_of_columns_are_kept_or_removed_as_a_whole() -> None:
    penalty, w, rows = GroupL2(0.9, "input", size=2), weights(), torch.arange(4)
    assert (penalty.fits((4, 6)), penalty.fits((4, 5))) == (True, False)
    few = torch.tensor([0, 1, 4, 5])
    w[:, 2:4] = 0
    assert float(penalty.restrict(rows, few).value(w[:, few])) == pytest.approx(float(penalty.value(w)))
    for inputs in ([0, 1, 2], [1, 2], [0, 2]):
        with pytest.raises(ValueError, match="has groups of 2 columns, of which only some would be removed"):
            penalty.restrict(rows, torch.tensor(inputs))
