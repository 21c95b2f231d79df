"""Where an interrupted run left off: tensors in a safetensors file, with JSON beside them in its header; no pickle.

A file is written beside the old one and then renamed over it, so that a crash leaves one of the two whole.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from liftednn.files import beside, read_tensors

__all__ = ["Checkpoint", "described"]

_FORMAT = "liftednn-checkpoint-1"


@dataclass
class Checkpoint:
    """A file that a run writes every `seconds`, and at its end; a run that finds one with its own settings goes on from there."""

    path: str | Path
    seconds: float = 60.0
    _last: float = field(default_factory=time.monotonic, repr=False)

    @property
    def due(self) -> bool:
        return time.monotonic() - self._last >= self.seconds

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        head = {"format": _FORMAT, "facts": json.dumps(facts)}
        with beside(self.path) as part:
            part.write_bytes(safetensors.torch.save(whole, head))
        self._last = time.monotonic()

    def load(self, settings: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved, or None where there is no file. One of another run is refused."""
        path = Path(self.path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return None
        head, tensors = read_tensors(path, "checkpoint", "delete it to start anew", self._check_format)
        try:
            facts: dict[str, Any] = json.loads(head["facts"])
            there = facts["settings"]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is no whole checkpoint ({error}): delete it to start anew") from error
        if there != settings:
            raise ValueError(
                f"{path} belongs to a run with other settings: use the same ones, or delete it to start anew.\n"
                f"there: {there}\nhere:  {settings}"
            )
        return tensors, facts

    def _check_format(self, head: dict[str, str]) -> None:
        if head.get("format") != _FORMAT:
            raise ValueError(f"{self.path} is not a checkpoint of liftednn: name another file")


def described(thing: object) -> str:
    """What an object of dataclasses is, in full: its repr, which rounds and shortens tensors, and a checksum of those it holds."""
    digest, tensors = hashlib.sha256(), list(_tensors(thing))
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{thing!r}, its tensors {digest.hexdigest()[:16]}," if tensors else repr(thing)


def _tensors(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif is_dataclass(thing):
        for each in fields(thing):
            yield from _tensors(getattr(thing, each.name))
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from _tensors(part)
