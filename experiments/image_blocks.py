"""LeNet by block-coordinate descent: full passes over all blocks on some digits, each block to a KKT residual of 1e-3.

Its pooling is average pooling, or the largest of every window in the jointly convex form of `MaxPoolReLU`. Pass 0 is the start: random
features with a fitted head. Every case is stored with the seconds and the largest KKT residual of every pass, the largest relative rise
of the objective from one block to the next (0 where it never rises), the peak memory, and test accuracies of both prediction rules.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import liftednn as lnn
from experiments.batched import clock
from experiments.datasets import Dataset
from experiments.memory import held
from experiments.store import Fields, Store
from experiments.training import accuracy
from liftednn.predict import lifted
from liftednn.runtime.precision import exact_arithmetic
from liftednn.training.bcd import Block

__all__ = ["CASES", "descend", "lenet_of_blocks", "summary"]

ROWS, RHO, TOL, MOST = 5000, 1e-3, 1e-3, 1000
# Test digits for the lifted rule, which solves ten problems for each, and its iterations at most.
LIFTED_ROWS, LIFTED_MOST = 500, 20
# Activations and lam of each part; the Fenchel divergence of a largest entry is not convex, so that blocks cannot be exact.
CASES = {
    "bcd": tuple(itertools.product(("relu", "fenchel_relu"), (1.0, 10.0))),
    "bcd-max": (("relu", 1.0),),
}


def lenet_of_blocks(pooling: str, activation: str, lam: float, divide: int = 1) -> lnn.LiftedNetwork:
    """LeNet with "avgpool" or "maxpool"; `divide` makes every layer narrower."""
    a, b, c = (width // divide for width in (20, 50, 500))
    layers: list[int | str | tuple[str, int] | tuple[str, int, int]]
    layers = [("conv", a, 5), pooling, ("conv", b, 5), pooling, ("dense", c)]
    return lnn.LiftedNetwork.cnn((1, 28, 28), layers, 10, activation, lam=lam, rho=RHO)


def descend(
    store: Store, part: str, cases: Sequence[tuple[str, float]], data: Dataset, seeds: int, passes: int, divide: int
) -> None:
    """These cases of a part; the seed is of the initial weights."""
    for (activation, lam), seed in itertools.product(cases, range(seeds)):
        network = lenet_of_blocks("maxpool" if part == "bcd-max" else "avgpool", activation, lam, divide)
        work = partial(run_case, network, data, passes, seed)
        store(work, part=part, stage="test", activation=activation, lam=lam, passes=passes, seed=seed)


@exact_arithmetic
def run_case(network: lnn.LiftedNetwork, data: Dataset, passes: int, seed: int) -> Fields:
    """A run of `passes` full passes; seconds are those of the blocks, without evaluations."""
    x, y, bcd = data.x[:ROWS], data.y[:ROWS], lnn.BCD(seed=seed, block_tol=TOL, block_iter=MOST)
    bcd.init(network, x[:50], y[:50])  # libraries load their kernels on first use
    _forget_peak(x)
    started = clock(x)
    state = bcd.init(network, x, y)
    passed = [_passed(network, state.weights, data, clock(x) - started, max(state.kkt.values()))]
    objectives, rule = [_objective(network, state)], _both_rules(network, state.weights, data, seed)
    peak = held(x.device.type)
    for _ in range(passes):
        seconds, worst = 0.0, 0.0
        for block, spent in timed(bcd.blocks(network, state), x):
            seconds, worst = seconds + spent, max(worst, block.kkt)
            objectives.append(_objective(network, state))
        peak = max(peak, held(x.device.type))
        passed.append(_passed(network, state.weights, data, seconds, worst))
    rule += _both_rules(network, state.weights, data, seed)
    return {
        **{name: [each[name] for each in passed] for name in passed[0]},
        "objectives": objectives,
        "rise": max(0.0, *((b - a) / abs(a) for a, b in itertools.pairwise(objectives))),
        "lifted_rule": [own for own, _ in rule],
        "same_rows": [other for _, other in rule],
        "peak_gib": peak,
        "rows": len(x),
    }


def timed(blocks: Iterator[Block], like: Tensor) -> Iterator[tuple[Block, float]]:
    """Every block with its seconds."""
    while True:
        started = clock(like)
        block = next(blocks, None)
        if block is None:
            return
        yield block, clock(like) - started


def _forget_peak(x: Tensor) -> None:
    """On a GPU the peak is of each case; that of a CPU's process cannot be forgotten, and is of all cases so far."""
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()


def _objective(network: lnn.LiftedNetwork, state: Any) -> float:
    return network.evaluate(state.weights, state.states).objective


def _passed(
    network: lnn.LiftedNetwork, weights: list[lnn.Affine], data: Dataset, seconds: float, kkt: float
) -> dict[str, float]:
    """What is stored of every pass; accuracies are those of the standard network with these weights."""
    module = lnn.init.to_module(network, weights).to(data.x.device)
    found = accuracy(lambda x: torch.cat([module(part) for part in torch.split(x, 2000)]), data.x_test, data.y_test)
    return {"accuracy": found, "seconds": seconds, "kkt": kkt}


def _both_rules(
    network: lnn.LiftedNetwork, weights: list[lnn.Affine], data: Dataset, seed: int
) -> list[tuple[float, float]]:
    """Test accuracy of the lifted rule on some rows, and that of the standard network on the same; of the first seed alone."""
    if seed:
        return []
    x, y = data.x_test[:LIFTED_ROWS], data.y_test[:LIFTED_ROWS]
    scores = lifted(network, weights, x, TOL, LIFTED_MOST), lnn.predict.feedforward(network, weights, x)
    own, other = (float((each.argmax(1) == y).double().mean()) for each in scores)
    return [(own, other)]


def summary(store: Store, part: str) -> list[dict[str, Any]]:
    """One row per case: means over seeds of accuracies, the median of the seconds, and the worst of all else."""
    rows = []
    for activation, lam in CASES[part]:
        if found := store.values(part=part, stage="test", activation=activation, lam=lam):
            rows.append({"activation": activation, "lam": lam, "seeds": len(found)} | _over_seeds(found))
    return rows


def _over_seeds(found: list[Fields]) -> dict[str, Any]:
    """Seconds are of all passes together, without the start's; both rules on the same rows, by the first seed."""
    last, first = [run["accuracy"][-1] for run in found], found[0]
    return {
        "passes": len(first["seconds"]) - 1,
        "pass_0": statistics.mean(run["accuracy"][0] for run in found),
        "last": statistics.mean(last),
        "deviation": statistics.stdev(last) if len(last) > 1 else 0.0,
        "lifted_rule": " to ".join(f"{value:.3f}" for value in first["lifted_rule"]),
        "same_rows": " to ".join(f"{value:.3f}" for value in first["same_rows"]),
        "kkt": max(max(run["kkt"]) for run in found),
        "rise": max(run["rise"] for run in found),
        "seconds": statistics.median(sum(run["seconds"][1:]) for run in found),
        "peak_gib": max(run["peak_gib"] for run in found),
        "rows": first["rows"],
    }
