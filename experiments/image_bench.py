"""The parts of the experiment on convolutional networks: their data and networks, how much is trained, the methods and their grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from experiments.datasets import Dataset
from experiments.image_lifted import lifted
from experiments.image_training import (
    Images,
    Layout,
    Step,
    Task,
    generated,
    gradient,
    images,
    optimisers,
    step_seconds,
)
from experiments.methods import Scorer
from experiments.store import Fields, Store
from experiments.training import Cell, train

__all__ = ["GRIDS", "LIFTED", "METHODS", "QUICK", "SETTINGS", "Bench", "Scale", "Setting", "best_layout", "held_back"]

BATCH = 250
HELD, TUNING = 5000, (100, 101)  # rows held back from a choice, and its seeds, with which nothing is tested

Method = Callable[[Task], Iterator[Scorer]]
LIFTED = "lifted, automatic"
METHODS: dict[str, Method] = {LIFTED: lifted, "SGD": gradient, "AdamW": gradient, "Muon": gradient, "Adam": gradient}
# Rates and weight decays to choose from, rates also beyond their ends; a method that is not named here has nothing to choose.
GRIDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "SGD": ((0.02, 0.05, 0.1, 0.2), (5e-4, 2e-3)),
    "AdamW": ((5e-4, 1e-3, 2e-3, 4e-3), (0.01, 0.2)),
    "Muon": ((0.005, 0.01, 0.02, 0.05), (0.01, 0.1)),
    "Adam": ((5e-4, 1e-3, 2e-3, 4e-3), (0.0,)),
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
    "init": Setting("mnist", "LeNet", 17),
    "bcd": Setting("mnist", "LeNet", 5),
    "bcd-max": Setting("mnist", "LeNet", 5),
    "lam-mnist": Setting("mnist", "LeNet", 5),
    "lam-cifar": Setting("cifar10", "six convolutions", 8, augmented=True, standardised=True),
    "cpu": Setting("mnist", "LeNet", 3),
}


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


QUICK = Scale(seeds=1, rows=10, passes=1, options=2, batch=10, divide=16, turns=1)


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

    @property
    def passes(self) -> int:
        return self.scale.capped(self.setting.passes)

    def task(self, kept: Dataset, passes: int, seed: int, settings: Mapping[str, Any], batch: int = BATCH) -> Task:
        x = kept.x.contiguous(memory_format=self.layout.memory_format)
        source = Images(x, kept.y, self.setting.augmented, self.layout)
        batch = self.scale.batch or batch
        return Task(source, self.setting.network, passes, seed, batch, settings, self.scale.divide)

    def train(self, method: Method, task: Task, kept: Dataset) -> Cell:
        """A first call loads libraries and kernels, and is not part of the time of any method."""
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
        batch = settings.get("batch", BATCH)
        return self.train(METHODS[method], self.task(data, passes, seed, settings, batch), data)


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
