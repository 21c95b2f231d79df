"""One pass over MNIST, 784-300-10, on a GPU: mini-batch lifted training against Adam at the same batch size, both as CUDA graphs.

Products in float32, in TF32, and with operands rounded to bfloat16. `python -m experiments gpu --device cuda`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

import liftednn as lnn
from experiments.datasets import Dataset, mnist, small
from experiments.full_pass import seconds
from experiments.markdown import table
from experiments.methods import GradientStep, Task
from experiments.settings import Settings
from liftednn.data.sources import source_of
from liftednn.runtime.graphs import Streams, recorded
from liftednn.training.run import Run

TAKES = ("device",)
BATCHES, TURNS, PRODUCTS = (500, 250), 7, ("float32", "tf32", "bfloat16")


class Size(NamedTuple):
    """Hidden units, passes of a training, turns of a measurement, and the width of the matrix whose product is the peak."""

    hidden: int = 300
    passes: int = 17
    turns: int = TURNS
    width: int = 8192


@dataclass(frozen=True)
class HalfDense(lnn.operators.Dense):
    """A dense layer whose products take operands in bfloat16."""

    def forward(self, xs: Sequence[Tensor], weights: lnn.Affine) -> Tensor:
        return (xs[0].bfloat16() @ weights.w.T.bfloat16()).float() + weights.b

    def adjoint(self, r: Tensor, weights: lnn.Affine, index: int = 0) -> Tensor:
        return (r.bfloat16() @ weights.w.bfloat16()).float()


def network(data: Dataset, half: bool, hidden: int) -> lnn.LiftedNetwork:
    sizes = [data.x.shape[1], hidden, 10]
    chosen = lnn.automatic(lnn.LiftedNetwork.mlp(sizes, activation="fenchel_relu"), data.x, data.y)
    if not half:
        return chosen
    pairs = zip(chosen.layers, pairwise(sizes), strict=True)
    return lnn.LiftedNetwork([replace(layer, operator=HalfDense(p, q)) for layer, (p, q) in pairs])


def adam(data: Dataset, batch: int, size: Size) -> Callable[[], None]:
    """A pass of the standard network under Adam (fused), its step a CUDA graph."""
    settings = {"method": "adam", "rate": 1e-3, "batch": batch, "cosine": False}
    step = GradientStep(Task(data.x, data.y, (data.x.shape[1], size.hidden, 10), size.passes, 0, settings))

    def one_pass() -> None:
        for rows in torch.split(torch.randperm(len(data.x), device=data.x.device), batch):
            step(data.x.index_select(0, rows), data.y.index_select(0, rows), 1e-3)

    return one_pass


def ours(data: Dataset, net: lnn.LiftedNetwork, batch: int, passes: int) -> Run:
    with torch.no_grad():
        return Run(lnn.MiniBatch(passes=passes, batch_size=batch), net, source_of(data.x, data.y))


@contextmanager
def streams_uncompiled() -> Iterator[None]:
    """torch.compile skips how streams wait for each other, on which it fails in torch 2.11, and compiles what runs on them."""
    with ExitStack() as stack:
        for name, deep in (("begin", True), ("run", False), ("__exit__", True)):
            stack.enter_context(
                patch.object(Streams, name, torch.compiler.disable(getattr(Streams, name), recursive=deep))  # type: ignore[no-untyped-call]
            )
        yield


def engines(data: Dataset, batch: int, size: Size) -> dict[str, Any]:
    """Milliseconds of a pass by how a step is run; fused means: element-wise work compiled into kernels of its own."""
    net, device = network(data, False, size.hidden), data.x.device.type
    found: dict[str, Any] = {"batch": batch}
    # Without a GPU there is no graph to record, and nothing that is worth compiling.
    names = ("plain", "CUDA graph", "fused", "fused, CUDA graph") if data.x.is_cuda else ("plain",)
    for engine in names:
        run = ours(data, net, batch, size.passes)
        if "fused" in engine:
            setattr(run.descent, "step", torch.compile(run.descent.step))  # noqa: B010
        run.step = recorded(run.descent.step, data.x.device) if "graph" in engine else run.descent.step
        passes = run.passes()
        with torch.no_grad(), streams_uncompiled():
            next(passes)
            found[engine] = 1e3 * statistics.median(seconds(partial(next, passes), device) for _ in range(size.turns))
    return found


def measure(data: Dataset, batch: int, precision: str, size: Size) -> dict[str, Any]:
    device, hidden = data.x.device.type, size.hidden
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    net = network(data, precision == "bfloat16", hidden)
    fit = lnn.MiniBatch(passes=size.passes, batch_size=batch).run(net, data.x, data.y)
    run, other = ours(data, net, batch, size.passes), adam(data, batch, size)
    passes = run.passes()
    next(passes)
    other()
    times = [(seconds(lambda: next(passes), device), seconds(other, device)) for _ in range(size.turns)]
    a = torch.randn(size.width, size.width, device=device)
    seconds(lambda: a @ a, device)
    peak = 2 * size.width**3 / min(seconds(lambda: a @ a, device) for _ in range(3))
    torch.backends.cuda.matmul.allow_tf32 = False
    width = run.descent.network.in_width
    work = len(data.x) * (4 * width * hidden + 6 * hidden * 10)
    mine, his = (statistics.median(side) for side in zip(*times, strict=True))
    return {
        "batch": batch,
        "products": precision,
        "ours_ms": 1e3 * mine,
        "adam_ms": 1e3 * his,
        "ours_over_adam": mine / his,
        "first_pass_ms": 1e3 * fit.history[0].seconds,
        "share_of_peak": work / mine / peak,
        "test_accuracy": score(net, fit.weights, data),
    }


def score(net: lnn.LiftedNetwork, weights: list[lnn.Affine], data: Dataset) -> float:
    return float((lnn.predict.feedforward(net, weights, data.x_test).argmax(1) == data.y_test).double().mean())


def run(settings: Settings) -> None:
    if settings.device != "cuda" and not settings.quick:
        raise ValueError("gpu measures a GPU: add --device cuda")
    store, data, size = settings.store("gpu"), mnist(settings.device), Size(20, 3, 1, 256) if settings.quick else Size()
    if settings.quick:
        data = small(data, 200)
    for batch, precision in product(
        (100,) if settings.quick else BATCHES, PRODUCTS[: None if settings.device == "cuda" else 2]
    ):
        store(partial(measure, data, batch, precision, size), task="products", batch=batch, products=precision)
        store(partial(engines, data, batch, size), task="engines", batch=batch)
    title = f"a pass over MNIST, 784-300-10, medians of {size.turns}; test accuracy after {size.passes} passes"
    table(title, store.values(task="products"))
    table("ways to run a step: ms for a pass", store.values(task="engines"))
