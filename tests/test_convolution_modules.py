"""Networks with convolutions as torch modules, and back; in files; and without unused units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import liftednn as lnn
from liftednn.activations import FenchelReLU
from liftednn.base import Affine
from liftednn.losses import SquaredError
from liftednn.modules import FeedForward
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import AvgPool2d, Composed, Conv2d, Dense, Residual, Sum


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: LiftedNetwork) -> list[Affine]:
    operators = [layer.operator for layer in network.layers]
    return [
        Affine(draw(*each.weight_shape, seed=number) / 3, draw(each.outputs, seed=number + 50) * each.bias)
        for number, each in enumerate(operators)
    ]


CHAIN = LiftedNetwork(
    [
        Layer(Conv2d((2, 6, 6), 4, 3, stride=2, padding=2, groups=2, padding_mode="circular"), FenchelReLU()),
        Layer(Composed(Conv2d((4, 2, 2), 3, 1, bias=False), AvgPool2d(2), (4, 4, 4)), FenchelReLU()),
        Layer(Dense(12, 5), FenchelReLU()),
        Layer(Conv2d((5, 1, 1), 2, 1), SquaredError()),
    ]
)
RESIDUAL = LiftedNetwork(
    [
        Layer(Conv2d((2, 4, 4), 3, 3, padding=1), FenchelReLU()),
        Layer(Residual(Conv2d((3, 4, 4), 3, 3, padding=1)), FenchelReLU()),
        Layer(Sum(Conv2d((3, 4, 4), 3, 3, padding=1)), FenchelReLU(), reads=("x2", "x1")),
        Layer(Composed(Dense(12, 2), AvgPool2d(2), (3, 4, 4)), SquaredError()),
    ]
)


@pytest.mark.parametrize(("network", "kind"), [(CHAIN, nn.Sequential), (RESIDUAL, FeedForward)])
def test_a_network_with_convolutions_is_written_as_torchs_layers(network: LiftedNetwork, kind: type) -> None:
    weights, x = weights_of(network), draw(5, *network.layers[0].operator.in_shapes[0])
    module = lnn.init.to_module(network, weights)
    assert type(module) is kind
    with torch.no_grad():
        torch.testing.assert_close(module(x).flatten(1), network.scores(weights, x.flatten(1)))


def test_an_mlp_is_written_as_before() -> None:
    network = LiftedNetwork.mlp([3, 4, 2])
    module = lnn.init.to_module(network, weights_of(network))
    assert [type(layer) for layer in module.children()] == [nn.Linear, nn.ReLU, nn.Linear]


class Pictured(nn.Module):
    """Convolutions with a sum, pooled by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding="same", bias=False)
        self.second = nn.Conv2d(3, 3, (1, 3), padding=(0, 1), padding_mode="circular", groups=3)
        self.last = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.first(x))
        x = nn.functional.relu(self.second(x) + x)
        x = nn.functional.avg_pool2d(x, 2)
        found: Tensor = self.last(torch.flatten(x, 1))
        return found


def series() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding="valid"),
        nn.AvgPool1d(3, 2, 1),
        nn.Conv1d(4, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6, 1),
    )


@pytest.mark.parametrize(("build", "shape"), [(Pictured, (2, 4, 4)), (series, (2, 12))])
def test_a_module_with_convolutions_is_read_and_written(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = build().double(), draw(5, *shape)
    network, weights = lnn.init.from_module(module, in_shape=shape)
    with torch.no_grad():
        expected = module(x)
        torch.testing.assert_close(network.scores(weights, x.flatten(1)), expected)
        written = lnn.init.to_module(network, weights)
        torch.testing.assert_close(written(x), expected)
    again, same = lnn.init.from_module(written, in_shape=shape)
    assert again == network
    assert all(torch.equal(a.w, b.w) and torch.equal(a.b, b.b) for a, b in zip(same, weights, strict=True))


def conv(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2, **options), nn.ReLU(), nn.Flatten(), nn.Linear(27, 1))


REFUSED: list[tuple[nn.Module, tuple[int, ...] | None, str]] = [
    (conv(), None, r"module\.0: Conv2d.* needs the shape of its samples: give in_shape"),
    (conv(), (32,), r"module\.0: .* takes 2 channels, but gets samples of \(32,\)"),
    (conv(), (2, 5, 5), r"module\.3: .* takes 27 inputs, but the layer before it gives 48"),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(3, 1)), (2, 4, 4), "put a Flatten before it"),
    (conv(padding="same"), (2, 4, 4), "pads one side more than the other"),
    (conv(padding=1, padding_mode="reflect"), (2, 4, 4), "padding_mode 'zeros' and 'circular' only"),
    (nn.Sequential(nn.AvgPool2d(2, ceil_mode=True)), (2, 4, 4), "ceil_mode=False"),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.AvgPool2d(2)), (2, 4, 4), "the module ends in a pooling"),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.AvgPool2d(2), nn.ReLU()), (2, 4, 4), "does not follow a Linear"),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(3)), (2, 4, 4), "the module ends in a pooling"),
    (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.BatchNorm2d(3)),
        (2, 4, 4),
        "must follow a Linear or a convolution",
    ),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(4)), (2, 4, 4), "with as many outputs directly"),
    (nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3, track_running_stats=False)), (2, 4, 4), "no running mean"),
]


