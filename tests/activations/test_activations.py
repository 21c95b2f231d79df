"""Every activation: argmin map, gradient, prox and energy, against formulas that are not the package's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from liftednn import activations
from liftednn.activations import (
    FenchelClip,
    FenchelHardSigmoid,
    FenchelHardTanh,
    FenchelLeakyReLU,
    FenchelReLU,
    HardSigmoid,
    HardTanh,
    Identity,
    LeakyReLU,
    MaxPool,
    MaxPoolReLU,
    Monotone,
    Pooled,
    ReLU,
    Scaled,
    Sigmoid,
    Sign,
    Simplex,
    Sin,
    Softmax,
    Softplus,
    Tanh,
    named,
)
from liftednn.base import Activation
from liftednn.testing import check_activation

INF = float("inf")


def atan() -> Monotone:
    return Monotone(torch.atan, torch.tan)


VARIANTS: list[Activation] = [
    ReLU("l1"),
    LeakyReLU(3.0),
    LeakyReLU(0.2),
    FenchelLeakyReLU(2.0),
    Sign(0.0),
    Sign(1.0),
    MaxPool((1, 2, 3, 1, 2, 2)),
    MaxPool(1),
    MaxPoolReLU((3, 4), 2),
    MaxPoolReLU((-1, 4, 3), (4, 1)),
    Pooled(Tanh(), (-1, 7), 3, 2),
    Pooled(Sigmoid(), (1, 7, 5), 3, 2),
    MaxPool(3, form="paper"),
    atan(),
    Scaled(Sigmoid(), 2.5),
    Scaled(FenchelHardTanh(), 0.3),
]
EVERY: list[Activation] = [getattr(activations, name)() for name in activations.__all__] + VARIANTS


@dataclass(frozen=True)
class Scalar:
    """An elementwise activation with its textbook formula and the interval of its states, given u."""

    activation: Activation
    formula: Callable[[Tensor], Tensor]
    lower: Callable[[float], float] = lambda u: -INF
    upper: float = INF


ELEMENTWISE = [
    Scalar(Identity(), lambda u: u),
    Scalar(HardTanh(), fn.hardtanh, lambda u: -1.0, 1.0),
    Scalar(HardSigmoid(), lambda u: fn.hardtanh(u, 0.0, 1.0), lambda u: 0.0, 1.0),
    Scalar(ReLU(), fn.relu, lambda u: 0.0),
    Scalar(ReLU("l1"), fn.relu, lambda u: 0.0),
    Scalar(LeakyReLU(), lambda u: fn.leaky_relu(u, 0.01), lambda u: 0.01 * u),
    Scalar(LeakyReLU(0.2), lambda u: fn.leaky_relu(u, 0.2), lambda u: 0.2 * u),
    Scalar(LeakyReLU(3.0), lambda u: torch.where(u > 0, 3 * u, u), lambda u: 3 * u),
    Scalar(FenchelReLU(), fn.relu, lambda u: 0.0),
    Scalar(FenchelHardTanh(), fn.hardtanh, lambda u: -1.0, 1.0),
    Scalar(FenchelHardSigmoid(), lambda u: fn.hardtanh(u, 0.0, 1.0), lambda u: 0.0, 1.0),
    Scalar(FenchelClip(), fn.hardtanh, lambda u: -1.0, 1.0),
    Scalar(FenchelClip(0.0, 6.0), fn.relu6, lambda u: 0.0, 6.0),
    Scalar(FenchelClip(0.0, 1.0, 6.0, 3.0), fn.hardsigmoid, lambda u: 0.0, 1.0),
    Scalar(FenchelLeakyReLU(), lambda u: fn.leaky_relu(u, 0.01)),
    Scalar(FenchelLeakyReLU(2.0), lambda u: fn.leaky_relu(u, 2.0)),
    Scalar(Sign(0.0), torch.sign, lambda u: -1.0, 1.0),
    Scalar(Sign(), lambda u: fn.hardtanh(10 * u), lambda u: -1.0, 1.0),
    Scalar(Sign(1.0), fn.hardtanh, lambda u: -1.0, 1.0),
    Scalar(Sigmoid(), lambda u: 1 / (1 + (-u).exp()), lambda u: 0.0, 1.0),
    Scalar(Tanh(), lambda u: 1 - 2 / (1 + (2 * u).exp()), lambda u: -1.0, 1.0),
    Scalar(Scaled(), torch.tanh, lambda u: -1.0, 1.0),
    Scalar(Scaled(Sigmoid(), 2.5), lambda u: 1 / (1 + (-2.5 * u).exp()), lambda u: 0.0, 1.0),
    Scalar(Scaled(FenchelLeakyReLU(0.2), 0.4), lambda u: fn.leaky_relu(0.4 * u, 0.2)),
    Scalar(Softplus(), lambda u: torch.logaddexp(u, torch.zeros_like(u)), lambda u: 0.0),
    Scalar(Sin(), lambda u: torch.where(u.abs() < np.pi / 2, u.sin(), u.sign()), lambda u: -1.0, 1.0),
    Scalar(Monotone(), lambda u: (u + (u * u + 1).sqrt()).log()),
    Scalar(atan(), torch.atan, lambda u: -np.pi / 2, np.pi / 2),
]
FENCHEL = [a for a in EVERY if isinstance(a, activations.Fenchel)]


def label(case: Activation | Scalar) -> str:
    activation = case.activation if isinstance(case, Scalar) else case
    if isinstance(activation, Monotone):
        return f"Monotone({getattr(activation.phi, '__name__', 'phi')})"
    return repr(activation)


def rows(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy(activation: Activation, u: float, z: float) -> float:
    return float(activation.value(torch.tensor([[u]], dtype=torch.float64), torch.tensor([[z]], dtype=torch.float64)))


def test_every_elementwise_activation_has_a_textbook_formula() -> None:
    tested = {type(case.activation).__name__ for case in ELEMENTWISE} | {
        "MaxPool",
        "MaxPoolReLU",
        "Pooled",
        "Simplex",
        "Softmax",
    }
    assert tested == set(activations.__all__)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("activation", EVERY, ids=label)
def test_conforms(activation: Activation, seed: int) -> None:
    check_activation(activation, seed=seed)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=label)
def test_phi_is_the_textbook_formula(case: Scalar) -> None:
    u = torch.linspace(-8, 8, 321, dtype=torch.float64)[:, None]
    torch.testing.assert_close(case.activation(u), case.formula(u), rtol=1e-12, atol=1e-14)


def test_softmax_simplex_and_pooling_are_the_textbook_formulas() -> None:
    u = 2 * rows(50, 6)
    torch.testing.assert_close(Softmax()(u), fn.softmax(u, -1), rtol=1e-14, atol=0)
    torch.testing.assert_close(MaxPool(3)(u), fn.max_pool1d(u[:, None], 3)[:, 0])
    torch.testing.assert_close(MaxPool((2, 4))(u), torch.stack([u[:, :2].amax(-1), u[:, 2:].amax(-1)], -1))
    z = Simplex()(u)
    excess = u - z  # equal on the support, smaller off it: the conditions of optimality
    threshold = excess.amax(-1, keepdim=True)
    assert bool((z >= 0).all())
    torch.testing.assert_close(z.sum(-1), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(z, (u - threshold).relu())


@pytest.mark.parametrize("case", ELEMENTWISE, ids=label)
@pytest.mark.thin(3)
def test_phi_minimises_the_energy_over_a_grid(case: Scalar) -> None:
    for u in (-4.3, -1.1, -0.2, 0.05, 0.7, 2.9):
        lower, upper = max(case.lower(u), -15.0), min(case.upper, 15.0)
        grid = torch.linspace(lower, upper, 100001, dtype=torch.float64)[:, None]
        best = float(grid[case.activation.value(torch.full_like(grid, u), grid).argmin()])
        phi = float(case.formula(torch.tensor(u, dtype=torch.float64)))
        assert best == pytest.approx(phi, abs=5e-4)


@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if c.upper < INF or c.lower(0.0) > -INF], ids=label)
def test_energy_is_infinite_outside_the_domain(case: Scalar) -> None:
    u = 0.4
    assert energy(case.activation, u, case.lower(u) - 1e-3) == INF
    if case.upper < INF:
        assert energy(case.activation, u, case.upper + 1e-3) == INF


@pytest.mark.parametrize("activation", [a for a in EVERY if a.curvature < INF], ids=label)
def test_gradient_is_that_of_the_value(activation: Activation) -> None:
    u = 2 * rows(20, activation.preactivation_width(6), seed=3)
    z = activation(2 * rows(20, activation.preactivation_width(6), seed=4))
    gradient, step = activation.grad(u, z), 1e-5
    for i in range(u.shape[1]):
        move = torch.zeros_like(u)
        move[:, i] = step
        slope = (activation.value(u + move, z) - activation.value(u - move, z)) / (2 * step)
        torch.testing.assert_close(slope, gradient[:, i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [a for a in EVERY if a.curvature < INF], ids=label)
def test_curvature_is_attained(activation: Activation) -> None:
    """An upper bound is checked by check_activation; a bound far too large would only make training slow."""
    p = activation.preactivation_width(6)
    u = torch.cat([0.02 * rows(300, p), 0.5 + 0.02 * rows(300, p), rows(300, p)])
    near = u + 1e-6 * rows(900, p, seed=9)
    if isinstance(activation, Pooled):  # attained where the entry that moves is the largest of all its windows
        near = u + 1e-6 * (u == u.amax(-1, keepdim=True))
    if isinstance(activation, Softmax):  # attained for two equal scores and a step that separates them
        u, near = torch.zeros(1, 2).double(), torch.tensor([[1e-6, -1e-6]]).double()
    if isinstance(activation, Softplus | FenchelLeakyReLU):
        u, near = torch.cat([u + 20, u - 20]), torch.cat([near + 20, near - 20])
    z = activation(u)
    ratio = (activation.grad(near, z) - activation.grad(u, z)).norm(dim=-1) / (near - u).norm(dim=-1)
    assert float(ratio.max()) == pytest.approx(activation.curvature, rel=0.02)


@pytest.mark.parametrize("step", [0.03, 1.0, 25.0])
@pytest.mark.parametrize("case", ELEMENTWISE, ids=label)
@pytest.mark.thin(6)
def test_prox_equals_scalar_minimisation(case: Scalar, step: float) -> None:
    points = [(-3.0, 0.5), (-0.4, -2.0), (0.2, 1.4), (1.7, 0.3), (2.5, -3.0)]
    if isinstance(
        case.activation, Monotone
    ):  # v near the edge of the range makes its quadrature, not its prox, the worse of the two
        points = [(u, abs(v) / 3) for u, v in points]
    for u, v in points:
        lower, upper = max(case.lower(u), -20.0), min(case.upper, 20.0)
        objective = lambda z, u=u, v=v: energy(case.activation, u, z) + (z - v) ** 2 / (2 * step)  # noqa: E731
        expected = minimize_scalar(objective, bounds=(lower, upper), method="bounded", options={"xatol": 1e-10})
        found = float(case.activation.prox(*(torch.tensor([[a]], dtype=torch.float64) for a in (v, u)), step))
        assert objective(found) <= expected.fun + 1e-10 * (1 + abs(expected.fun))
        assert found == pytest.approx(expected.x, abs=3e-6)


@pytest.mark.parametrize("step", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("activation", [Simplex(), Softmax()], ids=label)
def test_prox_on_the_simplex_equals_constrained_minimisation(activation: Activation, step: float) -> None:
    u, v = rows(1, 4, seed=5), rows(1, 4, seed=6)

    def objective(z: np.ndarray) -> float:
        point = torch.from_numpy(z)[None].clamp(min=0)
        return float(activation.value(u, point / point.sum()) + (point / point.sum() - v).square().sum() / (2 * step))

    found = activation.prox(v, u, step)
    sums = {"type": "eq", "fun": lambda z: z.sum() - 1}
    best = minimize(objective, np.full(4, 0.25), bounds=[(1e-12, 1)] * 4, constraints=[sums], method="SLSQP", tol=1e-12)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    assert objective(found[0].numpy()) <= best.fun + 1e-9
    np.testing.assert_allclose(found[0].numpy(), best.x, atol=2e-4)


@pytest.mark.parametrize("activation", [MaxPool(3), MaxPool(3, form="paper")], ids=label)
@pytest.mark.thin(3)
def test_pooling_prox_equals_scalar_minimisation(activation: Activation) -> None:
    u, v = 2 * rows(8, 3, seed=7), 2 * rows(8, 1, seed=8)
    for step in (0.05, 1.0, 20.0):
        found = activation.prox(v, u, step)
        grid = torch.linspace(-40, 40, 400001, dtype=torch.float64)[:, None]
        for row in range(8):
            values = activation.value(u[row].expand(len(grid), 3), grid) + (grid[:, 0] - v[row]) ** 2 / (2 * step)
            assert float(found[row]) == pytest.approx(float(grid[values.argmin()]), abs=3e-4)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=label)
@pytest.mark.thin(2)
def test_prox_in_u_equals_scalar_minimisation(case: Scalar) -> None:
    for z, v, step in [(0.3, 1.5, 0.4), (0.6, -2.0, 2.0), (0.1, 0.2, 10.0)]:
        upper = float(case.activation.cap(torch.tensor(z, dtype=torch.float64))) if case.activation.capped else 30.0
        objective = lambda u, z=z, v=v, s=step: energy(case.activation, u, z) + (u - v) ** 2 / (2 * s)  # noqa: E731
        expected = minimize_scalar(objective, bounds=(-30.0, upper), method="bounded", options={"xatol": 1e-10})
        found = float(case.activation.prox_u(*(torch.tensor([[a]], dtype=torch.float64) for a in (v, z)), step))
        assert objective(found) <= expected.fun + 1e-10 * (1 + abs(expected.fun))


REALS = st.floats(-30, 30, allow_subnormal=False)
MATRIX = arrays(np.float64, (3, 4), elements=REALS)


@pytest.mark.parametrize("activation", FENCHEL, ids=label)
@settings(deadline=None, max_examples=15)
@given(u=MATRIX, other=MATRIX)
@pytest.mark.thin(3)
def test_fenchel_energies_are_non_negative_and_zero_at_phi(
    activation: Activation, u: np.ndarray, other: np.ndarray
) -> None:
    pre, rival = torch.from_numpy(u), activation(torch.from_numpy(other))
    assert float(activation.value(pre, activation(pre)).abs().max()) <= 1e-10
    assert float(activation.value(pre, rival).min()) >= -1e-10


@pytest.mark.parametrize("activation", FENCHEL, ids=label)
def test_fenchel_energies_are_positive_away_from_phi(activation: Activation) -> None:
    u = 0.5 + rows(40, 4).abs()
    rival = activation(-u + 0.1 * rows(40, 4, seed=1))
    assert bool((activation.value(u, rival) > 1e-6).all())


@pytest.mark.parametrize("z", [1e-6, 0.01, 0.3, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("u", [-6.0, -0.5, 0.0, 2.0, 9.0])
def test_softplus_energy_equals_the_integral_that_defines_it(u: float, z: float) -> None:
    """D(u, z) = integral from w to u of (softplus(t) - z) dt with w = log(e^z - 1)."""
    w = z + np.log(-np.expm1(-z))
    expected, _ = quad(lambda t: np.logaddexp(0, t) - z, w, u, epsabs=1e-13, epsrel=1e-13, limit=200)
    assert energy(Softplus(), u, z) == pytest.approx(expected, abs=1e-10)


def test_softplus_entropy_is_the_integral_of_the_inverse() -> None:
    for z in (0.05, 0.4, 1.0, 2.5, 8.0):
        expected, _ = quad(lambda t: t + np.log(-np.expm1(-t)), 0, z, epsabs=1e-13, epsrel=1e-13, limit=400)
        assert float(Softplus().entropy(torch.tensor(z, dtype=torch.float64))) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("activation", "inverse", "z"),
    [
        (Sigmoid(), torch.logit, (0.02, 0.3, 0.5, 0.97)),
        (Tanh(), torch.atanh, (-0.95, -0.2, 0.0, 0.9)),
        (Softplus(), lambda z: z + torch.log(-torch.expm1(-z)), (0.05, 0.6, 2.0, 7.0)),
        (Sin(), None, (-0.9, -0.3, 0.0, 0.8)),
    ],
    ids=["Sigmoid", "Tanh", "Softplus", "Sin"],
)
def test_monotone_reproduces_the_closed_form(
    activation: Activation, inverse: Callable | None, z: tuple[float, ...]
) -> None:
    if inverse is None:  # sin has no inverse beyond a quarter period, so only the integral is compared
        general, pre = None, (-1.5, -0.4, 0.0, 1.2)
    else:
        general, pre = Monotone(activation, inverse, curvature=activation.curvature), (-5.0, -0.4, 0.0, 3.5)
    for u in pre:
        for state in z:
            if general is None:
                expected, _ = quad(lambda t, s=state: np.sin(t) - s, np.arcsin(state), u)
            else:
                expected = energy(general, u, state)
            assert energy(activation, u, state) == pytest.approx(expected, abs=1e-9)


def test_monotone_entropy_is_the_integral_of_the_inverse() -> None:
    z = torch.tensor([[-2.0, 0.0, 1.3]], dtype=torch.float64)
    torch.testing.assert_close(Monotone().entropy(z), z.cosh() - 1, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        Monotone(torch.tanh, torch.atanh).entropy(z / 3), Tanh().entropy(z / 3), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("activation", EVERY, ids=label)
def test_float32_stays_finite_for_large_pre_activations(activation: Activation) -> None:
    p = activation.preactivation_width(6)
    sizes = torch.tensor([1e-4, 1.0, 30.0, 100.0, 1e3, 1e4])
    u = torch.cat([(size * rows(20, p, seed=2).float()).clamp(-1e4, 1e4) for size in sizes])
    z = activation(u)
    assert z.dtype == torch.float32
    assert bool(z.isfinite().all())
    assert bool(activation.value(u, z).isfinite().all())
    assert bool(activation.grad(u, z).isfinite().all())
    for step in (1e-2, 1.0, 1e2):
        moved = activation.prox(z.roll(1, 0), u, step)
        assert moved.dtype == torch.float32
        assert bool(moved.isfinite().all())
        assert bool(activation.value(u, moved).isfinite().all())


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: ReLU("l3"), "norm must be 'l2' or 'l1', got 'l3'"),
        (lambda: LeakyReLU(0.0), r"alpha must be positive, got 0.0: for slope 0 use ReLU"),
        (lambda: LeakyReLU(float("nan")), "alpha must be positive"),
        (lambda: FenchelLeakyReLU(-1.0), "alpha must be positive, got -1.0: for slope 0 use FenchelReLU"),
        (lambda: Sign(-0.1), "eps must be non-negative, got -0.1"),
        (lambda: MaxPool(0), "groups must be a positive size"),
        (lambda: MaxPool(()), "groups must be a positive size"),
        (lambda: MaxPool((2, 0)), "groups must be a positive size"),
        (lambda: MaxPool(2, form="mean"), "form must be 'projection' or 'paper', got 'mean'"),
        (lambda: MaxPool(2, form="paper", c=1.0), "c must lie strictly between 0 and 1, got 1.0"),
        (lambda: MaxPool(3)(torch.zeros(1, 4)), "do not divide 4 pre-activations"),
        (lambda: MaxPool((2, 3)).preactivation_width(3), "gives 2 states, not 3"),
        (lambda: Monotone(torch.sin, torch.arcsin), "phi must be increasing"),
        (lambda: Monotone(lambda u: 2 * u, lambda z: z / 2), "pass a larger one"),
        (lambda: Monotone(torch.tanh, torch.sinh), "inverse must be the inverse of phi"),
    ],
)
def test_constructors_refuse_with_a_sentence(build: Callable, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


def test_asking_for_what_is_not_declared_is_refused_with_a_sentence() -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(TypeError, match="Sigmoid does not bound u by z"):
        Sigmoid().cap(one)
    with pytest.raises(TypeError, match="Sigmoid is not quadratic in z on a box: use prox"):
        Sigmoid().box(one)


def test_only_the_paper_form_of_pooling_refuses_to_train() -> None:
    refusing = [label(a) for a in EVERY if a.why_not_trainable]
    assert refusing == [repr(MaxPool(3, form="paper"))]
    assert "use form='projection'" in MaxPool(3, form="paper").why_not_trainable


def test_the_paper_form_of_pooling_has_no_lower_bound() -> None:
    pool, z = MaxPool(2, form="paper"), torch.full((1, 1), -1e6, dtype=torch.float64)
    assert float(pool.value(torch.full((1, 2), -2e6, dtype=torch.float64), z)) == -5e5


def test_a_list_of_groups_is_a_tuple_of_groups() -> None:
    assert MaxPool([2, 3]) == MaxPool((2, 3))  # type: ignore[arg-type]
    assert hash(MaxPool([2, 3])) == hash(MaxPool((2, 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", activations.__all__)
def test_named_finds_every_exported_class(name: str) -> None:
    assert type(named(name)).__name__ == name
    assert type(named(name.lower())).__name__ == name


def test_named_ignores_underscores_and_lists_the_names() -> None:
    assert named("fenchel_leaky_relu") == FenchelLeakyReLU()
    with pytest.raises(ValueError, match=r"unknown activation 'swish': give one of .*relu.*, or an Activation"):
        named("swish")


def test_the_quadrature_of_monotone_is_as_good_as_it_says() -> None:
    u, zero = torch.tensor([[100.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    exact = {
        activations.Monotone(): u * u.arcsinh() - (1 + u * u).sqrt() + 1,
        activations.Monotone(torch.atan, torch.tan): u * u.atan() - (u * u).log1p() / 2,
    }
    for activation, integral in exact.items():
        assert abs(float(activation.value(u, zero) / integral) - 1) < 1.5e-7
