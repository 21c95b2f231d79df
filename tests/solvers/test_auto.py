"""The only dispatch: its answer follows from what the two sides declare, for all that is exported."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from liftednn import activations, losses, penalties
from liftednn.activations import FenchelReLU, HardTanh, LeakyReLU, MaxPool, ReLU, Sigmoid, Sign, Simplex, Softmax
from liftednn.base import Activation, Divergence, Penalty
from liftednn.losses import CrossEntropy, SoftmaxCrossEntropy, Split, SquaredError
from liftednn.penalties import L1, L2, Ball, ElasticNet, GroupL2, LowRank, Mask, NonNegative, NoPenalty, Orthogonal
from liftednn.solvers import select
from liftednn.solvers.auto import Method

ACTIVATIONS: list[Activation] = [getattr(activations, name)() for name in activations.__all__]
ACTIVATIONS += [ReLU("l1"), Sign(0.0), MaxPool(3, form="paper")]
LOSSES = [getattr(losses, name)() for name in losses.__all__] + [Split(CrossEntropy(), Simplex())]
PENALTIES = [getattr(penalties, name)() for name in penalties.__all__]
SMOOTH: list[Divergence] = [*ACTIVATIONS, *LOSSES]
PROXABLE: list[Penalty | Activation] = [*PENALTIES, *ACTIVATIONS]


@pytest.mark.parametrize("proxable", PROXABLE, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("smooth", SMOOTH, ids=lambda d: type(d).__name__)
def test_the_method_can_do_what_the_declarations_ask(smooth: Divergence, proxable: Penalty | Activation) -> None:
    state = isinstance(proxable, Activation)
    if isinstance(proxable, Penalty) and not proxable.convex:
        if smooth.curvature == torch.inf:
            with pytest.raises(ValueError, match=r"is not convex, and .* has no finite curvature"):
                select(smooth, proxable)
        else:
            assert select(smooth, proxable) == "projected"
        return
    method = select(smooth, proxable)
    assert method in get_args(Method)
    if method in ("ridge", "nnls"):
        assert smooth.quadratic
    if method in ("ridge", "majorised"):
        assert proxable.ridge is not None
    if method in ("nnls", "dual"):
        assert proxable.boxed
    assert (method == "dual") == (smooth.capped and state and proxable.boxed)
    assert (method == "splitting") == (smooth.curvature == torch.inf and method != "dual")
    if smooth.quadratic:
        assert method in ("ridge", "nnls", "prox_gradient")
        assert (method == "prox_gradient") == (proxable.ridge is None and not proxable.boxed)
    if method == "prox_gradient":
        assert smooth.curvature < torch.inf
        assert proxable.ridge is None


@pytest.mark.parametrize(
    ("smooth", "proxable", "method"),
    [
        (ReLU(), L2(), "ridge"),
        (SquaredError(), NoPenalty(), "ridge"),
        (HardTanh(), NonNegative(), "nnls"),
        (ReLU(), Mask(), "nnls"),
        (ReLU(), L1(), "prox_gradient"),
        (SquaredError(), ElasticNet(), "prox_gradient"),
        (SoftmaxCrossEntropy(), L2(), "majorised"),
        (FenchelReLU(), NoPenalty(), "majorised"),
        (Split(), L2(), "majorised"),
        (SoftmaxCrossEntropy(), GroupL2(), "prox_gradient"),
        (SoftmaxCrossEntropy(), NonNegative(), "prox_gradient"),
        (SquaredError(), Ball(), "prox_gradient"),
        (SquaredError(), Orthogonal(), "projected"),
        (SoftmaxCrossEntropy(), LowRank(), "projected"),
        (LeakyReLU(), L2(), "splitting"),
        (LeakyReLU(), NonNegative(), "splitting"),
        (ReLU("l1"), L2(), "splitting"),
        (MaxPool(), NoPenalty(), "splitting"),
        (ReLU(), ReLU(), "nnls"),
        (SquaredError(), FenchelReLU(), "nnls"),
        (ReLU(), LeakyReLU(), "nnls"),
        (SquaredError(), MaxPool(), "nnls"),
        (ReLU(), Sigmoid(), "prox_gradient"),
        (ReLU(), Simplex(), "prox_gradient"),
        (SoftmaxCrossEntropy(), ReLU(), "prox_gradient"),
        (Sigmoid(), Softmax(), "prox_gradient"),
        (LeakyReLU(), ReLU(), "dual"),
        (MaxPool(), LeakyReLU(), "dual"),
        (LeakyReLU(), Sigmoid(), "splitting"),
        (ReLU("l1"), ReLU(), "splitting"),
        (Sign(0.0), ReLU(), "splitting"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_the_table(smooth: Divergence, proxable: Penalty | Activation, method: Method) -> None:
    assert select(smooth, proxable) == method


def test_every_method_is_reached() -> None:
    possible = [
        (d, p) for d in SMOOTH for p in PROXABLE if d.curvature < torch.inf or not isinstance(p, Orthogonal | LowRank)
    ]
    assert {select(d, p) for d, p in possible} == set(get_args(Method))
