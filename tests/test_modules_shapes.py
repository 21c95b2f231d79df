"""Modules in which images, flattened images and rows meet: read, written, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn

import liftednn as lnn
from liftednn.activations import FenchelReLU, Softmax
from liftednn.init import from_module, lifted_, to_module
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.operators import AvgPool2d, Composed, Conv1d, Conv2d, Dense, Residual


def drawn(network: lnn.LiftedNetwork) -> list[lnn.Affine]:
    torch.manual_seed(0)
    operators = [layer.operator for layer in network.layers]
    return [lnn.Affine(torch.randn(each.weight_shape), torch.randn(each.outputs)) for each in operators]


class Forward(nn.Module):
    """Its own layers, and a forward of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.computed = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.computed(self, x)


def agrees(module: nn.Module, shape: tuple[int, ...]) -> None:
    """The network that is read, and the module that is written from it, compute what the module does."""
    module = module.eval()
    x = torch.randn(4, *shape)
    network, weights = from_module(module, in_shape=shape if len(shape) > 1 else None)
    torch.testing.assert_close(lnn.predict.feedforward(network, weights, x.flatten(1)), module(x))
    torch.testing.assert_close(to_module(network, weights)(x), module(x))


@pytest.mark.parametrize("size", [3, 5])
def test_a_sum_of_images_and_rows_is_written_in_one_shape(size: int) -> None:
    convolution = Conv2d((2, size, size), 3, 3)
    rows = convolution.out_width
    network = lnn.LiftedNetwork(
        [
            lnn.Layer(convolution, FenchelReLU()),
            lnn.Layer(Residual(Dense(rows, rows)), FenchelReLU()),
            lnn.Layer(Dense(rows, 2), SoftmaxCrossEntropy()),
        ]
    )
    weights, x = drawn(network), torch.randn(4, 2, size, size)
    torch.testing.assert_close(to_module(network, weights)(x), network.scores(weights, x.flatten(1)))


def test_sums_of_flattened_images_are_read_and_written() -> None:
    def residual(self: Any, x: Tensor) -> Tensor:
        h = fn.relu(self.a(x)).flatten(1)
        return self.o(fn.relu(self.b(h) + h))

    def two(self: Any, x: Tensor) -> Tensor:
        return self.o(fn.relu(self.a(x)).flatten(1) + fn.relu(self.c(x)).flatten(1))

    layers = {"a": nn.Conv2d(2, 3, 3), "c": nn.Conv2d(2, 3, 3), "b": nn.Linear(27, 27), "o": nn.Linear(27, 2)}
    agrees(Forward(residual, **{name: layers[name] for name in "abo"}), (2, 5, 5))
    agrees(Forward(two, **{name: layers[name] for name in "aco"}), (2, 5, 5))


def test_a_parameter_that_is_added_after_a_batch_norm_is_not_scaled_by_it() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.o(fn.relu(self.n(self.a(x)) + self.p))

    norm = nn.BatchNorm1d(4)
    for part in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
        assert part is not None
        part.uniform_(0.5, 3)
    parts = {"a": nn.Linear(5, 4, bias=False), "n": norm, "p": nn.Parameter(torch.randn(4)), "o": nn.Linear(4, 2)}
    agrees(Forward(forward, **parts), (5,))


def test_a_softmax_of_one_position_is_over_channels() -> None:
    convolution = Conv2d((2, 3, 3), 4, 3)
    network = lnn.LiftedNetwork([lnn.Layer(convolution, Softmax()), lnn.Layer(Dense(4, 2), SoftmaxCrossEntropy())])
    weights, x = drawn(network), torch.randn(4, 2, 3, 3)
    torch.testing.assert_close(to_module(network, weights)(x), network.scores(weights, x.flatten(1)))
    agrees(nn.Sequential(nn.Conv2d(2, 3, 6), nn.Softmax(1), nn.Flatten(), nn.Linear(3, 2)), (2, 6, 6))
    for dim in (-1, None):
        module = nn.Sequential(nn.Conv2d(2, 3, 6), nn.Softmax(dim), nn.Flatten(), nn.Linear(3, 2))
        with pytest.raises(ValueError, match="must be taken over the channels: give dim=1"):
            from_module(module, in_shape=(2, 6, 6))


