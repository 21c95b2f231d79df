"""Training of convolutional networks by gradient methods: images on the device, and generators that yield a scoring rule after every pass.

All methods see the same batches: their order, crops and flips depend on the seed and the pass alone. On a GPU a step is recorded once as a
CUDA graph and replayed, as that of the lifted model is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from experiments.batched import clock
from experiments.datasets import Dataset, load
from experiments.image_models import NETWORKS, STARTS, he_, hidden_weights
from experiments.methods import Scorer
from liftednn.runtime.graphs import recorded

__all__ = [
    "REST_RATE",
    "ConvolutionMuon",
    "Images",
    "Layout",
    "Step",
    "Task",
    "adamw",
    "cosine",
    "cropped_and_flipped",
    "from_start",
    "generated",
    "gradient",
    "images",
    "noisy",
    "optimisers",
    "share_of_rate",
    "step_seconds",
]

_SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
_PADDING = 4
_RUN = 20  # batches whose images are gathered, cropped and flipped at a time
_ROWS = 2000  # images scored at a time
_WARM_UP = 1 / 20  # the share of all steps in which the rate rises
REST_RATE = 1e-3  # AdamW's beside Muon and others, for the parameters that these do not move


class Layout(NamedTuple):
    """How images and weights lie in memory, and whether a GPU multiplies in TF32."""

    channels_last: bool = False
    tf32: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @contextmanager
    def products(self) -> Iterator[None]:
        """Products of a GPU in this precision, its convolutions by the algorithm that is fastest for their shapes."""
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = self.tf32, self.tf32, True
        try:
            yield
        finally:
            cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


_PLAIN = Layout()


def images(name: str, device: str, standardised: bool) -> Dataset:
    """A data set as images (n, channels, height, width), in 0 .. 1 or each channel standardised by the training rows."""
    data = load(name, device)
    x, x_test = (part.view(-1, *_SHAPES[name]) for part in (data.x, data.x_test))
    if standardised:
        mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
        x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    return Dataset(x, data.y, x_test, data.y_test)


def generated(name: str, rows: int, device: str) -> Dataset:
    """Ten noisy images in the shape of a data set's, as many rows to test as to train on: for quick runs, which need no file."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(2 * rows) % 10
    x = torch.randn(10, *_SHAPES[name], generator=generator)[y]
    x = x + 0.5 * torch.randn(x.shape, generator=generator)
    return Dataset(*(part.to(device) for part in (x[:rows], y[:rows], x[rows:], y[rows:])))


def noisy(data: Dataset, share: float, seed: int) -> Dataset:
    """The data with random classes in the place of this share of the training labels; test labels stay."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(len(data.y), generator=generator) < share
    drawn = torch.randint(0, 10, data.y.shape, generator=generator)
    y = torch.where(chosen.to(data.y.device), drawn.to(data.y), data.y)
    return Dataset(data.x, y, data.x_test, data.y_test)


def cropped_and_flipped(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (c, h, w) of x shifted by up to 4 pixels, with its own reflection behind its borders, and every second one mirrored."""
    count, _, height, width = x.shape
    shifts = torch.randint(0, 2 * _PADDING + 1, (2, count), generator=generator, device=x.device)
    mirrored = torch.rand(count, 1, 1, 1, generator=generator, device=x.device) < 0.5
    windows = pad(x, (_PADDING,) * 4, mode="reflect").unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count, device=x.device), :, shifts[0], shifts[1]]
    return torch.where(mirrored, crops.flip(3), crops)


