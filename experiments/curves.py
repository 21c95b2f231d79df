"""Estimators at their defaults where one difficulty grows: few rows, rare classes, heavy tails, many columns, noise, large weights.

`python -m experiments curves`, with `--workers N` for N processes; `python -m experiments figures` draws results/curves.png. All data are
generated, and every score is on fresh rows: R^2 against the function without noise, accuracy, average precision, or D^2, the part of the
log-loss of constant probabilities that those of a model save.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn.datasets import make_friedman1
from sklearn.metrics import accuracy_score, average_precision_score, d2_log_loss_score, r2_score

from experiments import default_models
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Store
from experiments.workers import Job, fill

TAKES = ("only", "workers")
SEEDS = 3
METHODS = ("lifted", "MLP", "boosting", "linear")
TEST, QUICK_ROWS = 5000, 100  # fresh rows, and rows to train on in quick runs
CELL = "one cell of 1e12"

Array = NDArray[Any]
Level = float | str


class Problem(NamedTuple):
    """Rows to train on, with one weight for all or none, and fresh rows with what should be predicted for them."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    weight: float | None = None


class Panel(NamedTuple):
    """A family of problems: how one of a level is made, the levels, their name, and the measure of a prediction."""

    make: Callable[[Any, int], Problem]
    levels: Sequence[Level]
    across: str
    measure: str = "R²"

    @property
    def classes(self) -> bool:
        return self.measure != "R²"


def _drawn(seed: int, rows: int, columns: int, function: Callable[[Array], Array], noise: float) -> Problem:
    """Columns uniform in -2 .. 2, and noise of that standard deviation on the responses to train on."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (rows + TEST, columns))
    return _noisy(generator, x, function(x), rows, noise)


def _noisy(generator: Generator, x: Array, truth: Array, rows: int, noise: float) -> Problem:
    y = truth[:rows] + noise * generator.normal(size=rows) if noise else truth[:rows]
    return Problem(x[:rows], y, x[rows:], truth[rows:])


def one_feature(rows: int, seed: int) -> Problem:
    return _drawn(seed, rows, 1, lambda x: np.sin(4 * x[:, 0]), 0.1)


def two_features(rows: int, seed: int) -> Problem:
    return _drawn(seed, rows, 2, lambda x: (np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) > 0).astype(int), 0)


def three_features(rows: int, seed: int) -> Problem:
    return _drawn(seed, rows, 3, lambda x: np.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2, 0.1)


def imbalance(ratio: int, seed: int, rows: int = 20_000, test: int = 50_000) -> Problem:
    """The rare class is that of the largest responses of Friedman's first problem, with noise 1."""
    x, y = make_friedman1(rows + test, noise=1.0, random_state=seed)
    rare = (y > np.quantile(y, 1 - 1 / (1 + ratio))).astype(int)
    return Problem(x[:rows], rare[:rows], x[rows:], rare[rows:])


def heavy_tails(level: Level, seed: int, rows: int = 2000) -> Problem:
    """Columns exp(sigma z), z normal, responses that are smooth in z; or sigma 0.5 and one wrong cell among the training rows."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(rows + TEST, 5))
    truth = z.sum(1) + np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2]
    x = np.exp((0.5 if isinstance(level, str) else level) * z)
    if level == CELL:
        x[0, 0] = 1e12
    return _noisy(generator, x, truth, rows, 0.1)


def linear_tails(sigma: float, seed: int, rows: int = 2000) -> Problem:
    """Columns exp(sigma z), z normal, and responses that are linear in them."""
    generator = np.random.default_rng(seed)
    x = np.exp(sigma * generator.normal(size=(rows + TEST, 5)))
    truth = x[:, 0] - x[:, 1] / 2
    return _noisy(generator, x, truth, rows, 0.1 * truth.std())


def categories(number: int, seed: int, rows: int = 4000) -> Problem:
    """One column for each category, and ten normal ones, of which the first counts too."""
    generator = np.random.default_rng(seed)
    drawn, normal = generator.integers(0, number, rows + TEST), generator.normal(size=(rows + TEST, 10))
    truth = generator.normal(size=number)[drawn] + normal[:, 0]
    return _noisy(generator, np.concatenate([np.eye(number)[drawn], normal], 1), truth, rows, 0.1)


def many_columns(rows: int, seed: int, columns: int = 2000, used: int = 5) -> Problem:
    """Normal columns, of which the first few count alike."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows + 1000, columns))
    return _noisy(generator, x, x[:, :used].sum(1), rows, 0.1)


def noise(times: float, seed: int, rows: int = 1000) -> Problem:
    """Friedman's first problem; noise in standard deviations of the function."""
    x, truth = make_friedman1(rows + TEST, random_state=seed)
    return _noisy(np.random.default_rng(seed), x, truth, rows, times * truth.std())


def few_rows(rows: int, seed: int) -> Problem:
    """A linear response of five normal columns, and noise as large as the signal."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows + TEST, 5))
    truth = x @ generator.normal(size=5)
    return _noisy(generator, x, truth, rows, float(truth.std()))


def few_rows_of_friedman(rows: int, seed: int) -> Problem:
    """Friedman's first problem, and noise half as large as the signal."""
    return noise(0.5, seed, rows)


def many_classes(rows: int, seed: int) -> Problem:
    """Ten normal classes in 20 columns, which hardly overlap."""
    return _normal_classes(rows, seed, 10, 1.0)


