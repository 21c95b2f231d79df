"""One pass over MNIST, 784-300-10, on a GPU: mini-batch lifted training against Adam at the same batch size, both as CUDA graphs.

Products in float32, in TF32, and with operands rounded to bfloat16. `python -m benchmarks.gpu`
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import liftednn as lnn
from benchmarks.methods import GradientStep, Task
from benchmarks.report import store, table
from benchmarks.sweep import seconds
from liftednn.data.sources import source_of
from liftednn.experiments.datasets import Dataset, mnist
from liftednn.runtime.graphs import recorded
from liftednn.training.run import Run

SIZES, BATCHES, TURNS, PASSES = [784, 300, 10], (500, 250), 7, 17


@dataclass(frozen=True)
class HalfDense(lnn.operators.Dense):
    """A dense layer whose products take operands in bfloat16."""

    def forward(self, xs: Sequence[Tensor], weights: lnn.Affine) -> Tensor:
        return (xs[0].bfloat16() @ weights.w.T.bfloat16()).float() + weights.b

    def adjoint(self, r: Tensor, weights: lnn.Affine, index: int = 0) -> Tensor:
        return (r.bfloat16() @ weights.w.bfloat16()).float()


def network(data: Dataset, half: bool) -> lnn.LiftedNetwork:
    chosen = lnn.automatic(lnn.LiftedNetwork.mlp(SIZES, activation="fenchel_relu"), data.x, data.y)
    if not half:
        return chosen
    pairs = zip(chosen.layers, pairwise(SIZES), strict=True)
    return lnn.LiftedNetwork([replace(layer, operator=HalfDense(p, q)) for layer, (p, q) in pairs])


def adam(data: Dataset, batch: int) -> Callable[[], None]:
    """A pass of the standard network under Adam (fused), its step a CUDA graph."""
    settings = {"method": "adam", "rate": 1e-3, "batch": batch, "cosine": False}
    step = GradientStep(Task(data.x, data.y, tuple(SIZES), PASSES, 0, settings))

    def one_pass() -> None:
        for rows in torch.split(torch.randperm(len(data.x), device="cuda"), batch):
            step(data.x.index_select(0, rows), data.y.index_select(0, rows), 1e-3)

    return one_pass


def ours(data: Dataset, net: lnn.LiftedNetwork, batch: int) -> Run:
    with torch.no_grad():
        return Run(lnn.MiniBatch(passes=PASSES, batch_size=batch), net, source_of(data.x, data.y))


def engines(data: Dataset, batch: int) -> dict[str, Any]:
    """Milliseconds of a pass by how a step is run; fused means: element-wise work compiled into kernels of its own."""
    net = network(data, half=False)
    found: dict[str, Any] = {"batch": batch}
    for engine in ("plain", "CUDA graph", "fused", "fused, CUDA graph"):
        run = ours(data, net, batch)
        if "fused" in engine:
            setattr(run.descent, "step", torch.compile(run.descent.step))  # noqa: B010
        run.step = recorded(run.descent.step, data.x.device) if "graph" in engine else run.descent.step
        passes = run.passes()
        with torch.no_grad():
            next(passes)
            found[engine] = 1e3 * statistics.median(seconds(partial(next, passes), "cuda") for _ in range(TURNS))
    return found


def measure(data: Dataset, batch: int, precision: str) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    net = network(data, precision == "bfloat16")
    fit = lnn.MiniBatch(passes=PASSES, batch_size=batch).run(net, data.x, data.y)
    run, other = ours(data, net, batch), adam(data, batch)
    passes = run.passes()
    next(passes)
    other()
    times = [(seconds(lambda: next(passes), "cuda"), seconds(other, "cuda")) for _ in range(TURNS)]
    a = torch.randn(8192, 8192, device="cuda")
    seconds(lambda: a @ a, "cuda")
    peak = 2 * 8192**3 / min(seconds(lambda: a @ a, "cuda") for _ in range(3))
    width = run.descent.network.in_width
    work = len(data.x) * (4 * width * 300 + 6 * 300 * 10)
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


def main() -> None:
    data = mnist("cuda")
    rows = []
    for batch in BATCHES:
        for precision in ("float32", "tf32", "bfloat16"):
            rows.append(measure(data, batch, precision))
            print(f"measured {precision} at batch {batch}", flush=True)
    table(f"a pass over MNIST, 784-300-10, medians of {TURNS}; test accuracy after {PASSES} passes", rows)
    store("training-gpu", rows)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = [engines(data, batch) for batch in BATCHES]
    table("ways to run a step: ms for a pass", rows)
    store("training-gpu-engines", rows)


if __name__ == "__main__":
    main()
