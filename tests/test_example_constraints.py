"""The example runs, and draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_example_runs_small(tmp_path: Path) -> None:
    out = tmp_path / "constraints.png"
    command = [sys.executable, "examples/constraints.py", "--small", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=None)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 10_000
    assert "orthogonal: accuracy" in done.stdout
    assert "of 100 units stay" in done.stdout