def overlapping_classes(rows: int, seed: int) -> Problem:
    """Three normal classes in 20 columns, which overlap."""
    return _normal_classes(rows, seed, 3, 0.3)


def _normal_classes(rows: int, seed: int, number: int, distance: float) -> Problem:
    """Normal columns around centres of this size; every class has two rows to train on."""
    generator = np.random.default_rng(seed)
    y = np.concatenate([np.arange(2 * number) % number, generator.integers(0, number, rows + TEST - 2 * number)])
    x = distance * generator.normal(size=(number, 20))[y] + generator.normal(size=(len(y), 20))
    return Problem(x[:rows], y[:rows], x[rows:], y[rows:])


def weights(weight: float, seed: int) -> Problem:
    """Friedman's first problem with noise a fifth of the signal, and the same sample weight for every row."""
    return noise(0.2, seed)._replace(weight=weight)


PANELS = {
    "one column": Panel(one_feature, (200, 1000, 5000), "rows, sin 4x"),
    "two columns": Panel(two_features, (200, 1000, 5000), "rows, sin 3a cos 2b > 0", "accuracy"),
    "three columns": Panel(three_features, (200, 1000, 5000), "rows, b sin 2a + c²"),
    "imbalance": Panel(imbalance, (10, 100, 1000), "rows of the common class for one rare", "average precision"),
    "heavy tails": Panel(heavy_tails, (0.5, 1, 2, 3, CELL), "sigma of log-normal columns"),
    "linear in tails": Panel(linear_tails, (0.5, 1, 2), "sigma of log-normal columns, response linear"),
    "categories": Panel(categories, (50, 200, 500), "categories, response additive"),
    "many columns": Panel(many_columns, (20, 50, 200), "rows of 2,000 columns, 5 of them used"),
    "noise": Panel(noise, (0, 0.3, 1, 3, 10), "noise / signal, Friedman 1"),
    "few rows, linear": Panel(few_rows, (20, 50, 100, 500), "rows, noise / signal 1"),
    "few rows, Friedman 1": Panel(few_rows_of_friedman, (20, 50, 100, 500), "rows, noise / signal 0.5"),
    "few rows, 10 classes": Panel(many_classes, (20, 50, 100, 500), "rows, classes hardly overlap", "D²"),
    "few rows, 3 classes": Panel(overlapping_classes, (20, 50, 100, 500), "rows, classes overlap", "D²"),
    "weights": Panel(weights, (1, 100, 1_000_000), "sample weight of every row, Friedman 1"),
}


def measure(panel: str, level: Level, who: str, seed: int, quick: bool = False) -> dict[str, Any]:
    """One fit, and its score on the fresh rows."""
    kind = PANELS[panel]
    x, y, x_test, y_test, weight = kind.make(level, seed)
    if quick:
        x, y = x[:QUICK_ROWS], y[:QUICK_ROWS]
    sample_weight = None if weight is None else np.full(len(x), float(weight))
    fitted = default_models.fit(who, x, y, kind.classes, seed, sample_weight, quick)
    return {"score": _score(kind.measure, fitted.model, x_test, y_test)} | fitted.cost


def _score(measured: str, model: Any, x: Array, y: Array) -> float:
    if measured == "average precision":
        return float(average_precision_score(y, model.predict_proba(x)[:, 1]))
    if measured == "D²":
        return float(d2_log_loss_score(y, model.predict_proba(x), labels=model.classes_))
    score = accuracy_score if measured == "accuracy" else r2_score
    return float(score(y, model.predict(x)))


def scores(store: Store, panel: str, who: str) -> list[list[float]]:
    """For each seed, the scores at all levels; only of seeds that have them all."""
    curves = []
    for seed in range(SEEDS):
        found = [store.get(panel=panel, level=level, method=who, seed=seed) for level in PANELS[panel].levels]
        curves.append([run["score"] for run in found if run])
    return [curve for curve in curves if len(curve) == len(PANELS[panel].levels)]


def summary(store: Store) -> list[dict[str, Any]]:
    """One row per level: the median score of each method over the seeds."""
    rows = []
    for panel, kind in PANELS.items():
        for level in kind.levels:
            runs = {who: store.values(panel=panel, level=level, method=who) for who in METHODS}
            medians = {who: statistics.median(run["score"] for run in found) for who, found in runs.items() if found}
            if medians:
                rows.append({"panel": panel, "level": level, "measure": kind.measure} | medians)
    return rows


def run(settings: Settings) -> None:
    """--only takes panels."""
    store, seeds = settings.store("curves"), 1 if settings.quick else SEEDS
    if unknown := set(settings.only) - set(PANELS):
        raise ValueError(f"--only takes {', '.join(PANELS)}, got {', '.join(sorted(unknown))}")
    jobs = [
        Job(
            partial(measure, panel, level, who, seed, settings.quick),
            {"panel": panel, "level": level, "method": who, "seed": seed},
        )
        for panel in settings.only or PANELS
        for level in (PANELS[panel].levels[:1] if settings.quick else PANELS[panel].levels)
        for seed in range(seeds)
        for who in METHODS
    ]
    with threads(1):  # as records say
        fill(store, jobs, settings.workers or 1)
    table("generated data, median score over the seeds", summary(store))
