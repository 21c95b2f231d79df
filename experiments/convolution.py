"""Convolutional networks without normalisation: training by SGD, AdamW and Muon, and what Adam makes of initial weights.

`python -m experiments convolution --device cuda` runs the parts of a GPU, `python -m experiments convolution` that of the CPU; `--only`
names parts. Rate and weight decay of every method are chosen on training rows that are held back, by the worse of two seeds; then every
seed trains on all rows. Seconds are the method's own, without the evaluations in between.

    mnist      LeNet, 5 passes          cifar      six convolutions, 8 passes, crops and flips
    residual   the same with a residual network of eight convolutions
    init       LeNet by Adam at small rates from several initial weights, as in the paper's table
    cpu        LeNet on two threads: seconds to an accuracy of .99
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from experiments.datasets import Dataset
from experiments.image_lifted import lifted
from experiments.image_models import STARTS
from experiments.image_training import (
    Images,
    Layout,
    Step,
    Task,
    from_start,
    generated,
    gradient,
    images,
    optimisers,
    step_seconds,
)
from experiments.markdown import table
from experiments.methods import Scorer
from experiments.settings import Settings, threads
from experiments.store import Fields, Store
from experiments.training import Cell, time_to, train

TAKES = ("device", "seeds", "only")
SEEDS, CPU_SEEDS, BATCH, THREADS = 5, 3, 250, 2
HELD, TUNING = 5000, (100, 101)  # rows held back from a choice, and its seeds, with which nothing is tested
GOAL, GOAL_PASSES, GOAL_METHODS = 0.99, (1, 2, 3), ("SGD", "AdamW")
GOAL_OPTIONS = 4  # of a grid: its rates with the first weight decay
INIT_RATES, INIT_PASSES, INIT_BATCH = (1e-5, 1e-6), 17, 100

Method = Callable[[Task], Iterator[Scorer]]
LIFTED = "lifted, automatic"
# All are also run for as many seconds as the lifted model takes.
METHODS: dict[str, Method] = {LIFTED: lifted, "SGD": gradient, "AdamW": gradient, "Muon": gradient}
ORDER = (LIFTED, *(name for name in METHODS if name != LIFTED))  # of tables and pictures
# Rates and weight decays to choose from, rates also beyond their ends; a method that is not named here has nothing to choose.
GRIDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "SGD": ((0.02, 0.05, 0.1, 0.2), (5e-4, 2e-3)),
    "AdamW": ((5e-4, 1e-3, 2e-3, 4e-3), (0.01, 0.2)),
    "Muon": ((0.005, 0.01, 0.02, 0.05), (0.01, 0.1)),
}


class Setting(NamedTuple):
    """A data set, a network and a number of passes, with or without crops and flips, channels standardised or in 0 .. 1."""

    data: str
    network: str
    passes: int
    augmented: bool = False
    standardised: bool = False


SETTINGS = {
    "mnist": Setting("mnist", "LeNet", 5),
    "cifar": Setting("cifar10", "six convolutions", 8, augmented=True, standardised=True),
    "residual": Setting("cifar10", "residual", 8, augmented=True, standardised=True),
    "init": Setting("mnist", "LeNet", INIT_PASSES),
    "cpu": Setting("mnist", "LeNet", max(GOAL_PASSES)),
}
COMPARED = ("mnist", "cifar", "residual")


@dataclass(frozen=True)
class Scale:
    """How much is trained; None for no bound. `divide` makes layers narrower, `turns` is of measurements."""

    seeds: int | None = None
    rows: int | None = None
    passes: int | None = None
    options: int | None = None
    batch: int | None = None
    divide: int = 1
    turns: int = 20

    def data(self, setting: Setting, device: str) -> Dataset:
        if self.rows is not None:
            return generated(setting.data, self.rows, device)
        return images(setting.data, device, setting.standardised)

    def options_of(self, method: str) -> list[Fields]:
        rates, decays = GRIDS.get(method, ((), ()))
        grid = [{"method": method, "rate": rate, "decay": decay} for decay in decays for rate in rates]
        return (grid or [{}])[: self.options]

    def capped(self, passes: int) -> int:
        return min(passes, self.passes or passes)


QUICK = Scale(seeds=1, rows=20, passes=1, options=2, batch=20, divide=16, turns=1)


@dataclass(frozen=True)
class Bench:
    """A part with its data on the device; `warm` names the methods whose kernels are loaded."""

    store: Store
    part: str
    scale: Scale
    data: Dataset
    layout: Layout
    warm: set[str] = field(default_factory=set)

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.part]

    def task(self, kept: Dataset, passes: int, seed: int, settings: Mapping[str, Any], batch: int = BATCH) -> Task:
        x = kept.x.contiguous(memory_format=self.layout.memory_format)
        source = Images(x, kept.y, self.setting.augmented, self.layout)
        batch = self.scale.batch or batch
        return Task(source, self.setting.network, passes, seed, batch, settings, self.scale.divide)

    def train(self, method: Method, task: Task, kept: Dataset) -> Cell:
        """A first call loads libraries and kernels; nobody's time is to hold that."""
        name = f"{method.__name__} {task.settings.get('method')}"
        if name not in self.warm:
            few = Images(task.x[: 5 * task.batch], task.images.y[: 5 * task.batch], task.images.augmented, self.layout)
            for _ in method(Task(few, task.network, 1, 0, task.batch, task.settings, task.divide)):
                pass
            self.warm.add(name)
        return train(method, task, kept.x_test, kept.y_test)

    def choices(self, method: str, passes: int, options: Sequence[Fields]) -> list[Cell]:
        """Every setting, trained on all but the rows held back and scored on those, by the worse of two seeds: a rate may fail for some."""
        kept, found = held_back(self.data), []
        for option in options:
            fields = {"part": self.part, "stage": "choose", "method": method, "passes": passes, "settings": option}
            seeds = [
                self.store(partial(self._run, method, kept, passes, seed, option), **fields, seed=seed)
                for seed in (TUNING if self.scale.seeds is None else TUNING[:1])
            ]
            found.append(min(seeds, key=lambda cell: cell["accuracy"][-1]))
        return found

    def test(self, method: str, passes: int, seeds: int, settings: Mapping[str, Any]) -> None:
        """Every seed on all rows."""
        for seed in range(seeds):
            work = partial(self._run, method, self.data, passes, seed, settings)
            self.store(work, part=self.part, stage="test", method=method, passes=passes, seed=seed)

    def _run(self, method: str, data: Dataset, passes: int, seed: int, settings: Mapping[str, Any]) -> Cell:
        return self.train(METHODS[method], self.task(data, passes, seed, settings), data)


