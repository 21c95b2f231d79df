"""Torch modules as lifted networks, and back (eq. 1 and 2): a chain of Linear layers and activations, each activation an argmin map.

reading.py takes a module apart, tracing.py one that has a `forward` of its own; layers.py pairs torch's layers with activations.
"""

from __future__ import annotations

from liftednn.modules.convert import from_module, network_of, precision, to_module, weights_of
from liftednn.modules.reading import Chain, read
from liftednn.modules.tracing import Step

__all__ = ["Chain", "Step", "from_module", "network_of", "precision", "read", "to_module", "weights_of"]
