"""Where an interrupted run left off: tensors in a safetensors file, with JSON beside them in its header; no pickle.

A file is written beside the old one and then renamed over it, so that a crash leaves one of the two whole.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["Checkpoint"]

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
        path = Path(self.path)
        beside = path.with_name(path.name + ".part")
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(whole, beside, {"format": _FORMAT, "facts": json.dumps(facts)})
        os.replace(beside, path)
        self._last = time.monotonic()

    def load(self, settings: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved, or None where there is no file. One of another run is refused."""
        path = Path(self.path)
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name a file in it")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return None
        try:
            with safe_open(path, "pt") as stored:
                head = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole checkpoint ({error}): delete it to start anew") from error
        if head.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a checkpoint of liftednn: name another file")
        facts: dict[str, Any] = json.loads(head["facts"])
        if facts["settings"] != settings:
            raise ValueError(
                f"{path} belongs to a run with other settings: use the same ones, or delete it to start anew.\n"
                f"there: {facts['settings']}\nhere:  {settings}"
            )
        return tensors, facts
