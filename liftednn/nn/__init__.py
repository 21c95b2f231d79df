"""Torch modules whose backward pass is the X-step of the lifted model, at a finite lam."""

from __future__ import annotations

from liftednn.nn.lifting import lift

__all__ = ["lift"]
