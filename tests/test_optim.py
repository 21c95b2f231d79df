"""The optimiser: its step against singular value decompositions and torch's AdamW, any module and loss, and the rest of torch."""

from __future__ import annotations

import copy
import io
import math
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.optim import lr_scheduler

from experiments.robustness import Loop, constant, optimiser, train
from liftednn.optim import Lifted, lifted
from liftednn.optim.maps import linear_maps
from tests.test_polar import draw, exact_polar

CRITERION = nn.CrossEntropyLoss()


def net(seed: int = 0) -> Any:
    """Two weights take polar steps; AdamW moves the last one."""
    torch.manual_seed(seed)
    first = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()
    return nn.Sequential(*first, nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(seed: int = 0, rows: int = 30) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    return torch.randn(rows, 1, 4, 4, generator=drawn) + y[:, None, None, None] / 2, y


def run(
    module: Any, optimiser: torch.optim.Optimizer, steps: range | int, after: Any = None, factor: float = 1
) -> None:
    for number in range(steps) if isinstance(steps, int) else steps:
        x, y = batch(number)
        optimiser.zero_grad()
        (factor * CRITERION(module(x), y)).backward()
        optimiser.step()
        if after is not None:
            after()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def close(a: nn.Module, b: nn.Module, **bounds: float) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, **(bounds or {"rtol": 1e-4, "atol": 1e-5}))


# The step


