"""Many standard networks of one architecture, trained together as one batched computation (sec. 7: the columns of Table 1).

The networks are V variants (initial weights and a rate each) times S seeds, network v S + s being variant v of seed s. All variants of a
seed see the same rows in the same order. Gradients are written out, the mean cross-entropy of labels or the mean square of real responses
behind ReLU layers, and torch's own optimisers take the steps. On a CUDA device a step is recorded once as a graph and replayed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from experiments.datasets import Dataset
from liftednn.base import Affine
from liftednn.runtime.graphs import WARM_UP, recorded

__all__ = ["Method", "Schedule", "Together", "clock", "epoch_seconds", "train_together"]

Method = Literal["adam", "sgd"]
Schedule = Literal["constant", "cosine"]

_ROWS = 2000  # rows evaluated at a time


class Together:
    """The networks are rows of one matrix, `values`; `parameters` are its parts, layer by layer, weights (V S, out, in) and biases
    (V S, 1, out), in the precision of the data.

    The optimiser moves a matrix of zeros at rate 1, and each network takes that move times its own rate: an update at that rate.
    """

    def __init__(
        self,
        starts: Sequence[Sequence[Sequence[Affine]]],
        rates: Sequence[float],
        data: Dataset,
        method: Method = "adam",
        schedules: Sequence[Schedule] = (),
    ) -> None:
        """starts[s][v] are the weights of seed s, variant v; rates[v] is the variant's rate, constant or falling to 0 along a cosine."""
        self.data, self.seeds, self.variants = data, len(starts), len(rates)
        networks = [seed[v] for v in range(self.variants) for seed in starts]
        self.values = torch.stack([torch.cat([part.reshape(-1) for pair in net for part in pair]) for net in networks])
        self.values = self.values.to(data.x)
        self.parameters = self._parts([part.shape for pair in networks[0] for part in pair])
        self.classes = not data.y.is_floating_point()
        outputs = self.parameters[-1].shape[-1]
        self.targets = (
            torch.nn.functional.one_hot(data.y, outputs).to(data.x) if self.classes else data.y.view(-1, 1).to(data.x)
        )
        falls = torch.tensor([schedule == "cosine" for schedule in schedules or ["constant"] * len(rates)])
        given = torch.tensor(rates, dtype=torch.float64)
        each = [part.repeat_interleave(self.seeds)[:, None] for part in (given * ~falls, given * falls)]
        self.steady, self.falling = (part.to(data.x) for part in each)
        self.rates = self.steady + self.falling
        self.move = torch.zeros_like(self.values)
        gpu = data.x.is_cuda
        self.optimiser: torch.optim.Optimizer = (
            torch.optim.Adam([self.move], 1.0, capturable=gpu, fused=True)
            if method == "adam"
            else torch.optim.SGD([self.move], 1.0)
        )

    def _parts(self, shapes: Sequence[torch.Size]) -> list[Tensor]:
        pieces = torch.split(self.values, [shape.numel() for shape in shapes], 1)
        wide = [(1, *shape) if len(shape) == 1 else tuple(shape) for shape in shapes]
        return [piece.view(len(piece), *shape) for piece, shape in zip(pieces, wide, strict=True)]

    def anneal(self, progress: float) -> None:
        """Set the rates that fall, `progress` of the way through training; in place, so that a recorded step sees it."""
        torch.add(self.steady, self.falling, alpha=(1 + math.cos(math.pi * progress)) / 2, out=self.rates)

    def states(self, x: Tensor) -> list[Tensor]:
        """Inputs of every layer and the scores, (V S, rows, width), from rows (V S, rows, in)."""
        found = [x]
        for w, b in zip(self.parameters[::2], self.parameters[1::2], strict=True):
            before = found[-1] if len(found) == 1 else found[-1].relu_()
            found.append(torch.baddbmm(b, before, w.mT))
        return found

    def gradients(self, x: Tensor, targets: Tensor) -> list[Tensor]:
        """Of each network's mean loss on its rows x (V S, rows, in): targets (V S, rows, out) are indicators of labels, or responses."""
        *states, scores = self.states(x)
        pull = scores.softmax(-1).sub_(targets) if self.classes else (scores - targets).mul_(2)
        pull.div_(x.shape[1])
        found: list[Tensor] = []
        for place, state in reversed(list(enumerate(states))):
            found = [pull.mT @ state, pull.sum(1, keepdim=True), *found]
            if place:
                pull = (pull @ self.parameters[2 * place]) * (state > 0)
        return found

    def step(self, rows: Tensor) -> None:
        """One step of every network, on the training rows whose numbers are given, (S, rows)."""
        rows = rows.repeat(self.variants, 1)
        gradients = self.gradients(self.data.x[rows], self.targets[rows])
        self.move.grad = torch.cat([part.flatten(1) for part in gradients], 1)
        self.optimiser.step()
        self.values.addcmul_(self.move, self.rates)
        self.move.zero_()

    def scores(self) -> Tensor:
        """Accuracy on the test rows, or the root mean squared error of real responses, (S, V)."""
        count = self.seeds * self.variants
        total = torch.zeros(count, dtype=torch.float64, device=self.data.x.device)
        for x, y in zip(torch.split(self.data.x_test, _ROWS), torch.split(self.data.y_test, _ROWS), strict=True):
            scores = self.states(x.expand(count, *x.shape))[-1]
            good = scores.argmax(-1) == y if self.classes else (scores[..., 0].double() - y.double()).square()
            total += good.double().sum(-1)
        mean = (total / len(self.data.y_test)).view(self.variants, self.seeds).T
        return mean if self.classes else mean.sqrt()


def train_together(
    networks: Together,
    epochs: int,
    batch: int,
    seeds: Sequence[int],
    after: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Train for so many epochs; `after(epoch, scores)` is called before the first (epoch 0) and after each."""
    if after:
        after(0, networks.scores())
    step, falls = recorded(networks.step, networks.data.x.device), bool(networks.falling.any())
    for epoch in range(1, epochs + 1):
        orders = list(_orders(networks, batch, seeds, epoch))
        for number, rows in enumerate(orders):
            if falls:
                networks.anneal((epoch - 1 + number / len(orders)) / epochs)
            step(rows)
        if after:
            after(epoch, networks.scores())


def epoch_seconds(networks: Together, batch: int) -> float:
    """Wall time of one epoch, evaluation aside, once everything is loaded and recorded."""
    step = recorded(networks.step, networks.data.x.device)
    orders = [list(_orders(networks, batch, range(networks.seeds), epoch)) for epoch in (0, 1)]
    for rows in orders[0][:WARM_UP]:
        step(rows)
    started = clock(networks.data.x)
    for rows in orders[1]:
        step(rows)
    return clock(networks.data.x) - started


def _orders(networks: Together, batch: int, seeds: Sequence[int], epoch: int) -> Iterator[Tensor]:
    """Rows of each batch, (S, batch), drawn on the CPU so that all devices agree; the last one may be smaller."""
    count = len(networks.data.x)
    orders = torch.stack(
        [torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)) for seed in seeds]
    )
    yield from torch.split(orders.to(networks.data.x.device), batch, 1)


def clock(like: Tensor) -> float:
    """Seconds, once all work is done on the device of a tensor."""
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
