"""Where lifted weights help most, at tuned rates and equal total time: `python -m experiments regimes`.

Settings of several kinds are tried on held-back training rows: few epochs, by the seconds of a GPU or of a CPU, nothing
tuned, deep and narrow networks, few rows, low precision. Those where the lifted weights lead the best of the others by more
than two standard deviations are then run once on the test rows, with fresh seeds. All that was tried is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from experiments.cells import machine_text, named
from experiments.comparisons import ANY_INPUTS, LIFTED, Comparison
from experiments.equal_time import DEVIATIONS, Case, Outcome, bold_if_large, store_of
from experiments.parts import do
from experiments.rendering import markdown, spread
from experiments.settings import Settings

__all__ = ["REGIMES", "TAKES", "cases", "compute", "promising", "run", "table", "texts"]

TAKES = ("device", "seeds", "only")

_BATCHES = (100, 500)
_NETS = ((300,), (500, 200, 100))
_DEEP = (100,) * 10
_IMAGES = ("mnist", "fashion", "cifar10")
REGIMES: dict[str, list[Comparison]] = {
    "few epochs": [Comparison(data, hidden, 1, batches=_BATCHES) for data in ("mnist", "fashion") for hidden in _NETS],
    "few epochs on a CPU": [
        Comparison(data, hidden, 1, batches=_BATCHES, clock="cpu", inputs=ANY_INPUTS)
        for data in _IMAGES
        for hidden in _NETS
    ],
    "no tuning": [Comparison(data, hidden, tuned=False) for data in _IMAGES for hidden in _NETS],
    "deep": [Comparison(data, _DEEP, 3, batches=_BATCHES) for data in ("mnist", "fashion")],
    "narrow": [Comparison(data, (20, 20), 3, batches=_BATCHES) for data in ("mnist", "fashion")],
    "few rows": [
        Comparison(data, (300,), rows=rows, passes=passes)
        for passes in (3, None)
        for data in ("mnist", "fashion")
        for rows in (1000, 6000)
    ],
    "low precision": [
        Comparison(data, hidden, 3, precision="bfloat16", batches=_BATCHES)
        for data in ("mnist", "fashion")
        for hidden in _NETS
    ],
}
_QUICK = {"few rows": [Comparison("friedman", (8,), 2, passes=1, cap=3)]}


Cases = dict[str, list[Case]]


def run(settings: Settings) -> None:
    """Do what is left to do, then print the table; --only takes kinds of settings, such as 'few rows'."""
    given = _QUICK if settings.quick else REGIMES
    seeds, choices = (settings.seeds or 2, 1) if settings.quick else (settings.seeds or 5, 3)
    own = cases(settings.results, settings.device, settings.only, seeds, choices, given)
    compute([case for all_ in own.values() for case in all_])
    print(table(cases(settings.results, settings.device, (), seeds, choices, given)))


def compute(own: Sequence[Case]) -> None:
    """Try all, then test those that lead."""
    for case in own:
        case.check()
    do([part for case in own for part in case.tuning()])
    do([part for case in own if promising(case) for part in case.testing()])


def texts(results: Path, quick: bool = False) -> Iterator[str]:
    """The table of what is stored, a GPU's before a CPU's; none where nothing is."""
    given = ((), 2, 1, _QUICK) if quick else ((), 5, 3, REGIMES)
    found = {device: cases(results, device, *given) for device in ("cuda", "cpu")}
    whole = {
        device: {case.comparison.clock for all_ in own.values() for case in all_ if case.whole("tune")}
        for device, own in found.items()
    }
    shown = [device for device, clocks in whole.items() if "own" in clocks] or ["cpu"]
    yield from (table(found[device]) for device in shown if whole[device])


def cases(
    results: Path,
    device: str = "cpu",
    only: Sequence[str] = (),
    seeds: int = 5,
    choices: int = 3,
    given: dict[str, list[Comparison]] = REGIMES,
) -> Cases:
    unknown = set(only) - set(given)
    if unknown:
        raise ValueError(f"--only takes {', '.join(given)}, got {', '.join(sorted(unknown))}")
    wanted = {kind: all_ for kind, all_ in given.items() if not only or kind in only}
    comparisons = [comparison for all_ in wanted.values() for comparison in all_]
    stores = {comparison.clock: store_of(results, "regimes", comparison, device) for comparison in comparisons}
    if device == "cpu":  # one file, and so one store
        stores = dict.fromkeys(stores, next(iter(stores.values())))
    return {
        kind: [Case(stores[comparison.clock], comparison, device, seeds, choices) for comparison in all_]
        for kind, all_ in wanted.items()
    }


def promising(case: Case) -> bool:
    """Whether the lifted weights lead on the held-back rows."""
    return case.standing(case.chosen).deviations > DEVIATIONS


def table(own: Cases) -> str:
    """From the records alone, in Markdown: every setting that was tried, and the test of those that led."""
    tried = {kind: [case for case in all_ if case.whole("tune")] for kind, all_ in own.items()}
    held = {kind: [a for a in all_ if promising(a) and a.whole("test")] for kind, all_ in tried.items()}
    every, led = (list(chain.from_iterable(group.values())) for group in (tried, held))
    won = [case for case in led if case.standing(case.tested).deviations > DEVIATIONS]
    missing = sum(map(len, own.values())) - len(every)
    if not every:
        return "No setting is complete yet.\n"
    head = ["", "setting", "lifted", "best other", "", "lead", "deviations"]
    sections = [
        "# Where lifted weights help at tuned settings and equal total time",
        f"{len(every)} settings, {len(led)} with a lead of more than {DEVIATIONS:g} standard deviations on held-back rows, "
        f"{len(won)} of which have one on the test rows too."
        + (f" {missing} more are not complete yet." if missing else ""),
        f"## Tried on held-back rows, {every[0].choices} seeds",
        markdown(head, [[kind, *_row(case, case.chosen)] for kind, all_ in tried.items() for case in all_]),
        f"## Tested once, {every[0].seeds} fresh seeds",
        markdown(head, [[kind, *_row(case, case.tested)] for kind, all_ in held.items() for case in all_]),
        "## What was chosen for those tested, and seconds in all of one network alone",
        markdown(["", LIFTED, "best other"], [_choices(case) for case in led]),
        f"Seconds: {'; '.join(sorted({machine_text(case.machine('times')) for case in every}))}.",
    ]
    return "\n\n".join(sections) + "\n"


def _row(case: Case, outcome: Callable[[str], Outcome]) -> list[str]:
    other, lead, deviations = case.standing(outcome)
    scores = [spread(outcome(LIFTED).scores), spread(outcome(other).scores)]
    return [_title(case.comparison), *scores, other, f"{lead:+.4f}", bold_if_large(deviations)]


def _choices(case: Case) -> list[str]:
    both = [case.tested(start) for start in (LIFTED, case.standing(case.tested).best_other)]
    return [_title(case.comparison), *(f"{each.description}: {each.seconds:.2f} s" for each in both)]


def _title(comparison: Comparison) -> str:
    hidden = (
        named(comparison.hidden)
        if len(set(comparison.hidden)) > 1
        else f"{len(comparison.hidden)} x {comparison.hidden[0]}"
    )
    parts = [comparison.data, hidden, f"{comparison.epochs} epoch{'s' * (comparison.epochs > 1)}"]
    parts += [f"{comparison.passes} passes" if comparison.passes else "more passes"] if comparison.passes != 3 else []
    parts += [f"{comparison.rows} rows"] if comparison.rows else []
    return ", ".join([*parts, *([comparison.precision] if comparison.precision != "float32" else [])])
