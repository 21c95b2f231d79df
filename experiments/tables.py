"""Estimators at their defaults on real tables: those on which our defaults are chosen, those that judge them, and the sets of `estimators`.

`python -m experiments tables`, with `--workers N` for N processes. Tables have five random splits, 75 % to train on, with the same share
of every class; the sets of `estimators` those it gives them. All fits use one thread, and seconds are the processor's, of the fastest
of three equal fits where the first takes less than a second: single ones take up to twice as long beside other processes. The tables
that judge the defaults must not influence them, so they are run only where named: `--only judging` (docs/defaults.md says how
often, and why), and tables of other packages, `--only unseen`, `--only later` and `--only last`. Deep networks take minutes and are run
only where named too: `--only RealMLP --only bupa --seeds 2`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from scipy.stats import rankdata
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

from experiments import datasets, default_models, estimators, tabular, unseen
from experiments.default_models import DEEP, METHODS, OPTIONAL
from experiments.estimators import Split, at_hand, some
from experiments.markdown import table
from experiments.settings import Settings, threads
from experiments.store import Record, Store
from experiments.workers import Job, fill

TAKES = ("only", "seeds", "workers")
SPLITS, DEEP_SPLITS = 5, 2
PARTS = {
    "choosing": tabular.CHOOSING,
    "judging": tabular.JUDGING,
    "unseen": unseen.NAMES,
    "later": unseen.LATER,
    "last": unseen.LAST,
    "old": estimators.SETS,
}
_NAMED = ("judging", "unseen", "later", "last")  # parts that are run only where they are named
QUICK, QUICK_ROWS = {"old": ("digits", "friedman")}, 100
# Measures by name, and whether less is better.
RANKED = {"accuracy": False, "log_loss": True, "r2": False}
BEHIND = {"accuracy": 0.02, "r2": 0.05}  # what counts as behind MLP or the linear model
MANY = 1000  # training rows, from which seconds are summed up apart
# A fit of less than SHORT seconds is timed so many times, and the fastest one counts.
REPEATED, SHORT = 3, 1.0

Row = dict[str, Any]
Means = Mapping[str, Mapping[str, Mapping[str, float]]]  # by set, method and measure


def has_classes(name: str) -> bool:
    loader = _loader(name)
    return name in estimators.CLASSES if loader is None else loader(name).classes


def _loader(name: str) -> Callable[[str], tabular.Table] | None:
    """What reads a table; None for the sets of `estimators`."""
    if name in tabular.NAMES:
        return tabular.load
    return unseen.load if name in (*unseen.NAMES, *unseen.LATER, *unseen.LAST) else None


def split(name: str, number: int) -> Split:
    """Rows to train on and rows to be judged by."""
    if name == "friedman":
        return Split(*(part.double().numpy() for part in datasets.friedman(number)))
    loader = _loader(name)
    if loader is None:
        return estimators.split(name, number)
    x, y, classes = loader(name)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=number, stratify=y if classes else None)
    return Split(x, y, x_test, y_test)


def measure(who: str, name: str, number: int, quick: bool = False) -> Row:
    """One fit, and its scores on the test rows."""
    data, classes = split(name, number), has_classes(name)
    x, y = (data.x[:QUICK_ROWS], data.y[:QUICK_ROWS]) if quick else (data.x, data.y)
    fitted = default_models.fit(who, x, y, classes, number, quick=quick)
    again = REPEATED - 1 if fitted.seconds < SHORT and not quick else 0
    seconds = [fitted.seconds, *(default_models.fit(who, x, y, classes, number).seconds for _ in range(again))]
    found = {"rows": len(x), "columns": x.shape[1]} | fitted._replace(seconds=min(seconds)).cost
    if classes:
        return found | default_models.class_scores(fitted.model, data.x_test, data.y_test)
    return found | {"r2": float(r2_score(data.y_test, fitted.model.predict(data.x_test)))}


def means(store: Store, names: Iterable[str], splits: int) -> Means:
    """Over the splits, of the sets for which every method that needs no further package is complete; seconds of those only that were run
    on the processor of MLP."""
    found, stored = {}, _runs(store, splits)
    for name in names:
        runs = {who: stored[name, who] for who in METHODS}
        whole = {who: _mean([run.value for run in runs[who]]) for who in METHODS if len(runs[who]) == splits}
        if whole.keys() >= set(METHODS) - set(OPTIONAL):
            for who, of in whole.items():
                if _processors(runs[who]) != _processors(runs["MLP"]):
                    del of["seconds"]
            found[name] = whole
    return found


def _processors(runs: Sequence[Record]) -> list[str]:
    return [run.machine["processor"] for run in runs]


def beside_deep(store: Store) -> Means:
    """Over fewer splits, of the sets for which a deep network is complete."""
    found = means(store, tabular.NAMES, DEEP_SPLITS)
    return {name: of for name, of in found.items() if any(who in of for who in DEEP)}


def _runs(store: Store, splits: int) -> defaultdict[tuple[str, str], list[Record]]:
    """Of the first so many splits, in their order, by set and method; none where nothing is stored."""
    found = defaultdict[tuple[str, str], list[Record]](list)
    for each in store.in_order("split"):
        if each.fields["split"] < splits:
            found[each.fields["set"], each.fields["method"]].append(each)
    return found


def _mean(runs: Sequence[Row]) -> dict[str, float]:
    numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
    return {key: statistics.mean(run[key] for run in runs) for key in numbers}


def ranks(found: Means, methods: Sequence[str], measured: str, less: bool) -> dict[str, float]:
    """Mean rank of each method over the sets that have this measure; equal ones share their ranks."""
    sign = 1 if less else -1
    seen = [rankdata([sign * of[who][measured] for who in methods]) for of in found.values() if measured in of["MLP"]]
    return {who: statistics.mean(float(each[k]) for each in seen) for k, who in enumerate(methods) if seen}


def times_mlp(found: Means, who: str) -> Row:
    """Seconds over those of MLP: the median, and the worst set of many and of few rows."""
    ratio = {name: of[who]["seconds"] / of["MLP"]["seconds"] for name, of in found.items() if "seconds" in of[who]}
    many = {name: value for name, value in ratio.items() if found[name][who]["rows"] > MANY}
    few = {name: value for name, value in ratio.items() if name not in many}
    median = statistics.median(ratio.values()) if ratio else ""
    return {"median": median, "many rows": _worst(many), "few rows": _worst(few)}


def _worst(ratio: Mapping[str, float]) -> str:
    name = max(ratio, key=lambda each: ratio[each], default="")
    return f"{ratio[name]:.2f} ({name})" if name else ""


def summary(found: Means) -> list[Row]:
    """One row per method that is complete on all these sets."""
    methods = [who for who in METHODS if found and all(who in of for of in found.values())]
    ranked = {key: ranks(found, methods, key, less) for key, less in RANKED.items()}
    rows = []
    for who in methods:
        row: Row = {"method": who} | {f"{key} rank": of.get(who, "") for key, of in ranked.items()}
        errors = [of[who]["calibration"] for of in found.values() if "calibration" in of[who]]
        row["calibration error"] = statistics.mean(errors) if errors else ""
        rows.append(row | {f"seconds / MLP, {key}": value for key, value in times_mlp(found, who).items()})
    return rows


def behind(found: Means) -> list[Row]:
    """The sets on which ours is below the better of MLP and the linear model by more than `BEHIND`."""
    rows = []
    for name, of in found.items():
        (measured,) = BEHIND.keys() & of["MLP"].keys()
        scores = {who: of[who][measured] for who in ("lifted", "MLP", "linear")}
        lead = max(scores["MLP"], scores["linear"]) - scores["lifted"]
        if lead > BEHIND[measured]:
            rows.append({"set": name, "measure": measured, **scores, "behind by": lead})
    return rows


def chosen(only: Sequence[str], parts: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Sets and methods; all methods, and all sets but those that judge, where none is named."""
    sets = [name for names in parts.values() for name in names]
    if unknown := set(only) - {*parts, *sets, *METHODS}:
        allowed = f"{', '.join(parts)}, a set ({', '.join(sets)}) or a method ({', '.join(METHODS)})"
        raise ValueError(f"--only takes {allowed}, got {', '.join(sorted(unknown))}")
    named = [name for part, names in parts.items() for name in names if part in only or name in only]
    default = [name for part, names in parts.items() for name in names if part not in _NAMED]
    return named or default, [who for who in METHODS if who in only] or [who for who in METHODS if who not in DEEP]


