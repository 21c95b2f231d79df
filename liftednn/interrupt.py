"""Ctrl-C between two steps, never within one: what is kept is then whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["between_steps"]


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Gives a function to call after every step: it raises KeyboardInterrupt if Ctrl-C was pressed since. A second Ctrl-C is at once.

    Signals reach the main thread only; elsewhere, and where Python does not handle Ctrl-C, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield lambda: None
        return
    pressed = False

    def remember(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def ask() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield ask
    finally:
        signal.signal(signal.SIGINT, before)
