"""Does it help to learn the slope? LiftedRegressor with ReLU, with slope 0.01, and with slopes learned for the layer or for each unit.

`python -m experiments refit`, with `--workers N` for N processes. The eight UCI regression sets and California housing, another split for
each seed; root mean squared error on the test rows in the response's own units, and the processor's seconds of `fit` on one thread.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from experiments import datasets
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Store
from experiments.workers import Job, fill
from liftednn import LiftedRegressor
from liftednn.activations import FenchelLeakyReLU

TAKES = ("workers",)
SEEDS = 5
LAST = "uci/protein_tertiary_structure"  # by far the longest
SETS = ("california", *(name for name in datasets.NAMES if name.startswith("uci/") and name != LAST), LAST)
SMALL = ("friedman",)
KINDS: dict[str, dict[str, Any]] = {
    "ReLU": {"activation": "relu"},
    "slope 0.01": {"activation": "leaky_relu"},
    "learned, layer": {"activation": "leaky_relu", "learn_activation": "layer"},
    "learned, unit": {"activation": "leaky_relu", "learn_activation": "unit"},
}
# What the others are compared with.
FIXED = "slope 0.01"


def measure(name: str, kind: str, seed: int, limits: dict[str, Any]) -> dict[str, Any]:
    data = datasets.regression(name, seed)
    model = LiftedRegressor((100,), random_state=seed, **KINDS[kind], **limits)
    started = time.process_time()
    with threads(1):
        model.fit(data.x.numpy(), data.y.numpy())
    seconds = time.process_time() - started
    missed = model.predict(data.x_test.numpy()) - data.y_test.numpy()
    return {"rmse": float(np.sqrt(np.mean(missed**2))), "seconds": seconds, "slopes": _slopes(model)}


def _slopes(model: LiftedRegressor) -> list[float]:
    """The least, the median and the largest; none for ReLU."""
    (phi,) = model.network_.hidden
    if not isinstance(phi, FenchelLeakyReLU):
        return []
    slopes = torch.as_tensor(phi.alpha, dtype=torch.float64).reshape(-1)
    return [float(each) for each in (slopes.min(), slopes.median(), slopes.max())]


def summary(store: Store, sets: tuple[str, ...] = SETS, seeds: int = SEEDS) -> list[dict[str, Any]]:
    """One row per set: mean errors, and for learned slopes how the error changes, in per cent, with its deviation over the splits."""
    rows = []
    for name in sets:
        runs = {kind: [run.value for run in store.in_order("seed", set=name, method=kind)] for kind in KINDS}
        if any(len(found) < seeds for found in runs.values()):
            continue
        row: dict[str, Any] = {"set": name}
        row |= {kind: statistics.mean(cell["rmse"] for cell in found) for kind, found in runs.items()}
        for kind in [kind for kind in KINDS if kind.startswith("learned")]:
            change = _change(runs[kind], runs[FIXED])
            row[f"{kind}: change %"] = statistics.mean(change)
            row[f"{kind}: sd %"] = statistics.stdev(change) if seeds > 1 else 0.0
            row[f"{kind}: median slope"] = statistics.mean(cell["slopes"][1] for cell in runs[kind])
        rows.append(row | {f"{kind} s": statistics.mean(cell["seconds"] for cell in runs[kind]) for kind in KINDS})
    return rows


def _change(learned: list[dict[str, Any]], fixed: list[dict[str, Any]]) -> list[float]:
    """Split by split, since splits differ by more than methods do."""
    return [100 * (a["rmse"] / b["rmse"] - 1) for a, b in zip(learned, fixed, strict=True)]


def verdict(rows: list[dict[str, Any]], kind: str) -> str:
    """Sets on which learning helps, or harms, by more than two standard errors over the splits, and the mean change over all."""
    width = 2 / SEEDS**0.5
    changes = [(row[f"{kind}: change %"], row[f"{kind}: sd %"]) for row in rows]
    better, worse = (sum(sign * change > width * sd for change, sd in changes) for sign in (-1, 1))
    mean = statistics.mean(change for change, _ in changes)
    return f"{kind}: better on {better}, worse on {worse} of {len(rows)} sets; mean change of the error {mean:+.2f} %"


def run(settings: Settings) -> None:
    store = settings.store("refit")
    sets, seeds = (SMALL, 1) if settings.quick else (SETS, SEEDS)
    limits = {"max_iter": 2} if settings.quick else {}
    jobs = [
        Job(partial(measure, name, kind, seed, limits), {"set": name, "method": kind, "seed": seed})
        for name, seed, kind in product(sets, range(seeds), KINDS)
    ]
    with threads(1):  # as records say
        fill(store, jobs, settings.workers or 1)
    rows = summary(store, sets, seeds)
    table("learned slopes: RMSE on test rows, and its change against slope 0.01", rows)
    for kind in KINDS:
        if kind.startswith("learned"):
            print(verdict(rows, kind))
