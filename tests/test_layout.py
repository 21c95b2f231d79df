"""A package imports only from packages of a lower number in `IMPORT_ORDER`, with a few exceptions; files are short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "liftednn"
IMPORT_ORDER = {
    "base": 0,
    "checks": 0,
    "functional": 0,
    "reduce": 0,
    "runtime": 0,
    "activations": 1,
    "losses": 1,
    "penalties": 1,
    "operators": 1,
    "moments": 2,
    "solvers": 2,
    "network": 3,
    "blocks": 4,
    "data": 4,
    "step": 4,
    "robust": 5,
    "predict": 5,
    "training": 6,
    "defaults": 7,
    "saving": 7,
    "modules": 7,
    "optim": 7,
    "init": 8,
    "nn": 8,
    "estimators": 8,
    "testing": 8,
    "cli": 10,
    "__main__": 11,
}
EXCEPTIONS = {("losses", "activations"), ("functional", "base"), ("functional", "reduce"), ("solvers", "moments")}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported_packages(tree: ast.Module) -> set[str]:
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
def test_imports_follow_the_order_of_packages(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported_packages(ast.parse(path.read_text())) - {package}:
        lower = IMPORT_ORDER[other] < IMPORT_ORDER[package]
        assert lower or (package, other) in EXCEPTIONS, (
            f"{package} ({IMPORT_ORDER[package]}) imports {other} ({IMPORT_ORDER[other]})"
        )


def imports_experiments(tree: ast.Module) -> bool:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    names = [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found]
    return any(name.split(".")[0] == "experiments" for name in names)


def test_the_package_needs_no_experiment() -> None:
    """They are not in the wheel."""
    assert [path.name for path in FILES if imports_experiments(ast.parse(path.read_text()))] == []
    assert imports_experiments(ast.parse("from experiments.datasets import mnist"))


def test_no_file_is_too_long() -> None:
    every = [*FILES, *(ROOT.parent / "experiments").glob("*.py")]
    assert {path.name: lines for path in every if (lines := len(path.read_text().splitlines())) > 350} == {}


ROBUST = [path for path in FILES if "robust" in path.relative_to(ROOT).parts]
# The kinds of uncertainty, the divergences they make and their terms.
OF_ROBUST = {
    node.name for path in ROBUST for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
}


def names_in(node: ast.AST) -> set[str]:
    named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return named | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def isinstance_on_kinds(tree: ast.Module) -> list[str]:
    """Calls of isinstance with a class of `robust`, or on an uncertainty; only isinstance(..., Uncertainty) is allowed."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and names_in(node.func) & {"isinstance", "issubclass"}:
            given, classes = names_in(node.args[0]), names_in(node.args[-1])
            if classes & OF_ROBUST or ("uncertainty" in given and classes != {"Uncertainty"}):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.MatchClass) and names_in(node.cls) & OF_ROBUST:
            found.append(ast.unparse(node))
    return found


def test_no_isinstance_on_kinds_of_uncertainty_outside_robust() -> None:
    others = [path for path in FILES if path not in ROBUST]
    assert {path.name: lines for path in others if (lines := isinstance_on_kinds(ast.parse(path.read_text())))} == {}


def test_the_check_finds_isinstance_on_kinds() -> None:
    assert {"BoxBall", "FrobeniusBall", "Noise", "WorstCaseSoftmax", "WorstCase"} <= OF_ROBUST
    for line in (
        "isinstance(layer.uncertainty, BoxBall)",
        "isinstance(kind, robust.Noise | FrobeniusBall)",
        "isinstance(robust, (WorstCase, WorstCaseSoftmax))",
        "isinstance(layer.uncertainty, Mine)",
        "issubclass(type(kind), BoxBall)",
        "match kind:\n    case BoxBall():\n        pass",
    ):
        assert isinstance_on_kinds(ast.parse(line)), line
    assert isinstance_on_kinds(ast.parse("isinstance(self.uncertainty, Uncertainty)")) == []


# Packages that make operators, read them from torch's layers, or check them.
MAY_TEST_FOR_DENSE = ("operators", "modules", "testing")


def isinstance_on_dense(tree: ast.Module) -> list[str]:
    """Tests of whether an operator is `Dense`: other packages may use only what an operator declares."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and names_in(node.func) & {"isinstance", "issubclass"}:
            tested = "Dense" in names_in(node.args[-1])
        elif isinstance(node, ast.Compare):
            tested = "type" in names_in(node) and "Dense" in names_in(node)
        else:
            tested = isinstance(node, ast.MatchClass) and "Dense" in names_in(node.cls)
        if tested:
            found.append(ast.unparse(node))
    return found


def test_no_isinstance_on_dense_outside_its_packages() -> None:
    others = [path for path in FILES if path.relative_to(ROOT).parts[0] not in MAY_TEST_FOR_DENSE]
    assert {path.name: lines for path in others if (lines := isinstance_on_dense(ast.parse(path.read_text())))} == {}
    for line in (
        "isinstance(layer.operator, Dense)",
        "isinstance(layer.operator, (operators.Dense, Sum))",
        "type(layer.operator) is Dense",
        "layer.operator.__class__ is Dense or type(x) == Dense",
        "match a:\n    case Dense():\n        pass",
    ):
        assert isinstance_on_dense(ast.parse(line)), line
    assert isinstance_on_dense(ast.parse("Layer(Dense(3, 4), relu)")) == []


def test_the_import_check_finds_imports() -> None:
    assert imported_packages(ast.parse("from liftednn import bcd\nfrom liftednn.solvers.ridge import ridge")) == {
        "bcd",
        "solvers",
    }
