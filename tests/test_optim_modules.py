"""The optimiser with modules and losses of users' own: what they return, call, write to and prune."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from liftednn.optim import Lifted


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(p: int = 4, q: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(p, 16), nn.ReLU(), nn.Linear(16, q))


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_a_batch_without_a_gradient_moves_nothing_and_the_next_one_is_measured() -> None:
    module, near = mlp(), draw(32, 4)
    optimiser, before = Lifted(module), weights_of(module)
    far = torch.cat([near, near, near + 100])
    fn.triplet_margin_loss(*module(far).chunk(3)).backward()
    optimiser.step()
    assert torch.equal(weights_of(module), before)
    assert optimiser.due
    optimiser.zero_grad()
    fn.mse_loss(module(near), draw(32, 2, seed=1)).backward()
    optimiser.step()
    assert all("velocity" in held for held in optimiser.state.values())


def test_gradients_that_are_clipped_hard_warn_and_move_little() -> None:
    module, x = mlp(q=1), draw(64, 4)
    optimiser, before = Lifted(module), weights_of(module)
    fn.mse_loss(module(x), 3e4 * (x[:, :1] + 1)).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    with pytest.warns(UserWarning, match="if gradients are clipped, clip them less"):
        optimiser.step()
    assert 0 < float((weights_of(module) - before).norm()) < 0.1


@pytest.mark.parametrize("criterion", [None, nn.MSELoss()])
def test_a_part_may_begin_with_an_operation_in_place(criterion: nn.Module | None) -> None:
    torch.manual_seed(0)
    below, head = nn.Linear(4, 8), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 1))
    optimiser, before = Lifted(head, criterion), weights_of(head)
    fn.mse_loss(head(below(draw(16, 4))), draw(16, 1, seed=1)).backward()
    optimiser.step()
    assert not torch.equal(weights_of(head), before)


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class Named:
    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class WithLoss(nn.Module):
    """Computes its own loss, as models of Hugging Face do."""

    def __init__(self, form: Callable[..., Any], criterion: nn.Module) -> None:
        super().__init__()
        self.inner, self.form, self.criterion = mlp(), form, criterion

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.inner(x)
        return self.form(loss=self.criterion(logits, y), logits=logits)


@pytest.mark.parametrize("form", [dict, Output, Named, lambda loss, logits: (loss, logits)])
@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.CrossEntropyLoss()])
def test_the_criterion_is_for_the_logits_and_not_for_the_loss_among_the_outputs(
    form: Callable[..., Any], criterion: nn.Module
) -> None:
    x, y = draw(64, 4), draw(64, 2, seed=1)
    y = y.argmax(1) if isinstance(criterion, nn.CrossEntropyLoss) else y
    plain, own = mlp(), WithLoss(form, criterion)
    first, second = Lifted(plain, criterion), Lifted(own, criterion)
    for _ in range(4):
        for optimiser in (first, second):
            optimiser.zero_grad()
        criterion(plain(x), y).backward()
        found = own(x, y)
        (found[0] if isinstance(found, tuple) else found["loss"] if isinstance(found, dict) else found.loss).backward()
        first.step()
        second.step()
    torch.testing.assert_close(weights_of(own), weights_of(plain))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_state_is_loaded_in_another_precision(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    modules = [mlp().to(dtype) for dtype in dtypes]
    optimisers = [Lifted(module, nn.MSELoss()) for module in modules]

    def step(module: nn.Module, optimiser: Lifted, dtype: torch.dtype) -> None:
        optimiser.zero_grad()
        fn.mse_loss(module(draw(64, 4).to(dtype)), draw(64, 2, seed=1).to(dtype)).backward()
        optimiser.step()

    for _ in range(3):
        step(modules[0], optimisers[0], dtypes[0])
    modules[1].load_state_dict(modules[0].state_dict())
    optimisers[1].load_state_dict(copy.deepcopy(optimisers[0].state_dict()))
    for _ in range(4):
        for module, optimiser, dtype in zip(modules, optimisers, dtypes, strict=True):
            step(module, optimiser, dtype)
    torch.testing.assert_close(weights_of(modules[0]).float(), weights_of(modules[1]).float(), rtol=1e-4, atol=1e-5)


class Recurrent(nn.Module):
    def __init__(self, change: Callable[[nn.Module], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 1)
        change(self.inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
        lambda layer: prune.random_unstructured(layer, "weight_hh_l0", 0.3),
    ],
)
def test_a_recurrent_weight_that_is_computed_from_others_is_moved_by_adamw(
    change: Callable[[nn.Module], object],
) -> None:
    module = Recurrent(change)
    optimiser, before = Lifted(module, nn.MSELoss()), weights_of(module)
    for _ in range(2):
        optimiser.zero_grad()
        fn.mse_loss(module(draw(16, 6, 4)), draw(16, 1, seed=1)).backward()
        optimiser.step()
    assert bool((weights_of(module) != before).float().mean() > 0.6)
    assert any("exp_avg" in held for held in optimiser.state.values())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("criterion", [None, nn.MSELoss()])
def test_the_module_itself_may_be_under_a_checkpoint(criterion: nn.Module | None, reentrant: bool) -> None:
    modules = mlp(), mlp()
    optimisers = [Lifted(module, criterion) for module in modules]
    x, y = draw(16, 4).requires_grad_(reentrant), draw(16, 2, seed=1)
    for _ in range(3):
        for optimiser in optimisers:
            optimiser.zero_grad()
        fn.mse_loss(modules[0](x), y).backward()
        fn.mse_loss(checkpoint(modules[1], x, use_reentrant=reentrant), y).backward()
        for optimiser in optimisers:
            optimiser.step()
    torch.testing.assert_close(weights_of(modules[1]), weights_of(modules[0]))


def test_two_backward_passes_through_one_output_are_one_of_the_sum() -> None:
    modules = mlp(), mlp()
    optimisers = [Lifted(module) for module in modules]
    x, y = draw(16, 4), draw(16, 2, seed=1)
    for _ in range(4):
        for optimiser in optimisers:
            optimiser.zero_grad()
        found = modules[0](x)
        (fn.mse_loss(found, y) + 1e-6 * found.square().mean()).backward()
        found = modules[1](x)
        fn.mse_loss(found, y).backward(retain_graph=True)
        (1e-6 * found.square().mean()).backward()
        for optimiser in optimisers:
            optimiser.step()
    torch.testing.assert_close(weights_of(modules[1]), weights_of(modules[0]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_part_is_no_obstacle() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), torch.jit.script(nn.BatchNorm1d(8)), nn.Linear(8, 1))
    optimiser, before = Lifted(module, nn.MSELoss()), weights_of(module)
    fn.mse_loss(module(draw(16, 4)), draw(16, 1, seed=1)).backward()
    kept = copy.deepcopy(dict(module.named_buffers()))
    optimiser.step()
    assert all(torch.equal(buffer, kept[name]) for name, buffer in module.named_buffers())
    assert not torch.equal(weights_of(module), before)


class Tree(nn.Module):
    """Calls itself for the two halves of its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.leaf, self.join, self.head = nn.Linear(2, 6), nn.Linear(12, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, root: bool = True) -> Tensor:
        if x.shape[1] == 2:
            return self.leaf(x).relu()  # type: ignore[no-any-return]
        found = self.join(torch.cat([self(half, False) for half in x.chunk(2, 1)], 1)).relu()
        return self.head(found) if root else found  # type: ignore[no-any-return]


