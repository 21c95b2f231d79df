"""Lifted initialisation against He's, and what ordinary training makes of each: MNIST, 784-300-100-10, in one run on one machine.

`python -m experiments initialisation`. Every start is
followed by one epoch of Adam at 1e-4, the rate of fine-tuning. He has also the time that lifted_ and the epoch take together, at that
rate and at Adam's usual one. Seconds include the start, not the evaluation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import liftednn as lnn
from experiments.datasets import Dataset, mnist, small
from experiments.markdown import table
from experiments.methods import standard
from experiments.settings import Settings

SIZES, SEEDS, BATCH = (784, 300, 100, 10), 5, 100
FINE, USUAL = 1e-4, 1e-3
Sizes = tuple[int, ...]
Start = Callable[[Dataset, Sizes], nn.Module]


class Run(NamedTuple):
    """Test accuracy, seconds and epochs of Adam."""

    accuracy: float
    seconds: float
    epochs: float


def lifted(data: Dataset, sizes: Sizes) -> nn.Module:
    return lnn.init.lifted_(standard(sizes), data.x, data.y)


def he(data: Dataset, sizes: Sizes) -> nn.Module:
    return standard(sizes)


def fitted_head(data: Dataset, sizes: Sizes) -> nn.Module:
    """He's weights with the last layer fitted to all rows: the control that every lifted start has to beat."""
    network = lnn.LiftedNetwork.mlp(sizes, activation="fenchel_relu")
    return lnn.init.to_module(network, lnn.BCD(seed=torch.initial_seed()).init(network, data.x, data.y).weights)


def adam(module: nn.Module, data: Dataset, rate: float, epochs: float = math.inf, seconds: float = math.inf) -> float:
    """Train for so many epochs, or until so many seconds are over; returns the epochs done."""
    optimiser = torch.optim.Adam(module.parameters(), rate, fused=True)
    started, steps, per_epoch = time.perf_counter(), 0, math.ceil(len(data.x) / BATCH)
    while True:
        for rows in torch.split(torch.randperm(len(data.x)), BATCH):
            if steps >= epochs * per_epoch or time.perf_counter() - started >= seconds:
                return steps / per_epoch
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(data.x.index_select(0, rows)), data.y.index_select(0, rows))
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            steps += 1


def trained(start: Start, data: Dataset, sizes: Sizes, seed: int, rate: float = FINE, **limits: float) -> Run:
    torch.manual_seed(seed)
    started = time.perf_counter()
    module = start(data, sizes)
    epochs = adam(module, data, rate, **limits)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        accuracy = float((module(data.x_test).argmax(1) == data.y_test).double().mean())
    return Run(accuracy, seconds, epochs)


def one_seed(data: Dataset, sizes: Sizes, seed: int) -> dict[str, Run]:
    """Every variant, one after the other."""
    found = {
        "lifted_, no Adam": trained(lifted, data, sizes, seed, epochs=0),
        f"He, three epochs at {USUAL:g}": trained(he, data, sizes, seed, USUAL, epochs=3),
        f"lifted_, one epoch at {FINE:g}": trained(lifted, data, sizes, seed, epochs=1),
        f"He, one epoch at {FINE:g}": trained(he, data, sizes, seed, epochs=1),
        f"He with a fitted head, one epoch at {FINE:g}": trained(fitted_head, data, sizes, seed, epochs=1),
    }
    budget = found[f"lifted_, one epoch at {FINE:g}"].seconds
    for rate in (FINE, USUAL):
        found[f"He, the time of lifted_ and its epoch, at {rate:g}"] = trained(
            he, data, sizes, seed, rate, seconds=budget
        )
    return found


def summary(seeds: list[dict[str, Run]]) -> list[dict[str, Any]]:
    rows = []
    for name in seeds[0]:
        runs = [found[name] for found in seeds]
        accuracies = [each.accuracy for each in runs]
        rows.append(
            {
                "start": name,
                "seeds": len(runs),
                "accuracy": statistics.mean(accuracies),
                "spread": max(accuracies) - min(accuracies),
                "seconds": statistics.mean(each.seconds for each in runs),
                "epochs": statistics.mean(each.epochs for each in runs),
            }
        )
    return rows


def run(settings: Settings) -> None:
    store, data = settings.store("initialisation"), mnist()
    few = Dataset(data.x[:2000], data.y[:2000], data.x_test, data.y_test)
    sizes: Sizes = (50, 20, 10) if settings.quick else SIZES
    if settings.quick:
        data = small(data, 200)
    if not store.records:  # all in one run: starts are given each other's time
        if not settings.quick:
            trained(lifted, few, sizes, 0, epochs=1)  # loads what is loaded at first use
        seeds = [one_seed(data, sizes, seed) for seed in range(1 if settings.quick else SEEDS)]
        store.add_all([({"start": row["start"]}, row) for row in summary(seeds)])
    table("MNIST 784-300-100-10, test accuracy", store.values())