def test_a_softmax_of_rows_is_over_the_last_axis() -> None:
    network = lnn.LiftedNetwork([lnn.Layer(Dense(3, 4), Softmax()), lnn.Layer(Dense(4, 2), SoftmaxCrossEntropy())])
    weights, x = drawn(network), torch.randn(2, 5, 3)
    module = to_module(network, weights)
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_dropout_that_never_ends_is_refused() -> None:
    def forward(training: bool | None) -> Callable[[Any, Tensor], Tensor]:
        def dropped(self: Any, x: Tensor) -> Tensor:
            return self.o(fn.dropout(fn.relu(self.a(x)), 0.5, self.training if training is None else training))

        return dropped

    layers = {"a": nn.Linear(5, 4), "o": nn.Linear(4, 2)}
    for training in (None, False):
        agrees(Forward(forward(training), **layers).train(), (5,))
    with pytest.raises(ValueError, match="dropout"):
        from_module(Forward(forward(True), **layers).eval())


def test_lifted_knows_the_shape_of_images_that_functions_pool() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.o(fn.avg_pool2d(x, 2).flatten(1))

    module, x = Forward(forward, o=nn.Linear(32, 2)), torch.randn(200, 2, 8, 8)
    y = (x[:, 0].mean((1, 2)) > 0).long()
    lifted_(module, x, y)
    assert float((module(x).argmax(1) == y).double().mean()) > 0.9


@pytest.mark.parametrize("number", [np.int64, np.int32, torch.tensor])
def test_whole_numbers_of_any_library_are_sizes(number: Callable[[int], Any]) -> None:
    assert Conv2d((1, 8, 8), number(4), number(3)) == Conv2d((1, 8, 8), 4, 3)
    assert Conv1d([number(2), number(8)], 4, 3, groups=number(2)) == Conv1d((2, 8), 4, 3, groups=2)  # type: ignore[arg-type]
    assert AvgPool2d(number(2)) == AvgPool2d(2)
    sizes, layers = [number(1), number(8), number(8)], [number(4), ("conv", number(3), number(2)), ("dense", number(5))]
    found = lnn.LiftedNetwork.cnn(sizes, layers, number(2))  # type: ignore[arg-type]
    assert found.layers == lnn.LiftedNetwork.cnn((1, 8, 8), [4, ("conv", 3, 2), ("dense", 5)], 2).layers


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "kernel": (lambda: Conv2d((1, 8, 8), 4, 3.0), "kernel_size must be a whole number of at least 1, or 2 such"),  # type: ignore[arg-type]
    "same": (
        lambda: Conv2d((1, 8, 8), 4, 3, padding="same"),
        "padding must be a whole number of .*, got 'same'",
    ),  # type: ignore[arg-type]
    "groups": (lambda: Conv2d((2, 8, 8), 4, 3, groups=2.0), "groups must be a whole number"),  # type: ignore[arg-type]
    "in_shape": (lambda: Conv2d(8, 4, 3), "in_shape must be 3 positive numbers"),  # type: ignore[arg-type]
    "cnn, in_shape": (lambda: lnn.LiftedNetwork.cnn(64, [4], 2), r"in_shape must be \(channels"),  # type: ignore[arg-type]
    "cnn, outputs": (lambda: lnn.LiftedNetwork.cnn((1, 8, 8), [4], 2.0), "outputs must be a whole number, got 2.0"),  # type: ignore[arg-type]
    "composed": (lambda: Composed(Conv2d((4, 2, 2), 4, 1), AvgPool2d(2), (2, 4, 8)), "which Conv2d"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_sizes_are_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("layers", "path"),
    [
        ([nn.Conv2d(2, 3, 9)], "module.0"),
        ([nn.Conv2d(2, 3, 2), nn.ReLU(), nn.AvgPool2d(9)], "module.2"),
        ([nn.AvgPool1d(2)], "module.0"),
        ([nn.Conv2d(2, 3, 2), nn.PReLU(3)], "module.1"),
    ],
    ids=str,
)
def test_layers_that_do_not_fit_are_named(layers: list[nn.Module], path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}: "):
        from_module(nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 2)), in_shape=(2, 5, 5))


def test_rows_of_another_shape_are_told_what_images_are_taken() -> None:
    network = lnn.LiftedNetwork.cnn((1, 8, 8), [4], 2)
    with pytest.raises(ValueError, match=r"give \(n, 64\), or \(n, 1, 8, 8\)"):
        network.check_rows(torch.zeros(3, 8, 8, 1))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_very_few_steps_are_better_than_a_constant(steps: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 1, 8, 8)
    y = (x[:, :, :4].sum((1, 2, 3)) > 0).long()
    network = lnn.automatic(lnn.LiftedNetwork.cnn((1, 8, 8), [8, "maxpool", 16, "maxpool"], 2, "fenchel_relu"), x, y)
    fit = lnn.MiniBatch(passes=steps, batch_size=300).run(network, x, y)
    assert fn.cross_entropy(network.scores(fit.weights, x.flatten(1)), y) < 0.6
