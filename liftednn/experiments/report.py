"""Table 1 and Figure 1 (sec. 7) as one page to look through: `liftednn report RUNS --out report.html`, from the files of table1 alone;
with the tables of compare and regimes below, where their folders are given too.

Statistics are made here and put into the page as JSON; report.js, a part of the page, draws them. The page needs no network: its style,
its script and its numbers are in it. No text of a file is ever written as HTML, so that no name in it can become a part of the page.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from liftednn.experiments.cells import cells, read, short
from liftednn.experiments.rendering import (
    COLUMNS,
    DOUBLED,
    EUCLIDEAN,
    LITERAL,
    PAPER,
    PHASES,
    READINGS,
    SCALED,
    SCORES,
    STYLES,
    best_trials,
    nets,
    rates,
    trials,
)
from liftednn.files import beside, check_place

__all__ = ["page", "report", "summary"]

Stored = Sequence[dict[str, Any]]

_TRAINING = {"architecture", "start", "rate", "epochs", "batch", "method"}
_DIGITS = 6  # of an accuracy: more than 10,000 test rows and a few seeds can tell
# As SVG has the line styles; black is the page's own colour, which turns white on a dark one.
_DASHES = {"solid": "", "dashed": "7 4", "dotted": "2 3", "dashdot": "8 3 2 3"}
_STYLES = {
    **{n: ("currentColor" if colour == "#000000" else colour, _DASHES[style]) for n, (colour, style) in STYLES.items()},
    "Normal" + LITERAL: ("#999999", "14 4"),
    "Xavier" + LITERAL: ("#0072B2", "14 4"),
    "sigma^2-scale" + LITERAL: ("#0072B2", "14 3 2 3 2 3"),
    EUCLIDEAN + LITERAL: ("#E69F00", "14 4"),
    "Normal" + SCALED: ("#999999", "3 6"),
    "Xavier" + SCALED: ("#0072B2", "3 6"),
    "sigma^2-scale" + SCALED: ("#0072B2", "6 6"),
    DOUBLED + SCALED: ("#0072B2", "12 6"),
    EUCLIDEAN + SCALED: ("#E69F00", "3 6"),
}
_READINGS = tuple(READINGS)
_OTHERS = ("#0072B2", "#CC79A7", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#999999")


def report(run: Path, out: Path = Path("report.html"), others: Sequence[Path] = ()) -> Path:
    """Write the page of a folder of `liftednn table1`, and of others of `compare` or `regimes`."""
    check_place(out)
    documents = [document for other in others for document in _documents(other)]
    text = page(summary(run) | ({"others": documents} if documents else {}))
    with beside(out) as part:
        part.write_text(text, encoding="utf-8")
    return out


def page(facts: dict[str, Any]) -> str:
    """One HTML file. The facts go in last, so that no text in them is taken for a place to fill."""
    room = files("liftednn.experiments")
    text = room.joinpath("report.html.in").read_text(encoding="utf-8")
    for place in ("report.css", "report.js"):
        text = text.replace(f"@{place}@", room.joinpath(place).read_text(encoding="utf-8").strip())
    return text.replace("@facts@", _embedded(facts))


def _embedded(facts: dict[str, Any]) -> str:
    """JSON in which nothing can end the element that it stands in."""
    told = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        told = told.replace(sign, f"\\u{ord(sign):04x}")
    return told


def summary(run: Path) -> dict[str, Any]:
    """All that the page shows; an error that says how to make what is missing."""
    stored = _stored(run)
    plan = run / "plan.json"
    try:
        return _summary(stored) | {"run": run.name, "plan": read(plan) if plan.exists() else {}}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{run} has a file that is no cell of liftednn table1 ({error}): take it away") from error


def _documents(folder: Path) -> list[dict[str, Any]]:
    """The tables of every .md file of a folder, with the headings that they stand under."""
    found = sorted(folder.glob("*.md"))
    if not found:
        raise FileNotFoundError(f"{folder} has no tables: make them with  liftednn compare  or  liftednn regimes")
    return [_document(path.read_text(encoding="utf-8")) for path in found]


def _document(text: str) -> dict[str, Any]:
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    tables = re.findall(r"^## (.+)\n\n((?:\|.*\n?)+)", text, re.MULTILINE)
    rows = [(name, [_fields(line) for line in body.splitlines()]) for name, body in tables]
    return {
        "title": title[1] if title else "",
        "tables": [{"title": name, "head": lines[0], "rows": lines[2:]} for name, lines in rows],
    }


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.strip().strip("|").split("|")]


def _stored(run: Path) -> list[dict[str, Any]]:
    if not run.is_dir():
        raise FileNotFoundError(f"there is no folder {run}: make it with  liftednn table1 --out {run}")
    stored = [cell for cell in cells(run) if isinstance(cell, dict) and "kind" in cell]
    if not any(cell["kind"] == "cell" for cell in stored):
        raise ValueError(f"{run} has no cells to report on: make them with  liftednn table1 --out {run}")
    return stored


def _summary(stored: Stored) -> dict[str, Any]:
    trained, phases = (_entries(stored, kind) for kind in ("cell", "phase"))
    starts = _in_order((entry["start"] for entry in trained), _STYLES)
    plain = [*COLUMNS, *(name for name in starts if name not in COLUMNS and not name.endswith(_READINGS))]
    return {
        "architectures": nets(stored),
        "rates": [_told(rate) for rate in rates(stored)],
        "starts": [_drawn(name) for name in starts],
        "phases": PHASES,
        "columns": plain,
        "literal": [name for name in starts if name.endswith(_READINGS)],
        "cells": trained,
        "alone": [entry for entry in phases if entry["start"] in PHASES],
        "settings": _settings(stored),
        "trials": _trials(stored),
        "versions": _versions(stored),
    }


def _entries(stored: Stored, kind: str) -> list[dict[str, Any]]:
    """One for each architecture, start and rate, over seeds; a phase has no rate."""
    groups: dict[tuple[str, str, float | None], list[dict[str, Any]]] = {}
    for cell in (cell for cell in stored if cell["kind"] == kind):
        given = cell["parameters"]
        groups.setdefault((given["architecture"], given["start"], given.get("rate")), []).append(cell)
    return [_entry(*key, own) for key, own in groups.items()]


def _entry(net: str, start: str, rate: float | None, own: Stored) -> dict[str, Any]:
    mean, deviation = _moments([cell["accuracy"] for cell in own])
    facts: dict[str, Any] = {"net": net, "start": start, "rate": None if rate is None else _told(rate), "n": len(own)}
    facts |= {
        "mean": mean,
        "sd": deviation,
        "paper": PAPER.get((net, start.removesuffix(LITERAL).removesuffix(SCALED), rate)),
    }
    facts["start_seconds"] = _median(own, "start_seconds")
    return facts if rate is None else facts | _curve(own)


def _curve(own: Stored) -> dict[str, Any]:
    """By epoch, up to the last that all seeds have: a run with more time for some of them may have left longer ones behind."""
    by_epoch = [_moments(seen) for seen in zip(*(cell["curve"] for cell in own), strict=False)]
    means, deviations = [list(each) for each in zip(*by_epoch, strict=True)] or ([], [])
    return {"means": means, "sds": deviations, "epoch_seconds": _median(own, "epoch_seconds_alone")}


def _moments(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the sample; one seed has no deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return _rounded(statistics.mean(values)), _rounded(deviation)


def _median(own: Stored, key: str) -> float:
    # Four digits of a time are more than a clock repeats.
    return float(f"{statistics.median(cell[key] for cell in own):.4g}")


def _rounded(value: float) -> float | None:
    """JSON has no word for what is not finite; the page leaves it blank."""
    return round(value, _DIGITS) if math.isfinite(value) else None


def _settings(stored: Stored) -> list[dict[str, Any]]:
    """What the lifted phases were run with: of the search's choice, those that were used."""
    found: list[dict[str, Any]] = []
    for cell in stored:
        given = cell["parameters"]
        if cell["kind"] in ("cell", "phase") and given.keys() - _TRAINING:
            own = {name: value for name, value in given.items() if name not in _TRAINING}
            row = {"architecture": given["architecture"], "start": given["start"]} | own
            found += [row] if row not in found else []
    order = nets(stored)
    return sorted(found, key=lambda row: order.index(row["architecture"]))


