"""Accuracy against noise on the test inputs: robust lifted networks, plain ones, and what gradient training has against noise.

`python -m experiments robust [--device cuda]`. MNIST, pixels in
0 .. 1, 784-300-10; Adult and pendigits, standardised, one hidden layer of 100. Noise is in those units, missing entries become 0, and FGSM
attacks each network by its own gradient. The rule for strengths, the same for all: trained with seed 0 on all but a tenth of the rows, the
largest of the grid whose clean accuracy on that tenth, and that of every smaller one, is within .01 of the method without it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import liftednn as lnn
from experiments.datasets import Dataset, load, small
from experiments.markdown import table
from experiments.methods import standard
from experiments.settings import Settings
from experiments.store import Store
from liftednn.base import Affine, Uncertainty
from liftednn.blocks import Design, update_weights
from liftednn.network import Layer
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.training.choices import with_input_uncertainty

TAKES = ("device",)
Sizes = tuple[int, ...]
SEEDS, COST = 5, 0.01
# Passes over the rows, the same for all methods.
PASSES = {"mnist": 10, "adult": 15, "pendigits": 40}
SIZES = {"mnist": (784, 300, 10), "adult": (108, 100, 2), "pendigits": (16, 100, 10)}
# Noise on the test inputs, and its levels.
LEVELS = {
    "clean": (0.0,),
    "gaussian": (0.2, 0.4, 0.6, 0.8),
    "uniform": (0.3, 0.6, 0.9, 1.2),
    "missing": (0.1, 0.3, 0.5, 0.7),
    "fgsm": (0.02, 0.05, 0.1, 0.2),
}
KINDS: dict[str, Callable[[float], Uncertainty]] = {"noise": Noise, "ball": FrobeniusBall, "box": BoxBall}
# Strengths to choose from, weakest first. A ball's are per row: sqrt(columns) times those of the noise.
GRIDS = {
    "lifted, noise": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
    "lifted, ball": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    "lifted, box": (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1),
    "Adam, noisy": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
    "Adam, dropout": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
}
CONTROLS = {name: name.split(",")[0] for name in GRIDS}
# A standard network that goes on from lifted weights.
FROM = {
    "Adam from lifted": "lifted",
    "Adam from lifted, ball": "lifted, ball",
    "Adam from lifted, box": "lifted, box",
    "Adam from lifted, noise": "lifted, noise",
}
METHODS = ("lifted", "lifted, noise", "lifted, ball", "lifted, box", "Adam", "Adam, noisy", "Adam, dropout", *FROM)
ROBUST = ("lifted, noise", "lifted, ball", "lifted, box")


def lifted(data: Dataset, sizes: tuple[int, ...], kind: Uncertainty | None, seed: int, passes: int) -> nn.Sequential:
    network = lnn.automatic(lnn.LiftedNetwork.mlp(sizes, activation="fenchel_relu"), data.x, data.y, seed)
    fit = lnn.MiniBatch(passes=passes, seed=seed).run(with_input_uncertainty(network, kind), data.x, data.y)
    module = lnn.init.to_module(network, fit.weights)
    assert isinstance(module, nn.Sequential)  # the network is a chain
    return module


def adam(
    data: Dataset,
    module: nn.Sequential,
    seed: int,
    passes: int,
    noise: float = 0.0,
    dropout: float = 0.0,
    rate: float = 1e-3,
) -> nn.Sequential:
    """Adam with a rate that falls along a cosine, batches of 100; Gaussian noise on the inputs, dropout on the hidden units."""
    torch.manual_seed(seed)
    noisy = nn.Sequential(module[0], module[1], nn.Dropout(dropout), module[2]) if dropout else module
    steps = passes * -(-len(data.x) // 100)
    optimiser = torch.optim.Adam(noisy.parameters(), rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(passes):
        for rows in torch.split(torch.randperm(len(data.x)).to(data.x.device), 100):
            x = data.x[rows]
            x = x + noise * torch.randn_like(x) if noise else x
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(noisy(x), data.y[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return module


def trained(name: str, strength: float, data: Dataset, sizes: tuple[int, ...], seed: int, passes: int) -> nn.Sequential:
    if name in FROM:
        start = trained(FROM[name], strength, data, sizes, seed, 3)
        return adam(data, start, seed, max(passes - 3, 1))
    if name.startswith("lifted"):
        kind = name.removeprefix("lifted").removeprefix(", ")
        size = strength * sizes[0] ** 0.5 if kind == "ball" else strength
        return lifted(data, sizes, KINDS[kind](size) if kind and strength else None, seed, passes)
    torch.manual_seed(seed)
    extra = {"Adam": {}, "Adam, noisy": {"noise": strength}, "Adam, dropout": {"dropout": strength}}[name]
    return adam(data, standard(sizes).to(data.x.device), seed, passes, **extra)


def disturbed(module: nn.Module, kind: str, level: float, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """The test inputs with noise; drawn on the CPU, so that all methods of a seed, and all devices, see the same."""
    generator = torch.Generator().manual_seed(1000 + seed)
    if kind == "fgsm":
        moved = x.clone().requires_grad_()
        slope = torch.autograd.grad(nn.functional.cross_entropy(module(moved), y), moved)[0]
        return x + level * slope.sign()
    drawn = (torch.randn if kind == "gaussian" else torch.rand)(x.shape, generator=generator).to(x.device)
    if kind == "missing":
        return x * (drawn > level)
    return x + level * (drawn if kind == "gaussian" else 2 * drawn - 1)


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((module(x).argmax(1) == y).double().mean())


def curves(module: nn.Module, data: Dataset, seed: int) -> dict[str, list[float]]:
    """Accuracy at every level of every kind of noise."""
    x, y = data.x_test, data.y_test
    return {
        kind: [
            accuracy(module, x if kind == "clean" else disturbed(module, kind, level, x, y, seed), y)
            for level in levels
        ]
        for kind, levels in LEVELS.items()
    }


def held_back(data: Dataset) -> Dataset:
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(2024)).to(data.x.device)
    back, kept = order[: len(order) // 10], order[len(order) // 10 :]
    return Dataset(data.x[kept], data.y[kept], data.x[back], data.y[back])


def chosen(
    name: str, data: Dataset, set_name: str, sizes: Sizes, passes: int, store: Store, grid: Sequence[float]
) -> float:
    """The strength of a method, by the rule; 0 if none of the grid obeys it."""
    part = held_back(data)

    def clean(who: str, strength: float) -> dict[str, Any]:
        module = trained(who, strength, part, sizes, 0, passes)
        return {"accuracy": accuracy(module, part.x_test, part.y_test)}

    control = CONTROLS[name]
    plain = store(partial(clean, control, 0.0), set=set_name, method=control, stage="choose", strength=0.0)["accuracy"]
    best = 0.0
    for strength in grid:
        work = partial(clean, name, strength)
        found = store(work, set=set_name, method=name, stage="choose", strength=strength)["accuracy"]
        if found < plain - COST:
            break
        best = strength
    return best


def measure(
    name: str, strength: float, data: Dataset, sizes: tuple[int, ...], seed: int, passes: int
) -> dict[str, Any]:
    started = time.perf_counter()
    used = (
        name if strength or name not in GRIDS else CONTROLS[name]
    )  # no strength obeys the rule: the method without it
    module = trained(used, strength, data, sizes, seed, passes)
    seconds = time.perf_counter() - started
    return {"strength": strength, "seconds": seconds, "curves": curves(module, data, seed)}


def compute(
    set_name: str, data: Dataset, sizes: Sizes, store: Store, seeds: int, passes: int, most: int | None
) -> None:
    """All that is missing of a set; `most` is how many strengths a method may choose from."""
    strengths = {name: chosen(name, data, set_name, sizes, passes, store, grid[:most]) for name, grid in GRIDS.items()}
    for name in METHODS:
        strength = strengths.get(FROM.get(name, name), 0.0)
        for seed in range(seeds):
            work = partial(measure, name, strength, data, sizes, seed, passes)
            store(work, set=set_name, method=name, seed=seed)


def summary(store: Store, set_name: str) -> list[dict[str, Any]]:
    """One row per kind and level of noise: every method's mean over seeds, its spread under "spreads"."""
    runs = {name: found for name in METHODS if (found := store.values(set=set_name, method=name, stage=None))}
    rows = []
    for kind, levels in LEVELS.items():
        for place, level in enumerate(levels):
            scores = {name: [cell["curves"][kind][place] for cell in found] for name, found in runs.items()}
            means = {name: statistics.mean(each) for name, each in scores.items()}
            spreads = {name: statistics.stdev(each) if len(each) > 1 else 0.0 for name, each in scores.items()}
            rows.append({"set": set_name, "noise": kind, "level": level, **means, "spreads": spreads})
    return rows


