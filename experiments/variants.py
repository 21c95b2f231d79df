"""What was tried for the mini-batch trainer and what it gave, on rows held back from the training set; the test sets are not looked at.

`python -m experiments variants`: MNIST 784-300-10 after 5 passes; then, on every set that is found
(LIFTEDNN_DATA), the automatic choices multiplied by factors. One seed, a fifth of the rows held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import liftednn as lnn
from experiments.datasets import NAMES, load, small
from experiments.markdown import table
from experiments.settings import Settings
from experiments.store import Store
from liftednn.blocks import state_problem, update_state
from liftednn.data.sources import source_of
from liftednn.network import LiftedNetwork
from liftednn.training import choices, model
from liftednn.training.batch import XStep, recursion
from liftednn.training.run import Run

PASSES = 5
Patch = Callable[[], Any]


class Split:
    """Rows to train on and rows held back; real responses in units of their deviation."""

    def __init__(self, name: str, rows: int | None = None, quick: bool = False) -> None:
        data = small(load(name), 1000) if quick else load(name)
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(7))[:rows]
        cut = len(order) // 5
        y = data.y if not data.y.is_floating_point() else (data.y - data.y.mean()) / data.y.std()
        self.x, self.y = data.x[order[cut:]], y[order[cut:]]
        self.x_back, self.y_back = data.x[order[:cut]], y[order[:cut]]
        self.outputs, self.loss = (1, "squared") if y.is_floating_point() else (int(y.max()) + 1, "softmax")

    def network(self, hidden: int, lam: float = 1.0, rho: float = 1.0) -> LiftedNetwork:
        """The automatic choice, its lam and rho multiplied."""
        net = LiftedNetwork.mlp([self.x.shape[1], hidden, self.outputs], "fenchel_relu", self.loss)
        first, last = lnn.automatic(net, self.x, self.y).layers
        scaled = [replace(each, penalty=lnn.penalties.L2(rho * (each.penalty.ridge or 0.0))) for each in (first, last)]
        return LiftedNetwork([replace(scaled[0], lam=lam * first.lam), scaled[1]])

    def score(self, net: LiftedNetwork, weights: list[lnn.Affine]) -> float:
        y = net.loss.encode(self.y_back, self.outputs).to(self.x)
        return net.loss.score(lnn.predict.feedforward(net, weights, self.x_back), y)


def own_curvature(
    network: LiftedNetwork, weights: Any, preactivations: Any, probes: Tensor, *others: Any
) -> list[Tensor]:
    """The divergence's own curvature in place of the measured one."""
    return [probes.new_tensor(layer.lam * layer.divergence.curvature) for layer in network.layers]


def exact_states(network: LiftedNetwork, weights: Any, x: Tensor, y: Tensor, *others: Any) -> XStep:
    """The X-step solved (one hidden layer), in place of one step of it."""
    forward, u = recursion(network, weights, x)
    first, last = network.layers
    z = update_state(state_problem(network, weights, [*forward, y], 1), forward[1], 1e-2, 8).states[0]
    u_gradients = [first.lam * first.divergence.grad(u[0], z), last.divergence.grad(u[1], y)]
    inputs = [network.read(number, forward) for number in range(2)]
    return XStep(forward, u, [z], u_gradients, inputs, [None, None])


@contextmanager
def averaged(decay: float = 0.99) -> Iterator[None]:
    """Score an exponential average of the weights."""
    advance, unwhitened = Run._advance, Run.unwhitened_weights
    means: dict[int, Tensor] = {}

    def with_mean(self: Run, *args: Any) -> None:
        advance(self, *args)
        means.setdefault(id(self), self.descent.values.clone()).lerp_(self.descent.values, 1 - decay)

    def mean_weights(self: Run) -> list[lnn.Affine]:
        own = self.descent.values.clone()
        self.descent.values.copy_(means.get(id(self), own))
        found = unwhitened(self)
        self.descent.values.copy_(own)
        return found

    with mock.patch.object(Run, "_advance", with_mean), mock.patch.object(Run, "unwhitened_weights", mean_weights):
        yield


@contextmanager
def rising_lam() -> Iterator[None]:
    """lam from a thirtieth of its value to all of it, over the run."""
    advance = Run._advance

    def rising(self: Run, x: Tensor, y: Tensor, row_weights: Tensor | None, within: int) -> None:
        share = (len(self.monitor.history) + within / (self.per_pass or 1)) / self.settings.passes
        layers = self.coordinates.network.layers
        hidden = [replace(layer, lam=layer.lam * 30 ** (share - 1)) for layer in layers[:-1]]
        assert isinstance(self.descent.model, model.LiftedModel)
        self.descent.model.network = LiftedNetwork([*hidden, layers[-1]])
        advance(self, x, y, row_weights, within)

    with mock.patch.object(Run, "_advance", rising):
        yield


@contextmanager
def constant_step() -> Iterator[None]:
    with mock.patch("liftednn.training.run.math.cos", return_value=1.0):
        yield


