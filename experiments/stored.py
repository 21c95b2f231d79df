"""Committed results, and tables of them in Markdown."""

from __future__ import annotations

import json
from typing import Any

from experiments.screen import RESULTS


def rows(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return loaded


def machine(name: str) -> str:
    seen = json.loads((RESULTS / f"{name}.json").read_text())["machine"]
    return f"{seen['device']}, {seen['threads']} threads" if seen["device"] == "cpu" else str(seen["device"])


def grid(header: list[str], body: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *body)]
