"""Max-pooling after operators with several positions: `Pooled` in mini-batches, against autograd, and `MaxPoolReLU` in exact blocks,
against a conic solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as fn

import liftednn as lnn
from liftednn import activations as act
from liftednn.blocks import designs_of, update_layer
from liftednn.losses import SoftmaxCrossEntropy, SquaredError
from liftednn.operators import Dense
from liftednn.training.batch import x_step
from tests.chains import Link, update_state
from tests.shaped import Grouped, Halves, Pointwise

IMAGE = (3, 6, 5)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# values and gradients


@pytest.mark.parametrize(("kernel", "stride"), [(2, None), (3, 2), ((3, 2), 1), ((2, 1), (1, 3))])
def test_pooled_images_are_those_of_torch(kernel: Any, stride: Any) -> None:
    pooled, u = act.Pooled(act.Tanh(), IMAGE, kernel, stride), draw(7, 90).requires_grad_()
    expected = fn.max_pool2d(u.view(7, *IMAGE).tanh(), kernel, stride)
    torch.testing.assert_close(pooled(u), expected.flatten(1))
    assert pooled.state_shape(IMAGE) == expected.shape[1:]
    assert pooled.preactivation_width(pooled.width(90)) == 90
    z = pooled(draw(7, 90, seed=1))
    act.Tanh().value(fn.max_pool2d(u.view(7, *IMAGE), kernel, stride).flatten(1), z).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(pooled.grad(u.detach(), z), u.grad)


def _grad_by_indices(pooled: act.Pooled, u: Tensor, z: Tensor) -> Tensor:
    """The gradient as it is computed on a GPU."""
    largest, spread = pooled._selected_by_indices(u)
    return spread(pooled.activation.grad(largest, z))


@pytest.mark.parametrize(("kernel", "stride"), [(2, None), (3, 1)])
def test_of_equal_entries_the_one_that_torch_selects_gets_the_gradient(kernel: int, stride: int | None) -> None:
    pooled, u = act.Pooled(act.FenchelReLU(), IMAGE, kernel, stride), draw(50, 90).round().requires_grad_()
    z = pooled(draw(50, 90, seed=1))
    pool = fn.max_pool2d(u.view(50, *IMAGE), kernel, stride)
    act.FenchelReLU().value(pool.flatten(1), z).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(pooled.grad(u.detach(), z), u.grad)
    torch.testing.assert_close(_grad_by_indices(pooled, u.detach(), z), u.grad)


@pytest.mark.parametrize(("kernel", "stride"), [(2, None), (3, 2)])
def test_pooled_sequences_are_those_of_torch(kernel: int, stride: int | None) -> None:
    pooled, u = act.Pooled(act.Softplus(), (-1, 7), kernel, stride), draw(5, 21).requires_grad_()
    maxima = fn.max_pool1d(u.view(5, 3, 7), kernel, stride)
    torch.testing.assert_close(pooled(u), act.Softplus()(maxima).flatten(1))
    z = pooled(draw(5, 21, seed=1))
    torch.testing.assert_close(_grad_by_indices(pooled, u.detach(), z), pooled.grad(u.detach(), z))
    assert pooled.state_shape((3, 7)) == maxima.shape[1:]
    z = pooled(draw(5, 21, seed=1))
    act.Softplus().value(maxima.flatten(1), z).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(pooled.grad(u.detach(), z), u.grad)


@pytest.mark.parametrize("inner", [act.FenchelReLU(), act.Tanh(), act.Scaled(act.Sigmoid(), 2.0)], ids=repr)
def test_a_pooled_energy_is_0_at_phi_and_positive_elsewhere(inner: lnn.Activation) -> None:
    pooled = act.Pooled(inner, IMAGE, 2)
    u, other = draw(50, 90), draw(50, 90, seed=1)
    assert float(pooled.value(u, pooled(u)).abs().max()) <= 1e-12
    assert float(pooled.grad(u, pooled(u)).abs().max()) <= 1e-12
    assert float(pooled.value(u, pooled(other)).min()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pooling_keeps_the_precision(dtype: torch.dtype) -> None:
    u = draw(4, 90).to(dtype)
    for pooled in (act.Pooled(act.FenchelReLU(), IMAGE, 2), act.MaxPoolReLU(IMAGE, (2, 5))):
        assert {pooled(u).dtype, pooled.value(u, pooled(u)).dtype, pooled.grad(u, pooled(u)).dtype} == {dtype}


@pytest.mark.parametrize(("shape", "kernel"), [((3, 6, 4), 2), ((3, 6, 4), (3, 1)), ((-1, 6, 4), (1, 4)), ((4, 18), 3)])
def test_max_pool_relu_is_the_relu_of_the_largest(shape: tuple[int, ...], kernel: Any) -> None:
    pooled, u = act.MaxPoolReLU(shape, kernel), 2 * draw(9, 72)
    pool = fn.max_pool2d if len(shape) == 3 else fn.max_pool1d
    expected = pool(u.view(9, *shape) if shape[0] > 0 else u.view(9, 3, 6, 4), kernel).relu()
    assert torch.equal(pooled(u), expected.flatten(1))
    assert pooled.state_shape((72,)) == expected.shape[1:]
    assert torch.equal(act.Pooled(act.FenchelReLU(), shape, kernel)(u), pooled(u))


def spreading(channels: int, size: int, kernel: int) -> np.ndarray:
    """The matrix that gives every entry of an image, (channels, size, size), the state of its window."""
    counts = size // kernel
    matrix = np.zeros((channels * size * size, channels * counts * counts))
    for c in range(channels):
        for i in range(size):
            for j in range(size):
                matrix[(c * size + i) * size + j, (c * counts + i // kernel) * counts + j // kernel] = 1
    return matrix


def test_states_are_spread_over_their_windows() -> None:
    pooled, z = act.MaxPoolReLU((2, 6, 6), 3), draw(5, 8).abs()
    torch.testing.assert_close(pooled.cap(z), z @ torch.from_numpy(spreading(2, 6, 3)).T)


# mini-batches


def small(lam: float, dtype: torch.dtype = torch.float64) -> tuple[lnn.LiftedNetwork, list[lnn.Affine], Tensor, Tensor]:
    """1x1 convolutions, each with a pooled activation, and a head; overlapping windows first."""
    network = lnn.LiftedNetwork(
        [
            lnn.Layer(Pointwise(2, 4, 5, 1), act.Pooled(act.FenchelReLU(), (4, 5, 5), 3, 2), lam=lam),
            lnn.Layer(Pointwise(4, 3, 2, 1), act.Pooled(act.Tanh(), (3, 2, 2), 2), lam=lam),
            lnn.Layer(Dense(3, 2), SoftmaxCrossEntropy()),
        ]
    )
    shapes = [layer.operator.weight_shape for layer in network.layers]
    weights = [lnn.Affine(draw(*shape, seed=i).to(dtype), draw(shape[0]).to(dtype)) for i, shape in enumerate(shapes)]
    x = draw(300, 50, seed=5).to(dtype)
    return network, weights, x, (x[:, :25].amax(1) > 1.95).long()


def test_a_convolution_can_read_pooled_states() -> None:
    network, weights, x, _ = small(1.0)
    assert [layer.shape for layer in network.layers] == [(4, 2, 2), (3, 1, 1), (2,)]
    assert [state.shape[1] for state in network.propagate(weights, x)] == [50, 16, 3]


def test_for_large_lam_the_gradients_are_those_of_autograd() -> None:
    network, weights, x, labels = small(1e7)
    y = fn.one_hot(labels, 2).double()
    parts = [lnn.Affine(*(part.clone().requires_grad_() for part in pair)) for pair in weights]
    a = fn.conv2d(x.view(-1, 2, 5, 5), parts[0].w[:, :, None, None], parts[0].b)
    a = fn.conv2d(fn.max_pool2d(a.relu(), 3, 2), parts[1].w[:, :, None, None], parts[1].b)
    scores = fn.max_pool2d(a.tanh(), 2).flatten(1) @ parts[2].w.T + parts[2].b
    fn.cross_entropy(scores, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    found = x_step(network, weights, x, y)
    for number, layer in enumerate(network.layers):
        targets = layer.operator.targets(found.u_gradients[number])
        rows = layer.operator.rows([found.forward[number]])
        torch.testing.assert_close(targets.T @ rows, parts[number].w.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(targets.sum(0), parts[number].b.grad, rtol=1e-4, atol=1e-4)


def test_mini_batches_train_a_pooled_network() -> None:
    network, _, x, y = small(1.0, torch.float32)
    fit = lnn.MiniBatch(passes=15, batch_size=30, seed=2).run(lnn.automatic(network, x, y), x, y)
    assert fit.status == "finished"
    assert fit.history[-1].loss < 0.6 * fit.history[0].loss
    assert fit.history[-1].score > 0.85


# exact blocks

OPERATOR, POOL = Pointwise(2, 3, 4, 1), act.MaxPoolReLU((3, 4, 4), 2)
AFTER, AFTER_POOL = Pointwise(3, 2, 2, 1), act.MaxPoolReLU((2, 2, 2), 2)
WEIGHTS = lnn.Affine(draw(2, 3, seed=3), draw(2, seed=4))


@pytest.mark.parametrize("most_caps", [2048, 0], ids=["dual", "splitting"])
def test_the_state_between_two_poolings_against_a_conic_solver(most_caps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftednn.blocks.readers._MOST_CAPS", most_caps)
    u, start = draw(4, 48), POOL(draw(4, 48))
    after = AFTER_POOL(AFTER.forward([start], WEIGHTS)) + draw(4, 2, seed=6).abs()
    link = Link(lnn.Layer(OPERATOR, POOL, lam=0.7), lnn.Layer(AFTER, AFTER_POOL, lam=1.3), WEIGHTS)
    step = update_state(link, u, start, after, tol=1e-8, max_iter=2000)
    assert step.method == ("dual" if most_caps else "splitting")
    assert step.kkt <= 1e-6
    zero = torch.zeros(1, 12, dtype=torch.float64)
    offset = AFTER.forward([zero], WEIGHTS).numpy()[0]
    matrix = AFTER.forward([torch.eye(12, dtype=torch.float64)], WEIGHTS).numpy().T - offset[:, None]
    own, following = spreading(3, 4, 2), spreading(2, 2, 2)
    for row in range(4):
        z = cp.Variable(12, nonneg=True)
        image, top = matrix @ z + offset, following @ after[row].numpy()
        goal = 0.7 * cp.sum_squares(own @ z - u[row].numpy()) + 1.3 * cp.sum_squares(top - image)
        problem = cp.Problem(cp.Minimize(goal), [own @ z >= u[row].numpy(), image <= top])
        problem.solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(step.states[0][row].numpy(), z.value, atol=1e-4)


def test_a_state_that_rounding_has_moved_out_of_a_cap_is_taken_as_inside() -> None:
    """At the states of the recursion caps and lower bounds are both attained, so that a cap lowered by rounding would allow no point."""
    u, weights = draw(4, 48, seed=3).float(), lnn.Affine(draw(2, 3, seed=3).float(), draw(2, seed=53).float())
    start = POOL(u)
    after = AFTER_POOL(AFTER.forward([start], weights))
    after = after - 3e-4 * (after > 0.01)  # within the tolerance of D's domain in float32
    link = Link(lnn.Layer(OPERATOR, POOL, lam=0.7), lnn.Layer(AFTER, AFTER_POOL, lam=1.3), weights)
    step = update_state(link, u, start, after)
    assert step.method == "dual"
    assert step.kkt <= 1e-6


@pytest.mark.parametrize("row_weights", [None, torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0, 1.5], dtype=torch.float64)])
@pytest.mark.thin(2)
def test_the_weights_before_a_pooling_against_a_conic_solver(row_weights: Tensor | None) -> None:
    layer, x = lnn.Layer(OPERATOR, POOL, lnn.penalties.L2(0.1), lam=0.7), draw(6, 32)
    current = lnn.Affine(0.1 * draw(3, 2), torch.zeros(3, dtype=torch.float64))
    z = POOL(OPERATOR.forward([x], current)) + draw(6, 12, seed=8).abs()
    step = update_layer(layer, designs_of(layer, [x], row_weights), [x], z, current, tol=1e-8, max_iter=2000)
    assert step.kkt <= 1e-6
    w, b = cp.Variable((3, 2)), cp.Variable((1, 3))
    weights, terms, below = np.ones(6) if row_weights is None else row_weights.numpy(), [], []
    for row in range(6):
        top = (spreading(3, 4, 2) @ z[row].numpy()).reshape(3, 16).T
        image = x[row].numpy().reshape(2, 16).T @ w.T + np.ones((16, 1)) @ b
        terms.append(weights[row] / weights.sum() * cp.sum_squares(top - image))
        below += [image <= top] if weights[row] else []
    problem = cp.Problem(cp.Minimize(0.7 * sum(terms) + 0.1 * cp.sum_squares(w)), below)
    problem.solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(step.weights.w.numpy(), w.value, atol=1e-3)
    np.testing.assert_allclose(step.weights.b.numpy(), b.value[0], atol=1e-3)  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.thin(2)
def test_exact_blocks_train_a_pooled_network_and_none_raises_the_objective(dtype: torch.dtype) -> None:
    head = lnn.Layer(Dense(2, 2), SoftmaxCrossEntropy())
    network = lnn.LiftedNetwork([lnn.Layer(OPERATOR, POOL, lam=0.5), lnn.Layer(AFTER, AFTER_POOL, lam=0.5), head])
    x = draw(12, 32).to(dtype)
    y, bcd = (x[:, :16].amax(1) > 1.5).long(), lnn.BCD()
    state = bcd.init(network, x, y)
    first = before = network.objective(state.weights, state.states)
    for block in bcd.blocks(network, state):
        after = network.objective(state.weights, state.states)
        assert after <= before * (1 + 1e-6), block
        assert block.kkt <= 1e-3, block
        before = after
    assert before < 0.8 * first


@pytest.mark.parametrize("operator", [Grouped(2, 3, 2), Halves(4, 2)], ids=repr)
def test_groups_and_positions_that_come_first_have_the_weights_of_the_whole_problem(operator: lnn.Operator) -> None:
    """D of the new weights, in the layer's own layout, is lower than for others nearby that respect the caps."""
    layer, x = lnn.Layer(operator, act.MaxPool(2), lnn.penalties.L2(0.1)), draw(20, operator.in_widths[0])
    current = lnn.Affine(draw(*operator.weight_shape, seed=2), torch.zeros(operator.outputs, dtype=torch.float64))
    z = act.MaxPool(2)(operator.forward([x], current)) + draw(20, 2, seed=3).abs()

    def objective(weights: lnn.Affine) -> float:
        energy = layer.divergence.value(operator.forward([x], weights), z).mean()
        return float(energy + layer.penalty_value(weights.w))

    found = update_layer(layer, designs_of(layer, [x], None), [x], z, current, tol=1e-7, max_iter=2000).weights
    assert objective(found) < objective(current)
    for seed in range(40):
        w, b = (part + 1e-2 * draw(*part.shape, seed=seed) for part in found)
        assert objective(lnn.Affine(w, b - 0.05)) >= objective(found) - 1e-7
        toward = lnn.Affine(*(torch.lerp(part, other, 0.05) for part, other in zip(found, current, strict=True)))
        assert objective(toward) >= objective(found) - 1e-7


