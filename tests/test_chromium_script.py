"""tests/chromium.sh on a machine for which npm has no browser: it names the system's own, or says what to install."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "chromium.sh"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All that is on the PATH: what the script needs, of an Arm machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "dirname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    program(folder / "uname", "echo Linux aarch64")
    return folder


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def ran(programs: Path) -> subprocess.CompletedProcess[str]:
    """A copy, whose repository has no .venv."""
    copy = programs.parent / "tests" / SCRIPT.name
    copy.parent.mkdir()
    shutil.copy(SCRIPT, copy)
    command = [str(shutil.which("bash")), str(copy)]
    return subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_the_systems_own_is_taken(programs: Path, name: str) -> None:
    program(programs / name, "exit 1")
    found = ran(programs)
    assert (found.returncode, found.stderr) == (0, "")
    expected = (
        f"chromium: {programs / name} of the system, since the npm package is for Linux x86_64, not for Linux aarch64\n"
    )
    assert found.stdout == expected


def test_without_any_it_says_what_to_install(programs: Path) -> None:
    found = ran(programs)
    assert (found.returncode, found.stdout) == (1, "")
    assert "the system has none: install chromium, or name one in LIFTEDNN_CHROMIUM" in found.stderr
