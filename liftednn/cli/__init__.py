"""The command line: `liftednn fit`, `predict` and `init`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]

# What the command line needs beyond the package itself, as the extra "cli" has it.
_NEEDED = ("typer", "rich", "pyarrow")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command; `arguments` in place of those that the program was called with."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"liftednn: the command line needs {' and '.join(missing)}: pip install 'liftednn[cli]'")
    from liftednn.cli.commands import main as run

    run(arguments)