@pytest.mark.parametrize("criterion", [None, nn.MSELoss()])
def test_a_module_that_calls_itself_is_measured_as_a_whole(criterion: nn.Module | None) -> None:
    module = Tree()
    optimiser = Lifted(module, criterion)
    fn.mse_loss(module(draw(32, 8)), draw(32, 1, seed=1)).backward()
    optimiser.step()
    for layer in (module.leaf, module.join, module.head):
        assert "velocity" in optimiser.state[layer.weight]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_fails_does_not_hide_the_next_one(error: type[BaseException]) -> None:
    module = mlp()
    optimiser = Lifted(module, nn.MSELoss())

    def fail(module: nn.Module, args: Any) -> None:
        raise error

    handle = module[1].register_forward_pre_hook(fail)
    with pytest.raises(error):
        module(draw(16, 4))
    handle.remove()
    optimiser.zero_grad()
    fn.mse_loss(module(draw(16, 4)), draw(16, 2, seed=1)).backward()
    optimiser.step()
    assert optimiser.steps == 1


class Tied(nn.Linear):
    """Multiplies with the transpose of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.linear(x, self.weight.T)


def test_a_linear_that_multiplies_with_its_transpose_is_moved_by_adamw() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 3), Tied(6, 3, bias=False))
    optimiser = Lifted(module, nn.MSELoss())
    fn.mse_loss(module(draw(16, 6)), draw(16, 6, seed=1)).backward()
    optimiser.step()
    first, *_, tied = module.parameters()
    assert "velocity" in optimiser.state[first]
    assert "exp_avg" in optimiser.state[tied]


class Dropped(nn.Module):
    """Leaves a layer out at random, by generators that are not torch's."""

    def __init__(self, drawn: Callable[[], float]) -> None:
        super().__init__()
        self.inner, self.drawn, self.seen = mlp(), drawn, list[float]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.drawn())
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("drawn", [random.random, np.random.random])
def test_a_refresh_sees_the_same_random_numbers_and_draws_none(drawn: Callable[[], float]) -> None:
    module = Dropped(drawn)
    optimiser = Lifted(module, nn.MSELoss())
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    fn.mse_loss(module(draw(16, 4)), draw(16, 2, seed=1)).backward()
    optimiser.step()
    following = drawn()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert module.seen == [drawn()] * 2
    assert following == drawn()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("sizes", [(4, 0), (0, 1)])
