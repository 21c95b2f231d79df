"""The pictures of README and docs whose figures are stored: `python -m experiments figures` draws them, beside the store."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from experiments import drawing
from experiments.figure1 import figure1
from experiments.store import Store, existing
from experiments.training import METHODS, seeds_of

__all__ = ["draw", "training"]


def draw(results: Path) -> list[Path]:
    """All of them."""
    files = [file for store in existing(results, "table1")[:1] for file in figure1(store, results / "figure1.png")]
    for store in existing(results, "training"):
        files.append(results / f"{store.path.stem}.png")
        drawing.save(training(store, "mnist 300"), files[-1:], 130)
    return files


def training(store: Store, task: str) -> Any:
    """Test accuracy against wall time: medians over seeds of both, and the band of the accuracies."""
    figure, ((panel,),) = drawing.new_figure(8, 4.4)
    for place, name in enumerate(METHODS):
        runs = seeds_of(store, task, name)
        if runs:
            seconds = [statistics.median(moment) for moment in zip(*(run["seconds"] for run in runs), strict=True)]
            drawing.line(panel, name, seconds, [run["accuracy"] for run in runs], 4, place)
    panel.set(xscale="log", xlabel="seconds", ylabel="test accuracy", ylim=(0.88, 0.99))
    panel.set_title(f"{task}: medians over seeds, bands from the least to the largest")
    figure.legend(loc="outside right center", frameon=False, fontsize=8, handlelength=4)
    return figure
