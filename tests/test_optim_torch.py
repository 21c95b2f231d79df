"""The optimiser beside the rest of torch: schedulers, state, scalers, the compiler, copies, several processes."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import socket
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from liftednn.optim import Lifted
from liftednn.optim.calls import empty_hook
from liftednn.optim.wrappers import _ranks_of

CRITERION = nn.CrossEntropyLoss()


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
    )


def batch(seed: int = 0, rows: int = 30) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    return torch.randn(rows, 1, 4, 4, generator=drawn) + y[:, None, None, None] / 2, y


def train(
    module: nn.Module, optimiser: torch.optim.Optimizer, steps: range | int, after: Callable[[], Any] | None = None
) -> float:
    """The last loss."""
    for number in range(steps) if isinstance(steps, int) else steps:
        x, y = batch(number)
        optimiser.zero_grad()
        loss = CRITERION(module(x), y)
        loss.backward()
        optimiser.step()
        if after is not None:
            after()
    return float(loss.detach())


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, 8),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - step / 8),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, total_iters=3), lr_scheduler.ExponentialLR(o, 0.5)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_both_rates(name: str) -> None:
    module = net()
    optimiser = Lifted(module, CRITERION)
    scheduler = SCHEDULERS[name](optimiser)
    rates: list[float] = []

    def schedule() -> None:
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])

    train(module, optimiser, 8, schedule)
    assert len(set(rates)) > 4
    kept = copy.deepcopy(module.state_dict())
    optimiser.param_groups[0]["lr"] = 0.0
    optimiser.param_groups[0]["momentum"] = 0.0
    train(module, optimiser, range(8, 9))
    names = [name for name, _ in module.named_parameters()]
    assert all(torch.equal(kept[name], module.state_dict()[name]) for name in names)


def test_a_refresh_leaves_buffers_random_numbers_and_gradients_as_they_were() -> None:
    module: Any = nn.Sequential(net(), nn.Dropout(0.1))
    x, y = batch()
    optimiser = Lifted(module, CRITERION)
    CRITERION(module(x), y).backward()
    buffers = copy.deepcopy(dict(module.named_buffers()))
    held = dict(module.named_buffers())
    gradients = [copy.deepcopy(p.grad) for p in module.parameters()]
    state = torch.get_rng_state()
    optimiser.step()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), gradients, strict=True))
    for name, buffer in module.named_buffers():
        assert buffer is held[name]
        assert torch.equal(buffer, buffers[name])


def test_a_rerun_draws_the_same_dropout() -> None:
    """So that the gradients of the outputs belong to it."""
    module: Any = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimiser, (x, y) = Lifted(module), batch()
    CRITERION(module(x), y).backward()
    call: Any = optimiser._call
    seen: list[Tensor] = []
    module[1].register_forward_hook(lambda m, args, out: seen.append(out))
    torch.rand(5)
    optimiser.step()
    metric = optimiser.state[module[2].weight]["metric"]
    torch.testing.assert_close(metric["mean"][0], seen[0].mean(0))
    gradient = 30 * call.gradients[0].T @ seen[0]
    torch.testing.assert_close(gradient, 30 * module[2].weight.grad)


def test_a_closure_computes_the_loss() -> None:
    module, other = net(), net()
    optimiser, (x, y) = Lifted(module, CRITERION), batch()

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = CRITERION(module(x), y)
        loss.backward()
        return loss

    losses = [float(optimiser.step(closure).detach()) for _ in range(6)]
    second = Lifted(other, CRITERION)
    for loss in losses:
        second.zero_grad()
        now = CRITERION(other(x), y)
        now.backward()
        second.step()
        assert float(now.detach()) == loss


@pytest.mark.parametrize("criterion", [CRITERION, None])
def test_a_run_continues_from_its_state(criterion: nn.Module | None) -> None:
    module = net()
    optimiser = Lifted(module, criterion)
    train(module, optimiser, 7)
    file = io.BytesIO()
    torch.save([module.state_dict(), optimiser.state_dict()], file)
    train(module, optimiser, range(7, 13))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = net(seed=5)
    again.load_state_dict(saved[0])
    second = Lifted(again, criterion, lr=1.0)
    second.load_state_dict(saved[1])
    train(again, second, range(7, 13))
    assert same(module, again)


def test_16_bit_parameters_keep_the_precision_of_their_geometry() -> None:
    module: Any = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).bfloat16()
    optimiser = Lifted(module, CRITERION)
    x, y = batch()
    CRITERION(module(x.bfloat16()), y).backward()
    optimiser.step()
    second = Lifted(module, CRITERION)
    second.load_state_dict(optimiser.state_dict())
    old, new = (each.state[module[1].weight]["metric"] for each in (optimiser, second))
    assert old["mean"].dtype == torch.float32
    torch.testing.assert_close(new, old, rtol=0, atol=0)


def test_clipped_and_accumulated_gradients() -> None:
    """Two halves of a batch, each with half the loss, give the step of the whole; a smaller gradient gives a smaller step."""
    x, y = batch(rows=60)
    found: list[Tensor] = []
    module: Any
    for parts in (1, 2):
        module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
        nn.init.zeros_(module[1].weight)
        nn.init.zeros_(module[1].bias)
        optimiser = Lifted(module, CRITERION, damping=1e9, trust=1e9)  # whose geometry is nearly the same for all rows
        for rows, labels in zip(x.double().chunk(parts), y.chunk(parts), strict=True):
            (CRITERION(module(rows), labels) / parts).backward()
        optimiser.step()
        found.append(1e9 * module[1].weight.detach())
    torch.testing.assert_close(found[0], found[1], rtol=0.2, atol=0.2 * float(found[0].abs().mean()))
    module = net()
    optimiser = Lifted(module, CRITERION, weight_decay=0.0)
    kept = module[4].weight.detach().clone()
    CRITERION(module(x), y).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1e-6)
    optimiser.step()
    assert float((module[4].weight.detach() - kept).abs().max()) < 1e-4


def test_without_a_criterion_accumulated_gradients_count_once() -> None:
    x, y = batch()
    curvatures = []
    for parts in (1, 4):
        module = net()
        optimiser = Lifted(module, trust=1e9)
        for _ in range(parts):
            (CRITERION(module(x), y) / parts).backward()
        optimiser.step()
        curvatures.append(float(optimiser.state[module[4].weight]["metric"]["curvature"]))
    assert curvatures[0] == pytest.approx(curvatures[1], rel=1e-4)


def test_autocast_with_a_scaler() -> None:
    module, plain = net(), net()
    optimiser, scaler = Lifted(module, CRITERION), torch.amp.GradScaler("cpu", init_scale=64.0)
    seen: list[torch.dtype] = []
    module[4].register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    for number in range(12):
        x, y = batch(number)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = CRITERION(module(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    assert set(seen) == {torch.bfloat16}
    assert optimiser.state[module[4].weight]["metric"]["mean"].dtype == torch.float32
    train(plain, Lifted(plain, CRITERION), 12)
    torch.testing.assert_close(module[4].weight, plain[4].weight, rtol=0.05, atol=0.05)


def test_a_scaled_loss_needs_a_criterion() -> None:
    module, (x, y) = net(), batch()
    optimiser, scaler = Lifted(module), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(CRITERION(module(x), y)).backward()
    with pytest.warns(UserWarning, match="give Lifted the criterion"):
        scaler.step(optimiser)


def test_compiled_modules() -> None:
    module, plain = net(), net()
    compiled = torch.compile(module, backend="eager")
    optimiser = Lifted(compiled, CRITERION)
    train(compiled, optimiser, 7)
    train(plain, Lifted(plain, CRITERION), 7)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_a_module_that_is_compiled_in_place() -> None:
    module, plain = net(), net()
    optimiser = Lifted(module, CRITERION)
    module.compile(backend="eager")
    train(module, optimiser, 7)
    train(plain, Lifted(plain, CRITERION), 7)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_channels_last() -> None:
    module, plain = net().to(memory_format=torch.channels_last), net()
    optimiser = Lifted(module, CRITERION)
    for number in range(7):
        x, y = batch(number)
        optimiser.zero_grad()
        CRITERION(module(x.to(memory_format=torch.channels_last)), y).backward()
        optimiser.step()
    train(plain, Lifted(plain, CRITERION), 7)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.contiguous(), q, rtol=1e-4, atol=1e-4)


def test_a_new_head_on_frozen_features_and_parts_in_eval_mode() -> None:
    module = net()
    train(module, Lifted(module, CRITERION), 5)
    module.requires_grad_(False)
    module[4] = nn.Linear(64, 3)
    module[1].eval()
    kept = copy.deepcopy(module[:4].state_dict())
    optimiser = Lifted(module, CRITERION)
    assert train(module, optimiser, 30) < 0.95
    assert all(torch.equal(a, b) for a, b in zip(kept.values(), module[:4].state_dict().values(), strict=True))
    assert {p for p in optimiser.state if optimiser.state[p]} == {module[4].weight, module[4].bias}
    module.requires_grad_(True)
    before = module[0].weight.detach().clone()
    train(module, optimiser, range(30, 65))
    assert not torch.equal(before, module[0].weight)


def test_two_optimisers_on_parts_of_one_module() -> None:
    *parts, head = net()
    body = nn.Sequential(*parts)
    module = nn.Sequential(body, head)
    first = Lifted(module, CRITERION, params=head.parameters())
    second = Lifted(body, lr=0.01)  # by the gradients of its own outputs
    before = [p.detach().clone() for p in module.parameters()]
    train(module, first, 3, second.step)
    assert all(not torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True))
    assert set(first.state) == set(head.parameters())
    assert set(second.state) == set(body.parameters())


def test_weight_decay_and_rates_of_groups() -> None:
    module = net()
    groups = [
        {"params": [module[4].weight], "weight_decay": 1.0, "lr": 0.02},
        {"params": [p for name, p in module.named_parameters() if name != "4.weight"]},
    ]
    optimiser = Lifted(module, CRITERION, groups)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [1.0, None]
    train(module, optimiser, 60)
    plain = net()
    train(plain, Lifted(plain, CRITERION), 60)
    assert module[4].weight.norm() < 0.7 * plain[4].weight.norm()


def test_a_rate_may_be_a_tensor() -> None:
    module, plain = net(), net()
    rate = torch.tensor(0.05)
    optimiser = Lifted(module, CRITERION, lr=rate)  # type: ignore[arg-type]
    train(module, optimiser, 8, lambda: rate.mul_(0.9))
    slower = Lifted(plain, CRITERION)
    train(plain, slower, 8, lr_scheduler.ExponentialLR(slower, 0.9).step)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_a_refresh_writes_to_the_memory_that_a_recorded_step_reads() -> None:
    module = net()
    optimiser = Lifted(module, CRITERION, refresh=4)
    train(module, optimiser, 1)
    before = [each for stack in optimiser._stacks() for each in stack._tensors()]
    values = [each.clone() for each in before]
    train(module, optimiser, range(1, 9))
    now = [each for stack in optimiser._stacks() for each in stack._tensors()]
    assert [each.data_ptr() for each in before] == [each.data_ptr() for each in now]
    assert not any(torch.equal(old, new) for old, new in zip(values, now, strict=True) if old.any())
    held = optimiser.state[module[4].weight]["metric"]["inverse"]
    assert held[0].data_ptr() in [each.data_ptr() for each in now]


@pytest.mark.gpu
def test_a_step_recorded_as_a_graph_is_the_plain_step() -> None:
    """With refreshes in between, which are plain."""
    finals = []
    for recording in (False, True):
        module = net().cuda()
        optimiser = Lifted(module, CRITERION, lr=torch.tensor(0.05, device="cuda"), refresh=7)  # type: ignore[arg-type]
        x, y = (part.cuda() for part in batch())
        graph: torch.cuda.CUDAGraph | None = None
        for number in range(30):
            new_x, new_y = batch(number)
            x.copy_(new_x), y.copy_(new_y)
            if not recording or optimiser.due or number < 12:
                _whole_step(module, optimiser, x, y)
            else:
                if graph is None:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        _whole_step(module, optimiser, x, y)
                graph.replay()
                optimiser.param_groups[0]["steps"] = number + 1
        finals.append([p.detach().clone() for p in module.parameters()])
    for p, q in zip(*finals, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def _whole_step(module: nn.Module, optimiser: Lifted, x: Tensor, y: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    CRITERION(module(x), y).backward()
    optimiser.step()


def test_copies_of_the_module_are_not_watched() -> None:
    module = net()
    optimiser = Lifted(module, CRITERION)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        twin(batch()[0])
        assert optimiser._call is None
        hooks = [*twin._forward_pre_hooks.values(), *twin._forward_hooks.values()]
        assert all(hook is empty_hook for hook in hooks)
        Lifted(twin, CRITERION)
        assert not twin._forward_pre_hooks  # that optimiser is gone, and the hooks that came with the copy too


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_the_optimiser_train_copies_of_the_module(copied: Callable[[Any], Any]) -> None:
    module = net()
    optimiser = Lifted(module, CRITERION)
    train(module, optimiser, 4)
    twin, second = copied((module, optimiser))
    assert second.module is twin
    train(module, optimiser, range(4, 12))
    assert not same(module, twin)
    train(twin, second, range(4, 12))
    assert same(module, twin)


def test_no_hook_remains() -> None:
    module = net()
    optimiser = Lifted(module, CRITERION)
    assert len(module._forward_pre_hooks) == len(module._forward_hooks) == 1
    train(module, optimiser, 3)
    optimiser.close()
    assert not module._forward_pre_hooks
    assert not module._forward_hooks
    assert all(not each._forward_hooks for each in module.modules())
    second = Lifted(module)
    gone = weakref.ref(second)
    train(module, second, 2)
    del second
    gc.collect()
    assert gone() is None
    assert not module._forward_pre_hooks
    assert not module._forward_hooks


def test_training_without_steps_keeps_at_most_the_last_batch() -> None:
    module = net()
    optimiser = Lifted(module)
    kept = []
    for number in range(3):
        x, y = batch(number)
        kept.append(weakref.ref(x))
        CRITERION(module(x), y).backward()
    del x
    gc.collect()
    assert [each() is not None for each in kept[:2]] == [False, False]
    optimiser.step()
    assert optimiser._call is None
    optimiser.zero_grad()
    module(batch()[0])
    assert optimiser._call is None  # the next step needs no refresh


def test_calls_that_do_not_train_are_not_rerun() -> None:
    module, (x, y) = net(), batch()
    optimiser = Lifted(module, CRITERION)
    CRITERION(module(x), y).backward()
    call = optimiser._call
    with torch.no_grad():
        module(x)
    module.eval()(x)
    assert call is not None
    assert optimiser._call is call


def test_outputs_may_be_tuples_dicts_and_losses() -> None:
    class Model(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.net, self.kind = net(), kind

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            logits = self.net(x)
            if self.kind == "tuple":
                return logits, x.mean()
            return {"loss": CRITERION(logits, labels), "logits": logits}

    x, y = batch()
    for kind, criterion in (("tuple", CRITERION), ("dict", CRITERION), ("tuple", None), ("dict", None)):
        module = Model(kind)
        optimiser = Lifted(module, criterion)
        losses = []
        for _ in range(25):
            optimiser.zero_grad()
            out = module(x, labels=y)
            loss = CRITERION(out[0], y) if kind == "tuple" else out["loss"]
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.8 * losses[0]


def test_checkpointed_modules() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.body, self.head = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.reentrant = reentrant

        def forward(self, x: Tensor) -> Any:
            x = self.first(x.flatten(1)).tanh()
            return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=self.reentrant))

    module = Checkpointed(False)
    optimiser = Lifted(module, CRITERION)
    train(module, optimiser, 3)
    assert float(optimiser.state[module.body.weight]["metric"]["count"]) == pytest.approx(30 * (0.9 + 1))
    refused = Checkpointed(True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        train(refused, Lifted(refused, CRITERION), 1)


def test_refused_in_words() -> None:
    module, (x, y) = net(), batch()
    optimiser = Lifted(module, CRITERION)
    with pytest.raises(RuntimeError, match=r"call module\.train\(\)"):
        optimiser.step()
    optimiser = Lifted(module)
    CRITERION(module(x), y).backward()
    module(x)
    with pytest.raises(RuntimeError, match=r"call loss\.backward\(\)"):
        optimiser.step()
    with pytest.raises(TypeError, match="needs the module itself"):
        Lifted(module.parameters())
    for criterion in (nn.L1Loss(), nn.SmoothL1Loss(beta=0.0), nn.MSELoss(reduction="none"), nn.NLLLoss()):
        with pytest.raises(ValueError, match="criterion=None"):
            Lifted(module, criterion)
    for options in (
        {"lr": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"damping": -1.0},
        {"damping": math.nan},
        {"damping": math.inf},
        {"refresh": 0},
        {"trust": 0.0},
        {"trust": math.nan},
        {"lr": math.nan},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
            Lifted(module, **options)
    embedding = nn.Embedding(5, 3, sparse=True)
    optimiser = Lifted(embedding, CRITERION)
    CRITERION(embedding(torch.arange(5)), torch.arange(5) % 3).backward()
    with pytest.raises(RuntimeError, match="SparseAdam"):
        optimiser.step()
    with pytest.raises(ValueError, match="run it once"):
        Lifted(nn.LazyLinear(3))


def test_sharded_modules_are_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        """Torch's own needs several processes."""

    with pytest.raises(ValueError, match="DistributedDataParallel"):
        Lifted(nn.Sequential(FullyShardedDataParallel(net())))


