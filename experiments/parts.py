"""Long work in parts, each of which leaves records behind and is skipped where they are there: what sec. 7's commands have in common.

A run can be stopped at any moment, and the same command goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from experiments.store import Store

__all__ = ["Part", "do", "unless_stored"]


@dataclass(frozen=True)
class Part:
    """Some work and its name; `work` returns whether there was anything left to do."""

    name: str
    work: Callable[[], bool]


def unless_stored(store: Store, work: Callable[[], object], **fields: Any) -> Callable[[], bool]:
    """Work that leaves a record behind, as the work of a part."""

    def unless() -> bool:
        if store.get(**fields) is not None:
            return False
        work()
        return True

    return unless


def do(parts: Sequence[Part]) -> None:
    """One part after another, with progress on stderr; an interruption says how many are done."""
    done = 0
    try:
        with progress(len(parts)) as tell:
            for part in parts:
                started = time.perf_counter()
                tell(part.name, done, time.perf_counter() - started if part.work() else None)
                done += 1
    except KeyboardInterrupt:
        print(f"{done} of {len(parts)} parts are done", file=sys.stderr)
        raise


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int, float | None], None]]:
    """A bar if stderr is a terminal, otherwise a line for each part; parts that were stored already are not counted in the time left."""
    seconds: list[float] = []

    def left(done: int) -> str:
        return f"about {_span(sum(seconds) / max(len(seconds), 1) * (total - done))} left"

    def line(name: str, done: int, took: float | None) -> None:
        if took is not None:
            seconds.append(took)
            text = f"{done + 1} of {total}  {name}  {took:.1f} s  {left(done + 1)}"
            print(text, file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("first part", total=total)

        def draw(name: str, done: int, took: float | None) -> None:
            seconds.extend([took] if took is not None else [])
            bar.update(task, completed=done + 1, description=f"{left(done + 1)}, done: {name}")

        yield draw


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
