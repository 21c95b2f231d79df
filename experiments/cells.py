"""The cells of Table 1 (sec. 7): what is to be computed, and one small JSON file for each figure.

A group is an architecture and its first weights; all its rates and seeds are trained together, and its files are written when it is done.
A group that is not whole is computed again as a whole, so that no figure depends on where a run was interrupted. Names of fields say whose
time they hold: `group_training_seconds` is that of all networks of the group side by side, `..._alone` that of one network by itself.
"""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import liftednn as lnn
from experiments.batched import Method, Together, clock, epoch_seconds, train_together
from experiments.datasets import Dataset
from experiments.starts import Sizes, Start, he
from liftednn.base import Affine
from liftednn.files import beside

__all__ = [
    "ARCHITECTURES",
    "Group",
    "Plan",
    "cells",
    "extra_epochs",
    "made",
    "measure",
    "named",
    "read",
    "settle",
    "write",
]

ARCHITECTURES: tuple[Sizes, ...] = ((300,), (300, 100), (500, 150), (500, 200, 100), (400, 200, 100, 50))
# What a file must hold, by its kind, to be counted; parameters and facts alike.
_FIELDS = {
    "cell": "architecture start rate epochs batch seed rows versions start_seconds group_training_seconds "
    "epoch_seconds_alone seconds_alone accuracy curve",
    "phase": "architecture start seed rows versions start_seconds accuracy",
    "trial": "architecture number seed lam sweeps accuracy_alone accuracy_after_epoch rows versions",
    "timing": "architecture method versions epoch_seconds_alone",
}


@dataclass(frozen=True)
class Plan:
    """What to compute, and where it lies.

    rates          of the standard networks: the paper's two, and two beyond
    more_rates     at which He's weights are also given the lifted phase's time as further epochs
    literal_rates  of the paper's columns by stochastic gradients, as printed and at rates that give its figures
    passes         of the mini-batch lifted phase
    trials         of the search for lam and sweeps, one search for each architecture
    held           last training rows, which the search scores on and never trains on
    search_rows    first training rows, at most, that a trial trains on; None for all that are not held back
    """

    out: Path
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
    """First weights of one architecture, for all rates and seeds. `phase`: they are a model by themselves, whose accuracy is kept too;
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

    def files(self, plan: Plan) -> dict[tuple[float | None, int], Path]:
        """By rate and seed; the rate of a phase is None."""
        rates = [*([None] if self.phase else []), *self.rates]
        return {(rate, seed): self._file(plan, rate, seed) for rate in rates for seed in range(plan.seeds)}

    def _file(self, plan: Plan, rate: float | None, seed: int) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return plan.out / named(self.architecture) / f"{slug}-{short(rate) if rate else 'phase'}-seed{seed}.json"

    def parameters(self, plan: Plan, rate: float | None) -> dict[str, Any]:
        own = {"architecture": named(self.architecture), "start": self.name, **self.settings}
        if rate is None:
            return own
        own |= {"rate": rate, "epochs": self.epochs, "batch": plan.batch, "method": self.method}
        return own | ({"scale": self.scale} if self.scale != 1 else {})

    def done(self, plan: Plan) -> bool:
        """Whether every file is there and of these very parameters."""
        try:
            files = self.files(plan).items()
            return all(read(path).get("parameters") == self.parameters(plan, rate) for (rate, _), path in files)
        except (ValueError, FileNotFoundError):
            return False

    def compute(self, plan: Plan, data: Dataset) -> None:
        """Make the first weights, train all networks from them, write all files."""
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
        for (rate, seed), path in self.files(plan).items():
            facts = {"parameters": self.parameters(plan, rate), "seed": seed, "rows": len(data.x)}
            facts |= {"versions": versions(data), "start_seconds": start_seconds[seed]}
            curve = [float(seen[seed, rates.index(rate) if rate else 0]) for seen in curves]
            if rate is None:
                write(path, facts | {"kind": "phase", "accuracy": curve[0]})
            else:
                facts |= shared | self._alone(plan, start_seconds[seed])
                write(path, facts | {"kind": "cell", "accuracy": curve[-1], "curve": curve})

    def _alone(self, plan: Plan, start_seconds: float) -> dict[str, float]:
        epoch = _epoch_seconds(plan, self.architecture, self.method)
        return {"epoch_seconds_alone": epoch, "seconds_alone": self.epochs * epoch + start_seconds}


def made(start: Start, layout: Sizes, seed: int, data: Dataset) -> tuple[list[Affine], float]:
    """First weights, and the seconds they took."""
    started = clock(data.x)
    weights = start(layout, seed, data)
    return weights, clock(data.x) - started


def measure(plan: Plan, data: Dataset, architecture: Sizes, method: Method) -> None:
    """Write the time of an epoch of one network by itself."""
    networks = Together([[he(sizes(architecture, data), 0, data)]], [1e-5], data, method)
    seconds = epoch_seconds(networks, plan.batch)
    facts = {"kind": "timing", "parameters": {"architecture": named(architecture), "method": method}}
    write(timing_file(plan, architecture, method), facts | {"versions": versions(data), "epoch_seconds_alone": seconds})


def extra_epochs(plan: Plan, architecture: Sizes, phase: Group) -> int:
    """How many epochs of one network take as long as the phase, the median over seeds."""
    paths = [path for (rate, _), path in phase.files(plan).items() if rate is None]
    seconds = [float(read(path, "start_seconds")["start_seconds"]) for path in paths]
    return math.ceil(statistics.median(seconds) / _epoch_seconds(plan, architecture, "adam"))


def _epoch_seconds(plan: Plan, architecture: Sizes, method: Method) -> float:
    return float(read(timing_file(plan, architecture, method), "epoch_seconds_alone")["epoch_seconds_alone"])


def settle(plan: Plan, data: Dataset) -> None:
    """Refuse a folder that holds figures of another kind: a table must not mix them."""
    facts: dict[str, Any] = {
        "epochs": plan.epochs,
        "batch": plan.batch,
        "passes": plan.passes,
        "trials": plan.trials,
        "rows": len(data.x),
        "held": plan.held,
    }
    facts |= {"search_rows": plan.search_rows, "device": data.x.device.type}
    path = plan.out / "plan.json"
    # What was stored before trials were told is of as many as there are by default.
    stored = {"trials": Plan.trials} | read(path) if path.exists() else facts
    for name, value in facts.items():
        if stored.get(name) != value:
            raise ValueError(
                f"{plan.out} holds figures with {name} {stored.get(name)}, and these would have {value}: name another folder"
            )
    write(path, facts)


def cells(out: Path) -> Iterator[dict[str, Any]]:
    """Everything that is stored, in the order of the files' names; a file that is not whole is refused in words."""
    for path in sorted(out.glob("*/*.json")):
        found = read(path)
        kind, given = str(found.get("kind")), found.get("parameters")
        if kind not in _FIELDS or not isinstance(given, dict):
            raise ValueError(
                f"{path} is no figure of python -m experiments table1: name another folder, or remove the file"
            )
        _check_whole(path, found | given, _FIELDS[kind].split())
        yield found


