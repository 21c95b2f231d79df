"""Tables for the command line: reading.py reads files strictly, encoding.py turns their columns into a network's inputs and targets."""

from __future__ import annotations

from liftednn.tables.encoding import Column, Encoding
from liftednn.tables.reading import Table, read, suffix, write

__all__ = ["Column", "Encoding", "Table", "read", "suffix", "write"]
