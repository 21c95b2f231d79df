"""Channels of convolutions are removed where that leaves the predictions as they are, and refused in words elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelReLU, MaxPool, MaxPoolReLU, Pooled, ReLU, Tanh
from liftednn.base import Affine
from liftednn.losses import SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import AvgPool2d, Composed, Conv1d, Conv2d, Dense, Residual, Sum
from liftednn.penalties import L2, GroupL2


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: LiftedNetwork) -> list[Affine]:
    operators = [layer.operator for layer in network.layers]
    return [
        Affine(draw(*each.weight_shape, seed=i), draw(each.outputs, seed=100 + i)) for i, each in enumerate(operators)
    ]


def same(network: LiftedNetwork, weights: list[Affine]) -> tuple[LiftedNetwork, list[Affine]]:
    """Prune, compare the scores, and give what is left."""
    smaller, left = network.prune(weights)
    x = draw(7, network.in_width, seed=50)
    torch.testing.assert_close(smaller.scores(left, x), network.scores(weights, x), rtol=1e-10, atol=1e-10)
    return smaller, left


def channels(network: LiftedNetwork) -> list[int]:
    return [layer.operator.outputs for layer in network.layers]


NETWORKS = {
    "chain": LiftedNetwork.cnn((2, 8, 8), [("conv", 5, 3), ("conv", 6, 2), ("dense", 7)], 3, Tanh(), "squared"),
    "series": LiftedNetwork.cnn((2, 14), [("conv", 5, 3), ("conv", 6, 2), ("dense", 7)], 3, Tanh(), "squared"),
    "average pooling": LiftedNetwork.cnn(
        (2, 9, 9), [("conv", 5, 2), "avgpool", ("conv", 6, 3), "avgpool", ("dense", 7)], 3, Tanh(), "squared"
    ),
    "pooled twice": LiftedNetwork.cnn(
        (2, 9, 9), [("conv", 5, 2), "avgpool", "avgpool", ("conv", 6, 1), ("dense", 7)], 3, Tanh(), "squared"
    ),
    "max-pooling": LiftedNetwork.cnn(
        (2, 9, 9), [("conv", 5, 2), "maxpool", ("conv", 6, 2), ("dense", 7)], 3, Tanh(), "squared"
    ),
    "max-pooling by exact blocks": LiftedNetwork(
        [
            Layer(Conv2d((2, 5, 5), 5, 2), MaxPoolReLU((-1, 4, 4), 2)),
            Layer(Conv2d((5, 2, 2), 6, 1), MaxPoolReLU((6, 2, 2), 2)),
            Layer(Dense(6, 7), ReLU()),
            Layer(Dense(7, 3), SquaredError()),
        ]
    ),
    "circular": LiftedNetwork(
        [
            Layer(Conv2d((2, 4, 4), 5, 3, padding=1), Tanh()),
            Layer(Conv2d((5, 4, 4), 6, 3, padding=1, padding_mode="circular"), Tanh()),
            Layer(Conv2d((6, 4, 4), 7, 2, stride=2, dilation=2), Tanh()),
            Layer(Dense(7, 3), SquaredError()),
        ]
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_without_weights_become_constants_of_the_next_bias(name: str) -> None:
    network = NETWORKS[name]
    weights = weights_of(network)
    weights[0].w[[0, 3]] = 0
    weights[1].w[4] = 0
    weights[2].w[[1, 2]] = 0
    smaller, left = same(network, weights)
    assert channels(smaller) == [3, 5, 5, 3]
    assert [tuple(pair.w.shape) for pair in left] == [layer.operator.weight_shape for layer in smaller.layers]


@pytest.mark.parametrize("name", NETWORKS)
def test_channels_that_the_next_layer_ignores_are_removed(name: str) -> None:
    network = NETWORKS[name]
    weights = weights_of(network)
    weights[1].w.view(6, 5, -1)[:, [1, 2]] = 0
    weights[2].w.view(7, 6, -1)[:, 5] = 0
    assert channels(same(network, weights)[0]) == [3, 5, 7, 3]


@pytest.mark.parametrize("activation", ["relu", "fenchel_relu"])
def test_behind_a_padding_channels_of_zeros_are_removed_and_other_constants_refused(activation: str) -> None:
    network = LiftedNetwork.cnn((1, 8, 8), [4, "avgpool", 5, "maxpool", ("dense", 6)], 2, activation, "squared")
    weights = weights_of(network)
    weights[0].w[1], weights[0].b[1] = 0, -1.0
    weights[1].w[2], weights[1].b[2] = 0, 3.0  # a dense layer reads it
    assert channels(same(network, weights)[0]) == [3, 4, 6, 2]
    weights[0].b[1] = 0.5
    words = "layer 0: channel 1 has weights of 0 and the constant value 0.5, of which layer 1 reads less where its windows reach"
    with pytest.raises(ValueError, match=words):
        network.prune(weights)
    weights[1].w.view(5, 4, 9)[:, 1] = 0  # no layer reads it
    assert channels(same(network, weights)[0]) == [3, 4, 6, 2]


def test_padding_of_a_pooling_is_refused_too() -> None:
    inner = Conv2d((3, 3, 3), 4, 2)
    layers = [
        Layer(Conv2d((1, 5, 5), 3, 2), Tanh()),
        Layer(Composed(inner, AvgPool2d(2, padding=1), (3, 4, 4)), Tanh()),
    ]
    network = LiftedNetwork([*layers, Layer(Dense(16, 2), SquaredError())])
    weights = weights_of(network)
    weights[0].w[2] = 0
    with pytest.raises(
        ValueError, match=r"layer 0: channel 2 has weights of 0 .* give the channel a bias for which it is 0"
    ):
        network.prune(weights)


def test_a_constant_channel_stays_where_the_next_layer_has_no_bias() -> None:
    layers = [Layer(Conv2d((1, 4, 4), 4, 2), FenchelReLU()), Layer(Conv2d((4, 3, 3), 3, 2, bias=False), FenchelReLU())]
    network = LiftedNetwork([*layers, Layer(Dense(12, 2), SquaredError())])
    weights = weights_of(network)
    weights[1].b.zero_()
    weights[0].w[:2] = 0
    weights[0].b[0], weights[0].b[1] = 2.0, -2.0
    assert channels(same(network, weights)[0]) == [3, 3, 2]


IN_SUM = [
    Layer(Conv2d((1, 4, 4), 3, 3, padding=1), FenchelReLU()),
    Layer(Residual(Conv2d((3, 4, 4), 3, 3, padding=1)), FenchelReLU()),
]
GROUPED = [Layer(Conv2d((1, 4, 4), 4, 2), Tanh()), Layer(Conv2d((4, 3, 3), 4, 2, groups=2), Tanh())]
SHARED = [
    Layer(Conv2d((3, 4, 4), 3, 3, padding=1), FenchelReLU(), key="k"),
    Layer(Conv2d((3, 4, 4), 3, 3, padding=1), FenchelReLU(), key="k"),
]


@pytest.mark.parametrize("layers", [IN_SUM, GROUPED, SHARED], ids=["sum", "groups", "shared"])
def test_channels_of_a_sum_of_groups_and_of_shared_weights_are_refused(layers: list[Layer]) -> None:
    """Without constant channels the dense layers behind them are pruned; a residual layer without weights is not constant."""
    dense = [Layer(Dense(layers[-1].width, 5), Tanh()), Layer(Dense(5, 2), SquaredError())]
    network = LiftedNetwork([*layers, *dense])
    weights = weights_of(network)
    weights[2].w[1] = 0
    if layers is IN_SUM:
        weights[1].w[0] = 0
    elif layers is SHARED:
        weights[1] = weights[1]._replace(w=weights[0].w)
    assert channels(same(network, weights)[0])[2:] == [4, 2]
    weights[0].w[2] = 0
    with pytest.raises(
        ValueError, match="layer 0: the weights of channels 2 are 0, but these channels cannot be removed"
    ):
        network.prune(weights)


def test_a_state_that_is_read_in_another_shape_is_left() -> None:
    """A dense layer has no channels, however the next layer divides its units."""
    network = LiftedNetwork(
        [
            Layer(Dense(5, 4), Tanh()),
            Layer(Conv2d((2, 2, 1), 3, (2, 1)), Tanh()),
            Layer(Dense(3, 4), Tanh()),
            Layer(Dense(4, 2), SquaredError()),
        ]
    )
    weights = weights_of(network)
    for number in range(3):
        weights[number].w[1] = 0
    assert channels(same(network, weights)[0]) == [4, 2, 3, 2]


def test_pooling_across_channels_is_left() -> None:
    pooled = Layer(Conv1d((1, 4), 4, 1), MaxPool(8))
    network = LiftedNetwork([pooled, Layer(Dense(2, 4), ReLU()), Layer(Dense(4, 2), SquaredError())])
    weights = weights_of(network)
    weights[1].w[2] = 0
    assert channels(same(network, weights)[0]) == [4, 3, 2]


def test_a_state_that_two_convolutions_read() -> None:
    network = LiftedNetwork(
        [
            Layer(Conv2d((1, 4, 4), 5, 2), Tanh(), name="a"),
            Layer(Conv2d((5, 3, 3), 4, 2), Tanh(), name="b"),
            Layer(Conv2d((5, 3, 3), 4, 2, bias=True), Tanh(), name="c", reads=("a",)),
            Layer(Sum(Dense(16, 2), (True, True), (False, False)), SquaredError(), reads=("b", "c")),
        ]
    )
    weights = weights_of(network)
    weights[0].w[1] = 0
    weights[1].w.view(4, 5, 4)[:, 2] = 0
    assert channels(same(network, weights)[0]) == [4, 4, 4, 2]
    weights[2].w.view(4, 5, 4)[:, 2] = 0
    assert channels(same(network, weights)[0]) == [3, 4, 4, 2]


def test_weights_that_require_gradients_are_pruned_without_a_warning() -> None:
    network = NETWORKS["chain"]
    weights = weights_of(network)
    weights[0].w[1] = 0
    for pair in weights:
        pair.w.requires_grad_()
        pair.b.requires_grad_()
    smaller, left = network.prune(weights)
    assert channels(smaller) == [4, 6, 7, 3]
    left[1].b.sum().backward()  # type: ignore[no-untyped-call]
    assert weights[0].b.grad is not None  # the constant is a part of the next bias
    assert [bool(each) for each in weights[0].b.grad] == [False, True, False, False, False]


def test_groups_of_columns_go_with_their_channels() -> None:
    network = LiftedNetwork.cnn((1, 6, 6), [("conv", 4, 3), ("conv", 3, 2)], 2, Tanh(), "squared")
    network = network.with_penalty([GroupL2(0.1), GroupL2(0.1, "input", size=4), GroupL2(0.1, "input", size=9)])
    weights = weights_of(network)
    weights[0].w[1] = 0
    weights[2].w.view(2, 3, 9)[:, 0] = 0
    smaller, _ = same(network, weights)
    assert channels(smaller) == [3, 2, 2]
    assert [layer.penalty for layer in smaller.layers] == [layer.penalty for layer in network.layers]


@pytest.mark.parametrize("trainer", ["bcd", "minibatch"])
def test_training_under_group_l2_removes_channels(trainer: str, tmp_path: Path) -> None:
    x, y = draw(200, 36), torch.arange(200) % 2
    x[y == 1, :18] += 1
    strength = 5.0 if trainer == "bcd" else 1.0
    network = LiftedNetwork.cnn((1, 6, 6), [("conv", 8, 3), "avgpool"], 2, "fenchel_relu")
    network = network.with_penalty([GroupL2(strength), L2(1e-3)])
    run = lnn.BCD(passes=2).run if trainer == "bcd" else lnn.MiniBatch(passes=8, batch_size=20).run
    fit = run(network, x, y)
    smaller, left = same(network, list(fit.weights))
    assert 1 <= channels(smaller)[0] < 8
    lnn.save(tmp_path / "small.safetensors", smaller, left)
    assert lnn.load(tmp_path / "small.safetensors").network == smaller


def test_a_fixed_shape_of_windows_follows_its_channels() -> None:
    pooled = Pooled(FenchelReLU(), (3, 4, 4), 2)
    assert pooled.restrict(torch.arange(16)).shape == (1, 4, 4)
    assert Pooled(FenchelReLU(), (-1, 4, 4), 2).restrict(torch.arange(16)).shape == (-1, 4, 4)
