"""The example runs, and prints."""

from __future__ import annotations

import pytest

from examples.constraints import main


@pytest.mark.slow
def test_the_example_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--small"])
    told = capsys.readouterr().out
    assert "orthogonal: accuracy" in told
    assert "of 100 units stay" in told
