"""Training from scratch: ours against its control and its opponents, accuracy against wall time, in one run on one machine.

`python -m experiments.training [cpu|cuda] [quick]` (`make bench-training`). Every cell is one line of results/training-DEVICE.jsonl,
written when it is done; a run that is stopped goes on with the cells that are missing. On the CPU: MNIST, 784-300-10, all methods, and
scikit-learn's on four networks and both sets. On a GPU: four networks, MNIST and Fashion-MNIST, the methods that run there. Grids of
settings are searched on a tenth of the training set held back, one seed; then every seed trains on all rows. Times are the method's own,
without the evaluations in between.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from experiments import methods
from experiments.datasets import Dataset, load
from experiments.methods import Scorer, Task
from experiments.screen import RESULTS, machine, table
from liftednn.files import beside

PASSES, SEEDS, GOAL = 17, 5, 0.975
# The small problem: so many digits, other ones for every seed, and batches a fifth of the usual ones.
FEW, FEW_PASSES = 1000, 40
NETWORKS = {
    "300": (784, 300, 10),
    "300-100": (784, 300, 100, 10),
    "500-200-100": (784, 500, 200, 100, 10),
    "400-200-100-50": (784, 400, 200, 100, 50, 10),
    "10 x 100": (784, *[100] * 10, 10),
}
Method = Callable[[Task], Iterator[Scorer]]
Cell = dict[str, Any]


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


class Cells:
    """The finished cells, one JSON line each; a line cut off by a crash is forgotten."""

    def __init__(self, path: Path, keep: bool = True) -> None:
        """With keep=False the file is only read."""
        self.path = path
        path.parent.mkdir(exist_ok=True)
        whole = [line for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []
        self.done: dict[str, Cell] = {cell["key"]: cell for cell in map(json.loads, whole)}
        if not keep:
            return
        with beside(path) as part:
            part.write_text("".join(whole))

    def __call__(self, key: str, work: Callable[[], Cell]) -> Cell:
        if key not in self.done:
            self.done[key] = {"key": key, **work(), "machine": machine()}
            with self.path.open("a") as file:
                file.write(json.dumps(self.done[key]) + "\n")
        return self.done[key]

    def seeds(self, prefix: str, name: str) -> list[Cell]:
        """The runs of one method, all seeds."""
        return [cell for key, cell in self.done.items() if key.startswith(f"{prefix}; {name}; seed")]


def accuracy(score: Scorer, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((score(x).argmax(1) == y).double().mean())


def train(method: Method, task: Task, x: torch.Tensor, y: torch.Tensor) -> Cell:
    """Accuracy on (x, y) and the seconds spent after each pass."""
    accuracies: list[float] = []
    spent: list[float] = []
    total = 0.0
    passes = method(task)
    while True:
        started = _now(task)
        score = next(passes, None)
        total += _now(task) - started
        if score is None:
            return {"accuracy": accuracies, "seconds": spent, "settings": dict(task.settings)}
        accuracies.append(accuracy(score, x, y))
        spent.append(total)


def warm_up(names: Sequence[str], device: str) -> None:
    """A first call loads libraries and kernels; nobody's time is to hold that."""
    data = load("mnist", device)
    for name in names:
        first = settings(name, device)[0]
        task = Task(data.x[:2000], data.y[:2000], (784, 20, 10), 1, 0, first)
        train(METHODS[name][0], task, data.x_test, data.y_test)


def _now(task: Task) -> float:
    if task.x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def choose(name: str, data: Dataset, network: str, passes: int, cells: Cells, prefix: str) -> list[Cell]:
    """Every setting of a method, trained with seed 0 on all but the rows held back and scored on those."""
    label = f"{prefix} {network}; {name}; choose {passes}"
    options = settings(name, data.x.device.type)
    return choose_among(METHODS[name][0], options, data, passes, cells, label, NETWORKS[network])


def choose_among(
    method: Method,
    options: list[dict[str, Any]],
    data: Dataset,
    passes: int,
    cells: Cells,
    label: str,
    sizes: tuple[int, ...] = NETWORKS["300"],
) -> list[Cell]:
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(2024)).to(data.x.device)
    cut = len(order) // 10
    kept, back = order[cut:], order[:cut]
    x, y, x_back, y_back = data.x[kept], data.y[kept], data.x[back], data.y[back]
    found = []
    for setting in options:
        task = Task(x, y, sizes, passes, 0, setting)
        found.append(cells(f"{label} {json.dumps(setting)}", partial(train, method, task, x_back, y_back)))
    return found


def run(names: Sequence[str], data_name: str, network: str, device: str, cells: Cells, seeds: int) -> None:
    """All seeds of all methods on one network; settings by last accuracy on the rows held back."""
    try:
        data = load(data_name, device)
    except FileNotFoundError as error:
        print(f"left out: {error}")
        return
    for name in track(names, description=f"{data_name} {network}"):
        method, passes = METHODS[name]
        options = settings(name, device)
        best = options[0]
        if len(options) > 1:
            tried = choose(name, data, network, passes, cells, data_name)
            best = max(tried, key=lambda cell: cell["accuracy"][-1])["settings"]
        for seed in range(1 if name in ONE_SEED else seeds):
            task = Task(data.x, data.y, NETWORKS[network], passes, seed, best)
            cells(f"{data_name} {network}; {name}; seed {seed}", partial(train, method, task, data.x_test, data.y_test))


