"""What the solvers cannot solve raises an error of their own: no NaN is returned, and no error of torch or Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from liftednn.moments import Moments
from liftednn.solvers import Factor, nnls, prox_gradient, ridge, sketch, splitting

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Z = X[:, :2] + 1
MOMENTS = Moments.of(X, Z)


def spoilt(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[0, 0] = value
    return x


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["x", "z", "anchor"])
def test_ridge_needs_finite_data(where: str, value: float) -> None:
    x, z = spoilt(X, value) if where == "x" else X, spoilt(Z, value) if where == "z" else Z
    with pytest.raises(ValueError, match="must be finite, got NaN or infinity"):
        ridge(Moments.of(x, z), 1.0, 1.0, torch.full((2, 3), value) if where == "anchor" else None)


def test_ridge_says_that_squares_overflow() -> None:
    with pytest.raises(ValueError, match="or numbers whose squares overflow"):
        ridge(Moments.of(1e20 * X, Z), 1.0, 1.0)
    with pytest.raises(ValueError, match="the Gram matrix must be finite"):
        Factor.of(spoilt(torch.eye(3).double(), math.nan), 1.0, 1.0, 1e-7)


@pytest.mark.parametrize(
    ("lam", "rho"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), ("a", 1.0), (None, 1.0)]
)
def test_strengths_are_finite_numbers(lam: Any, rho: float) -> None:
    for solve in (lambda: ridge(MOMENTS, lam, rho), lambda: sketch(X, Z, lam, rho, 5)):
        with pytest.raises(ValueError, match=f"got lam={lam} and rho={rho}; both must be finite"):
            solve()


@pytest.mark.parametrize(
    ("x", "z", "weight", "sentence"),
    [
        (X.numpy(), Z, None, "x must be a tensor, got ndarray"),
        (X.to_sparse(), Z, None, "x must be dense and have values, got torch.sparse_coo"),
        (X.long(), Z, None, "x must hold floating-point numbers, got torch.int64"),
        (X + 0j, Z, None, "x must hold floating-point numbers, got torch.complex64"),
        (X.double(), Z, None, "x and z must have one precision"),
        (X[:, :0], Z, None, "at least one, and x with a column"),
        (X, Z, torch.ones(9), r"sample_weight has shape \(9,\), but x has 10 rows"),
        (X, Z, torch.zeros(10), "none negative and not all 0"),
        (X, Z, -torch.ones(10), "none negative and not all 0"),
        (X, Z, torch.full((10,), math.nan), "must hold finite numbers"),
    ],
)
def test_moments_are_of_real_rows(x: Any, z: Any, weight: Tensor | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Moments.of(x, z, weight)


def test_ridge_checks_the_shapes_of_anchor_and_factor() -> None:
    with pytest.raises(ValueError, match=r"anchor must have the shape of w, \(2, 3\), got \(3, 2\)"):
        ridge(MOMENTS, 1.0, 1.0, torch.zeros(3, 2))
    with pytest.raises(ValueError, match="factor has 5 inputs, and moments has 3"):
        ridge(MOMENTS, 1.0, 1.0, factor=Factor.of(torch.eye(5).double(), 1.0, 1.0, 1e-7))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((spoilt(X, math.nan), Z, 1.0, 1.0, 5), "x must be finite"),
        ((X, spoilt(Z, math.inf), 1.0, 1.0, 5), "z must be finite"),
        ((1e200 * X.double(), Z.double(), 1.0, 1.0, 5), "the Gram matrix must be finite"),
        ((X, Z[:5], 1.0, 1.0, 5), "matrices with the same rows"),
        ((X[:, 0], Z, 1.0, 1.0, 5), "matrices with the same rows"),
        ((X.long(), Z, 1.0, 1.0, 5), "x must hold floating-point numbers"),
        ((X, Z, 1.0, 1.0, 2.5), "size must lie in 1 .. 10, the number of rows, got 2.5"),
        ((X, Z, 1.0, 1.0, 5, -1), "refine must be a whole number of at least 0, got -1"),
        ((X, Z, 1.0, 1.0, 5, 0, -1), "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_sketch_refuses_in_words(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sketch(*arguments)


class Distances:
    """|x|_1 + |x - 1|_1 for splitting, |x - 1|^2 for prox_gradient."""

    def forward(self, x: Any) -> Any:
        return x

    def adjoint(self, u: Tensor) -> Tensor:
        return u

    def solve(self, x: Tensor) -> Tensor:
        return x / 2

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        return u.sign() * (u.abs() - step).clamp(min=0)

    def prox(self, x: Any, step: float) -> Any:
        return x if isinstance(x, list) else 1 + self.prox_f(x - 1, step)

    def value(self, x: Any, ax: Any = None) -> Tensor:
        return (x[0] - 1).square().sum() if isinstance(x, list) else x.abs().sum() + (x - 1).abs().sum()

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        return [2 * (x[0] - 1)]

    def retract(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(({"sigma": each}, f"sigma must be positive and finite, got {each}") for each in (0.0, -1.0, math.nan, math.inf)),
        ({"tol": math.nan}, "tol must be non-negative and finite, got nan"),
        ({"max_iter": -1}, "max_iter must be a whole number of at least 0"),
        ({"max_iter": 2.5}, "max_iter must be a whole number of at least 0"),
        ({"scale": math.nan}, "scale must be non-negative and finite"),
        ({"start": torch.full((2, 3), math.nan)}, "must start inside the domain"),
        ({"start": torch.full((2, 3), math.inf)}, "must start inside the domain"),
        ({"start": torch.ones(2, 3).long()}, "start must hold floating-point numbers, got torch.int64"),
        ({"start": [[1.0]]}, "start must be a tensor, got list"),
        ({"start": torch.ones(0, 3)}, "start must have entries"),
    ],
)  # fmt: skip
def test_splitting_refuses_in_words(options: dict[str, Any], sentence: str) -> None:
    given = {"start": torch.ones(2, 3)} | options
    with pytest.raises(ValueError, match=sentence):
        splitting(Distances(), **given)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(({"step": each}, f"step must be positive, got {each}") for each in (0.0, -1.0, math.nan, None)),
        ({"tol": math.nan}, "tol must be non-negative"),
        ({"convexity": -1.0}, "convexity must be non-negative"),
        ({"max_iter": 2.5}, "max_iter must be a whole number"),
        ({"start": [torch.zeros(2, 3).long()]}, r"start\[0\] must hold floating-point numbers"),
        ({"start": [[1.0]]}, r"start\[0\] must be a tensor, got list"),
    ],
)
def test_prox_gradient_refuses_in_words(options: dict[str, Any], sentence: str) -> None:
    given = {"start": [torch.zeros(2, 3)], "step": 0.5} | options
    with pytest.raises(ValueError, match=sentence):
        prox_gradient(Distances(), **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"h": [[1.0]]}, "h must be a tensor, got list"),
        ({"q": None}, "q must be a tensor, got NoneType"),
        ({"h": torch.eye(3).to_sparse()}, "h must be dense"),
        ({"z0": [[1.0]]}, "z0 must be a tensor, got list"),
        ({"tol": "a"}, "tol must be positive, got 'a'"),
        ({"max_iter": 2.5}, "max_iter must be a whole number of at least 0, got 2.5"),
        ({"upper": [1.0, 2.0, 3.0]}, "upper must be a number or a tensor"),
        ({"lower": "a"}, "lower must be a number or a tensor, got 'a'"),
    ],
)
def test_nnls_refuses_in_words(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        nnls(**{"h": torch.eye(3), "q": torch.ones(2, 3)} | given)
