"""Table 1 and Figure 1 (sec. 7) as one page to look through: `python -m experiments report`, from the records of table1; with the tables of
compare and regimes below, where they are stored too. Counts of what leads and what loses come first.

Statistics are made here and put into the page as JSON; report.js, a part of the page, draws them. The page needs no network: its style,
its script and its numbers are in it. No text of a file is ever written as HTML, so that no name in it can become a part of the page.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from experiments import compare, regimes
from experiments.cells import cells, short
from experiments.drawing import STYLES, over_seeds, style
from experiments.equal_time import DEVIATIONS
from experiments.rendering import (
    COLUMNS,
    LITERAL,
    MORE,
    PHASES,
    READINGS,
    SCALED,
    SCORES,
    best_trials,
    nets,
    printed,
    rates,
    table,
    trials,
)
from experiments.settings import Settings
from experiments.store import Store, existing
from experiments.verdicts import verdicts, with_verdicts
from liftednn.runtime.files import beside, check_writable

__all__ = ["page", "report", "run", "summary", "write"]

TAKES = ("out",)

Stored = Sequence[dict[str, Any]]

_TRAINING = {"architecture", "start", "rate", "epochs", "batch", "method"}
_DIGITS = 6  # of an accuracy: more than 10,000 test rows and a few seeds resolve
_BAND = ("medians", "lows", "highs")  # for the pictures, by epoch
_DASHES = {LITERAL: (14, 4), SCALED: (3, 6)}  # of the paper's columns in other readings
_READINGS = tuple(READINGS)
_ORDER = [*STYLES, *(name + reading for reading in READINGS for name in STYLES)]


def run(settings: Settings) -> None:
    """To --out, report.html if it is not given."""
    print(report(settings.results, settings.out or Path("report.html"), settings.quick))


def report(results: Path, out: Path = Path("report.html"), quick: bool = False) -> Path:
    """Write the page of all that is stored. The first table1, a GPU's where there is one, has its curves drawn."""
    check_writable(out)
    if out.suffix != ".html":
        raise ValueError(f"--out {out} must end in .html, the kind of file that is written")
    own = existing(results, "table1")
    texts = [*compare.texts(results, quick), *regimes.texts(results, quick)]
    if not own and not texts:
        problem = f"{results} has nothing to show: run table1, compare or regimes first"
        raise ValueError(f"{problem}, or name another folder by --results")
    return write(own, texts, out)


def write(own: Sequence[Store], texts: Sequence[str], out: Path) -> Path:
    """Write the page of stores of table1, and of texts in Markdown."""
    others = [_second(store) for store in own[1:]] + [_document(text) for text in texts]
    facts = (summary(own[0]) if own else {}) | {"others": others}
    text = page(facts | {"verdicts": verdicts(facts), "threshold": DEVIATIONS})
    with beside(out) as part:
        part.write_text(text, encoding="utf-8")
    return out


def page(facts: dict[str, Any]) -> str:
    """One HTML file. The facts go in last, so that no text in them is taken for a placeholder."""
    folder = files("experiments")
    text = folder.joinpath("report.html.in").read_text(encoding="utf-8")
    for part in ("report.css", "report.js"):
        text = text.replace(f"@{part}@", folder.joinpath(part).read_text(encoding="utf-8").strip())
    return text.replace("@facts@", _embedded(facts))


def _embedded(facts: dict[str, Any]) -> str:
    """JSON in which nothing can end the element that it stands in."""
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def summary(store: Store) -> dict[str, Any]:
    """All that the page shows of table1; an error that says how to make what is missing."""
    plan = store.get(kind="plan") or {}
    return _summary(_stored(store)) | {"run": store.path.stem, "plan": plan and plan | {"device": store.device}}


def _second(store: Store) -> dict[str, Any]:
    """A further table1, as its tables."""
    return _document(table(_stored(store))) | {"title": f"Table 1, {store.path.stem}"}


def _document(text: str) -> dict[str, Any]:
    """Its title, then headings, paragraphs and tables in their order."""
    title, blocks = "", list[dict[str, Any]]()
    for kind, group in groupby(text.splitlines(), _kind):
        lines = list(group)
        if kind == "title":
            title = lines[0].removeprefix("# ")
        elif kind == "heading":
            blocks += [{"heading": line.lstrip("# ")} for line in lines]
        elif kind == "table":
            fields = [_fields(line) for line in lines]
            blocks.append(with_verdicts(fields[0], fields[2:]))
        elif kind == "text":
            blocks.append({"text": "\n".join(lines)})
    return {"title": title, "blocks": blocks}


