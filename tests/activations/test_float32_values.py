"""Divergences in float32, where their terms cancel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import liftednn as lnn
from liftednn.activations import FenchelLeakyReLU, FenchelReLU, Scaled, Softplus, Tanh


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


@pytest.mark.parametrize(
    "activation", [FenchelLeakyReLU(0.01), FenchelLeakyReLU(3.0), Scaled(FenchelLeakyReLU(0.1), 3.0)], ids=repr
)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_leaky_divergence_is_0_at_its_states_and_never_negative(activation: Any, size: float) -> None:
    u, z = size * torch.randn(2, 1000, 3, generator=torch.Generator().manual_seed(0))
    assert float(activation.value(u, activation(u)).abs().max()) <= 1e-9 * size**2
    assert float(activation.value(u, z).min()) >= 0
    torch.testing.assert_close(
        activation.value(u, z).double(), activation.value(u.double(), z.double()), rtol=1e-4, atol=0.0
    )


@pytest.mark.parametrize("activation", [FenchelReLU(), FenchelLeakyReLU(0.1), Tanh(), Softplus()], ids=repr)
@pytest.mark.parametrize("step", [1.0, 1e3, 1e6])
def test_a_long_step_in_u_keeps_the_digits_of_float32(activation: Any, step: float) -> None:
    generator = torch.Generator().manual_seed(0)
    v, u = torch.randn(2, 200, 3, generator=generator)
    z = activation(u)
    precise = activation.prox_u(v.double(), z.double(), step)
    torch.testing.assert_close(activation.prox_u(v, z, step).double(), precise, rtol=1e-5, atol=1e-5)
