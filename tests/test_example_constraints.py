"""The example runs, and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.constraints import main


@pytest.mark.slow
def test_the_example_runs_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "constraints.png"
    main(["--small", "--out", str(out)])
    assert out.stat().st_size > 10_000
    told = capsys.readouterr().out
    assert "orthogonal: accuracy" in told
    assert "of 100 units stay" in told
