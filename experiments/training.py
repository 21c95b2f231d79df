"""Training from scratch: ours against its control and its opponents, accuracy against wall time, in one run on one machine.

`python -m experiments training [--device cuda]`. On the CPU: MNIST, 784-300-10, all methods, and scikit-learn's on four networks and
both sets. On a GPU: four networks, MNIST and Fashion-MNIST, the methods that run there. Grids of settings are searched on a tenth of the
training set held back, one seed; then every seed trains on all rows. Times are the method's own, without the evaluations in between.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from experiments import methods
from experiments.batched import clock
from experiments.datasets import Dataset, load, small
from experiments.markdown import table
from experiments.methods import Scorer, Task
from experiments.settings import Settings
from experiments.store import Store

TAKES = ("device", "seeds")
PASSES, SEEDS, GOAL = 17, 5, 0.975
TO_GOAL = "time to .975"
# The small problem: so many digits, other ones for every seed, and batches a fifth of the usual ones.
FEW, FEW_PASSES = 1000, 40
NETWORKS = {
    "300": (784, 300, 10),
    "300-100": (784, 300, 100, 10),
    "500-200-100": (784, 500, 200, 100, 10),
    "400-200-100-50": (784, 400, 200, 100, 50, 10),
    "10 x 100": (784, *[100] * 10, 10),
}
DEEP = "10 x 100"
NARROW = 50  # columns of a quick run
Method = Callable[[Task], Iterator[Scorer]]
Cell = dict[str, Any]


class AnyTask(Protocol):
    """What a run is timed and named by."""

    @property
    def x(self) -> torch.Tensor: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


T = TypeVar("T", bound=AnyTask)


def grid(method: str, cosine: bool, device: str) -> list[dict[str, Any]]:
    """Rates and batch sizes of a gradient method; on the GPU, where all networks are searched, the three rates in the middle."""
    known = {"adam": [5e-4, 1e-3, 2e-3, 4e-3, 8e-3], "sgd": [0.02, 0.05, 0.1, 0.2, 0.4]}[method]
    rates = known if device == "cpu" else known[1:4]
    batches = (100, 250, 500)
    return [{"method": method, "rate": rate, "batch": size, "cosine": cosine} for size in batches for rate in rates]


def settings(name: str, device: str) -> list[dict[str, Any]]:
    """What each method may choose from."""
    if name.split(",")[0] in ("Adam", "SGD"):
        return grid(name.split(",")[0].lower(), "cosine" in name, device)
    others: dict[str, list[dict[str, Any]]] = {
        "lifted, chosen": [{"batch": batch, "step": step} for batch in (250, 500) for step in (0.05, 0.1)],
        "lifted, full batch": [{"lam": lam, "rho": 1e-3} for lam in (0.1, 1.0)],
        "LPOM": [{"method": "lpom"}],
        "Zeng's BCD": [{"method": "zeng", "alpha": 1.0}],
    }
    return others.get(name, [{}])


# name -> (method, passes)
METHODS: dict[str, tuple[Method, int]] = {
    "lifted, automatic": (methods.minibatch, PASSES),
    "lifted, chosen": (methods.minibatch, PASSES),
    "lifted, full batch": (methods.full_batch, 10),
    "Adam": (methods.gradient, PASSES),
    "Adam, cosine": (methods.gradient, PASSES),
    "SGD": (methods.gradient, PASSES),
    "SGD, cosine": (methods.gradient, PASSES),
    "L-BFGS": (methods.lbfgs, 12),
    "scikit-learn MLP": (methods.scikit, PASSES),
    "LPOM": (methods.peer, 5),
    "Zeng's BCD": (methods.peer, 10),
}
ONE_SEED = ("LPOM", "Zeng's BCD")
NOT_DEEP = ("SGD", "SGD, cosine", "L-BFGS")
CPU_ONLY = ("scikit-learn MLP", *ONE_SEED)


@dataclass(frozen=True)
class Scale:
    """How much is trained: seeds, and at most so many rows, passes and settings to choose from; None for no bound."""

    seeds: int
    rows: int | None = None
    passes: int | None = None
    options: int | None = None
    sizes: tuple[int, ...] | None = None

    def data(self, name: str, device: str) -> Dataset:
        return load(name, device) if self.rows is None else small(load(name, device), self.rows, NARROW)

    def capped(self, passes: int) -> int:
        return min(passes, self.passes or passes)

    def settings(self, name: str, device: str) -> list[dict[str, Any]]:
        return settings(name, device)[: self.options]

    def network(self, name: str) -> tuple[int, ...]:
        return self.sizes or NETWORKS[name]


QUICK = Scale(1, 200, 2, 2, (NARROW, 20, 10))


def accuracy(score: Scorer, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((score(x).argmax(1) == y).double().mean())


def train(method: Callable[[T], Iterator[Scorer]], task: T, x: torch.Tensor, y: torch.Tensor) -> Cell:
    """Accuracy on (x, y) and the seconds spent after each pass."""
    accuracies: list[float] = []
    spent: list[float] = []
    total = 0.0
    passes = method(task)
    while True:
        started = clock(task.x)
        score = next(passes, None)
        total += clock(task.x) - started
        if score is None:
            return {"accuracy": accuracies, "seconds": spent, "settings": dict(task.settings)}
        accuracies.append(accuracy(score, x, y))
        spent.append(total)


def warm_up(names: Sequence[str], device: str) -> None:
    """A first call loads libraries and kernels, and is not part of the time of any method."""
    data = load("mnist", device)
    for name in names:
        first = settings(name, device)[0]
        task = Task(data.x[:2000], data.y[:2000], (784, 20, 10), 1, 0, first)
        train(METHODS[name][0], task, data.x_test, data.y_test)


def choose(
    learn: Method,
    options: list[dict[str, Any]],
    data: Dataset,
    sizes: tuple[int, ...],
    passes: int,
    store: Store,
    **fields: Any,
) -> list[Cell]:
    """Every setting of a method, trained with seed 0 on all but the rows held back and scored on those."""
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(2024)).to(data.x.device)
    cut = len(order) // 10
    kept, back = order[cut:], order[:cut]
    x, y, x_back, y_back = data.x[kept], data.y[kept], data.x[back], data.y[back]
    found = []
    for setting in options:
        work = partial(train, learn, Task(x, y, sizes, passes, 0, setting), x_back, y_back)
        found.append(store(work, **fields, stage="choose", passes=passes, settings=setting))
    return found


def compute(names: Sequence[str], data_name: str, network: str, store: Store, scale: Scale) -> None:
    """All seeds of all methods on one network; settings by last accuracy on the rows held back."""
    try:
        data = scale.data(data_name, store.device)
    except FileNotFoundError as error:
        store.tell(f"left out: {error}")
        return
    task, sizes = f"{data_name} {network}", scale.network(network)
    for name in names:
        method, passes = METHODS[name][0], scale.capped(METHODS[name][1])
        options = scale.settings(name, store.device)
        best = options[0]
        if len(options) > 1:
            tried = choose(method, options, data, sizes, passes, store, task=task, method=name)
            best = max(tried, key=lambda cell: cell["accuracy"][-1])["settings"]
        for seed in range(1 if name in ONE_SEED else scale.seeds):
            work = partial(train, method, Task(data.x, data.y, sizes, passes, seed, best), data.x_test, data.y_test)
            store(work, task=task, method=name, seed=seed)


def reach_goal(store: Store, scale: Scale) -> None:
    """Time to an accuracy of .975 on MNIST 300: settings and number of passes by that time on the rows held back."""
    data, sizes = scale.data("mnist", store.device), scale.network("300")
    for name in ("lifted, automatic", "lifted, chosen", "Adam", "Adam, cosine"):
        method, options = METHODS[name][0], scale.settings(name, store.device)
        tried = [
            (passes, cell)
            for passes in dict.fromkeys(map(scale.capped, (2, 3, 5) if name != "Adam" else (PASSES,)))
            for cell in choose(method, options, data, sizes, passes, store, task="mnist 300", method=name)
        ]
        passes, best = min(tried, key=lambda pair: time_to(pair[1], GOAL))
        for seed in range(scale.seeds):
            task = Task(data.x, data.y, sizes, min(passes, 8), seed, best["settings"])
            store(partial(train, method, task, data.x_test, data.y_test), task=TO_GOAL, method=name, seed=seed)


def few(store: Store, scale: Scale) -> None:
    """A thousand digits, 784-300-10: ours with nothing chosen, Adam with all of its grid."""
    data, sizes, passes = scale.data("mnist", store.device), scale.network("300"), scale.capped(FEW_PASSES)
    for name in ("lifted, automatic", "Adam", "Adam, cosine"):
        method, options = METHODS[name][0], scale.settings(name, store.device)
        small = [{**each, "batch": each["batch"] // 5} if "batch" in each else each for each in options]
        best = small[0]
        if len(small) > 1:
            tried = choose(method, small, fewer(data, 0), sizes, passes, store, task=f"{FEW} digits", method=name)
            best = max(tried, key=lambda cell: cell["accuracy"][-1])["settings"]
        for seed in range(scale.seeds):
            part = fewer(data, seed)
            work = partial(train, method, Task(part.x, part.y, sizes, passes, seed, best), data.x_test, data.y_test)
            store(work, task=f"{FEW} digits", method=name, seed=seed)


def fewer(data: Dataset, seed: int) -> Dataset:
    chosen = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(100 + seed))[:FEW].to(data.x.device)
    return Dataset(data.x[chosen], data.y[chosen], data.x_test, data.y_test)


def time_to(cell: Cell, goal: float) -> float:
    """Seconds at the end of the first pass that reaches the goal."""
    reached = (spent for seen, spent in zip(cell["accuracy"], cell["seconds"], strict=True) if seen >= goal)
    return next(reached, float("inf"))


def seeds_of(store: Store, task: str, method: str) -> list[Cell]:
    """The runs of one method, all seeds."""
    return store.values(task=task, method=method, stage=None)


def summary(store: Store, task: str) -> list[dict[str, Any]]:
    """One row per method: medians over seeds, and the spread of the last accuracy."""
    rows = []
    for name in METHODS:
        runs = seeds_of(store, task, name)
        if not runs:
            continue
        last = [cell["accuracy"][-1] for cell in runs]
        rows.append(
            {
                "method": name,
                "seeds": len(runs),
                "first": statistics.median(cell["accuracy"][0] for cell in runs),
                "last": statistics.median(last),
                "mean": statistics.mean(last),
                "spread": max(last) - min(last),
                "passes": len(runs[0]["accuracy"]),
                "first_s": statistics.median(cell["seconds"][0] for cell in runs),
                "seconds": statistics.median(cell["seconds"][-1] for cell in runs),
                "to_.975_s": statistics.median(time_to(cell, GOAL) for cell in runs),
                "settings": json.dumps(runs[0]["settings"]),
            }
        )
    return rows


def run(settings: Settings) -> None:
    store, device = settings.store("training"), settings.device
    scale = QUICK if settings.quick else Scale(settings.seeds or SEEDS)
    own = [name for name in METHODS if device == "cpu" or name not in CPU_ONLY]
    if not settings.quick:
        warm_up(own, device)
    reach_goal(store, scale)
    few(store, scale)
    tasks = [("mnist", "300")]
    if device == "cuda":
        tasks = [(data, net) for data in ("mnist", "fashion") for net in NETWORKS if (data, net) != ("fashion", DEEP)]
    for data, network in tasks:
        compute([name for name in own if network != DEEP or name not in NOT_DEEP], data, network, store, scale)
    if device == "cpu" and not settings.quick:  # a CPU's method: last, since it takes longest
        for data, network in itertools.product(("mnist", "fashion"), list(NETWORKS)[:4]):
            compute(["scikit-learn MLP"], data, network, store, scale)
    for title in [*(f"{data} {network}" for data, network in tasks), TO_GOAL, f"{FEW} digits"]:
        if summary(store, title):
            table(f"{title}, {device}: test accuracy, medians over seeds", summary(store, title))
