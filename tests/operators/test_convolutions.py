"""Convolutions are torch's, with adjoint, gradient in w and a bound on the norm; poolings before an operator likewise."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine, Operator
from liftednn.operators import AvgPool1d, AvgPool2d, Composed, Conv1d, Conv2d, Dense, Residual, Sum
from liftednn.operators.spectrum import convolution_bound
from liftednn.testing import check_operator
from tests.shaped import Pointwise

CONVOLUTIONS = [
    Conv2d((2, 5, 4), 3, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2)),
    Conv2d((4, 5, 5), 6, 3, stride=2, padding=1, groups=2),
    Conv2d((2, 5, 5), 3, 3, padding=1, padding_mode="circular"),
    Conv2d((2, 5, 4), 3, 3, stride=2, padding=(2, 1), padding_mode="circular"),
    Conv2d((2, 5, 5), 2, 3, padding=4, bias=False, padding_mode="circular"),
    Conv1d((2, 9), 4, 3, stride=2, padding=2, dilation=2, bias=False),
    Conv1d((3, 8), 3, 4, stride=3, groups=3),
]
OTHERS = [
    Composed(Conv1d((2, 4), 3, 3, padding=1), AvgPool1d(3, 2, 1), (2, 8)),
    Composed(Dense(8, 3), AvgPool2d((2, 3), 1), (2, 3, 4)),
    Composed(Residual(Conv2d((2, 2, 2), 2, 1)), AvgPool2d(2), (2, 4, 4)),
    Residual(Conv2d((2, 4, 4), 2, 3, padding=1)),
    Sum(Conv2d((2, 4, 4), 3, 3, stride=2, padding=1)),
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(operator: Operator) -> Affine:
    return Affine(draw(*operator.weight_shape), draw(operator.outputs, seed=1))


def torch_layer(operator: Conv1d | Conv2d, weights: Affine) -> torch.nn.Module:
    kind = torch.nn.Conv2d if isinstance(operator, Conv2d) else torch.nn.Conv1d
    names = ("out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode")
    given = {name: getattr(operator, name) for name in names} | {"bias": True}
    layer = kind(operator.in_shape[0], **given).double()
    with torch.no_grad():
        layer.weight.copy_(weights.w.reshape(layer.weight.shape))
        layer.get_parameter("bias").copy_(weights.b)
    return layer


@pytest.mark.parametrize("operator", [*CONVOLUTIONS, *OTHERS], ids=repr)
def test_it_conforms(operator: Operator) -> None:
    check_operator(operator)


@pytest.mark.parametrize("operator", CONVOLUTIONS, ids=repr)
def test_a_convolution_is_that_of_torch(operator: Conv1d | Conv2d) -> None:
    weights = weights_of(operator)
    layer = torch_layer(operator, weights)
    x = draw(3, *operator.in_shape, seed=2).requires_grad_()
    u = layer(x)
    r = draw(*u.shape, seed=3)
    of_x, of_w = torch.autograd.grad((u * r).sum(), [x, layer.weight])
    flat, flat_r = x.detach().flatten(1), r.flatten(1)
    assert operator.out_shape == tuple(u.shape[1:])
    torch.testing.assert_close(operator.forward([flat], weights), u.detach().flatten(1))
    torch.testing.assert_close(operator.adjoint(flat_r, weights), of_x.flatten(1))
    torch.testing.assert_close(operator.weight_gradient([flat], flat_r), of_w.reshape(operator.weight_shape))


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_another_memory_format_changes_rounding_alone(mode: Literal["zeros", "circular"]) -> None:
    operator = Conv2d((20, 5, 4), 3, 3, padding=1, padding_mode=mode)
    weights, x, r = weights_of(operator), draw(3, 400, seed=2), draw(3, 60, seed=3)
    small = Affine(weights.w.float(), weights.b.float())
    (arranged,) = operator._arranged(x.float().view(3, 20, 5, 4))
    assert arranged.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        operator.forward([x.float()], small).double(), operator.forward([x], weights), rtol=1e-5, atol=1e-4
    )
    exact = operator.weight_gradient([x], r)
    torch.testing.assert_close(operator.weight_gradient([x.float()], r.float()).double(), exact, rtol=1e-5, atol=1e-4)
    one_by_one = torch.func.vmap(lambda row: operator.forward([row[None]], small)[0])(x.float())
    torch.testing.assert_close(one_by_one, operator.forward([x.float()], small), rtol=1e-4, atol=1e-4)
    for other in (replace(operator, in_shape=(16, 5, 4)), replace(operator, groups=4, out_channels=4)):
        image = draw(3, *other.in_shape).float()
        assert other._arranged(image)[0] is image


def test_rows_are_torchs_unfolded_patches() -> None:
    operator = Conv2d((3, 6, 5), 2, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
    x = draw(4, 3, 6, 5)
    patches = fn.unfold(x, (3, 2), (2, 1), (2, 1), (1, 2))
    torch.testing.assert_close(operator.rows([x.flatten(1)]), patches.transpose(1, 2).reshape(-1, 18), rtol=0, atol=0)


def test_a_kernel_of_one_entry_is_a_dense_layer_at_every_position() -> None:
    dense, point, conv = Dense(2, 3), Pointwise(2, 3, 4, 2), Conv2d((2, 4, 4), 3, 1, stride=2)
    weights, x = weights_of(dense), draw(5, 32)
    expected = dense.forward([point.rows([x])], weights)
    torch.testing.assert_close(conv.targets(conv.forward([x], weights)), expected)
    torch.testing.assert_close(
        conv.adjoint(point.fold(expected), weights), point.adjoint(point.fold(expected), weights)
    )
    assert conv.norm(weights) == pytest.approx(dense.norm(weights))


def matrix_norm(operator: Operator, weights: Affine) -> float:
    eye = torch.eye(operator.in_widths[0], dtype=torch.float64)
    return float(torch.linalg.matrix_norm(operator.forward([eye], Affine(weights.w, 0 * weights.b)), 2))


@pytest.mark.parametrize("operator", CONVOLUTIONS, ids=repr)
def test_the_transform_of_the_kernel_bounds_the_norm(operator: Conv1d | Conv2d) -> None:
    weights = weights_of(operator)
    exact, bound = matrix_norm(operator, weights), operator._bound(weights)
    assert operator.norm(weights) == pytest.approx(exact)
    assert exact * (1 - 1e-12) <= bound <= 2 * exact


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_the_bound_is_close_for_samples_larger_than_the_kernel(mode: str) -> None:
    operator = Conv2d((3, 14, 14), 4, 3, padding=1, padding_mode=mode)  # type: ignore[arg-type]
    weights = weights_of(operator)
    assert operator.in_widths[0] > 512, "small ones have the exact norm"
    assert 1 - 1e-12 <= operator.norm(weights) / matrix_norm(operator, weights) <= 1.1


def test_a_coarse_grid_of_frequencies_still_gives_a_bound() -> None:
    """For a long sample the norm tends to the maximum over all frequencies."""
    for seed in range(20):
        kernel = draw(2, 2, 4, seed=seed)
        fine = torch.fft.fft(kernel, 20000)[..., : 20000 // 2 + 1].permute(2, 0, 1)
        exact = float(torch.linalg.matrix_norm(fine, 2).max())
        assert exact * (1 - 1e-12) <= convolution_bound(kernel, [10000], [1], [1]) <= 1.03 * exact


def test_zero_weights_have_a_norm_of_zero() -> None:
    operator = Conv2d((3, 14, 14), 4)
    assert operator.norm(Affine(torch.zeros(4, 27), torch.zeros(4))) == 0.0


@pytest.mark.parametrize(
    ("pool", "shape"),
    [(AvgPool2d(2), (2, 5, 4)), (AvgPool2d((3, 2), (2, 1), (1, 0)), (2, 5, 4)), (AvgPool1d(3, 1, 1), (2, 7))],
)
def test_a_pooling_is_that_of_torch(pool: AvgPool1d | AvgPool2d, shape: tuple[int, ...]) -> None:
    function = fn.avg_pool2d if isinstance(pool, AvgPool2d) else fn.avg_pool1d
    x = draw(3, *shape).requires_grad_()
    pooled = function(x, pool.kernel_size, pool.stride, pool.padding)
    r = draw(*pooled.shape, seed=1)
    (gradient,) = torch.autograd.grad((pooled * r).sum(), x)
    flat = x.detach().flatten(1)
    assert pool.out_shape(shape) == tuple(pooled.shape[1:])
    torch.testing.assert_close(pool.forward(flat, shape), pooled.detach().flatten(1))
    torch.testing.assert_close(pool.adjoint(r.flatten(1), shape), gradient.flatten(1))
    matrix = pool.forward(torch.eye(flat.shape[1], dtype=torch.float64), shape)
    assert pool.norm(shape) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)))


def test_the_norm_of_a_large_pooled_operator_is_a_bound() -> None:
    operator = Composed(Conv2d((2, 10, 10), 2, 3, padding=1), AvgPool2d(2), (2, 20, 20))
    weights = weights_of(operator)
    assert 1 - 1e-12 <= operator.norm(weights) / matrix_norm(operator, weights) <= 1.1


REFUSED = [
    (lambda: Conv2d((1, 4)), "in_shape must be 3 positive numbers, channels first"),
    (lambda: Conv1d((1, 4, 4)), "in_shape must be 2 positive numbers, channels first"),
    (lambda: Conv2d((3, 4, 4), 4, groups=2), "groups must divide the channels before and after, 3 and 4, got 2"),
    (lambda: Conv2d((1, 2, 4)), r"a kernel of \(3, 3\) entries with dilation does not fit"),
    (lambda: Conv2d(kernel_size=(3, 3, 3)), "kernel_size must be a whole number of at least 1, or 2 such numbers"),
    (lambda: Conv2d(stride=0), "stride must be a whole number of at least 1"),
    (lambda: Conv2d(padding=-1), "padding must be a whole number of at least 0"),
    (lambda: Conv2d(out_channels=0), "out_channels must be a whole number of at least 1"),
    (lambda: Conv2d(padding_mode="reflect"), "padding_mode must be 'zeros' or 'circular', got 'reflect'"),
    (lambda: Conv2d(padding=5, padding_mode="circular"), "circular padding is at most the size of a sample"),
    (lambda: AvgPool2d(2, padding=2), "padding is at most half of kernel_size"),
    (lambda: AvgPool2d(2).out_shape((1, 4)), "takes samples of 3 dimensions"),
    (lambda: AvgPool2d(5).out_shape((1, 4, 4)), "do not fit in samples"),
    (lambda: Composed(Dense(3, 2), AvgPool2d(2), (1, 4, 4)), r"gives samples of \(1, 2, 2\), which Dense"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_impossible_arguments_are_refused(make, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        make()


def test_operators_are_equal_however_their_sizes_are_given() -> None:
    given: list[int] = [1, 4, 4]
    assert Conv2d(given, kernel_size=[3, 3]) == Conv2d((1, 4, 4), kernel_size=(3, 3))  # type: ignore[arg-type]
    assert hash(replace(Conv2d(), stride=(1, 2))) == hash(Conv2d(stride=(1, 2)))
    assert lnn.operators.AvgPool2d([2, 2]) == AvgPool2d((2, 2))  # type: ignore[arg-type]
