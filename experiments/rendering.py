"""Table 1 as text, made from the cells of the store alone: accuracies, what one epoch gives, times, and what the search chose."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from experiments.cells import ARCHITECTURES, machine_text, named, short
from experiments.paper import ALONE, CELLS, EPOCHS, EUCLIDEAN, PAPER, RANDOM, ROWS, Printed
from experiments.starts import STARTS

__all__ = [
    "ALONE",
    "CLOSE",
    "COLUMNS",
    "DOUBLED",
    "EUCLIDEAN",
    "FENCHEL",
    "LITERAL",
    "MORE",
    "PAPER",
    "PHASES",
    "READINGS",
    "SCALE",
    "SCALED",
    "SCORES",
    "Printed",
    "best_trials",
    "markdown",
    "nets",
    "printed",
    "rates",
    "spread",
    "table",
    "trials",
]

FENCHEL, MORE = "Lifted (Fenchel)", "He, more epochs"
LITERAL, SCALED = ", literal", ", scaled"
READINGS = {
    LITERAL: "As printed: stochastic gradients, sigma^2 = 0.1, rate {rate}",
    SCALED: "Stochastic gradients at {scale:g} times the rate {rate}, sigma = 0.1",
}
SCALE, DOUBLED = 250.0, "sigma^2-scale, doubled"
CLOSE = 0.015
COLUMNS = (*STARTS, EUCLIDEAN, FENCHEL, MORE)
PHASES = {ALONE: ALONE, FENCHEL: "Fenchel alone"}

SCORES = {"accuracy_after_epoch": "after 1 epoch", "accuracy_alone": "alone"}

Stored = Sequence[dict[str, Any]]
Row = tuple[str, dict[str, tuple[list[float], Printed | None]]]


def table(stored: Stored) -> str:
    """The whole report, in Markdown."""
    trained = [cell for cell in stored if cell["kind"] == "cell"]
    found = rates(trained)
    sections = ["# Table 1", _preface(trained)]
    sections += [_accuracies(stored, rate) for rate in found]
    sections += [_first_epoch(trained, rate) for rate in found]
    sections += [_seconds(trained), _work(stored), _search(stored), *(_reading(stored, name) for name in READINGS)]
    sections.append(_agreement(trained))
    return "\n\n".join(section for section in sections if section) + "\n"


def rates(stored: Stored) -> list[float]:
    """Of the cells: the paper's first, as in its table, then others from small to large."""
    found = {cell["parameters"]["rate"] for cell in stored if cell["kind"] == "cell"}
    return [rate for rate in CELLS if rate in found] + sorted(found.difference(CELLS))


def trials(stored: Stored, net: str) -> list[dict[str, Any]]:
    """Of the search for one architecture, in its order."""
    own = [cell for cell in stored if cell["kind"] == "trial" and cell["parameters"]["architecture"] == net]
    return sorted(own, key=lambda trial: int(trial["number"]))


def best_trials(own: Stored) -> dict[str, dict[str, Any]]:
    """By score: the earliest of equal ones, as the search chooses."""
    return {score: max(own, key=lambda trial: float(trial[score])) for score in SCORES}


def _preface(trained: Stored) -> str:
    if not trained:
        return "No cell is stored yet."
    count = len({cell["seed"] for cell in trained})
    seeds = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"
    paper = ", the paper's figure in brackets" if _alike(trained) else ""
    epochs = min(cell["parameters"]["epochs"] for cell in trained)
    return (
        f"Test accuracy after {epochs} epochs of Adam on the mean cross-entropy, batch {trained[0]['parameters']['batch']}; "
        f"{seeds}; the best of a row in bold{paper}. {ALONE} and {PHASES[FENCHEL]}: "
        f"the lifted phase with no epoch after it. {MORE}: as many more as fit into the time of the Fenchel phase.\n"
        f"{machine_text(trained[0]['versions'])}."
    )


