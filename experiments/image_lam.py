"""Convolutional networks by mini-batches with lam from small to infinite, with and without random labels.

lam is in units of rms(gradient of the loss in u) / rms(u), of each hidden layer alone, at the initial weights with a fitted head: at a lam
of 300 units the X-step moves the states by about 1/300 of their size. At an infinite lam the gradients are those of back-propagation.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.image_bench import Bench
from experiments.image_lifted import automatic, trained
from experiments.image_training import Task, noisy
from experiments.methods import Scorer
from experiments.store import Store
from liftednn import Affine, LiftedNetwork, reduce
from liftednn.activations import FenchelReLU, Pooled
from liftednn.data.validation import inputs, responses
from liftednn.training import choices
from liftednn.training.batch import x_step
from liftednn.training.initial import random_weights, unit_of

__all__ = [
    "LAMS",
    "NOISES",
    "UNIT",
    "Linearised",
    "at_infinity",
    "curves",
    "lifted_at",
    "over_lams",
    "summary",
    "units",
]

LAMS = ("1", "3", "10", "30", "100", "300", "1000", "inf")
NOISES = (0.0, 0.4)
UNIT = "units of rms(gradient in u) / rms(u)"
_ROWS, _WORK = 4096, 1e9  # rows that units are measured on, at most, and multiplications, as those of `automatic`


@dataclass(frozen=True)
class Linearised(FenchelReLU):
    """The ReLU whose X-step is linear in the gradient, as in the limit of an infinite lam: lam grad D(u, z) = phi'(u) g, whatever lam is.

    A lam that is merely large would give the same up to rounding, which grows with lam.
    """

    def argmin(self, u: Tensor, g: Tensor) -> Tensor:
        return torch.where(u > 0, u - g, 0.0)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        """For the record of a pass alone; a linear step may leave the domain."""
        return super().value(u, z.clamp(min=0))


def at_infinity(network: LiftedNetwork) -> LiftedNetwork:
    """The network with linearised X-steps."""
    return LiftedNetwork([replace(layer, divergence=_linearised(layer.divergence)) for layer in network.layers])


def _linearised(divergence: Any) -> Any:
    if isinstance(divergence, Pooled):
        return replace(divergence, activation=_linearised(divergence.activation))
    return Linearised() if isinstance(divergence, FenchelReLU) else divergence


def units(network: LiftedNetwork, task: Task) -> list[float]:
    """rms(gradient in u) / rms(u) of every hidden layer, on some rows, from the weights at which `automatic` measures them."""
    few_x, few_y, _ = task.images.sample(choices.sample_rows(network, _ROWS, _WORK), task.seed)
    x = inputs(network, few_x)
    y = responses(network, few_y, x)
    start = random_weights(network, task.seed, x, y, None, unit_of(network, x))
    precise = [Affine(w.double(), b.double()) for w, b in choices.fitted_head(network, start, x, y)]
    step = x_step(at_infinity(network), precise, x.double(), y.double())
    pairs = list(zip(step.u_gradients, step.preactivations, strict=True))[:-1]
    return [math.sqrt(float(reduce.mean_square(g) / reduce.mean_square(u))) for g, u in pairs]


def lifted_at(task: Task) -> Iterator[Scorer]:
    """The lifted model at lam = settings["lam"] units, all else automatic."""
    network, lam = automatic(task), float(task.settings["lam"])
    if lam == math.inf:
        return trained(task, at_infinity(network))
    with torch.no_grad():
        return trained(task, network.with_lam([lam * unit for unit in units(network, task)]))


def over_lams(bench: Bench, seeds: int) -> None:
    """Every lam with every share of random labels; in quick runs the least lam without them and the largest with the most."""
    few = [(NOISES[0], LAMS[0]), (NOISES[-1], LAMS[-1])]
    pairs = list(itertools.product(NOISES, LAMS)) if bench.scale.options is None else few
    for seed, (noise, lam) in itertools.product(range(seeds), pairs):
        fields = {"part": bench.part, "stage": "test", "lam": lam, "noise": noise, "passes": bench.passes, "seed": seed}
        bench.store(partial(_run, bench, lam, noise, seed), **fields)


def _run(bench: Bench, lam: str, noise: float, seed: int) -> dict[str, Any]:
    data = noisy(bench.data, noise, seed)
    return bench.train(lifted_at, bench.task(data, bench.passes, seed, {"lam": lam}), data)


def curves(store: Store, part: str, noise: float) -> list[list[float]]:
    """The last test accuracy at every lam, one list for each seed that has all of them."""
    found = {seed: _last(store, part, noise, seed) for seed in _seeds(store, part)}
    return [list(each.values()) for each in found.values() if list(each) == list(LAMS)]


def _seeds(store: Store, part: str) -> list[int]:
    return sorted({record.fields["seed"] for record in store.find(part=part, stage="test")})


def _last(store: Store, part: str, noise: float, seed: int) -> dict[str, float]:
    found = {lam: store.values(part=part, stage="test", lam=lam, noise=noise, seed=seed) for lam in LAMS}
    return {lam: cells[-1]["accuracy"][-1] for lam, cells in found.items() if cells}


def summary(store: Store, part: str) -> list[dict[str, Any]]:
    """One row per lam and share of random labels."""
    rows = []
    for noise, lam in itertools.product(NOISES, LAMS):
        found = store.values(part=part, stage="test", lam=lam, noise=noise)
        last = [cell["accuracy"][-1] for cell in found]
        if found:
            rows.append(
                {
                    "random_labels": f"{noise:.0%}",
                    "lam": lam,
                    "seeds": len(found),
                    "first": statistics.mean(cell["accuracy"][0] for cell in found),
                    "mean": statistics.mean(last),
                    "deviation": statistics.stdev(last) if len(last) > 1 else 0.0,
                    "seconds": statistics.median(cell["seconds"][-1] for cell in found),
                }
            )
    return rows
