"""Ctrl-C between two steps, never within one: what is kept is then whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Interruption", "between_steps"]


class Interruption(KeyboardInterrupt):
    """A Ctrl-C that came to be noticed between two steps."""


@contextmanager
def between_steps() -> Iterator[Callable[[], None]]:
    """Gives a function to call after every step: it raises `Interruption` if Ctrl-C was pressed since. A second Ctrl-C is at
    once, and no `Interruption`; one that came after the last call is raised at the end.

    Signals reach the main thread only; elsewhere, and where Ctrl-C is not Python's own, nothing is changed.
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

    def ask() -> None:
        nonlocal raised
        if pressed:
            raised = True
            raise Interruption

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield ask
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed and not raised:
        raise KeyboardInterrupt
