"""The mini-batch step of training/descent.py for any torch module, as a torch optimiser."""

from liftednn.optim.lifted import Lifted

__all__ = ["Lifted"]
