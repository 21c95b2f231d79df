"""The command line: `liftednn fit`, `predict` and `init`."""

from liftednn.cli.commands import main

__all__ = ["main"]
