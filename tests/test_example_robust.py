"""The example page's picture, small: it is drawn, and shows what it is there to show."""

from pathlib import Path

import pytest

from examples.robust import LEVELS, main


@pytest.mark.slow
def test_the_robust_curves_lie_above_the_plain_one_and_above_the_scaling_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = main(["--small", "--out", str(tmp_path / "robust.png")])
    assert (tmp_path / "robust.png").read_bytes().startswith(b"\x89PNG")
    assert "box:0.01" in capsys.readouterr().out
    at = LEVELS.index(0.3)
    for name in ("noise:0.2", "ball:0.5", "box:0.01"):
        scaled = found[f"{name}, scaled only"]
        assert found["plain"][at] < scaled[at]
        assert found[name][at] > scaled[at] + 0.1
        assert found[name][0] > found["plain"][0] - 0.03
