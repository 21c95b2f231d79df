"""The example of learned activations runs small, moves towards the true slope and draws its picture."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.mark.slow
def test_the_example_runs_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples import learned_activations as example

    ends = example.main(["--small", "--out", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert set(ends) == {0.01, 0.6}
    for start, end in ends.items():
        assert abs(end - example.PLANTED) < 0.7 * abs(start - example.PLANTED)
    assert capsys.readouterr().out.count("planted 0.3") == 2
