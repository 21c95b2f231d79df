"""The paper's comparison on other data (its future work): `python -m experiments compare --only fashion`.

The lifted model alone; the standard network from lifted and from random weights, at a small rate for the same epochs, and at a tuned
rate for the same total time. Settings are chosen on held-back training rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import datasets
from experiments.cells import machine_text, named, short
from experiments.comparisons import ANY_INPUTS, SMALL, STARTS, Comparison
from experiments.equal_time import Case, Outcome, bold_if_large, store_of
from experiments.parts import do
from experiments.rendering import markdown, spread
from experiments.settings import Settings

__all__ = ["CHOICES", "TAKES", "cases", "comparisons", "run", "table", "texts", "titled"]

TAKES = ("device", "seeds", "only")

_UCI = [name for name in datasets.NAMES if name.startswith("uci/")]
_REGRESSION: dict[str, Any] = {"epochs": 40, "passes": None, "clock": "cpu"}
_COMPARISONS: dict[str, list[Comparison]] = {
    **{
        name: [Comparison(name, hidden, inputs=ANY_INPUTS) for hidden in ((300,), (500, 200, 100))]
        for name in ("mnist", "fashion", "cifar10")
    },
    "adult": [Comparison("adult", hidden, clock="cpu") for hidden in ((100,), (100, 50))],
    "uci": [Comparison(name, (100,) if "protein" in name else (50,), **_REGRESSION) for name in _UCI],
    "california": [Comparison("california", hidden, **_REGRESSION) for hidden in ((100,), (100, 50))],
}
CHOICES = tuple(_COMPARISONS)
QUICK = "friedman"  # it needs no file
_QUICK_ROWS, _QUICK_EPOCHS, _SPLITS = 300, 3, 5


def comparisons(data: str, quick: bool = False) -> list[Comparison]:
    """Of one of `CHOICES`; quick ones are small, and show only that all works."""
    if data == QUICK:
        return [Comparison(data, (8,), 2, passes=1, clock="cpu", cap=_QUICK_EPOCHS)]
    if data not in _COMPARISONS:
        raise ValueError(f"--only takes {', '.join(CHOICES)}, got {data}")
    found = _COMPARISONS[data]
    if not quick:
        return found
    rows = None if found[0].real else _QUICK_ROWS
    return [replace(found[0], hidden=(20,), epochs=2, rows=rows, cap=_QUICK_EPOCHS, inputs=("given",))]


def cases(results: Path, data: str, device: str = "cpu", quick: bool = False, seeds: int | None = None) -> list[Case]:
    if seeds is not None and not 1 <= seeds <= _SPLITS:
        raise ValueError(f"--seeds must be from 1 to {_SPLITS}, the splits that every set has, got {seeds}")
    count, choices = (seeds or 2, 1) if quick else (seeds or 5, 2)
    own = comparisons(data, quick)
    store = store_of(results, "compare", own[0], device)
    return [Case(store, comparison, device, count, choices, small=True) for comparison in own]


def run(settings: Settings) -> None:
    """Do what is left to do, then print the tables; --only takes data sets, by default all."""
    for data in settings.only or ((QUICK,) if settings.quick else CHOICES):
        own = cases(settings.results, data, settings.device, settings.quick, settings.seeds)
        for case in own:
            case.check()
        do([part for case in own for part in (*case.tuning(), *case.testing(), case.lifted_alone())])
        print(table(own, data))


def texts(results: Path, quick: bool = False) -> Iterator[str]:
    """The tables of all sets that are whole, those of a GPU before those of a CPU."""
    for data in sorted((*CHOICES, QUICK)):
        for device in ("cuda", "cpu")[comparisons(data)[0].clock == "cpu" :]:
            own = cases(results, data, device, quick)
            if all(case.whole("test") and case.has("alone") for case in own):
                yield table(own, data)


def table(own: Sequence[Case], data: str) -> str:
    """From the records alone, in Markdown."""
    score = "root mean squared error, lower is better" if own[0].comparison.real else "accuracy"
    head = ["", "lifted alone", "lifted, all passes", *STARTS, "lead over the best other", "deviations"]
    sections = [
        f"# {data}: test {score}, mean ± standard deviation over {own[0].seeds} seeds",
        f"## Rate {short(SMALL)}, the same epochs",
        markdown(head, [_row(case, case.tested_small) for case in own]),
        "## Tuned, the same total time",
        markdown(head, [_row(case, case.tested) for case in own]),
        "## What was chosen when tuned, and seconds in all of one network alone",
        markdown(["", "lifted, all passes", *STARTS], [[titled(a), *_choices(a)] for a in own]),
        machine_text(own[0].machine("alone")) + ".",
    ]
    return "\n\n".join(sections) + "\n"


def titled(case: Case) -> str:
    """The data set and the network of a comparison."""
    name = case.comparison.data.removeprefix("uci/").replace("_", " ")
    return f"{name}, {named(case.comparison.hidden)}"


def _row(case: Case, outcome: Callable[[str], Outcome]) -> list[str]:
    alone, scores = case.value("alone")["scores"], [outcome(start).scores for start in STARTS]
    models = [spread(alone["phase"]), spread(alone["through"]), *marked(scores, case.comparison.real)]
    _, lead, deviations = case.standing(outcome)
    return [titled(case), *models, f"{lead:+.4f}", bold_if_large(deviations)]


def marked(scores: Sequence[list[float]], lower: bool) -> list[str]:
    """The best mean in bold."""
    means = [statistics.fmean(each) for each in scores]
    best = min(means) if lower else max(means)
    return [f"**{spread(s)}**" if mean == best else spread(s) for s, mean in zip(scores, means, strict=True)]


def _choices(case: Case) -> list[str]:
    through = statistics.median(case.value("alone")["seconds"]["through"])
    chosen = [case.tested(start) for start in STARTS]
    return [f"{through:.2f} s", *(f"{each.description}: {each.seconds:.2f} s" for each in chosen)]
