"""What does each part buy? One part off or swapped at a time, on training rows that are held back.

`python -m experiments ablate --device cuda` runs the part `optimiser`: the variants of `liftednn.optim.Lifted` in optimiser_variants.py, on
short runs of the tasks of `optimisers`, of six convolutions without norms, and of a U-Net that removes noise. What a part buys is the mean
over tasks of the difference of scores over the deviation of seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiments.image_bench import held_back
from experiments.markdown import table
from experiments.optimiser_steps import train
from experiments.optimiser_tasks import TASKS, Problem, TaskKind, dataset
from experiments.optimiser_variants import VARIANTS
from experiments.settings import Settings
from experiments.store import Fields, Store

TAKES = ("device", "seeds", "only")
SEEDS = 3
# Passes of each task.
PASSES = {
    "resnet 1": 1,
    "resnet 8": 5,
    "noisy": 4,
    "vgg": 5,
    "six": 5,
    "vit": 5,
    "chars transformer": 3,
    "chars LSTM": 3,
    "dense cifar10": 10,
    "autoencoder": 10,
    "denoise": 5,
}
MORE = {
    "six": replace(TASKS["vgg"], network="six convolutions"),
    "denoise": TaskKind("mnist", "U-Net", 5, 5, batch=128, denoise=0.5),
}
BASE = next(iter(VARIANTS))


def kind_of(task: str) -> TaskKind:
    return (TASKS | MORE)[task]


def _trained(task: str, variant: str, seed: int, settings: Settings) -> Fields:
    kind, quick = kind_of(task), settings.quick
    data = dataset(kind, settings.device, 20 if quick else None)
    passes, batch, divide = (1, 20, 16) if quick else (PASSES[task], kind.batch, 1)
    found = train(variant, Problem(kind, held_back(data), passes, seed, batch, divide), {})
    return {"score": found["score"]}


def differences(store: Store, task: str, variant: str) -> list[float]:
    """What the base scores better, for every seed that both have."""
    sign = 1 if kind_of(task).higher_is_better else -1
    pairs = []
    for record in store.find(task=task, variant=variant):
        base = store.get(task=task, variant=BASE, seed=record.fields["seed"])
        if base is not None:
            pairs.append(sign * (base["score"][-1] - record.value["score"][-1]))
    return pairs


def deviation(store: Store, task: str) -> float:
    """Of the base's scores over seeds, and at least 1 % of their mean distance from perfect or, for a loss, from 0."""
    found = [value["score"][-1] for value in store.values(task=task, variant=BASE)]
    mean = statistics.mean(found)
    least: float = 0.01 * (1 - mean if kind_of(task).higher_is_better else mean)
    return max(statistics.stdev(found) if len(found) > 1 else 0.0, least)


def summary(store: Store, variants: Sequence[str] = tuple(VARIANTS)) -> list[dict[str, Any]]:
    """A row for each variant: its mean score on every task, and what the base buys over it."""
    tasks = [task for task in PASSES if store.find(task=task, variant=BASE)]
    return [_row(store, variant, tasks) for variant in variants if store.find(variant=variant)]


def _row(store: Store, variant: str, tasks: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"variant": variant}
    worth: dict[str, float] = {}
    for task in tasks:
        scores = [value["score"][-1] for value in store.values(task=task, variant=variant)]
        row[task] = statistics.mean(scores) if scores else math.nan
        if found := differences(store, task, variant):
            worth[task] = statistics.mean(found) / deviation(store, task)
    return row | _worth(worth if variant != BASE else {})


def _worth(worth: Mapping[str, float]) -> dict[str, Any]:
    if len(worth) < 2:
        return {"worth": math.nan, "standard error": math.nan, "most lost by": ""}
    error = statistics.stdev(worth.values()) / math.sqrt(len(worth))
    return {
        "worth": statistics.mean(worth.values()),
        "standard error": error,
        "most lost by": max(worth, key=lambda task: worth[task]),
    }


def run(settings: Settings) -> None:
    """--only takes `optimiser`, tasks and variants."""
    wanted = set(settings.only) - {"optimiser"}
    if unknown := wanted - {*PASSES, *VARIANTS}:
        raise ValueError(
            f"--only takes optimiser, a task or a variant of the optimiser, got {', '.join(sorted(unknown))}"
        )
    store = settings.store("ablate")
    tasks = [task for task in PASSES if task in wanted or not wanted & {*PASSES}]
    variants = [name for name in VARIANTS if name in wanted or name == BASE or not wanted & {*VARIANTS}]
    if settings.quick:
        tasks, variants = ["dense cifar10", "denoise"], variants[:3]
    for seed in range(1 if settings.quick else settings.seeds or SEEDS):
        for task in tasks:
            with kind_of(task).layout(settings.device).products():
                for variant in variants:
                    work = partial(_trained, task, variant, seed, settings)
                    store(work, task=task, variant=variant, seed=seed)
    table("what each part of the optimiser buys, in deviations of seeds, mean over tasks", summary(store, variants))