def runnable(store: Store, methods: Iterable[str]) -> list[str]:
    """The methods whose packages are installed; others are named."""
    here = default_models.installed()
    for who in set(methods) - set(here):
        store.tell(f'left out: {who} is not installed: pip install "liftednn[experiments]"')
    return [who for who in methods if who in here]


def run(settings: Settings) -> None:
    """--only takes sets, parts and methods, --seeds the number of splits."""
    store = settings.store("tables")
    parts, splits = (QUICK, 1) if settings.quick else (PARTS, settings.seeds or SPLITS)
    names, asked = chosen(settings.only, parts)
    methods = runnable(store, asked)
    jobs = [
        Job(partial(measure, who, name, number, settings.quick), {"set": name, "split": number, "method": who})
        for name in some(at_hand(store, names, partial(split, number=0)))
        for number in range(splits)
        for who in methods
    ]
    with threads(1):  # as records say
        fill(store, jobs, settings.workers or 1)
    for part, sets in parts.items():
        show(part, means(store, sets, splits), len(sets))
    if found := beside_deep(store):
        show("beside deep networks", found, len(found))


def show(part: str, found: Means, count: int) -> None:
    """Print the tables of a part."""
    print(f"\n{part}: {len(found)} of {count} sets are complete")
    if found:
        table(f"{part}, mean ranks, seconds by the processor on one thread", summary(found))
    if late := behind(found):
        table(f"{part}, behind the better of MLP and linear", late)
