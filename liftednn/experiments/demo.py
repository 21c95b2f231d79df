"""The demonstration: lifted training of 784-300-10 on MNIST, then the standard network from lifted and from random weights.

`make demo`, or `python -m liftednn.experiments.demo [OUT]`; one seed, CPU, a few minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

import liftednn as lnn
from liftednn.experiments.batched import Together, train_together
from liftednn.experiments.cells import named
from liftednn.experiments.datasets import Dataset, mnist
from liftednn.experiments.rendering import ALONE, EUCLIDEAN, PAPER
from liftednn.experiments.starts import he
from liftednn.runtime.files import beside, check_place
from liftednn.training.result import Record

__all__ = ["NEXT", "main"]

_SIZES = (784, 300, 10)
_SWEEPS, _PASSES, _EPOCHS, _BATCH, _RATE = 6, 8, 3, 100, 1e-4
_ENDINGS = (".png", ".svg", ".pdf")
# What to run next, and what it gives.
NEXT = {
    "table1 --quick": "Table 1 of the paper, small: one architecture, one seed",
    "report results/table1-quick --out report.html": "its tables and curves, as one page to open in a browser",
    "table1": "all of Table 1, faster with --device cuda; stop it at any moment, and the same command goes on",
    "figure1 results/table1 --out figure1.png": "Figure 1, from the files of Table 1",
    "report results/table1 --out report.html": "all of it, as one page",
}


def main(arguments: Sequence[str] = ()) -> None:
    if find_spec("matplotlib") is None:
        raise ValueError("the demonstration draws with matplotlib, which is not installed: pip install matplotlib")
    out = Path(arguments[0] if arguments else "demo.png")
    if out.suffix not in _ENDINGS:
        raise ValueError(f"the picture {out} must end in one of {', '.join(_ENDINGS)}, the kinds that are drawn")
    check_place(out)
    console, started = Console(), time.perf_counter()
    data = mnist()
    runs = {name: _lifted(name, lam, data, console) for name, lam in (("relu", 1.0), ("fenchel_relu", 1.0))}
    fitted = lnn.BCD().init(runs["relu"][0], data.x, data.y).weights
    starts = {"He": he(_SIZES, 0, data), "He + fitted head": fitted}
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
    told = (f"# {gives}\n{_program()} {command}" for command, gives in NEXT.items())
    return "\n".join(("\nFrom here:", *told))


def _program() -> str:
    """How this very installation is called: by its name where the shell finds it, by its path elsewhere."""
    own = Path(sys.executable).with_name("liftednn")
    return "liftednn" if shutil.which("liftednn") or not own.exists() else os.path.relpath(own)


def _paper() -> str:
    alone, xavier, lifted = (PAPER["300", *key] for key in ((ALONE, None), ("Xavier", 1e-5), (EUCLIDEAN, 1e-5)))
    trained = f"from Xavier {xavier}, from lifted {lifted} (17 epochs at 1e-5)"
    return f"the paper's row (300): {alone} lifted alone; standard network {trained}"


def _accuracy(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(1) == y).double().mean())


def _lifted(name: str, lam: float, data: Dataset, console: Console) -> tuple[lnn.LiftedNetwork, lnn.Fit]:
    network = lnn.LiftedNetwork.mlp(_SIZES, activation=name, lam=lam, rho=1e-3)

    def say(record: Record) -> None:
        kkt = max(record.kkt.values(), default=0.0)
        console.print(
            f"{name:>13} sweep {record.number}: objective {record.objective:8.4f}  gap {record.gaps[0]:7.4f}  "
            f"train accuracy {record.score:.4f}  kkt {kkt:.0e}  {record.seconds:5.1f} s"
        )

    return network, lnn.BCD(passes=_SWEEPS).run(network, data.x, data.y, callback=say)


def _minibatch(data: Dataset, console: Console) -> lnn.Fit:
    network = lnn.automatic(lnn.LiftedNetwork.mlp(_SIZES, activation="fenchel_relu"), data.x, data.y)

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
    table = Table(title=f"{named(_SIZES)} on MNIST, test accuracy, one seed")
    for column in (
        "model",
        "sweep 0",
        "lifted, feed-forward",
        "lifted rule (1,000 rows)",
        f"then {_EPOCHS} epochs of Adam at {_RATE:g}",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, (network, solution) in runs.items():
        start = lnn.BCD().init(network, data.x, data.y).weights
        sweep0, last = (
            _accuracy(lnn.predict.feedforward(network, w, data.x_test), data.y_test) for w in (start, solution.weights)
        )
        rule = _accuracy(
            lnn.predict.lifted(network, solution.weights, data.x_test[:1000], tol=1e-4), data.y_test[:1000]
        )
        table.add_row(name, f"{sweep0:.4f}", f"{last:.4f}", f"{rule:.4f}", f"{curves[f'lifted, {name}'][-1]:.4f}")
    mini = curves["lifted, mini-batch"]
    table.add_row(f"mini-batch, {_PASSES} passes", "", f"{mini[0]:.4f}", "", f"{mini[-1]:.4f}")
    for name in ("He", "He + fitted head"):
        table.add_row(name, f"{curves[name][0]:.4f}", "", "", f"{curves[name][-1]:.4f}")
    return table


def _draw(histories: dict[str, list[Record]], curves: dict[str, list[float]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for (name, history), colour in zip(histories.items(), ("#0072B2", "#D55E00"), strict=True):
        sweeps = [record.number for record in history]
        axes[0].semilogy(sweeps, [record.objective for record in history], "o-", color=colour, label=name)
        axes[1].plot(sweeps, [record.score for record in history], "o-", color=colour, label=name)
    for (name, curve), colour in zip(
        curves.items(), ("#999999", "#000000", "#0072B2", "#D55E00", "#009E73"), strict=True
    ):
        axes[2].plot(range(len(curve)), curve, "o-", color=colour, label=f"from {name}")
    labels = (
        ("sweep", "objective"),
        ("sweep", "train accuracy, feed-forward"),
        (f"epoch of Adam at {_RATE:g}", "test accuracy"),
    )
    for axis, (horizontal, vertical) in zip(axes, labels, strict=True):
        axis.set(xlabel=horizontal, ylabel=vertical)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    axes[2].set_ylim(0.85, 1.0)
    with beside(out) as part:
        figure.savefig(part, format=out.suffix[1:], dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
