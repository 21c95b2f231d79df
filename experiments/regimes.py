"""Where lifted weights help most, at tuned rates and equal total time: `python -m experiments regimes`.

Settings of several kinds are tried on held-back training rows: few epochs, by the seconds of a GPU or of a CPU, nothing
tuned, deep and narrow networks, few rows, low precision. Those where the lifted weights lead the best of the others by more
than two standard deviations are then run once on the test rows, with fresh seeds. All that was tried is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from experiments.arena import DEVIATIONS, Arena, Outcome, beyond
from experiments.cells import named, read, told
from experiments.contests import ANY_INPUTS, LIFTED, Contest
from experiments.parts import do
from experiments.rendering import markdown, spread
from liftednn.files import beside
from liftednn.start import check_device

__all__ = ["REGIMES", "arenas", "promising", "regimes", "table", "write_table"]

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


Arenas = dict[str, list[Arena]]


def regimes(out: Path, device: str = "cpu", only: Sequence[str] = (), seeds: int = 5, choices: int = 3) -> int:
    """Do what is left to do, then write and print the table; the exit code, 130 if it was interrupted."""
    check_device(device)
    own = arenas(out, device, only, seeds, choices)
    every = [arena for all_ in own.values() for arena in all_]
    for arena in every:
        arena.check()
    if not do([part for arena in every for part in arena.tuning()], out):
        return 130
    held = [arena for arena in every if promising(arena)]
    if not do([part for arena in held for part in arena.testing()], out):
        return 130
    print(write_table(out, arenas(out, device, (), seeds, choices)))
    return 0


def write_table(out: Path, own: Arenas) -> str:
    text = table(own)
    with beside(out / "regimes.md") as part:
        part.write_text(text)
    return text


def arenas(out: Path, device: str = "cpu", only: Sequence[str] = (), seeds: int = 5, choices: int = 3) -> Arenas:
    unknown = set(only) - set(REGIMES)
    if unknown:
        raise ValueError(f"--only takes {', '.join(REGIMES)}, got {', '.join(sorted(unknown))}")
    wanted = {kind: all_ for kind, all_ in REGIMES.items() if not only or kind in only}
    return {kind: [Arena(out, contest, device, seeds, choices) for contest in all_] for kind, all_ in wanted.items()}


def promising(arena: Arena) -> bool:
    """Whether the lifted weights lead on the held-back rows."""
    return arena.standing(arena.chosen).deviations > DEVIATIONS


def table(own: Arenas) -> str:
    """From the files alone, in Markdown: every setting that was tried, and the test of those that led."""
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
        f"Seconds: {'; '.join(sorted({told(read(arena.file('times'))['versions']) for arena in every}))}.",
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
