"""The units of the inputs as a whole change nothing where lam and rho are automatic."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import liftednn as lnn
from liftednn.training.initial import unit_of

POWERS = [2.0**-20, 2.0**-3, 2.0**8, 2.0**30]


def task() -> tuple[Tensor, Tensor]:
    """Inputs with columns of different spread and mean, one of them an indicator, and one that does not vary."""
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 0.0]) + torch.tensor([0.0, 3.0, -1.0, 0.0, 0.0, 2.0])
    x[:, 3] = (x[:, 3] > 0.5).double()
    return x, (x[:, 0] * x[:, 2] + x[:, 3] > 0).long()


@cache
def batch_scores(factor: float) -> Tensor:
    x, y = task()
    network = lnn.automatic(lnn.LiftedNetwork.mlp([6, 20, 10, 2], "fenchel_relu", "softmax"), factor * x, y)
    fit = lnn.MiniBatch(passes=5).run(network, factor * x, y)
    return fit.network.scores(fit.weights, factor * x)


@pytest.mark.parametrize("factor", POWERS)
@pytest.mark.thin(2)
def test_mini_batches(factor: float) -> None:
    torch.testing.assert_close(batch_scores(factor), batch_scores(1.0), rtol=1e-6, atol=1e-6)


@cache
def image_scores(factor: float) -> Tensor:
    x, y = torch.randn(60, 36, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(60) % 3
    network = lnn.LiftedNetwork.cnn((1, 6, 6), [4, "maxpool", ("dense", 5)], 3, "fenchel_relu")
    fit = lnn.MiniBatch(passes=5, batch_size=10).run(lnn.automatic(network, factor * x, y), factor * x, y)
    return fit.network.scores(fit.weights, factor * x)


@pytest.mark.parametrize("factor", POWERS)
@pytest.mark.thin(2)
def test_mini_batches_of_images(factor: float) -> None:
    torch.testing.assert_close(image_scores(factor), image_scores(1.0), rtol=1e-6, atol=1e-6)


@cache
def module_scores(factor: float) -> Tensor:
    x, y = task()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2)).double()
    return lnn.init.lifted_(module, factor * x, y, passes=5)(factor * x).detach()


@pytest.mark.parametrize("factor", POWERS)
def test_lifted_initialisation(factor: float) -> None:
    torch.testing.assert_close(module_scores(factor), module_scores(1.0), rtol=1e-6, atol=1e-6)


@cache
def predictions(factor: float) -> tuple[np.ndarray, np.ndarray]:
    x, y = (part.numpy() for part in task())
    rows = factor * x
    classifier = lnn.LiftedClassifier((20,), max_iter=5, random_state=0).fit(rows, y)
    regressor = lnn.LiftedRegressor((20,), max_iter=5, random_state=0).fit(rows, x[:, 0])
    return classifier.predict_proba(rows), regressor.predict(rows)


@pytest.mark.parametrize("factor", POWERS)
@pytest.mark.thin(2)
def test_estimators(factor: float) -> None:
    for found, expected in zip(predictions(factor), predictions(1.0), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_raw_pixels_score_as_scaled_ones_do() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    found = {}
    for factor in (1e-3, 1.0, 255.0, 1e3):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
        lnn.init.lifted_(module, factor * x[:1200], y[:1200], passes=10)
        found[factor] = float((module(factor * x[1200:]).argmax(1) == y[1200:]).double().mean())
    assert min(found.values()) > max(found.values()) - 0.02
    assert min(found.values()) > 0.9


def test_the_unit_is_the_spread_whatever_the_mean_and_1_where_there_is_none() -> None:
    x, _ = task()
    network = lnn.LiftedNetwork.mlp([6, 4, 2], "tanh")
    assert unit_of(network, x) == pytest.approx(float(x.var(0, correction=0).mean().sqrt()))
    assert unit_of(network, x + 1e6) == pytest.approx(unit_of(network, x), rel=1e-6)
    assert unit_of(network, torch.full((5, 6), 7.0)) == unit_of(network, torch.zeros(5, 6)) == 1.0
    weights = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    assert unit_of(network, x[:3], weights) == pytest.approx(unit_of(network, x[[0, 0, 1, 2]]))
    assert unit_of(lnn.LiftedNetwork.mlp([6, 4, 2]), x) == pytest.approx(unit_of(network, x) / 0.3)