@pytest.mark.parametrize(("module", "shape", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_read_is_refused(module: nn.Module, shape: tuple[int, ...] | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lnn.init.from_module(module, in_shape=shape)


def normed() -> nn.Sequential:
    """Batch norms with running statistics of their own."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 4, 3, padding=1, bias=False, groups=2)
    dense = (nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3, affine=False), nn.Tanh(), nn.Linear(3, 1))
    module = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), *dense).double()
    for _ in range(3):
        module(1 + torch.randn(8, 2, 4, 4).double())
    nn.init.normal_(module.get_parameter("1.weight"))
    return module.eval()


def test_batch_norms_are_multiplied_into_the_weights() -> None:
    module, x = normed(), draw(5, 2, 4, 4)
    network, weights = lnn.init.from_module(module, in_shape=(2, 4, 4))
    with torch.no_grad():
        torch.testing.assert_close(network.scores(weights, x.flatten(1)), module(x))
        torch.testing.assert_close(lnn.init.to_module(network, weights)(x), module(x))


def test_a_batch_norm_is_not_trained_by_lifting() -> None:
    with pytest.raises(ValueError, match=r"module\.0: .* is followed by a batch norm, which lifted_ cannot train"):
        lnn.init.lifted_(normed(), draw(5, 2, 4, 4), draw(5))


def test_a_weight_before_a_batch_norm_is_used_once() -> None:
    linear = nn.Linear(3, 3)
    module = nn.Sequential(linear, nn.BatchNorm1d(3), nn.ReLU(), linear)
    with pytest.raises(ValueError, match="is followed by a batch norm, so no other layer can use its weight"):
        lnn.init.from_module(module)


def test_a_pooled_tensor_cannot_be_added() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(2, 2, 2, stride=2), nn.AvgPool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.conv(x) + self.pool(x)
            return found

    with pytest.raises(ValueError, match="a pooled tensor is added"):
        lnn.init.from_module(Skip(), in_shape=(2, 4, 4))


@pytest.mark.parametrize("batched", [False, True])
def test_convolutions_are_initialised_by_lifting(batched: bool) -> None:
    torch.manual_seed(0)
    x = 0.3 * torch.randn(200, 1, 6, 6)
    y = torch.arange(200) % 2
    x[y == 1, :, 2:4, 2:4] += 1
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    given = ([(x[:100], y[:100]), (x[100:], y[100:])],) if batched else (x, y)
    lnn.init.lifted_(module, *given, passes=5)
    with torch.no_grad():
        assert float((module(x).argmax(1) == y).double().mean()) > 0.95


def test_a_shared_convolution_has_no_standard_layer() -> None:
    conv = Conv2d((2, 4, 4), 2, 3, padding=1)
    layers = [Layer(conv, FenchelReLU(), key="k"), Layer(conv, FenchelReLU(), key="k")]
    network = LiftedNetwork([*layers, Layer(Dense(32, 2), SquaredError())])
    weights = weights_of(network)
    weights[1] = weights[1]._replace(w=weights[0].w)
    with pytest.raises(ValueError, match="layer 0 shares its w, and only Dense layers"):
        lnn.init.to_module(network, weights)


def test_a_sum_inside_a_pooled_operator_has_no_standard_layer() -> None:
    pooled = Composed(Residual(Conv2d((2, 2, 2), 2, 1)), AvgPool2d(2), (2, 4, 4))
    network = LiftedNetwork([Layer(pooled, FenchelReLU()), Layer(Dense(8, 2), SquaredError())])
    with pytest.raises(ValueError, match="layer 0: torch has no standard layer for Composed"):
        lnn.init.to_module(network, weights_of(network))


@pytest.mark.parametrize("network", [CHAIN, RESIDUAL])
def test_a_network_with_convolutions_is_stored(network: LiftedNetwork, tmp_path: Path) -> None:
    weights = weights_of(network)
    lnn.save(tmp_path / "model.safetensors", network, weights)
    found = lnn.load(tmp_path / "model.safetensors")
    assert found.network == network
    assert all(torch.equal(a.w, b.w) for a, b in zip(found.weights, weights, strict=True))


def test_scores_of_a_last_convolution_with_one_position_are_rows() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 6), nn.Flatten())
    again, x = lnn.init.to_module(*lnn.init.from_module(module, in_shape=(3, 8, 8))), torch.randn(5, 3, 8, 8)
    assert again(x).shape == (5, 4)
    torch.testing.assert_close(again(x), module(x))
