"""Figure 1 of the paper (sec. 7): test accuracy against epochs, and, which the paper lacks, against wall time with the phase included.

Drawn from the records of table1 alone (`python -m experiments figure1`): mean over seeds, and a band of two standard deviations.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cells import cells, short
from experiments.rendering import COLUMNS, EUCLIDEAN, FENCHEL, MORE, STYLES, over_seeds
from experiments.settings import Settings
from experiments.store import Store, existing
from liftednn.files import beside, check_place

__all__ = ["ARCHITECTURES", "RATE", "Curve", "curves", "figure1", "run"]

TAKES = ("out",)

ARCHITECTURES = ("300", "500-200-100")
RATE = 1e-5
# Where lines lie on each other, and in grey print, a mark at every seventh epoch tells them apart.
_MARKS = dict(zip(STYLES, "osv^D<>XpP*", strict=True))
_EVERY = 7


class Curve(NamedTuple):
    """One column of the table: test accuracy after each epoch over seeds, and the seconds of one network alone at those moments."""

    name: str
    mean: list[float]
    deviation: list[float]
    seconds: list[float]


def run(settings: Settings) -> None:
    """To --out, figure1.png if it is not given."""
    found = existing(settings.results, "table1")
    if not found:
        raise FileNotFoundError(f"{settings.results} holds no table1: make it with  python -m experiments table1")
    for path in figure1(found[0], settings.out or Path("figure1.png")):
        print(path)


def curves(store: Store, architecture: str, rate: float) -> list[Curve]:
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


def _curve(name: str, own: list[dict[str, Any]]) -> Curve | None:
    if not own:
        return None
    means, deviations = over_seeds(own)
    start, epoch = (statistics.median(cell[key] for cell in own) for key in ("start_seconds", "epoch_seconds_alone"))
    return Curve(name, means, deviations, [start + number * epoch for number in range(len(means))])


def figure1(
    store: Store, out: Path = Path("figure1.png"), architectures: Sequence[str] = ARCHITECTURES, rate: float = RATE
) -> list[Path]:
    """Draw it; the files that were written, a PNG and an SVG of the same name."""
    if find_spec("matplotlib") is None:
        raise ValueError('the figure is drawn with matplotlib, which is not installed: pip install "liftednn[plot]"')
    if out.suffix != ".png":
        raise ValueError(f"--out {out} must end in .png; an .svg is written beside it")
    files = [out.with_suffix(ending) for ending in (".png", ".svg")]
    for file in files:
        check_place(file)
    drawn = {architecture: curves(store, architecture, rate) for architecture in architectures}
    import matplotlib

    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "liftednn", "svg.fonttype": "none"}):
        _save(_draw(drawn, rate), files)
    return files


def _draw(drawn: dict[str, list[Curve]], rate: float) -> Any:
    # Without pyplot, which would choose a window system and keep the figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(drawn), 9), layout="constrained")
    panels = figure.subplots(2, len(drawn), squeeze=False)
    for column, (architecture, shown) in enumerate(drawn.items()):
        for row, label in enumerate(("epoch", "seconds, the making of the first weights included")):
            panel = panels[row][column]
            for curve in shown:
                _line(panel, curve, list(range(len(curve.mean))) if row == 0 else curve.seconds)
            panel.set(xlabel=label, ylabel="test accuracy", title=f"{architecture}, rate {short(rate)}")
            panel.set_ylim(_lowest(shown), 1.0)
            panel.grid(alpha=0.3)
        panels[0][column].xaxis.get_major_locator().set_params(integer=True)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, handlelength=4)
    return figure


def _lowest(shown: Sequence[Curve]) -> float:
    """Where the vertical axis begins: every curve's end is seen, not its first guesses, beside which all else would look alike."""
    return min(0.6, max(0.0, min(curve.mean[-1] for curve in shown) - 0.05))


def _line(panel: Any, curve: Curve, across: Sequence[float]) -> None:
    colour, dashes = STYLES[curve.name]
    heavy = 2.4 if curve.name in (EUCLIDEAN, FENCHEL) else 1.4  # what is lifted is drawn heavier
    marks = {
        "marker": _MARKS[curve.name],
        "markevery": (list(STYLES).index(curve.name) % _EVERY, _EVERY),
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }
    line = {"color": colour, "linestyle": (0, dashes) if dashes else "solid", "linewidth": heavy}
    panel.plot(across, curve.mean, label=curve.name, **line, **marks)
    edges = ([m + sign * 2 * d for m, d in zip(curve.mean, curve.deviation, strict=True)] for sign in (-1, 1))
    panel.fill_between(across, *edges, color=colour, alpha=0.15, linewidth=0)


def _save(figure: Any, files: Sequence[Path]) -> None:
    for file in files:
        with beside(file) as part:
            # Without a date, so that the same cells give the same file.
            kind = file.suffix[1:]
            figure.savefig(part, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