def _kind(line: str) -> str:
    for start, kind in {"# ": "title", "#": "heading", "|": "table"}.items():
        if line.startswith(start):
            return kind
    return "text" if line.strip() else ""


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.strip().strip("|").split("|")]


def _stored(store: Store) -> list[dict[str, Any]]:
    stored = list(cells(store))
    if not any(cell["kind"] == "cell" for cell in stored):
        raise ValueError(f"{store.path} has no cells yet: run  python -m experiments table1")
    return stored


def _summary(stored: Stored) -> dict[str, Any]:
    trained, phases = (_entries(stored, kind) for kind in ("cell", "phase"))
    starts = _in_order((entry["start"] for entry in trained), _ORDER)
    plain = [*COLUMNS, *(name for name in starts if name not in COLUMNS and not name.endswith(_READINGS))]
    return {
        "architectures": nets(stored),
        "rates": [_rate_text(rate) for rate in rates(stored)],
        "starts": [_drawn(name) for name in starts],
        "phases": PHASES,
        "columns": plain,
        "early": [name for name in plain if name != MORE],
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
    return [_entry(*key, own) | {"paper": _paper(stored, *key)} for key, own in groups.items()]


def _entry(net: str, start: str, rate: float | None, own: Stored) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "net": net,
        "start": start,
        "rate": None if rate is None else _rate_text(rate),
        "n": len(own),
    }
    facts |= _moments([cell["accuracy"] for cell in own]) | {"start_seconds": _median(own, "start_seconds")}
    if rate is None:
        return facts
    curves = over_seeds([cell["curve"] for cell in own])
    facts |= {name: [round(value, _DIGITS) for value in each] for name, each in zip(_BAND, curves, strict=True)}
    first = _moments([cell["curve"][1] for cell in own]) if len(curves[0]) > 1 else None
    return facts | {"first": first, "epoch_seconds": _median(own, "epoch_seconds_alone")}


def _paper(stored: Stored, net: str, start: str, rate: float | None) -> str | None:
    found = printed(stored, net, start, rate)
    return str(found) if found else None


def _moments(values: Sequence[float]) -> dict[str, float | None]:
    """For the tables: mean and standard deviation; one seed has no deviation."""
    deviation = round(statistics.stdev(values), _DIGITS) if len(values) > 1 else None
    return {"mean": round(statistics.mean(values), _DIGITS), "sd": deviation}


def _median(own: Stored, key: str) -> float:
    # Four digits of a time are more than a clock repeats.
    return float(f"{statistics.median(cell[key] for cell in own):.4g}")


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
            facts = {name: trial[name] for name in ("number", "lam", "passes", "rows")}
            scores = {score: round(trial[score], _DIGITS) for score in SCORES}
            best = [score for score in SCORES if trial is top[score]]
            rows.append({"architecture": net} | facts | scores | {"best": best})
    return rows


def _versions(stored: Stored) -> list[dict[str, Any]]:
    """With which versions and on which devices the records were made, how many and of which seeds."""
    groups: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
    for cell in stored:
        groups.setdefault(tuple(cell["versions"].items()), []).append(cell)
    seeds = [sorted({cell["seed"] for cell in own if "seed" in cell}) for own in groups.values()]
    texts = [", ".join(map(str, each)) for each in seeds]
    return [dict(key) | {"records": len(groups[key]), "seeds": each} for key, each in zip(groups, texts, strict=True)]


def _drawn(name: str) -> dict[str, Any]:
    """How a start is drawn. What is lifted is heavier; what is trained as printed is there to be switched on."""
    reading = next((suffix for suffix in READINGS if name.endswith(suffix)), "")
    look = style(name.removesuffix(reading))
    # A reading has the colour of its column, and the dashes of both.
    dashes = (*look.dashes, *_DASHES[reading]) if reading else look.dashes
    # Black is the page's own colour, which turns white on a dark one.
    colour = "currentColor" if look.colour == "#000000" else look.colour
    dash = " ".join(map(str, dashes))
    return {"name": name, "colour": colour, "dash": dash, "heavy": look.heavy, "off": bool(reading)}


def _in_order(found: Iterable[str], known: Iterable[str]) -> list[str]:
    names = set(found)
    first = [name for name in known if name in names]
    return first + sorted(names.difference(first))


def _rate_text(rate: float) -> str:
    """Short where that is the rate itself, in full elsewhere: two rates must not become one."""
    return short(rate) if float(short(rate)) == rate else repr(rate)
