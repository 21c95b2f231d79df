"""How all pictures look: one palette, medians over seeds, and a band from the least to the largest.

A method has the same colour in every picture. Methods of one family share it and differ by their dashes: what is lifted by mini-batches is
vermilion, by full batches orange; Adam is blue, He's weights are black.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from liftednn.runtime.files import beside

__all__ = ["STYLES", "Style", "check_installed", "line", "new_figure", "over_seeds", "save", "style"]


class Style(NamedTuple):
    """A colour, and dashes and gaps in points, none for a solid line."""

    colour: str
    dashes: tuple[int, ...] = ()
    mark: str = "o"

    @property
    def heavy(self) -> bool:
        """What is lifted is drawn heavier."""
        return self.colour in (_MINIBATCH, _FULL)


# Okabe and Ito's colours, which the colour-blind can distinguish. In one picture no two methods have the same dashes, nor the same mark:
# they differ in grey print too.
_MINIBATCH, _FULL, _ADAM, _SKY, _GREEN, _PINK = "#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7"
_BLACK, _GREY = "#000000", "#999999"
STYLES: dict[str, Style] = {
    # Initial weights.
    "Normal": Style(_GREY, (1, 2), "o"),
    "Xavier": Style(_SKY, (10, 2), "s"),
    "sigma^2-scale": Style(_SKY, (4, 2), "v"),
    "sigma^2-scale, doubled": Style(_SKY, (2, 2), "v"),
    "He": Style(_BLACK, (14, 2, 2, 2), "^"),
    "He + fitted head": Style(_BLACK, (5, 2, 5, 2, 1, 2), "D"),
    "PCA": Style(_PINK, (6, 2, 1, 2), "<"),
    "orthogonal": Style(_GREEN, (8, 2, 1, 2, 1, 2), ">"),
    "LSUV": Style(_GREEN, (3, 3), "X"),
    "Lifted (euclidean)": Style(_FULL, (16, 1), "p"),
    "Lifted (Fenchel)": Style(_MINIBATCH, (), "P"),
    "He, more epochs": Style(_BLACK, (1, 4), "*"),
    # Methods of training.
    "lifted, automatic": Style(_MINIBATCH, (), "P"),
    "lifted, chosen": Style(_MINIBATCH, (8, 2), "X"),
    "lifted, full batch": Style(_FULL, (16, 1), "p"),
    "Adam": Style(_ADAM, (10, 2), "s"),
    "Adam, cosine": Style(_ADAM, (4, 2), "v"),
    "SGD": Style(_GREEN, (6, 2, 1, 2), ">"),
    "SGD, cosine": Style(_GREEN, (3, 3), "<"),
    "L-BFGS": Style(_PINK, (14, 2, 2, 2), "D"),
    "AdamW": Style(_ADAM, (4, 2), "v"),
    "Muon": Style(_PINK, (5, 2, 5, 2, 1, 2), "d"),
    "SOAP": Style(_BLACK, (14, 2, 2, 2), "^"),
    "K-FAC": Style(_SKY, (10, 2), "s"),
    "FOOF": Style(_FULL, (1, 2), "o"),
    "ISAAC": Style(_GREY, (3, 3), "*"),
    "scikit-learn MLP": Style(_BLACK, (5, 2, 5, 2, 1, 2), "^"),
    "LPOM": Style(_GREY, (1, 2), "o"),
    "Zeng's BCD": Style(_GREY, (1, 4), "*"),
    # Estimators at their defaults.
    "lifted": Style(_MINIBATCH, (), "P"),
    "MLP": Style(_BLACK, (5, 2, 5, 2, 1, 2), "^"),
    "boosting": Style(_GREEN, (6, 2, 1, 2), ">"),
    "linear": Style(_SKY, (10, 2), "s"),
    # A range of lam.
    "0% random labels": Style(_MINIBATCH, (), "P"),
    "40% random labels": Style(_SKY, (10, 2), "s"),
    # The demonstration: full batches by the two activations, and mini-batches.
    "relu": Style(_FULL, (), "p"),
    "fenchel_relu": Style(_FULL, (4, 2), "d"),
    "lifted, relu": Style(_FULL, (), "p"),
    "lifted, fenchel_relu": Style(_FULL, (4, 2), "d"),
    "lifted, mini-batch": Style(_MINIBATCH, (), "P"),
    # The examples: group sparsity, losses, noise on the inputs with its controls, and initial slopes, learned and fixed.
    "pruned": Style(_MINIBATCH, (), "P"),
    "squared": Style(_SKY, (10, 2), "s"),
    "absolute": Style(_MINIBATCH, (), "P"),
    "huber": Style(_GREEN, (6, 2, 1, 2), ">"),
    "plain": Style(_MINIBATCH, (), "P"),
    "noise:0.2": Style(_SKY, (10, 2), "s"),
    "ball:0.5": Style(_GREEN, (6, 2, 1, 2), ">"),
    "box:0.01": Style(_PINK, (14, 2, 2, 2), "D"),
    "noise:0.2, scaled only": Style(_SKY, (1, 2), "v"),
    "ball:0.5, scaled only": Style(_GREEN, (3, 3), "<"),
    "box:0.01, scaled only": Style(_PINK, (1, 4), "*"),
    "from 0.01": Style(_MINIBATCH, (), "P"),
    "from 0.1": Style(_SKY, (10, 2), "s"),
    "from 0.6": Style(_GREEN, (6, 2, 1, 2), ">"),
    "from 0.9": Style(_PINK, (14, 2, 2, 2), "D"),
    "fixed at 0.01": Style(_MINIBATCH, (1, 2), "o"),
    "fixed at 0.1": Style(_SKY, (4, 2), "v"),
    "fixed at 0.6": Style(_GREEN, (3, 3), "<"),
    "fixed at 0.9": Style(_PINK, (1, 4), "*"),
}
_OTHERS = (_ADAM, _PINK, _GREEN, _SKY, _GREY)


def style(name: str) -> Style:
    """Of a known method, or one that an unknown name keeps from picture to picture: by the sum of its letters."""
    return STYLES.get(name, Style(_OTHERS[sum(map(ord, name)) % len(_OTHERS)], (8, 3, 2, 3)))


def over_seeds(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Median, least and largest of each moment, up to the last that all seeds have."""
    moments = list(zip(*curves, strict=False))
    return (
        [statistics.median(seen) for seen in moments],
        [min(seen) for seen in moments],
        [max(seen) for seen in moments],
    )