def plain_net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


def one_rank(rank: int, port: int, weights: Any, criterion: nn.Module | None) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    inner = plain_net()
    if criterion is None:  # the module is wrapped after it was given
        optimiser = Lifted(inner)
    module = nn.parallel.DistributedDataParallel(inner)
    if criterion is not None:
        optimiser = Lifted(module, criterion)
    for number in range(7):
        x, y = (part.chunk(2)[rank] for part in batch(number))
        optimiser.zero_grad()
        CRITERION(module(x.double()), y).backward()
        optimiser.step()
    weights[rank] = [p.detach().tolist() for p in module.module.parameters()]
    torch.distributed.destroy_process_group()


def of_two_processes(work: Callable[..., None], *more: Any) -> dict[Any, Any]:
    """What two processes write to a mapping that they share: work(rank, port, mapping, *more)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    with torch.multiprocessing.Manager() as manager:
        shared = manager.dict()
        torch.multiprocessing.spawn(work, (port, shared, *more), nprocs=2)
        return dict(shared)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", [CRITERION, None])
def test_two_processes_equal_one(criterion: nn.Module | None) -> None:
    both = of_two_processes(one_rank, criterion)
    module = plain_net()
    optimiser = Lifted(module, criterion)
    for number in range(7):
        x, y = batch(number)
        optimiser.zero_grad()
        CRITERION(module(x.double()), y).backward()
        optimiser.step()
    for number, p in enumerate(module.parameters()):
        assert both[0][number] == both[1][number]
        torch.testing.assert_close(torch.tensor(both[0][number], dtype=torch.float64), p.detach(), rtol=1e-6, atol=1e-8)


class Skips(nn.Module):
    """A module whose only layer a process may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.constant = nn.Linear(16, 3).double(), nn.Parameter(torch.zeros(3).double())

    def forward(self, x: Tensor, used: bool) -> Any:
        return self.layer(x.flatten(1)) if used else self.constant.expand(len(x), 3)


