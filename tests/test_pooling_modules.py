"""Modules with max-pooling as lifted networks, and back; in files and in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import liftednn as lnn
from liftednn.activations import FenchelClip, FenchelReLU, MaxPoolReLU, Pooled, Tanh
from liftednn.base import Affine
from liftednn.losses import SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Conv1d, Conv2d, Dense, Residual
from tests.exports import onnx_program


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: LiftedNetwork) -> list[Affine]:
    operators = [layer.operator for layer in network.layers]
    return [
        Affine(draw(*each.weight_shape, seed=number) / 3, draw(each.outputs, seed=number + 50))
        for number, each in enumerate(operators)
    ]


LENET = LiftedNetwork.cnn(
    (1, 12, 12), [("conv", 4, 3), "maxpool", 6, "maxpool", ("dense", 5)], 3, activation="fenchel_relu"
)
LAYERS = [nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
NETWORKS = {
    "lenet": LENET,
    "euclidean": LiftedNetwork.cnn((1, 8, 8), [3, "maxpool", "avgpool", 2], 3, activation="relu"),
    "overlapping": LiftedNetwork(
        [
            Layer(Conv2d((2, 7, 6), 3, 2), Pooled(Tanh(), (3, 6, 5), (3, 2), (2, 1))),
            Layer(Dense(24, 2), SquaredError()),
        ]
    ),
    "series": LiftedNetwork(
        [
            Layer(Conv1d((2, 9), 3, 2), Pooled(FenchelClip(-math.inf, math.inf), (3, 8), 2)),
            Layer(Conv1d((3, 4), 2, 3), FenchelReLU()),
            Layer(Dense(4, 1), SquaredError()),
        ]
    ),
    "residual": LiftedNetwork(
        [
            Layer(Conv2d((2, 6, 6), 3, 3, padding=1), Pooled(FenchelReLU(), (3, 6, 6), 2)),
            Layer(Residual(Conv2d((3, 3, 3), 3, 3, padding=1)), Pooled(FenchelReLU(), (3, 3, 3), 2, 1)),
            Layer(Dense(12, 2), SquaredError()),
        ]
    ),
}
named = pytest.mark.parametrize("name", NETWORKS)


@named
def test_a_network_is_written_and_read_again(name: str) -> None:
    network = NETWORKS[name]
    shape = network.layers[0].operator.in_shapes[0]
    weights, x = weights_of(network), draw(5, *shape)
    module = lnn.init.to_module(network, weights)
    with torch.no_grad():
        torch.testing.assert_close(module(x), network.scores(weights, x.flatten(1)))
    divergence: Any = "euclidean" if name == "euclidean" else "fenchel"
    again, same = lnn.init.from_module(module, network.loss, divergence, in_shape=shape)
    assert [layer.divergence for layer in again.layers] == [layer.divergence for layer in network.layers]
    assert [layer.operator for layer in again.layers] == [layer.operator for layer in network.layers]
    assert all(torch.equal(a.w, b.w) and torch.equal(a.b, b.b) for a, b in zip(same, weights, strict=True))


def test_max_pooling_is_written_as_a_layer_of_torch() -> None:
    assert [type(layer) for layer in lnn.init.to_module(LENET, weights_of(LENET)).children()] == LAYERS


@pytest.mark.parametrize("pooled", [Pooled(FenchelReLU(), (2, 4, 4), 2), MaxPoolReLU((-1, 4, 4), 2)], ids=repr)
def test_a_dense_layer_with_max_pooling_gives_images(pooled: Any) -> None:
    layers = [
        Layer(Dense(3, 32), pooled),
        Layer(Conv2d((2, 2, 2), 3, 2), FenchelReLU()),
        Layer(Dense(3, 1), SquaredError()),
    ]
    network = LiftedNetwork(layers)
    weights, x = weights_of(network), draw(5, 3)
    with torch.no_grad():
        found = lnn.init.to_module(network, weights)(x)
        torch.testing.assert_close(found, network.scores(weights, x))


@named
def test_a_network_is_stored(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    weights = weights_of(network)
    lnn.save(tmp_path / "model.safetensors", network, weights)
    found = lnn.load(tmp_path / "model.safetensors")
    assert found.network == network
    assert all(torch.equal(a.w, b.w) for a, b in zip(found.weights, weights, strict=True))


class LeNet(nn.Module):
    """Pools by functions, before an activation and after one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, padding=1)
        self.dense, self.last = nn.Linear(24, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.first(x), 2))
        x = torch.max_pool2d(torch.relu(self.second(x)), (2, 2), 2)
        x = functional.relu(self.dense(x.flatten(1)))
        found: Tensor = self.last(x)
        return found


