"""Learn the slope of a leaky ReLU from data, whatever it starts from: `python examples/learned_activations.py [--small] [--out FILE]`.

Data come from a network of three hidden units with slope 0.3. A network of the same shape is trained by mini-batches from several initial
slopes, each from a few random weights, of which the run with the smallest loss counts. The picture shows its slope and its loss after each
pass, and the losses without learning the slope. A slope a is the same network as 1 / a with other weights,
phi_a(u) = -a phi_{1/a}(-u), so the smaller of the two is shown.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.base import Granularity
from liftednn.data.sources import source_of
from liftednn.training.run import Run

mpl.use("Agg")
from matplotlib import pyplot as plt

PLANTED, STARTS = 0.3, (0.01, 0.1, 0.6, 0.9)


class Curve(NamedTuple):
    """Slope and training loss after each pass."""

    slopes: list[float]
    losses: list[float]


def planted(rows: int, hidden: int = 3, inputs: int = 5, outputs: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, w, b, v = draw(rows, inputs), draw(hidden, inputs), 0.3 * draw(hidden), draw(outputs, hidden)
    u = x @ w.T + b
    return x, torch.where(u < 0, PLANTED * u, u) @ v.T


def trained(x: Tensor, y: Tensor, start: float, seed: int, passes: int, refit: Granularity | None) -> Curve:
    activation = lnn.activations.FenchelLeakyReLU(start)
    network = lnn.LiftedNetwork.mlp([x.shape[1], 3, y.shape[1]], activation, "squared")
    network = lnn.automatic(network, x, y, seed)
    run = Run(lnn.MiniBatch(passes=passes, batch_size=50, seed=seed, learn_activation=refit), network, source_of(x, y))
    curve = Curve([start], [])
    with torch.no_grad():
        for record in run.passes():
            (learned,) = run.network.hidden
            assert isinstance(learned, lnn.activations.FenchelLeakyReLU)
            slope = float(learned.alpha)
            curve.slopes.append(min(slope, 1 / slope))
            curve.losses.append(record.loss)
    return curve


def best(x: Tensor, y: Tensor, start: float, seeds: int, passes: int, refit: Granularity | None) -> Curve:
    """Of several random initial weights, those that end with the smallest loss."""
    return min((trained(x, y, start, seed, passes, refit) for seed in range(seeds)), key=lambda curve: curve.losses[-1])


def draw(learned: dict[float, Curve], fixed: dict[float, Curve], out: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.axhline(PLANTED, color="0.6", linestyle="--", label=f"planted, {PLANTED:g}")
    for place, (start, curve) in enumerate(learned.items()):
        left.plot(curve.slopes, color=f"C{place}", label=f"from {start:g}")
        right.plot(curve.losses, color=f"C{place}", label=f"learned, from {start:g}")
        right.plot(fixed[start].losses, color=f"C{place}", linestyle=":", label=f"fixed at {start:g}")
    left.set(xlabel="passes over the rows", ylabel="slope", title="the slope", yscale="log")
    right.set(xlabel="passes over the rows", ylabel="loss of the batches", title="the training loss", yscale="log")
    for axes in (left, right):
        axes.legend(fontsize=7)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[float, float]:
    """The slope that each start ends at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="two starts, two seeds, few passes")
    parser.add_argument("--out", type=Path, default=Path("learned-activations.png"))
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows, seeds, passes, starts = (1000, 2, 30, STARTS[:3:2]) if given.small else (2000, 5, 60, STARTS)
    x, y = planted(rows)
    learned = {start: best(x, y, start, seeds, passes, "layer") for start in starts}
    fixed = {start: best(x, y, start, seeds, passes, None) for start in starts}
    for start, curve in learned.items():
        found = f"slope {start:g} -> {curve.slopes[-1]:.4f}, planted {PLANTED:g}"
        print(f"{found}; loss {curve.losses[-1]:.2e}, with the slope fixed {fixed[start].losses[-1]:.2e}")
    draw(learned, fixed, given.out)
    print(f"drawn to {given.out}")
    return {start: curve.slopes[-1] for start, curve in learned.items()}


if __name__ == "__main__":
    main()