def held_back(data: Dataset) -> Dataset:
    """Training rows to train on and, in the place of test rows, training rows to score on: at most one in six of them."""
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(TUNING[0])).to(data.x.device)
    cut = min(HELD, len(order) // 6)
    return Dataset(data.x[order[cut:]], data.y[order[cut:]], data.x[order[:cut]], data.y[order[:cut]])


def best_layout(store: Store, setting: Setting, scale: Scale, data: Dataset) -> Layout:
    """The layout with the fastest step of SGD, measured once for each network: all methods have it."""
    kinds = [Layout(last, tf32) for last in (False, True) for tf32 in ((False, True) if data.x.is_cuda else (False,))]
    work = partial(_layout_seconds, kinds, setting, scale, data)
    found = store(work, stage="layout", network=setting.network)["milliseconds"]
    return kinds[min(range(len(kinds)), key=found.__getitem__)]


def _layout_seconds(kinds: Sequence[Layout], setting: Setting, scale: Scale, data: Dataset) -> Fields:
    found = []
    for layout in kinds:
        settings = {"method": "SGD", "rate": 1e-3}
        source = Images(data.x, data.y, setting.augmented, layout)
        task = Task(source, setting.network, 1, 0, scale.batch or BATCH, settings, scale.divide)
        with layout.products():
            step = Step(module := task.module(), optimisers(module, settings))
            x, y, _ = next(source.batches(task.batch, 0, 0))
            found.append(1e3 * step_seconds(step, x, y, scale.turns, scale.turns))
    return {"layouts": [layout._asdict() for layout in kinds], "milliseconds": found}


def compare(bench: Bench, seeds: int) -> None:
    """Every method for the same passes, then each for as many as take the seconds of the lifted model, with the same choices."""
    passes = bench.scale.capped(bench.setting.passes)
    settings = {method: chosen(bench, method, passes) for method in METHODS}
    for equal_seconds in (False, True):
        for method in METHODS:
            length = lengths(bench.store, bench.part, method, passes)[-1] if equal_seconds else passes
            bench.test(method, length, seeds, settings[method])


def chosen(bench: Bench, method: str, passes: int) -> Fields:
    """The settings that are best on the rows held back. Rates go on, by factors of 2, as long as the best is the least or the largest."""
    options = bench.scale.options_of(method)
    while len(options) > 1:
        best: Fields = max(bench.choices(method, passes, options), key=lambda cell: cell["accuracy"][-1])["settings"]
        rates = [option["rate"] for option in options]
        beyond = {min(rates): min(rates) / 2, max(rates): 2 * max(rates)}.get(best["rate"])
        if beyond is None or bench.scale.options is not None:
            return best
        options = [*options, {**best, "rate": beyond}]
    return options[0]


def lengths(store: Store, part: str, method: str, passes: int) -> list[int]:
    """The passes of a method: those of all methods, and as many as take at least the seconds of the lifted model, where it was run."""
    own, ours = (runs(store, part, name, passes) for name in (method, LIFTED))
    if method == LIFTED or not own or not ours:
        return [passes]
    budget, spent = (statistics.median(run["seconds"][-1] for run in found) for found in (ours, own))
    return list(dict.fromkeys([passes, max(1, math.ceil(passes * budget / spent - 1e-9))]))


def runs(store: Store, part: str, method: str, passes: int | None = None) -> list[Cell]:
    """All seeds of a method."""
    wanted = {"part": part, "stage": "test", "method": method}
    return store.values(**wanted) if passes is None else store.values(**wanted, passes=passes)


def reach_goal(bench: Bench, seeds: int) -> None:
    """Settings and number of passes by the time to the goal on the rows held back; where none reaches it, by accuracy."""
    for method in (name for name in METHODS if name in (*GOAL_METHODS, LIFTED)):
        options = bench.scale.options_of(method)[:GOAL_OPTIONS]
        tried = [
            (passes, cell)
            for passes in dict.fromkeys(map(bench.scale.capped, GOAL_PASSES))
            for cell in bench.choices(method, passes, options)
        ]
        passes, best = min(tried, key=lambda pair: (time_to(pair[1], GOAL), -pair[1]["accuracy"][-1]))
        bench.test(method, passes, seeds, best["settings"])


def initial_weights(bench: Bench, seeds: int) -> None:
    """Adam at small constant rates from every start."""
    passes = bench.scale.capped(INIT_PASSES)
    for start, rate, seed in itertools.product(STARTS, INIT_RATES, range(seeds)):
        task = bench.task(bench.data, passes, seed, {"start": start, "rate": rate}, INIT_BATCH)
        work = partial(bench.train, from_start, task, bench.data)
        bench.store(work, part=bench.part, stage="test", start=start, rate=rate, passes=passes, seed=seed)


def summary(
    store: Store, part: str, passes: int, methods: Sequence[str] = ORDER, score: str = "accuracy"
) -> list[dict[str, Any]]:
    """One row per method and length: the last pass over seeds, and the median of the seconds."""
    pairs = [(method, length) for method in methods for length in lengths(store, part, method, passes)]
    return [
        {"method": method, "passes": length} | _over_seeds(found, score)
        for method, length in pairs
        if (found := runs(store, part, method, length))
    ]


def _over_seeds(found: Sequence[Cell], score: str = "accuracy") -> dict[str, Any]:
    last = [cell[score][-1] for cell in found]
    chosen = {name: value for name, value in found[0]["settings"].items() if name != "method"}
    return {
        "seeds": len(found),
        "first": statistics.mean(cell[score][0] for cell in found),
        "mean": statistics.mean(last),
        "deviation": statistics.stdev(last) if len(last) > 1 else 0.0,
        "seconds": statistics.median(cell["seconds"][-1] for cell in found),
        "settings": ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
        ),
    }


