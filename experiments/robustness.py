"""Does `liftednn.optim.Lifted` at its defaults hold in any training loop? Small networks in many loops, against AdamW at 3e-3.

`python -m experiments robustness --workers 2` crosses six networks, seven losses, a constant rate and a cosine, and batches of 2, 16 and
128 rows, with the criterion given to `Lifted` and without; then it disturbs some of these loops: the loss times 1e-4 or 1e4, a first batch
whose rows are all alike, rows a thousand times as large, clipped gradients, calls of the module for logging. A loop counts where AdamW
learns: where it ends below .8 of the loss of the best constant. `Lifted` has collapsed where it gains less than a tenth of AdamW's gain.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from experiments.markdown import table
from experiments.settings import Settings
from experiments.store import Fields, Record, Store
from experiments.workers import Job, fill
from liftednn.optim import Lifted

TAKES = ("workers", "only")
METHODS = ("AdamW", "lifted")
BATCHES = (2, 16, 128)
STEPS = 600
_ROWS, _TEST, _LOGGED = 4096, 1000, 10
_ADAM_RATE = 3e-3
# AdamW learns where its loss ends below this share of a constant's; Lifted has collapsed below this share of AdamW's gain.
_LEARNS, _COLLAPSED, _LEVEL = 0.8, 0.1, 1.05
_OUTPUTS = 4


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return x + branch


class _Last(nn.Module):
    """The last state of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(4, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrence(x)[0][:, -1]  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """The mean over tokens of two blocks of attention."""

    def __init__(self) -> None:
        super().__init__()
        block = partial(nn.TransformerEncoderLayer, 32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.places = nn.Parameter(0.1 * torch.randn(8, 32))
        self.embed, self.blocks = nn.Linear(4, 32), nn.Sequential(block(), block())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.embed(x) + self.places).mean(1)  # type: ignore[no-any-return]


def _dense(k: int) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, k))


