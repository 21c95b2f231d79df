"""The optimiser with modules, criteria and loops that are rare but work with torch's own optimisers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from liftednn.optim import Lifted

CRITERION = nn.CrossEntropyLoss()


def net(*widths: int) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for p, q in pairwise(widths):
        layers += [nn.Linear(p, q), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch(seed: int = 0, rows: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def one_step(module: nn.Module, criterion: Any = CRITERION, **more: Any) -> Lifted:
    optimiser = Lifted(module, criterion, **more)
    x, y = batch()
    CRITERION(module(x), y).backward()
    optimiser.step()
    return optimiser


def test_an_unknown_cross_entropy_at_a_constant_rate_does_not_rise() -> None:
    data = load_digits()
    x, y = torch.tensor(data.data[:1400]).float() / 16, torch.tensor(data.target[:1400])
    module = net(64, 100, 10)
    optimiser, losses = Lifted(module), []
    for _ in range(12):
        for rows in torch.randperm(1400).split(50):
            optimiser.zero_grad()
            CRITERION(module(x[rows]), y[rows]).backward()
            optimiser.step()
        losses.append(CRITERION(module(x), y).item())
    assert losses[-1] < 1.5 * min(losses) < 0.02


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1000.0, 0.0), (1.0, 30.0)])
@pytest.mark.slow
def test_the_curvature_of_an_unknown_squared_error_is_found_in_all_units(scale: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 8, generator=generator)
    y = scale * (shift + x[:, :1] * x[:, 1:2] + x[:, 2:3])
    module = net(8, 64, 1)
    optimiser = Lifted(module)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 1200)
    for _ in range(60):
        for rows in torch.randperm(1000, generator=generator).split(50):
            optimiser.zero_grad()
            nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
            optimiser.step()
            schedule.step()
    assert 1 - (module(x) - y).square().mean() / y.var() > 0.98
    assert optimiser.param_groups[0]["largest"][2] == pytest.approx(2 / 50, rel=2)


@pytest.mark.parametrize("grown", [lambda g: g[:1].expand_as(g), lambda g: g.flip(0).t().contiguous().t().flip(0)])
def test_gradients_may_lie_in_memory_in_any_way(grown: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    moved = []
    for change in (grown, lambda g: grown(g).contiguous()):
        module = nn.Embedding(6, 4)
        with torch.no_grad():
            module.weight.fill_(0.0)
        optimiser = Lifted(nn.Sequential(module, nn.Linear(4, 3)), None)
        optimiser.param_groups[0]["steps"] = 1  # no refresh
        module.weight.grad = change(torch.arange(24.0).reshape(6, 4) - 12)
        optimiser.step()
        moved.append(module.weight.detach().clone())
    torch.testing.assert_close(*moved)
    assert moved[0].abs().max() < 0.01


@pytest.mark.parametrize("weight", [20.0, 50.0])
@pytest.mark.thin(2)
def test_weights_of_rare_bits_shorten_steps(weight: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    y = ((x[:, 0] + x[:, 1] * x[:, 2]) > 2.3).float()[:, None]
    criterion, losses = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weight)), []
    module = net(10, 64, 64, 1)
    optimiser = Lifted(module, criterion)
    for step in range(240):
        rows = torch.randint(0, 2000, (100,))
        optimiser.zero_grad()
        criterion(module(x[rows]), y[rows]).backward()
        optimiser.step()
        if step % 20 == 19:
            losses.append(criterion(module(x), y).item())
    assert losses[-1] < losses[0] / 2
    assert max(losses) < 2 * losses[0]


class Derivative(nn.Module):
    """A module that differentiates by its input, as one of a differential equation does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor) -> Tensor:
        u = self.inner(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return slope - u  # type: ignore[no-any-return]


def test_a_module_may_differentiate_by_its_input() -> None:
    torch.manual_seed(0)
    module, criterion, losses = Derivative(), nn.MSELoss(), []
    optimiser = Lifted(module, criterion)
    t = torch.linspace(0, 1, 32)[:, None].requires_grad_()
    for _ in range(30):
        loss = criterion(module(t), torch.zeros(32, 1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


class Fourier(nn.Module):
    """Complex parameters, of its own and of a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(5, dtype=torch.cfloat))
        self.mixed = nn.Linear(5, 5, dtype=torch.cfloat)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.fft.irfft(self.mixed(torch.fft.rfft(x) * self.factor), n=8))  # type: ignore[no-any-return]


def test_complex_parameters_are_moved_by_adamw() -> None:
    torch.manual_seed(0)
    module = Fourier()
    before = module.mixed.weight.detach().clone()
    one_step(module)
    assert bool((module.mixed.weight != before).all())
    assert bool((module.factor != 1).all())


def test_a_group_may_be_empty() -> None:
    module, before = net(8, 16, 3), net(8, 16, 3)
    one_step(module, params=[{"params": [], "weight_decay": 0.0}, {"params": list(module.parameters())}])
    assert all(not torch.equal(a, b) for a, b in zip(module.parameters(), before.parameters(), strict=True))


def test_a_copy_of_the_module_can_be_compiled_whole() -> None:
    module = net(8, 16, 3)
    optimiser = Lifted(module, CRITERION)
    twin = copy.deepcopy(module)
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(batch()[0]), twin(batch()[0]))
    assert optimiser._call is None


@pytest.mark.parametrize("criterion", [CRITERION, None])
def test_gradients_of_single_rows_between_backward_and_step_do_no_harm(criterion: Any) -> None:
    (x, y), moved = batch(), []
    for between in (False, True):
        module = net(8, 16, 3)
        optimiser = Lifted(module, criterion)
        CRITERION(module(x), y).backward()
        if between:
            of_row = grad(lambda p, a, b, m=module: CRITERION(functional_call(m, p, (a[None],)), b[None]))
            vmap(of_row, in_dims=(None, 0, 0))(dict(module.named_parameters()), x, y)
        optimiser.step()
        moved.append([p.detach().clone() for p in module.parameters()])
    torch.testing.assert_close(*moved, rtol=0, atol=0)


def test_a_step_under_autocast_is_the_same() -> None:
    (x, y), moved = batch(), []
    for inside in (False, True):
        module = net(8, 16, 3)
        optimiser = Lifted(module, CRITERION)
        with torch.autocast("cpu", torch.bfloat16):
            loss = CRITERION(module(x), y)
            loss.backward()
            if inside:
                optimiser.step()
        if not inside:
            optimiser.step()
        moved.append([p.detach().clone() for p in module.parameters()])
    torch.testing.assert_close(*moved, rtol=0, atol=0)


class Named(nn.Linear):
    """Its argument has a name of its own, and it may return more than one tensor."""

    pair = False

    def forward(self, rows: Tensor) -> Any:  # type: ignore[override]
        found = super().forward(rows)
        return (found, self.bias) if self.pair else found


class Calls(nn.Module):
    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.first, self.last = Named(8, 16), nn.Linear(16, 3)
        self.first.pair = pair

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(rows=x)
        return self.last((found[0] if self.first.pair else found).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("pair", [False, True])
def test_kinds_of_linear_with_other_arguments_and_results(pair: bool) -> None:
    module = Calls(pair)
    before = module.first.weight.detach().clone()
    optimiser = one_step(module)
    assert bool((module.first.weight != before).any())
    assert ("exp_avg" in optimiser.state[module.first.weight]) == pair  # AdamW moves what returns several tensors


def test_a_part_that_ceased_to_train_may_keep_gradients_of_zero() -> None:
    module = net(8, 16, 3)
    optimiser = one_step(module)
    first, _, last = module
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    before = first.weight.detach().clone()

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = first(x).relu()
        return last(hidden)  # type: ignore[no-any-return]

    module.forward = forward  # type: ignore[method-assign]
    for number in range(3):
        optimiser.zero_grad(set_to_none=False)
        x, y = batch(number)
        CRITERION(module(x), y).backward()
        optimiser.step()
    assert last.weight.grad is not None
    assert bool(last.weight.grad.any())
    torch.testing.assert_close(first.weight.detach(), before, rtol=0, atol=0.1)


def test_a_module_that_writes_to_its_input_writes_once() -> None:
    module = net(8, 16, 3)
    inner = module.forward
    module.forward = lambda x: inner(x.sub_(1.0))  # type: ignore[method-assign, assignment]
    optimiser = Lifted(module, CRITERION)
    for _ in range(6):
        x, y = batch()
        expected = x - 1
        optimiser.zero_grad()
        CRITERION(module(x), y).backward()
        optimiser.step()
        torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("cut", [1, 3, 11, 16])
@pytest.mark.thin(2)
def test_a_run_that_postponed_a_refresh_continues_from_its_state(cut: int) -> None:
    """Without a criterion, gradients of 0 show no curvature, and the next step measures it."""

    def train(module: nn.Module, optimiser: Lifted, steps: range) -> None:
        for step in steps:
            optimiser.zero_grad()
            x, y = batch(step)
            (CRITERION(module(x), y) * (0.0 if step in (0, 10, 15) else 1.0)).backward()
            optimiser.step()

    module = net(8, 16, 3)
    optimiser = Lifted(module, refresh=15)
    train(module, optimiser, range(cut))
    again, saved = net(8, 16, 3), copy.deepcopy([module.state_dict(), optimiser.state_dict()])
    again.load_state_dict(saved[0])
    second = Lifted(again, refresh=15)
    second.load_state_dict(saved[1])
    train(module, optimiser, range(cut, 20))
    train(again, second, range(cut, 20))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def squared_error(before: Callable[[nn.Module, Lifted, Tensor], None], steps: int = 60) -> float:
    """The loss after some steps without a known criterion; `before` is called with every batch."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 8, generator=generator)
    y, module, loss = x[:, :1] * x[:, 1:2] + x[:, 2:3], net(8, 20, 1), nn.MSELoss()
    optimiser = Lifted(module)
    for number in range(steps):
        rows = torch.arange(number * 50, number * 50 + 50) % 200
        before(module, optimiser, x[rows])
        loss(module(x[rows]), y[rows]).backward()
        optimiser.step()
        optimiser.zero_grad()
    return loss(module(x), y).item()


@pytest.mark.parametrize("discards", ["optimiser", "module"])
def test_gradients_that_are_discarded_do_not_count(discards: str) -> None:
    def discarded(module: nn.Module, optimiser: Lifted, x: Tensor) -> None:
        for _ in range(3):
            module(x).square().mean().backward()
            (optimiser if discards == "optimiser" else module).zero_grad()

    assert squared_error(discarded) == squared_error(lambda *_: None)


def test_gradients_in_the_inputs_are_not_those_of_the_loss() -> None:
    """A penalty on them, say."""
    module, other = net(8, 5, 1), net(8, 5, 1)
    for each, penalised in ((module, False), (other, True)):
        optimiser = Lifted(each)
        for number in range(8):
            optimiser.zero_grad()
            x = batch(number)[0].requires_grad_()
            out = each(x)
            if penalised:
                torch.autograd.grad(out.sum(), x, create_graph=True)
            (out - x[:, :1].detach()).square().mean().backward()
            optimiser.step()
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_gradients_may_be_computed_by_autograd_grad() -> None:
    module, other = net(8, 5, 1), net(8, 5, 1)
    first, second = Lifted(module), Lifted(other)
    for number in range(8):
        x = batch(number)[0]
        first.zero_grad()
        module(x).square().mean().backward()
        first.step()
        gradients = torch.autograd.grad(other(x).square().mean(), list(other.parameters()))
        for p, gradient in zip(other.parameters(), gradients, strict=True):
            p.grad = gradient
        second.step()
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("length", [None, 0])
def test_a_compiled_module_may_have_no_length_or_none_of_its_own(length: int | None) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(8, 5, 3)

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

    if length is not None:
        Whole.__len__ = lambda self: length  # type: ignore[attr-defined]
    assert one_step(torch.compile(Whole(), backend="eager")).steps == 1  # type: ignore[arg-type]


def test_an_export_between_backward_and_step_does_no_harm() -> None:
    module, (x, y) = net(8, 5, 3), batch()
    optimiser = Lifted(module, CRITERION)
    CRITERION(module(x), y).backward()
    torch.export.export(module, (x,))
    optimiser.step()
    one_step(other := net(8, 5, 3))
    assert torch.equal(module[0].weight, other[0].weight)  # type: ignore[arg-type]
