"""The lifted model of the convolutional networks in image_models.py, trained by mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import liftednn as lnn
from experiments.image_training import Task
from experiments.methods import Scorer
from liftednn import Layer, LiftedNetwork
from liftednn.activations import FenchelReLU, Pooled
from liftednn.losses import SoftmaxCrossEntropy
from liftednn.operators import Conv2d, Dense, Sum
from liftednn.predict import feedforward
from liftednn.training.run import Run

__all__ = ["automatic", "lifted", "lifted_network", "trained"]

_ROWS = 2000  # images scored at a time
Spec = int | str | tuple[str, int] | tuple[str, int, int]


def lifted_network(name: str, divide: int = 1) -> LiftedNetwork:
    """A network of image_models.NETWORKS as a lifted one."""
    if name == "LeNet":
        a, b, c = (width // divide for width in (20, 50, 500))
        small: list[Spec] = [("conv", a, 5), "maxpool", ("conv", b, 5), "maxpool", ("dense", c)]
        return LiftedNetwork.cnn((1, 28, 28), small, 10, "fenchel_relu")
    a, b, c = (width // divide for width in (64, 128, 256))
    if name == "six convolutions":
        layers: list[Spec] = [a, a, "maxpool", b, b, "maxpool", c, c, "maxpool", ("dense", c)]
        return LiftedNetwork.cnn((3, 32, 32), layers, 10, "fenchel_relu")
    return LiftedNetwork(
        [
            _convolution(3, a, 32),
            _convolution(a, b, 32, pool=2, name="before"),
            _convolution(b, b, 16),
            _sum(b, 16, ("x3", "before")),
            _convolution(b, c, 16, pool=2),
            _convolution(c, c, 8, pool=2, name="later"),
            _convolution(c, c, 4),
            _sum(c, 4, ("x7", "later"), pool=4),
            Layer(Dense(c, 10), SoftmaxCrossEntropy()),
        ]
    )


def _convolution(p: int, q: int, size: int, pool: int = 1, name: str = "") -> Layer:
    return Layer(Conv2d((p, size, size), q, 3, padding=1), _activation(q, size, pool), name=name)


def _sum(width: int, size: int, reads: tuple[str, str], pool: int = 1) -> Layer:
    """A convolution of the first state plus the second state."""
    return Layer(Sum(Conv2d((width, size, size), width, 3, padding=1)), _activation(width, size, pool), reads=reads)


def _activation(width: int, size: int, pool: int) -> FenchelReLU | Pooled:
    return FenchelReLU() if pool == 1 else Pooled(FenchelReLU(), (width, size, size), pool)


def lifted(task: Task) -> Iterator[Scorer]:
    """All settings automatic."""
    return trained(task, automatic(task))


def automatic(task: Task) -> LiftedNetwork:
    """The network of a task with lam and rho chosen from its images."""
    return lnn.automatic(lifted_network(task.network, task.divide), task.x, task.images.y, seed=task.seed)


def trained(task: Task, network: LiftedNetwork) -> Iterator[Scorer]:
    """By mini-batches, with the passes, batches and seed of a task."""
    trainer = lnn.MiniBatch(passes=task.passes, batch_size=task.batch, seed=task.seed)
    with torch.no_grad():
        run = Run(trainer, network, task.images)
        for _ in run.passes():
            weights = run.unwhitened_weights()
            yield partial(_scores, run.network, weights)


def _scores(network: LiftedNetwork, weights: list[lnn.Affine], x: Tensor) -> Tensor:
    return torch.cat([feedforward(network, weights, part) for part in torch.split(x, _ROWS)])