def _accuracies(stored: Stored, rate: float) -> str:
    rows = []
    for net in nets(stored):
        phases = {
            title: (_phase(stored, net, name), printed(stored, net, name, None)) for name, title in PHASES.items()
        }
        starts = {name: (_values(stored, net, name, rate), printed(stored, net, name, rate)) for name in COLUMNS}
        rows.append((net, phases | starts))
    return f"## Accuracy, rate {short(rate)}\n\n" + _grid(rows)


def _first_epoch(trained: Stored, rate: float) -> str:
    rows: list[Row] = [
        (net, {name: (_values(trained, net, name, rate, epoch=1), None) for name in COLUMNS if name != MORE})
        for net in nets(trained)
    ]
    return f"## Accuracy after 1 epoch, rate {short(rate)}\n\n" + _grid(rows)


def _seconds(trained: Stored) -> str:
    if not trained:
        return ""
    rows = []
    for net in nets(trained):
        found = [[c["seconds_alone"] for c in _of(trained, net, name)] for name in COLUMNS]
        rows.append([net, *(f"{statistics.median(each):.2f}" if each else "" for each in found)])
    head = (
        "## Seconds, the phase included\n\nOf one network trained alone: its epochs and its initialisation, median.\n\n"
    )
    return head + markdown(["Architecture", *COLUMNS], rows)


def _work(stored: Stored) -> str:
    """The seconds of all that is stored. The cells of a group share its training and, by seed, its initial weights: each counts once."""
    if not stored:
        return ""
    starts, training = _spent(stored)
    own = [c for c in stored if c["kind"] in ("cell", "phase") and _group(c)[1] in (ALONE, *RANDOM, EUCLIDEAN)]
    times = [cell.get("seconds") for cell in stored if cell["kind"] == "trial"]
    search, unknown = sum(filter(None, times)), times.count(None)
    without = f", without {unknown} of {len(times)} trials whose time is not stored" if unknown else ""
    return (
        f"All that is stored took {search + starts + training:.0f} s: search {search:.0f} s{without}, "
        f"initial weights {starts:.0f} s, training of whole groups {training:.0f} s; the paper's columns {sum(_spent(own)):.0f} s of it."
    )


def _spent(stored: Stored) -> tuple[float, float]:
    made = {(*_group(c), c["seed"], c["start_seconds"]) for c in stored if c["kind"] in ("cell", "phase")}
    groups = {(*_group(c), c["group_training_seconds"]) for c in stored if c["kind"] == "cell"}
    return sum(each[-1] for each in made), sum(each[-1] for each in groups)


