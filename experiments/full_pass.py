"""A full pass over the blocks of 784-300-10 on MNIST against an epoch of Adam on the same network, in one run, and how its time grows.

The time of a full pass is that which a user waits: all blocks to a KKT residual of 1e-3 and the evaluation for the history.
`python -m experiments full-pass [--device cuda]`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import liftednn as lnn
from experiments.datasets import mnist, small
from experiments.markdown import table
from experiments.settings import Settings

TAKES = ("device",)
TURNS = 5


def seconds(work: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


class FullPass:
    """Block-coordinate descent; each call makes one full pass over the blocks."""

    def __init__(self, x: Tensor, y: Tensor, sizes: list[int], activation: str) -> None:
        self.network = lnn.LiftedNetwork.mlp(sizes, activation=activation, lam=1.0, rho=1e-3)
        self.bcd = lnn.BCD(block_tol=1e-3)
        self.state = self.bcd.init(self.network, x, y)
        self.kkt = 0.0

    def __call__(self) -> None:
        self.kkt = max(block.kkt for block in self.bcd.blocks(self.network, self.state))
        self.network.evaluate(self.state.weights, self.state.states)


class Adam:
    """The same network under Adam, batch 100; each call makes one epoch."""

    def __init__(self, x: Tensor, y: Tensor, sizes: list[int]) -> None:
        self.x, self.y = x, y
        layers: list[torch.nn.Module] = []
        for p, q in pairwise(sizes):
            layers += [torch.nn.Linear(p, q), torch.nn.ReLU()]
        self.module = torch.nn.Sequential(*layers[:-1]).to(x.device)
        self.optimiser = torch.optim.Adam(self.module.parameters(), 1e-3)

    def __call__(self) -> None:
        for rows in torch.split(torch.randperm(len(self.x), device=self.x.device), 100):
            self.optimiser.zero_grad()
            torch.nn.functional.cross_entropy(self.module(self.x[rows]), self.y[rows]).backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()


def peak(device: str, size: int = 3000) -> float:
    """GFLOP/s of a float32 matrix product here and now, best of a few."""
    a = torch.randn(size, size, device=device)
    return 2 * size**3 / min(seconds(lambda: a @ a, device) for _ in range(5)) / 1e9


def products(sizes: list[int], rows: int) -> float:
    """GFLOP in the matrix products that a full pass cannot do without: u = x w' for the X-step and the evaluation, x'z for the W-step."""
    return sum(3 * 2 * rows * p * q for p, q in pairwise(sizes)) / 1e9


def measure(
    x: Tensor, y: Tensor, sizes: list[int], activation: str, device: str, turns: int, size: int = 3000
) -> dict[str, Any]:
    """Each turn: one full pass and one epoch of Adam, one after the other."""
    FullPass(x, y, sizes, activation)()  # libraries load their kernels on first use
    descent, adam = FullPass(x, y, sizes, activation), Adam(x, y, sizes)
    adam()
    first = seconds(descent, device)
    ours, theirs, peaks, worst = [], [], [], descent.kkt
    for _ in range(turns):
        ours.append(seconds(descent, device))
        theirs.append(seconds(adam, device))
        peaks.append(peak(device, size))
        worst = max(worst, descent.kkt)
    one_pass, epoch = statistics.median(ours), statistics.median(theirs)
    return {
        "network": "-".join(map(str, sizes)),
        "activation": activation,
        "rows": len(x),
        "first_pass_s": first,
        "pass_s": one_pass,
        "adam_epoch_s": epoch,
        "first_over_adam": first / epoch,
        "pass_over_adam": one_pass / epoch,
        "kkt": worst,
        "gflops": products(sizes, len(x)) / one_pass,
        "share_of_peak": products(sizes, len(x)) / one_pass / statistics.median(peaks),
    }


CASES = [
    ("relu", [784, 300, 10], 60_000),
    ("fenchel_relu", [784, 300, 10], 60_000),
    ("relu", [784, 300, 10], 15_000),
    ("relu", [784, 300, 10], 30_000),
    ("relu", [784, 150, 10], 30_000),
    ("relu", [784, 600, 10], 30_000),
    ("relu", [784, 300, 300, 10], 30_000),
    ("relu", [784, 300, 300, 300, 10], 30_000),
]
QUICK = [("relu", [50, 20, 10], 200), ("fenchel_relu", [50, 20, 10], 200)]


def run(settings: Settings) -> None:
    store, device, turns = settings.store("full-pass"), settings.device, 1 if settings.quick else TURNS
    data = small(mnist(device), 200) if settings.quick else mnist(device)
    for activation, sizes, n in QUICK if settings.quick else CASES:
        work = partial(
            measure, data.x[:n], data.y[:n], sizes, activation, device, turns, 300 if settings.quick else 3000
        )
        store(work, network="-".join(map(str, sizes)), activation=activation, rows=n)
    table(
        f"one full pass over the blocks against one Adam epoch of batch 100 on {device}, medians of {turns}",
        store.values(),
    )