def goal_summary(store: Store) -> list[dict[str, Any]]:
    """One row per method: the median of the seconds to the goal."""
    found = {name: runs(store, "cpu", name) for name in (LIFTED, *GOAL_METHODS)}
    return [
        {"method": name, "passes": len(own[0]["accuracy"])}
        | _over_seeds(own)
        | {"to_goal_s": statistics.median(time_to(cell, GOAL) for cell in own)}
        for name, own in found.items()
        if own
    ]


def init_summary(store: Store) -> list[dict[str, Any]]:
    """One row per start and rate: the accuracy of the start itself, and after the last pass."""
    rows = []
    for start, rate in itertools.product(STARTS, INIT_RATES):
        if found := store.values(part="init", stage="test", start=start, rate=rate):
            made = statistics.median(cell["seconds"][0] for cell in found)
            rows.append({"start": start, "rate": rate} | _over_seeds(found) | {"start_s": made})
            del rows[-1]["settings"]
    return rows


def run_part(part: str, settings: Settings, scale: Scale) -> None:
    store, setting = settings.store("convolution"), SETTINGS[part]
    data = scale.data(setting, settings.device)
    layout = best_layout(store, setting, scale, data)
    seeds = settings.seeds or scale.seeds or (CPU_SEEDS if part == "cpu" else SEEDS)
    bench = Bench(store, part, scale, data, layout)
    with layout.products():
        {"cpu": reach_goal, "init": initial_weights}.get(part, compare)(bench, seeds)


