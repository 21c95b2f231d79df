"""Records as experiments leave them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.store import Store


def kept(path: Path, *facts: dict[str, Any]) -> Store:
    """A store of table1 with these records added to what it holds: facts as `cells.cells` gives them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for one in facts:
            value = {name: each for name, each in one.items() if name != "versions"}
            known = {"architecture", "start", "rate", "method"} & value.get("parameters", {}).keys()
            given = {"kind": value.pop("kind")} | {name: value["parameters"][name] for name in known}
            if given["kind"] == "cell":
                given.pop("method", None)
            given |= {name: value.pop(name) for name in ("seed", "number") if name in value and _named(name, given)}
            file.write(json.dumps({**given, "value": value, "machine": one.get("versions", {})}) + "\n")
    return Store(path)


def _named(name: str, given: dict[str, Any]) -> bool:
    """A trial is named by its number, and has a seed in its value."""
    return name == "number" or given["kind"] != "trial"
