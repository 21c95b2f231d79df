"""The paper's own model on MNIST, and the same network with the Fenchel divergence: full-batch descent, rho = 1e-3.

Blocks are solved to a KKT residual of 1e-3. lambda is chosen on 10,000 training rows held out, by feed-forward accuracy after the last
pass; then the model is trained on all 60,000 rows and tested once, for every seed. Pass 0 is random hidden layers with a fitted last layer.
`python -m experiments paper-model [--device cuda]`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import liftednn as lnn
from experiments.datasets import Dataset, mnist, small
from experiments.markdown import table
from experiments.settings import Settings
from experiments.store import Store

TAKES = ("device",)
ARCHITECTURES = {"300": [784, 300, 10], "500-200-100": [784, 500, 200, 100, 10]}
QUICK = {"20": [50, 20, 10]}
PAPER = {"300": "0.898 ± 0.005", "500-200-100": "0.853 ± 0.003"}
LAMBDAS = [0.01, 0.1, 1.0, 10.0, 100.0]
SEEDS = [0, 1, 2]
ACTIVATIONS = ("relu", "fenchel_relu")
PASSES = 10


def measure(network: str, activation: str, lam: float, seed: int, data: Dataset, passes: int) -> dict[str, Any]:
    """One training run."""
    net = lnn.LiftedNetwork.mlp((ARCHITECTURES | QUICK)[network], activation=activation, lam=lam, rho=1e-3)
    bcd = lnn.BCD(passes=passes, tol=0.0, seed=seed, block_tol=1e-3)
    started = time.perf_counter()
    solution = bcd.run(net, data.x, data.y)
    spent = time.perf_counter() - started
    before = bcd.init(net, data.x, data.y).weights
    return {
        "pass_0": accuracy(net, before, data),
        "last": accuracy(net, solution.weights, data),
        "objective": [record.objective for record in solution.history],
        "gaps": [record.gaps for record in solution.history],
        "kkt": max(max(record.kkt.values()) for record in solution.history[1:]),
        "seconds": spent,
    }


def accuracy(network: lnn.LiftedNetwork, weights: list[lnn.Affine], data: Dataset) -> float:
    scores = lnn.predict.feedforward(network, weights, data.x_test)
    return float((scores.argmax(1) == data.y_test).double().mean())


def held_out(data: Dataset) -> Dataset:
    """The last sixth of the training rows instead of the test set."""
    kept = len(data.x) * 5 // 6
    return Dataset(data.x[:kept], data.y[:kept], data.x[kept:], data.y[kept:])


def chosen(store: Store, network: str, activation: str) -> float:
    """The lambda of the highest accuracy on the rows held out, the first of equal ones in the order tried."""
    trials = store.find(stage="validate", network=network, activation=activation)
    return float(
        max(sorted(trials, key=lambda each: each.fields["lam"]), key=lambda each: each.value["last"]).fields["lam"]
    )


def compute(store: Store, network: str, activation: str, data: Dataset, seeds: Sequence[int], passes: int) -> None:
    fields = {"network": network, "activation": activation}
    for lam in LAMBDAS:
        work = partial(measure, network, activation, lam, 0, held_out(data), passes)
        store(work, stage="validate", **fields, lam=lam, seed=0)
    lam = chosen(store, network, activation)
    for seed in seeds:
        store(
            partial(measure, network, activation, lam, seed, data, passes), stage="test", **fields, lam=lam, seed=seed
        )


def summary(store: Store) -> list[dict[str, Any]]:
    """One row for each network and activation, over seeds."""
    rows = []
    for network, activation in product((*ARCHITECTURES, *QUICK), ACTIVATIONS):
        if not store.find(stage="test", network=network, activation=activation):
            continue
        lam = chosen(store, network, activation)
        runs = store.values(stage="test", network=network, activation=activation, lam=lam)
        last, first = [run["last"] for run in runs], [run["pass_0"] for run in runs]
        rows.append(
            {
                "network": network,
                "activation": activation,
                "lam": lam,
                "pass_0": statistics.mean(first),
                "last": statistics.mean(last),
                "spread": statistics.stdev(last) if len(last) > 1 else 0.0,
                "paper": PAPER.get(network, "") if activation == "relu" else "",
                "kkt": max(run["kkt"] for run in runs),
                "seconds": statistics.mean(run["seconds"] for run in runs),
            }
        )
    return rows


def run(settings: Settings) -> None:
    store, data, quick = settings.store("paper-model"), mnist(settings.device), settings.quick
    if quick:
        data = small(data, 120)
    for network, activation in product(QUICK if quick else ARCHITECTURES, ACTIVATIONS):
        compute(store, network, activation, data, SEEDS[: 1 if quick else None], 1 if quick else PASSES)
    table(f"test accuracy after {PASSES} passes, {len(SEEDS)} seeds, lambda from a validation split", summary(store))