class Skip(nn.Module):
    """Pools a sum before its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(functional.relu(functional.max_pool2d(self.first(x) + x, 2)).flatten(1))
        return found


def sequential(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *between, nn.Flatten(), nn.Linear(100, 3))


READ: list[tuple[Callable[[], nn.Module], Any]] = [
    (LeNet, FenchelReLU()),
    (Skip, FenchelReLU()),
    (lambda: sequential(nn.Sigmoid(), nn.MaxPool2d(2)), lnn.activations.Sigmoid()),
    (lambda: sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Tanh()), Tanh()),
    (lambda: sequential(nn.MaxPool2d(2, ceil_mode=True), nn.PReLU()), None),
    (lambda: sequential(nn.BatchNorm2d(4), nn.MaxPool2d(2)), FenchelClip(-math.inf, math.inf)),
    (lambda: sequential(nn.Dropout(), nn.ReLU6(), nn.MaxPool2d(2), nn.Dropout()), FenchelClip(0.0, 6.0)),
]


@pytest.mark.parametrize(("build", "activation"), READ, ids=range(len(READ)))
def test_a_module_is_read_and_written(build: Callable[[], nn.Module], activation: Any) -> None:
    torch.manual_seed(0)
    module, x = build().double().eval(), draw(5, 1, 12, 12)
    network, weights = lnn.init.from_module(module, in_shape=(1, 12, 12))
    pooled = network.hidden[0]
    assert isinstance(pooled, Pooled)
    assert activation is None or pooled.activation == activation
    with torch.no_grad():
        torch.testing.assert_close(network.scores(weights, x.flatten(1)), module(x))
        torch.testing.assert_close(lnn.init.to_module(network, weights)(x), module(x))


class Both(nn.Module):
    """The output of the first layer is used before and after its pooling, which of them first by `early`."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 1)
        self.stride, self.head = nn.Conv2d(2, 2, 2, stride=2), nn.Linear(50, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        if self.early:
            other = self.stride(x)
            x = other + self.last(functional.max_pool2d(x, 2)).relu()
        else:
            pooled = functional.max_pool2d(x, 2)
            x = self.stride(x) + pooled
        found: Tensor = self.head(x.relu().flatten(1))
        return found


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 2, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        found: Tensor = self.head((functional.max_pool2d(x, 2) + functional.max_pool2d(x, 2)).flatten(1))
        return found


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head((functional.max_pool2d(self.first(x), 3, 1) + x).flatten(1))
        return found


REFUSED = [
    (Both(True), "first: .* has an output that is used before its max-pooling too"),
    (Both(False), "first: .* has an output that is used before its max-pooling too"),
    (Twice(), "must follow a convolution directly, or the activation of one, and only once"),
    (Added(), "a pooled tensor is added"),
    (sequential(nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)), "and only once"),
    (sequential(nn.ReLU(), nn.AvgPool2d(2), nn.MaxPool2d(2)), "must follow a convolution directly"),
    (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 4, 3)), "must follow a convolution directly"),
    (sequential(nn.MaxPool2d(2), nn.BatchNorm2d(4)), "must follow a Linear or a convolution"),
    (sequential(nn.ReLU(), nn.MaxPool2d(2, padding=1)), r"module\.2: MaxPool2d.* padding=0"),
    (sequential(nn.ReLU(), nn.MaxPool2d(2, dilation=2)), "dilation=1"),
    (sequential(nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True)), "ceil_mode=False"),
    (sequential(nn.ReLU(), nn.MaxPool2d(11)), r"do not fit into samples of \(4, 10, 10\)"),
    (sequential(nn.ReLU(), nn.MaxPool1d(2)), r"do not fit into samples of \(4, 10, 10\)"),
    (sequential(nn.Flatten(), nn.MaxPool2d(2)), "must follow a convolution directly"),
    (sequential(nn.PReLU(4), nn.MaxPool2d(2)), r"module\.2: MaxPool2d.* acts on every unit alone and alike"),
]


@pytest.mark.parametrize(("module", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_lifted_form_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lnn.init.from_module(module, in_shape=(1, 12, 12))


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ((nn.LeakyReLU(), nn.MaxPool2d(2)), "has a jointly convex divergence with a ReLU only"),
        ((nn.MaxPool2d(2),), "has a jointly convex divergence with a ReLU only"),
        ((nn.ReLU(), nn.MaxPool2d(2, 1)), "windows of MaxPoolReLU do not overlap"),
        ((nn.ReLU(), nn.MaxPool2d(3)), r"windows of \(3, 3\) do not divide"),
    ],
)
def test_the_jointly_convex_reading_has_fewer_forms(between: tuple[nn.Module, ...], words: str) -> None:
    rest = (nn.Flatten(), nn.LazyLinear(3))
    module = nn.Sequential(nn.Conv2d(1, 4, 3), *between, *rest)
    module(torch.zeros(1, 1, 12, 12))
    with pytest.raises(ValueError, match=words):
        lnn.init.from_module(module, divergence="euclidean", in_shape=(1, 12, 12))


def images(rows: int) -> tuple[Tensor, Tensor]:
    """A bright square somewhere, an upright bar or a level one, with noise."""
    torch.manual_seed(0)
    x, y = 0.2 * torch.randn(rows, 1, 12, 12), torch.arange(rows) % 3
    at = torch.randint(1, 6, (rows, 2)).tolist()
    for row, (i, j) in enumerate(at):
        height, width = ((3, 3), (6, 1), (1, 6))[row % 3]
        x[row, 0, i : i + height, j : j + width] += 1
    return x, y


@pytest.mark.parametrize("build", [LeNet, lambda: lnn.init.to_module(LENET, weights_of(LENET)).float()])
@pytest.mark.thin(2)
def test_a_lenet_is_initialised_by_lifting(build: Callable[[], nn.Module]) -> None:
    x, y = images(300)
    module = lnn.init.lifted_(build(), x, y, passes=15)
    with torch.no_grad():
        assert float((module(x).argmax(1) == y).double().mean()) > 0.9


def test_the_slope_of_a_prelu_with_max_pooling_stays() -> None:
    x, y = images(60)
    module = sequential(nn.PReLU(), nn.MaxPool2d(2))
    lnn.init.lifted_(module, x, y, passes=1)
    assert module.get_parameter("1.weight").tolist() == [0.25]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
def test_onnx_gives_the_same_numbers_for_any_batch() -> None:
    module, x = lnn.init.to_module(LENET, weights_of(LENET)).float().eval(), draw(20, 1, 12, 12).float()
    torch.testing.assert_close(onnx_program(module, x)(x), module(x).detach(), rtol=1e-4, atol=1e-4)
