"""The example of docs/robust.md runs, small, and shows what it is there to show."""

from __future__ import annotations

import pytest

from examples.robust import LEVELS, main


@pytest.mark.slow
def test_the_robust_curves_lie_above_the_plain_one_and_above_the_scaling_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = main(["--small"])
    assert "box:0.01" in capsys.readouterr().out
    at = LEVELS.index(0.3)
    for name in ("noise:0.2", "ball:0.5", "box:0.01"):
        scaled = found[f"{name}, scaled only"]
        assert found["plain"][at] < scaled[at]
        assert found[name][at] > scaled[at] + 0.1
        assert found[name][0] > found["plain"][0] - 0.03
