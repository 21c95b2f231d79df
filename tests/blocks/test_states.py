"""The X-step against cvxpy, scipy and stationarity, for one layer and for all at once."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.blocks import update_all_states, why_not_joint
from liftednn.losses import SoftmaxCrossEntropy, Split, SquaredError
from liftednn.solvers import select
from tests.chains import Link, update_state


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


P, Q, N = 5, 4, 6
WEIGHTS = lnn.Affine(draw(Q, P), draw(Q, seed=1))
W, B = WEIGHTS.w.numpy(), WEIGHTS.b.numpy()
U = 2 * draw(N, P, seed=2)


def link(activation: lnn.Activation, following: lnn.Divergence, lam: float = 0.7, lam_next: float = 1.3) -> Link:
    return Link(
        lnn.Layer(lnn.operators.Dense(3, P), activation, lam=lam),
        lnn.Layer(lnn.operators.Dense(P, Q), following, lam=lam_next),
        WEIGHTS,
    )


BOXES = {"ReLU": (0, np.inf), "HardTanh": (-1, 1), "HardSigmoid": (0, 1), "Identity": (-np.inf, np.inf)}


@pytest.mark.parametrize("name", BOXES)
def test_bounded_least_squares_against_scipy(name: str) -> None:
    activation, y = getattr(act, name)(), draw(N, Q, seed=3)
    step = update_state(link(activation, SquaredError()), U, activation(U), y, tol=1e-11, max_iter=5000)
    assert (step.method, step.kkt <= 1e-11) == ("nnls", True)
    for u, target, found in zip(U.numpy(), y.numpy(), step.states[0].numpy(), strict=True):
        energy = lambda z, u=u, target=target: 1.3 * ((W @ z + B - target) ** 2).sum() + 0.7 * ((z - u) ** 2).sum()  # noqa: E731
        low, high = BOXES[name]
        oracle = minimize(
            energy, np.clip(u, low, high), bounds=[(low, high)] * P, options={"ftol": 1e-15, "gtol": 1e-10}
        )
        np.testing.assert_allclose(found, oracle.x, atol=1e-5)


def test_relu_before_a_softmax_against_a_conic_solver() -> None:
    labels = torch.arange(N) % Q
    y = SoftmaxCrossEntropy().encode(labels, Q).double()
    step = update_state(link(act.ReLU(), SoftmaxCrossEntropy()), U, U.relu(), y, tol=1e-9, max_iter=5000)
    for u, label, found in zip(U.numpy(), labels.numpy(), step.states[0].numpy(), strict=True):
        z = cp.Variable(P, nonneg=True)
        scores = W @ z + B
        goal = 1.3 * (cp.log_sum_exp(scores) - scores[int(label)]) + 0.7 * cp.sum_squares(z - u)
        cp.Problem(cp.Minimize(goal)).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found, z.value, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_leaky_relu_before_leaky_relu_against_a_conic_solver(alpha: float) -> None:
    leaky = act.LeakyReLU(alpha)
    start = leaky(U)
    after = leaky(start @ WEIGHTS.w.T + WEIGHTS.b) + draw(N, Q, seed=5).abs()
    step = update_state(link(leaky, leaky), U, start, after, tol=1e-8)
    assert step.method == "dual"
    for u, target, found in zip(U.numpy(), after.numpy(), step.states[0].numpy(), strict=True):
        z = cp.Variable(P)
        goal = 1.3 * cp.sum_squares(W @ z + B - target) + 0.7 * cp.sum_squares(z - u)
        cp.Problem(cp.Minimize(goal), [z >= alpha * u, alpha * (W @ z + B) <= target]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found, z.value, atol=1e-4)


@pytest.mark.parametrize("name", ["HardTanh", "Identity", "ReLU"])
def test_a_box_before_leaky_relu_against_a_conic_solver(name: str) -> None:
    activation, leaky = getattr(act, name)(), act.LeakyReLU(0.3)
    start = activation(U)
    after = leaky(start @ WEIGHTS.w.T + WEIGHTS.b) + 0.3 * draw(N, Q, seed=5).abs()
    step = update_state(link(activation, leaky), U, start, after, tol=1e-8)
    assert (step.method, step.kkt < 1e-6) == ("dual", True)
    low, high = BOXES[name]
    for u, target, found in zip(U.numpy(), after.numpy(), step.states[0].numpy(), strict=True):
        z = cp.Variable(P)
        goal = 1.3 * cp.sum_squares(W @ z + B - target) + 0.7 * cp.sum_squares(z - u)
        box = ([z >= low] if np.isfinite(low) else []) + ([z <= high] if np.isfinite(high) else [])
        cp.Problem(cp.Minimize(goal), [0.3 * (W @ z + B) <= target, *box]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found, z.value, atol=1e-4)


def test_l1_relu_against_a_conic_solver() -> None:
    after = draw(N, Q, seed=5).abs()
    step = update_state(link(act.ReLU("l1"), act.ReLU("l1")), U, U.relu(), after, tol=1e-8, max_iter=400)
    assert step.method == "splitting"
    for u, target, found in zip(U.numpy(), after.numpy(), step.states[0].numpy(), strict=True):
        z = cp.Variable(P, nonneg=True)
        goal = cp.Problem(cp.Minimize(1.3 * cp.norm1(W @ z + B - target) + 0.7 * cp.norm1(z - u)))
        goal.solve(solver=cp.CLARABEL)
        energy = 1.3 * np.abs(W @ found + B - target).sum() + 0.7 * np.abs(found - u).sum()
        assert energy == pytest.approx(goal.value, rel=1e-5)


FOLLOWING = [SquaredError(), SoftmaxCrossEntropy(), act.FenchelReLU(), act.Tanh()]


@pytest.mark.parametrize(("name", "following"), list(zip(act.__all__, itertools.cycle(FOLLOWING), strict=False)))
@pytest.mark.thin(6)
def test_no_sample_ends_higher_and_other_points_are_no_better(name: str, following: lnn.Divergence) -> None:
    activation = getattr(act, name)()
    u = 2 * draw(N, activation.preactivation_width(P), seed=2)
    block, start, after = link(activation, following), activation(u), following(draw(N, Q, seed=4))

    def energy(z: Tensor) -> Tensor:
        return 1.3 * following.value(z @ WEIGHTS.w.T + WEIGHTS.b, after) + 0.7 * activation.value(u, z)

    step = update_state(block, u, start, after, tol=1e-7, max_iter=3000)
    found = energy(step.states[0])
    assert step.method == select(following, activation)
    assert step.kkt <= 1e-7
    assert bool((found <= energy(start) * (1 + 1e-12)).all())
    for seed in range(5):
        rival = activation.prox(step.states[0] + 0.1 * draw(N, P, seed=seed), u, 1e-3)
        assert bool((energy(rival) >= found - 1e-6 * (1 + found.abs())).all())


def network(activation: str = "relu", loss: str = "squared") -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([3, 5, 4, 2], activation=activation, loss=loss, lam=[0.7, 1.3])


def test_all_states_at_once_against_a_conic_solver() -> None:
    net = network()
    weights = [
        lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.weight_shape[0])) for layer in net.layers
    ]
    x, y = draw(4, 3), draw(4, 2, seed=6)
    step = update_all_states(net, weights, [*net.propagate(weights, x), y], tol=1e-10, max_iter=20000)
    (w0, b0), (w1, b1), (w2, b2) = [(w.numpy(), b.numpy()) for w, b in weights]
    for row in range(4):
        z1, z2 = cp.Variable(5, nonneg=True), cp.Variable(4, nonneg=True)
        goal = 0.7 * cp.sum_squares(z1 - w0 @ x[row].numpy() - b0) + 1.3 * cp.sum_squares(z2 - w1 @ z1 - b1)
        cp.Problem(cp.Minimize(goal + cp.sum_squares(w2 @ z2 + b2 - y[row].numpy()))).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(step.states[0][row].numpy(), z1.value, atol=1e-5)
        np.testing.assert_allclose(step.states[1][row].numpy(), z2.value, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "sentence"),
    [("fenchel_relu", "not jointly convex"), ("sigmoid", "not jointly convex")],
)
def test_states_that_cannot_be_updated_at_once_are_refused_in_words(activation: str, sentence: str) -> None:
    net = network(activation)
    assert sentence in why_not_joint(net)
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD(joint=True).run(net, draw(5, 3), draw(5, 2))


def test_rows_are_independent_of_their_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    y = SoftmaxCrossEntropy().encode(torch.arange(N) % Q, Q).double()
    whole = update_state(link(act.ReLU(), SoftmaxCrossEntropy()), U, U.relu(), y, tol=1e-10, max_iter=5000)
    monkeypatch.setattr("liftednn.blocks.readers._CPU_ROWS", 2)
    cut = update_state(link(act.ReLU(), SoftmaxCrossEntropy()), U, U.relu(), y, tol=1e-10, max_iter=5000)
    torch.testing.assert_close(cut.states[0], whole.states[0], atol=1e-8, rtol=0)


def lifted_energy(
    activation: str, w: list[np.ndarray], b: list[np.ndarray], x: np.ndarray, y: np.ndarray, split: bool = False
) -> float:
    """min over both hidden states of the whole energy of one sample, by a conic solver; `split`: the loss is Split()."""
    z = [cp.Variable(5), cp.Variable(4)]
    u = [w[0] @ x + b[0], w[1] @ z[0] + b[1], w[2] @ z[1] + b[2]]
    if activation == "max_pool":
        spread = [np.kron(np.eye(p), np.ones((2, 1))) for p in (5, 4)]
        terms = [cp.sum_squares(s @ state - v) for s, state, v in zip(spread, z, u, strict=False)]
        domain = [s @ state >= v for s, state, v in zip(spread, z, u, strict=False)]
    elif activation == "l1":
        terms, domain = [cp.norm1(state - v) for state, v in zip(z, u, strict=False)], [state >= 0 for state in z]
    else:
        terms = [cp.sum_squares(state - v) for state, v in zip(z, u, strict=False)]
        domain = [state >= 0.2 * v for state, v in zip(z, u, strict=False)]
    last = cp.Variable(2, nonneg=True) if split else u[2]
    loss = cp.sum_squares(last - y) + (cp.sum_squares(u[2] - last) if split else 0)
    goal = cp.Problem(cp.Minimize(0.7 * terms[0] + 1.3 * terms[1] + loss), domain)
    goal.solve(solver=cp.CLARABEL)
    return float(goal.value)


@pytest.mark.parametrize(
    ("name", "activation", "loss"),
    [
        ("leaky", act.LeakyReLU(0.2), SquaredError()),
        ("l1", act.ReLU("l1"), SquaredError()),
        ("leaky", act.LeakyReLU(0.2), Split()),
        ("max_pool", act.MaxPool(2), SquaredError()),
        ("l1", act.ReLU("l1"), Split()),
    ],
    ids=repr,
)
@pytest.mark.thin(2)
def test_states_that_are_not_smooth_are_updated_at_once_too(
    name: str, activation: lnn.Activation, loss: lnn.Loss
) -> None:
    net = lnn.LiftedNetwork.mlp([3, 5, 4, 2], activation=activation, loss=loss, lam=[0.7, 1.3])
    weights = [
        lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.weight_shape[0])) for layer in net.layers
    ]
    x, y = draw(4, 3), draw(4, 2, seed=6)
    step = update_all_states(net, weights, [*net.propagate(weights, x), y], tol=1e-5, max_iter=400)
    assert step.method == "splitting"
    states = [x, *step.states, y]
    assert net.objective(weights, states) <= net.objective(weights, [*net.propagate(weights, x), y])
    terms = [
        layer.lam * layer.divergence.value(net.preactivation(number, weights, states), states[number + 1])
        for number, layer in enumerate(net.layers)
    ]
    energy = torch.stack(terms).sum(0)
    w, b = [part.w.numpy() for part in weights], [part.b.numpy() for part in weights]
    for row in range(4):
        least = lifted_energy(name, w, b, x[row].numpy(), y[row].numpy(), isinstance(loss, Split))
        assert float(energy[row]) == pytest.approx(least, rel=1e-4)
