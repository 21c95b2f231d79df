"""What a step of every optimiser costs on ResNet-9: milliseconds with its refreshes, and memory."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.batched import clock
from experiments.image_training import Step, step_seconds
from experiments.optimiser_steps import RECORDED, step_of
from experiments.optimiser_tasks import COSTED, METHODS, TASKS, Problem, dataset
from experiments.store import Fields, Store

__all__ = ["CPU_METHODS", "THREADS", "costs", "measure", "small_settings"]

CPU_METHODS, THREADS = METHODS[:3], 2
_BASE = "AdamW"
# Refreshes of all methods are counted as often as they occur: every 60, 20 or 10 steps. The first steps, with refreshes of their own,
# are left out.
_BEFORE, _TURNS = 30, 240
_FIRST, _FEW = 3, 8  # of steps on a CPU, which take seconds


def measure(
    store: Store, device: str, methods: Sequence[str], grids: Mapping[str, Any], rows: int | None, divide: int
) -> None:
    """Every method in plain steps and, on a GPU, as the graph that the comparisons use."""
    kind = TASKS[COSTED]
    with kind.layout(device).products():
        for method in methods:
            for recorded in (False, True) if device == "cuda" and method in RECORDED else (False,):
                work = partial(_measured, method, small_settings(grids, method), recorded, device, rows, divide)
                store(work, part="cost", method=method, recorded=recorded)


def small_settings(grids: Mapping[str, Any], method: str) -> Fields:
    """Of a small rate, at which nothing diverges: it does not change the cost."""
    if method not in grids:
        return {}
    grid = grids[method]
    return {
        "rate": grid.rates[0] / 100,
        "decay": grid.decays[0],
        **({"damping": d} if (d := max(grid.dampings, default=0)) else {}),
    }


def _measured(method: str, settings: Fields, recorded: bool, device: str, rows: int | None, divide: int) -> Fields:
    kind = TASKS[COSTED]
    data = dataset(kind, device, rows)
    problem = Problem(kind, data, 1, 0, min(kind.batch, len(data.x)), divide)
    x, y, _ = next(problem.source.batches(problem.batch, 0, 0))
    cuda, others = device == "cuda", 0
    if cuda:
        gc.collect()  # what earlier runs have left is not to be counted
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        others = torch.cuda.memory_allocated()
    step = step_of(method, kind, problem.module(), settings, recorded)
    seconds = step_seconds(step, x, y, *((2, 2) if rows else (_BEFORE, _TURNS))) if cuda else _from_few(step, x, y)
    held = sum(each.numel() * each.element_size() for pair in step.optimisers for each in _tensors(vars(pair[0])))
    return {
        "milliseconds": 1e3 * seconds,
        "pass_seconds": seconds * problem.source.steps(problem.batch),
        "state_MB": held / 1e6,
        "peak_MB": (torch.cuda.max_memory_allocated() - others) / 1e6 if cuda else None,
    }


def _from_few(step: Step, x: Tensor, y: Tensor) -> float:
    """The seconds of a step on a CPU, from few: the median of plain ones, and the share of a refresh."""
    found: dict[bool, list[float]] = {False: [], True: []}
    ours = step.optimisers[0][0]
    for turn in range(_FEW):
        due, started = bool(getattr(ours, "due", False)), clock(x)
        step(x, y, 1.0)
        if turn >= _FIRST:
            found[due].append(clock(x) - started)
    plain = statistics.median(found[False] or found[True])
    return plain + sum(each - plain for each in found[True][:1]) / getattr(ours, "refresh", 1)


def _tensors(given: Any) -> Iterable[Tensor]:
    """All that an optimiser holds, each once, without parameters and gradients."""
    found: dict[int, Tensor] = {}
    _collect(given, found)
    return [each for each in found.values() if not isinstance(each, torch.nn.Parameter)]


def _collect(given: Any, found: dict[int, Tensor]) -> None:
    if isinstance(given, Tensor):
        found[id(given)] = given
    elif isinstance(given, Mapping):
        for each in given.values():
            _collect(each, found)
    elif isinstance(given, list | tuple):
        for each in given:
            _collect(each, found)


def costs(store: Store) -> list[dict[str, Any]]:
    """One row per method and way to run it; ratios are to Adam's step in the same way, memory is beyond Adam's."""
    bases = {way: store.get(part="cost", method=_BASE, recorded=way) for way in (False, True)}
    rows = []
    for method in METHODS:
        for record in store.find(part="cost", method=method):
            value, recorded = record.value, bool(record.fields["recorded"])
            row = {"method": method, "steps": "recorded" if recorded else "plain", "ms": value["milliseconds"]}
            row |= {"seconds of a pass": value["pass_seconds"], "state, MB": value["state_MB"]}
            if (base := bases[recorded]) is not None:
                row["times Adam"] = value["milliseconds"] / base["milliseconds"]
                peak = None if value["peak_MB"] is None else value["peak_MB"] - base["peak_MB"]
                row["peak beyond Adam, MB"] = "" if peak is None else peak
            rows.append(row)
    return rows
