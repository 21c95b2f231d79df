"""`select`, the choice of a solver: each rule once, and the selected one solves its block."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations, losses, penalties
from liftednn.activations import FenchelReLU, HardTanh, LeakyReLU, MaxPool, ReLU, Sigmoid, Sign, Simplex
from liftednn.base import Activation, Divergence, Penalty
from liftednn.blocks import Design, update_weights
from liftednn.losses import SoftmaxCrossEntropy, Split, SquaredError
from liftednn.penalties import L1, L2, Ball, GroupL2, LowRank, Mask, NonNegative, NoPenalty, Orthogonal
from liftednn.solvers import select
from liftednn.solvers.auto import Method
from tests.chains import Link, update_state

RULES: list[tuple[Divergence, Penalty | Activation, Method]] = [
    # W-steps, with a penalty
    (ReLU(), L2(), "ridge"),
    (SquaredError(), NoPenalty(), "ridge"),
    (HardTanh(), NonNegative(), "nnls"),
    (SquaredError(), Mask(), "nnls"),
    (ReLU(), L1(), "prox_gradient"),
    (SquaredError(), Ball(), "prox_gradient"),
    (SoftmaxCrossEntropy(), L2(), "majorised"),
    (FenchelReLU(), NoPenalty(), "majorised"),
    (Split(), L2(), "majorised"),
    (SoftmaxCrossEntropy(), GroupL2(), "prox_gradient"),
    (SoftmaxCrossEntropy(), NonNegative(), "prox_gradient"),
    (SquaredError(), Orthogonal(), "projected"),
    (SoftmaxCrossEntropy(), LowRank(), "projected"),
    (LeakyReLU(), L2(), "splitting"),
    (LeakyReLU(), NonNegative(), "splitting"),
    (ReLU("l1"), L2(), "splitting"),
    # X-steps, with an activation
    (ReLU(), ReLU(), "nnls"),
    (SquaredError(), FenchelReLU(), "nnls"),
    (SquaredError(), MaxPool(), "nnls"),
    (ReLU(), Sigmoid(), "prox_gradient"),
    (ReLU(), Simplex(), "prox_gradient"),
    (SoftmaxCrossEntropy(), ReLU(), "prox_gradient"),
    (LeakyReLU(), ReLU(), "dual"),
    (MaxPool(), LeakyReLU(), "dual"),
    (LeakyReLU(), Sigmoid(), "splitting"),
    (ReLU("l1"), ReLU(), "splitting"),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("method", get_args(Method))
def test_each_rule(method: Method) -> None:
    chosen = [(smooth, proxable) for smooth, proxable, name in RULES if name == method]
    assert chosen
    assert {select(smooth, proxable) for smooth, proxable in chosen} == {method}


@pytest.mark.parametrize("penalty", [Orthogonal(), LowRank()], ids=repr)
@pytest.mark.parametrize("smooth", [LeakyReLU(), ReLU("l1"), Sign(0.0)], ids=repr)
def test_no_curvature_and_no_convexity_are_refused_together(smooth: Divergence, penalty: Penalty) -> None:
    sentence = (
        f"{penalty!r} is not convex, and {smooth!r} has no finite curvature: no method descends on both, so use the "
        "Fenchel form of the activation, or a convex penalty"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        select(smooth, penalty)


def test_all_that_is_exported_declares_what_its_method_needs() -> None:
    """A method reads curvature, ridge and box, and calls prox_u: each is there where it is selected."""
    states = [getattr(activations, name)() for name in activations.__all__]
    smooths = [*states, *(getattr(losses, name)() for name in losses.__all__), ReLU("l1"), Sign(0.0)]
    for smooth in smooths:
        for proxable in [*states, *(getattr(penalties, name)() for name in penalties.__all__)]:
            if isinstance(proxable, Penalty) and not proxable.convex and smooth.curvature == torch.inf:
                continue  # refused, see above
            method = select(smooth, proxable)
            assert smooth.curvature < torch.inf or method in ("splitting", "dual"), (smooth, proxable)
            assert smooth.quadratic or method not in ("ridge", "nnls"), (smooth, proxable)
            assert proxable.ridge is not None or method not in ("ridge", "majorised"), (smooth, proxable)
            assert proxable.boxed or method not in ("nnls", "dual"), (smooth, proxable)
            assert type(smooth).prox_u is not Divergence.prox_u or method != "splitting", (smooth, proxable)


WEIGHT_RULES = [(smooth, pi, name) for smooth, pi, name in RULES if isinstance(pi, Penalty)]
STATE_RULES = [(smooth, z, name) for smooth, z, name in RULES if isinstance(z, Activation)]


def names(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("smooth", "penalty", "method"), WEIGHT_RULES, ids=names)
@pytest.mark.thin(2)
def test_what_is_selected_solves_the_weight_step(smooth: Divergence, penalty: Penalty, method: Method) -> None:
    """No weights nearby are better; where the problem is convex, no others are then."""
    p, q = 3, smooth.preactivation_width(4)
    layer = lnn.Layer(lnn.operators.Dense(p, q), smooth, penalty, 1.3)
    x, start = draw(20, p), lnn.Affine(penalty.prox(draw(q, p, seed=1), 1.0), draw(q, seed=2))
    z = smooth(x @ start.w.T + start.b + draw(20, q, seed=3).abs())

    def energy(w: Tensor, b: Tensor) -> float:
        return float(1.3 * smooth.value(x @ w.T + b, z).mean() + penalty.value(w))

    step = update_weights(layer, Design(x), z, start, tol=1e-4, max_iter=1000)
    found = energy(*step.weights)
    assert step.method == method
    assert found <= energy(*start)
    for seed in range(20):
        w = penalty.prox(step.weights.w + 0.1 * draw(q, p, seed=seed), 1e-6)
        b = step.weights.b + 0.1 * draw(q, seed=seed)
        assert energy(w, b) >= found - 1e-3 * (1 + abs(found))


@pytest.mark.parametrize(("smooth", "activation", "method"), STATE_RULES, ids=names)
@pytest.mark.thin(2)
def test_what_is_selected_solves_the_state_step(smooth: Divergence, activation: Activation, method: Method) -> None:
    p, q = 5, smooth.preactivation_width(4)
    weights, u = lnn.Affine(draw(q, p), draw(q, seed=1)), 2 * draw(6, activation.preactivation_width(p), seed=2)
    before = lnn.Layer(lnn.operators.Dense(3, activation.preactivation_width(p)), activation, lam=0.7)
    link = Link(before, lnn.Layer(lnn.operators.Dense(p, q), smooth, lam=1.3), weights)
    start = activation(u)
    after = smooth(start @ weights.w.T + weights.b + draw(6, q, seed=4).abs())

    def energy(z: Tensor) -> Tensor:
        return 1.3 * smooth.value(z @ weights.w.T + weights.b, after) + 0.7 * activation.value(u, z)

    step = update_state(link, u, start, after, tol=1e-4, max_iter=1000)
    found = energy(step.states[0])
    assert step.method == method
    assert bool((found <= energy(start) * (1 + 1e-12)).all())
    for seed in range(20):
        rival = activation.prox(step.states[0] + 0.1 * draw(6, p, seed=seed), u, 1e-6)
        assert bool((energy(rival) >= found - 1e-3 * (1 + found.abs())).all())