def show(part: str, store: Store, scale: Scale) -> None:
    setting = SETTINGS[part]
    title = f"{part}: {setting.network}, test accuracy, mean over seeds"
    if part == "cpu":
        table(f"{title}; seconds to {GOAL:g} on {THREADS} threads, median", goal_summary(store))
    elif part == "init":
        table(f"{title}, {scale.capped(INIT_PASSES)} passes of Adam", init_summary(store))
    else:
        table(f"{title}; seconds, median", summary(store, part, scale.capped(setting.passes)))


def parts_of(settings: Settings) -> list[str]:
    """Those named, or all that belong to the device; quick runs on a CPU have those of both, and of the data sets' networks one each."""
    if unknown := set(settings.only) - set(SETTINGS):
        raise ValueError(f"--only takes {', '.join(SETTINGS)}, got {', '.join(sorted(unknown))}")
    if settings.device != "cpu" and "cpu" in settings.only:
        raise ValueError("the part cpu measures the CPU: leave out --device")
    if settings.only or (settings.quick and settings.device == "cpu"):
        return list(settings.only or [part for part in SETTINGS if part != "cifar"])
    return ["cpu"] if settings.device == "cpu" else [part for part in SETTINGS if part != "cpu"]


def run(settings: Settings) -> None:
    """--only takes parts."""
    scale = QUICK if settings.quick else Scale()
    parts = parts_of(settings)
    for part in parts:
        with threads(THREADS if part == "cpu" else torch.get_num_threads()):
            run_part(part, settings, scale)
    for part in parts:
        show(part, settings.store("convolution"), scale)
