"""The cells of Table 1 (sec. 7): what is to be computed, and one record for each figure.

A group is an architecture and its initial weights; all its rates and seeds are trained together, and its records are stored when it is
done. A group that is incomplete is computed again from its start, so that no figure depends on where a run was interrupted. Names of
fields say what they time: `group_training_seconds` all networks of the group together, `..._alone` one network trained alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from experiments.batched import Method, Together, clock, epoch_seconds, train_together
from experiments.datasets import Dataset
from experiments.starts import Sizes, Start, he
from experiments.store import Fields, Store
from liftednn.base import Affine

__all__ = [
    "ARCHITECTURES",
    "Group",
    "Plan",
    "cells",
    "check_plan",
    "extra_epochs",
    "machine_text",
    "made",
    "measure",
    "named",
    "short",
    "sizes",
]

ARCHITECTURES: tuple[Sizes, ...] = ((300,), (300, 100), (500, 150), (500, 200, 100), (400, 200, 100, 50))


@dataclass(frozen=True)
class Plan:
    """What to compute, and where it is stored.

    rates          of the standard networks: the paper's two, and two larger ones
    more_rates     at which He's weights are also given the lifted phase's time as further epochs
    literal_rates  of the paper's columns by stochastic gradients, as printed and at rates that give its figures
    passes         of the mini-batch lifted phase
    trials         of the search for lam and passes, one search for each architecture
    held           last training rows, which the search scores on and never trains on
    search_rows    first training rows, at most, that a trial trains on; None for all that are not held back
    """

    store: Store
    architectures: tuple[Sizes, ...] = ARCHITECTURES
    rates: tuple[float, ...] = (1e-5, 1e-6, 1e-4, 1e-3)
    more_rates: tuple[float, ...] = (1e-5, 1e-6, 1e-4, 1e-3)
    literal_rates: tuple[float, ...] = (1e-5, 1e-6)
    seeds: int = 5
    epochs: int = 17
    batch: int = 100
    passes: int = 3
    trials: int = 10
    held: int = 10_000
    search_rows: int | None = None
    literal: bool = False


@dataclass(frozen=True)
class Group:
    """Initial weights of one architecture, for all rates and seeds. `phase`: they are a model by themselves, whose accuracy is kept too;
    `scale`: what the rates are multiplied by."""

    architecture: Sizes
    name: str
    start: Start
    rates: tuple[float, ...]
    epochs: int
    method: Method = "adam"
    settings: dict[str, Any] = field(default_factory=dict)
    phase: bool = False
    scale: float = 1.0

    def fields(self, plan: Plan) -> list[Fields]:
        """The names of its records, one for each rate and seed; a phase has no rate."""
        own = {"architecture": named(self.architecture), "start": self.name}
        phases = [{"kind": "phase", **own, "seed": seed} for seed in range(plan.seeds) if self.phase]
        return phases + [
            {"kind": "cell", **own, "rate": rate, "seed": seed} for rate in self.rates for seed in range(plan.seeds)
        ]

    def parameters(self, plan: Plan, rate: float | None) -> dict[str, Any]:
        own = {"architecture": named(self.architecture), "start": self.name, **self.settings}
        if rate is None:
            return own
        own |= {"rate": rate, "epochs": self.epochs, "batch": plan.batch, "method": self.method}
        return own | ({"scale": self.scale} if self.scale != 1 else {})

    def done(self, plan: Plan) -> bool:
        """Whether every record is there and of these very parameters."""
        found = [(plan.store.get(**fields), fields.get("rate")) for fields in self.fields(plan)]
        return all(value and value["parameters"] == self.parameters(plan, rate) for value, rate in found)

    def compute(self, plan: Plan, data: Dataset) -> None:
        """Make the initial weights, train all networks from them, store all records."""
        layout = sizes(self.architecture, data)
        pairs = [made(self.start, layout, seed, data) for seed in range(plan.seeds)]
        starts, start_seconds = zip(*pairs, strict=True)
        rates = self.rates or (0.0,)
        taken = [self.scale * rate for rate in rates]
        networks = Together([[weights] * len(rates) for weights in starts], taken, data, self.method)
        curves: list[Tensor] = []
        started = time.perf_counter()
        train_together(networks, self.epochs, plan.batch, range(plan.seeds), lambda _, seen: curves.append(seen.cpu()))
        shared = {"group_training_seconds": time.perf_counter() - started, "group_networks": plan.seeds * len(rates)}
        alone = self._alone(plan) if self.rates else 0.0
        records = []
        for fields in self.fields(plan):
            seed, rate = fields["seed"], fields.get("rate")
            curve = [float(seen[seed, rates.index(rate) if rate else 0]) for seen in curves]
            value = {
                "parameters": self.parameters(plan, rate),
                "rows": len(data.x),
                "start_seconds": start_seconds[seed],
            }
            if rate is None:
                value |= {"accuracy": curve[0]}
            else:
                times = {"epoch_seconds_alone": alone, "seconds_alone": self.epochs * alone + start_seconds[seed]}
                value |= shared | times | {"accuracy": curve[-1], "curve": curve}
            records.append((fields, value))
        plan.store.add_all(records)

    def _alone(self, plan: Plan) -> float:
        return _epoch_seconds(plan, self.architecture, self.method)


def made(start: Start, layout: Sizes, seed: int, data: Dataset) -> tuple[list[Affine], float]:
    """Initial weights, and the seconds they took."""
    started = clock(data.x)
    weights = start(layout, seed, data)
    return weights, clock(data.x) - started


def measure(plan: Plan, data: Dataset, architecture: Sizes, method: Method) -> None:
    """Store the time of an epoch of one network trained alone."""
    networks = Together([[he(sizes(architecture, data), 0, data)]], [1e-5], data, method)
    given = {"architecture": named(architecture), "method": method}
    value = {"parameters": given, "epoch_seconds_alone": epoch_seconds(networks, plan.batch)}
    plan.store.add(value, kind="timing", **given)


def extra_epochs(plan: Plan, architecture: Sizes, phase: Group) -> int:
    """How many epochs of one network take as long as the phase, the median over seeds."""
    found = plan.store.values(kind="phase", architecture=named(architecture), start=phase.name)
    seconds = float(statistics.median(value["start_seconds"] for value in found))
    return math.ceil(seconds / _epoch_seconds(plan, architecture, "adam"))


def _epoch_seconds(plan: Plan, architecture: Sizes, method: Method) -> float:
    found = plan.store.get(kind="timing", architecture=named(architecture), method=method)
    if found is None:
        raise ValueError(
            f"{plan.store.path} has no time of an epoch of {named(architecture)}: run table1, which measures it"
        )
    return float(found["epoch_seconds_alone"])


def check_plan(plan: Plan, data: Dataset) -> None:
    """Refuse a store that holds figures of another kind: a table must not mix them."""
    given: Fields = {"epochs": plan.epochs, "batch": plan.batch, "passes": plan.passes, "trials": plan.trials}
    given |= {"rows": len(data.x), "held": plan.held, "search_rows": plan.search_rows}
    # What was stored before trials were counted is of as many as there are by default.
    stored = {"trials": Plan.trials} | (plan.store.get(kind="plan") or given)
    for name, value in given.items():
        if stored.get(name) != value:
            problem = f"{plan.store.path} holds figures with {name} {stored.get(name)}, and these would have {value}"
            raise ValueError(f"{problem}: name another folder by --results")
    if plan.store.get(kind="plan") is None:
        plan.store.add(given, kind="plan")


def cells(store: Store) -> Iterator[dict[str, Any]]:
    """Every figure that is stored, as one dictionary each."""
    for fields, value, machine in store.records:
        if fields["kind"] != "plan":
            yield {**fields, **value, "versions": machine}


def sizes(architecture: Sizes, data: Dataset) -> Sizes:
    """With the inputs in front and the outputs behind: a class each, or one real response."""
    return (data.x.shape[1], *architecture, 1 if data.y.is_floating_point() else int(data.y.max()) + 1)


def named(architecture: Sizes) -> str:
    return "-".join(map(str, architecture))


def short(rate: float) -> str:
    """1e-5, not 1e-05."""
    return f"{rate:.0e}".replace("e-0", "e-")


def machine_text(known: dict[str, Any]) -> str:
    """A machine in words."""
    device = f"cpu, {known['processor']}" if known["device"] == "cpu" else known["device"]
    return f"liftednn {known['liftednn']}, torch {known['torch']}, Python {known['python']}, {device}"
