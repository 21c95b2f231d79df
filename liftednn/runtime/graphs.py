"""Training steps as CUDA graphs, which are recorded once and replayed for every batch, without Python in between; batches that are read
and checked while a step runs; and parts of a step that run at the same time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

__all__ = ["WARM_UP", "InOrder", "beside", "recorded", "work_on"]

WARM_UP = 3
# Parts of a step that run at the same time.
_PARALLEL = 12

Step = Callable[..., Any]
Batch = TypeVar("Batch", bound=tuple[Tensor | None, ...])
Found = TypeVar("Found")


def recorded(step: Step, device: torch.device) -> Step:
    """A function of tensors (or None) that changes other tensors in place and returns one or None; on a CUDA device, its recording.

    The first `WARM_UP` calls are plain steps, and so are those with other shapes than the first.
    """
    return _Recorded(step, device) if device.type == "cuda" else step


class _Recorded:
    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.device, self.calls = step, device, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.kept: list[Tensor | None] = []
        self.shapes: list[torch.Size | None] = []
        self.found: Tensor | None = None

    def __call__(self, *given: Tensor | None) -> Tensor | None:
        shapes = [None if part is None else part.shape for part in given]
        self.shapes = self.shapes or shapes
        if self.graph is None or shapes != self.shapes:
            found: Tensor | None = self.step(*given)
            self.calls += 1
            if self.calls >= WARM_UP and shapes == self.shapes:
                self._record(given)
            return found
        for buffer, new in zip(self.kept, given, strict=True):
            if buffer is not None and new is not None:
                buffer.copy_(new)
        self.graph.replay()
        return None if self.found is None else self.found.clone()  # the next replay writes to the same memory

    def _record(self, given: tuple[Tensor | None, ...]) -> None:
        """Recording does not run the step. It is made on a stream of this device, which may not be the current one, and other threads may
        go on."""
        self.kept = [None if part is None else part.clone() for part in given]
        graph, own = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with (
            _no_collection(),
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"),
        ):
            self.found = self.step(*self.kept)
        self.graph = graph


def beside(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches, on a CUDA device from a stream of their own: what is read back to check them does not wait for the steps that were
    started before."""
    if device.type != "cuda":
        yield from batches
        return
    own, steps = _streams(device, threading.get_ident())[0], torch.cuda.current_stream(device)
    own.wait_stream(steps)
    while True:
        with torch.cuda.stream(own):
            batch = next(batches, None)
        if batch is None:
            return
        steps.wait_stream(own)
        _used_on(steps, batch)
        yield batch


class InOrder:
    """Parts of a step, by number, that do not depend on each other, one after the other."""

    def __enter__(self) -> InOrder:
        return self

    def begin(self, number: int) -> None:
        """Let a part start once all that was started so far is done; it does not wait for what comes later."""

    def run(self, parts: tuple[int, ...], call: Callable[..., Found], *given: Any) -> Found:
        """What a call returns that belongs to the first of these parts, behind the earlier ones of all of them."""
        return call(*given)

    def __exit__(self, *_: object) -> None:
        """Wait for all parts."""


_IN_ORDER = InOrder()  # keeps nothing


class Streams(InOrder):
    """Each part on a CUDA stream of its own, since its kernels may be too small to fill the device. What the parts read must outlive the
    `with` block."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.begun, self.found = device, dict[int, torch.cuda.Stream](), list[Any]()

    def begin(self, number: int) -> None:
        _, *streams = _streams(self.device, threading.get_ident())
        self.begun[number] = streams[number % len(streams)]
        self.begun[number].wait_stream(torch.cuda.current_stream(self.device))

    def run(self, parts: tuple[int, ...], call: Callable[..., Found], *given: Any) -> Found:
        for each in parts:
            if each not in self.begun:
                self.begin(each)
        stream = self.begun[parts[0]]
        for each in parts[1:]:
            stream.wait_stream(self.begun[each])
        with torch.cuda.stream(stream):
            found = call(*given)
        self.found.append(found)
        return found

    def __exit__(self, *_: object) -> None:
        here = torch.cuda.current_stream(self.device)
        for stream in self.begun.values():
            here.wait_stream(stream)
        _used_on(here, self.found)


def work_on(device: torch.device) -> InOrder:
    """What runs the parts of a step on a device.

    >>> with work_on(torch.device("cpu")) as work:
    ...     work.run((0,), sum, [1, 1])
    2
    """
    return Streams(device) if device.type == "cuda" else _IN_ORDER


def _used_on(stream: torch.cuda.Stream, found: Any) -> None:
    """Memory of these tensors, which were allocated on another stream, is not used again before this one has read them; a recording has
    memory of its own."""
    if not torch.cuda.is_current_stream_capturing():
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.is_cuda:
                each.record_stream(stream)


@lru_cache
def _streams(device: torch.device, thread: int) -> list[torch.cuda.Stream]:
    """Those of a thread: one to read batches on, whose small kernels go first, and the others for parts of a step; torch has 32 different
    ones of each priority."""
    priorities = [-1] + [0] * _PARALLEL
    return [torch.cuda.Stream(device, priority) for priority in priorities]  # type: ignore[no-untyped-call]


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: it may free an older graph, which invalidates a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
