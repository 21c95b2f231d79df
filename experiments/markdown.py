"""Tables of results: on the screen, and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.store import Store

__all__ = ["filled", "grid", "made_on", "table"]


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print it, columns in the order of the first row's keys."""
    columns = list(rows[0])
    cells = [columns, *([_show(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def grid(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *body)]


def filled(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown: under each heading its text with a row's values in it, as "{seconds:.2f}"."""
    return grid(list(columns), [[text.format(**row) for text in columns.values()] for row in rows])


def made_on(store: Store) -> str:
    """The machine of a store's first record, in words."""
    seen = store.records[0].machine
    threads = f"{seen['threads']} thread{'s' if seen['threads'] > 1 else ''}"
    return f"{seen['device']}, {threads}" if seen["device"] == "cpu" else str(seen["device"])
