"""The public interface, what importing the package loads, and what installing it brings."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from liftednn.cli import main
from tests.api import FILE, described

ROOT = Path(__file__).parents[1]
DEPENDENCIES = {"torch", "numpy", "scikit-learn", "safetensors", "lazy-loader"}
# What the command line alone may import besides.
EXTRA = {"typer", "rich", "pyarrow"}


def test_the_public_interface_is_the_one_that_is_written_down() -> None:
    """After a change that is meant: `python -m tests.api`, and an entry in CHANGELOG.md."""
    assert described() == FILE.read_text()


def test_importing_the_package_loads_little() -> None:
    code = "import sys; before = set(sys.modules); import liftednn; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {name.split(".")[0] for name in loaded} & {"torch", "numpy", "sklearn", "scipy", *EXTRA}
    assert len(loaded) < 60


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", each)[0] for each in requirements}


def test_an_installation_is_lean() -> None:
    settings = project()["project"]
    assert names(settings["dependencies"]) == DEPENDENCIES
    assert names(settings["optional-dependencies"]["cli"]) == EXTRA
    assert project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["liftednn"]


def test_modules_import_what_is_installed_with_them() -> None:
    allowed = {"torch", "numpy", "sklearn", "safetensors", "lazy_loader", "liftednn"} | set(sys.stdlib_module_names)
    for path in (ROOT / "liftednn").rglob("*.py"):
        parts = path.relative_to(ROOT / "liftednn").parts
        own = EXTRA if parts[0] == "cli" or parts[:2] == ("data", "tables") else set()
        for node in ast.walk(ast.parse(path.read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert {name.split(".")[0] for name in found} <= allowed | own, path


def test_a_command_line_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else find(name))
    with pytest.raises(SystemExit, match=r"the command line needs typer: pip install 'liftednn\[cli\]'"):
        main(["--help"])
