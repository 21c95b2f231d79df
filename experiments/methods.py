"""The methods of the training benchmark, each a generator that yields a scoring rule x -> (n, classes) after every pass.

Setting up counts as part of the first pass. The opponents are written as their users would write them; on a GPU their step, as ours,
is recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import liftednn as lnn
from experiments import peers
from experiments.interrupts import interruptible
from liftednn.data.sources import source_of
from liftednn.runtime.graphs import recorded
from liftednn.training.run import Run

Scorer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """Rows and labels to learn from, the widths of the network, passes at most, a seed, and a method's own settings."""

    x: Tensor
    y: Tensor
    sizes: tuple[int, ...]
    passes: int
    seed: int
    settings: Mapping[str, Any]


def minibatch(task: Task) -> Iterator[Scorer]:
    """Ours. Batch size and step may be set; all else is automatic."""
    with torch.no_grad():
        network = lnn.LiftedNetwork.mlp(task.sizes, activation="fenchel_relu")
        network = lnn.automatic(network, task.x, task.y, task.seed)
        step, batch = task.settings.get("step", lnn.MiniBatch.step), task.settings.get("batch")
        trainer = lnn.MiniBatch(passes=task.passes, seed=task.seed, step=step, batch_size=batch)
        run = Run(trainer, network, source_of(task.x, task.y))
        for _ in run.passes():
            yield _lifted(network, run.unwhitened_weights())


def full_batch(task: Task) -> Iterator[Scorer]:
    """Ours, exact blocks on all rows; the first to be yielded is pass 0, random hidden layers with a fitted last layer."""
    with torch.no_grad():
        network = lnn.LiftedNetwork.mlp(
            task.sizes, activation="fenchel_relu", lam=task.settings["lam"], rho=task.settings["rho"]
        )
        bcd = lnn.BCD(seed=task.seed)
        state = bcd.init(network, task.x, task.y)
        yield _lifted(network, state.weights)
        for _ in range(task.passes):
            for _ in bcd.blocks(network, state):
                pass
            yield _lifted(network, state.weights)


def _lifted(network: lnn.LiftedNetwork, weights: list[lnn.Affine]) -> Scorer:
    return lambda x: lnn.predict.feedforward(network, weights, x)


def gradient(task: Task) -> Iterator[Scorer]:
    """Adam or SGD with momentum on the mean cross-entropy, He weights; settings: method, rate, batch, cosine."""
    step = GradientStep(task)
    batch = task.settings["batch"]
    steps = task.passes * math.ceil(len(task.x) / batch)
    taken = 0
    for _ in range(task.passes):
        for rows in torch.split(torch.randperm(len(task.x)).to(task.x.device), batch):
            decay = (1 + math.cos(math.pi * taken / steps)) / 2 if task.settings["cosine"] else 1.0
            step(task.x.index_select(0, rows), task.y.index_select(0, rows), task.settings["rate"] * decay)
            taken += 1
        yield step.module


class GradientStep:
    """A standard network and its optimiser; a call takes one step, on a GPU as a recorded graph from the fourth on."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(task.seed)
        self.module = standard(task.sizes).to(task.x.device)
        cuda = task.x.is_cuda
        rate = torch.tensor(0.0, device=task.x.device) if cuda else 0.0
        parameters = self.module.parameters()
        if task.settings["method"] == "adam":
            adam = torch.optim.Adam(parameters, rate, fused=True, capturable=cuda)
            self.optimiser: torch.optim.Optimizer = adam
        else:
            self.optimiser = torch.optim.SGD(parameters, rate, momentum=0.9, nesterov=True, fused=True)
        self.step = recorded(self._plain, task.x.device)

    def __call__(self, x: Tensor, y: Tensor, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.step(x, y)

    def _plain(self, x: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.module(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()


def standard(sizes: tuple[int, ...]) -> nn.Sequential:
    """He weights and zero biases, ReLU between."""
    layers: list[nn.Module] = []
    for p, q in pairwise(sizes):
        linear = nn.Linear(p, q)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lbfgs(task: Task) -> Iterator[Scorer]:
    """L-BFGS with a strong-Wolfe line search on all rows; yields after every tenth evaluation of loss and gradient, or so."""
    torch.manual_seed(task.seed)
    module = standard(task.sizes).to(task.x.device)
    optimiser = torch.optim.LBFGS(
        module.parameters(), 1.0, max_iter=1000, max_eval=10, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(task.x), task.y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(task.passes):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        yield module


def scikit(task: Task) -> Iterator[Scorer]:
    """scikit-learn's MLPClassifier at its defaults, a pass at a time; on the CPU."""
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(task.sizes[1:-1], random_state=task.seed)
    x, y, classes = task.x.cpu().numpy(), task.y.cpu().numpy(), list(range(task.sizes[-1]))
    for _ in range(task.passes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with interruptible():
                model.partial_fit(x, y, classes=classes)
        yield lambda x: torch.from_numpy(model.predict_proba(x.cpu().numpy())).to(x.device)


def peer(task: Task) -> Iterator[Scorer]:
    """LPOM or Zeng's three-splitting descent (experiments/peers.py), by `settings["method"]`."""
    from queue import Queue
    from threading import Thread

    # The peers call back; a thread turns that into a generator, one pass at a time.
    passed: Queue[list[lnn.Affine] | BaseException | None] = Queue(1)
    go: Queue[None] = Queue(1)

    def after_pass(weights: list[lnn.Affine]) -> None:
        passed.put([lnn.Affine(w.clone(), b.clone()) for w, b in weights])
        go.get()

    def work() -> None:
        options = {key: value for key, value in task.settings.items() if key != "method"}
        train: Callable[..., object] = peers.lpom if task.settings["method"] == "lpom" else peers.three_splitting
        try:
            train(task.x, task.y, list(task.sizes), task.passes, task.seed, callback=after_pass, **options)
        except BaseException as error:
            passed.put(error)
        else:
            passed.put(None)

    network = lnn.LiftedNetwork.mlp(task.sizes, activation="fenchel_relu")
    Thread(target=work, daemon=True).start()
    while (weights := passed.get()) is not None:
        if isinstance(weights, BaseException):
            raise weights
        yield _lifted(network, weights)
        go.put(None)
