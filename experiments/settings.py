"""What `python -m experiments NAME` was given, for every experiment alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.store import RESULTS, Store, open_store

__all__ = ["Settings", "threads"]


@dataclass(frozen=True)
class Settings:
    """
    quick     tiny sizes, to see in seconds that all works
    device    where to compute
    results   the folder of the store
    seeds     how many; None for as many as the experiment has by default
    only      parts of the experiment; all of them where empty
    out       the picture or page to write
    workers   how many processes to use; None for one
    """

    quick: bool = False
    device: str = "cpu"
    results: Path = RESULTS
    seeds: int | None = None
    only: tuple[str, ...] = ()
    out: Path | None = None
    workers: int | None = None

    def store(self, experiment: str, device: str | None = None, **more: Any) -> Store:
        """The records of an experiment, with progress on stderr."""
        inside = [each for each in (self.results, *self.results.parents) if each.exists()]
        if inside and not inside[0].is_dir():
            raise ValueError(f"results must be a folder, and {inside[0]} is a file: give another one to --results")
        return open_store(self.results, experiment, device or self.device, tell=_tell, **more)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
