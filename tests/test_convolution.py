"""Networks with convolutions are trained by exact blocks, without all patches in memory, and by mini-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelReLU, Identity, ReLU
from liftednn.base import Activation, Affine, Operator
from liftednn.blocks import Design, designs_of, state_problem, update_layer, update_state
from liftednn.losses import SoftmaxCrossEntropy, SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import AvgPool2d, Composed, Conv1d, Conv2d, Dense, Residual
from liftednn.penalties import L1, L2, GroupL2

IMAGE = (1, 6, 6)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(n: int = 60) -> tuple[Tensor, Tensor]:
    """Noise, brighter in the upper or in the lower half."""
    x, y = draw(n, *IMAGE), torch.arange(n) % 2
    x[y == 0, :, :3] += 1
    x[y == 1, :, 3:] += 1
    return x.flatten(1), y


def small(activation: Activation, loss: lnn.Loss | None = None) -> LiftedNetwork:
    """A convolution, a residual one after pooling, and a dense layer."""
    middle = Composed(Residual(Conv2d((3, 3, 3), 3, 3, padding=1)), AvgPool2d(2), (3, 6, 6))
    return LiftedNetwork(
        [
            Layer(Conv2d(IMAGE, 3, 3, padding=1), activation, lam=0.5),
            Layer(middle, activation, lam=0.5),
            Layer(Dense(27, 2), loss or SoftmaxCrossEntropy(), L2(1e-3)),
        ]
    )


@pytest.mark.parametrize("activation", [ReLU(), FenchelReLU()], ids=repr)
def test_no_block_raises_the_objective_and_all_are_solved(activation: Activation) -> None:
    (x, y), network = images(), small(activation)
    bcd = lnn.BCD(seed=1)
    state = bcd.init(network, x, y)
    before = first = network.objective(state.weights, state.states)
    for _ in range(3):
        for block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert after <= before * (1 + 1e-9), block
            assert block.kkt <= 1e-3, block
            before = after
    assert before < 0.999 * first


def test_groups_and_strides_are_trained_by_exact_blocks() -> None:
    x, y = images()
    first = Layer(Conv2d(IMAGE, 4, 2, stride=2), ReLU())
    second = Layer(Conv2d((4, 3, 3), 4, 3, groups=2, dilation=1, padding=1), ReLU())
    network = LiftedNetwork([first, second, Layer(Dense(36, 2), SoftmaxCrossEntropy())])
    fit = lnn.BCD(passes=3, tol=0.0).run(network, x, y)
    objectives = [record.objective for record in fit.history]
    assert sorted(objectives, reverse=True) == objectives
    assert max(fit.history[-1].kkt.values()) <= 1e-3


def test_a_series_is_learned_by_mini_batches() -> None:
    """Whether a bump is present, wherever it is: a dense layer of as few weights cannot tell."""
    x, y = 0.3 * draw(400, 16), torch.arange(400) % 2
    for row, at in zip(x[1::2], torch.arange(200) % 13, strict=True):
        row[at : at + 3] += torch.tensor([1.0, -2.0, 1.0])
    network = LiftedNetwork(
        [
            Layer(Conv1d((1, 16), 4, 3), FenchelReLU()),
            Layer(Composed(Dense(4, 2), lnn.operators.AvgPool1d(14), (4, 14)), SoftmaxCrossEntropy(), L2(1e-4)),
        ]
    )
    fit = lnn.MiniBatch(passes=30, batch_size=50).run(network, x[:300], y[:300])
    scores = network.scores(fit.weights, x[300:])
    assert float((scores.argmax(1) == y[300:]).double().mean()) > 0.95


@pytest.mark.parametrize("activation", [ReLU(), FenchelReLU()], ids=repr)
def test_mini_batches_train_pooled_and_residual_convolutions(activation: Activation) -> None:
    (x, y), network = images(200), small(activation)
    fit = lnn.MiniBatch(passes=5, batch_size=50).run(network, x, y)
    assert fit.status == "finished"
    assert fit.history[-1].loss < 0.3


def test_the_x_step_of_a_circular_convolution_is_that_of_its_transform() -> None:
    """min_z lam |u - z|^2 + mu |k * z - y|^2: each frequency on its own."""
    lam, size, n = 0.7, 6, 4
    conv = Conv2d((1, size, size), 1, 3, padding=1, bias=False, padding_mode="circular")
    first = Layer(Dense(3, size * size), Identity(), lam=lam)
    network = LiftedNetwork([first, Layer(conv, SquaredError())])
    weights = [Affine(draw(36, 3), draw(36, seed=1)), Affine(draw(1, 9, seed=2), torch.zeros(1, dtype=torch.float64))]
    x, y = draw(n, 3, seed=3), draw(n, 36, seed=4)
    problem = state_problem(network, weights, [x, *network.propagate(weights, x)[1:], y], 1)
    found = update_state(problem, torch.zeros_like(y), tol=1e-8)
    mu = SquaredError().curvature / Identity().curvature
    kernel = torch.zeros(size, size, dtype=torch.float64)
    kernel[:3, :3] = weights[1].w.view(3, 3)
    transform = torch.fft.fft2(kernel.roll((-1, -1), (0, 1))).conj()
    u, after = (torch.fft.fft2(each.view(n, size, size)) for each in (problem.u, y))
    solution = (lam * u + mu * transform.conj() * after) / (lam + mu * transform.abs().square())
    torch.testing.assert_close(found.states[0], torch.fft.ifft2(solution).real.flatten(1), rtol=1e-6, atol=1e-6)


def test_a_large_x_step_without_a_matrix_has_the_solution_of_the_one_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = Conv2d((2, 6, 6), 2, 3, padding=1)
    network = LiftedNetwork([Layer(Dense(3, 72), ReLU()), Layer(conv, SquaredError())])
    weights = [Affine(draw(72, 3), draw(72, seed=1)), Affine(draw(2, 18, seed=2), draw(2, seed=3))]
    states = [*network.propagate(weights, draw(5, 3)), draw(5, 72, seed=4)]
    exact = update_state(state_problem(network, weights, states, 1), states[1], 1e-8)
    monkeypatch.setattr(Conv2d, "_formed", 10)
    found = update_state(state_problem(network, weights, states, 1), states[1], 1e-8, 2000)
    assert (exact.method, found.method) == ("nnls", "prox_gradient")
    assert found.kkt <= 1e-8
    torch.testing.assert_close(found.states[0], exact.states[0], rtol=1e-6, atol=1e-6)


WEIGHTS = [None, torch.cat([torch.zeros(300), torch.linspace(0.1, 2, 700)]).double()]
PATCHED = [
    Conv2d((2, 6, 5), 3, 3, padding=1),
    Conv2d((2, 6, 5), 3, 3, stride=2, bias=False),
    Residual(Conv2d((2, 6, 5), 2, 3, padding=1)),
]


@pytest.mark.parametrize("row_weights", WEIGHTS, ids=["alike", "weighted"])
@pytest.mark.parametrize("operator", PATCHED, ids=repr)
def test_moments_of_blocks_are_those_of_all_rows(operator: Operator, row_weights: Tensor | None) -> None:
    """More rows than one block has, and a large mean; the first block has the weight 0."""
    x, z = 100 + draw(1000, 60), draw(1000, operator.out_width, seed=1)
    (design,) = designs_of(Layer(operator, ReLU()), [x], row_weights)
    repeated = None if row_weights is None else row_weights.repeat_interleave(operator.positions)
    whole, targets = Design(operator.rows([x]), operator.bias, repeated), operator.targets(z)
    assert len(whole.rows) > 8192 or operator.positions < 9
    assert not hasattr(design, "rows"), "the rows are not held"
    for found, expected in ((design.inputs, whole.inputs), (design.moments(targets), whole.moments(targets))):
        for name in ("weight", "mean_x", "mean_z", "gram", "cross", "zz"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    weights = Affine(draw(*operator.weight_shape), draw(operator.outputs, seed=2))
    torch.testing.assert_close(design.forward(weights), whole.forward(weights))
    torch.testing.assert_close(design.product(targets, 0.5), whole.product(targets, 0.5))
    assert design.total == pytest.approx(whole.total)


GROUPED = [
    Conv2d((4, 5, 5), 6, 3, padding=1, groups=2),
    Conv2d((4, 5, 5), 4, 2, stride=2, groups=4, bias=False),
    Residual(Conv2d((4, 5, 5), 4, 3, padding=1, groups=2)),
    Composed(Conv2d((4, 2, 2), 6, 2, padding=1, groups=2), AvgPool2d(2), (4, 5, 5)),
]


@pytest.mark.parametrize("row_weights", [None, torch.linspace(0, 2, 40).double()], ids=["alike", "weighted"])
@pytest.mark.parametrize("operator", GROUPED, ids=repr)
def test_no_group_holds_its_patches_and_each_has_its_ridge_solution(
    operator: Operator, row_weights: Tensor | None
) -> None:
    groups, q, p = operator.weight_shape
    x, z = 3 + draw(40, 100), draw(40, operator.out_width, seed=1)
    layer = Layer(operator, Identity(), L2(1e-2))
    designs = designs_of(layer, [x], row_weights)
    assert not any(hasattr(design, "rows") for design in designs)
    start = Affine(draw(groups, q, p, seed=2), torch.zeros(groups * q, dtype=torch.float64))
    found = update_layer(layer, designs, [x], z, start).weights
    weight = torch.ones(40).double() if row_weights is None else row_weights
    # Rows of one sample count alike; the mean over samples of sums over positions, of curvature / 2 = 1.
    root = (weight / weight.sum()).sqrt().repeat_interleave(operator.positions)[:, None]
    targets = operator.targets(z - operator.offset([x]) if operator.skips else z)
    for group in range(groups):
        rows = operator.rows([x])[:, group * p : (group + 1) * p]
        rows = torch.cat([rows, torch.ones(len(rows), int(operator.bias)).double()], 1)
        ridge = 1e-2 / (Identity().curvature / 2) * torch.eye(rows.shape[1]).double()
        ridge[p:] = 0
        columns = slice(group * q, (group + 1) * q)
        explicit = torch.linalg.solve((root * rows).T @ (root * rows) + ridge, (root * rows).T @ (root * targets))
        torch.testing.assert_close(found.w[group], explicit[:p, columns].T, rtol=1e-8, atol=1e-8)
        if operator.bias:
            torch.testing.assert_close(found.b[columns], explicit[p, columns], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("penalty", [L2(1e-2), L1(1e-2)], ids=repr)
@pytest.mark.parametrize("activation", [ReLU(), FenchelReLU()], ids=repr)
def test_a_w_step_without_rows_is_the_one_with_them(activation: Activation, penalty: lnn.Penalty) -> None:
    operator = Conv2d((2, 5, 5), 3, 3, padding=1)
    layer, x, z = Layer(operator, activation, penalty), draw(40, 50), draw(40, 75, seed=1).relu()
    start = Affine(draw(3, 18, seed=2), draw(3, seed=3))
    steps = [
        update_layer(layer, designs, [x], z, start, 1e-8, 2000)
        for designs in (designs_of(layer, [x], None), [Design(operator.rows([x]))])
    ]
    assert max(step.kkt for step in steps) <= 1e-8
    torch.testing.assert_close(steps[0].weights.w, steps[1].weights.w, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(steps[0].weights.b, steps[1].weights.b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("penalty", [GroupL2(0.6), GroupL2(0.9, "input", size=9)], ids=repr)
@pytest.mark.parametrize("activation", [ReLU(), FenchelReLU()], ids=repr)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.thin(2)
def test_group_l2_removes_whole_channels_by_the_optimality_condition(
    groups: int, activation: Activation, penalty: GroupL2
) -> None:
    """On patches that torch forms: gradient_g = -rho w_g / |w_g| for a group that is left, |gradient_g| <= rho for one of zeros."""
    operator = Conv2d((4, 4, 4), 6, 3, padding=1, groups=groups)
    layer, x, z = Layer(operator, activation, penalty), draw(60, 4, 4, 4), draw(60, 96, seed=1).relu()
    x[:, 1] *= 0.2  # the channel, and the filters, that are worth their penalty least
    z.view(60, 6, 16)[:, ::2] *= 0.05
    start = Affine(0.1 * draw(*operator.weight_shape, seed=2), torch.zeros(6, dtype=torch.float64))
    states = [x.flatten(1)]
    found = update_layer(layer, designs_of(layer, states, None), states, z, start, 1e-8, 5000)
    assert found.kkt <= 1e-8
    w, b = (part.requires_grad_() for part in found.weights)
    u = torch.nn.functional.conv2d(x, w.view(6, 4 // groups, 3, 3), b, padding=1, groups=groups)
    activation.value(u.flatten(1), z).mean().backward()
    assert w.grad is not None
    own, slope = (part.view(groups, 6 // groups, -1, 9) for part in (w.detach(), w.grad))  # group, filter, channel
    dims = (2, 3) if penalty.by == "output" else (1, 3)
    norms = own.square().sum(dims, keepdim=True).sqrt()
    gone = norms == 0
    assert 0 < int(gone.sum()) < gone.numel()
    assert float(slope.square().sum(dims, keepdim=True).sqrt()[gone].max()) <= penalty.rho
    expected = torch.where(gone, slope, -penalty.rho * own / norms)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(b.grad, torch.zeros_like(b), rtol=0, atol=1e-6)


def test_a_sample_of_images_may_keep_its_shape() -> None:
    (x, y), network = images(), small(ReLU())
    bcd = lnn.BCD(passes=1)
    flat, shaped = (bcd.run(network, each, y).weights for each in (x, x.view(-1, *IMAGE)))
    assert all(torch.equal(a.w, b.w) for a, b in zip(flat, shaped, strict=True))


def test_float32_blocks_are_solved_too() -> None:
    (x, y), network = images(), small(ReLU())
    fit = lnn.BCD(passes=2, tol=0.0).run(network, x.float(), y)
    assert {part.dtype for pair in fit.weights for part in pair} == {torch.float32}
    assert max(fit.history[-1].kkt.values()) <= 1e-3


def test_layers_that_share_a_convolution_are_trained() -> None:
    (x, y), conv = images(), Conv2d((2, 6, 6), 2, 3, padding=1)
    layers = [
        Layer(Conv2d(IMAGE, 2, 3, padding=1), ReLU()),
        Layer(conv, ReLU(), key="shared"),
        Layer(Residual(conv), ReLU(), key="shared"),
        Layer(Dense(72, 2), SoftmaxCrossEntropy()),
    ]
    fit = lnn.BCD(passes=2, tol=0.0, block_iter=1000).run(LiftedNetwork(layers), x, y)
    assert torch.equal(fit.weights[1].w, fit.weights[2].w)
    assert max(fit.history[-1].kkt.values()) <= 1e-3
    assert replace(layers[1], lam=2.0).shape == (2, 6, 6)