def wins(rows: list[dict[str, Any]], ours: str, other: str) -> tuple[list[str], list[str]]:
    """Where ours is ahead by more than two standard deviations of the difference, and where it is behind by as much."""
    ahead, behind = [], []
    for row in rows:
        if row["noise"] == "clean":
            continue
        spread = 2 * (row["spreads"][ours] ** 2 + row["spreads"][other] ** 2) ** 0.5
        where = f"{row['noise']} {row['level']:g}"
        if row[ours] - row[other] > spread:
            ahead.append(where)
        elif row[other] - row[ours] > spread:
            behind.append(where)
    return ahead, behind


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each robust method against each other one on a set: its price on clean data, where it wins and where it loses."""
    clean = rows[0]
    found = []
    for ours in ROBUST:
        for other in METHODS:
            if other in ROBUST or ours not in clean or other not in clean:
                continue
            ahead, behind = wins(rows, ours, other)
            found.append(
                {
                    "set": clean["set"],
                    "ours": ours,
                    "against": other,
                    "clean": clean[ours] - clean[other],
                    "wins": ", ".join(ahead) or "nowhere",
                    "loses": ", ".join(behind) or "nowhere",
                }
            )
    return found


def costs(device: str, rows: int, box_rows: int, columns: int = 784, units: int = 300) -> list[dict[str, Any]]:
    """Seconds of a W-step of the first layer of 784-300-10 with the paper's ReLU; the Gram matrix is given, as from the second pass on."""
    data = load("mnist", device)
    found: list[dict[str, Any]] = []
    kinds: tuple[tuple[str, Uncertainty | None, int], ...] = (
        ("ridge", None, rows),
        ("noise", Noise(0.1), rows),
        ("ball", FrobeniusBall(1.0), rows),
        ("ridge", None, box_rows),
        ("box", BoxBall(0.05), box_rows),
    )
    for name, kind, count in kinds:
        layer = Layer(
            lnn.operators.Dense(columns, units), lnn.activations.ReLU(), lnn.penalties.L2(1e-3), uncertainty=kind
        )
        x, generator = data.x[:count, -columns:], torch.Generator().manual_seed(0)
        weights = Affine((0.05 * torch.randn(units, columns, generator=generator)).to(x), x.new_zeros(units))
        z = (x @ weights.w.T).relu()
        z = (z + 0.1 * torch.randn(z.shape, generator=generator).to(z)).relu()
        design = Design(x)
        seconds = [_timed(layer, design, z, weights) for _ in range(1 if name == "box" else 4)]
        found.append({"block": name, "rows": count, "seconds": min(seconds[1:] or seconds)})
    plain = {row["rows"]: row["seconds"] for row in found if row["block"] == "ridge"}
    return [row | {"times ridge": row["seconds"] / plain[row["rows"]]} for row in found]


