"""Checkpoints of a run: tensors in a safetensors file, with JSON and a checksum in its header; no pickle.

A file is written beside the old one and then renamed over it, so that a crash leaves one of the two complete. It records what its run
was trained on, part by part (`identity.py`), and only a run on the same can resume from it.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from liftednn.runtime.files import read_tensors, rebuilding, write_tensors

__all__ = ["Checkpoint"]

_FORMAT, _VERSION = "liftednn-checkpoint", 10
_CURE = "delete it to start again"


@dataclass
class Checkpoint:
    """A file that a run writes every `seconds`, and after each pass; a run with the same settings, network and data resumes from it.

    path      of the file; its folder is made if there is none
    seconds   between two writes within a pass

    >>> from tempfile import TemporaryDirectory
    >>> x, network = torch.eye(3), lnn.LiftedNetwork.mlp([3, 4, 3], activation="fenchel_relu")
    >>> with TemporaryDirectory() as folder:
    ...     checkpoint = lnn.Checkpoint(f"{folder}/run.safetensors")
    ...     fits = [lnn.MiniBatch(passes=2).run(network, x, torch.arange(3), checkpoint=checkpoint) for _ in range(2)]
    >>> fits[0].history == fits[1].history  # the second call found a finished run
    True
    """

    path: str | Path
    seconds: float = 60.0
    _last: float = field(default_factory=time.monotonic, repr=False)

    @property
    def due(self) -> bool:
        """Whether the last write is `seconds` ago."""
        return time.monotonic() - self._last >= self.seconds

    def save(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        """Write a run's state; `metadata["identity"]` is what `load` must be given."""
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_tensors(self.path, f"{_FORMAT}-{_VERSION}", json.dumps(metadata), whole)
        self._last = time.monotonic()

    def tensors(self) -> dict[str, Tensor]:
        """What the file holds, of whichever run; nothing where there is no file."""
        path = Path(self.path)
        return read_tensors(path, "checkpoint", _CURE, self._check_format)[1] if path.exists() else {}

    def load(self, identity: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved, or None where there is no file. One of another run is refused, with the parts that differ."""
        path = Path(self.path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return None
        metadata, tensors = read_tensors(path, "checkpoint", _CURE, self._check_format)
        there = metadata.get("identity")
        if not isinstance(there, dict):
            raise ValueError(f"{path} is not a complete checkpoint (it does not record its run): {_CURE}")
        self._check_same(there, identity)
        return tensors, metadata

    def rebuilding(self) -> AbstractContextManager[None]:
        """Context in which to restore what `load` gave: errors in it become a ValueError that names the file."""
        return rebuilding(self.path, _CURE)

    def _check_same(self, there: dict[str, Any], here: dict[str, str]) -> None:
        other = [part for part in {**here, **there} if there.get(part) != here.get(part)]
        if other:
            both = "\n".join(f"{part}\n  there: {there.get(part)}\n  here:  {here.get(part)}" for part in other)
            raise ValueError(
                f"{self.path} belongs to a run with other {', '.join(other)}: give the same as there, or {_CURE}\n{both}"
            )

    def _check_format(self, given: str) -> None:
        version = re.fullmatch(rf"{_FORMAT}-([1-9][0-9]{{0,8}})", given)
        if version is None:
            raise ValueError(f"{self.path} is not a checkpoint of liftednn: name another file")
        if int(version[1]) != _VERSION:
            writer = "a newer" if int(version[1]) > _VERSION else "an older"
            raise ValueError(
                f"{self.path} was written by {writer} liftednn (its format is {version[1]}, this one reads {_VERSION}): resume "
                f"with that version, or {_CURE}"
            )
