"""`argmin(u, g)` minimises D(u, z) + <g, z> over the domain, in closed form and by the proximal points that are the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.activations.fenchel import Fenchel

CLASSES = [getattr(act, name)() for name in act.__all__]
FENCHEL = [activation for activation in CLASSES if isinstance(activation, Fenchel)]
COVERED = [
    *(activation for activation in CLASSES if activation.curvature < torch.inf or activation in FENCHEL),
    act.Sign(0.0),
    act.Sign(2.0),
    act.FenchelLeakyReLU(3.0),
    act.Monotone(torch.tanh, torch.atanh),
]
N, WIDTH = 50, 6


def preactivations(activation: lnn.Activation, seed: int) -> Tensor:
    return draw(seed, activation.preactivation_width(WIDTH))


def draw(seed: int, width: int = WIDTH) -> Tensor:
    return torch.randn(N, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def modulus(activation: lnn.Activation) -> float:
    """Of strong convexity of D in z: |u - z|^2 has 2, and Phi has the inverse of the Lipschitz constant of its conjugate's gradient."""
    if activation.quadratic:
        return 2.0
    activation = activation.activation if isinstance(activation, act.Pooled) else activation
    assert isinstance(activation, Fenchel)
    return 1 / activation.curvature


def rivals(activation: lnn.Activation, u: Tensor, found: Tensor) -> Iterator[Tensor]:
    """Points of the domain, far and near."""
    for seed in range(20, 30):
        for size in (0.3, 1.0, 5.0):
            yield activation(size * preactivations(activation, seed))
    for seed, size in enumerate((1e-3, 1e-2, 0.1, 1.0) * 3):
        near = activation.prox(found + size * draw(seed + 40), u, 1e-3)
        yield near
        yield torch.lerp(found, near, 0.1)  # inside, since the domain is convex
    yield activation(u)


def test_all_that_mini_batches_can_train_is_covered() -> None:
    names = {type(activation).__name__ for activation in COVERED}
    assert set(act.__all__) - names == {"LeakyReLU", "MaxPool", "MaxPoolReLU"}


@pytest.mark.parametrize("size", [0.1, 4.0])
@pytest.mark.parametrize("activation", COVERED, ids=lambda a: type(a).__name__)
@pytest.mark.thin(3)
def test_the_tilted_state_is_the_minimiser(activation: lnn.Activation, size: float) -> None:
    u, g = 2 * preactivations(activation, 1), size * draw(2)
    found = activation.argmin(u, g)

    def energy(z: Tensor) -> Tensor:
        return activation.value(u, z) + (g * z).sum(-1)

    least, growth = energy(found), modulus(activation) / 2
    assert bool(least.isfinite().all())
    worst = torch.full((), torch.inf, dtype=torch.float64)
    for rival in rivals(activation, u, found):
        # What is strongly convex grows with the square of the distance from its minimiser.
        slack = energy(rival) - least - growth * (rival - found).square().sum(-1)
        worst = torch.minimum(worst, (slack / (1 + least.abs())).min())
    assert worst >= -2e-6


@pytest.mark.parametrize("activation", COVERED, ids=lambda a: type(a).__name__)
def test_without_a_gradient_the_state_obeys_the_recursion(activation: lnn.Activation) -> None:
    z = activation(u := 2 * preactivations(activation, 1))
    torch.testing.assert_close(activation.argmin(u, torch.zeros_like(z)), z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", [a for a in COVERED if a.curvature < torch.inf], ids=lambda a: type(a).__name__)
def test_the_gradient_at_the_tilted_state_is_that_of_the_minimum(activation: lnn.Activation) -> None:
    """d/du min_z D(u, z) + <g, z> = grad_u D at the minimiser: what a layer passes on to its weights."""
    u, g, move, h = 2 * preactivations(activation, 1), draw(2), preactivations(activation, 3), 1e-5

    def least(v: Tensor) -> Tensor:
        z = activation.argmin(v, g)
        return activation.value(v, z) + (g * z).sum(-1)

    slope = (least(u + h * move) - least(u - h * move)) / (2 * h)
    expected = (activation.grad(u, activation.argmin(u, g)) * move).sum(-1)
    torch.testing.assert_close(slope, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("activation", [a for a in FENCHEL if a.curvature <= 1], ids=lambda a: type(a).__name__)
def test_the_default_agrees_with_the_closed_form(activation: lnn.Activation) -> None:
    for size in (0.3, 3.0):
        u, g = 2 * draw(1), size * draw(2)
        torch.testing.assert_close(
            lnn.Activation.argmin(activation, u, g), activation.argmin(u, g), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("activation", [*FENCHEL, act.Sign(2.0)], ids=lambda a: type(a).__name__)
def test_the_default_is_as_near_as_four_proximal_points_must_come(activation: lnn.Activation) -> None:
    """A proximal point of step s is nearer by 1 + s m, m the modulus of strong convexity."""
    u, g = 2 * draw(1), 3 * draw(2)
    exact = activation.argmin(u, g)
    before = (activation(u) - exact).norm(dim=-1)
    after = (lnn.Activation.argmin(activation, u, g) - exact).norm(dim=-1)
    assert bool((after <= before / (1 + 30 * modulus(activation)) ** 4 + 1e-9).all())
    assert before.max() > 0.1


def test_the_default_of_what_has_no_formula() -> None:
    """D = |u - z|^2 on z >= alpha u, and the sum of it over a group on z >= max u: both are clipped parabolas."""
    u, g = 2 * draw(1), 3 * draw(2)
    leaky = act.LeakyReLU(0.2)
    torch.testing.assert_close(leaky.argmin(u, g), torch.maximum(u - g / 2, 0.2 * u), rtol=0, atol=1e-5)
    groups, g_pooled = u.reshape(N, 2, 3), g[:, :2]
    expected = torch.maximum(groups.mean(-1) - g_pooled / 6, groups.amax(-1))
    torch.testing.assert_close(act.MaxPool(3).argmin(u, g_pooled), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", COVERED, ids=lambda a: type(a).__name__)
def test_float32_stays_float32_and_its_inputs_stay(activation: lnn.Activation) -> None:
    u, g = 2 * preactivations(activation, 1).float(), draw(2).float()
    kept = u.clone(), g.clone()
    found = activation.argmin(u, g)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), activation.argmin(u.double(), g.double()), rtol=1e-4, atol=1e-4)
    assert torch.equal(u, kept[0])
    assert torch.equal(g, kept[1])
