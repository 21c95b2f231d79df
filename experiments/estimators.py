"""The estimators at their defaults against scikit-learn's at theirs: score and seconds on every set that is found.

`python -m experiments estimators`. Inputs (except pixels, which are in 0 .. 1) and real responses are
standardised, in float64 as scikit-learn's scalers give them; all get the same arrays and two threads. "MLP, raw" has the responses as
they are, which ours would standardise itself. A UCI set has another of its standard splits for each seed, digits and California housing
another random one.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor

from experiments import datasets
from experiments.interrupts import interruptible
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Store
from liftednn import LiftedClassifier, LiftedRegressor

TAKES = ("only",)
SEEDS = 5
SETS = (
    "digits",
    "mnist 10,000",
    "adult",
    "pendigits",
    "california",
    *(n for n in datasets.NAMES if n.startswith("uci/")),
)
CLASSES = ("digits", "mnist 10,000", "adult", "pendigits")


class Split(NamedTuple):
    x: NDArray[Any]
    y: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


def split(name: str, seed: int) -> Split:
    """Rows to train on and rows to be judged by."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.2, random_state=seed, stratify=y)
        return Split(x, y, x_test, y_test)
    if name == "mnist 10,000":
        whole = datasets.mnist()
        data = whole._replace(x=whole.x[:10_000], y=whole.y[:10_000])
    elif name == "california":
        data = datasets.california(seed)
    else:
        data = datasets.uci(name.removeprefix("uci/"), seed) if name.startswith("uci/") else datasets.load(name)
    x, x_test = (part.double().numpy() for part in (data.x, data.x_test))
    return Split(x, data.y.numpy(), x_test, data.y_test.numpy())


def estimators(name: str) -> dict[str, type[BaseEstimator]]:
    if name in CLASSES:
        return {"lifted": LiftedClassifier, "MLP": MLPClassifier}
    return {"lifted": LiftedRegressor, "MLP": MLPRegressor, "MLP, raw": MLPRegressor}


def measure(who: str, name: str, seed: int, limits: dict[str, Any]) -> dict[str, Any]:
    data = split(name, seed)
    if name not in CLASSES and who != "MLP, raw":
        mean, scale = data.y.mean(), data.y.std()
        data = data._replace(y=(data.y - mean) / scale, y_test=(data.y_test - mean) / scale)
    estimator = estimators(name)[who](random_state=seed, **limits)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with interruptible():
            estimator.fit(data.x, data.y)
    seconds = time.perf_counter() - started
    score = float(estimator.score(data.x_test, data.y_test))
    return {
        "rows": len(data.x),
        "columns": data.x.shape[1],
        "score": score,
        "seconds": seconds,
        "n_iter": estimator.n_iter_,
    }


def some(names: Iterable[str]) -> list[str]:
    """The names, of which there must be one."""
    if not (found := list(names)):
        raise FileNotFoundError(
            "none of the sets asked for is at hand: set LIFTEDNN_DATA to the folder that holds them"
        )
    return found


def at_hand(store: Store, names: Iterable[str], load: Callable[[str], Split]) -> Iterator[str]:
    """The sets that can be found; others are named."""
    for name in names:
        try:
            load(name)
        except FileNotFoundError as error:
            store.tell(f"left out: {error}")
        else:
            yield name


def summary(store: Store, seeds: int = SEEDS) -> list[dict[str, Any]]:
    """One row per set: mean scores, their spread, ranks by the mean score, and mean seconds."""
    rows = []
    for name in SETS:
        runs = {who: store.values(set=name, method=who) for who in estimators(name)}
        if not all(len(found) == seeds for found in runs.values()):
            continue
        row = {"set": name, "rows": runs["MLP"][0]["rows"], "columns": runs["MLP"][0]["columns"]}
        for who, found in runs.items():
            scores = [cell["score"] for cell in found]
            row |= {who: statistics.mean(scores), f"{who} sd": statistics.stdev(scores) if seeds > 1 else 0.0}
            row[f"{who} s"] = statistics.mean(cell["seconds"] for cell in found)
        rows.append(row | {"rank": 1 if row["lifted"] > row["MLP"] else 2})
    return rows


def run(settings: Settings) -> None:
    """--only takes sets."""
    store, seeds = settings.store("estimators"), 1 if settings.quick else SEEDS
    unknown = set(settings.only) - set(SETS)
    if unknown:
        raise ValueError(f"--only takes {', '.join(SETS)}, got {', '.join(sorted(unknown))}")
    limits = {"max_iter": 2} if settings.quick else {}
    with threads(2):
        asked = settings.only or (("digits",) if settings.quick else SETS)
        for name in some(at_hand(store, asked, partial(split, seed=0))):
            for seed in range(seeds):
                for who in estimators(name):
                    store(partial(measure, who, name, seed, limits), set=name, method=who, seed=seed)
    rows = summary(store, seeds)
    names = max((list(row) for row in rows), key=len)
    table("default estimators, mean accuracy or R^2", [{key: row.get(key, "") for key in names} for row in rows])
    rank, ours, theirs = (statistics.mean(row[key] for row in rows) for key in ("rank", "lifted s", "MLP s"))
    print(f"mean rank {rank:.2f}, MLP's {3 - rank:.2f}; mean seconds {ours:.2f}, MLP's {theirs:.2f}")