# files, modules and refusals


@pytest.mark.parametrize(
    "activation",
    [
        act.Pooled(act.Scaled(act.Tanh(), 0.3), (2, 3, 4), (3, 2), (1, 2)),
        act.Pooled(act.FenchelLeakyReLU(0.2), (-1, 6), 3),
        act.MaxPoolReLU((1, 4, 6), (2, 3)),
    ],
    ids=repr,
)
def test_saved_pooling_comes_back(activation: lnn.Activation, tmp_path: Path) -> None:
    network = lnn.LiftedNetwork.mlp([3, activation.width(24), 2], activation)
    weights = [lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.outputs)) for layer in network.layers]
    lnn.save(tmp_path / "model", network, weights)
    assert lnn.load(tmp_path / "model").network == network


@pytest.mark.parametrize(
    "activation",
    [
        act.Pooled(act.Tanh(), (2, 3, 4), (3, 2), (1, 2)),
        act.Pooled(act.FenchelReLU(), (-1, 7), 3, 2),
        act.MaxPoolReLU((-1, 4, 6), (2, 3)),
    ],
    ids=repr,
)
def test_a_module_computes_the_same(activation: lnn.Activation) -> None:
    width = activation.preactivation_width(12 if activation.shape[0] < 0 else activation.width(24))  # type: ignore[attr-defined]
    first = lnn.Layer(Dense(3, width), activation)
    network = lnn.LiftedNetwork([first, lnn.Layer(Dense(first.width, 2), SquaredError())])
    weights = [lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.outputs)) for layer in network.layers]
    x = draw(5, 3, seed=1)
    torch.testing.assert_close(lnn.init.to_module(network, weights)(x), network.scores(weights, x))


