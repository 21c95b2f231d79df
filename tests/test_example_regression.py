"""The example of docs/regression.md runs, small, and finds what it says."""

import runpy
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_band_covers_and_robust_losses_ignore_outliers(tmp_path: Path) -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "regression.py"))
    found = example["main"](["--small", "--out", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert 0.7 < found["coverage of the 90% band"] < 0.95
    assert max(found["mean error, absolute"], found["mean error, huber"]) < 1 < found["mean error, squared"]
