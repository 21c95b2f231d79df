"""Work for a store, done by one process or by several; only this one writes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import Any, NamedTuple

from experiments.store import Fields, Store

__all__ = ["Job", "fill"]


class Job(NamedTuple):
    """A function without arguments, which another process can be sent, and the fields of its record."""

    work: Callable[[], Mapping[str, Any]]
    fields: Fields


def fill(store: Store, jobs: Sequence[Job], workers: int = 1) -> None:
    """Do and store all jobs that are not stored yet, in their order, or as they end with more than one process."""
    left = [job for job in jobs if store.get(**job.fields) is None]
    if workers == 1 or len(left) < 2:
        for job in left:
            store(job.work, **job.fields)
        return
    before = set(active_children())
    # A forked copy of a process that has used torch's threads may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _leave_interruption_to_the_parent) as pool:
        futures = {pool.submit(job.work): job for job in left}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                _keep(store, future, futures[future], f"{done} of {len(left)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - before:
                process.terminate()  # or the pool would wait for the end of what they do
            raise


def _leave_interruption_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _keep(store: Store, future: Future[Mapping[str, Any]], job: Job, progress: str) -> None:
    names = ", ".join(str(value) for value in job.fields.values())
    try:
        store.add(future.result(), **job.fields)
    except Exception as error:
        error.add_note(f"in the job of {names}")
        raise
    store.tell(f"{store.path.stem}: {names}: {progress}")
