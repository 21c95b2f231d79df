"""Figure 1 of the paper (sec. 7): test accuracy against epochs, and, which the paper does not show, against wall time with initialisation.

Drawn from the records of table1 alone (`python -m experiments figure1`): medians over seeds, with a band from the least to the largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import drawing
from experiments.cells import cells, short
from experiments.rendering import COLUMNS, MORE
from experiments.settings import Settings
from experiments.store import Store, existing
from liftednn.runtime.files import check_writable

__all__ = ["ARCHITECTURES", "RATE", "Curves", "curves", "figure1", "run"]

TAKES = ("out",)

ARCHITECTURES = ("300", "500-200-100")
RATE = 1e-5
# Where lines lie on each other, and in grey print, a mark at every seventh epoch tells them apart.
_EVERY = 7


class Curves(NamedTuple):
    """One column of the table: test accuracy after each epoch, by seed, and the seconds of one network alone at those moments."""

    name: str
    accuracy: list[list[float]]
    seconds: list[float]


def run(settings: Settings) -> None:
    """To --out, figure1.png if it is not given."""
    found = existing(settings.results, "table1")
    if not found:
        raise FileNotFoundError(f"{settings.results} holds no table1: make it with  python -m experiments table1")
    for path in figure1(found[0], settings.out or Path("figure1.png")):
        print(path)


def curves(store: Store, architecture: str, rate: float) -> list[Curves]:
    """In the order of the table; an error that says how to make what is missing."""
    wanted = {"architecture": architecture, "rate": rate}
    stored = [c for c in cells(store) if c["kind"] == "cell" and wanted.items() <= c["parameters"].items()]
    found = [_curve(name, [c for c in stored if c["parameters"]["start"] == name]) for name in COLUMNS if name != MORE]
    whole = [curve for curve in found if curve is not None]
    if not whole:
        raise ValueError(
            f"{store.path} has no cells of {architecture} at rate {short(rate)}: make them with  "
            f"python -m experiments table1 --only {architecture}"
        )
    return whole


def _curve(name: str, own: list[dict[str, Any]]) -> Curves | None:
    if not own:
        return None
    start, epoch = (statistics.median(cell[key] for cell in own) for key in ("start_seconds", "epoch_seconds_alone"))
    length = min(len(cell["curve"]) for cell in own)  # a run with more time for some may have left longer ones
    accuracy = [cell["curve"][:length] for cell in own]
    return Curves(name, accuracy, [start + number * epoch for number in range(length)])


def figure1(
    store: Store, out: Path = Path("figure1.png"), architectures: Sequence[str] = ARCHITECTURES, rate: float = RATE
) -> list[Path]:
    """Draw it; the files that were written, a PNG and an SVG of the same name."""
    drawing.check_installed()
    if out.suffix != ".png":
        raise ValueError(f"--out {out} must end in .png; an .svg is written beside it")
    files = [out.with_suffix(ending) for ending in (".png", ".svg")]
    for file in files:
        check_writable(file)
    drawn = {architecture: curves(store, architecture, rate) for architecture in architectures}
    drawing.save(_draw(drawn, rate), files, 200)
    return files


def _draw(drawn: dict[str, list[Curves]], rate: float) -> Any:
    figure, panels = drawing.new_figure(5 * len(drawn), 9, 2, len(drawn))
    for column, (architecture, shown) in enumerate(drawn.items()):
        for row, label in enumerate(("epoch", "seconds, initialisation included")):
            panel = panels[row][column]
            for place, curve in enumerate(shown):
                across = list(range(len(curve.seconds))) if row == 0 else curve.seconds
                drawing.line(panel, curve.name, across, curve.accuracy, _EVERY, place)
            panel.set(xlabel=label, ylabel="test accuracy", title=f"{architecture}, rate {short(rate)}")
            panel.set_ylim(_lowest(shown), 1.0)
        panels[0][column].xaxis.get_major_locator().set_params(integer=True)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, handlelength=4)
    return figure


def _lowest(shown: Sequence[Curves]) -> float:
    """Where the vertical axis begins: every curve's end is seen, not its first guesses, beside which all else would look alike."""
    return min(0.6, max(0.0, min(drawing.over_seeds(each.accuracy)[0][-1] for each in shown) - 0.05))