def unusual_ranks(rank: int, port: int, found: Any) -> None:
    """DistributedDataParallel around the parts of a module, a process that calls no layer, and one without rows."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    wrap = nn.parallel.DistributedDataParallel
    parts = nn.Sequential(*[wrap(part) if list(part.parameters()) else part for part in plain_net()])
    optimiser = Lifted(parts, CRITERION)
    for number in range(7):
        x, y = (part.chunk(2)[rank] for part in batch(number))
        optimiser.zero_grad()
        CRITERION(parts(x.double()), y).backward()
        optimiser.step()
    found["parts", rank] = [p.detach().tolist() for p in parts.parameters()]
    skips = wrap(Skips(), find_unused_parameters=True)
    optimiser, (x, y) = Lifted(skips, CRITERION), batch()
    CRITERION(skips(x.double(), rank == 0), y).backward()
    optimiser.step()
    found["skips", rank] = skips.module.layer.weight.tolist()
    empty = wrap(plain_net())
    optimiser, (x, y) = Lifted(empty, CRITERION), (part[: 30 * (rank == 0)] for part in batch())
    (CRITERION(empty(x.double()), y) if rank == 0 else empty(x.double()).sum()).backward()
    optimiser.step()
    head = next(reversed(list(empty.module)))
    found["empty", rank] = float(optimiser.state[head.weight]["doubt"]), optimiser.param_groups[0]["terms"]
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_agree_in_unusual_modules_and_batches() -> None:
    found = of_two_processes(unusual_ranks)
    module = plain_net()
    train_on("cpu", module, Lifted(module, CRITERION), range(7))
    for number, p in enumerate(module.parameters()):
        assert found["parts", 0][number] == found["parts", 1][number]
        given = torch.tensor(found["parts", 0][number], dtype=torch.float64)
        torch.testing.assert_close(given, p.detach(), rtol=1e-6, atol=1e-8)
    assert found["skips", 0] == found["skips", 1] != Skips().layer.weight.tolist()
    alone = plain_net()
    optimiser = Lifted(alone, CRITERION)
    train_on("cpu", alone, optimiser, range(1))
    expected = float(optimiser.state[alone[-1].weight]["doubt"]), optimiser.param_groups[0]["terms"]
    assert found["empty", 0] == found["empty", 1] == pytest.approx(expected)


def train_on(device: str, module: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for number in steps:
        x, y = batch(number)
        optimiser.zero_grad()
        CRITERION(module(x.double().to(device)), y.to(device)).backward()
        optimiser.step()


@pytest.mark.gpu
def test_a_run_continues_on_a_gpu() -> None:
    module, other = plain_net(), plain_net().cuda()
    optimiser, second = Lifted(module, CRITERION), Lifted(other, CRITERION)
    train_on("cpu", module, optimiser, range(4))
    other.load_state_dict(module.state_dict())
    second.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    train_on("cpu", module, optimiser, range(4, 12))
    train_on("cuda", other, second, range(4, 12))
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
def test_half_precision_on_a_gpu() -> None:
    module = net().cuda()
    optimiser, scaler, losses = Lifted(module, CRITERION), torch.amp.GradScaler("cuda"), []
    x, y = (part.cuda() for part in batch())
    for _ in range(30):
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = CRITERION(module(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_uneven_numbers_of_batches_are_refused() -> None:
    """A process that has run out of batches would not answer the sums of a refresh."""
    wrapper = SimpleNamespace(_join_config=SimpleNamespace(enable=True))
    with pytest.raises(RuntimeError, match="same number of batches"):
        _ranks_of(wrapper)  # type: ignore[arg-type]
