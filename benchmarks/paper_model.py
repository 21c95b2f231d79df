"""The paper's own model on MNIST, and its Fenchel twin: full-batch descent, rho = 1e-3, blocks to a KKT residual of 1e-3.

lambda is chosen on 10,000 training rows held out, by feed-forward accuracy after the last sweep; then the model is trained on all
60,000 rows and tested once, for every seed. Sweep 0, random features with a fitted head, stands beside it.
Every run is a cell with its own file under results/paper_model: stop at any time, start again, nothing runs twice.
`python -m benchmarks.paper_model [cpu|cuda]`
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

import liftednn as lnn
from benchmarks.report import RESULTS, machine, store, table
from liftednn.experiments.datasets import Dataset, mnist

ARCHITECTURES = {"300": [784, 300, 10], "500-200-100": [784, 500, 200, 100, 10]}
PAPER = {"300": "0.898 ± 0.005", "500-200-100": "0.853 ± 0.003"}
LAMBDAS = [0.01, 0.1, 1.0, 10.0, 100.0]
SEEDS = [0, 1, 2]
SWEEPS = 10


def cell(name: str, architecture: str, activation: str, lam: float, seed: int, data: Dataset) -> dict[str, Any]:
    """One training run, from its file if it has been done."""
    path = RESULTS / "paper_model" / f"{name}-{architecture}-{activation}-{lam:g}-{seed}.json"
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    network = lnn.LiftedNetwork.mlp(ARCHITECTURES[architecture], activation=activation, lam=lam, rho=1e-3)
    bcd = lnn.BCD(passes=SWEEPS, tol=0.0, seed=seed, block_tol=1e-3)
    started = time.perf_counter()
    solution = bcd.run(network, data.x, data.y)
    spent = time.perf_counter() - started
    before = bcd.init(network, data.x, data.y).weights
    result = {
        "sweep0": accuracy(network, before, data),
        "last": accuracy(network, solution.weights, data),
        "objective": [record.objective for record in solution.history],
        "gaps": [record.gaps for record in solution.history],
        "kkt": max(max(record.kkt.values()) for record in solution.history[1:]),
        "seconds": spent,
        "machine": machine(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.rename(path)
    return result


def accuracy(network: lnn.LiftedNetwork, weights: list[lnn.Affine], data: Dataset) -> float:
    scores = lnn.predict.feedforward(network, weights, data.x_test)
    return float((scores.argmax(1) == data.y_test).double().mean())


def held_out(data: Dataset) -> Dataset:
    """The last 10,000 training rows in the place of the test set."""
    return Dataset(data.x[:50_000], data.y[:50_000], data.x[50_000:], data.y[50_000:])


def study(architecture: str, activation: str, data: Dataset) -> dict[str, Any]:
    trials = {lam: cell("validate", architecture, activation, lam, 0, held_out(data)) for lam in LAMBDAS}
    lam = max(trials, key=lambda each: trials[each]["last"])
    print(
        f"{architecture} {activation}: " + ", ".join(f"lam {k:g} {v['last']:.4f}" for k, v in trials.items()),
        flush=True,
    )
    runs = [cell("test", architecture, activation, lam, seed, data) for seed in SEEDS]
    last, first = [run["last"] for run in runs], [run["sweep0"] for run in runs]
    return {
        "network": architecture,
        "activation": activation,
        "lam": lam,
        "sweep_0": statistics.mean(first),
        "last": statistics.mean(last),
        "spread": statistics.stdev(last),
        "paper": PAPER[architecture] if activation == "relu" else "",
        "kkt": max(run["kkt"] for run in runs),
        "seconds": statistics.mean(run["seconds"] for run in runs),
    }


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    data = mnist(device)
    rows = [
        study(architecture, activation, data)
        for architecture in ARCHITECTURES
        for activation in ("relu", "fenchel_relu")
    ]
    table(f"test accuracy after {SWEEPS} sweeps, {len(SEEDS)} seeds, lambda from a validation split", rows)
    store("paper_model", rows)


if __name__ == "__main__":
    main()
