"""The demonstration: lifted training of 784-300-10 on MNIST, then the standard network from lifted and from random weights.

`make demo`, or `python -m experiments demo [--out PICTURE]`; one seed, CPU, a few minutes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

import liftednn as lnn
from experiments import drawing
from experiments.batched import Together, train_together
from experiments.cells import named, sizes
from experiments.datasets import Dataset, mnist, small
from experiments.rendering import ALONE, EUCLIDEAN, PAPER
from experiments.settings import Settings
from experiments.starts import he
from liftednn.runtime.files import check_writable
from liftednn.training.result import Record

__all__ = ["NEXT", "TAKES", "run"]

TAKES = ("out",)

_HIDDEN = (300,)
_FULL_PASSES, _PASSES, _EPOCHS, _BATCH, _RATE = 6, 8, 3, 100, 1e-4
_QUICK_ROWS = 500
_ENDINGS = (".png", ".svg", ".pdf")
# What to run next, and what it gives.
NEXT = {
    "table1 --quick --results quick": "Table 1 of the paper, small: one architecture, one seed",
    "report --results quick --out report.html": "its tables and curves, as one page to open in a browser",
    "table1": "all of Table 1, faster with --device cuda; stop it at any moment, and the same command goes on",
    "figure1 --out figure1.png": "Figure 1, from the records of Table 1",
    "report --out report.html": "all that is stored, as one page",
}


def run(settings: Settings) -> None:
    """To --out, demo.png if it is not given."""
    drawing.check_installed()
    out = settings.out or Path("demo.png")
    if out.suffix not in _ENDINGS:
        raise ValueError(f"the picture {out} must end in one of {', '.join(_ENDINGS)}, the kinds that are drawn")
    check_writable(out)
    console, started = Console(), time.perf_counter()
    data = mnist()
    if settings.quick:
        data = small(data, _QUICK_ROWS)
    runs = {name: _lifted(name, lam, data, console) for name, lam in (("relu", 1.0), ("fenchel_relu", 1.0))}
    fitted = lnn.BCD().init(runs["relu"][0], data.x, data.y).weights
    starts = {"He": he(sizes(_HIDDEN, data), 0, data), "He + fitted head": fitted}
    starts |= {f"lifted, {name}": solution.weights for name, (_, solution) in runs.items()}
    starts["lifted, mini-batch"] = _minibatch(data, console).weights
    curves = _standard(starts, data, console)
    console.print(_summary(runs, curves, data))
    console.print(_paper())
    _draw({name: solution.history for name, (_, solution) in runs.items()}, curves, out)
    console.print(f"picture: {out}; {time.perf_counter() - started:.0f} s in all")
    console.print(_next(), soft_wrap=True, highlight=False)


def _next() -> str:
    """Lines that a shell takes as they are."""
    lines = (f"# {gives}\n{_program()} {command}" for command, gives in NEXT.items())
    return "\n".join(("\nFrom here:", *lines))


def _program() -> str:
    """How the experiments of this very installation are called."""
    return f"{os.path.relpath(sys.executable)} -m experiments"


def _paper() -> str:
    alone, xavier, lifted = (PAPER["300", *key] for key in ((ALONE, None), ("Xavier", 1e-5), (EUCLIDEAN, 1e-5)))
    trained = f"from Xavier {xavier}, from lifted {lifted} (17 epochs at 1e-5)"
    return f"the paper's row (300): {alone} lifted alone; standard network {trained}"


def _accuracy(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(1) == y).double().mean())


def _lifted(name: str, lam: float, data: Dataset, console: Console) -> tuple[lnn.LiftedNetwork, lnn.Fit]:
    network = lnn.LiftedNetwork.mlp(sizes(_HIDDEN, data), activation=name, lam=lam, rho=1e-3)

    def say(record: Record) -> None:
        kkt = max(record.kkt.values(), default=0.0)
        console.print(
            f"{name:>13} full pass {record.number}: objective {record.objective:8.4f}  gap {record.gaps[0]:7.4f}  "
            f"train accuracy {record.score:.4f}  kkt {kkt:.0e}  {record.seconds:5.1f} s"
        )

    return network, lnn.BCD(passes=_FULL_PASSES).run(network, data.x, data.y, callback=say)


def _minibatch(data: Dataset, console: Console) -> lnn.Fit:
    network = lnn.automatic(lnn.LiftedNetwork.mlp(sizes(_HIDDEN, data), activation="fenchel_relu"), data.x, data.y)

    def say(record: Record) -> None:
        console.print(
            f"   mini-batch pass {record.number:2d}: objective {record.objective:8.4f}  gap {record.gaps[0]:7.4f}  "
            f"train accuracy {record.score:.4f}  {record.seconds:5.1f} s"
        )

    return lnn.MiniBatch(passes=_PASSES).run(network, data.x, data.y, callback=say)


def _standard(starts: dict[str, list[lnn.Affine]], data: Dataset, console: Console) -> dict[str, list[float]]:
    """Test accuracy of standard networks, one from each start, before and after each epoch of Adam."""
    curves: dict[str, list[float]] = {name: [] for name in starts}

    def keep(epoch: int, scores: Tensor) -> None:
        console.print(f"standard networks from {len(starts)} starts: epoch {epoch} of {_EPOCHS} of Adam")
        for curve, score in zip(curves.values(), scores[0].tolist(), strict=True):
            curve.append(score)

    networks = Together([list(starts.values())], [_RATE] * len(starts), data)
    train_together(networks, _EPOCHS, _BATCH, [0], keep)
    return curves


def _summary(
    runs: dict[str, tuple[lnn.LiftedNetwork, lnn.Fit]], curves: dict[str, list[float]], data: Dataset
) -> Table:
    table = Table(title=f"{named(sizes(_HIDDEN, data))} on MNIST, test accuracy, one seed")
    for column in (
        "model",
        "pass 0",
        "lifted, feed-forward",
        "lifted rule (1,000 rows)",
        f"then {_EPOCHS} epochs of Adam at {_RATE:g}",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, (network, solution) in runs.items():
        start = lnn.BCD().init(network, data.x, data.y).weights
        first, last = (
            _accuracy(lnn.predict.feedforward(network, w, data.x_test), data.y_test) for w in (start, solution.weights)
        )
        rule = _accuracy(
            lnn.predict.lifted(network, solution.weights, data.x_test[:1000], tol=1e-4), data.y_test[:1000]
        )
        table.add_row(name, f"{first:.4f}", f"{last:.4f}", f"{rule:.4f}", f"{curves[f'lifted, {name}'][-1]:.4f}")
    mini = curves["lifted, mini-batch"]
    table.add_row(f"mini-batch, {_PASSES} passes", "", f"{mini[0]:.4f}", "", f"{mini[-1]:.4f}")
    for name in ("He", "He + fitted head"):
        table.add_row(name, f"{curves[name][0]:.4f}", "", "", f"{curves[name][-1]:.4f}")
    return table


def _draw(histories: dict[str, list[Record]], curves: dict[str, list[float]], out: Path) -> None:
    figure, ((objective, score, test),) = drawing.new_figure(12, 3.6, 1, 3)
    for name, history in histories.items():
        passes = [record.number for record in history]
        drawing.line(objective, name, passes, [[record.objective for record in history]])
        drawing.line(score, name, passes, [[record.score for record in history]])
    for name, curve in curves.items():
        drawing.line(test, name, range(len(curve)), [curve])
    objective.set(xlabel="full pass", ylabel="objective", yscale="log")
    score.set(xlabel="full pass", ylabel="train accuracy, feed-forward")
    test.set(xlabel=f"epoch of Adam at {_RATE:g}", ylabel="test accuracy", title="from which weights")
    test.set_ylim(min(0.85, *(curve[-1] - 0.02 for curve in curves.values())), 1.0)
    for panel in (objective, score, test):
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(frameon=False, handlelength=4)
    drawing.save(figure, [out], 130)
