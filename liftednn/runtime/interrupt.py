"""Ctrl-C takes effect between two steps, never within one, so that the weights are consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Interruption", "between_steps"]


class Interruption(KeyboardInterrupt):
    """A Ctrl-C that took effect between two steps."""


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Gives a function to call after every step: it raises `Interruption` if Ctrl-C was pressed since. A second Ctrl-C
    raises a plain KeyboardInterrupt at once; one after the last call is raised at the end.

    Signals reach the main thread only; in other threads, and where another handler is set, nothing is changed.
    """
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not own:
        yield lambda: None
        return
    pressed = raised = False

    def remember(number: int, frame: object) -> None:
        nonlocal pressed, raised
        if pressed:
            raised = True
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        nonlocal raised
        if pressed:
            raised = True
            raise Interruption

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed and not raised:
        raise KeyboardInterrupt
