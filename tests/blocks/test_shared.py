"""W-steps of layers that share their w, plain and transposed, against cvxpy: mixed lam, mixed divergences, mixed penalties."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen
from liftednn.blocks import designs_of, update_shared
from liftednn.losses import AbsoluteError, SoftmaxCrossEntropy, SquaredError
from liftednn.operators import Dense, Residual
from tests.shaped import Halves

N, P = 12, 3
COUNTS = torch.linspace(0.5, 2.0, N, dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def term(divergence: lnn.Divergence, u: Any, z: np.ndarray, counts: np.ndarray) -> Any:
    """The weighted mean over rows of D(u, z), for cvxpy."""
    share = counts / counts.sum()
    if isinstance(divergence, SoftmaxCrossEntropy):
        return share @ (cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(u, z), axis=1))
    if isinstance(divergence, AbsoluteError):
        return share @ cp.sum(cp.abs(u - z), axis=1)
    if isinstance(divergence, act.FenchelReLU):  # z^2 / 2 + (u)_+^2 / 2 - u z
        return share @ cp.sum(cp.square(cp.pos(u)) / 2 - cp.multiply(u, z), axis=1) + float(share @ (z**2 / 2).sum(1))
    return share @ cp.sum(cp.square(u - z), axis=1)


def penalty_value(penalty: lnn.Penalty, w: Any) -> Any:
    rho = getattr(penalty, "rho", 0.0)
    return rho * (cp.sum(cp.abs(w)) if isinstance(penalty, pen.L1) else cp.sum_squares(w))


DIVERGENCES: dict[str, list[lnn.Divergence]] = {
    "quadratic": [act.ReLU(), SquaredError()],
    "smooth": [act.FenchelReLU(), SoftmaxCrossEntropy()],
    "mixed": [act.FenchelReLU(), SquaredError()],
    "rough": [SquaredError(), AbsoluteError()],
}


@pytest.mark.parametrize("penalty", [pen.L2(0.05), pen.L1(0.05)], ids=["L2", "L1"])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.thin(2)
def test_a_shared_w_is_at_the_optimum(kind: str, transposed: bool, penalty: lnn.Penalty) -> None:
    q = 4 if transposed else P  # a square w where nothing is transposed, so that both fit one after the other
    operators = [Dense(P, q), Dense(q, P)] if transposed else [Dense(P, P), Dense(P, P, bias=False)]
    lams, shares = (1.7, 0.6), [False, transposed]
    layers = [
        lnn.Layer(o, d, penalty, lam, key="w", transposed=flip)
        for o, d, lam, flip in zip(operators, DIVERGENCES[kind], lams, shares, strict=True)
    ]
    xs = [[draw(1, N, P)], [draw(2, N, q)]]
    zs = [act.ReLU()(draw(3, N, q)), draw(4, N, P)]
    if isinstance(layers[1].divergence, SoftmaxCrossEntropy):
        zs[1] = torch.eye(P, dtype=torch.float64)[torch.arange(N) % P]
    w = draw(5, q, P)
    currents = [lnn.Affine(w, draw(6, q)), lnn.Affine(w.T if transposed else w, torch.zeros(P, dtype=torch.float64))]
    designs = [designs_of(layer, x, COUNTS) for layer, x in zip(layers, xs, strict=True)]
    found, step = update_shared(layers, designs, xs, zs, currents, tol=1e-8, max_iter=4000)
    assert step.kkt <= 1e-8
    torch.testing.assert_close(found[1].w, found[0].w.T if transposed else found[0].w, rtol=0, atol=0)

    v, b = cp.Variable((q, P)), [cp.Variable((1, q)), cp.Variable((1, P))]
    ones, counts = np.ones((N, 1)), COUNTS.numpy()
    images = [xs[0][0].numpy() @ v.T + ones @ b[0], xs[1][0].numpy() @ (v if transposed else v.T) + ones @ b[1]]
    terms = [
        lam * term(d, u, z.numpy(), counts) for lam, d, u, z in zip(lams, DIVERGENCES[kind], images, zs, strict=True)
    ]
    fixed = [] if operators[1].bias else [b[1] == 0]
    best = cp.Problem(cp.Minimize(sum(terms) + penalty_value(penalty, v)), fixed).solve(solver=cp.CLARABEL)
    v.value, b[0].value, b[1].value = found[0].w.numpy(), found[0].b[None].numpy(), found[1].b[None].numpy()
    reached = float((sum(terms) + penalty_value(penalty, v)).value)
    assert reached == pytest.approx(float(best), rel=2e-6)


def test_positions_and_sums_enter_rho_as_in_the_objective() -> None:
    """A layer with two rows for each sample and a residual sum share a w: no gradient is left."""
    layers = [
        lnn.Layer(Residual(Dense(3, 3)), act.FenchelReLU(), pen.L2(0.02), 1.3, key="w", reads=("x0",)),
        lnn.Layer(Dense(3, 6), act.ReLU(), lam=0.8, reads=("x1",)),
        lnn.Layer(Halves(3, 3), SquaredError(), pen.L2(0.02), 0.7, key="w", reads=("x2",)),
    ]
    network = lnn.LiftedNetwork(layers)
    x, y = draw(1, N, 3), draw(2, N, 6)
    bcd = lnn.BCD(block_tol=1e-10, block_iter=5000)
    state = bcd.init(network, x, y)
    before = network.objective(state.weights, state.states)
    blocks = list(bcd.blocks(network, state))
    assert [block.name for block in blocks] == ["x2", "x1", "w0", "w1"]
    w, first, last = (part.clone().requires_grad_() for part in (*state.weights[0], state.weights[2].b))
    weights = [lnn.Affine(w, first), state.weights[1], lnn.Affine(w, last)]
    means = [
        layer.lam
        * layer.divergence.value(network.preactivation(number, weights, state.states), state.states[number + 1])
        for number, layer in enumerate(layers)
    ]
    torch.stack([mean.mean() for mean in means]).sum().add(0.02 * w.square().sum()).backward()
    for part in (w, first, last):
        assert part.grad is not None
        assert float(part.grad.abs().max()) <= 1e-8
    assert network.objective(state.weights, state.states) < before
