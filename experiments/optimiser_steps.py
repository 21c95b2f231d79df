"""Training by any of the methods of the experiment `optimisers`: a step, and a whole run with its scores and seconds.

Ours, SGD, AdamW and Muon are recorded as CUDA graphs on a GPU, except on nn.LSTM; all others run as their users run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn

import liftednn as lnn
from experiments.batched import clock
from experiments.image_models import layers_of
from experiments.image_training import REST_RATE, Step, adamw, cosine, optimisers, rate_of, share_of_rate
from experiments.optimiser_peers import FOOF, ISAAC, KFAC, Preconditioned
from experiments.optimiser_tasks import LIFTED, METHODS, Problem, TaskKind, score, worst
from experiments.optimiser_variants import VARIANTS

__all__ = ["RECORDED", "available", "missing", "pass_seconds", "step_of", "train"]

RECORDED = (LIFTED, "SGD", "AdamW", "Muon")
PEERS: dict[str, type[Preconditioned]] = {"K-FAC": KFAC, "FOOF": FOOF, "ISAAC": ISAAC}
_PACKAGES = {"SOAP": "pytorch_optimizer"}
# Steps before a pass is timed, and those that are timed: a multiple of the steps between refreshes, 60, 20 or 10.
_BEFORE, _TURNS = 25, 60

Pairs = Sequence[tuple[torch.optim.Optimizer, float]]


def missing() -> list[str]:
    """A line for each method whose package is not installed."""
    absent = {name: package for name, package in _PACKAGES.items() if find_spec(package) is None}
    return [f"{name} is left out: pip install {package} to compare with it" for name, package in absent.items()]


def available(names: Sequence[str] = METHODS) -> list[str]:
    """Those whose packages are installed."""
    return [name for name in names if name not in _PACKAGES or find_spec(_PACKAGES[name])]


class _Loss:
    """The criterion of a task on a module's outputs, which are of bfloat16 on a GPU where the task says so; then peers measure."""

    def __init__(self, kind: TaskKind, criterion: nn.Module, pairs: Pairs) -> None:
        self.kind, self.criterion = kind, criterion
        self.measured = [each for each, _ in pairs if isinstance(each, Preconditioned)]

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        # Without the cache of weights in bfloat16: a graph must not keep what a plain step has made.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.kind.half and x.is_cuda, cache_enabled=False):
            outputs: Tensor = module(x)
        outputs = outputs.float()
        for each in self.measured:
            each.measure(outputs, self.criterion, len(x))
        loss: Tensor = self.criterion(outputs, y if self.kind.regresses else y.flatten())
        return loss


def step_of(method: str, kind: TaskKind, module: nn.Module, settings: Mapping[str, Any], record: bool = True) -> Step:
    """A step of a method with its settings: rate, decay and, for some, damping."""
    criterion = kind.criterion
    pairs = _pairs(method, module, criterion, settings)
    record = record and method in RECORDED and not any(isinstance(each, nn.LSTM) for each in module.modules())
    if not record:  # rates are numbers, as in most loops
        for group in (group for optimiser, _ in pairs for group in optimiser.param_groups):
            group["lr"] = float(group["lr"])
    return Step(module, pairs, _Loss(kind, criterion, pairs), record)


def _pairs(method: str, module: nn.Module, criterion: nn.Module, settings: Mapping[str, Any]) -> Pairs:
    """Optimisers, each with its largest rate."""
    if method in (LIFTED, *VARIANTS):
        own = VARIANTS.get(method, lnn.optim.Lifted)(module, criterion)
        rate = float(own.defaults["lr"])
        for group in own.param_groups:
            group["lr"] = rate_of(group["params"][0])
        return [(own, rate)]
    if method == "SOAP":
        from pytorch_optimizer import SOAP

        rate = settings["rate"]
        return [(SOAP(list(module.parameters()), lr=rate, weight_decay=settings["decay"]), rate)]
    if method not in PEERS:
        return optimisers(module, {**settings, "method": method})
    layers = layers_of(module)
    peer = PEERS[method](layers, settings["decay"], settings["damping"])
    held = {id(parameter) for layer in layers for parameter in layer.parameters()}
    rest = [parameter for parameter in module.parameters() if id(parameter) not in held]
    return [(peer, settings["rate"]), *([(adamw(rest, 0.0), REST_RATE)] if rest else [])]


def train(method: str, problem: Problem, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Scores after each pass; a diverged run has the worst score from there on."""
    source, kind = problem.source, problem.kind
    steps = problem.passes * source.steps(problem.batch)
    share = cosine if method in (LIFTED, *VARIANTS) else share_of_rate  # ours needs no warm-up
    scores: list[float] = []
    step = step_of(method, kind, problem.module(), settings)
    for number in range(problem.passes):
        finite = _one_pass(step, problem, number, lambda taken: share(taken, steps))
        if not finite or not _finite(step.module):
            break
        scores.append(score(kind, step.module, problem.data))
    scores += [worst(kind)] * (problem.passes - len(scores))
    return {"score": scores, "settings": dict(settings)}


def pass_seconds(method: str, problem: Problem, settings: Mapping[str, Any]) -> float:
    """Of one pass, with its batches and refreshes, from the steps behind the first, which load and record what is needed."""
    source = problem.source
    step, started = step_of(method, problem.kind, problem.module(), settings), 0.0
    passes = (source.batches(problem.batch, problem.seed, number) for number in count())
    for turn, (x, y, _) in enumerate(islice(chain.from_iterable(passes), _BEFORE + _TURNS)):
        if turn == _BEFORE:
            started = clock(source.x)
        step(x, y, 1.0)
    return (clock(source.x) - started) / _TURNS * source.steps(problem.batch)


def _one_pass(step: Step, problem: Problem, number: int, share: Callable[[int], float]) -> bool:
    """False where a matrix has become singular or infinite."""
    first = number * problem.source.steps(problem.batch)
    try:
        for taken, (x, y, _) in enumerate(problem.source.batches(problem.batch, problem.seed, number), first):
            step(x, y, share(taken))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return False
    return True


def _finite(module: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in module.parameters())
