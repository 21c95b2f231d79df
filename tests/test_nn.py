"""Modules with the X-step of the lifted model as the backward of their activations."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import liftednn as lnn
from liftednn.training.batch import x_step

ACTIVATIONS: list[nn.Module] = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.PReLU(),
    nn.PReLU(5),
    nn.ReLU6(),
    nn.Hardtanh(-0.5, 2.0),
    nn.Hardsigmoid(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Softplus(),
    nn.Softmax(-1),
]
ids = [repr(each) for each in ACTIVATIONS]


def chain(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradients(module: nn.Module, x: Tensor, scale: float = 1.0) -> list[Tensor]:
    module.zero_grad()
    (scale * module(x).square().sum()).backward()
    return [cast(Tensor, part.grad).clone() for part in module.parameters()]


def lifted(activation: nn.Module, lam: float) -> nn.Module:
    return lnn.nn.lift(activation.double(), lam)


def step(module: nn.Module, u: Tensor, g: Tensor) -> Tensor:
    """The gradient in u for a gradient g in the output."""
    u = u.clone().requires_grad_()
    (found,) = torch.autograd.grad(module(u * 1), u, g)
    return found


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=ids)
def test_large_lam_is_back_propagation(activation: nn.Module) -> None:
    module, x = chain(copy.deepcopy(activation)), draw(20, 4)
    for lam, tolerance in ((1e6, 1e-5), (math.inf, 0.0)):
        other = lnn.nn.lift(module, lam)
        assert torch.equal(other(x), module(x))
        for found, expected in zip(gradients(other, x), gradients(module, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("activation", ["fenchel_relu", "tanh", "sigmoid", "softplus"])
def test_finite_lam_is_the_x_step_of_the_lifted_network(activation: str) -> None:
    torch.manual_seed(0)
    network = lnn.LiftedNetwork.mlp([4, 6, 5, 2], activation, loss="squared")
    sizes = [(6, 4), (5, 6), (2, 5)]
    weights = [lnn.Affine(torch.randn(p, q).double(), torch.randn(p).double()) for p, q in sizes]
    module, x, y = lnn.nn.lift(lnn.init.to_module(network, weights), 3.0), draw(20, 4), draw(20, 2)
    layers = list(cast(nn.Sequential, module))
    tensors = [x]
    for layer in layers:
        tensors.append(layer(tensors[-1]))
        tensors[-1].retain_grad()
    (tensors[-1] - y).square().sum().backward()
    rms = [(cast(Tensor, tensors[at + 1].grad).norm() / tensors[at].norm()).item() for at in (1, 3)]
    found = x_step(network.with_lam([3.0 * each for each in rms]), weights, x, y)
    for gradient, state, layer in zip(found.u_gradients, found.forward, layers[::2], strict=True):
        torch.testing.assert_close(cast(Any, layer).weight.grad, gradient.T @ state)
        torch.testing.assert_close(cast(Any, layer).bias.grad, gradient.sum(0))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.PReLU(5)], ids=repr)
def test_the_rule_does_not_depend_on_units(activation: nn.Module) -> None:
    """For homogeneous activations: with u in other units, and g in other units, the gradient is scaled as g is."""
    module, u, g = lifted(activation, 2.0), draw(20, 5), draw(2, 20, 5)[1]
    expected = step(module, u, g)
    assert not torch.allclose(expected, step(lifted(activation, math.inf), u, g))
    for of_u, of_g in ((1e3, 1.0), (1.0, 1e-12), (1e-6, 1e6)):
        torch.testing.assert_close(step(module, of_u * u, of_g * g), of_g * expected)


def test_a_smooth_activation_does_not_depend_on_the_units_of_the_loss() -> None:
    module, x = lnn.nn.lift(chain(nn.Softplus()), 2.0), draw(20, 4)
    for one, scaled in zip(gradients(module, x), gradients(module, x, 1e-9), strict=True):
        torch.testing.assert_close(scaled, 1e-9 * one, rtol=1e-7, atol=0)


def test_the_slopes_of_a_prelu_have_the_gradient_of_the_divergence() -> None:
    """L dD(u, z) / d slope at the state of the X-step, by differences."""
    u, g = draw(20, 5), draw(2, 20, 5)[1]
    module = lnn.nn.lift(nn.PReLU(5).double(), 2.0)
    module(u).backward(g)
    scale = 2.0 * float(g.norm() / u.norm())
    z = lnn.activations.FenchelLeakyReLU(0.25).argmin(u, g / scale)

    def energy(slopes: Tensor) -> float:
        return scale * float(lnn.activations.FenchelLeakyReLU(slopes).value(u, z).sum())

    sides = torch.full((5,), 0.25).double() + 1e-5 * torch.eye(5).double(), 2e-5
    expected = [(energy(up) - energy(0.5 - up)) / sides[1] for up in sides[0]]
    torch.testing.assert_close(module.weight.grad, torch.tensor(expected).double(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("activation", [nn.PReLU(3), nn.Softmax(1), nn.Tanh()], ids=repr)
def test_units_of_images_are_in_dimension_1(activation: nn.Module) -> None:
    module, u, g = lifted(activation, 2.0), draw(4, 3, 5, 6), draw(2, 4, 3, 5, 6)[1]
    flat = step(module, u.movedim(1, -1).reshape(-1, 3), g.movedim(1, -1).reshape(-1, 3))
    torch.testing.assert_close(step(module, u, g), flat.view(4, 5, 6, 3).movedim(-1, 1))


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.PReLU(), nn.Sigmoid()], ids=repr)
def test_zeros_have_the_gradient_of_back_propagation(activation: nn.Module) -> None:
    """Where all u are 0, L is infinite, and where g = 0, it is 0."""
    plain, module, zero, g = activation.double(), lifted(activation, 2.0), torch.zeros(3, 2).double(), draw(3, 2)
    assert torch.equal(step(module, zero, g), step(plain, zero, g))
    assert torch.equal(step(module, g, zero), zero)
    assert step(module, g, torch.full_like(g, torch.inf)).isinf().any()  # so that a GradScaler sees it


def test_parameters_keep_their_names_and_the_module_is_unchanged() -> None:
    module = chain(nn.PReLU(5))
    other = lnn.nn.lift(module, 10.0)
    assert type(module[1]) is nn.PReLU
    assert other is not module
    assert list(other.state_dict()) == list(module.state_dict())
    with torch.no_grad():
        other.get_parameter("0.weight").zero_()
    other.load_state_dict(module.state_dict())
    module.load_state_dict(other.state_dict())
    assert bool(module.get_parameter("0.weight").detach().any())


def test_it_is_copied_and_pickled() -> None:
    module, x = lnn.nn.lift(chain(nn.ReLU()), 2.0), draw(20, 4)
    expected = gradients(module, x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert str(other) == str(module)
        assert "LiftedReLU(lam=2)" in str(other)
        assert all(map(torch.equal, gradients(other, x), expected))


def test_lifting_again_changes_lam() -> None:
    module, x = chain(nn.ReLU(inplace=True)), draw(20, 4)
    twice = lnn.nn.lift(lnn.nn.lift(module, 2.0), 5.0)
    assert all(map(torch.equal, gradients(twice, x), gradients(lnn.nn.lift(module, 5.0), x)))
    assert str(lnn.nn.lift(twice)) == str(module)


class Twice(nn.Module):
    """One activation used twice, and held in a list."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.act = nn.ReLU()
        self.acts = [self.act, self.act if shared else nn.ReLU()]
        self.other = self.acts[1]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.acts[1](self.first(self.acts[0](self.first(x)))))
        return found


