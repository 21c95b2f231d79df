"""What the demonstration tells to run next can be run: each line is one of the command line's own, and finds what those before it leave."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from liftednn import cli
from liftednn.experiments import demo, table1


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """A command's name, and what it would be given."""
    name, *rest = shlex.split(line)
    group: Any = typer.main.get_command(cli.app)
    return name, group.commands[name].make_context(name, rest).params


@pytest.mark.parametrize("line", demo.NEXT)
def test_every_command_is_one(line: str) -> None:
    parsed(line)


def test_what_is_read_was_written_before() -> None:
    written = set()
    for name, given in map(parsed, demo.NEXT):
        if name == "table1":
            written.add(table1.plan_of(quick=given["quick"]).out)
        else:
            assert set(given.get("runs") or [given["run"]]) <= written
    assert len(written) == 2
