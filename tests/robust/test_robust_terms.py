"""The robust terms against brute force: never below what noise or an adversary does, and equal where that is claimed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from liftednn.activations import FenchelReLU, ReLU, Sigmoid, Tanh
from liftednn.base import Divergence, Uncertainty
from liftednn.losses import Matching, SoftmaxCrossEntropy, SquaredError
from liftednn.network import Layer
from liftednn.operators import Dense
from liftednn.penalties import L1, L2
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.matrix import LEAST
from liftednn.robust.naming import parse, uncertainty_of
from liftednn.robust.worst_case import WorstCase, WorstCaseSoftmax

DIVERGENCES: list[Divergence] = [
    SquaredError(),
    ReLU(),
    FenchelReLU(),
    Sigmoid(),
    Tanh(),
    SoftmaxCrossEntropy(),
    Matching(),
]
KINDS: list[Uncertainty] = [Noise(0.3), FrobeniusBall(0.4), BoxBall(0.2)]


def problem(divergence: Divergence, outputs: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((20, 5), (outputs, 5)))
    b = torch.randn(outputs, generator=generator, dtype=torch.float64)
    if isinstance(divergence, SoftmaxCrossEntropy):
        return x, w, b, torch.eye(outputs, dtype=torch.float64)[torch.arange(20) % outputs]
    return x, w, b, divergence(torch.randn(20, outputs, generator=generator, dtype=torch.float64))


def term(kind: Uncertainty, divergence: Divergence, x: Tensor, w: Tensor, b: Tensor, z: Tensor) -> float:
    mean = float(kind.robust_divergence(divergence, w).value(x @ w.T + b, z).mean())
    return kind.term(mean, divergence.curvature, w)


def energy(divergence: Divergence, x: Tensor, w: Tensor, b: Tensor, z: Tensor) -> float:
    return float(divergence.value(x @ w.T + b, z).mean())


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("sigma", [0.3, torch.linspace(0.1, 0.5, 5), "matrix"], ids=["number", "vector", "matrix"])
@pytest.mark.thin(2)
def test_noise_is_the_expectation_or_above_it(divergence: Divergence, sigma: float | Tensor | str) -> None:
    x, w, b, z = problem(divergence)
    root = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 4
    kind = Noise(root @ root.T if isinstance(sigma, str) else sigma)
    half = root if isinstance(sigma, str) else torch.diag(torch.as_tensor(sigma).double().expand(5))
    draws = torch.randn(4000, 20, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) @ half.T
    sampled = divergence.value((x + draws) @ w.T + b, z.expand(4000, *z.shape)).mean(1)
    error = 4 * float(sampled.std()) / math.sqrt(len(sampled))
    bound = term(kind, divergence, x, w, b, z)
    assert float(sampled.mean()) <= bound + error
    if divergence.quadratic:
        assert abs(float(sampled.mean()) - bound) <= error
    assert bound > energy(divergence, x, w, b, z)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda d: type(d).__name__)
def test_no_matrix_in_the_ball_does_worse_than_the_term(divergence: Divergence) -> None:
    kind = FrobeniusBall(0.4)
    for outputs in (1, 3):
        if outputs == 1 and isinstance(divergence, SoftmaxCrossEntropy):
            continue
        x, w, b, z = problem(divergence, outputs)
        bound = term(kind, divergence, x, w, b, z)
        assert ascent(divergence, x, w, b, z, 0.4 * math.sqrt(20)) <= bound * (1 + 1e-9)


def ascent(divergence: Divergence, x: Tensor, w: Tensor, b: Tensor, z: Tensor, radius: float) -> float:
    """The largest mean energy that projected gradient ascent over |delta|_F <= radius finds, from a few starts."""
    found = 0.0
    for seed in range(3):
        delta = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        for _ in range(60):
            slope = divergence.grad((x + delta) @ w.T + b, z) @ w
            delta = delta + 10 * radius * slope / slope.norm().clamp(min=1e-12)
            delta = delta * min(1.0, radius / float(delta.norm()))
        found = max(found, energy(divergence, x + delta, w, b, z))
    return found


def test_one_output_in_a_ball_is_exact() -> None:
    x, w, b, z = problem(SquaredError(), 1)
    residual = x @ w.T + b - z
    worst = 0.4 * math.sqrt(20) * (residual / residual.norm()) @ (w / w.norm())
    assert worst.norm() == pytest.approx(0.4 * math.sqrt(20))
    attained = energy(SquaredError(), x + worst, w, b, z)
    assert term(FrobeniusBall(0.4), SquaredError(), x, w, b, z) == pytest.approx(attained, rel=1e-6)
    root = math.sqrt(energy(SquaredError(), x, w, b, z)) + 0.4 * float(w.norm())
    assert attained == pytest.approx(root**2, rel=1e-12)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_the_ball_is_at_most_a_nineteenth_above_its_square(size: float) -> None:
    x, w, b, z = problem(SquaredError(), 1)
    square = (math.sqrt(energy(SquaredError(), x, w, b, z)) + size * float(w.norm())) ** 2
    found = term(FrobeniusBall(size), SquaredError(), x, w, b, z)
    assert square * (1 - 1e-12) <= found <= square / (1 - LEAST)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("eps", [0.2, torch.linspace(0, 0.5, 5)], ids=["number", "vector"])
def test_the_box_is_the_worst_corner_of_each_output(divergence: Divergence, eps: float | Tensor) -> None:
    x, w, b, z = problem(divergence)
    sizes, bound = torch.as_tensor(eps, dtype=torch.float64).expand(5), term(BoxBall(eps), divergence, x, w, b, z)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 5) * sizes
    moved = (x[:, None] + corners) @ w.T + b  # (n, corners, outputs)
    together = divergence.value(moved, z[:, None].expand(-1, len(corners), -1)).amax(1).mean()
    assert float(together) <= bound * (1 + 1e-9)
    if not isinstance(divergence, SoftmaxCrossEntropy):
        each = divergence.value(moved[..., None], z[:, None, :, None].expand(-1, len(corners), -1, 1))
        assert bound == pytest.approx(float(each.amax(1).sum(1).mean()), rel=1e-9)


def test_two_opposite_scores_in_a_box_are_exact() -> None:
    x, w, _, z = problem(SoftmaxCrossEntropy(), 2)
    w = torch.stack([w[0], -w[0]])
    corners = torch.cartesian_prod(*[torch.tensor([-0.2, 0.2], dtype=torch.float64)] * 5)
    values = SoftmaxCrossEntropy().value((x[:, None] + corners) @ w.T, z[:, None].expand(-1, len(corners), -1))
    found = term(BoxBall(0.2), SoftmaxCrossEntropy(), x, w, torch.zeros(2, dtype=torch.float64), z)
    assert found == pytest.approx(float(values.amax(1).mean()), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda d: type(d).__name__)
def test_other_coordinates_are_the_same_term(kind: Uncertainty, divergence: Divergence) -> None:
    x, w, b, z = problem(divergence)
    basis = torch.randn(5, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    factors = torch.linspace(0.5, 2, 5, dtype=torch.float64)
    expected = term(kind, divergence, x, w, b, z)
    inner = torch.linalg.solve(basis, w.T).T
    assert term(kind.through(basis), divergence, x @ basis, inner, b, z) == pytest.approx(expected)
    assert term(kind.columns(factors), divergence, x * factors, w / factors, b, z) == pytest.approx(expected)
    twice = term(kind.scaled(2.0), divergence, x, w, b, z)
    assert twice == pytest.approx(term(type(kind)(2 * size_of(kind)), divergence, x, w, b, z))  # type: ignore[call-arg]


def size_of(kind: Uncertainty) -> float:
    size = kind.sigma if isinstance(kind, Noise) else kind.eps  # type: ignore[attr-defined]
    assert isinstance(size, float)
    return size


def test_worst_has_its_prox_and_its_argmin() -> None:
    generator = torch.Generator().manual_seed(5)
    u, v = (torch.randn(30, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    for divergence in (ReLU(), FenchelReLU(), Sigmoid()):
        worst = WorstCase(divergence, torch.tensor([0.1, 0.4, 1.0], dtype=torch.float64))
        z = divergence(v)
        found = worst.prox(v, u, 0.7)
        for candidate in (divergence(grid), grid):  # a grid of the domain
            inside = candidate[divergence.value(torch.zeros_like(candidate)[:, None], candidate[:, None]).isfinite()]
            for point in inside[::40]:
                rival = torch.full_like(found, float(point))
                below = worst.value(u, found) + (found - v).square().sum(1) / 1.4
                assert bool((below <= worst.value(u, rival) + (rival - v).square().sum(1) / 1.4 + 1e-9).all())
        moved = worst.prox_u(v, z, 0.7)
        for point in grid[::40]:
            rival = torch.full_like(moved, float(point))
            below = worst.value(moved, z) + (moved - v).square().sum(1) / 1.4
            assert bool((below <= worst.value(rival, z) + (rival - v).square().sum(1) / 1.4 + 1e-9).all())
        least = worst.value(u, worst(u))
        assert bool((least <= worst.value(u, z) + 1e-9).all())


@pytest.mark.parametrize("words", ["noise", "noise:", "noise:-1", "ball:nan", "cube:1", "box:inf", "0.3"])
def test_words_that_are_no_uncertainty(words: str) -> None:
    with pytest.raises(ValueError, match="KIND:SIZE"):
        parse(words)


def test_words_and_numbers() -> None:
    assert uncertainty_of(None) is None
    assert uncertainty_of(0) is None
    assert repr(uncertainty_of(0.3)) == repr(Noise(0.3)) == repr(parse("noise:0.3"))
    assert repr(parse("ball:2")) == repr(FrobeniusBall(2.0))
    assert repr(parse("box:.5")) == repr(BoxBall(0.5))
    with pytest.raises(ValueError, match="robust must be None"):
        uncertainty_of([1])


def test_refusals() -> None:
    for build, sentence in (
        (lambda: Noise(-1.0), "sigma must not be negative"),
        (lambda: Noise(0.0), "leave it out"),
        (lambda: Noise(torch.tensor([[1.0, 0.0], [0.5, 1.0]])), "symmetric"),
        (lambda: Noise(-torch.eye(2)), "negative eigenvalues"),
        (lambda: FrobeniusBall(0), "eps must be a positive number"),
        (lambda: BoxBall(torch.eye(2)), "eps must be"),
        (lambda: Layer(Dense(3, 2), SquaredError(), uncertainty=Noise(torch.ones(2))), "2 inputs, and the layer has 3"),
        (lambda: Layer(Dense(3, 2), SquaredError(), L1(), uncertainty=BoxBall()), "squared norm"),
        (lambda: Layer(Dense(3, 2), ReLU(norm="l1"), L2(), uncertainty=Noise()), "no finite curvature"),
        (lambda: Layer(Dense(3, 2), ReLU(norm="l1"), L2(), uncertainty=FrobeniusBall()), "no finite curvature"),
    ):
        with pytest.raises(ValueError, match=sentence):
            build()
    with pytest.raises(ValueError, match="labels only"):
        WorstCaseSoftmax().value(torch.zeros(2, 3), torch.full((2, 3), 1 / 3))
