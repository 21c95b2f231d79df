"""A torch optimiser for any module."""

from liftednn.optim.lifted import Lifted

__all__ = ["Lifted"]
