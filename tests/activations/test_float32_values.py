"""Divergences in float32, where their terms cancel."""

from __future__ import annotations

import pytest
import torch

import liftednn as lnn


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus"])
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_the_objective_of_a_float32_network_is_right_to_its_digits(name: str, size: float) -> None:
    x = size * torch.randn(80, 10, generator=torch.Generator().manual_seed(0))
    network = lnn.LiftedNetwork.mlp([10, 4, 10], activation=name, loss="squared", rho=1e-9, lam=1e4)
    fit = lnn.BCD(passes=2, tol=0.0).run(network, x, x)
    found = fit.history[-1].objective
    assert found > 0
    exact = lnn.BCD(passes=2, tol=0.0).run(network, x.double(), x.double()).history[-1].objective
    assert found == pytest.approx(exact, rel=0.05)
