"""Batches as a trainer takes them: checked, encoded, on the device of training, in whitened coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from liftednn.data.arrays import as_tensor
from liftednn.data.sources import Gathered, Loader, Memory, Source, check_weights
from liftednn.data.validation import inputs, responses
from liftednn.network import LiftedNetwork
from liftednn.runtime.graphs import beside
from liftednn.training.checkpoint import Checkpoint
from liftednn.training.whitening import Coordinates

__all__ = ["Feed"]

Batch = tuple[Tensor, Tensor, Tensor | None]

# Rows that are copied at a time.
_ROWS = 8192
# What the names of generators in a checkpoint begin with: of their states before the sample, and of those before the pass.
_SAMPLED, _DRAWN = "sample.", "generator."


@dataclass
class Feed:
    """Where a network's batches come from. `weighted` says whether rows have weights, once a sample has been taken."""

    network: LiftedNetwork
    source: Source
    device: str | None
    coordinates: Coordinates | None = None
    weighted: bool = False
    like: Tensor | None = None  # gives the precision of all batches, that of the sample
    # States of a loader's generators: before the sample was drawn, when the present pass began, and those that the next one begins with.
    sampled: dict[str, Tensor] = field(default_factory=dict)
    drawn: dict[str, Tensor] = field(default_factory=dict)
    resumed: dict[str, Tensor] = field(default_factory=dict)

    def checked(self, x: Any, y: Any, row_weights: Any = None, like: Tensor | None = None) -> Batch:
        """Rows, encoded responses and row weights, on the device of training; with the dtype and device of `like`, if given."""
        rows = inputs(self.network, x)
        rows = rows.to(self.device) if self.device else rows
        rows = rows if like is None else rows.to(like)
        if row_weights is not None:
            row_weights = _without_underflow(as_tensor(row_weights, "sample_weight"), rows)
            check_weights(row_weights, len(rows))
        return rows, responses(self.network, y, rows), row_weights

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Before a loader draws the sample: as it was drawn in the run that is resumed."""
        if checkpoint is not None and isinstance(self.source, Loader):
            self.resumed = _named(_SAMPLED, checkpoint.tensors())
            self._keep_states()
            self.sampled = self.drawn

    def sample(self, count: int, seed: int) -> Batch:
        """At most `count` rows to prepare training with, not whitened."""
        x, y, row_weights = self.checked(*self.source.sample(count, seed))
        self.weighted, self.like = row_weights is not None, x[:0]
        return x, y, row_weights

    def enter(self, coordinates: Coordinates) -> None:
        """Give rows in these coordinates from now on. Data in memory is converted once, unless the copy would be too large."""
        self.coordinates = coordinates
        if isinstance(self.source, Gathered):
            self._gather(self.source, coordinates)
        elif isinstance(self.source, Memory):
            x, y, row_weights = self.checked(self.source.x, self.source.y, self.source.row_weights)
            self.source = replace(self.source, x=coordinates.whiten(x), y=y, row_weights=row_weights)

    def _gather(self, source: Gathered, coordinates: Coordinates) -> None:
        """A copy of all rows, made block by block, if it takes no more than `source.spare` bytes."""
        network = coordinates.network
        row = (
            (network.in_width + network.layers[-1].operator.out_width)
            * torch.finfo(source.sample(1, 0)[0].dtype).bits
            // 8
        )
        if row * len(source.x) > source.spare:
            return
        whole: list[Tensor] = []
        for chosen in torch.split(torch.arange(len(source.x)), _ROWS):
            x, y, row_weights = self.checked(*source.at(chosen))
            parts = [part for part in (coordinates.whiten(x), y, row_weights) if part is not None]
            whole = whole or [part.new_empty(len(source.x), *part.shape[1:]) for part in parts]
            for buffer, part in zip(whole, parts, strict=True):
                buffer[chosen[0] : chosen[-1] + 1] = part
        self.source = Memory(whole[0], whole[1], whole[2] if len(whole) > 2 else None)

    def batches(self, size: int, seed: int, number: int) -> Iterator[Batch]:
        """The batches of pass `number`."""
        batches = self.source.batches(size, seed, number)
        if isinstance(self.source, Memory):
            return batches
        assert self.like is not None
        return beside(self._streamed(batches), self.like.device)

    def _streamed(self, batches: Iterator[Any]) -> Iterator[Batch]:
        assert self.coordinates is not None
        self._keep_states()
        for x, y, row_weights in batches:
            if (row_weights is not None) != self.weighted:
                raise ValueError(
                    "some batches come with sample_weight and some without: give it with all, or with none"
                )
            if row_weights is None or bool((row_weights != 0).any()):  # a batch whose weights are all 0 is skipped
                rows, targets, checked = self.checked(x, y, row_weights, self.like)
                yield self.coordinates.whiten(rows), targets, checked
        self._keep_states()  # the next pass begins here

    def _keep_states(self) -> None:
        """Of a loader's generators, after those of a run that is resumed were set."""
        generators = self.source.generators() if isinstance(self.source, Loader) else {}
        for name, state in self.resumed.items():
            if name in generators:
                generators[name].set_state(state)
        self.resumed, self.drawn = {}, {name: each.get_state() for name, each in generators.items()}

    def state(self) -> dict[str, Tensor]:
        """What the sample and the batches of this pass depend on, besides the source itself."""
        both = ((_SAMPLED, self.sampled), (_DRAWN, self.drawn))
        return {f"{prefix}{name}": state for prefix, states in both for name, state in states.items()}

    def load(self, named: dict[str, Tensor]) -> None:
        """Begin the next pass as the one that `state` is of."""
        self.resumed = _named(_DRAWN, named)


def _without_underflow(row_weights: Tensor, rows: Tensor) -> Tensor:
    """The weights in the precision of the rows; those that would become 0 there are the smallest number, since 0 leaves a row out."""
    given = row_weights.to(rows)
    least = torch.finfo(given.dtype).tiny
    return torch.where((given == 0) & (row_weights.to(given.device) > 0), least, given)


def _named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