def test_exact_blocks_refuse_what_is_for_mini_batches_and_name_the_alternative() -> None:
    network, weights, x, y = small(1.0)
    words = r"layer 0: Pooled.* is not convex .*MiniBatch, or use activations\.MaxPoolReLU"
    with pytest.raises(ValueError, match=words):
        lnn.BCD().run(network, x, y)
    with pytest.raises(ValueError, match=words):
        lnn.predict.lifted(network, weights, x)
    with pytest.raises(ValueError, match=r"uncertainty needs exact blocks: Pooled.*MaxPoolReLU"):
        lnn.Layer(Dense(3, 8), act.Pooled(), uncertainty=lnn.robust.Noise(0.1))
    with pytest.raises(TypeError, match="is not convex"):
        act.Pooled().prox_u(draw(1, 4), draw(1, 1), 1.0)
    exact = replace(network.layers[0], divergence=act.MaxPoolReLU((4, 5, 5), 5))
    with pytest.raises(ValueError, match=r"MaxPoolReLU.*no finite curvature.*Pooled, for max-pooling"):
        lnn.MiniBatch().run(lnn.LiftedNetwork([exact, lnn.Layer(Dense(4, 2), SoftmaxCrossEntropy())]), x, y)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: act.Pooled(act.ReLU()), "needs an activation with a Fenchel divergence"),
        (lambda: act.Pooled(act.Softmax()), "acts on every unit alone and alike"),
        (lambda: act.Pooled(act.FenchelLeakyReLU(torch.rand(4))), "one parameter for all units"),
        (lambda: act.Pooled(shape=(3,)), "shape must be"),
        (lambda: act.Pooled(shape=(0, 2, 2)), "shape must be"),
        (lambda: act.Pooled(kernel_size=0), "kernel_size must be a positive number"),
        (lambda: act.Pooled(kernel_size=(2, 2, 2)), "kernel_size must be a positive number"),
        (lambda: act.Pooled(stride=0), "stride must be a positive number"),
        (lambda: act.Pooled(kernel_size=3), r"a window of \(3, 3\) does not fit into \(2, 2\)"),
        (lambda: act.MaxPoolReLU((1, 5, 4)), r"windows of \(2, 2\) do not divide \(5, 4\).*Pooled"),
        (lambda: act.Pooled(shape=(3, 2, 2))(draw(1, 8)), "8 entries are not 3 channels of"),
        (lambda: act.MaxPoolReLU().width(6), "6 entries are not channels of"),
        (lambda: lnn.Layer(OPERATOR, act.MaxPoolReLU((4, 4, 3), (2, 1))).shape, r"output has shape \(3, 4, 4\): give"),
    ],
)
def test_refusals(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_lists_of_sizes_are_tuples() -> None:
    assert act.MaxPoolReLU([1, 4, 6], [2, 3]) == act.MaxPoolReLU((1, 4, 6), (2, 3))  # type: ignore[arg-type]
    assert hash(act.Pooled(act.Tanh(), [1, 4, 6], [2, 3])) == hash(act.Pooled(act.Tanh(), (1, 4, 6), (2, 3)))  # type: ignore[arg-type]
