"""What the pictures of the examples show: `python -m experiments examples` runs each part of examples/ and stores its figures.

Constrained weights, learned slopes, quantiles and outliers, noise on the test inputs; see the four files there. One thread.
`python -m experiments figures` draws the pictures from what is stored.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import constraints, learned_activations, regression, robust
from examples.learned_activations import Curve
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Store

SEEDS = 3  # of pruned networks
SHOWN = 200  # of the new rows of the prediction band


def run(settings: Settings) -> None:
    """Do what is not stored yet, then print a table for each example."""
    store = settings.store("examples")
    with threads(1):
        for measure in (measure_constraints, measure_slopes, measure_regression, measure_noise):
            measure(store, settings.quick)
    for title, rows in summaries(store).items():
        table(title, rows)


def measure_constraints(store: Store, quick: bool) -> None:
    kinds, strengths = list(constraints.KINDS), constraints.STRENGTHS
    passes, seeds = (2, 1) if quick else (constraints.PASSES, SEEDS)
    for kind in kinds[:1] if quick else kinds:
        store(partial(_filters, kind, passes), example="constraints", kind=kind)
    for strength in strengths[:1] if quick else strengths:
        for seed in range(seeds):
            work = partial(_pruned, strength, passes, seed)
            store(work, example="constraints", kind="pruned", strength=strength, seed=seed)


def _filters(kind: str, passes: int) -> dict[str, Any]:
    accuracy, filters = constraints.constrained(kind, passes)
    return {"accuracy": accuracy, "filters": _rounded(filters)}


def _pruned(strength: float, passes: int, seed: int) -> dict[str, Any]:
    units, accuracy = constraints.pruned(strength, passes, seed)
    return {"units": units, "accuracy": accuracy}


def measure_slopes(store: Store, quick: bool) -> None:
    known = learned_activations
    rows, seeds, passes = (200, 1, 2) if quick else (known.ROWS, known.SEEDS, known.PASSES)
    for start in known.STARTS[:1] if quick else known.STARTS:
        for learned in (True, False):
            for seed in range(seeds):
                work = partial(_slope, start, learned, seed, rows, passes)
                store(work, example="slopes", start=start, learned=learned, seed=seed)


def _slope(start: float, learned: bool, seed: int, rows: int, passes: int) -> dict[str, Any]:
    curve = learned_activations.trained(start, learned, seed, rows, passes)
    return {name: [float(f"{value:.5g}") for value in values] for name, values in curve._asdict().items()}


def measure_regression(store: Store, quick: bool) -> None:
    rows, passes = (200, 2) if quick else (regression.ROWS, "auto")
    store(partial(_band, rows, passes), example="quantiles")
    for loss in regression.LOSSES[:1] if quick else regression.LOSSES:
        store(partial(_outliers, loss, rows, passes), example="outliers", loss=loss)


def _band(rows: int, passes: Any) -> dict[str, Any]:
    """Coverage over all new rows, and the first few of them."""
    found = regression.band(rows, passes)
    first, response, quantiles = (_rounded(part[:SHOWN]) for part in found)
    return {"coverage": regression.coverage(*found), "first": first, "response": response, "quantiles": quantiles}


def _outliers(loss: str, rows: int, passes: Any) -> dict[str, Any]:
    truth, predicted = regression.predictions(loss, rows, passes)
    error = float(np.abs(predicted - truth).mean())
    return {"mean error": error, "truth": _rounded(truth), "predicted": _rounded(predicted)}


def measure_noise(store: Store, quick: bool) -> None:
    passes, seeds = (2, 1) if quick else (robust.PASSES, robust.SEEDS)
    for method in robust.METHODS[:2] if quick else robust.METHODS:
        for seed in range(seeds):
            store(partial(_noisy, method, seed, passes), example="noise", method=method, seed=seed)


def _noisy(method: str, seed: int, passes: int) -> dict[str, Any]:
    return {"accuracy": robust.accuracies(method, seed, passes)}


def best_slopes(store: Store, start: float) -> list[Curve]:
    """With the slope learned and with it fixed: of the stored seeds, the run that ends with the smallest loss."""
    runs = (store.values(example="slopes", start=start, learned=learned) for learned in (True, False))
    return [learned_activations.best([Curve(**each) for each in found]) for found in runs if found]


def noise_curves(store: Store, method: str) -> list[list[float]]:
    """Test accuracy at each level of noise, by seed."""
    return [each["accuracy"] for each in store.values(example="noise", method=method)]


def pruned_runs(store: Store, strength: float) -> list[dict[str, Any]]:
    """Units left and test accuracy, by seed."""
    return store.values(example="constraints", kind="pruned", strength=strength)


def summaries(store: Store) -> dict[str, list[dict[str, Any]]]:
    """The rows of a table for each example, medians over seeds."""
    fixed = {record.fields["kind"]: record.value for record in store.find(example="constraints", seed=None)}
    pruned = {strength: found for strength in constraints.STRENGTHS if (found := pruned_runs(store, strength))}
    slopes = {start: both for start in learned_activations.STARTS if (both := best_slopes(store, start))}
    noisy = {method: curves for method in robust.METHODS if (curves := noise_curves(store, method))}
    return {
        "first layer, digits": [{"kind": name, "accuracy": value["accuracy"]} for name, value in fixed.items()],
        "group sparsity, digits": [
            {"strength": strength} | {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for strength, runs in pruned.items()
        ],
        f"slopes, planted {learned_activations.PLANTED:g}": [
            {"start": start, "slope": a.slopes[-1], "loss": a.losses[-1], "loss, slope fixed": b.losses[-1]}
            for start, (a, b) in slopes.items()
        ],
        "quantiles": [each["coverage"] for each in store.values(example="quantiles")],
        "outliers": [
            {"loss": record.fields["loss"], "mean error": record.value["mean error"]}
            for record in store.find(example="outliers")
        ],
        "noise on the digits": [
            {"method": name} | dict(zip(map(str, robust.LEVELS), np.median(runs, axis=0).tolist(), strict=True))
            for name, runs in noisy.items()
        ],
    }


def _rounded(values: NDArray[Any]) -> list[Any]:
    """Four decimals are more than a picture shows."""
    found: list[Any] = np.round(values.astype(float), 4).tolist()
    return found