def line(
    panel: Any, name: str, across: Sequence[float], curves: Sequence[Sequence[float]], every: int = 1, first: int = 0
) -> None:
    """A method's curves, one for each seed, as one line and a band; a mark at every so many points."""
    look = style(name)
    middle, low, high = over_seeds(curves)
    marks = {"marker": look.mark, "markevery": (first % every, every), "markersize": 5.5}
    marks |= {"markeredgecolor": "white", "markeredgewidth": 0.6}
    dashes = (0, look.dashes) if look.dashes else "solid"
    panel.plot(
        across, middle, label=name, color=look.colour, linestyle=dashes, linewidth=2.4 if look.heavy else 1.4, **marks
    )
    if len(curves) > 1:
        panel.fill_between(across, low, high, color=look.colour, alpha=0.15, linewidth=0)


def check_installed() -> None:
    if find_spec("matplotlib") is None:
        raise ValueError('pictures are drawn with matplotlib, which is not installed: pip install "liftednn[plot]"')


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, width_ratios: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """A figure and its panels, (rows, columns); without pyplot, which would choose a window system and keep the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, width_ratios=width_ratios)
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    return figure, panels


def save(figure: Any, files: Sequence[Path], dpi: int = 150) -> None:
    """Without a date, so that the same records give the same file."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "liftednn", "svg.fonttype": "none"}):
        for file in files:
            kind = file.suffix[1:]
            with beside(file) as part:
                figure.savefig(part, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