def test_an_activation_may_be_used_twice() -> None:
    torch.manual_seed(0)
    one, two, x = Twice(True).double(), Twice(False).double(), draw(20, 4)
    two.load_state_dict(one.state_dict())
    found, expected = gradients(lnn.nn.lift(one, 2.0), x), gradients(lnn.nn.lift(two, 2.0), x)
    assert all(map(torch.equal, found, expected))
    assert not any(map(torch.equal, found[:2], gradients(one, x)[:2]))


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.Softplus(), nn.PReLU()], ids=repr)
def test_it_works_under_autocast(activation: nn.Module) -> None:
    module, x = lnn.nn.lift(chain(copy.deepcopy(activation)).float(), 10.0), draw(20, 4).float()
    expected = gradients(module, x)
    with torch.autocast("cpu", torch.bfloat16):
        low = gradients(module, x)
    for found, exact in zip(low, expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0, atol=0.1 * float(exact.abs().max()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_it_can_be_compiled() -> None:
    module, x = lnn.nn.lift(chain(nn.ReLU(inplace=True)), 2.0), draw(20, 4)
    expected = gradients(module, x)
    compiled = cast(nn.Module, torch.compile(module, backend="eager"))
    for found, exact in zip(gradients(compiled, x), expected, strict=True):
        torch.testing.assert_close(found, exact)


def test_a_second_derivative_is_refused() -> None:
    u = draw(3, 2).requires_grad_()
    (first,) = torch.autograd.grad(lifted(nn.Tanh(), 2.0)(u).square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_lifted_module_is_read_after_lifting_it_with_the_default() -> None:
    module = chain(nn.ReLU())
    with pytest.raises(ValueError, match=r"module\.1: .*a lifted activation cannot be traced: lnn\.nn\.lift\(module\)"):
        lnn.init.from_module(lnn.nn.lift(module, 2.0))
    assert lnn.init.from_module(lnn.nn.lift(lnn.nn.lift(module, 2.0)))[0] == lnn.init.from_module(module)[0]


def test_nothing_is_stored_without_gradients() -> None:
    module, u = lnn.nn.lift(nn.ReLU(inplace=True), 2.0), draw(3, 2)
    with torch.no_grad():
        assert module(u) is u
    assert bool((u >= 0).all())


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x)


@pytest.mark.parametrize(
    ("module", "lam", "words"),
    [
        (Functional(), 1.0, "Functional has no activation layer that can be lifted: write activations as layers"),
        (nn.Linear(2, 2), math.inf, "has no activation layer"),
        (nn.ReLU, 1.0, "must be a torch.nn.Module, got type"),
        (nn.ReLU(), 0.0, "lam must be a number above 0"),
        (nn.ReLU(), math.nan, "lam must be a number above 0"),
        (nn.Sequential(nn.Softplus(beta=2)), 1.0, r"module\.0: Softplus.* beta=1"),
        (nn.Sequential(nn.LeakyReLU(-1.0)), 1.0, r"module\.0: LeakyReLU.* below 0"),
        (nn.Softmax(), 1.0, "module: Softmax.* depends on its input"),
        (nn.PReLU(init=0.0), 1.0, "module: PReLU.* slopes that are not above 0"),
    ],
)
def test_what_cannot_be_lifted_is_refused(module: Any, lam: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lnn.nn.lift(module, lam)


def test_a_slope_that_falls_below_0_is_named() -> None:
    module = lnn.nn.lift(nn.PReLU(), 2.0)
    with torch.no_grad():
        module.weight.fill_(-0.5)
    with pytest.raises(ValueError, match=r"a slope of LiftedPReLU.* is now -0\.5, and only slopes above 0"):
        module(draw(3, 2).float()).sum().backward()


def test_training_works() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    y = (x[:, 0] * x[:, 1] > 0).float()[:, None]
    plain = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    module = lnn.nn.lift(plain, 300.0)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(module(x), y).backward()
        optimizer.step()
    assert float(((module(x) > 0) == (y > 0)).float().mean()) > 0.95


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus(), nn.Softmax(1), nn.Tanh(), nn.ReLU6()])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_gradients_in_float32_are_exact_for_small_preactivations(layer: nn.Module, size: float) -> None:
    u, g = size * draw(20, 5), draw(20, 5).flip(0)
    found = []
    for dtype in (torch.float32, torch.float64):
        given = u.to(dtype).requires_grad_()
        lnn.nn.lift(nn.Sequential(layer), lam=100.0)(given).backward(g.to(dtype))
        assert given.grad is not None
        found.append(given.grad.double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lam", [0.1, 1.0, 100.0])
def test_a_softmax_counts_neither_shifts_nor_entries_without_probability(lam: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, g = torch.randn(2, 4, 5, 5, generator=generator)
    mask = torch.ones(5, 5).triu(1).bool()

    def gradient(layer: nn.Module, fill: float, shift: float = 0.0) -> Tensor:
        u = scores.clone().requires_grad_()
        layer((u + shift).masked_fill(mask, fill)).backward(g)
        assert u.grad is not None
        return u.grad

    layer, plain = lnn.nn.lift(nn.Softmax(-1), lam), gradient(nn.Softmax(-1), -torch.inf)
    found = gradient(layer, -torch.inf)
    for fill, shift in ((-1e4, 0.0), (-1e9, 0.0), (-torch.inf, 1000.0)):
        torch.testing.assert_close(gradient(layer, fill, shift), found, rtol=1e-3, atol=1e-4)
    assert (found - plain).norm() > 1e-3 * plain.norm()  # it is not back-propagation
    torch.testing.assert_close(gradient(lnn.nn.lift(nn.Softmax(-1), 1e5), -torch.inf), plain, rtol=1e-3, atol=1e-4)
