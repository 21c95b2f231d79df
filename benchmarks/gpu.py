"""One pass over MNIST, 784-300-10, on a GPU: mini-batch lifted training against Adam at the same batch size, both as CUDA graphs.

Products in float32, in TF32, and with operands rounded to bfloat16. `python -m benchmarks.gpu`
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import liftednn as lnn
from benchmarks.report import store, table
from benchmarks.sweep import seconds
from liftednn.experiments.datasets import Dataset, mnist
from liftednn.minibatch import Run
from liftednn.sources import source_of

SIZES, BATCHES, TURNS, PASSES = [784, 300, 10], (500, 250), 7, 17


@dataclass(frozen=True)
class HalfDense(lnn.operators.Dense):
    """A dense layer whose products take operands in bfloat16."""

    def forward(self, x: Tensor, weights: lnn.Affine) -> Tensor:
        return (x.bfloat16() @ weights.w.T.bfloat16()).float() + weights.b

    def adjoint(self, r: Tensor, weights: lnn.Affine) -> Tensor:
        return (r.bfloat16() @ weights.w.bfloat16()).float()


def network(data: Dataset, half: bool) -> lnn.LiftedNetwork:
    chosen = lnn.automatic(lnn.LiftedNetwork.mlp(SIZES, activation="fenchel_relu"), data.x, data.y)
    if not half:
        return chosen
    pairs = zip(chosen.layers, pairwise(SIZES), strict=True)
    return lnn.LiftedNetwork([replace(layer, operator=HalfDense(p, q)) for layer, (p, q) in pairs])


class Adam:
    """The standard network under Adam (fused), a step recorded as a CUDA graph and replayed."""

    def __init__(self, data: Dataset, batch: int) -> None:
        self.data, self.batch = data, batch
        layers: list[nn.Module] = [nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10)]
        self.module = nn.Sequential(*layers).cuda()
        self.optimiser = torch.optim.Adam(self.module.parameters(), 1e-3, fused=True, capturable=True)
        self.x, self.y = data.x[:batch].clone(), data.y[:batch].clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.module(self.x), self.y).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def __call__(self) -> None:
        for rows in torch.split(torch.randperm(len(self.data.x), device="cuda"), self.batch):
            self.x.copy_(self.data.x.index_select(0, rows))
            self.y.copy_(self.data.y.index_select(0, rows))
            self.graph.replay()


def measure(data: Dataset, batch: int, precision: str) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    net = network(data, precision == "bfloat16")
    trainer = lnn.MiniBatch(max_iter=PASSES, batch_size=batch)
    fit = trainer.run(net, data.x, data.y)
    with torch.no_grad():
        run = Run(trainer, net, source_of(data.x, data.y))
    passes, adam = run.passes(), Adam(data, batch)
    next(passes)
    adam()
    ours, theirs = [], []
    for _ in range(TURNS):
        ours.append(seconds(lambda: next(passes), "cuda"))
        theirs.append(seconds(adam, "cuda"))
    a = torch.randn(8192, 8192, device="cuda")
    seconds(lambda: a @ a, "cuda")
    peak = 2 * 8192**3 / min(seconds(lambda: a @ a, "cuda") for _ in range(3))
    width = run.descent.network.layers[0].operator.in_width
    work = len(data.x) * (4 * width * 300 + 6 * 300 * 10)
    mine, his = statistics.median(ours), statistics.median(theirs)
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


if __name__ == "__main__":
    main()
