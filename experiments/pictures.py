"""The pictures of README and docs: `python -m experiments figures` draws them from the store, and puts them beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from examples import constraints, learned_activations, regression, robust
from experiments import convolution as convolutional
from experiments import curves as difficulties
from experiments import drawing, image_lam
from experiments.examples import best_slopes, noise_curves, pruned_runs
from experiments.figure1 import figure1
from experiments.image_bench import SETTINGS
from experiments.optimiser_tasks import METHODS as OPTIMISERS
from experiments.optimiser_tasks import PICTURED, TASKS
from experiments.store import Store, existing
from experiments.training import METHODS, seeds_of

__all__ = [
    "EXAMPLES",
    "convolution",
    "convolution_lam",
    "curves",
    "draw",
    "filters_and_pruning",
    "losses",
    "noise",
    "optimisers",
    "slopes",
    "training",
]


def draw(results: Path) -> list[Path]:
    """All whose records are there; the files that were written."""
    files = [file for store in existing(results, "table1")[:1] for file in figure1(store, results / "figure1.png")]
    made: dict[str, Callable[[], Any]] = {}
    for store in existing(results, "training"):
        made[store.path.stem] = partial(training, store, "mnist 300")
    for store in existing(results, "curves"):
        made["curves"] = partial(curves, store)
    for store in existing(results, "convolution"):
        if store.values(part=convolutional.COMPARED[0], stage="test"):
            made.setdefault("convolution", partial(convolution, store))
        if any(image_lam.curves(store, part, noise) for part in convolutional.LAM_PARTS for noise in image_lam.NOISES):
            made.setdefault("convolution-lam", partial(convolution_lam, store))
    for store in existing(results, "optimisers"):
        if all(store.values(part=part, stage="test") for part in PICTURED):
            made.setdefault("optimisers", partial(optimisers, store))
    for store in existing(results, "examples"):
        made |= {name: partial(picture, store) for name, picture in EXAMPLES.items()}
    for name, figure in made.items():
        files.append(results / f"{name}.png")
        drawing.save(figure(), files[-1:], 130)
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


def curves(store: Store) -> Any:
    """Scores of estimators at their defaults against one difficulty in each panel: medians over seeds, and ranges."""
    figure, panels = drawing.new_figure(28, 7, 2, 7)
    for panel, (name, kind) in zip(panels.flat, difficulties.PANELS.items(), strict=True):
        for who in difficulties.METHODS:
            if found := difficulties.scores(store, name, who):
                _over_levels(panel, who, kind.levels, found)
        labels = [level.replace(" of", "\nof") if isinstance(level, str) else f"{level:,}" for level in kind.levels]
        panel.set_xticks(range(len(labels)), labels)
        low, high = panel.get_ylim()
        # Far below zero it no longer matters by how much.
        panel.set(title=name, xlabel=kind.across, ylabel=kind.measure, ylim=(max(low, -0.3), min(high, 1.05)))
    shown = {
        who: handle for panel in panels.flat for handle, who in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(shown.values(), shown.keys(), loc="outside right center", frameon=False, handlelength=4)
    return figure


def convolution(store: Store) -> Any:
    """Test accuracy of convolutional networks against wall time, each method for as many passes as take the seconds of the lifted one."""
    parts = [part for part in convolutional.COMPARED if store.values(part=part, stage="test")]
    figure, (panels,) = drawing.new_figure(2 + 4 * len(parts), 4.2, 1, len(parts))
    for panel, part in zip(panels, parts, strict=True):
        setting = SETTINGS[part]
        _over_seconds(panel, store, part, convolutional.ORDER, setting.passes, "accuracy")
        panel.set(title=f"{setting.data}, {setting.network}", xlabel="seconds", ylabel="test accuracy")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=4)
    return figure


def optimisers(store: Store) -> Any:
    """Test accuracy of two networks against wall time, each optimiser for as many passes as take our seconds."""
    figure, (panels,) = drawing.new_figure(11, 4.4, 1, len(PICTURED))
    for panel, part in zip(panels, PICTURED, strict=True):
        kind = TASKS[part]
        _over_seconds(panel, store, part, OPTIMISERS, kind.passes, "score")
        panel.set(title=f"{kind.data}, {kind.network}", xlabel="seconds", ylabel=kind.measure)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, handlelength=4)
    return figure


def _over_seconds(panel: Any, store: Store, part: str, methods: Sequence[str], passes: int, score: str) -> None:
    """The curves of methods that were run for as many passes as take our seconds."""
    for name in methods:
        length = convolutional.lengths(store, part, name, passes)[-1]
        if runs := convolutional.runs(store, part, name, length):
            seconds = [statistics.median(moment) for moment in zip(*(run["seconds"] for run in runs), strict=True)]
            drawing.line(panel, name, seconds, [run[score] for run in runs])


def convolution_lam(store: Store) -> Any:
    """Test accuracy against lam, a panel for each network and a line with and without random labels."""
    figure, (panels,) = drawing.new_figure(11, 4, 1, len(convolutional.LAM_PARTS))
    for panel, part in zip(panels, convolutional.LAM_PARTS, strict=True):
        for noise in image_lam.NOISES:
            if curves := image_lam.curves(store, part, noise):
                drawing.line(panel, f"{noise:.0%} random labels", range(len(image_lam.LAMS)), curves)
        setting = SETTINGS[part]
        panel.set_xticks(range(len(image_lam.LAMS)), image_lam.LAMS)
        panel.set(title=f"{setting.data}, {setting.network}, {setting.passes} passes", ylabel="test accuracy")
        panel.set_xlabel(f"lam, {image_lam.UNIT}")
    shown = {who: handle for panel in panels for handle, who in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside right center", frameon=False, handlelength=4)
    return figure


def _over_levels(panel: Any, who: str, levels: Sequence[float | str], found: Sequence[Sequence[float]]) -> None:
    """A line over the numbers; a level in words, which stand behind them, is a point with its range."""
    numbers = sum(not isinstance(level, str) for level in levels)
    drawing.line(panel, who, range(numbers), [curve[:numbers] for curve in found])
    middle, low, high = drawing.over_seeds([curve[numbers:] for curve in found])
    look, places = drawing.style(who), range(numbers, len(levels))
    panel.plot(places, middle, look.mark, color=look.colour)
    panel.vlines(places, low, high, color=look.colour)


def filters_and_pruning(store: Store) -> Any:
    """Filters of the constrained first layers, and test accuracy against the units that group sparsity leaves."""
    figure, (panels,) = drawing.new_figure(14, 3.6, 1, 4, (1, 1, 1, 1.5))
    for panel, kind in zip(panels, constraints.KINDS, strict=False):
        for value in store.values(example="constraints", kind=kind):
            _show_filters(panel, np.array(value["filters"]))
            panel.set_title(f"{kind}: {value['accuracy']:.3f}")
    strengths = [runs for strength in constraints.STRENGTHS if (runs := pruned_runs(store, strength))]
    # Of several weights that leave as many units, the largest.
    by_units = {
        statistics.median(run["units"] for run in runs): [run["accuracy"] for run in runs] for runs in strengths
    }
    drawing.line(panels[3], "pruned", list(by_units), list(zip(*by_units.values(), strict=False)))
    panels[3].set(xlabel="hidden units left of 100, median", ylabel="test accuracy", title="group sparsity, pruned")
    return figure


def _show_filters(panel: Any, filters: Any) -> None:
    """Sixteen filters of 8 x 8 pixels in a square, with lines between them."""
    parts = np.pad(filters.reshape(4, 4, 8, 8), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    size = np.abs(filters).max()
    panel.imshow(parts.transpose(0, 2, 1, 3).reshape(36, 36), cmap="RdBu_r", vmin=-size, vmax=size)
    panel.axis("off")


def slopes(store: Store) -> Any:
    """The slope after each pass and the training loss, of the seed with the smallest loss at the end."""
    figure, ((left, right),) = drawing.new_figure(10, 3.8, 1, 2)
    left.axhline(learned_activations.PLANTED, color="0.6", linestyle="--")
    for place, start in enumerate(learned_activations.STARTS):
        names = (f"from {start:g}", f"fixed at {start:g}")
        for name, curve in zip(names, best_slopes(store, start), strict=False):
            drawing.line(right, name, range(1, len(curve.losses) + 1), [curve.losses], 12, 3 * place)
            if name == names[0]:
                drawing.line(left, name, range(len(curve.slopes)), [curve.slopes], 12, 3 * place)
    left.set(xlabel="passes over the rows", ylabel="slope", yscale="log")
    left.set_title(f"the slope; dashed: that of the data, {learned_activations.PLANTED:g}")
    right.set(xlabel="passes over the rows", ylabel="loss of the batches", title="the training loss", yscale="log")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8, handlelength=4)
    return figure


def losses(store: Store) -> Any:
    """A prediction band less its median, and predictions of networks that were trained with outliers."""
    figure, ((left, right),) = drawing.new_figure(10, 4, 1, 2)
    for value in store.values(example="quantiles"):
        first, (low, middle, high) = np.array(value["first"]), np.array(value["quantiles"]).T
        colour = drawing.style("absolute").colour
        left.vlines(first, low - middle, high - middle, color=colour, alpha=0.4, label="5% to 95%")
        left.plot(first, np.array(value["response"]) - middle, ".", color="0.2", markersize=3, label="responses")
    left.set(title="three quantiles from one network", xlabel="first input", ylabel="less the predicted median")
    for loss in regression.LOSSES:
        for value in store.values(example="outliers", loss=loss):
            look = drawing.style(loss)
            marks = {"marker": look.mark, "linestyle": "", "markersize": 3, "markeredgewidth": 0}
            right.plot(value["truth"], value["predicted"], color=look.colour, label=loss, **marks)
    right.axline((10, 10), slope=1, color="0.2", linewidth=1)
    right.set(title="a tenth of the training responses are outliers", xlabel="truth", ylabel="prediction")
    for panel in (left, right):
        panel.legend(loc="upper left", fontsize="small")
    return figure


def noise(store: Store) -> Any:
    """Test accuracy of plain and robust networks against the noise on the test pixels."""
    figure, ((panel,),) = drawing.new_figure(8, 4)
    for method in robust.METHODS:
        if curves := noise_curves(store, method):
            drawing.line(panel, method, robust.LEVELS, curves)
    panel.set(xlabel="standard deviation of the noise on the test pixels (0 .. 1)", ylabel="test accuracy")
    panel.set(ylim=(0, 1.02), title="digits, one hidden layer of 50: medians over seeds, and ranges")
    figure.legend(loc="outside right center", frameon=False, fontsize=8, handlelength=4)
    return figure


# By the name of the file.
EXAMPLES: dict[str, Callable[[Store], Any]] = {
    "constraints": filters_and_pruning,
    "learned-activations": slopes,
    "regression": losses,
    "robust": noise,
}