@contextmanager
def both() -> Iterator[None]:
    with averaged(), constant_step():
        yield


def patched(name: str, replacement: Any) -> Patch:
    return lambda: mock.patch.object(model, name, replacement)


def nothing() -> Any:
    return nullcontext()


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, float], Patch]] = {
    "as it is": ({}, {}, nothing),
    **{f"lam x {m:g}": ({}, {"lam": m}, nothing) for m in (0.003, 0.03, 0.3, 10.0)},
    **{f"rho x {m:g}": ({}, {"rho": m}, nothing) for m in (0.0, 0.3, 3.0, 10.0)},
    **{f"step {s:g}": ({"step": s}, {}, nothing) for s in (0.0125, 0.025, 0.1, 0.2)},
    **{f"damping {d:g}": ({"damping": d}, {}, nothing) for d in (0.03, 0.3, 3.0, 10.0)},
    **{f"keep {k:g}": ({"keep": k}, {}, nothing) for k in (0.9, 0.98, 1.0)},
    **{f"momentum {m:g}": ({"momentum": m, "step": 0.5 * (1 - m)}, {}, nothing) for m in (0.0, 0.5, 0.95)},
    **{f"batch {b}": ({"batch_size": b}, {}, nothing) for b in (100, 250, 1000)},
    **{f"refresh {r}": ({"refresh": r}, {}, nothing) for r in (10, 250)},
    "lam rising 30 times": ({}, {}, rising_lam),
    "constant step": ({}, {}, constant_step),
    "average of the weights": ({}, {}, averaged),
    "average, constant step": ({}, {}, both),
    "curvature lam c": ({}, {}, patched("curvatures", own_curvature)),
    "curvature lam c, step 1": ({"step": 1.0}, {}, patched("curvatures", own_curvature)),
    "X-step solved": ({}, {}, patched("x_step", exact_states)),
    "X-step solved, lam x 0.03": ({}, {"lam": 0.03}, patched("x_step", exact_states)),
}


def try_variant(split: Split, name: str, hidden: int, passes: int) -> dict[str, Any]:
    settings, factors, patch = VARIANTS[name]
    net = split.network(hidden, **factors)
    started = time.perf_counter()
    with patch(), torch.no_grad():
        run = Run(lnn.MiniBatch(**{"passes": passes, **settings}), net, source_of(split.x, split.y))
        scores = [split.score(net, run.unwhitened_weights()) for _ in run.passes()]
    return {
        "variant": name,
        "pass 1": scores[0],
        f"pass {passes}": scores[-1],
        "seconds": time.perf_counter() - started,
        "halved": run.rate.halved,
    }


def try_set(split: Split, name: str, passes: int) -> dict[str, Any]:
    """The automatic rho, damping and step, each multiplied; score on the rows held back."""
    damping = choices.damping(len(split.x), split.x.shape[1])
    row: dict[str, Any] = {"set": name, "rows": len(split.x), "automatic": _last(split, passes, 1.0)}
    row |= {f"rho x {m:g}": _last(split, passes, m) for m in (0.1, 10.0)}
    row |= {f"damping x {m:g}": _last(split, passes, 1.0, damping=m * damping) for m in (0.1, 10.0)}
    return row | {f"step x {m:g}": _last(split, passes, 1.0, step=m * lnn.MiniBatch.step) for m in (0.5, 2.0)}


def _last(split: Split, passes: int, rho: float, **settings: Any) -> float:
    net = split.network(100, rho=rho)
    return split.score(net, lnn.MiniBatch(passes=passes, **settings).run(net, split.x, split.y).weights)


def compute_sets(store: Store, sets: Sequence[tuple[str, int | None]], passes: int, quick: bool) -> None:
    """All sets that are found and not too large."""
    for name, rows in sets:
        try:
            split = Split(name, rows, quick)
        except FileNotFoundError as error:
            store.tell(f"left out: {error}")
            continue
        if len(split.x) * split.x.shape[1] <= 10_000_000:
            store(partial(try_set, split, name, passes), task="sets", set=name, rows=len(split.x))


def run(settings: Settings) -> None:
    store, quick = settings.store("variants"), settings.quick
    split = Split("mnist", 200 if quick else None, quick)
    for name in VARIANTS:
        work = partial(try_variant, split, name, 20 if quick else 300, 2 if quick else PASSES)
        store(work, task="variants", variant=name)
    title = f"MNIST, 784-300-10, accuracy on {len(split.x_back)} rows held back"
    table(title, store.values(task="variants"))
    sets: list[tuple[str, int | None]] = [("mnist", 1250), ("mnist", 6250), *((name, None) for name in NAMES)]
    compute_sets(store, [("mnist", 200)] if quick else sets, 1 if quick else 20, quick)
    table("accuracy or R^2 on the rows held back, 100 hidden units, 20 passes", store.values(task="sets"))
