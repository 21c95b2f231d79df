"""A loss of a user's own whose scores are in other units than its responses: counts, by the logarithm of their mean."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import PoissonRegressor
from torch import Tensor

import liftednn as lnn
from liftednn.base import Loss


class Poisson(Loss):
    """exp(u) - u y + log y!, which has no finite curvature."""

    classes, curvature, unitwise, uniform = False, torch.inf, True, True

    def __call__(self, u: Tensor) -> Tensor:
        return u.exp()

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u.exp() - u * z + torch.lgamma(z + 1)).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return u.exp() - z

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        """By Newton's method on u + step exp(u) = v + step z, from above the root."""
        right = v + step * z
        u = torch.minimum(right, torch.log1p((right / step).clamp(min=0)) + 1)
        for _ in range(60):
            u = u - (u + step * u.exp() - right) / (1 + step * u.exp())
        return u

    def encode(self, y: Tensor, width: int) -> Tensor:
        return y.reshape(len(y), -1)

    def decode(self, u: Tensor) -> Tensor:
        return u.exp()

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return 1 - float((u.exp() - y).square().mean() / y.var())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [1.0, 100.0, 1000.0])
@pytest.mark.thin(3)
def test_counts_are_fitted_from_scores_that_are_not_their_mean(mean: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 3, generator=generator)
    y = torch.poisson(mean * (0.3 * x[:, :1]).exp(), generator=generator)
    network = lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(3, 1), Poisson(), lnn.penalties.L2(1e-9))])
    w, b = lnn.BCD(passes=3, block_tol=1e-4).run(network, x.to(dtype), y.to(dtype)).weights[0]
    oracle = PoissonRegressor(alpha=0, tol=1e-9, max_iter=1000).fit(x.double().numpy(), y[:, 0].double().numpy())
    torch.testing.assert_close(w[0].double(), torch.from_numpy(oracle.coef_), rtol=0, atol=5e-3)
    assert float(b) == pytest.approx(oracle.intercept_, abs=5e-3)


class Total(lnn.losses.SquaredError):
    """The square of the summed error; its gradient is the same for all outputs, a view of one column."""

    quadratic = unitwise = uniform = separable = False
    curvature = 6.0

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u - z).sum(-1).square()

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return (2 * (u - z).sum(-1, keepdim=True)).expand_as(u)


def test_a_gradient_may_be_a_view() -> None:
    """Rows far from the others are weighed less, which writes to no gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator)
    x[::50] *= 40
    network = lnn.LiftedNetwork.mlp([3, 5, 3], "fenchel_relu", loss=Total())
    fit = lnn.MiniBatch(passes=2).run(network, x, x[:, :3].tanh())
    assert fit.status == "finished"