def _trials(stored: Stored) -> list[dict[str, Any]]:
    """Every trial of the search in its order, and of which scores it is the best."""
    searched = [cell for cell in stored if cell["kind"] == "trial"]
    rows = []
    for net in nets(searched):
        own = trials(searched, net)
        top = best_trials(own)
        for trial in own:
            facts = {name: trial[name] for name in ("number", "lam", "sweeps", "rows")}
            scores = {score: _rounded(trial[score]) for score in SCORES}
            best = [score for score in SCORES if trial is top[score]]
            rows.append({"architecture": net} | facts | scores | {"best": best})
    return rows


def _versions(stored: Stored) -> list[dict[str, Any]]:
    """With which versions and on which devices the files were made, how many and of which seeds."""
    groups: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
    for cell in stored:
        groups.setdefault(tuple(cell["versions"].items()), []).append(cell)
    seeds = [sorted({cell["seed"] for cell in own if "seed" in cell}) for own in groups.values()]
    told = [", ".join(map(str, each)) for each in seeds]
    return [dict(key) | {"files": len(groups[key]), "seeds": each} for key, each in zip(groups, told, strict=True)]


def _drawn(name: str) -> dict[str, Any]:
    """How a start is drawn. What is lifted is heavier; what is trained as printed is there to be switched on."""
    # By the sum of its letters, so that a name keeps its colour from page to page.
    other = (_OTHERS[sum(map(ord, name)) % len(_OTHERS)], _DASHES["dashdot"])
    colour, dash = _STYLES.get(name, other)
    return {"name": name, "colour": colour, "dash": dash, "heavy": "Lifted" in name, "off": name.endswith(_READINGS)}


def _in_order(found: Iterable[str], known: Iterable[str]) -> list[str]:
    names = set(found)
    first = [name for name in known if name in names]
    return first + sorted(names.difference(first))


def _told(rate: float) -> str:
    """Short where that is the rate itself, in full elsewhere: two rates must not become one."""
    return short(rate) if float(short(rate)) == rate else repr(rate)
