"""Comparisons of initial weights at equal total time, with other data and tuned rates than sec. 7 of the paper has.

A comparison is a data set, an architecture and a budget: the seconds in which lifted weights are made and then trained for so many epochs
of batch 100. All initial weights have this budget. Their recipe, a rate, a schedule, a batch size, the scaling of inputs and as many
epochs as fit, is chosen on training rows that are held back. It is then run once on the test rows, with seeds that were not used in the
choice. equal_time.py runs comparisons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple

import torch

from experiments import starts
from experiments.batched import Schedule
from experiments.cells import named, short
from experiments.datasets import Dataset, load, regression
from experiments.starts import Sizes, Start

__all__ = ["BATCH", "CONTROL", "LIFTED", "RANDOM", "SMALL", "STARTS", "TUNING", "Comparison", "Recipe", "Stage"]

LIFTED, CONTROL = "Lifted", "He + fitted head"
RANDOM: dict[str, Start] = {"Xavier": starts.xavier, "He": starts.he, "LSUV": starts.lsuv}
STARTS = (*RANDOM, CONTROL, LIFTED)
BATCH, SMALL = 100, 1e-5
RATES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
_MORE_RATES = (*RATES, 1e-1)  # regression on small sets often takes the largest there is
_USUAL = 1e-3  # torch's own for Adam, which stays constant
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")
TUNING = (
    100  # choices are made with seeds from here on, tests with those from 0 on; the rest by it is the number of a split
)
ANY_INPUTS: tuple[Inputs, ...] = ("given", "standardised")
_HELD, _SHARE = 10_000, 6  # rows held back: at most so many, and one in so many

Stage = Literal["tune", "test"]
Inputs = Literal["given", "standardised"]


class Recipe(NamedTuple):
    """How to train: the rate of Adam, what becomes of it, rows per step, passes over them, and how columns of inputs are scaled."""

    rate: float
    schedule: Schedule
    batch: int
    epochs: int
    inputs: Inputs = "given"

    def __str__(self) -> str:
        return f"{self.step}, {self.length}"

    @property
    def step(self) -> str:
        return f"{short(self.rate)} {self.schedule}" + ", standardised inputs" * (self.inputs == "standardised")

    @property
    def length(self) -> str:
        return f"batch {self.batch}, {self.epochs} epochs"


@dataclass(frozen=True)
class Comparison:
    """A data set, an architecture and a budget.

    data        a name of `datasets.load`
    hidden      widths of the hidden layers
    epochs      of batch 100 from the lifted weights: with the time of making those, the budget
    rows        training rows, drawn anew for each seed; None for all
    precision   of the standard networks' training: weights, optimiser and all
    batches     sizes that a recipe may have
    passes      of the lifted phase; None for as many as `lifted_` takes by itself
    clock       whose seconds the budget counts: of the machine's own device, or of two threads of its CPU
    inputs      that a recipe may have
    tuned       whether rates and schedules are chosen; if not, all train with torch's usual rate
    cap         of a recipe's epochs, where there is one
    """

    data: str
    hidden: Sizes
    epochs: int = 17
    rows: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    batches: tuple[int, ...] = (BATCH,)
    passes: int | None = 3
    clock: Literal["own", "cpu"] = "own"
    inputs: tuple[Inputs, ...] = ("given",)
    tuned: bool = True
    cap: int | None = None

    @property
    def title(self) -> str:
        """In short, what is not usual."""
        parts = [self.data.replace("/", "-"), named(self.hidden), f"{self.epochs}-epochs"]
        parts += [f"{self.passes or 'auto'}-passes"] if self.passes != 3 else []
        parts += [f"{self.rows}-rows"] if self.rows else []
        parts += [self.precision] if self.precision != "float32" else []
        parts += ["any-inputs"] if len(self.inputs) > 1 else []
        parts += ["untuned"] if not self.tuned else []
        return "_".join([*parts, *(["cpu-clock"] if self.clock == "cpu" else [])])

    @property
    def real(self) -> bool:
        """Regression, scored by the root mean squared error: lower is better."""
        return self.data.startswith("uci/") or self.data in ("california", "friedman")

    @property
    def split(self) -> bool:
        """Whether every seed has training rows of its own."""
        return self.real or self.rows is not None

    def tuning_seeds(self, tests: int, choices: int) -> list[int]:
        """Of the choice: so many for all tests or, where each seed's test rows are others' training rows, for each."""
        if not self.real:
            return list(range(TUNING, TUNING + choices))
        return [TUNING * again + split for split in range(tests) for again in range(1, choices + 1)]

    def rows_of(self, stage: Stage, seed: int, device: str, inputs: Inputs = "given") -> tuple[Dataset, float]:
        """To train on and to score on; real responses are standardised, and what 1 then is in their own units comes with them."""
        data = _loaded(self.data, seed % TUNING if self.real else 0)
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed if self.split else 0))
        held = min(_HELD, len(order) - self.rows if self.rows else len(order) // _SHARE)
        back, rest = order[:held], order[held:]
        kept = rest[: self.rows] if self.rows else rest if stage == "tune" else order
        if stage == "tune":
            data = data._replace(x_test=data.x[back], y_test=data.y[back])
        data = data._replace(x=data.x[kept], y=data.y[kept])
        if inputs == "standardised":
            mean, scale = data.x.mean(0), data.x.std(0)
            scale[scale == 0] = 1.0
            data = data._replace(x=(data.x - mean) / scale, x_test=(data.x_test - mean) / scale)
        unit = float(data.y.double().std(correction=0)) if self.real else 1.0
        if self.real:
            mean = data.y.mean()
            data = data._replace(y=(data.y - mean) / unit, y_test=(data.y_test - mean) / unit)
        return Dataset(*(part.to(device) for part in data)), unit

    def start(self, name: str) -> Start:
        lifted: dict[str, Start] = {CONTROL: starts.fitted_head, LIFTED: partial(starts.fenchel, passes=self.passes)}
        return (RANDOM | lifted)[name]

    def recipes(self, start_seconds: float, budget: float, epoch_seconds: dict[int, float]) -> list[Recipe]:
        """All that a start may choose from. What it has left of the budget is rounded up to whole epochs."""
        rates = (_MORE_RATES if self.real else RATES) if self.tuned else (_USUAL,)
        schedules = SCHEDULES if self.tuned else SCHEDULES[:1]
        counts = {b: max(1, math.ceil((budget - start_seconds) / epoch_seconds[b] - 1e-9)) for b in self.batches}
        lengths = [(batch, min(count, self.cap or count)) for batch, count in counts.items()]
        return [Recipe(r, s, b, n, i) for i in self.inputs for b, n in lengths for r in rates for s in schedules]


@cache
def _loaded(name: str, split: int) -> Dataset:
    """With the seed's own split, where a data set has several; one for all otherwise."""
    real = Comparison(name, ()).real
    return regression(name, split) if real else load(name)
