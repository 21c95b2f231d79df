"""The blocks of layers with uncertain rows: against conic solvers, and no block raises the objective."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelLeakyReLU, FenchelReLU, ReLU
from liftednn.base import Activation, Affine, Loss, Uncertainty
from liftednn.blocks import Design, update_activation, update_weights
from liftednn.losses import SoftmaxCrossEntropy, SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.penalties import L1, L2, NonNegative
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.box_weights import cone_prox, ends_prox
from liftednn.robust.worst_case import WorstCase

KINDS: list[Uncertainty] = [Noise(0.3), FrobeniusBall(0.3), BoxBall(0.1)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(layer: Layer, x: Tensor, z: Tensor, tol: float = 1e-9) -> tuple[Affine, float]:
    zero = Affine(x.new_zeros(layer.operator.weight_shape), x.new_zeros(layer.operator.weight_shape[0]))
    step = update_weights(layer, Design(x, layer.operator.bias), z, zero, tol, 4000)
    return step.weights, LiftedNetwork([layer]).objective([step.weights], [x, z])


def conic(rows: int, inputs: int) -> tuple[cp.Variable, cp.Variable, Tensor, Tensor]:
    x = draw(rows, inputs)
    return cp.Variable(inputs), cp.Variable(), x, (x[:, :1] - x[:, 1:2] ** 2 + 0.3 * draw(rows, 1, seed=1))


@pytest.mark.parametrize("size", [0.1, 0.3, 0.5])
def test_the_ball_of_one_output_against_a_conic_solver(size: float) -> None:
    w, b, x, z = conic(40, 4)
    root = cp.norm(x.numpy() @ w + b - z[:, 0].numpy()) / math.sqrt(40) + size * cp.norm(w)
    least = cp.Problem(cp.Minimize(cp.square(root) + 0.01 * cp.sum_squares(w))).solve(solver=cp.CLARABEL)
    found, value = solved(Layer(Dense(4, 1), SquaredError(), L2(0.01), uncertainty=FrobeniusBall(size)), x, z)
    assert value == pytest.approx(least, rel=1e-6)
    assert found.w[0].tolist() == pytest.approx(w.value, abs=1e-4)


@pytest.mark.parametrize("size", [0.01, 0.1, 0.5])
def test_the_box_against_a_conic_solver(size: float) -> None:
    w, b, x, z = conic(40, 4)
    eps = size * torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    worst = cp.sum_squares(cp.abs(x.numpy() @ w + b - z[:, 0].numpy()) + eps.numpy() @ cp.abs(w)) / 40
    least = cp.Problem(cp.Minimize(worst + 0.01 * cp.sum_squares(w))).solve(solver=cp.CLARABEL)
    found, value = solved(Layer(Dense(4, 1), SquaredError(), L2(0.01), uncertainty=BoxBall(eps)), x, z, 1e-7)
    assert value == pytest.approx(least, rel=1e-5)
    assert found.w[0].tolist() == pytest.approx(w.value, abs=1e-3)


@pytest.mark.slow
def test_logistic_regression_in_a_box_against_a_conic_solver() -> None:
    x = draw(40, 3)
    z = torch.eye(2, dtype=torch.float64)[(x[:, 0] + 0.5 * draw(40, seed=1) > 0).long()]
    w, b = cp.Variable((2, 3)), cp.Variable(2)
    radius = cp.sum(cp.abs(w), 1) * 0.1
    scores = x.numpy() @ w.T + cp.reshape(b, (1, 2), order="C")
    margin = scores[:, 0] - scores[:, 1]
    label = 1 - 2 * z[:, 1].numpy()  # the label's score falls and the other rises: a logistic loss of the margin
    worst = cp.sum(cp.logistic(-cp.multiply(label, margin) + cp.sum(radius))) / 40
    least = cp.Problem(cp.Minimize(worst + 0.01 * cp.sum_squares(w))).solve(solver=cp.CLARABEL)
    _, value = solved(Layer(Dense(3, 2), SoftmaxCrossEntropy(), L2(0.01), uncertainty=BoxBall(0.1)), x, z, 1e-6)
    assert value == pytest.approx(least, rel=1e-4)


@pytest.mark.parametrize("penalty", [L2(0.01), L1(0.01), NonNegative()], ids=repr)
@pytest.mark.parametrize("loss", [SquaredError(), SoftmaxCrossEntropy()], ids=["squared", "softmax"])
def test_noise_against_a_conic_solver(penalty: L2 | L1 | NonNegative, loss: Loss) -> None:
    x, root = draw(40, 3), 0.4 * draw(3, 3, seed=2)
    z = torch.eye(2, dtype=torch.float64)[(x[:, 0] > 0).long()]
    w, b = cp.Variable((2, 3)), cp.Variable(2)
    u = x.numpy() @ w.T + cp.reshape(b, (1, 2), order="C")
    squared = isinstance(loss, SquaredError)
    data = (
        cp.sum_squares(u - z.numpy())
        if squared
        else cp.sum(cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(u, z.numpy()), 1))
    )
    noise = (1.0 if squared else 0.25) * cp.sum_squares(w @ root.numpy())
    extra = {"L2": 0.01 * cp.sum_squares(w), "L1": 0.01 * cp.sum(cp.abs(w)), "NonNegative": 0.0}[type(penalty).__name__]
    bounds = [w >= 0] if isinstance(penalty, NonNegative) else []
    least = cp.Problem(cp.Minimize(data / 40 + noise + extra), bounds).solve(solver=cp.CLARABEL)
    layer = Layer(Dense(3, 2), loss, penalty, uncertainty=Noise(root @ root.T))
    assert solved(layer, x, z, 1e-7)[1] == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize("loss", [SquaredError(), SoftmaxCrossEntropy()], ids=["squared", "softmax"])
def test_the_ball_with_another_metric_or_penalty_ends_at_the_same_place(loss: Loss) -> None:
    x = draw(40, 3)
    z = torch.eye(2, dtype=torch.float64)[(x[:, 0] > 0).long()]
    straight = solved(Layer(Dense(3, 2), loss, L2(0.01), uncertainty=FrobeniusBall(0.2)), x, z)[1]
    metric = FrobeniusBall(0.2, torch.eye(3, dtype=torch.float64))
    assert solved(Layer(Dense(3, 2), loss, L2(0.01), uncertainty=metric), x, z)[1] == pytest.approx(straight, rel=1e-4)


@pytest.mark.parametrize(
    ("activation", "where", "dtype"),
    [
        (ReLU(), "first", torch.float64),
        (ReLU(), "both", torch.float32),
        (FenchelReLU(), "last", torch.float32),
        (FenchelReLU(), "first", torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
@pytest.mark.thin(6)
def test_no_block_raises_the_objective(
    kind: Uncertainty, activation: Activation, where: str, dtype: torch.dtype
) -> None:
    x = draw(24, 4).to(dtype)
    y = (x[:, 0] * x[:, 1] > 0).long()
    first, last = kind if where != "last" else None, kind if where != "first" else None
    layers = [Layer(Dense(4, 3), activation, L2(1e-3), 0.5, first)]
    network = LiftedNetwork([*layers, Layer(Dense(3, 2), SoftmaxCrossEntropy(), L2(1e-3), 1.0, last)])
    bcd = lnn.BCD()
    state = bcd.init(network, x, y)
    before = start = network.objective(state.weights, state.states)
    slack = 20 * torch.finfo(dtype).eps * start
    for _ in range(1 if isinstance(kind, BoxBall) else 3):
        for block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert after <= before + slack, f"{block} raises it from {before} to {after}"
            before = after
    assert before < start


@pytest.mark.parametrize(
    ("kind", "per", "alpha"),
    [
        (Noise(0.5), "unit", 0.5),
        (Noise(0.5), "layer", 2.0),
        (BoxBall(0.2), "layer", 0.5),
        (FrobeniusBall(0.5), "unit", 2.0),
    ],
    ids=lambda given: str(given),
)
@pytest.mark.thin(3)
def test_no_block_raises_the_objective_where_activations_are_learned(
    kind: Uncertainty, per: Literal["layer", "unit"], alpha: float
) -> None:
    x = draw(30, 4)
    first = Layer(Dense(4, 3), FenchelLeakyReLU(alpha), L2(1e-3), 1.0, kind)
    network = LiftedNetwork([first, Layer(Dense(3, 1), SquaredError(), L2(1e-3))])
    bcd = lnn.BCD(learn_activation=per)
    state = bcd.init(network, x, x[:, :1] * x[:, 1:2], sample_weight=torch.arange(30) % 3)
    before, names = network.objective(state.weights, state.states, state.sample_weight), set()
    for _ in range(2):
        for block in bcd.blocks(network, state):
            after = (state.network or network).objective(state.weights, state.states, state.sample_weight)
            assert after <= before * (1 + 1e-12), f"{block} raises it from {before} to {after}"
            before = after
            names.add(block.name)
    assert "phi1" in names


def test_a_refit_that_lowers_the_robust_energy_is_taken() -> None:
    u, w = draw(60, 3), 0.01 * draw(3, 4, seed=1)
    layer = Layer(Dense(4, 3), FenchelLeakyReLU(0.9), L2(), 1.0, Noise(0.5))
    network = LiftedNetwork([layer, Layer(Dense(3, 1), SquaredError())])
    step = update_activation(network, 0, w, u, FenchelLeakyReLU(0.2)(u), None, "layer")
    assert step.network.hidden[0].alpha == pytest.approx(0.2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda k: type(k).__name__)
def test_all_states_at_once(kind: Uncertainty) -> None:
    x = draw(40, 4)
    hidden = [Layer(Dense(4, 3), ReLU(), uncertainty=kind), Layer(Dense(3, 3), ReLU(), uncertainty=kind)]
    network = LiftedNetwork([*hidden, Layer(Dense(3, 1), SquaredError(), uncertainty=kind)])
    history = lnn.BCD(passes=4, joint=True).run(network, x, x[:, 0] * x[:, 1]).history
    objectives = [record.objective for record in history]
    assert all(b <= a for a, b in pairwise(objectives))
    boxed = LiftedNetwork([replace(layer, uncertainty=BoxBall()) for layer in network.layers])
    with pytest.raises(ValueError, match="layer by layer"):
        lnn.BCD(joint=True).run(boxed, x, x[:, 0])


def test_row_weights_are_repetitions() -> None:
    x, z, counts = draw(30, 3), draw(30, 2, seed=1), torch.arange(30) % 3 + 1
    repeated = torch.repeat_interleave(torch.arange(30), counts)
    zero = Affine(x.new_zeros(2, 3), x.new_zeros(2))
    for kind in KINDS:
        layer = Layer(Dense(3, 2), SquaredError(), uncertainty=kind)
        weighed = update_weights(layer, Design(x, True, counts.double()), z, zero, 1e-8, 2000).weights
        whole = update_weights(layer, Design(x[repeated]), z[repeated], zero, 1e-8, 2000).weights
        torch.testing.assert_close(weighed.w, whole.w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "divergence", [SquaredError(), FenchelReLU(), SoftmaxCrossEntropy()], ids=lambda d: type(d).__name__
)
def test_the_prox_of_both_ends_is_a_minimum(divergence: Activation | Loss) -> None:
    u, radius, z = draw(50, 3), draw(50, 3, seed=1), draw(50, 3, seed=2).relu()
    if isinstance(divergence, SoftmaxCrossEntropy):
        z = torch.eye(3, dtype=torch.float64)[torch.arange(50) % 3]
    a, b = ends_prox(divergence, u, radius, z, 0.7)

    def energy(a: Tensor, b: Tensor) -> Tensor:
        if isinstance(divergence, SoftmaxCrossEntropy):
            worst = divergence.value(a + (1 - 2 * z) * b, z)
        elif divergence.quadratic:
            worst = ((a - z).abs() + b).clamp(min=0).square().sum(1)
        else:
            worst = WorstCase(divergence, b).value(a, z)
        return worst + ((a - u).square() + (b - radius).square()).sum(1) / 1.4

    least = energy(a, b)
    for seed in range(3, 40):
        size = 10.0 ** -(seed % 5)
        rival = energy(a + size * draw(50, 3, seed=seed), b + size * draw(50, 3, seed=100 + seed))
        assert bool((least <= rival + 1e-9).all())


def test_the_cone() -> None:
    w, v = 2 * draw(200), 2 * draw(200, seed=1)
    a, b = cone_prox(w, v, 1.5)
    assert bool((a.abs() <= b + 1e-12).all())
    grid = torch.linspace(-4, 4, 161, dtype=torch.float64)
    pairs = torch.cartesian_prod(grid, grid)
    pairs = pairs[pairs[:, 0].abs() <= pairs[:, 1]]
    energy = 0.75 * (pairs[:, :1] - w / 1.5) ** 2 + 0.5 * (pairs[:, 1:] - v) ** 2
    assert bool((0.75 * (a - w / 1.5) ** 2 + 0.5 * (b - v) ** 2 <= energy.amin(0) + 1e-12).all())


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1e4])
@pytest.mark.thin(3)
def test_a_box_in_other_units_gives_the_same_objective(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    y = x[:, :1] - 2 * x[:, 1:2] + 3 + 0.5 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    found = []
    for unit in (1.0, scale):
        layer = Layer(Dense(4, 1), SquaredError(), penalty=L2(1e-3 * unit**2), uncertainty=BoxBall(0.2 * unit))
        found.append(lnn.BCD(passes=2, block_tol=1e-5).run(LiftedNetwork([layer]), unit * x, y).history[-1])
    assert found[1].objective == pytest.approx(found[0].objective, rel=1e-6)
    assert max(each.kkt["w0"] for each in found) <= 1e-5
