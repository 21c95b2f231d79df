"""Settings of the whole process that some work needs otherwise. Where several threads do such work at once, the first one to begin keeps
the value that was there, and the last one to end restores it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Setting"]


class Setting:
    """One setting, and the value that it has inside `changed()`.

    by_thread   every thread has a value of its own besides, which is restored when it ends
    """

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], object], value: Any, by_thread: bool = False
    ) -> None:
        self.read, self.write, self.value, self.by_thread = read, write, value, by_thread
        self._lock, self._inside, self._before = threading.Lock(), 0, None
        self._own = threading.local()  # how deep this thread is inside

    @contextmanager
    def changed(self) -> Iterator[None]:
        outer = getattr(self._own, "depth", 0)
        with self._lock:
            if not self._inside:
                self._before = self.read()
            self._inside += 1
            self._own.depth = outer + 1
            self.write(self.value)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                self._own.depth = outer
                if not self._inside or (self.by_thread and not outer):
                    self.write(self._before)
