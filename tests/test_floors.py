"""A file imports only from lower floors; on floor 1, losses may import activations, nothing else crosses."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "liftednn"
FLOORS = {
    "base": 0,
    "files": 0,
    "functional": 0,
    "interrupt": 0,
    "activations": 1,
    "losses": 1,
    "penalties": 1,
    "operators": 1,
    "robust": 1,
    "moments": 2,
    "pruning": 2,
    "solvers": 2,
    "sources": 2,
    "checkpoint": 2,
    "tables": 2,
    "network": 3,
    "start": 4,
    "whitening": 4,
    "blocks": 4,
    "modules": 4,
    "bcd": 5,
    "predict": 5,
    "feed": 5,
    "choices": 5,
    "graphs": 5,
    "learning": 5,
    "monitor": 6,
    "minibatch": 7,
    "saving": 7,
    "init": 8,
    "estimators": 8,
    "testing": 8,
    "experiments": 9,
    "jobs": 9,
    "cli": 10,
}
CROSSINGS = {("losses", "activations"), ("robust", "losses"), ("functional", "base"), ("solvers", "moments")}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported_rooms(tree: ast.Module) -> set[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [
                f"{node.module}.{alias.name}" if node.module == "liftednn" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("liftednn.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_lower_floors(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported_rooms(ast.parse(path.read_text())) - {room}:
        lower = FLOORS[other] < FLOORS[room]
        assert lower or (room, other) in CROSSINGS, (
            f"{room} (floor {FLOORS[room]}) imports {other} (floor {FLOORS[other]})"
        )


def test_no_file_is_too_long() -> None:
    assert {path.name: lines for path in FILES if (lines := len(path.read_text().splitlines())) > 350} == {}


def test_the_rule_can_fail() -> None:
    assert imported_rooms(ast.parse("from liftednn import bcd\nfrom liftednn.solvers.ridge import ridge")) == {
        "bcd",
        "solvers",
    }