def _deep(k: int) -> nn.Module:
    layers = [part for p in (10, 32, 32, 32, 32) for part in (nn.Linear(p, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, k))


def _convolution(k: int) -> nn.Module:
    layers = [part for p, q in ((1, 16), (16, 16)) for part in (nn.Conv2d(p, q, 3), nn.BatchNorm2d(q), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, k))


# Each with the shape of an input.
NETS: dict[str, tuple[tuple[int, ...], Callable[[int], nn.Module]]] = {
    "dense": ((10,), _dense),
    "deep tanh": ((10,), _deep),
    "residual": (
        (10,),
        lambda k: nn.Sequential(nn.Linear(10, 48), _Residual(48), _Residual(48), nn.LayerNorm(48), nn.Linear(48, k)),
    ),
    "convolution": ((1, 8, 8), _convolution),
    "attention": ((8, 4), lambda k: nn.Sequential(_Attention(), nn.Linear(32, k))),
    "recurrent": ((8, 4), lambda k: nn.Sequential(_Last(), nn.Linear(32, k))),
}


def _poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood less that of rates equal to the counts."""
    return fn.poisson_nll_loss(outputs, y) - (y - torch.xlogy(y, y)).mean()


def _focal(outputs: Tensor, y: Tensor) -> Tensor:
    log_p = outputs.log_softmax(1).gather(1, y[:, None])[:, 0]
    return -((1 - log_p.exp()).square() * log_p).mean()


class Loss(NamedTuple):
    """A function, the outputs it takes, the responses it is for, and the criterion that `Lifted` can be given."""

    function: Callable[[Tensor, Tensor], Tensor]
    outputs: int
    responses: str
    criterion: nn.Module | None = None


LOSSES = {
    "cross-entropy": Loss(fn.cross_entropy, _OUTPUTS, "labels", nn.CrossEntropyLoss()),
    "squared": Loss(fn.mse_loss, 1, "real", nn.MSELoss()),
    "binary": Loss(fn.binary_cross_entropy_with_logits, 1, "bits", nn.BCEWithLogitsLoss()),
    "Huber": Loss(fn.huber_loss, 1, "real", nn.HuberLoss()),
    "Poisson": Loss(_poisson, 1, "counts"),
    "focal": Loss(_focal, _OUTPUTS, "labels"),
    "absolute": Loss(fn.l1_loss, 1, "real"),
}
# What disturbs a loop, and the losses and batches that are tried.
DISTURBED = ("loss 1e-4", "loss 1e4", "first batch alike", "outliers", "clipped", "logging")
DISTURBED_LOSSES, DISTURBED_BATCH = ("cross-entropy", "squared", "Poisson"), 16


@dataclass(frozen=True)
class Loop:
    """A network, a loss, whether the criterion is given, the schedule, rows of a batch, and what disturbs it."""

    net: str
    loss: str
    given: bool
    cosine: bool
    batch: int
    disturbed: str = ""

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return NETS[self.net][1](LOSSES[self.loss].outputs)

    def data(self) -> tuple[Tensor, Tensor]:
        """Rows, and responses: a step and a product of projections, and noise."""
        generator = torch.Generator().manual_seed(1)
        shape = NETS[self.net][0]
        x = torch.randn(_ROWS + _TEST, *shape, generator=generator)
        flat = x.flatten(1)
        a, b, c = (flat @ torch.randn(flat.shape[1], 3, generator=generator) / math.sqrt(flat.shape[1])).unbind(1)
        real = torch.tanh(2 * a) + b * c / 2 + torch.randn(len(x), generator=generator) / 10
        labels = (real > 0).long() + 2 * (c > 0).long()
        found = {
            "real": real[:, None],
            "labels": labels,
            "bits": (real > 0)[:, None].float(),
            "counts": torch.poisson(real.clamp(max=3).exp(), generator)[:, None],
        }
        return x, found[LOSSES[self.loss].responses]

    def inputs(self, x: Tensor, step: int) -> Tensor:
        """Those of a batch."""
        if self.disturbed == "first batch alike" and step == 0:
            return x[:1].expand_as(x)
        if self.disturbed == "outliers" and step % 20 == 0:
            return torch.cat([1000 * x[:1], x[1:]])
        return x

    @property
    def factor(self) -> float:
        return float(self.disturbed.removeprefix("loss ")) if self.disturbed.startswith("loss ") else 1.0


def loops(quick: bool = False) -> list[Loop]:
    given = [(name, known) for name, loss in LOSSES.items() for known in (False, True) if loss.criterion or not known]
    crossed = itertools.product(NETS, given, (False, True), BATCHES)
    found = [Loop(net, loss, known, cosine, batch) for net, (loss, known), cosine, batch in crossed]
    more = itertools.product(NETS, [each for each in given if each[0] in DISTURBED_LOSSES], DISTURBED)
    found += [Loop(net, loss, known, False, DISTURBED_BATCH, kind) for net, (loss, known), kind in more]
    return found[::97] if quick else found


def optimiser(method: str, loop: Loop, module: nn.Module) -> torch.optim.Optimizer:
    if method == "AdamW":
        return torch.optim.AdamW(module.parameters(), lr=_ADAM_RATE)
    return Lifted(module, LOSSES[loop.loss].criterion if loop.given else None)


def _batches(loop: Loop, steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (torch.randint(_ROWS, (loop.batch,), generator=generator) for _ in range(steps))


def train(loop: Loop, make: Callable[[Loop, nn.Module], torch.optim.Optimizer], steps: int = STEPS) -> Fields:
    """The loss on rows held out, before and after; the largest mean of ten steps on the way; and all warnings."""
    torch.set_num_threads(1)
    module, (x, y), loss = loop.module(), loop.data(), LOSSES[loop.loss].function
    found, started = [], time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimiser = make(loop, module)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps) if loop.cosine else None
        first = _score(module, loss, x, y)
        for step, rows in enumerate(_batches(loop, steps)):
            optimiser.zero_grad()
            value = loop.factor * loss(module(loop.inputs(x[rows], step)), y[rows])
            value.backward()  # type: ignore[no-untyped-call]
            if loop.disturbed == "clipped":
                nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            if loop.disturbed == "logging" and step % _LOGGED == 0:
                module(torch.full_like(x[:3], 100.0))
            optimiser.step()
            if schedule is not None:
                schedule.step()
            found.append(float(value.detach()) / loop.factor)
    seconds = time.perf_counter() - started
    smooth = torch.tensor(found).unfold(0, 10, 10).mean(1)
    said = sorted({str(each.message).split(":")[0] for each in caught})
    last = _score(module, loss, x, y)
    return {"first": first, "last": last, "largest": float(smooth.max()), "warnings": said, "seconds": seconds}


def _score(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    module.eval()
    with torch.no_grad():
        found = float(loss(module(x[_ROWS:]), y[_ROWS:]))
    module.train()
    return found if math.isfinite(found) else 1e30


def constant(loop: Loop) -> float:
    """The loss of the best constant output on the rows held out."""
    loss, (_, y) = LOSSES[loop.loss], loop.data()
    output = torch.zeros(1, loss.outputs, requires_grad=True)
    search = torch.optim.LBFGS([output], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = loss.function(output.expand(_TEST, -1), y[_ROWS:])
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(closure)  # type: ignore[no-untyped-call]
    return float(closure().detach())


def _run(method: str, loop: Loop, steps: int) -> Fields:
    return train(loop, partial(optimiser, method), steps) | {"constant": constant(loop)}


def _alike(loop: Loop) -> Loop:
    """The loop of AdamW, which is given no criterion."""
    return replace(loop, given=False)


def jobs(found: Sequence[Loop], steps: int) -> list[Job]:
    adam = dict.fromkeys(_alike(loop) for loop in found)
    pairs = [("AdamW", loop) for loop in adam] + [("lifted", loop) for loop in found]
    return [Job(partial(_run, method, loop, steps), {"method": method} | asdict(loop)) for method, loop in pairs]


def verdict(ours: Fields, adam: Fields) -> str:
    """What became of a loop in which AdamW learns."""
    gain, possible = ours["constant"] - ours["last"], adam["constant"] - adam["last"]
    collapsed, warned = gain < _COLLAPSED * possible, bool(ours["warnings"])
    if collapsed:
        return "collapse with a warning" if warned else "silent collapse"
    return "learns with a warning" if warned else "learns"


def pairs_of(store: Store) -> list[tuple[Loop, Fields, Fields]]:
    """The loops in which AdamW learns: ours, and AdamW's."""
    adam = {_loop(record): record.value for record in store.find(method="AdamW")}
    ours = [(_loop(record), record.value) for record in store.find(method="lifted")]
    found = [(loop, value, adam[_alike(loop)]) for loop, value in ours if _alike(loop) in adam]
    return [each for each in found if each[2]["last"] < _LEARNS * each[2]["constant"]]


def _loop(record: Record) -> Loop:
    return Loop(**{name: value for name, value in record.fields.items() if name != "method"})


def summary(store: Store) -> list[dict[str, Any]]:
    """A row for all loops, and for those of each network, loss, batch and disturbance."""
    pairs = pairs_of(store)
    rows = [_row("all", pairs)]
    for field, words in (("net", "{}"), ("loss", "{}"), ("batch", "batches of {}"), ("disturbed", "{}")):
        kinds = dict.fromkeys(getattr(loop, field) for loop, *_ in pairs)
        named = {kind: words.format(kind) or "undisturbed" for kind in kinds}
        rows += [_row(name, [p for p in pairs if getattr(p[0], field) == kind]) for kind, name in named.items()]
    return rows


def _row(name: str, pairs: Sequence[tuple[Loop, Fields, Fields]]) -> dict[str, Any]:
    verdicts = [verdict(ours, adam) for _, ours, adam in pairs]
    level = sum(ours["last"] <= _LEVEL * adam["last"] for _, ours, adam in pairs)
    return {
        "loops": name,
        "counted": len(pairs),
        "silent": verdicts.count("silent collapse"),
        "warned": verdicts.count("collapse with a warning"),
        "needless": verdicts.count("learns with a warning"),
        "level": level / max(len(pairs), 1),
        "largest": max((ours["largest"] / ours["constant"] for _, ours, _ in pairs), default=math.nan),
    }


def run(settings: Settings) -> None:
    """--only takes networks."""
    found = [loop for loop in loops(settings.quick) if not settings.only or loop.net in settings.only]
    store = settings.store("robustness")
    fill(store, jobs(found, 20 if settings.quick else STEPS), settings.workers or 1)
    table("loops of optim.Lifted at its defaults, in which AdamW at 3e-3 learns", summary(store))