def race(cells: Cells, device: str, seeds: int) -> None:
    """Time to an accuracy of .975 on MNIST 300: settings and number of passes by that time on the rows held back."""
    data = load("mnist", device)
    for name in ("lifted, automatic", "lifted, chosen", "Adam", "Adam, cosine"):
        method, _ = METHODS[name]
        tried = [
            (passes, cell)
            for passes in ((2, 3, 5) if name != "Adam" else (PASSES,))
            for cell in choose(name, data, "300", passes, cells, "mnist")
        ]
        passes, best = min(tried, key=lambda pair: time_to(pair[1], GOAL))
        for seed in range(seeds):
            task = Task(data.x, data.y, NETWORKS["300"], min(passes, 8), seed, best["settings"])
            cells(f"race; {name}; seed {seed}", partial(train, method, task, data.x_test, data.y_test))


def few(cells: Cells, device: str, seeds: int) -> None:
    """A thousand digits, 784-300-10: ours with nothing chosen, Adam with all of its grid."""
    data = load("mnist", device)
    for name in ("lifted, automatic", "Adam", "Adam, cosine"):
        method, _ = METHODS[name]
        options = settings(name, device)
        small = [{**each, "batch": each["batch"] // 5} if "batch" in each else each for each in options]
        best = small[0]
        if len(small) > 1:
            tried = choose_among(method, small, fewer(data, 0), FEW_PASSES, cells, f"{FEW} digits; {name}; choose")
            best = max(tried, key=lambda cell: cell["accuracy"][-1])["settings"]
        for seed in range(seeds):
            part = fewer(data, seed)
            task = Task(part.x, part.y, NETWORKS["300"], FEW_PASSES, seed, best)
            cells(f"{FEW} digits; {name}; seed {seed}", partial(train, method, task, data.x_test, data.y_test))


def fewer(data: Dataset, seed: int) -> Dataset:
    chosen = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(100 + seed))[:FEW].to(data.x.device)
    return Dataset(data.x[chosen], data.y[chosen], data.x_test, data.y_test)


def time_to(cell: Cell, goal: float) -> float:
    """Seconds at the end of the first pass that reaches the goal."""
    reached = (spent for seen, spent in zip(cell["accuracy"], cell["seconds"], strict=True) if seen >= goal)
    return next(reached, float("inf"))


def summary(cells: Cells, prefix: str) -> list[dict[str, Any]]:
    """One row per method: medians over seeds, and the spread of the last accuracy."""
    rows = []
    for name in METHODS:
        runs = cells.seeds(prefix, name)
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


def draw(cells: Cells, prefix: str, out: Path) -> None:
    """Test accuracy against wall time, one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = (
        "#003D66",
        "#0072B2",
        "#56B4E9",
        "#D55E00",
        "#E69F00",
        "#009E73",
        "#90C8AC",
        "#CC79A7",
        "#000000",
        "#777777",
        "#BBBBBB",
    )
    figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
    for name, colour in zip(METHODS, colours, strict=True):
        for place, cell in enumerate(cells.seeds(prefix, name)):
            label = name if place == 0 else None
            axis.plot(cell["seconds"], cell["accuracy"], ".-", color=colour, linewidth=1, markersize=4, label=label)
    axis.set(xscale="log", xlabel="seconds", ylabel="test accuracy", ylim=(0.88, 0.99), title=prefix)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def main() -> None:
    device = "cuda" if "cuda" in sys.argv[1:] else "cpu"
    cells = Cells(RESULTS / f"training-{device}.jsonl")
    seeds = 1 if "quick" in sys.argv[1:] else SEEDS
    warm_up([name for name in METHODS if device == "cpu" or name not in CPU_ONLY], device)
    race(cells, device, seeds)
    few(cells, device, seeds)
    prefixes = []
    for data in ("mnist", "fashion") if device == "cuda" else ("mnist",):
        for network in NETWORKS if device == "cuda" else ("300",):
            deep = network == "10 x 100"
            names = [n for n in METHODS if (device == "cpu" or n not in CPU_ONLY) and not (deep and n in NOT_DEEP)]
            if deep and data != "mnist":
                continue
            run(names, data, network, device, cells, seeds)
            prefixes.append(f"{data} {network}")
    if device == "cpu":  # a CPU's method: last, since it takes longest
        for data, network in itertools.product(("mnist", "fashion"), list(NETWORKS)[:4]):
            run(["scikit-learn MLP"], data, network, device, cells, seeds)
    for prefix in [*prefixes, "race", f"{FEW} digits"]:
        if summary(cells, prefix):
            table(f"{prefix}, {device}: test accuracy, medians over seeds", summary(cells, prefix))
    draw(cells, prefixes[0], RESULTS / f"training-{device}.png")


if __name__ == "__main__":
    main()
