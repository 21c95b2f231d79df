"""Uncertain inputs, constrained weights, learned activations and losses of regression train alike on every device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import losses, penalties, robust
from liftednn.base import Uncertainty
from liftednn.training.choices import with_input_uncertainty
from liftednn.training.result import Fit

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PENALTIES = [penalties.Orthogonal(), penalties.LowRank(2), penalties.Ball(1.0, "spectral"), penalties.NonNegative()]
UNCERTAINTIES = [robust.Noise(0.1), robust.FrobeniusBall(0.1), robust.BoxBall(0.02)]


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    return x, x[:, 0].abs() + 0.5 * x[:, 1]


def trained(
    device: str, loss: Any = "squared", kind: Any = None, penalty: Any = None, learn_activation: Any = None
) -> Fit:
    x, y = (part.to(device) for part in rows())
    network = lnn.LiftedNetwork.mlp([6, 5, 1], lnn.activations.FenchelLeakyReLU(0.1), loss)
    network = network if penalty is None else network.with_penalty([penalty, "l2"])
    network = with_input_uncertainty(lnn.automatic(network, x, y), kind)
    return lnn.MiniBatch(passes=8, learn_activation=learn_activation).run(network, x, y)


def check(device: str, **asked: Any) -> Fit:
    """It learns on the given device, and gives what the CPU gives."""
    fit, known = trained(device, **asked), trained("cpu", **asked)
    assert all(part.device.type == device for pair in fit.weights for part in pair)
    assert fit.history[-1].loss < 0.9 * fit.history[0].loss
    assert fit.history[-1].loss == pytest.approx(known.history[-1].loss, rel=1e-3)
    return fit


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", UNCERTAINTIES, ids=repr)
def test_uncertain_inputs(device: str, kind: Uncertainty) -> None:
    check(device, kind=kind)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.thin(2)
def test_constrained_weights(device: str, penalty: lnn.Penalty) -> None:
    fit = check(device, penalty=penalty)
    assert bool(penalty.value(fit.weights[0].w).isfinite())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("refit", ["layer", "unit"])
def test_learned_slopes(device: str, refit: str) -> None:
    phi = check(device, learn_activation=refit).network.hidden[0]
    assert isinstance(phi, lnn.activations.FenchelLeakyReLU)
    assert not torch.allclose(torch.as_tensor(phi.alpha).double().cpu(), torch.tensor(0.1).double())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", [losses.AbsoluteError(), losses.Huber(), losses.Quantile(0.8)], ids=repr)
def test_losses_of_regression(device: str, loss: lnn.Loss) -> None:
    check(device, loss=loss)


@pytest.mark.parametrize("device", DEVICES)
def test_slopes_under_uncertain_inputs(device: str) -> None:
    check(device, kind=robust.Noise(0.1), learn_activation="unit")