@dataclass(frozen=True, eq=False)
class Images:
    """Images to learn from, (n, c, h, w) on their device, and labels: a `liftednn.data.sources.Source`.

    augmented   whether batches are cropped and flipped; a sample never is
    """

    x: Tensor
    y: Tensor
    augmented: bool = False
    layout: Layout = _PLAIN

    @property
    def rows(self) -> int:
        return len(self.x)

    def steps(self, size: int) -> int:
        return math.ceil(len(self.x) / size)

    def sample(self, count: int, seed: int) -> tuple[Tensor, Tensor, None]:
        chosen = self._order(seed, -1)[:count]
        return self.x[chosen], self.y[chosen], None

    def batches(self, size: int, seed: int, number: int) -> Iterator[tuple[Tensor, Tensor, None]]:
        """The batches of pass `number`."""
        generator = torch.Generator(self.x.device).manual_seed(_mixed(seed, number))
        for chosen in torch.split(self._order(seed, number), _RUN * size):
            x = self.x[chosen]
            x = cropped_and_flipped(x, generator) if self.augmented else x
            x = x.contiguous(memory_format=self.layout.memory_format)
            for part, labels in zip(torch.split(x, size), torch.split(self.y[chosen], size), strict=True):
                yield part, labels, None

    def _order(self, seed: int, number: int) -> Tensor:
        """On the CPU, so that all devices agree."""
        generator = torch.Generator().manual_seed(_mixed(seed, number))
        return torch.randperm(len(self.x), generator=generator).to(self.x.device)


def _mixed(seed: int, number: int) -> int:
    return 1_000_003 * seed + number + 1


@dataclass(frozen=True)
class Task:
    """Images to learn from, a name of `NETWORKS`, passes, a seed, rows per step, and a method's own settings.

    divide   every layer is narrower by this factor
    """

    images: Images
    network: str
    passes: int
    seed: int
    batch: int
    settings: Mapping[str, Any]
    divide: int = 1

    @property
    def x(self) -> Tensor:
        return self.images.x

    def module(self) -> nn.Sequential:
        """The network with He's weights, on the device of the images."""
        module = NETWORKS[self.network](self.divide)
        he_(module, self.seed)
        # The stubs of torch have no memory format together with a device.
        return module.to(self.x.device).to(memory_format=self.images.layout.memory_format)  # type: ignore[call-overload, no-any-return]


def gradient(task: Task) -> Iterator[Scorer]:
    """SGD, AdamW or Muon on the mean cross-entropy: settings are method, rate and decay; the rate rises, then falls along a cosine."""
    step = _step(task.module(), task.settings)
    steps, taken = task.passes * task.images.steps(task.batch), 0
    for number in range(task.passes):
        for x, y, _ in task.images.batches(task.batch, task.seed, number):
            step(x, y, share_of_rate(taken, steps))
            taken += 1
        yield in_blocks(step.module)


def from_start(task: Task) -> Iterator[Scorer]:
    """Adam at a constant rate from one of `STARTS`: settings are start and rate; the first to be yielded is the start itself."""
    module = task.module()
    STARTS[task.settings["start"]](module, task.x, task.images.y, task.seed)
    yield in_blocks(module)
    step = _step(module, {**task.settings, "method": "Adam"})
    for number in range(task.passes):
        for x, y, _ in task.images.batches(task.batch, task.seed, number):
            step(x, y, 1.0)
        yield in_blocks(module)


def share_of_rate(taken: int, steps: int) -> float:
    """Of the largest rate, after so many of all steps."""
    return min(1.0, (taken + 1) / (_WARM_UP * steps)) * cosine(taken, steps)


def cosine(taken: int, steps: int) -> float:
    """From 1 to 0."""
    return (1 + math.cos(math.pi * taken / steps)) / 2


def in_blocks(module: nn.Module) -> Scorer:
    return lambda x: torch.cat([module(part) for part in torch.split(x, _ROWS)])


def plain_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return cross_entropy(module(x), y)


class Step:
    """A module and its optimisers, each with its largest rate; a call takes one step, on a GPU as a recorded graph from the fourth on.

    loss     of a module on a batch
    record   False for plain steps on a GPU as well
    """

    def __init__(
        self,
        module: nn.Module,
        optimisers: Sequence[tuple[torch.optim.Optimizer, float]],
        loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = plain_loss,
        record: bool = True,
    ) -> None:
        self.module, self.optimisers, self.loss = module, optimisers, loss
        self.step = recorded(self._plain, next(module.parameters()).device) if record else self._plain

    def __call__(self, x: Tensor, y: Tensor, share: float) -> None:
        """At this share of the largest rates."""
        for optimiser, rate in self.optimisers:
            for group in optimiser.param_groups:
                now, next_rate = group["lr"], rate * share
                group["lr"] = now.fill_(next_rate) if isinstance(now, Tensor) else next_rate
        self.step(x, y)

    def _plain(self, x: Tensor, y: Tensor) -> None:
        self.module.zero_grad(set_to_none=True)
        self.loss(self.module, x, y).backward()  # type: ignore[no-untyped-call]
        for optimiser, _ in self.optimisers:
            optimiser.step()


