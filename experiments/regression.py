"""Regression: the eight UCI sets and California housing, outliers among the responses, and quantiles.

`python -m experiments regression`, with `--workers N` for N processes; set OMP_NUM_THREADS=1 for scikit-learn. UCI sets have
their first five standard splits, California housing five random ones. "lifted" is at its defaults; the other networks have one hidden layer
of 50 units, of 100 on protein and California. Inputs and responses are standardised, for all methods alike; errors are in the responses'
own units. Seconds are the processor's, on one thread; "torch" is experiments/tuned.py, its seconds are those of both starts and the search
together.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, RidgeCV
from sklearn.metrics import mean_pinball_loss
from sklearn.neural_network import MLPRegressor

from experiments import datasets, tuned
from experiments.interrupts import interruptible
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Store
from experiments.workers import Job, fill
from liftednn import LiftedRegressor
from liftednn.losses import Quantile

Array = NDArray[Any]
Cell = dict[str, Any]

TAKES = ("workers",)
SEEDS = 5
SMALL = ("yacht", "energy", "concrete", "wine_quality_red")
SETS = (*SMALL, "kin8nm", "power_plant", "naval_propulsion_plant", "california", "protein_tertiary_structure")
WIDE = ("california", "protein_tertiary_structure")
NOISY = ("concrete", "power_plant", "california")
# Of the training responses, a tenth is moved by ten standard deviations times a normal number.
SHARE, SIZE = 0.1, 10.0
LEVELS = (0.1, 0.5, 0.9)
LEVELLED = ("lifted", "lifted, at once", "boosting")


def split(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Rows and responses to train on, and to be judged by."""
    data = datasets.regression(name, seed)
    x, y, x_test, y_test = (part.double().numpy() for part in data)
    return x, y, x_test, y_test


def hidden(name: str) -> int:
    return 100 if name in WIDE else 50


def rmse(found: Array, y: Array) -> float:
    return float(np.sqrt(np.mean((found - y) ** 2)))


def regressors(name: str, seed: int, **limits: Any) -> dict[str, Callable[[], Any]]:
    """`limits`, such as max_iter, are for all that iterate."""
    width = (hidden(name),)
    return {
        "lifted": lambda: LiftedRegressor(random_state=seed, **limits),
        "lifted, one layer": lambda: LiftedRegressor(width, random_state=seed, **limits),
        "MLP": lambda: MLPRegressor(hidden_layer_sizes=width, random_state=seed, **limits),
        "ridge": lambda: RidgeCV(np.logspace(-4, 4, 17)),
        "boosting": lambda: HistGradientBoostingRegressor(random_state=seed, **limits),
    }


def robust_regressors(seed: int, **limits: Any) -> dict[str, Callable[[], Any]]:
    boosting = partial(HistGradientBoostingRegressor, random_state=seed, **limits)
    lifted = {
        f"lifted, {loss}": partial(LiftedRegressor, loss=loss, random_state=seed, **limits)
        for loss in ("squared", "absolute", "huber")
    }
    return lifted | {
        "boosting, squared": boosting,
        "boosting, absolute": partial(boosting, loss="absolute_error"),
        "HuberRegressor": partial(HuberRegressor, max_iter=1000),
    }


def fitted(make: Callable[[], Any], x: Array, y: Array, x_test: Array) -> tuple[Array, float]:
    """Predictions in the units of y, from a fit to standardised ones, and the seconds of the fit."""
    mean, scale, model = y.mean(), y.std(), make()
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with interruptible(), threads(1):
            model.fit(x, (y - mean) / scale)
    seconds = time.process_time() - started
    return model.predict(x_test) * scale + mean, seconds


def clean_cell(name: str, who: str, seed: int, limits: Cell) -> Cell:
    x, y, x_test, y_test = split(name, seed)
    found, seconds = fitted(regressors(name, seed, **limits)[who], x, y, x_test)
    return {"rmse": rmse(found, y_test), "seconds": seconds, "rows": len(x), "columns": x.shape[1]}


def tuned_cell(name: str, seed: int, lengths: Sequence[int]) -> Cell:
    x, y, x_test, y_test = split(name, seed)
    mean, scale = y.mean(), y.std()
    rows, targets, new = (torch.from_numpy(part).float() for part in (x, (y - mean) / scale, x_test))
    started = time.process_time()
    with threads(1):
        found = tuned.predictions(rows, targets, new, hidden(name), seed, lengths)
    cell: Cell = {"seconds": time.process_time() - started}
    for start, (scores, (rate, steps)) in found.items():
        error = rmse(scores.double().numpy() * scale + mean, y_test)
        cell[start] = {"rmse": error, "rate": rate, "steps": steps}
    return cell


def robust_cell(name: str, who: str, seed: int, limits: Cell) -> Cell:
    x, y, x_test, y_test = split(name, seed)
    draws = np.random.default_rng(seed)
    moved = np.where(draws.random(len(y)) < SHARE, SIZE * y.std() * draws.standard_normal(len(y)), 0.0)
    found, seconds = fitted(robust_regressors(seed, **limits)[who], x, y + moved, x_test)
    return {"rmse": rmse(found, y_test), "mae": float(np.abs(found - y_test).mean()), "seconds": seconds}


