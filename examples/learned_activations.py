"""Learn the slope of a leaky ReLU from data, whatever it starts from: `python examples/learned_activations.py [--small]`.

Data come from a network of three hidden units with slope 0.3. A network of the same shape is trained by mini-batches from several initial
slopes, each from a few random weights, of which the run with the smallest loss counts. Printed are the slope that it ends at and its loss,
and the loss without learning the slope. A slope a is the same network as 1 / a with other weights, phi_a(u) = -a phi_{1/a}(-u), so the
smaller of the two is shown.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor

import liftednn as lnn
from liftednn.data.sources import source_of
from liftednn.training.run import Run

PLANTED, STARTS = 0.3, (0.01, 0.1, 0.6, 0.9)
ROWS, SEEDS, PASSES = 2000, 5, 60


class Curve(NamedTuple):
    """The slope at the start and after each pass, and the training loss of each pass."""

    slopes: list[float]
    losses: list[float]


def planted(rows: int, hidden: int = 3, inputs: int = 5, outputs: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, w, b, v = draw(rows, inputs), draw(hidden, inputs), 0.3 * draw(hidden), draw(outputs, hidden)
    u = x @ w.T + b
    return x, torch.where(u < 0, PLANTED * u, u) @ v.T


def trained(start: float, learned: bool, seed: int, rows: int, passes: int) -> Curve:
    x, y = planted(rows)
    activation = lnn.activations.FenchelLeakyReLU(start)
    network = lnn.LiftedNetwork.mlp([x.shape[1], 3, y.shape[1]], activation, "squared")
    network = lnn.automatic(network, x, y, seed)
    trainer = lnn.MiniBatch(passes=passes, batch_size=50, seed=seed, learn_activation="layer" if learned else None)
    run, curve = Run(trainer, network, source_of(x, y)), Curve([start], [])
    with torch.no_grad():
        for record in run.passes():
            (phi,) = run.network.hidden
            assert isinstance(phi, lnn.activations.FenchelLeakyReLU)
            slope = float(phi.alpha)
            curve.slopes.append(min(slope, 1 / slope))
            curve.losses.append(record.loss)
    return curve


def best(curves: list[Curve]) -> Curve:
    """Of several random initial weights, those that end with the smallest loss."""
    return min(curves, key=lambda curve: curve.losses[-1])


def main(arguments: list[str] | None = None) -> dict[float, float]:
    """The slope that each start ends at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="two starts, two seeds, few passes")
    small = parser.parse_args(arguments).small
    torch.set_num_threads(1)
    rows, seeds, passes, starts = (1000, 2, 30, STARTS[:3:2]) if small else (ROWS, SEEDS, PASSES, STARTS)
    ends = {}
    for start in starts:
        learned, fixed = (
            best([trained(start, way, seed, rows, passes) for seed in range(seeds)]) for way in (True, False)
        )
        ends[start] = learned.slopes[-1]
        found = f"slope {start:g} -> {ends[start]:.4f}, planted {PLANTED:g}"
        print(f"{found}; loss {learned.losses[-1]:.2e}, with the slope fixed {fixed.losses[-1]:.2e}")
    return ends


if __name__ == "__main__":
    main()
