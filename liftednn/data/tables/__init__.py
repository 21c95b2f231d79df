"""Tables for the command line: reading.py reads files strictly, encoding.py turns their columns into a network's inputs and targets."""

from __future__ import annotations

from liftednn.data.columns import Column
from liftednn.data.tables.encoding import Encoding
from liftednn.data.tables.reading import Table, read, suffix, write
from liftednn.data.tables.values import check_text

__all__ = ["Column", "Encoding", "Table", "check_text", "read", "suffix", "write"]