def _group(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["parameters"]["architecture"], cell["parameters"]["start"]


def _search(stored: Stored) -> str:
    """What was chosen for each architecture, then every trial."""
    searched = [cell for cell in stored if cell["kind"] == "trial"]
    if not searched:
        return ""
    chosen, tried = [], []
    for net in nets(searched):
        own = trials(searched, net)
        best = best_trials(own)
        chosen.append([net, *(f"lam {t['lam']:.3g}, passes {t['passes']}, {t[key]:.4f}" for key, t in best.items())])
        for t in own:
            scores = [f"**{t[key]:.4f}**" if t is best[key] else f"{t[key]:.4f}" for key in SCORES]
            tried.append([net, str(t["number"] + 1), f"{t['lam']:.3g}", str(t["passes"]), *scores])
    heads = [
        "Architecture",
        *(f"{name}: {score}" for score, name in zip(SCORES.values(), (EUCLIDEAN, ALONE), strict=True)),
    ]
    return "\n\n".join(
        [
            "## Search\n\nChosen by the accuracy on training rows that were held back.",
            markdown(heads, chosen),
            markdown(["Architecture", "trial", "lam", "passes", *SCORES.values()], tried),
        ]
    )


def _reading(stored: Stored, suffix: str) -> str:
    """The paper's columns in another reading of its protocol."""
    own = [c for c in stored if c["kind"] == "cell" and c["parameters"]["start"].endswith(suffix)]
    found = {c["parameters"]["start"].removesuffix(suffix) for c in own}
    columns, sections = [name for name in (*RANDOM, DOUBLED, EUCLIDEAN) if name in found], []
    for rate in rates(own):
        rows = [
            (net, {n: (_values(own, net, n + suffix, rate), printed(own, net, n, rate)) for n in columns})
            for net in nets(own)
        ]
        sections.append(f"## {READINGS[suffix].format(rate=short(rate), scale=SCALE)}\n\n" + _grid(rows))
    return "\n\n".join(sections)


def _agreement(trained: Stored) -> str:
    """How close the random columns come to the paper's."""
    doubled = [DOUBLED if name == "sigma^2-scale" else name for name in RANDOM]
    readings = {"Adam, sigma = 0.1": RANDOM} | {
        title: [name + suffix for name in columns]
        for title, columns, suffix in (
            ("as printed", RANDOM, LITERAL),
            ("scaled gradients", RANDOM, SCALED),
            ("scaled gradients, doubled", doubled, SCALED),
        )
    }
    rows = [[title, *(_distance(trained, names, rate) for rate in CELLS)] for title, names in readings.items()]
    measured = f"mean distance, and how many are within {CLOSE:g}"
    head = ["", *(f"rate {short(rate)}: {measured}" for rate in CELLS)]
    kept = [row for row in rows if all(row)]
    return f"## The random columns and the paper's\n\n{markdown(head, kept)}" if kept else ""


def _distance(trained: Stored, names: Sequence[str], rate: float) -> str:
    pairs = [
        (_values(trained, n, name, rate), printed(trained, n, name, rate)) for n in nets(trained) for name in names
    ]
    gaps = [abs(statistics.mean(values) - paper.mean) for values, paper in pairs if values and paper]
    return f"{statistics.mean(gaps):.4f}, {sum(gap <= CLOSE for gap in gaps)} of {len(gaps)}" if gaps else ""


def printed(stored: Stored, net: str, name: str, rate: float | None) -> Printed | None:
    """The paper's figure for a start in any reading, where what is stored was made from as many rows and epochs as the paper says."""
    plain = name.removesuffix(LITERAL).removesuffix(SCALED)
    found = PAPER.get((net, "sigma^2-scale" if plain == DOUBLED else plain, rate))
    return found if found and _alike(stored) else None


def _alike(stored: Stored) -> bool:
    trained = [cell for cell in stored if cell["kind"] == "cell"]
    return all(c["rows"] == ROWS and c["parameters"]["epochs"] >= EPOCHS for c in trained)


def nets(stored: Stored) -> list[str]:
    """The paper's architectures in its order, then others."""
    found = {cell["parameters"]["architecture"] for cell in stored}
    known = [named(net) for net in ARCHITECTURES]
    return [net for net in known if net in found] + sorted(found - set(known))


def _of(trained: Stored, net: str, name: str) -> list[dict[str, Any]]:
    """Cells of a column; a literal one has a name of its own."""
    given = (cell for cell in trained if cell["kind"] == "cell")
    return [c for c in given if (c["parameters"]["architecture"], c["parameters"]["start"]) == (net, name)]


def _values(stored: Stored, net: str, name: str, rate: float, epoch: int = -1) -> list[float]:
    return [cell["curve"][epoch] for cell in _of(stored, net, name) if cell["parameters"]["rate"] == rate]


def _phase(stored: Stored, net: str, name: str) -> list[float]:
    own = (cell for cell in stored if cell["kind"] == "phase")
    return [c["accuracy"] for c in own if (c["parameters"]["architecture"], c["parameters"]["start"]) == (net, name)]


def _grid(rows: Sequence[Row]) -> str:
    """Means and deviations, the best mean of a row in bold, the paper's figure behind it in brackets."""
    lines = []
    for net, entries in rows:
        means = {name: statistics.mean(values) for name, (values, _) in entries.items() if values}
        top = max(means.values(), default=None)
        lines.append([net, *(_entry(*entries[name], means.get(name) == top) for name in entries)])
    return markdown(["Architecture", *(rows[0][1] if rows else ())], lines)


def _entry(values: list[float], paper: Printed | None, best: bool) -> str:
    if not values:
        return ""
    text = f"**{spread(values)}**" if best else spread(values)
    return text if paper is None else f"{text} [{paper}]"


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
