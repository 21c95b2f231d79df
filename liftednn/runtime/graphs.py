"""Training steps as CUDA graphs, which are recorded once and replayed for every batch, without Python in between; batches that are read
and checked while a step runs; and parts of a step that run at the same time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["WARM_UP", "beside", "recorded", "side_by_side"]

WARM_UP = 3

Step = Callable[..., Any]
Batch = TypeVar("Batch", bound=tuple[Tensor | None, ...])
Found = TypeVar("Found")


def recorded(step: Step, device: torch.device) -> Step:
    """A function of tensors (or None) that changes other tensors in place and returns one or None; on a CUDA device, its recording.

    The first `WARM_UP` calls are plain steps, and so are those with other shapes than the first.
    """
    return _Recorded(step) if device.type == "cuda" else step


class _Recorded:
    def __init__(self, step: Step) -> None:
        self.step, self.calls = step, 0
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
        """Recording does not run the step."""
        self.kept = [None if part is None else part.clone() for part in given]
        self.graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(self.graph):
            self.found = self.step(*self.kept)


def beside(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches, on a CUDA device from a stream of their own: what is read back to check them does not wait for the steps that were
    started before."""
    if device.type != "cuda":
        yield from batches
        return
    own, steps = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
    own.wait_stream(steps)
    while True:
        with torch.cuda.stream(own):
            batch = next(batches, None)
        if batch is None:
            return
        steps.wait_stream(own)
        for part in batch:
            if part is not None:
                part.record_stream(steps)  # its memory is not used again before the step has read it
        yield batch


def side_by_side(calls: Sequence[Callable[[], Found]], device: torch.device) -> list[Found]:
    """What the calls return, which do not depend on each other; on a CUDA device each has a stream of its own, since their kernels may be
    too small to fill it. What they read must outlive this call."""
    if device.type != "cuda" or len(calls) < 2:
        return [call() for call in calls]
    here, streams, found = torch.cuda.current_stream(device), _streams(device, len(calls)), []
    try:
        for stream, call in zip(streams, calls, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                found.append(call())
    finally:
        # Only now: a later call would otherwise wait for the earlier ones. What was allocated on these streams is used again only after
        # the next `wait_stream(here)`, when all that reads it here is done.
        for stream in streams:
            here.wait_stream(stream)
    return found


@lru_cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


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