def read(path: Path, *needed: str) -> dict[str, Any]:
    """A stored file; one that is damaged, or lacks a field that is needed, is refused in words."""
    try:
        found: dict[str, Any] = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: remove it, and run the same command again") from error
    _check_whole(path, found, needed)
    return found


def _check_whole(path: Path, found: dict[str, Any], needed: Sequence[str]) -> None:
    missing = ", ".join(name for name in needed if name not in found)
    if missing:
        raise ValueError(f"{path} is not whole, it lacks {missing}: remove it, and run the same command again")


def write(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as part:
        part.write_text(json.dumps(facts, indent=1) + "\n")


def timing_file(plan: Plan, architecture: Sizes, method: Method) -> Path:
    return plan.out / named(architecture) / f"timing-{method}.json"


def sizes(architecture: Sizes, data: Dataset) -> Sizes:
    """With the inputs in front and the outputs behind: a class each, or one real response."""
    return (data.x.shape[1], *architecture, 1 if data.y.is_floating_point() else int(data.y.max()) + 1)


def named(architecture: Sizes) -> str:
    return "-".join(map(str, architecture))


def short(rate: float) -> str:
    """1e-5, not 1e-05."""
    return f"{rate:.0e}".replace("e-0", "e-")


def versions(data: Dataset) -> dict[str, str]:
    device = torch.cuda.get_device_name(data.x.device) if data.x.is_cuda else f"cpu, {platform.machine()}"
    python = platform.python_version()
    return {"liftednn": lnn.__version__, "torch": str(torch.__version__), "python": python, "device": device}


def told(known: dict[str, str]) -> str:
    """Versions in words."""
    return f"liftednn {known['liftednn']}, torch {known['torch']}, Python {known['python']}, {known['device']}"
