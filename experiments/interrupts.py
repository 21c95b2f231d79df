"""Ctrl-C in the fits of others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interruptible"]

_SAID = "Training interrupted by user"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends what runs inside; scikit-learn's networks would end their fit with a warning, and a half-trained score be stored."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_SAID)
        try:
            yield
        except UserWarning as warning:
            if _SAID in str(warning):
                raise KeyboardInterrupt from warning
            raise