MAPS: dict[str, Callable[[], tuple[nn.Module, str, list[slice]]]] = {
    "Linear": lambda: (nn.Linear(5, 3), "weight", [slice(None)]),
    "Conv2d": lambda: (nn.Conv2d(4, 6, 3, groups=2), "weight", [slice(0, 3), slice(3, 6)]),
    "ConvTranspose1d": lambda: (nn.ConvTranspose1d(4, 3, 2), "weight", [slice(None)]),
    "Conv3d": lambda: (nn.Conv3d(2, 3, 2), "weight", [slice(None)]),
    "attention": lambda: (nn.MultiheadAttention(4, 2), "in_proj_weight", [slice(0, 4), slice(4, 8), slice(8, 12)]),
    "widths": lambda: (nn.MultiheadAttention(4, 2, kdim=3, vdim=3), "k_proj_weight", [slice(None)]),
    "GRU": lambda: (
        nn.GRU(3, 2, 2, bidirectional=True),
        "weight_hh_l1_reverse",
        [slice(0, 2), slice(2, 4), slice(4, 6)],
    ),
    "projected LSTM": lambda: (nn.LSTM(3, 4, proj_size=2), "weight_hr_l0", [slice(None)]),
    "cell": lambda: (nn.RNNCell(3, 4), "weight_ih", [slice(None)]),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_step_turns_each_matrix_by_a_fraction_of_its_first_norm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the polar factor of Nesterov's average; two steps, after other weights have grown."""
    monkeypatch.setattr(lifted, "polar", exact_polar)
    torch.manual_seed(0)
    part, attribute, rows = MAPS[name]()
    module = nn.ModuleList([part, nn.Linear(2, 2)]).double()
    w, lr, momentum, decay = getattr(part, attribute), 0.1, 0.6, 0.5
    first: dict[int, float] = {}
    optimiser = Lifted(module, lr=lr, momentum=momentum, weight_decay=decay)
    expected, velocity = w.detach().clone(), torch.zeros_like(w)
    for number in range(2):
        w.grad = torch.randn(w.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        velocity = momentum * velocity + w.grad
        average = w.grad + momentum * velocity
        for at, each in enumerate(rows):
            matrix, turn = expected[each].flatten(1), exact_polar(average[each].flatten(1))
            size = first.setdefault(at, float(matrix.norm()))
            turn = turn * size / math.sqrt(min(turn.shape))
            expected[each] = ((1 - lr * decay) * matrix - lr * turn).reshape(expected[each].shape)
        optimiser.step()
    torch.testing.assert_close(w.detach(), expected, rtol=1e-10, atol=1e-12)


def test_adamw_moves_the_rest_and_the_last_weight_decays() -> None:
    module, twin = net(), net()
    optimiser = Lifted(module, weight_decay=0.5, adam_lr=1e-2)
    others = [p for p in twin.parameters() if p is not twin[0].weight and p is not twin[4].weight]
    adam = torch.optim.AdamW(others, lr=1e-2, eps=1e-15, weight_decay=0.0)
    for number in range(3):
        x, y = batch(number)
        for each in (module, twin):
            each.zero_grad()
            CRITERION(each(x), y).backward()
        with torch.no_grad():
            twin[6].weight.mul_(1 - 0.02 * 0.5)
        adam.step()
        optimiser.step()
        with torch.no_grad():  # the others as they are
            twin[0].weight.copy_(module[0].weight)
            twin[4].weight.copy_(module[4].weight)
    close(module, twin, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("criterion", "decay"),
    [(None, 0.05), (nn.MSELoss(), 0.05), (CRITERION, 0.15), (fn.cross_entropy, 0.15), (nn.BCEWithLogitsLoss(), 0.15)],
)
def test_the_weight_decay_is_larger_for_a_cross_entropy(criterion: Any, decay: float) -> None:
    assert Lifted(net(), criterion).param_groups[0]["weight_decay"] == decay


@pytest.mark.parametrize("factor", [2.0**-13, 2.0**13])
def test_a_constant_factor_on_the_loss_changes_nothing(factor: float) -> None:
    module, plain = net(), net()
    run(module, Lifted(module), 10, factor=factor)
    run(plain, Lifted(plain), 10)
    close(module, plain)


def test_a_weight_that_starts_at_zero_moves() -> None:
    module: Any = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    nn.init.zeros_(module[0].weight)
    optimiser = Lifted(module)
    module(torch.randn(5, 4)).square().sum().backward()
    module[0].weight.grad = draw(8, 4).float()
    optimiser.step()
    assert float(module[0].weight.detach().norm()) == pytest.approx(0.02 * lifted._LEAST * math.sqrt(8), rel=0.3)


def test_a_weight_whose_gradient_is_0_does_not_move() -> None:
    module = net()
    optimiser = Lifted(module, weight_decay=0.0)
    run(module, optimiser, 2)
    kept = module[4].weight.detach().clone()
    module[4].weight.grad.zero_()
    optimiser.step()
    assert torch.equal(module[4].weight, kept)
    module.zero_grad()
    optimiser.step()
    assert torch.equal(module[4].weight, kept)


def test_weights_of_one_shape_move_together() -> None:
    """As many operations for six layers as for two."""
    counts = []
    for layers in (2, 6):
        module = nn.Sequential(*[nn.Linear(6, 6) for _ in range(layers + 1)])
        optimiser, calls = Lifted(module), list[Any]()
        module(torch.randn(5, 6)).sum().backward()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifted, "polar", lambda x, calls=calls: calls.append(x.shape) or x)
            optimiser.step()
        counts.append(calls)
    assert counts == [[(2, 6, 6)], [(6, 6, 6)]]


# Any module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.middle, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.letters.weight


def test_tied_complex_and_empty_weights_are_left_to_adamw() -> None:
    tied, complexes = Tied(), nn.Linear(3, 2, dtype=torch.complex64)
    assert list(linear_maps(tied)) == [tied.middle.weight]
    assert linear_maps(nn.Sequential(complexes, nn.LayerNorm(3))) == {}
    shared = nn.Linear(4, 4)
    assert linear_maps(nn.Sequential(shared, nn.Tanh(), shared)) == {shared.weight: 1}
    plain, transposed = nn.Conv1d(4, 4, 2), nn.Conv1d(4, 4, 2, groups=1)
    transposed.weight = plain.weight
    grouped = nn.Conv1d(8, 4, 2, groups=2)
    grouped.weight = plain.weight
    assert linear_maps(nn.Sequential(plain, transposed)) == {plain.weight: 1}
    assert linear_maps(nn.Sequential(plain, grouped)) == {}


@pytest.mark.parametrize("parametrised", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_parametrised_layers_learn(parametrised: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(parametrised(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3))
    assert falls(module, lambda x: fn.mse_loss(module(x), x[:, :3].sin()))


def falls(module: nn.Module, loss: Callable[[Tensor], Tensor], steps: int = 150) -> bool:
    """Whether the loss falls to a third."""
    optimiser, found = Lifted(module), []
    for number in range(steps):
        x = draw(32, 6).float().roll(number, 0)
        optimiser.zero_grad()
        value = loss(x)
        value.backward()
        optimiser.step()
        found.append(float(value.detach()))
    return found[-1] < found[0] / 3


def test_gradients_of_functional_calls_train() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimiser, losses = Lifted(module), []

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return fn.mse_loss(torch.func.functional_call(module, params, x), x[:, :3].sin())

    for _ in range(150):
        gradients, value = torch.func.grad_and_value(loss)(dict(module.named_parameters()), draw(32, 6).float())
        for name, p in module.named_parameters():
            p.grad = gradients[name]
        optimiser.step()
        losses.append(float(value.detach()))
    assert losses[-1] < losses[0] / 3


def test_a_loss_on_derivatives_alone_trains() -> None:
    """-u'' = f with u = sin(pi x), as a network trained on physics has it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimiser, x = Lifted(module), torch.linspace(0, 1, 50)[:, None].requires_grad_()
    scheduler = lr_scheduler.CosineAnnealingLR(optimiser, 400)
    for _ in range(400):
        optimiser.zero_grad()
        u = module(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        residual = second + math.pi**2 * torch.sin(math.pi * x)
        (residual.square().mean() + 100 * (u[0].square() + u[-1].square()).sum()).backward()
        optimiser.step()
        scheduler.step()
    u, exact = module(x).detach(), torch.sin(math.pi * x).detach()
    assert float((u - exact).norm() / exact.norm()) < 0.1


def test_three_passes_over_the_digits_leave_half_the_loss_of_adam() -> None:
    """On rows that were held back."""
    found = load_digits()
    order, losses = torch.randperm(1797, generator=torch.Generator().manual_seed(0)), []
    x, y = torch.tensor(found.images).float()[order, None] / 16, torch.tensor(found.target)[order]
    makers = [lambda m: Lifted(m, CRITERION), lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3)]
    for make in makers:
        torch.manual_seed(0)
        first = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        second = nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU()
        module = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(256, 10))
        optimiser = make(module)
        scheduler = lr_scheduler.CosineAnnealingLR(optimiser, 84)
        for rows in torch.arange(1400).repeat(3).split(50):
            optimiser.zero_grad()
            CRITERION(module(x[rows]), y[rows]).backward()
            optimiser.step()
            scheduler.step()
        with torch.no_grad():
            losses.append(float(CRITERION(module.eval()(x[1400:]), y[1400:])))
    assert losses[0] < 0.5 * losses[1]


LOOPS = [
    Loop("dense", "squared", True, False, 16),
    Loop("dense", "focal", False, False, 2),
    Loop("deep tanh", "Poisson", False, False, 16, "first batch alike"),
    Loop("recurrent", "cross-entropy", True, False, 16, "outliers"),
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: f"{loop.net}, {loop.loss}")
def test_a_constant_rate_holds(loop: Loop) -> None:
    """Loops in which earlier rules collapsed; `python -m experiments robustness` has hundreds."""
    found = train(loop, lambda loop, module: optimiser("lifted", loop, module), 300)
    assert found["last"] < 0.9 * constant(loop)
    assert not found["warnings"]


# The rest of torch


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, 8),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - step / 8),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_both_rates(name: str) -> None:
    module = net()
    optimiser = Lifted(module, CRITERION)
    scheduler, rates = SCHEDULERS[name](optimiser), []

    def schedule() -> None:
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])

    run(module, optimiser, 8, schedule)
    assert len(set(rates)) > 4
    kept = copy.deepcopy(module)
    optimiser.param_groups[0]["lr"] = 0.0
    run(module, optimiser, range(8, 9))
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), kept.parameters(), strict=True))


def test_a_rate_may_be_a_tensor() -> None:
    module, plain, rate = net(), net(), torch.tensor(0.02)
    run(module, Lifted(module, lr=rate), 8, lambda: rate.mul_(0.9))
    slower = Lifted(plain)
    run(plain, slower, 8, lr_scheduler.ExponentialLR(slower, 0.9).step)
    close(module, plain)


def test_a_closure_computes_the_loss() -> None:
    module, other, fresh = net(), net(), net()
    optimiser, (x, y) = Lifted(module), batch()

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = CRITERION(module(x), y)
        loss.backward()
        return loss

    assert float(optimiser.step(closure).detach()) == pytest.approx(float(CRITERION(fresh(x), y).detach()))
    run(other, Lifted(other), 1)
    assert same(module, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_continues_from_its_state(dtype: torch.dtype) -> None:
    module = net().to(dtype)
    halved = lambda m: lambda x: m(x.to(dtype)).float()  # noqa: E731
    optimiser = Lifted(module)
    run(halved(module), optimiser, 7)
    file = io.BytesIO()
    torch.save([module.state_dict(), optimiser.state_dict()], file)
    run(halved(module), optimiser, range(7, 13))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = net(seed=5).to(dtype)
    again.load_state_dict(saved[0])
    second = Lifted(again, lr=1.0)
    second.load_state_dict(saved[1])
    run(halved(again), second, range(7, 13))
    assert same(module, again)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_the_optimiser_train_copies_of_the_module(copied: Callable[[Any], Any]) -> None:
    module = net()
    optimiser = Lifted(module)
    run(module, optimiser, 4)
    twin, second = copied((module, optimiser))
    run(module, optimiser, range(4, 9))
    assert not same(module, twin)
    run(twin, second, range(4, 9))
    assert same(module, twin)


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    found = []
    for parts in (1, 3):
        module = net().double()
        module.eval()  # a batch norm sees each part alone
        optimiser, (x, y) = Lifted(module), batch()
        for rows, labels in zip(x.double().chunk(parts), y.chunk(parts), strict=True):
            (CRITERION(module(rows), labels) / parts).backward()
        optimiser.step()
        found.append(module)
    close(*found, rtol=1e-6, atol=1e-8)


def test_autocast_with_a_scaler() -> None:
    module, plain = net(), net()
    optimiser, scaler = Lifted(module), torch.amp.GradScaler("cpu", init_scale=64.0)
    for number in range(12):
        x, y = batch(number)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = CRITERION(module(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    run(plain, Lifted(plain), 12)
    close(module, plain, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules_and_channels_last(in_place: bool) -> None:
    module, plain = net().to(memory_format=torch.channels_last), net()
    compiled = module if in_place else torch.compile(module, backend="eager")
    optimiser = Lifted(compiled)
    if in_place:
        module.compile(backend="eager")
    run(compiled, optimiser, 7)
    run(plain, Lifted(plain), 7)
    close(module, plain)


def test_groups_and_parts() -> None:
    """A new head on frozen features; a group with settings of its own; parameters that are added later."""
    module = net()
    module[0].requires_grad_(False)
    groups = [{"params": [module[4].weight], "weight_decay": 1.0, "lr": 0.01}, {"params": [module[4].bias]}]
    optimiser = Lifted(module, CRITERION, groups)
    optimiser.add_param_group({"params": list(module[6].parameters())})
    assert [group["weight_decay"] for group in optimiser.param_groups] == [1.0, 0.15, 0.15]
    assert [group["base_lr"] for group in optimiser.param_groups] == [0.01, 0.02, 0.02]
    kept = copy.deepcopy(module)
    run(module, optimiser, 1)
    moved = [not torch.equal(p, q) for p, q in zip(module.parameters(), kept.parameters(), strict=True)]
    assert moved == [False, False, False, True, True, True, True]


def test_refused_in_words() -> None:
    module: Any = net()
    with pytest.raises(TypeError, match="needs the module itself"):
        Lifted(module.parameters())
    with pytest.raises(TypeError, match=r"lr=0\.001"):
        Lifted(module, 1e-3)
    for options in ({"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"adam_lr": -1.0}, {"lr": math.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
            Lifted(module, **options)
    with pytest.raises(ValueError, match="without axes"):
        Lifted(module, lr=torch.ones(2))
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.arange(5)).sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam"):
        Lifted(embedding).step()
    with pytest.raises(ValueError, match="run it once"):
        Lifted(nn.LazyLinear(3))

    state = Lifted(module).state_dict() | {"state": {0: {"metric": {}}}}
    with pytest.raises(ValueError, match="begin with a new optimiser"):
        Lifted(module).load_state_dict(state)

    class FullyShardedDataParallel(nn.Sequential):
        """Torch's own needs several processes."""

    with pytest.raises(ValueError, match="DistributedDataParallel"):
        Lifted(nn.Sequential(FullyShardedDataParallel(net())))


def one_rank(rank: int, port: int, weights: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    module = nn.parallel.DistributedDataParallel(net().double().eval())
    optimiser = Lifted(module)
    for number in range(7):
        x, y = (part.chunk(2)[rank] for part in batch(number))
        optimiser.zero_grad()
        CRITERION(module(x.double()), y).backward()
        optimiser.step()
    weights[rank] = [p.detach().tolist() for p in module.parameters()]
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    with torch.multiprocessing.Manager() as manager:
        shared = manager.dict()
        torch.multiprocessing.spawn(one_rank, (port, shared), nprocs=2)
        both = dict(shared)
    module = net().double().eval()
    run(lambda x: module(x.double()), Lifted(module), 7)
    assert both[0] == both[1]
    for found, p in zip(both[0], module.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), p.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
def test_a_step_recorded_as_a_graph_is_the_plain_step() -> None:
    finals = []
    for recording in (False, True):
        module = net().cuda()
        optimiser = Lifted(module, lr=torch.tensor(0.02, device="cuda"))
        x, y = (part.cuda() for part in batch())
        graph: torch.cuda.CUDAGraph | None = None
        for number in range(30):
            for held, new in zip((x, y), batch(number), strict=True):
                held.copy_(new)
            if graph is not None:
                graph.replay()
                continue
            with torch.cuda.stream(torch.cuda.Stream()):
                _whole_step(module, optimiser, x, y)
            torch.cuda.synchronize()
            if recording and number == 11:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    _whole_step(module, optimiser, x, y)
        finals.append(module)
    close(*finals)


def _whole_step(module: nn.Module, optimiser: Lifted, x: Tensor, y: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    CRITERION(module(x), y).backward()
    optimiser.step()


@pytest.mark.gpu
def test_a_run_continues_on_a_gpu() -> None:
    module, other = net().double(), net().double().cuda()
    optimiser, second = Lifted(module), Lifted(other)
    run(lambda x: module(x.double()), optimiser, 4)
    other.load_state_dict(module.state_dict())
    second.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    run(lambda x: module(x.double()), optimiser, range(4, 12))
    run(lambda x: other(x.double().cuda()).cpu(), second, range(4, 12))
    close(other.cpu(), module, rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
def test_half_precision_on_a_gpu() -> None:
    module = net().cuda()
    optimiser, scaler, losses = Lifted(module), torch.amp.GradScaler("cuda"), []
    x, y = (part.cuda() for part in batch())
    for _ in range(60):
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = CRITERION(module(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
