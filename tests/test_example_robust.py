"""The example page's picture, small: it is drawn, and shows what it is there to show."""

from pathlib import Path

import pytest

from examples.robust import LEVELS, curves, main
from liftednn.estimators.structure import Structured


def test_the_robust_curves_lie_above_the_plain_one_where_there_is_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = main(["--small", "--out", str(tmp_path / "robust.png")])
    assert (tmp_path / "robust.png").read_bytes().startswith(b"\x89PNG")
    assert "box:0.01" in capsys.readouterr().out
    at = LEVELS.index(0.3)
    monkeypatch.setattr(Structured, "_guarded", lambda self, network, inputs, stiff: network)
    scaled = curves(5, 1)  # columns measured with the noise, and no robust term
    for name in ("noise:0.2", "ball:0.5", "box:0.01"):
        assert found[name][at] > max(found["plain"][at], scaled[name][at]) + 0.1
        assert found[name][0] > found["plain"][0] - 0.03
