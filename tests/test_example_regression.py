"""The example of docs/regression.md runs, small, and finds what it says."""

from __future__ import annotations

import pytest

from examples.regression import main


@pytest.mark.slow
def test_the_band_covers_and_robust_losses_ignore_outliers() -> None:
    found = main(["--small"])
    assert 0.7 < found["coverage of the 90% band"] < 0.95
    assert max(found["mean error, absolute"], found["mean error, huber"]) < 1 < found["mean error, squared"]
