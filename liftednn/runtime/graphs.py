"""Training steps as CUDA graphs, which are recorded once and replayed for every batch, without Python in between; and batches that are
read and checked while a step runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["WARM_UP", "beside", "recorded"]

WARM_UP = 3

Step = Callable[..., Any]
Batch = TypeVar("Batch", bound=tuple[Tensor | None, ...])


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