def quantile_cell(name: str, who: str, seed: int, limits: Cell) -> Cell:
    """Coverage, the share of test responses below, and pinball loss at every level."""
    x, y, x_test, y_test = split(name, seed)
    ours = partial(LiftedRegressor, random_state=seed, **limits)
    if who == "lifted, at once":
        make = partial(ours, loss=Quantile(LEVELS))
        found, seconds = fitted(make, x, y, x_test)
    else:
        lifted = [partial(ours, loss=Quantile(q)) for q in LEVELS]
        boosting = partial(HistGradientBoostingRegressor, loss="quantile", random_state=seed, **limits)
        makes: Sequence[Callable[[], Any]] = (
            lifted if who == "lifted" else [partial(boosting, quantile=q) for q in LEVELS]
        )
        parts = [fitted(make, x, y, x_test) for make in makes]
        found, seconds = np.stack([part[0] for part in parts], 1), sum(part[1] for part in parts)
    cover = [float((y_test <= column).mean()) for column in found.T]
    pinball = [mean_pinball_loss(y_test, column, alpha=q) for column, q in zip(found.T, LEVELS, strict=True)]
    return {"cover": cover, "pinball": pinball, "seconds": seconds}


def clean_rows(store: Store, sets: Sequence[str], seeds: int) -> list[Cell]:
    """One row per set: mean error, its spread and the seconds of each method."""
    rows = []
    for name in sets:
        row: Cell = {"set": name}
        for who in regressors(name, 0):
            found = store.values(task="clean", set=name, method=who)[:seeds]
            row |= _spread(who, [cell["rmse"] for cell in found])
            row[f"{who} s"] = statistics.mean(cell["seconds"] for cell in found)
        found = store.values(task="clean", set=name, method="torch")[:seeds]
        for start in tuned.STARTS:
            row |= _spread(f"torch, {start}", [cell[start]["rmse"] for cell in found])
        rows.append(row | {"torch s": statistics.mean(cell["seconds"] for cell in found)})
    return rows


def _spread(who: str, errors: Sequence[float]) -> Cell:
    return {who: statistics.mean(errors), f"{who} sd": statistics.stdev(errors) if len(errors) > 1 else 0.0}


def ranks(rows: Sequence[Cell], methods: Sequence[str]) -> dict[str, float]:
    """The mean over sets of a method's place by its mean error, 1 for the least."""
    places = [[sorted(row[other] for other in methods).index(row[who]) + 1 for row in rows] for who in methods]
    return {who: statistics.mean(place) for who, place in zip(methods, places, strict=True)}


def averages(store: Store, kind: str, sets: Sequence[str], whos: Sequence[str], seeds: int) -> list[Cell]:
    """One row per set and method: the mean of everything in the cells."""
    rows = []
    for name in sets:
        for who in whos:
            found = store.values(task=kind, set=name, method=who)[:seeds]
            row: Cell = {"set": name, "method": who}
            for key in sorted(found[0]):
                values = np.array([cell[key] for cell in found])
                means = np.atleast_1d(values.mean(axis=0))
                names = [key] if values.ndim == 1 else [f"{key} {level}" for level in LEVELS]
                row |= dict(zip(names, (float(mean) for mean in means), strict=True))
                if values.ndim == 1 and key != "seconds":
                    row[f"{key} sd"] = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            rows.append(row)
    return rows


def jobs(sets: Sequence[str], noisy: Sequence[str], seeds: int, quick: bool) -> Iterator[Job]:
    """Every cell."""
    limits, lengths = ({"max_iter": 2}, (5, 10)) if quick else ({}, tuned.STEPS)
    kinds = {"outliers": (noisy, robust_regressors(0), robust_cell), "quantiles": (noisy, LEVELLED, quantile_cell)}
    kinds["clean"] = (sets, regressors(sets[0], 0), clean_cell)
    for task, (names, whos, cell) in kinds.items():
        for name, seed, who in product(names, range(seeds), whos):
            yield Job(partial(cell, name, who, seed, limits), _fields(task, name, who, seed))
    for name, seed in product(sets, range(seeds)):
        yield Job(partial(tuned_cell, name, seed, lengths), _fields("clean", name, "torch", seed))


def _fields(task: str, name: str, who: str, seed: int) -> Cell:
    return {"task": task, "set": name, "method": who, "seed": seed}


def tables(store: Store, sets: Sequence[str] = SETS, noisy: Sequence[str] = NOISY, seeds: int = SEEDS) -> Cell:
    """From the store alone."""
    clean = clean_rows(store, sets, seeds)
    methods = [*regressors(sets[0], 0), *(f"torch, {start}" for start in tuned.STARTS)]
    return {
        "clean": clean,
        "mean rank": ranks(clean, methods),
        "outliers": averages(store, "outliers", noisy, list(robust_regressors(0)), seeds),
        "quantiles": averages(store, "quantiles", noisy, LEVELLED, seeds),
    }


def run(settings: Settings) -> None:
    store = settings.store("regression")
    sets, noisy, seeds = (("friedman",), ("friedman",), 1) if settings.quick else (SETS, NOISY, SEEDS)
    with threads(1):  # as records say
        fill(store, list(jobs(sets, noisy, seeds, settings.quick)), settings.workers or 1)
    found = tables(store, sets, noisy, seeds)
    table("root mean squared error", found["clean"])
    table("mean rank", [found["mean rank"]])
    table("a tenth of the training responses moved: errors on clean test responses", found["outliers"])
    table("quantiles: coverage and pinball loss on the test rows", found["quantiles"])
