"""Torch modules as lifted networks, and back (eq. 1 and 2): Linear layers, sums and activations, each activation an argmin map.

reading.py reads a Sequential, tracing.py a module with its own `forward`; building.py turns their calls into the layers of graph.py, and
layers.py maps torch's activations to those of liftednn. writing.py converts back to torch.
"""

from __future__ import annotations

from liftednn.modules.calls import Step, unsupported
from liftednn.modules.convert import from_module, network_of, precision, weights_of
from liftednn.modules.feedforward import FeedForward, Rule, State
from liftednn.modules.graph import Graph, Use
from liftednn.modules.reading import read
from liftednn.modules.writing import to_module

__all__ = [
    "FeedForward",
    "Graph",
    "Rule",
    "State",
    "Step",
    "Use",
    "from_module",
    "network_of",
    "precision",
    "read",
    "to_module",
    "unsupported",
    "weights_of",
]
