"""Refit against minimisers that are not the package's: scalar search, grids and gradients by autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from liftednn import activations
from liftednn.activations import (
    FenchelClip,
    FenchelHardSigmoid,
    FenchelHardTanh,
    FenchelLeakyReLU,
    FenchelReLU,
    HardTanh,
    LeakyReLU,
    Monotone,
    ReLU,
    Scaled,
    Sigmoid,
    Sin,
    Softmax,
    Softplus,
    Tanh,
)
from liftednn.base import Activation
from liftednn.testing import check_activation

SUMMED: list[Activation] = [
    FenchelLeakyReLU(),
    FenchelLeakyReLU(2.0),
    Scaled(Tanh()),
    Scaled(Sigmoid(), 3.0),
    Scaled(Softplus(), 0.5),
    Scaled(Sin()),
    Scaled(FenchelHardTanh()),
    Scaled(FenchelHardSigmoid()),
    Scaled(FenchelReLU(), 2.0),
    Scaled(FenchelLeakyReLU(0.2)),
    Scaled(Monotone()),
    Scaled(FenchelClip(0.0, 1.0, 6.0, 3.0)),
]
BOUNDED: list[Activation] = [
    FenchelHardTanh(),
    FenchelHardSigmoid(),
    FenchelClip(-0.5, 2.0),
    FenchelClip(-1, 3, 2.0, 0.4),
]
PER_UNIT = torch.linspace(0.3, 1.7, 6).double()
UNITS: list[Activation] = [
    FenchelLeakyReLU(PER_UNIT),
    FenchelLeakyReLU(PER_UNIT[:1]),
    FenchelClip(-PER_UNIT, 1.5),
    FenchelClip(-PER_UNIT, PER_UNIT + 1, 2.0, 0.3),
    Scaled(Tanh(), PER_UNIT),
    Scaled(Softplus(), PER_UNIT),
    Scaled(FenchelClip(-0.5, 2.0, 2.0, 0.1), PER_UNIT),
    Scaled(Softmax(), 1.7),
]


def data(activation: Activation, n: int = 200, p: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations, other states, and row weights, some of them 0."""
    generator = torch.Generator().manual_seed(0)
    u, other = torch.randn(2, n, p, generator=generator, dtype=torch.float64)
    sizes = torch.linspace(0.5, 2.0, p).double()
    z = activation((u + 0.6 * other) * sizes) if activation.summed else 0.8 * activation(0.9 * u + 0.1 * other)
    return u, z, torch.randint(0, 3, (n,), generator=generator).double()


def name_of(activation: Activation) -> str:
    return repr(activation)[:70]


