"""Convolutional networks without normalisation: training by SGD, AdamW and Muon, initial weights, exact blocks, and a range of lam.

`python -m experiments convolution --device cuda` runs the parts of a GPU, `python -m experiments convolution` that of the CPU; `--only`
names parts. Rate and weight decay of every method are chosen on training rows that are held back, by the worse of two seeds; then every
seed trains on all rows. Seconds are the method's own, without the evaluations in between.

    mnist        LeNet, 5 passes          cifar      six convolutions, 8 passes, crops and flips
    residual     the same with a residual network of eight convolutions
    init         LeNet by Adam at small rates from several initial weights, as in the paper's table
    bcd          LeNet with average pooling by exact blocks on 5,000 digits, 5 full passes (image_blocks.py)
    bcd-max      the same with max-pooling, whose blocks take much longer: only where it is named
    lam-mnist    LeNet with lam from small to infinite, with and without random labels (image_lam.py)
    lam-cifar    the same with six convolutions
    cpu          LeNet on two threads: seconds to an accuracy of .99
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from experiments import image_blocks, image_lam
from experiments.image_bench import LIFTED, QUICK, SETTINGS, Bench, Scale, best_layout
from experiments.image_models import STARTS
from experiments.image_training import from_start
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Fields, Store
from experiments.training import Cell, time_to

TAKES = ("device", "seeds", "only")
SEEDS, THREADS = 5, 2
GOAL, GOAL_PASSES, GOAL_METHODS = 0.99, (1, 2, 3), ("SGD", "Adam")
GOAL_OPTIONS = 4  # of a grid: its rates with the first weight decay
GOAL_BATCH = 100  # rows per step that the others may choose instead of the usual ones
INIT_RATES, INIT_PASSES, INIT_BATCH = (1e-5, 1e-6), 17, 100
COMPARED = ("mnist", "cifar", "residual")
BLOCKS, LAM_PARTS = ("bcd", "bcd-max"), ("lam-mnist", "lam-cifar")
# What is compared, in the order of tables and pictures; all are also run for as many seconds as the lifted model takes.
ORDER = (LIFTED, "SGD", "AdamW", "Muon")


def compare(bench: Bench, seeds: int) -> None:
    """Every method for the same passes, then each for as many as take the seconds of the lifted model, with the same choices."""
    passes = bench.passes
    settings = {method: chosen(bench, method, passes) for method in ORDER}
    for equal_seconds in (False, True):
        for method in ORDER:
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
    return list(dict.fromkeys([passes, passes_within(passes * budget, spent)]))


def passes_within(budget: float, spent: float) -> int:
    """As many as take at least the budget, each of them `spent`."""
    return max(1, math.ceil(budget / spent - 1e-9))


def runs(store: Store, part: str, method: str, passes: int | None = None) -> list[Cell]:
    """All seeds of a method."""
    wanted = {"part": part, "stage": "test", "method": method}
    return store.values(**wanted) if passes is None else store.values(**wanted, passes=passes)


def reach_goal(bench: Bench, seeds: int) -> None:
    """Settings, batch and number of passes by the time to the goal on the rows held back; where none reaches it, by accuracy."""
    for method in (LIFTED, *GOAL_METHODS):
        options = bench.scale.options_of(method)[:GOAL_OPTIONS]
        options += [{**option, "batch": GOAL_BATCH} for option in options if option]
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
    seeds = settings.seeds or scale.seeds or SEEDS
    if part in BLOCKS:
        cases = image_blocks.CASES[part][:: 1 if scale.options is None else 2]
        image_blocks.descend(store, part, cases, data, seeds, scale.capped(setting.passes), scale.divide)
        return
    bench = Bench(store, part, scale, data, best_layout(store, setting, scale, data))
    work = {"cpu": reach_goal, "init": initial_weights} | dict.fromkeys(LAM_PARTS, image_lam.over_lams)
    with bench.layout.products():
        work.get(part, compare)(bench, seeds)


def show(part: str, store: Store, scale: Scale) -> None:
    setting = SETTINGS[part]
    title, passes = f"{part}: {setting.network}, test accuracy, mean over seeds", scale.capped(setting.passes)
    if part == "cpu":
        table(f"{title}; seconds to {GOAL:g} on {THREADS} threads, median", goal_summary(store))
    elif part == "init":
        table(f"{title}, {passes} passes of Adam", init_summary(store))
    elif part in BLOCKS:
        table(f"{title}, {passes} full passes", image_blocks.summary(store, part))
    elif part in LAM_PARTS:
        table(f"{title}, {passes} passes, lam in {image_lam.UNIT}", image_lam.summary(store, part))
    else:
        table(f"{title}; seconds, median", summary(store, part, passes))


def parts_of(settings: Settings) -> list[str]:
    """Those named, or all that belong to the device; quick runs on a CPU have those of both, but no network of CIFAR-10 twice."""
    if unknown := set(settings.only) - set(SETTINGS):
        raise ValueError(f"--only takes {', '.join(SETTINGS)}, got {', '.join(sorted(unknown))}")
    if settings.device != "cpu" and "cpu" in settings.only:
        raise ValueError("the part cpu measures the CPU: leave out --device")
    if settings.only or (settings.quick and settings.device == "cpu"):
        return list(settings.only or [part for part in SETTINGS if part not in ("bcd-max", "cifar")])
    return ["cpu"] if settings.device == "cpu" else [part for part in SETTINGS if part not in ("bcd-max", "cpu")]


def run(settings: Settings) -> None:
    """--only takes parts."""
    scale = QUICK if settings.quick else Scale()
    parts = parts_of(settings)
    for part in parts:
        with threads(THREADS if part == "cpu" else torch.get_num_threads()):
            run_part(part, settings, scale)
    for part in parts:
        show(part, settings.store("convolution"), scale)