def step_seconds(step: Step, x: Tensor, y: Tensor, before: int, turns: int) -> float:
    """Of one step, the mean over `turns` behind `before` that load and record what is needed."""
    started = 0.0
    for turn in range(before + turns):
        if turn == before:
            started = clock(x)
        step(x, y, 1.0)
    return (clock(x) - started) / turns


def _step(module: nn.Module, settings: Mapping[str, Any]) -> Step:
    return Step(module, optimisers(module, settings))


def optimisers(module: nn.Module, settings: Mapping[str, Any]) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each with its largest rate, as torch has them; `settings["method"]` is SGD, Adam, AdamW or Muon."""
    rate, decay, parameters = settings["rate"], settings.get("decay", 0.0), list(module.parameters())
    now = rate_of(parameters[0])
    match settings["method"]:
        case "SGD":
            fused = {"momentum": 0.9, "nesterov": True, "weight_decay": decay, "fused": True}
            return [(torch.optim.SGD(parameters, now, **fused), rate)]
        case "Adam":
            return [(torch.optim.Adam(parameters, now, fused=True, capturable=parameters[0].is_cuda), rate)]
        case "AdamW":
            return [(adamw(parameters, decay), rate)]
        case "Muon":
            inner = {id(weight) for weight in hidden_weights(module)}
            hidden, rest = ([each for each in parameters if (id(each) in inner) is wanted] for wanted in (True, False))
            return [(ConvolutionMuon(hidden, decay), rate), (adamw(rest, decay), REST_RATE)]
    raise ValueError(f"method is SGD, Adam, AdamW or Muon, got {settings['method']}")


def adamw(parameters: Sequence[nn.Parameter], decay: float) -> torch.optim.AdamW:
    cuda = parameters[0].is_cuda
    return torch.optim.AdamW(parameters, rate_of(parameters[0]), weight_decay=decay, fused=True, capturable=cuda)


def rate_of(like: Tensor) -> float | Tensor:
    """On a GPU a tensor, which a recorded step reads."""
    return torch.zeros((), device=like.device) if like.is_cuda else 0.0


class ConvolutionMuon(torch.optim.Muon):
    """torch's Muon, which takes matrices alone, on weights of convolutions seen as matrices (filters, channels times kernel).

    It takes steps of rate 1, of which the weights go the share that is the rate: the same update, and a rate that a recorded step reads.
    """

    def __init__(self, weights: Sequence[nn.Parameter], decay: float) -> None:
        self.weights = list(weights)
        super().__init__([nn.Parameter(as_matrix(each.detach())) for each in weights], 1.0, decay)
        self.param_groups[0]["lr"] = rate_of(weights[0])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        rate, matrices = group["lr"], group["params"]
        before = [matrix.clone() for matrix in matrices]
        for matrix, weight in zip(matrices, self.weights, strict=True):
            assert weight.grad is not None
            matrix.grad = as_matrix(weight.grad)
        group["lr"] = 1.0
        with warnings.catch_warnings():
            # On a CPU that has no bfloat16, torch says that it multiplies another way.
            warnings.filterwarnings("ignore", "mkldnn_matmul failed")
            super().step()  # type: ignore[no-untyped-call]
        group["lr"] = rate
        for matrix, old in zip(matrices, before, strict=True):
            matrix.copy_(torch.lerp(old, matrix, rate))


def as_matrix(weight: Tensor) -> Tensor:
    """(q, everything else), in the same memory; the order of columns, which Muon does not see, is that of the memory."""
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return (weight.permute(0, 2, 3, 1) if last else weight).view(len(weight), -1)
