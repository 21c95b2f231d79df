"""Where lifted weights help most, at tuned rates and equal total time: `python -m experiments regimes`.

Settings of several kinds are tried on held-back training rows: few epochs, by the seconds of a GPU or of a CPU, nothing
tuned, deep and narrow networks, few rows, low precision. Those where the lifted weights lead the best of the others by more
than two standard deviations are then run once on the test rows, with fresh seeds. All that was tried is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from experiments.arena import DEVIATIONS, Arena, Outcome, beyond, store_of
from experiments.cells import named, told
from experiments.contests import ANY_INPUTS, LIFTED, Contest
from experiments.parts import do
from experiments.rendering import markdown, spread
from experiments.settings import Settings

__all__ = ["REGIMES", "TAKES", "arenas", "compute", "promising", "run", "table", "texts"]

TAKES = ("device", "seeds", "only")

_BATCHES = (100, 500)
_NETS = ((300,), (500, 200, 100))
_DEEP = (100,) * 10
_IMAGES = ("mnist", "fashion", "cifar10")
REGIMES: dict[str, list[Contest]] = {
    "few epochs": [Contest(data, hidden, 1, batches=_BATCHES) for data in ("mnist", "fashion") for hidden in _NETS],
    "few epochs on a CPU": [
        Contest(data, hidden, 1, batches=_BATCHES, clock="cpu", inputs=ANY_INPUTS)
        for data in _IMAGES
        for hidden in _NETS
    ],
    "no tuning": [Contest(data, hidden, tuned=False) for data in _IMAGES for hidden in _NETS],
    "deep": [Contest(data, _DEEP, 3, batches=_BATCHES) for data in ("mnist", "fashion")],
    "narrow": [Contest(data, (20, 20), 3, batches=_BATCHES) for data in ("mnist", "fashion")],
    "few rows": [
        Contest(data, (300,), rows=rows, passes=passes)
        for passes in (3, None)
        for data in ("mnist", "fashion")
        for rows in (1000, 6000)
    ],
    "low precision": [
        Contest(data, hidden, 3, precision="bfloat16", batches=_BATCHES)
        for data in ("mnist", "fashion")
        for hidden in _NETS
    ],
}
_QUICK = {"few rows": [Contest("friedman", (8,), 2, passes=1, cap=3)]}


Arenas = dict[str, list[Arena]]


def run(settings: Settings) -> None:
    """Do what is left to do, then print the table; --only takes kinds of settings, such as 'few rows'."""
    given = _QUICK if settings.quick else REGIMES
    seeds, choices = (settings.seeds or 2, 1) if settings.quick else (settings.seeds or 5, 3)
    own = arenas(settings.results, settings.device, settings.only, seeds, choices, given)
    compute([arena for all_ in own.values() for arena in all_])
    print(table(arenas(settings.results, settings.device, (), seeds, choices, given)))


def compute(own: Sequence[Arena]) -> None:
    """Try all, then test those that lead."""
    for arena in own:
        arena.check()
    do([part for arena in own for part in arena.tuning()])
    do([part for arena in own if promising(arena) for part in arena.testing()])


def texts(results: Path, quick: bool = False) -> Iterator[str]:
    """The table of what is stored, a GPU's before a CPU's; none where nothing is."""
    given = ((), 2, 1, _QUICK) if quick else ((), 5, 3, REGIMES)
    found = {device: arenas(results, device, *given) for device in ("cuda", "cpu")}
    whole = {
        device: {arena.contest.clock for all_ in own.values() for arena in all_ if arena.whole("tune")}
        for device, own in found.items()
    }
    shown = [device for device, clocks in whole.items() if "own" in clocks] or ["cpu"]
    yield from (table(found[device]) for device in shown if whole[device])


def arenas(
    results: Path,
    device: str = "cpu",
    only: Sequence[str] = (),
    seeds: int = 5,
    choices: int = 3,
    given: dict[str, list[Contest]] = REGIMES,
) -> Arenas:
    unknown = set(only) - set(given)
    if unknown:
        raise ValueError(f"--only takes {', '.join(given)}, got {', '.join(sorted(unknown))}")
    wanted = {kind: all_ for kind, all_ in given.items() if not only or kind in only}
    contests = [contest for all_ in wanted.values() for contest in all_]
    stores = {contest.clock: store_of(results, "regimes", contest, device) for contest in contests}
    if device == "cpu":  # one file, and so one store
        stores = dict.fromkeys(stores, next(iter(stores.values())))
    return {
        kind: [Arena(stores[contest.clock], contest, device, seeds, choices) for contest in all_]
        for kind, all_ in wanted.items()
    }


def promising(arena: Arena) -> bool:
    """Whether the lifted weights lead on the held-back rows."""
    return arena.standing(arena.chosen).deviations > DEVIATIONS


def table(own: Arenas) -> str:
    """From the records alone, in Markdown: every setting that was tried, and the test of those that led."""
    tried = {kind: [arena for arena in all_ if arena.whole("tune")] for kind, all_ in own.items()}
    held = {kind: [a for a in all_ if promising(a) and a.whole("test")] for kind, all_ in tried.items()}
    every, led = (list(chain.from_iterable(group.values())) for group in (tried, held))
    won = [arena for arena in led if arena.standing(arena.tested).deviations > DEVIATIONS]
    missing = sum(map(len, own.values())) - len(every)
    if not every:
        return "No setting is whole yet.\n"
    head = ["", "setting", "lifted", "best other", "", "lead", "deviations"]
    sections = [
        "# Where lifted weights help at tuned settings and equal total time",
        f"{len(every)} settings, {len(led)} with a lead of more than {DEVIATIONS:g} standard deviations on held-back rows, "
        f"{len(won)} of which have one on the test rows too." + f" {missing} more are not whole yet." * bool(missing),
        f"## Tried on held-back rows, {every[0].choices} seeds",
        markdown(head, [[kind, *_row(arena, arena.chosen)] for kind, all_ in tried.items() for arena in all_]),
        f"## Tested once, {every[0].seeds} fresh seeds",
        markdown(head, [[kind, *_row(arena, arena.tested)] for kind, all_ in held.items() for arena in all_]),
        "## What was chosen for those tested, and seconds in all of one network alone",
        markdown(["", LIFTED, "best other"], [_choices(arena) for arena in led]),
        f"Seconds: {'; '.join(sorted({told(arena.machine('times')) for arena in every}))}.",
    ]
    return "\n\n".join(sections) + "\n"


def _row(arena: Arena, outcome: Callable[[str], Outcome]) -> list[str]:
    other, lead, deviations = arena.standing(outcome)
    scores = [spread(outcome(LIFTED).scores), spread(outcome(other).scores)]
    return [_title(arena.contest), *scores, other, f"{lead:+.4f}", beyond(deviations)]


def _choices(arena: Arena) -> list[str]:
    told = [arena.tested(start) for start in (LIFTED, arena.standing(arena.tested).rival)]
    return [_title(arena.contest), *(f"{each.told}: {each.seconds:.2f} s" for each in told)]


def _title(contest: Contest) -> str:
    hidden = named(contest.hidden) if len(set(contest.hidden)) > 1 else f"{len(contest.hidden)} x {contest.hidden[0]}"
    parts = [contest.data, hidden, f"{contest.epochs} epoch{'s' * (contest.epochs > 1)}"]
    parts += [f"{contest.passes} passes" if contest.passes else "more passes"] if contest.passes != 3 else []
    parts += [f"{contest.rows} rows"] if contest.rows else []
    return ", ".join([*parts, *([contest.precision] if contest.precision != "float32" else [])])
