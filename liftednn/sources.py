"""Where mini-batches come from: tensors, memory-mapped arrays, or any iterable of (x, y) batches such as a torch DataLoader.

A source gives a sample to begin with and, for each pass, batches in an order that depends only on the seed and the pass, so that an
interrupted run can go on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["Loader", "Mapped", "Memory", "Once", "Source", "as_tensor", "source_of"]

Pair = tuple[Any, Any]

# A memory map is read in runs of this many batches; their order, and the rows within each, are shuffled.
_RUN = 32
# A sample of it is read in about this many runs.
_RUNS = 64


class Source(Protocol):
    """`rows` is None where only a pass over the data can tell."""

    @property
    def rows(self) -> int | None: ...

    def steps(self, size: int) -> int | None:
        """Batches in a pass; None where only a pass can tell."""

    def sample(self, count: int, seed: int) -> Pair:
        """At most `count` rows and their responses, to start from."""

    def batches(self, size: int, seed: int, number: int) -> Iterator[Pair]:
        """The batches of pass `number`; one may be smaller."""


@dataclass(frozen=True)
class Memory:
    """Rows and responses as tensors; every pass is a new permutation."""

    x: Tensor
    y: Tensor

    @property
    def rows(self) -> int:
        return len(self.x)

    def sample(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        chosen = _permutation(len(self.x), seed, -1)[:count]
        return self.x[chosen.to(self.x.device)], self.y[chosen.to(self.y.device)]

    def steps(self, size: int) -> int:
        return -(-len(self.x) // size)

    def batches(self, size: int, seed: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        if size >= len(self.x):
            yield self.x, self.y
            return
        order = _permutation(len(self.x), seed, number).to(self.x.device)
        for chosen in torch.split(order, size):
            yield self.x.index_select(0, chosen), self.y.index_select(0, chosen)


@dataclass(frozen=True)
class Mapped:
    """An array that is read a run of rows at a time, such as numpy.memmap: no more of it than that is ever in memory."""

    x: Any
    y: Any

    @property
    def rows(self) -> int:
        return len(self.x)

    def sample(self, count: int, seed: int) -> Pair:
        """Short runs from all over the array, in random order."""
        run = max(1, count // _RUNS)
        starts = _permutation(-(-len(self.x) // run), seed, -1)[: -(-count // run)].tolist()
        pieces = [slice(start * run, (start + 1) * run) for start in starts]
        x, y = (np.concatenate([np.array(part[piece]) for piece in pieces]) for part in (self.x, self.y))
        chosen = _permutation(len(x), seed, -2)[:count].numpy()
        return x[chosen], y[chosen]

    def steps(self, size: int) -> int:
        """Every run of batches may end in a smaller one."""
        whole, rest = divmod(len(self.x), _RUN * size)
        return whole * _RUN + -(-rest // size)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Pair]:
        run = _RUN * size
        for place in _permutation(-(-len(self.x) // run), seed, number).tolist():
            piece = slice(place * run, (place + 1) * run)
            x, y = (as_tensor(np.array(part[piece]), name) for part, name in ((self.x, "x"), (self.y, "y")))
            order = _permutation(len(x), seed, number * 1_000_003 + place)
            for chosen in torch.split(order, size):
                yield x[chosen], y[chosen]


@dataclass(frozen=True)
class Loader:
    """An iterable of (x, y) batches, taken as they come; `size` is ignored. Its own shuffling is its own affair."""

    batches_of: Iterable[Pair]

    @property
    def rows(self) -> int | None:
        """Known where the iterable, as a DataLoader, names its data set."""
        data = getattr(self.batches_of, "dataset", None)
        return len(data) if isinstance(data, Sized) else None

    def steps(self, size: int) -> int | None:
        return len(self.batches_of) if isinstance(self.batches_of, Sized) else None

    def sample(self, count: int, seed: int) -> Pair:
        xs, ys, seen = [], [], 0
        for x, y in self.batches(0, seed, -1):
            xs.append(x)
            ys.append(y)
            seen += len(xs[-1])
            if seen >= count:
                break
        if not xs:
            raise ValueError("the iterable gave no batches: it must yield pairs (x, y)")
        return torch.cat(xs)[:count], torch.cat(ys)[:count]

    def batches(self, size: int, seed: int, number: int) -> Iterator[Pair]:
        for pair in self.batches_of:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(f"a batch must be a pair (x, y), got {type(pair).__name__}: yield x and y together")
            yield as_tensor(pair[0], "x"), as_tensor(pair[1], "y")


@dataclass(frozen=True)
class Once(Loader):
    """An iterator, which can be read a single time: the batches that a sample takes from it are kept, and come first in its pass."""

    kept: list[Pair] = field(default_factory=list)

    def sample(self, count: int, seed: int) -> Pair:
        while (
            sum(len(x) for x, _ in self.kept) < count and (pair := next(super().batches(0, seed, 0), None)) is not None
        ):
            self.kept.append(pair)
        return Loader(self.kept).sample(count, seed)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Pair]:
        while self.kept:
            yield self.kept.pop(0)
        yield from super().batches(size, seed, number)


def as_tensor(given: Any, name: str) -> Tensor:
    """What a user has as numbers, in any layout, as a tensor."""
    if isinstance(given, np.ndarray):
        given = np.ascontiguousarray(given, given.dtype.newbyteorder("="))
    try:
        return torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be read as numbers ({error}): give a tensor or an array of numbers, and labels as integers"
        ) from error


def source_of(x: Any, y: Any = None) -> Source:
    """The source for what a user has: x and y as tensors, arrays or memory maps, or x alone as an iterable of pairs."""
    if y is not None:
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} rows and y has {len(y)}: they must agree")
        if isinstance(x, np.memmap):
            return Mapped(x, y)
        return Memory(as_tensor(x, "x"), as_tensor(y, "y"))
    if not isinstance(x, Iterable) or isinstance(x, (Tensor, np.ndarray)):
        raise ValueError(f"without y, x must be an iterable of (x, y) batches, got {type(x).__name__}")
    return Once(x) if isinstance(x, Iterator) else Loader(x)


def _permutation(count: int, seed: int, number: int) -> Tensor:
    """On the CPU, so that all devices agree."""
    mixed = (seed * 2_147_483_629 + number * 1_000_000_007 + 12_345) % (1 << 63)
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))
