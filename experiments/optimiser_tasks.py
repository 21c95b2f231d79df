"""The tasks of the experiment `optimisers`: a network, its data and its loss, and how a trained network is scored."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.datasets import Dataset, load
from experiments.image_training import Images, Layout, generated, images, noisy
from experiments.optimiser_nets import CONTEXT, built

__all__ = [
    "COSTED",
    "LIFTED",
    "METHODS",
    "PARTS",
    "PICTURED",
    "TASKS",
    "Problem",
    "TaskKind",
    "best",
    "dataset",
    "score",
    "text",
    "windows",
    "worst",
]

LIFTED = "lifted, automatic"
SOME = (LIFTED, "SGD", "AdamW", "Muon")
METHODS = (*SOME, "SOAP", "K-FAC", "FOOF", "ISAAC")
# ISAAC inverts a matrix at every step, and its package has dense layers of plain rows alone: it is compared on those.
SEVEN = METHODS[:-1]
BATCH = 250
_WORST = 1000.0  # the score of a diverged run, where it is a loss
_CHARACTERS, _TEST_SHARE = 2_000_000, 10  # one window in so many is held out for testing
_NOISE_SEED = 2024
_DENOISED = 25_000  # images to remove noise from
_ROWS = 2000  # scored at a time


@dataclass(frozen=True)
class TaskKind:
    """What is learned.

    choose       passes of a run by which a setting is chosen
    noise        the share of training labels that are replaced by random ones
    autoencode   the inputs are the targets
    denoise      images with noise of this deviation are the inputs, and those without the targets
    half         forward passes in bfloat16 on a GPU
    """

    data: str
    network: str
    passes: int
    choose: int
    methods: tuple[str, ...] = SEVEN
    batch: int = BATCH
    augmented: bool = False
    noise: float = 0.0
    smoothing: float = 0.0
    autoencode: bool = False
    denoise: float = 0.0
    half: bool = False

    @property
    def convolutional(self) -> bool:
        return bool(self.denoise) or (self.data == "cifar10" and not self.network.startswith("3072"))

    @property
    def regresses(self) -> bool:
        return self.autoencode or bool(self.denoise)

    @property
    def text(self) -> bool:
        return self.data == "text"

    @property
    def measure(self) -> str:
        if self.autoencode:
            return "binary cross-entropy of an image"
        if self.denoise:
            return "squared error of a pixel, in per cent"
        return "bits per character" if self.text else "test accuracy"

    @property
    def higher_is_better(self) -> bool:
        return not (self.text or self.regresses)

    @property
    def criterion(self) -> nn.Module:
        if self.denoise:
            return nn.MSELoss()
        return nn.BCEWithLogitsLoss() if self.autoencode else nn.CrossEntropyLoss(label_smoothing=self.smoothing)

    def layout(self, device: str) -> Layout:
        """Images by channels, where there are convolutions, and TF32 on a GPU."""
        return Layout(channels_last=device == "cuda" and self.convolutional, tf32=device == "cuda")


def _cifar(network: str, passes: int, choose: int, **more: object) -> TaskKind:
    return TaskKind("cifar10", network, passes, choose, augmented=True, half=True, **more)  # type: ignore[arg-type]


_WIDE = "ResNet-9, 512 wide at its end"
TASKS = {
    "resnet 1": _cifar("ResNet-9", 1, 1),
    "resnet 8": _cifar("ResNet-9", 8, 4),
    "noisy": _cifar("ResNet-9", 6, 3, noise=0.4),
    "long": _cifar(_WIDE, 40, 10, methods=SOME, batch=500, smoothing=0.1),
    "dense mnist": TaskKind("mnist", "784-500-200-100-10", 10, 5, METHODS),
    "dense fashion": TaskKind("fashion", "784-500-200-100-10", 10, 5, METHODS),
    "dense cifar10": TaskKind("cifar10", "3072-500-200-100-10", 10, 5, METHODS),
    "vgg": _cifar("six convolutions, batch norm", 8, 4),
    "vit": _cifar("vision transformer", 8, 4),
    "chars transformer": TaskKind("text", "transformer", 4, 2, batch=64),
    "chars LSTM": TaskKind("text", "LSTM", 4, 2, batch=64),
    "autoencoder": TaskKind("mnist", "784-1000-500-250-30-250-500-1000-784", 10, 5, METHODS, autoencode=True),
}
COSTED = "resnet 8"  # the task on which the cost of a step is measured
PICTURED = ("resnet 8", "vit")  # those that the picture of docs shows
# What --only takes; the part cost is of ResNet-9 (optimiser_cost.py).
PARTS: dict[str, tuple[str, ...]] = {
    "resnet": ("resnet 1", "resnet 8"),
    "noisy": ("noisy",),
    "long": ("long",),
    "dense": ("dense mnist", "dense fashion", "dense cifar10"),
    "vgg": ("vgg",),
    "vit": ("vit",),
    "chars": ("chars transformer", "chars LSTM"),
    "autoencoder": ("autoencoder",),
    "cost": (),
}


@dataclass(frozen=True)
class Problem:
    """A task to train on: its data on a device, passes, a seed; `divide` makes layers narrower."""

    kind: TaskKind
    data: Dataset
    passes: int
    seed: int
    batch: int
    divide: int = 1

    @property
    def device(self) -> torch.device:
        return self.data.x.device

    @property
    def layout(self) -> Layout:
        return self.kind.layout(self.device.type)

    @property
    def source(self) -> Images:
        return Images(self.data.x, self.data.y, self.kind.augmented, self.layout)

    def module(self) -> nn.Module:
        """With initial weights of the seed, on the device."""
        module = built(self.kind.network, self.seed, self.divide).to(self.device)
        # The stubs of torch have no memory format together with a device.
        return module.to(memory_format=self.layout.memory_format)  # type: ignore[call-overload, no-any-return]


def dataset(kind: TaskKind, device: str, rows: int | None = None) -> Dataset:
    """On the device; generated, with so many rows, for quick runs."""
    if kind.text:
        seen = text() if rows is None else "def f(x): return x\n" * (2 * rows * CONTEXT // 19 + 20)
        found = windows(seen[:_CHARACTERS] if rows is None else seen, device)
        return found if rows is None else Dataset(*(part[:rows] for part in found))
    if rows is None:
        found = _loaded(kind.data, kind.convolutional, device)
    else:
        found = generated("cifar10" if kind.data == "cifar10" else "mnist", rows, device)
        found = found if kind.convolutional else found._replace(x=found.x.flatten(1), x_test=found.x_test.flatten(1))
    if kind.autoencode:
        x, x_test = (part.clamp(0, 1) for part in (found.x, found.x_test))
        return Dataset(x, x, x_test, x_test)
    if kind.denoise:
        return _with_noise(found, kind.denoise)
    return noisy(found, kind.noise, _NOISE_SEED) if kind.noise else found


def _with_noise(data: Dataset, deviation: float) -> Dataset:
    x, x_test = (part.view(-1, 1, 28, 28)[:_DENOISED] for part in (data.x, data.x_test))
    drawn = torch.Generator().manual_seed(_NOISE_SEED)
    noise = [deviation * torch.randn(part.shape, generator=drawn).to(part) for part in (x, x_test)]
    return Dataset(x + noise[0], x, x_test + noise[1], x_test)


@lru_cache(maxsize=4)
def _loaded(data: str, as_images: bool, device: str) -> Dataset:
    """Once for all tasks that have it."""
    return images(data, device, standardised=True) if as_images else load(data, device)


def text() -> str:
    """The sources of Python's standard library, those of its packages in the order of their names, behind the paper's where it is there."""
    folder = Path(os.__file__).parent
    files = sorted(folder.glob("*.py"))
    given = os.environ.get("LIFTEDNN_DATA")
    paper = sorted((Path(given).parent / "paper").glob("*.tex")) if given else []
    return "\n".join(file.read_text("utf-8", errors="replace") for file in (*paper, *files))


def windows(given: str, device: str) -> Dataset:
    """Windows of characters, which do not overlap, and the characters that follow each; every tenth window is held out."""
    codes = torch.tensor(list(given.encode("ascii", errors="replace")), dtype=torch.long)
    count = (len(codes) - 1) // CONTEXT
    x, y = codes[: count * CONTEXT].view(count, CONTEXT), codes[1 : count * CONTEXT + 1].view(count, CONTEXT)
    tested = torch.arange(count) % _TEST_SHARE == 0
    return Dataset(*(part.to(device) for part in (x[~tested], y[~tested], x[tested], y[tested])))


def score(kind: TaskKind, module: nn.Module, data: Dataset) -> float:
    """On the test rows: the accuracy, or a loss."""
    was = module.training
    module.eval()
    with torch.no_grad():
        parts = zip(torch.split(data.x_test, _rows(kind)), torch.split(data.y_test, _rows(kind)), strict=True)
        found = torch.stack([_sum(kind, module, x, y) for x, y in parts]).sum()
    module.train(was)
    each = float(found) / (data.y_test.numel() if kind.text else len(data.y_test))
    if not kind.higher_is_better:
        return min(each, _WORST) if math.isfinite(each) else _WORST
    return each


def _rows(kind: TaskKind) -> int:
    return 250 if kind.text else _ROWS


def _sum(kind: TaskKind, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if kind.higher_is_better:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=kind.half and x.is_cuda):
            scores = module(x.contiguous(memory_format=kind.layout(x.device.type).memory_format))
        return torch.eq(scores.argmax(1), y).double().sum()
    if kind.text:
        return nn.functional.cross_entropy(module(x), y.flatten(), reduction="sum").double() / math.log(2)
    if kind.denoise:
        return 100 * nn.functional.mse_loss(module(x), y).double() * len(y)
    return nn.functional.binary_cross_entropy_with_logits(module(x), y, reduction="sum").double()


def worst(kind: TaskKind) -> float:
    """The score of a diverged run."""
    return 0.0 if kind.higher_is_better else _WORST


def best(kind: TaskKind, scores: Sequence[float]) -> int:
    """The place of the best of them."""
    chosen = max(scores) if kind.higher_is_better else min(scores)
    return list(scores).index(chosen)
