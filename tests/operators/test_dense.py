"""The dense operator is torch.nn.functional.linear, with its adjoint, Gram matrix and norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as fn

from liftednn import operators
from liftednn.base import Affine, Operator
from liftednn.operators import Composed, Dense
from liftednn.testing import check_operator

SHAPES = [(1, 1), (5, 3), (3, 5), (7, 1), (1, 4)]


def weights(inputs: int, outputs: int) -> Affine:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return Affine(draw(outputs, inputs), draw(outputs))


@pytest.mark.parametrize("name", operators.__all__)
def test_every_exported_operator_conforms(name: str) -> None:
    found = getattr(operators, name)()
    sizes = (8,) if name == "AvgPool1d" else (4, 4)
    check_operator(found if isinstance(found, Operator) else Composed(Dense(4, 3), found, (1, *sizes)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_dense_conforms(inputs: int, outputs: int, seed: int) -> None:
    check_operator(Dense(inputs, outputs), seed=seed)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_forward_is_linear_and_adjoint_is_its_gradient(inputs: int, outputs: int) -> None:
    layer, affine = Dense(inputs, outputs), weights(inputs, outputs)
    x = torch.linspace(-1, 1, 4 * inputs, dtype=torch.float64).reshape(4, inputs).requires_grad_()
    r = torch.linspace(-2, 1, 4 * outputs, dtype=torch.float64).reshape(4, outputs)
    u = layer.forward([x], affine)
    torch.testing.assert_close(u, fn.linear(x, affine.w, affine.b))
    (gradient,) = torch.autograd.grad((u * r).sum(), x)
    torch.testing.assert_close(layer.adjoint(r, affine), gradient)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_norm_and_gram_are_those_of_the_matrix(inputs: int, outputs: int) -> None:
    layer, affine = Dense(inputs, outputs), weights(inputs, outputs)
    assert layer.norm(affine) == pytest.approx(np.linalg.norm(affine.w.numpy(), 2), rel=1e-12)
    np.testing.assert_allclose(layer.normal(affine).matrix().numpy(), affine.w.numpy().T @ affine.w.numpy())


def test_norm_of_zero_weights_is_zero() -> None:
    assert Dense(3, 2).norm(Affine(torch.zeros(2, 3), torch.zeros(2))) == 0.0


def test_shapes_follow_from_the_features() -> None:
    layer = Dense(5, 3, bias=False)
    assert (layer.in_widths[0], layer.out_width, layer.weight_shape, layer.bias) == (5, 3, (3, 5), False)


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 3), (3, 0), (-1, 2), (2.5, 3)])
def test_an_empty_layer_is_refused(inputs: int, outputs: int) -> None:
    with pytest.raises(ValueError, match="features must be a whole number of at least 1, got"):
        Dense(inputs, outputs)