def energy(activation: Activation, u: Tensor, z: Tensor, row_weights: Tensor | None = None) -> float:
    rows = activation.value(u, z)
    return float(rows.sum() if row_weights is None else rows @ row_weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("activation", SUMMED, ids=name_of)
@pytest.mark.thin(2)
def test_one_for_the_layer_is_what_a_scalar_search_finds(activation: Activation, weighted: bool) -> None:
    u, z, row_weights = data(activation)
    given = row_weights if weighted else None
    found, (name,) = activation.refit(u, z, given), activation.learned
    search = minimize_scalar(
        lambda t: energy(replace(activation, **{name: float(np.exp(t))}), u, z, given),  # type: ignore[type-var]
        bounds=(-6, 2.2),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert getattr(found, name) == pytest.approx(float(np.exp(search.x)), rel=1e-5)
    assert energy(found, u, z, given) < energy(activation, u, z, given) - 1e-6


@pytest.mark.parametrize("activation", SUMMED, ids=name_of)
@pytest.mark.thin(2)
def test_one_for_each_unit_is_each_column_s_own(activation: Activation) -> None:
    u, z, row_weights = data(activation)
    found, (name,) = activation.refit(u, z, row_weights, "unit"), activation.learned
    alone = [getattr(activation.refit(u[:, [k]], z[:, [k]], row_weights), name) for k in range(6)]
    assert getattr(found, name).tolist() == pytest.approx(alone, rel=1e-8)
    assert energy(found, u, z, row_weights) <= energy(activation.refit(u, z, row_weights), u, z, row_weights)


@pytest.mark.parametrize("per", ["layer", "unit"])
@pytest.mark.parametrize("activation", [*SUMMED, Scaled(Softmax())], ids=name_of)
def test_the_gradient_vanishes(activation: Activation, per: str) -> None:
    if isinstance(activation, Scaled) and isinstance(activation.activation, (Softmax, Monotone)) and per == "unit":
        pytest.skip("one scale for the layer only, or a slow quadrature")
    u, z, _ = data(activation)
    found, (name,) = activation.refit(u, z, per=per), activation.learned
    parameter = torch.as_tensor(getattr(found, name), dtype=torch.float64).clone().requires_grad_()
    moving = replace(found)  # type: ignore[type-var]
    object.__setattr__(moving, name, parameter)
    (gradient,) = torch.autograd.grad(moving.value(u, z).sum(), parameter)
    object.__setattr__(moving, name, 1.1 * parameter)
    (elsewhere,) = torch.autograd.grad(moving.value(u, z).sum(), parameter)
    assert bool((gradient.abs() < 1e-6 * elsewhere.abs()).all())


def test_the_slope_has_a_formula() -> None:
    u, z = torch.tensor([[-2.0, 1.0], [-1.0, -2.0]]), torch.tensor([[-0.6, -0.3], [0.5, -0.6]])
    layer, unit = (FenchelLeakyReLU(0.5).refit(u, z, per=per) for per in ("layer", "unit"))
    assert layer.alpha == pytest.approx(((0.36 + 0.09 + 0.36) / (4 + 1 + 4)) ** 0.5, rel=1e-6)
    assert torch.allclose(unit.alpha, torch.tensor([(0.36 / 5) ** 0.5, (0.45 / 4) ** 0.5]))
    assert isinstance(unit.alpha, Tensor)
    assert unit.alpha.dtype == torch.float32


def test_slopes_stay_in_their_range_and_without_data_stay_unchanged() -> None:
    below, above = -torch.ones(3, 2), torch.ones(3, 2)
    assert FenchelLeakyReLU(0.3).refit(below, above).alpha == 1e-3
    assert FenchelLeakyReLU(1e-5).refit(below, above).alpha == pytest.approx(1e-5)
    assert FenchelLeakyReLU(0.3).refit(above, below).alpha == 10.0
    assert FenchelLeakyReLU(0.3).refit(above, above).alpha == 0.3
    assert FenchelLeakyReLU(0.3).refit(below, 0.3 * below).alpha == pytest.approx(0.3)
    assert Scaled(Tanh(), 0.7).refit(0 * above, 0.5 * above).scale == pytest.approx(0.7)


@pytest.mark.parametrize("per", ["layer", "unit"])
@pytest.mark.parametrize("activation", BOUNDED, ids=name_of)
def test_no_pair_of_bounds_on_a_grid_does_better(activation: Activation, per: str) -> None:
    u, z, row_weights = data(activation, p=2)
    z[row_weights == 0] = activation(torch.full_like(z[row_weights == 0], 50.0))  # rows that count for nothing
    found = activation.refit(u, z, row_weights, per)
    assert isinstance(found, FenchelClip)
    kept = row_weights > 0
    least, now = (
        energy(found, u[kept], z[kept], row_weights[kept]),
        energy(activation, u[kept], z[kept], row_weights[kept]),
    )
    assert least < now
    lower, upper = torch.as_tensor(found.lower).min(), torch.as_tensor(found.upper).max()
    for low in torch.linspace(float(lower) - 0.3, float(lower) + 0.3, 13).tolist():
        for high in torch.linspace(float(upper) - 0.3, float(upper) + 0.3, 13).tolist():
            if low < high:
                rival = replace(found, lower=low, upper=high)
                assert (
                    energy(rival, u[kept], z[kept], row_weights[kept]) >= least - 1e-5
                )  # a state may lie outside by rounding
    again = found.refit(u, z, row_weights, per)
    assert torch.equal(torch.as_tensor(again.upper), torch.as_tensor(found.upper))


def test_an_infinite_bound_stays_and_a_constant_unit_keeps_its_bounds() -> None:
    z = torch.tensor([[0.5, 0.2], [0.7, 0.2]], dtype=torch.float64)
    found = FenchelClip(0.0, float("inf")).refit(z, z)
    assert (found.lower, found.upper) == (0.2, float("inf"))
    unit = FenchelClip(-1.0, 1.0).refit(z, z, per="unit")
    assert torch.equal(torch.as_tensor(unit.lower), torch.tensor([0.5, -1.0], dtype=torch.float64))
    assert torch.equal(torch.as_tensor(unit.upper), torch.tensor([0.7, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("activation", UNITS, ids=name_of)
@pytest.mark.thin(2)
def test_parameters_of_each_unit_conform(activation: Activation) -> None:
    check_activation(activation)


@pytest.mark.parametrize("activation", [a for a in UNITS if a.summed], ids=name_of)
def test_what_has_one_entry_per_unit_keeps_them(activation: Activation) -> None:
    u, z, _ = data(activation)
    (name,) = activation.learned
    before, after = getattr(activation, name), getattr(activation.refit(u, z), name)
    assert torch.as_tensor(before).shape == torch.as_tensor(after).shape


@pytest.mark.parametrize("activation", [FenchelLeakyReLU(), Scaled(Tanh()), FenchelHardTanh()], ids=name_of)
@pytest.mark.parametrize("per", ["layer", "unit"])
def test_in_float32_as_in_float64(activation: Activation, per: str) -> None:
    u, z, _ = data(activation)
    wide, narrow = activation.refit(u, z, per=per), activation.refit(u.float(), z.float(), per=per)
    for name in wide.learned:
        a, b = (torch.as_tensor(getattr(each, name)) for each in (wide, narrow))
        assert torch.allclose(a.double(), b.double(), rtol=1e-4)
        assert per == "layer" or b.dtype == torch.float32
    assert narrow(u.float()).dtype == torch.float32


@pytest.mark.parametrize("name", activations.__all__)
def test_a_class_learns_what_it_declares(name: str) -> None:
    activation = getattr(activations, name)()
    pooled = activation.preactivation_width(2) != 2
    u, z, _ = (torch.randn(4, 8), torch.randn(4, 2), None) if pooled else data(activation)
    found = activation.refit(u, z)
    assert (found is activation) == (not activation.learned)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="units of Softmax depend on each other"):
        Scaled(Softmax()).refit(torch.randn(3, 2), torch.rand(3, 2).softmax(-1), per="unit")
    with pytest.raises(ValueError, match="needs an activation with a Fenchel divergence"):
        Scaled(HardTanh())
    with pytest.raises(ValueError, match="whose parameters are numbers"):
        Scaled(FenchelLeakyReLU(PER_UNIT))
    with pytest.raises(ValueError, match="scale must be positive"):
        Scaled(Tanh(), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="alpha must be positive"):
        FenchelLeakyReLU(torch.tensor([0.1, -0.1]))
    with pytest.raises(ValueError, match="lower must be below upper"):
        FenchelClip(torch.tensor([0.1, 2.0]), 1.0)
    assert activations.learnable(FenchelHardTanh()) == Scaled(FenchelHardTanh())
    assert activations.learnable(FenchelLeakyReLU()) == FenchelLeakyReLU()
    for plain in (FenchelReLU(), ReLU(), LeakyReLU(), HardTanh()):
        with pytest.raises(ValueError, match="nothing to learn"):
            activations.learnable(plain)