def test_layers_without_weights_are_left_out(sizes: tuple[int, int]) -> None:
    module = nn.ModuleDict({"used": mlp(), "empty": nn.Linear(*sizes)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["used"](x) + self.parts["empty"](x[:, : sizes[0]]).sum()  # type: ignore[no-any-return]

    both = Both()
    optimiser, before = Lifted(both, nn.MSELoss()), weights_of(both)
    fn.mse_loss(both(draw(16, 4)), draw(16, 2, seed=1)).backward()
    optimiser.step()
    assert not torch.equal(weights_of(both), before)


class OfTokens(nn.Module):
    """Logits (n, t, classes), as models of text have them, with the loss before them."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.form = mlp(4, 5), form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.inner(x)
        return self.form(loss=fn.cross_entropy(logits.flatten(0, 1), y.flatten()), logits=logits)


@pytest.mark.parametrize("form", [Output, Named, lambda loss, logits: (loss, logits)])
def test_classes_are_last_in_the_logits_of_a_module_with_its_own_loss(form: Callable[..., Any]) -> None:
    x, y = draw(6, 7, 4), torch.randint(0, 5, (6, 7))
    terms = []
    for each in (dict, form):
        module = OfTokens(each)
        optimiser = Lifted(module, nn.CrossEntropyLoss())
        found = module(x, y)
        (found["loss"] if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found.loss).backward()
        optimiser.step()
        terms.append(optimiser.param_groups[0]["terms"])
    assert terms[0] == terms[1] == 7.0


def test_a_forward_may_read_the_gradient_of_its_argument() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(q=1)

        def forward(self, x: Tensor) -> Tensor:
            found = self.inner(x)
            found.sum().backward(retain_graph=True)
            assert x.grad is not None
            return found + 0 * x.grad.mean(1, keepdim=True)  # type: ignore[no-any-return]

    module, x = Reader(), draw(16, 4).requires_grad_()
    optimiser, before = Lifted(module, nn.MSELoss()), weights_of(module)
    fn.mse_loss(module(x), draw(16, 1, seed=1)).backward()
    optimiser.step()
    assert not torch.equal(weights_of(module), before)


def test_wrong_uses_are_named() -> None:
    module = mlp()
    optimiser = Lifted(module, nn.MSELoss())
    fn.mse_loss(module(draw(16, 4)), draw(16, 2, seed=1)).backward()
    optimiser.step()
    optimiser.step()
    with pytest.raises(
        RuntimeError, match="needs a call of the module in training mode, with gradients, since the last"
    ):
        optimiser.step()
    optimiser.close()
    with pytest.raises(RuntimeError, match="the optimiser was closed"):
        optimiser.step()
    for rate in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="adam_lr must be at least 0"):
            Lifted(mlp(), adam_lr=rate)


def test_hooks_of_copies_do_not_pile_up() -> None:
    module = mlp()
    for _ in range(3):
        optimiser = Lifted(module)
        module = copy.deepcopy(module)
    del optimiser
    Lifted(module)
    assert len(module._forward_pre_hooks_with_kwargs) <= len(module._forward_pre_hooks) <= 1
