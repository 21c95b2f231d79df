"""Where mini-batches come from: tensors, memory-mapped arrays, or any iterable of batches such as a torch DataLoader.

A batch is (x, y, row_weights): rows, responses, and the weight of each row, 1 on average; None where all have the same. A source
gives a sample to begin with and, for each pass, batches in an order that depends only on the seed and the pass, so that an interrupted
run can resume where it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from liftednn import reduce
from liftednn.data.arrays import as_tensor
from liftednn.data.copies import independent_rows

__all__ = [
    "Gathered",
    "Loader",
    "Mapped",
    "Memory",
    "Once",
    "Source",
    "check_weights",
    "rows_of",
    "source_of",
    "weighted",
]

Batch = tuple[Any, Any, Any]

# A memory map is read in runs of this many batches; their order, and the rows within each, are shuffled.
_RUN = 32
# Numbers that are read at a time where all rows are read.
_READ = 1 << 18
# Rows in memory that are looked at at a time.
_ROWS = 4096
# A sample of a memory map is read in about this many runs.
_RUNS = 64


class Source(Protocol):
    """`rows` is None where it is unknown before a pass over the data."""

    @property
    def rows(self) -> int | None: ...

    def steps(self, size: int) -> int | None:
        """The number of batches in a pass; None where it is unknown."""

    def sample(self, count: int, seed: int) -> Batch:
        """At most `count` rows and their responses, to start from."""

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        """The batches of pass `number`, of `size` rows; the last may be smaller."""


@dataclass(frozen=True)
class _Permuted(ABC):
    """Rows that can be read in any order; every pass is a new permutation."""

    x: Any
    y: Tensor
    row_weights: Tensor | None = None

    @cached_property
    def rows(self) -> int:
        """Without copies; weights do not count."""
        return independent_rows(self._in_order, len(self.x))

    def _in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows and their responses, part by part."""
        for chosen in torch.split(torch.arange(len(self.x)), max(1, _READ // max(1, self.x.shape[-1]))):
            yield self.at(chosen)[:2]

    @abstractmethod
    def at(self, chosen: Tensor) -> Batch:
        """The rows with these numbers, their responses and their weights."""

    def sample(self, count: int, seed: int) -> Batch:
        return self.at(_permutation(len(self.x), seed, -1)[:count])

    def steps(self, size: int) -> int:
        return -(-len(self.x) // size)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        """A batch of all rows keeps their order. Rows are read for several batches at once, which takes less time for small ones."""
        count, many = len(self.x), size * max(1, _READ // max(1, size * self.x.shape[-1]))
        order = (torch.arange(count) if size >= count else _permutation(count, seed, number)).to(self.y.device)
        for first in range(0, count, many):
            x, y, row_weights = self.at(order[first : first + many])
            for start in range(0, len(x), size):
                rows = slice(start, start + size)
                yield x[rows], y[rows], None if row_weights is None else row_weights[rows]


@dataclass(frozen=True)
class Memory(_Permuted):
    """Rows and responses as tensors."""

    x: Tensor

    def _in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """As views, so that nothing is copied."""
        yield from zip(torch.split(self.x, _ROWS), torch.split(self.y, _ROWS), strict=True)

    def at(self, chosen: Tensor) -> Batch:
        each = self.row_weights
        row_weights = None if each is None else each.index_select(0, chosen.to(each.device))
        at = chosen.to(self.y.device)
        y = self.y.index_select(0, at) if self.y.is_floating_point() else self.y[at]  # not for every integer dtype
        return self.x.index_select(0, chosen.to(self.x.device)), y, row_weights

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        return super().batches(size, seed, number) if size < len(self.x) else iter([(self.x, self.y, self.row_weights)])


@dataclass(frozen=True)
class Gathered(_Permuted):
    """Rows of anything that an array of row numbers indexes, read for a few batches at a time; responses are a tensor on the CPU.

    spare   bytes that a copy of the rows in other coordinates may take; if it needs more, batches are converted as they are read
    """

    spare: float = 0.0

    def at(self, chosen: Tensor) -> Batch:
        return (
            as_tensor(self.x[chosen.numpy()], "x"),
            self.y[chosen],
            None if self.row_weights is None else self.row_weights[chosen],
        )


@dataclass(frozen=True)
class Mapped:
    """An array that is read a run of rows at a time, such as numpy.memmap: no more of it than that is ever in memory."""

    x: Any
    y: Any
    row_weights: Any = None

    @property
    def rows(self) -> int:
        return len(self.x) if self.row_weights is None else int((self.row_weights > 0).sum())

    @property
    def _parts(self) -> tuple[Any, ...]:
        return (self.x, self.y) if self.row_weights is None else (self.x, self.y, self.row_weights)

    def sample(self, count: int, seed: int) -> Batch:
        """Short runs from all over the array, in random order, without rows of weight 0."""
        run = max(1, count // _RUNS)
        runs = _permutation(-(-len(self.x) // run), seed, -1)
        if self.row_weights is not None:
            counting = torch.from_numpy(np.flatnonzero(np.asarray(self.row_weights)) // run)
            runs = runs[torch.isin(runs, counting)]
        pieces = [slice(start * run, (start + 1) * run) for start in runs[: -(-count // run)].tolist()]
        parts = [np.concatenate([np.array(part[piece]) for piece in pieces]) for part in self._parts]
        parts = parts if self.row_weights is None else [part[parts[2] != 0] for part in parts]
        chosen = _permutation(len(parts[0]), seed, -2)[:count].numpy()
        x, y, *row_weights = (part[chosen] for part in parts)
        return x, y, row_weights[0] if row_weights else None

    def steps(self, size: int) -> int:
        """Every run of batches may end in a smaller one."""
        whole, rest = divmod(len(self.x), _RUN * size)
        return whole * _RUN + -(-rest // size)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        run = _RUN * size
        for index in _permutation(-(-len(self.x) // run), seed, number).tolist():
            piece = slice(index * run, (index + 1) * run)
            names = ("x", "y", "sample_weight")
            parts = [as_tensor(np.array(part[piece]), name) for part, name in zip(self._parts, names, strict=False)]
            order = _permutation(len(parts[0]), seed, number * 1_000_003 + index)
            for chosen in torch.split(order, size):
                x, y, *row_weights = (part[chosen] for part in parts)
                yield x, y, row_weights[0] if row_weights else None


@dataclass(frozen=True)
class Loader:
    """An iterable of batches (x, y) or (x, y, row_weights), taken as they come; `size` and `seed` are ignored."""

    batches_of: Iterable[Any]

    @property
    def rows(self) -> int | None:
        """Those of a pass, where the iterable knows them."""
        return rows_of(self.batches_of)

    def generators(self) -> dict[str, torch.Generator]:
        """Those that the batches of a DataLoader depend on, by name; none for another iterable."""
        samplers = _samplers(self.batches_of)
        if not samplers:
            return {}
        named = {
            f"{number}": getattr(each, "generator", None) for number, each in enumerate([self.batches_of, *samplers])
        }
        own = {name: each for name, each in named.items() if isinstance(each, torch.Generator)}
        return {"torch": torch.default_generator} | own

    def steps(self, size: int) -> int | None:
        return _length(self.batches_of)

    def sample(self, count: int, seed: int) -> Batch:
        found: list[Batch] = []
        for batch in self.batches(0, seed, -1):
            if batch[2] is None or bool((batch[2] != 0).any()):
                found.append(batch)
            if sum(len(x) for x, _, _ in found) >= count:
                break
        if not found:
            raise ValueError(
                "the iterable gave no batches: it must yield pairs (x, y), and some weights must be positive"
            )
        xs, ys, row_weights = zip(*found, strict=True)
        if len({(x.shape[1:], y.shape[1:]) for x, y, _ in found}) > 1:
            raise ValueError("the rows or responses of batches have different shapes: give all of them the same")
        if any(each is None for each in row_weights) and any(each is not None for each in row_weights):
            raise ValueError("some batches come with sample_weight and some without: give it with all, or with none")
        together = None if row_weights[0] is None else torch.cat(row_weights)[:count]
        return torch.cat(xs)[:count], torch.cat(ys)[:count], together

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        for batch in self.batches_of:
            if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
                raise ValueError(
                    f"a batch must be a pair (x, y), or (x, y, sample_weight), got {type(batch).__name__}: yield x and y together"
                )
            row_weights = as_tensor(batch[2], "sample_weight") if len(batch) == 3 else None
            x, y = as_tensor(batch[0], "x"), as_tensor(batch[1], "y")
            if x.ndim < 2 or not y.ndim:
                raise ValueError(
                    f"a batch must hold rows and their responses, got x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: "
                    "give batches of several samples, as a DataLoader with a batch_size does"
                )
            yield x, y, row_weights


@dataclass(frozen=True)
class Once(Loader):
    """An iterator, which can be read only once: the batches that `sample` reads are kept, and come first in the pass."""

    kept: list[Batch] = field(default_factory=list)

    def sample(self, count: int, seed: int) -> Batch:
        while (
            sum(len(x) for x, _, _ in self.kept) < count
            and (batch := next(super().batches(0, seed, 0), None)) is not None
        ):
            self.kept.append(batch)
        pairs = [batch[: 2 if batch[2] is None else 3] for batch in self.kept]
        return Loader(pairs).sample(count, seed)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        while self.kept:
            yield self.kept.pop(0)
        yield from super().batches(size, seed, number)


def rows_of(batches: Any) -> int | None:
    """The rows that an iterable gives in a pass: as many as its sampler draws, where it has one, as a DataLoader does, or the length of its
    data set; None where it has neither."""
    drawn = [_length(each) for each in (*_samplers(batches), getattr(batches, "dataset", None))]
    rows = next((number for number in drawn if number is not None), None)
    steps, size = _length(batches), getattr(batches, "batch_size", None)
    if rows is None or steps is None or not isinstance(size, int) or not getattr(batches, "drop_last", False):
        return rows
    return min(rows, steps * size)


def _samplers(batches: Any) -> list[Any]:
    """What draws the rows of a DataLoader: the sampler behind its batches, or its own."""
    found = (getattr(getattr(batches, "batch_sampler", None), "sampler", None), getattr(batches, "sampler", None))
    return [each for each in found if each is not None]


S = TypeVar("S", "Memory", "Gathered", "Mapped")


def source_of(x: Any, y: Any = None, sample_weight: Any = None) -> Source:
    """The source for given data: x and y as tensors, arrays or memory maps, or x alone as an iterable of batches or a source."""
    if y is not None:
        x, y = (each if isinstance(each, np.memmap) else as_tensor(each, name) for each, name in ((x, "x"), (y, "y")))
        if not x.ndim or not y.ndim or len(x) != len(y):
            found = [str(len(each)) if each.ndim else "none" for each in (x, y)]
            raise ValueError(f"x has {found[0]} rows and y has {found[1]}: they must agree")
        row_weights = None if sample_weight is None else as_tensor(sample_weight, "sample_weight").double()
        if row_weights is not None:
            check_weights(row_weights, len(x))
        if isinstance(x, np.memmap):
            y = y.numpy(force=True) if isinstance(y, Tensor) else y
            return weighted(Mapped(x, y), row_weights)
        return _memory(as_tensor(x, "x"), as_tensor(y, "y"), row_weights)
    if sample_weight is not None:
        raise ValueError("sample_weight goes with x and y: an iterable gives batches (x, y, sample_weight) instead")
    if isinstance(x, (_Permuted, Mapped, Loader)):
        return x
    table = any(hasattr(x, name) for name in ("to_numpy", "toarray"))  # of pandas, of scipy
    if not isinstance(x, Iterable) or isinstance(x, (Tensor, np.ndarray)) or table:
        raise ValueError(f"without y, x must be an iterable of (x, y) batches, got {type(x).__name__}: give y too")
    return Once(x) if isinstance(x, Iterator) else Loader(x)


def check_weights(row_weights: Tensor, rows: int) -> None:
    """Refuse invalid sample weights."""
    if row_weights.shape != (rows,):
        raise ValueError(f"sample_weight has shape {tuple(row_weights.shape)}, but x has {rows} rows: give ({rows},)")
    if not bool(row_weights.isfinite().all()) or bool((row_weights < 0).any()) or not bool((row_weights > 0).any()):
        raise ValueError("sample_weight must hold finite numbers, none negative and not all 0")


def _memory(x: Tensor, y: Tensor, row_weights: Tensor | None) -> Memory:
    """Without the rows of weight 0."""
    if row_weights is None:
        return Memory(x, y)
    kept = (row_weights > 0).nonzero()[:, 0]
    return weighted(Memory(x[kept.to(x.device)], y[kept.to(y.device)]), row_weights[kept])


def weighted(source: S, row_weights: Tensor | None) -> S:
    """The source with row weights, scaled to 1 on average."""
    if row_weights is None:
        return source
    each: Any = row_weights / reduce.mean(row_weights)
    each = each.numpy(force=True) if isinstance(source, Mapped) else each.to(source.y.device)
    return replace(source, row_weights=each)


def _length(given: object) -> int | None:
    """None where it is unknown: the `__len__` of a DataLoader over a stream raises."""
    try:
        return len(given) if isinstance(given, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def _permutation(count: int, seed: int, number: int) -> Tensor:
    """On the CPU, so that all devices agree."""
    mixed = (seed * 2_147_483_629 + number * 1_000_000_007 + 12_345) % (1 << 63)
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))
