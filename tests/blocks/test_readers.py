"""X-steps of states that several layers read, against cvxpy: mixed divergences, mixed lam, sums among the readers."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.base import SelfAdjoint
from liftednn.blocks import state_problem, update_all_states, update_state
from liftednn.losses import AbsoluteError, SoftmaxCrossEntropy, SquaredError
from liftednn.operators import Dense, Residual, Sum

N, P, H, Q = 6, 3, 4, 3


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(second: lnn.Activation, loss: lnn.Loss, own: lnn.Activation, residual: bool = False) -> lnn.LiftedNetwork:
    """x1 is read by a hidden layer, and by the last one beside the hidden layer's state."""
    inner = Residual(Dense(H, H)) if residual else Dense(H, H)
    return lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(P, H), own, lam=0.7),
            lnn.Layer(inner, second, lam=1.9),
            lnn.Layer(Sum(Dense(H, Q), (True, True), (False, False)), loss, lam=0.4, reads=("x2", "x1")),
        ]
    )


def weights_of(net: lnn.LiftedNetwork) -> list[lnn.Affine]:
    shapes = [layer.operator.weight_shape for layer in net.layers]
    return [lnn.Affine(draw(i, *shape), draw(9 + i, shape[0])) for i, shape in enumerate(shapes)]


def optimum(net: lnn.LiftedNetwork, weights: list[lnn.Affine], states: list[Tensor], residual: bool) -> float:
    """The least energy of the terms that x1 is in, by cvxpy."""
    (w0, b0), (w1, b1), (w2, b2) = [(w.numpy(), b.numpy()) for w, b in weights]
    x, _, after, y = (state.numpy() for state in states)
    z = cp.Variable((N, H))
    u0 = x @ w0.T + b0
    u1 = z @ w1.T + np.tile(b1, (N, 1)) + (z if residual else 0)
    u2 = (z + after) @ w2.T + np.tile(b2, (N, 1))
    constraints = [z >= 0]
    own = cp.sum_squares(u0 - z)
    hidden = cp.sum_squares(u1 - after)
    if isinstance(net.loss, SquaredError):
        last = cp.sum_squares(u2 - y)
    elif isinstance(net.loss, AbsoluteError):
        last = cp.sum(cp.abs(u2 - y))
    else:
        last = cp.sum(cp.log_sum_exp(u2, axis=1)) - cp.sum(cp.multiply(u2, y))
    problem = cp.Problem(cp.Minimize(0.7 * own + 1.9 * hidden + 0.4 * last), constraints)
    return float(problem.solve(solver=cp.CLARABEL))


CASES = {
    "nnls": (act.ReLU(), SquaredError()),
    "prox_gradient": (act.ReLU(), SoftmaxCrossEntropy()),
    "splitting": (act.ReLU(), AbsoluteError()),
}


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("method", CASES)
def test_a_state_with_two_readers_is_at_the_optimum(method: str, residual: bool) -> None:
    second, loss = CASES[method]
    net = network(second, loss, act.ReLU(), residual)
    weights, x = weights_of(net), draw(30, N, P)
    y = torch.eye(Q, dtype=torch.float64)[torch.arange(N) % Q] if loss.classes else draw(31, N, Q)
    states = [*net.propagate(weights, x), y]
    problem = state_problem(net, weights, states, 1)
    step = update_state(problem, states[1], tol=1e-7, max_iter=1000)
    assert step.method == method
    assert step.kkt <= 1e-7
    energy = float(problem.energy(problem.preactivations(step.states[0]), step.states[0]).sum())
    assert energy == pytest.approx(optimum(net, weights, states, residual), rel=1e-5)


def test_caps_of_one_reader_and_a_quadratic_of_the_other_meet() -> None:
    leaky = act.LeakyReLU(0.3)
    net = network(leaky, SquaredError(), act.ReLU())
    weights, x = weights_of(net), draw(30, N, P)
    states = [*net.propagate(weights, x), draw(31, N, Q)]
    problem = state_problem(net, weights, states, 1)
    step = update_state(problem, states[1])
    assert step.method == "dual"
    z = step.states[0]
    u1 = net.preactivation(1, weights, [x, z, *states[2:]])
    assert bool((u1 <= leaky.cap(states[2]) + 1e-9).all())
    (w0, b0), (w1, b1), (w2, b2) = [(w.numpy(), b.numpy()) for w, b in weights]
    v = cp.Variable((N, H))
    after, y = states[2].numpy(), states[3].numpy()
    terms = 0.7 * cp.sum_squares(x.numpy() @ w0.T + b0 - v) + 1.9 * cp.sum_squares(
        v @ w1.T + np.tile(b1, (N, 1)) - after
    )
    terms += 0.4 * cp.sum_squares((v + after) @ w2.T + np.tile(b2, (N, 1)) - y)
    caps = v @ w1.T + np.tile(b1, (N, 1)) <= leaky.cap(states[2]).numpy()
    cp.Problem(cp.Minimize(terms), [v >= 0, caps]).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(z.numpy(), v.value, atol=1e-5)


@pytest.mark.parametrize(
    "loss", [SquaredError(), SoftmaxCrossEntropy(), AbsoluteError()], ids=lambda x: type(x).__name__
)
@pytest.mark.thin(3)
def test_all_states_at_once_do_not_lie_above_cyclic_passes(loss: lnn.Loss) -> None:
    """Where every divergence is jointly convex, both end at the same least energy."""
    net = network(act.ReLU(), loss, act.ReLU(), residual=True)
    weights, x = weights_of(net), draw(30, N, P)
    y = torch.eye(Q, dtype=torch.float64)[torch.arange(N) % Q] if loss.classes else draw(31, N, Q)
    start = [*net.propagate(weights, x), y]
    step = update_all_states(net, weights, start, tol=1e-7, max_iter=400)
    together = net.objective(weights, [x, *step.states, y])
    states = list(start)
    for _ in range(60 if loss.curvature < torch.inf else 5):
        for number in (2, 1):
            problem = state_problem(net, weights, states, number)
            states[number] = update_state(problem, states[number], tol=1e-7, max_iter=400).states[0]
    cyclic = net.objective(weights, states)
    assert (
        together == pytest.approx(cyclic, rel=1e-5) if loss.curvature < torch.inf else together <= cyclic * (1 + 1e-5)
    )


def test_a_matrix_that_is_too_large_is_solved_by_conjugate_gradients() -> None:
    a = draw(1, 7, 5)
    whole = SelfAdjoint(5, lambda x: (x @ a.T) @ a, lambda: a.T @ a)
    free = SelfAdjoint(5, lambda x: (x @ a.T) @ a, None)
    rhs = draw(2, 9, 5)
    torch.testing.assert_close(free.solve(0.3, rhs), whole.solve(0.3, rhs), rtol=1e-9, atol=1e-10)
    with pytest.raises(ValueError, match="a matrix of 5 columns is too large to be formed: use apply and solve"):
        free.matrix()
