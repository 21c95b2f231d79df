"""Noise on the inputs of convolutions: the term is the expectation, and both trainers minimise it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelReLU, Identity, ReLU
from liftednn.base import Activation, Affine, Operator
from liftednn.blocks import designs_of, update_layer
from liftednn.losses import SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import AvgPool2d, Composed, Conv1d, Conv2d, Dense, Residual
from liftednn.penalties import L2
from liftednn.robust import BoxBall, FrobeniusBall, Noise

OPERATORS = [
    Conv2d((2, 4, 4), 3, 3, padding=1),
    Conv2d((2, 4, 4), 3, 2, stride=2, bias=False),
    Conv2d((2, 4, 4), 3, (1, 5), padding=(0, 4), padding_mode="circular"),  # a patch holds some entries twice
    Composed(Conv2d((2, 3, 3), 3, 2), AvgPool2d(2, stride=1), (2, 4, 4)),  # windows overlap
    Composed(Dense(8, 3), AvgPool2d(2), (2, 4, 4)),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sizes() -> list[float | Tensor]:
    root = draw(32, 32, seed=9) / 10
    return [0.3, draw(32, seed=8).abs(), root @ root.T]


def covariance(sigma: float | Tensor) -> Tensor:
    given = torch.as_tensor(sigma, dtype=torch.float64)
    return given if given.ndim == 2 else torch.diag(given.square().expand(32))


@pytest.mark.parametrize("sigma", sizes(), ids=["number", "entries", "matrix"])
@pytest.mark.parametrize("operator", OPERATORS, ids=repr)
def test_the_term_is_the_expected_energy(operator: Operator, sigma: float | Tensor) -> None:
    """E |A delta|^2 = tr(A Sigma A'), A the matrix of the operator."""
    weights, lam = Affine(draw(*operator.weight_shape), draw(operator.outputs, seed=1)), 0.7
    layer = Layer(operator, Identity(), lam=lam, uncertainty=Noise(sigma))
    linear = operator.forward([torch.eye(32).double()], weights._replace(b=torch.zeros(operator.outputs).double()))
    expected = lam * (1.5 + Identity().curvature / 2 * float((linear.T @ covariance(sigma) @ linear).trace()))
    assert layer.term(1.5, weights.w) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("operator", OPERATORS, ids=repr)
def test_the_w_step_is_the_one_on_noisy_samples(operator: Operator) -> None:
    """Samples x + s and x - s for every s of an orthogonal root of n Sigma have exactly this covariance."""
    noise, penalty = draw(32, seed=8).abs(), L2(1e-2)
    x, z = draw(20, 32), draw(20, operator.out_width, seed=1)
    root = torch.diag(32**0.5 * noise)
    noisy = torch.cat([x[:, None] + root, x[:, None] - root], 1).flatten(0, 1)
    repeated = z.repeat_interleave(64, 0)
    start = Affine(draw(*operator.weight_shape), torch.zeros(operator.outputs).double())
    certain, uncertain = (Layer(operator, Identity(), penalty, uncertainty=kind) for kind in (None, Noise(noise)))
    expected = update_layer(certain, designs_of(certain, [noisy], None), [noisy], repeated, start).weights
    found = update_layer(uncertain, designs_of(uncertain, [x], None), [x], z, start)
    assert found.kkt <= 1e-8
    torch.testing.assert_close(found.weights.w, expected.w, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.weights.b, expected.b, rtol=1e-8, atol=1e-9)


def network(activation: Activation, sigma: float) -> LiftedNetwork:
    first = Layer(Conv2d((1, 6, 6), 3, 3, padding=1), activation, lam=0.5, uncertainty=Noise(sigma) if sigma else None)
    middle = Layer(Composed(Conv2d((3, 3, 3), 4, 2), AvgPool2d(2), (3, 6, 6)), activation, lam=0.5)
    return LiftedNetwork([first, middle, Layer(Dense(16, 2), SquaredError(), L2(1e-3))])


@pytest.mark.parametrize("activation", [ReLU(), FenchelReLU()], ids=repr)
def test_no_block_raises_the_objective(activation: Activation) -> None:
    x, y, noisy = draw(40, 36), draw(40, 2, seed=1), network(activation, 0.5)
    bcd = lnn.BCD(seed=1)
    state = bcd.init(noisy, x, y)
    before = noisy.objective(state.weights, state.states)
    for _ in range(2):
        for block in bcd.blocks(noisy, state):
            after = noisy.objective(state.weights, state.states)
            assert after <= before * (1 + 1e-9), block
            assert block.kkt <= 1e-3, block
            before = after


def test_mini_batches_of_one_layer_reach_the_exact_solution() -> None:
    conv = Conv1d((2, 6), 3, 3, padding=1)
    alone = LiftedNetwork([Layer(conv, SquaredError(), L2(1e-2), uncertainty=Noise(0.7))])
    x, y = draw(100, 12), draw(100, 18, seed=1)
    exact, fit = (
        lnn.BCD(passes=1).run(alone, x, y),
        lnn.MiniBatch(passes=200, batch_size=100, step=0.3, damping=0.0).run(alone, x, y),
    )
    torch.testing.assert_close(fit.weights[0].w, exact.weights[0].w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fit.weights[0].b, exact.weights[0].b, rtol=1e-4, atol=1e-5)


def test_mini_batches_give_noisy_entries_less_weight() -> None:
    """Both channels are the signal, and the second is noisy."""
    signal = draw(300, 1, 6, 6).float()
    x, y = signal.expand(-1, 2, -1, -1).flatten(1), signal.mean((2, 3)) * 6
    sigma = torch.cat([torch.full((36,), 0.01), torch.full((36,), 3.0)])
    layers = [
        Layer(Conv2d((2, 6, 6), 4, 3), FenchelReLU(), uncertainty=Noise(sigma)),
        Layer(Dense(64, 1), SquaredError()),
    ]
    fit = lnn.MiniBatch(passes=20, batch_size=50).run(LiftedNetwork(layers), x, y)
    quiet, noisy = fit.weights[0].w.view(4, 2, 9).square().sum((0, 2)).tolist()
    assert noisy < 0.05 * quiet
    assert fit.history[-1].score > 0.8


def test_a_pruned_channel_takes_its_noise_with_it() -> None:
    layers = [
        Layer(Conv2d((1, 4, 4), 3, 2), FenchelReLU()),
        Layer(Conv2d((3, 3, 3), 2, 2), FenchelReLU(), uncertainty=Noise(draw(27).abs())),
    ]
    whole = LiftedNetwork([*layers, Layer(Dense(8, 2), SquaredError())])
    weights = [Affine(draw(*each.operator.weight_shape), draw(each.operator.outputs)) for each in whole.layers]
    weights[1].w.view(2, 3, 4)[:, 1] = 0
    smaller, left = whole.prune(weights)
    assert smaller.layers[1].term(1.0, left[1].w) == pytest.approx(whole.layers[1].term(1.0, weights[1].w))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Layer(OPERATORS[0], FenchelReLU(), uncertainty=FrobeniusBall(0.1)),
            "FrobeniusBall needs an operator u = x w'",
        ),
        (lambda: Layer(OPERATORS[0], FenchelReLU(), uncertainty=BoxBall(0.1)), "BoxBall needs an operator u = x w'"),
        (
            lambda: Layer(OPERATORS[0], FenchelReLU(), uncertainty=Noise(torch.ones(18))),
            "sigma is for 18 inputs, and the layer has 32",
        ),
        (
            lambda: Layer(Residual(Conv2d((2, 4, 4), 2, 3, padding=1)), FenchelReLU(), uncertainty=Noise(0.1)),
            "without groups and without a residual sum",
        ),
        (
            lambda: Layer(Conv2d((2, 4, 4), 2, 3, groups=2), FenchelReLU(), uncertainty=Noise(0.1)),
            "without groups and without a residual sum",
        ),
        (
            lambda: Layer(Conv2d((3, 64, 64), 2, 3), FenchelReLU(), uncertainty=Noise(0.1)),
            "computed for at most 4096 entries of a sample, got 12288",
        ),
    ],
)
def test_other_uncertainties_of_convolutions_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_automatic_size_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    with pytest.raises(
        ValueError, match=r"cannot be scaled to the lam that is chosen for Conv2d.*: give lam, or train"
    ):
        lnn.init.lifted_(module, draw(60, 1, 4, 4).float(), torch.arange(60) % 2, robust=0.1)
