"""Initial biases: kinks lie in the data where that helps, by the cross-validation of a ridge regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import liftednn as lnn
from liftednn.training.biases import best_biases
from liftednn.training.cross_validation import cross_validated
from liftednn.training.initial import random_weights

GENERATOR = torch.Generator().manual_seed(0)


def test_the_error_is_that_of_an_explicit_ridge_regression() -> None:
    x, y = torch.randn(80, 5, generator=GENERATOR).double(), torch.randn(80, 2, generator=GENERATOR).double()
    y = y + x[:, :2]
    spread = float((x - x.mean(0)).square().mean())
    errors = []
    for strength in (10.0**k for k in range(-8, 3)):
        model = Ridge(alpha=80 * strength * spread).fit(x, y)
        centred = (x - x.mean(0)).numpy()
        gram = centred.T @ centred
        used = 1 + np.trace(np.linalg.solve(gram + 80 * strength * spread * np.eye(5), gram))
        errors.append(((model.predict(x) - y.numpy()) ** 2).sum() / 80 / (1 - used / 80) ** 2)
    assert cross_validated(x, y, 80) == pytest.approx(min(errors), rel=1e-6)


def test_the_error_is_not_rounding_in_float32() -> None:
    """Of columns that are nearly the same, with ridges down to 1e-8."""
    x = torch.randn(200, 1, generator=GENERATOR) + 1e-4 * torch.randn(200, 8, generator=GENERATOR)
    y = torch.sin(3 * x[:, :1])
    assert cross_validated(x, y, 200) == pytest.approx(cross_validated(x.double(), y.double(), 200), rel=1e-6)


def biases(columns: int, function: str) -> torch.Tensor:
    x = torch.randn(1000, columns, generator=GENERATOR)
    y = torch.sin(4 * x[:, :1]) if function == "wave" else x.abs().sum(1, keepdim=True)
    network = lnn.LiftedNetwork.mlp([columns, 40, 1], "fenchel_relu", loss="squared")
    return best_biases(network, random_weights(network, 0, x, y), 0, x, y)[0].b


def test_kinks_lie_in_the_data_for_a_wave_of_one_column_and_at_0_for_a_cone() -> None:
    wave, cone = biases(1, "wave"), biases(5, "cone")
    assert float(wave.abs().mean()) > 0.1
    assert float(cone.abs().max()) == 0.0


def test_weights_act_as_copies() -> None:
    x = torch.randn(200, 1, generator=GENERATOR).double()
    y, counts = torch.sin(4 * x), torch.arange(200) % 3 + 1
    network = lnn.LiftedNetwork.mlp([1, 10, 1], "fenchel_relu", loss="squared")
    start = random_weights(network, 0, x, y)
    weighted = best_biases(network, start, 0, x, y, counts.double())[0].b
    copied = best_biases(network, start, 0, *(part.repeat_interleave(counts, 0) for part in (x, y)))[0].b
    assert torch.equal(weighted, copied)


@pytest.mark.parametrize("seed", range(2))
def test_a_wave_is_learned(seed: int) -> None:
    x = np.random.RandomState(seed).uniform(-2, 2, (800, 1))
    model = lnn.LiftedRegressor((40,), random_state=seed).fit(x, np.sin(4 * x[:, 0]))
    assert model.score(x, np.sin(4 * x[:, 0])) > 0.95