def _timed(layer: Layer, design: Design, z: Tensor, weights: Affine) -> float:
    synchronise: Callable[[], object] = torch.cuda.synchronize if z.is_cuda else lambda: None
    synchronise()
    started = time.perf_counter()
    update_weights(layer, design, z, weights)
    synchronise()
    return time.perf_counter() - started


def run(settings: Settings) -> None:
    store, quick = settings.store("robust"), settings.quick
    seeds, most = (2, 1) if quick else (SEEDS, None)
    if not store.find(task="cost"):  # all in one run, since each is compared with the first
        found = costs(settings.device, *((200, 20, 30, 5) if quick else (60_000, 2_000)))
        store.add_all([({"task": "cost", "block": row["block"], "rows": row["rows"]}, row) for row in found])
    table("a W-step on MNIST, 784-300", store.values(task="cost"))
    for set_name in ("mnist",) if quick else SIZES:
        data, sizes = load(set_name, settings.device), SIZES[set_name]
        if quick:
            data, sizes = small(data, 200), (50, 10, 10)
        compute(set_name, data, sizes, store, seeds, 1 if quick else PASSES[set_name], most)
        found = summary(store, set_name)
        title = f"{set_name}: test accuracy, mean of {seeds} seeds"
        table(title, [{k: v for k, v in r.items() if k != "spreads"} for r in found])
        table(f"{set_name}: by more than two standard deviations", verdicts(found))
    strengths = {f"{r.fields['set']}; {r.fields['method']}": r.value["strength"] for r in store.find(seed=0)}
    print("\nstrengths chosen:", json.dumps(strengths, indent=1))
