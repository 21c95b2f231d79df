"""Constrained weights: what a W-step costs beside the plain ridge regression, and what small trainings reach within the constraint.

`python -m experiments constraints`. Steps: MNIST, 60,000 rows, 784 inputs and 300 outputs, and
300 inputs and 784 outputs, where orthogonal columns have a closed form; with the Gram matrix given and with forming it. Trainings:
784-300-10 by mini-batches, five seeds, test accuracy and how far the constraint is broken.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

import liftednn as lnn
from experiments.datasets import Dataset, load, small
from experiments.markdown import table
from experiments.settings import Settings
from experiments.store import Store
from liftednn.blocks import Design, WeightStep, update_weights
from liftednn.losses import SquaredError
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2, Ball, GroupL2, LowRank, NonNegative, Orthogonal

SEEDS, PASSES, REPEATS, UNITS = 5, 4, 3, 300
WIDE: dict[str, lnn.Penalty] = {
    "ridge": L2(1e-3),
    "low rank 30": LowRank(30, 1e-3),
    "orthogonal rows": Orthogonal(),
    "non-negative": NonNegative(),
    "ball, Frobenius": Ball(5.0),
    "ball, spectral": Ball(1.0, "spectral"),
    "ball, rows": Ball(0.5, "row"),
    "ball, l1": Ball(100.0, "l1"),
    "group": GroupL2(1e-2),
}
TALL: dict[str, lnn.Penalty] = {"ridge": L2(1e-3), "low rank 30": LowRank(30, 1e-3), "orthogonal columns": Orthogonal()}
CLOSED = ("ridge", "low rank 30", "orthogonal columns")
TRAININGS: dict[str, list[lnn.Penalty]] = {
    "l2": [L2(), L2()],
    "orthogonal": [Orthogonal(), L2()],
    "low rank 30": [LowRank(30), L2()],
    "non-negative": [NonNegative(), L2()],
    "ball, spectral 2": [Ball(2.0, "spectral"), L2()],
    "ball, rows 1": [Ball(1.0, "row"), L2()],
    "group": [GroupL2(1e-2), L2()],
}


def violation(penalty: lnn.Penalty, w: Tensor) -> float:
    """How far the constraint is broken, as a share of its size; 0 for a penalty that is finite everywhere."""
    w = w.double()
    if isinstance(penalty, Orthogonal):
        gram = (w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T) / penalty.scale**2
        return float((gram - torch.eye(len(gram))).abs().max())
    if isinstance(penalty, LowRank):
        sizes = torch.linalg.svdvals(w)
        return float(sizes[penalty.rank] / sizes[0])
    if isinstance(penalty, Ball):
        return max(0.0, float(penalty.size(w)) / penalty.radius - 1)
    return max(0.0, -float(w.min())) if isinstance(penalty, NonNegative) else 0.0


def known(x: Tensor, formed: Design | None) -> Design:
    """A design of these rows, with the Gram matrix of another one if that is given; nothing is factored yet."""
    design = Design(x)
    if formed is not None:
        vars(design)["_centred"] = formed._centred
    return design


def timed(layer: lnn.Layer, design: Design, z: Tensor, start: lnn.Affine) -> tuple[float, WeightStep]:
    started = time.perf_counter()
    step = update_weights(layer, design, z, start)
    return time.perf_counter() - started, step


def steps(x: Tensor, z: Tensor, penalties: dict[str, lnn.Penalty], repeats: int) -> list[dict[str, Any]]:
    """One block each, in turn, the medians of a few; costs beside that of the first, the ridge regression."""
    operator, formed = lnn.operators.Dense(x.shape[1], z.shape[1]), Design(x)
    drawn = torch.randn(operator.weight_shape, generator=torch.Generator().manual_seed(1)) * (2 / x.shape[1]) ** 0.5
    spent: dict[str, list[list[float]]] = {name: [[], []] for name in penalties}
    found: dict[str, WeightStep] = {}
    _ = formed.inputs
    for _ in range(repeats):
        for name, penalty in penalties.items():
            layer = lnn.Layer(operator, SquaredError(), penalty)
            start = lnn.Affine(penalty.prox(drawn, 0.0), z.mean(0))
            for place, design in enumerate((known(x, formed), known(x, None))):
                seconds, found[name] = timed(layer, design, z, start)
                spent[name][place].append(seconds)
    medians = {name: [statistics.median(each) for each in both] for name, both in spent.items()}
    return [
        {
            "shape": f"{x.shape[1]} -> {z.shape[1]}",
            "penalty": name,
            "method": found[name].method,
            "closed form": name in CLOSED,
            "iterations": found[name].n_iter,
            "kkt": found[name].kkt,
            "violation": violation(penalty, found[name].weights.w),
            "seconds, Gram given": medians[name][0],
            "seconds, forming it": medians[name][1],
            "times ridge, given": medians[name][0] / medians["ridge"][0],
            "times ridge, forming": medians[name][1] / medians["ridge"][1],
        }
        for name, penalty in penalties.items()
    ]


def training(
    data: Dataset, penalties: list[lnn.Penalty], seed: int, passes: int, units: int = UNITS
) -> dict[str, float]:
    network = LiftedNetwork.mlp([data.x.shape[1], units, 10], "fenchel_relu").with_penalty(penalties)
    network = lnn.automatic(network, data.x, data.y, seed)
    started = time.perf_counter()
    fit = lnn.MiniBatch(passes=passes, seed=seed).run(network, data.x, data.y)
    seconds = time.perf_counter() - started
    scores = lnn.predict.feedforward(network, fit.weights, data.x_test)
    smaller, _ = network.prune(fit.weights)
    return {
        "accuracy": float((scores.argmax(1) == data.y_test).double().mean()),
        "violation": max(violation(p, w.w) for p, w in zip(penalties, fit.weights, strict=True)),
        "units": float(smaller.layers[0].operator.out_width),
        "seconds": seconds,
    }


def trainings(store: Store, seeds: int = SEEDS, passes: int = PASSES) -> list[dict[str, Any]]:
    """One row for each penalty, over seeds."""
    rows = []
    for name in TRAININGS:
        runs = store.values(task="training", penalty=name, passes=passes)[:seeds]
        accuracies = [run["accuracy"] for run in runs]
        rows.append(
            {
                "penalty": name,
                "accuracy": statistics.mean(accuracies),
                "sd": statistics.stdev(accuracies) if seeds > 1 else 0.0,
                "violation": max(run["violation"] for run in runs),
                "units": statistics.mean(run["units"] for run in runs),
                "seconds": statistics.mean(run["seconds"] for run in runs),
                "seeds": seeds,
            }
        )
    return rows


def measure_steps(data: Dataset, store: Store, repeats: int, units: int) -> None:
    """All in one run, since each is compared with the first."""
    inputs = data.x.shape[1]
    w = torch.randn(units, inputs, generator=torch.Generator().manual_seed(0)) * (2 / inputs) ** 0.5
    states = (data.x @ w.T).relu()
    found = [*steps(data.x, states, WIDE, repeats), *steps(states, data.x, TALL, repeats)]
    store.add_all([({"task": "step", "shape": row["shape"], "penalty": row["penalty"]}, row) for row in found])


def run(settings: Settings) -> None:
    store, data, quick = settings.store("constraints"), load("mnist"), settings.quick
    seeds, passes, repeats, units = (1, 1, 1, 40) if quick else (SEEDS, PASSES, REPEATS, UNITS)
    if quick:
        data = small(data, 200)
    if not store.find(task="step"):
        measure_steps(data, store, repeats, units)
    table("one W-step beside ridge regression", store.values(task="step"))
    for name, penalties in TRAININGS.items():
        for seed in range(seeds):
            work = partial(training, data, penalties, seed, passes, units)
            store(work, task="training", penalty=name, passes=passes, seed=seed)
    table("784-300-10 by mini-batches, the hidden layer constrained", trainings(store, seeds, passes))
