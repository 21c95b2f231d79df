"""Steps without Python in the loop: on a CUDA device a step is recorded once as a graph and replayed for every batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.blocks import Descent

__all__ = ["recorded"]

_WARM_UP = 3


def recorded(descent: Descent) -> Callable[[Tensor, Tensor, Tensor | None], None]:
    """`descent.step`, or on a CUDA device its recording; batches of another shape than the first take the plain step."""
    return descent.step if descent.rate.device.type != "cuda" or descent.proxed else _Recorded(descent)


class _Recorded:
    def __init__(self, descent: Descent) -> None:
        self.descent, self.calls = descent, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x = self.y = descent.rate
        self.counts: Tensor | None = None

    def __call__(self, x: Tensor, y: Tensor, counts: Tensor | None) -> None:
        if self.graph is not None and x.shape == self.x.shape and (counts is None) == (self.counts is None):
            self.x.copy_(x)
            self.y.copy_(y)
            if self.counts is not None and counts is not None:
                self.counts.copy_(counts)
            self.graph.replay()
            return
        self.descent.step(x, y, counts)
        self.calls += 1
        if self.calls == _WARM_UP and self.graph is None:
            self._record(x, y, counts)

    def _record(self, x: Tensor, y: Tensor, counts: Tensor | None) -> None:
        """Recording does not run the step."""
        self.x, self.y, self.counts = x.clone(), y.clone(), None if counts is None else counts.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.descent.step(self.x, self.y, self.counts)
