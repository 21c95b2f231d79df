"""The evidence tables of what standard networks find hard, from results/beyond-*.json: `make bench-beyond` measures them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from experiments.refit import verdict
from experiments.screen import RESULTS
from experiments.stored import grid, rows

Row = dict[str, Any]


def parts(name: str) -> dict[str, Any]:
    """Results of several tables."""
    loaded: dict[str, Any] = json.loads((RESULTS / f"beyond-{name}.json").read_text())["rows"]
    return loaded


def columns(title: str, found: Sequence[Row], names: Sequence[str], form: str = ".4g") -> list[str]:
    """A table of some columns, the first under another name."""
    body = [[_shown(row.get(name, ""), form) for name in names] for row in found]
    return [*grid([title, *names[1:]], body), ""]


def _shown(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


def robust() -> list[str]:
    """The cost of a block, then for each set the accuracy at every level of noise, and where the robust networks win and lose."""
    found = parts("robust")
    lines = columns("a W-step of 784-300 on MNIST", found["costs"], ("block", "rows", "seconds", "times ridge"))
    for name in dict.fromkeys(row["set"] for row in found["accuracy"]):
        own = [row | {"at": f"{row['noise']} {row['level']:g}"} for row in found["accuracy"] if row["set"] == name]
        methods = [key for key in own[0] if key not in ("set", "noise", "level", "spreads", "at")]
        lines += columns(f"{name}, test accuracy, mean of 5 seeds", own, ("at", *methods), ".4f")
    judged = [row | {"clean": f"{row['clean']:+.4f}"} for row in found["verdicts"] if row["against"] != row["ours"]]
    return (
        lines
        + columns("by more than two deviations", judged, ("set", "ours", "against", "clean", "wins", "loses"))[:-1]
    )


def refit() -> list[str]:
    """Errors of the fixed slopes, and by how much per cent learned ones change that of slope 0.01."""
    found, learned = rows("beyond-refit"), ("learned, layer", "learned, unit")
    body = [
        [
            row["set"],
            *(f"{row[kind]:.4g}" for kind in ("ReLU", "slope 0.01", *learned)),
            *(f"{row[f'{kind}: change %']:+.1f} ± {row[f'{kind}: sd %']:.1f}" for kind in learned),
            *(f"{row[f'{kind}: median slope']:.3f}" for kind in learned),
            *(f"{row[f'{kind} s']:.1f}" for kind in ("slope 0.01", *learned)),
        ]
        for row in found
    ]
    head = ["RMSE on test rows, mean of 5 splits", "ReLU", "slope 0.01", "learned, layer", "learned, unit"]
    head += ["layer, %", "unit, %", "median slope, layer", "unit", "s, slope 0.01", "layer, s", "unit, s"]
    return [*grid(head, body), "", *(f"{verdict(found, kind)}  " for kind in learned)]


def constraints() -> list[str]:
    """What a block costs, and what trainings reach."""
    found = parts("constraints")
    cost = (
        "shape",
        "penalty",
        "method",
        "iterations",
        "kkt",
        "violation",
        "times ridge, given",
        "times ridge, forming",
    )
    steps = columns("a W-step on MNIST, 60,000 rows", found["steps"], cost, ".2g")
    reached = ("penalty", "accuracy", "sd", "violation", "units", "seconds")
    return steps + columns("784-300-10, 5 seeds", found["trainings"], reached)[:-1]


def regression() -> list[str]:
    """Clean sets, outliers, quantiles."""
    found = parts("regression")
    methods = [key for key in found["mean rank"] if key in found["clean"][0]]
    body = [[row["set"], *(f"{row[who]:.4g} ± {row[f'{who} sd']:.2g}" for who in methods)] for row in found["clean"]]
    body.append(["mean rank", *(f"{found['mean rank'][who]:.2f}" for who in methods)])
    timed = [key.removesuffix(" s") for key in found["clean"][0] if key.endswith(" s")]
    means = {who: sum(row[f"{who} s"] for row in found["clean"]) / len(found["clean"]) for who in timed}
    body.append(["mean seconds", *(f"{means[who.split(',')[0]]:.2f}" for who in methods)])
    lines = [*grid(["RMSE on test rows, mean of 5 splits", *methods], body), ""]
    errors = ("set", "method", "rmse", "rmse sd", "mae", "mae sd")
    lines += columns("a tenth of the training responses moved", found["outliers"], errors)
    names = [key for key in found["quantiles"][0] if key.split()[0] in ("cover", "pinball")]
    return lines + columns("quantiles on the test rows", found["quantiles"], ("set", "method", *names))[:-1]
