"""The example of learned activations runs small and moves towards the true slope."""

from __future__ import annotations

import pytest

from examples import learned_activations as example


@pytest.mark.slow
def test_the_example_runs_small(capsys: pytest.CaptureFixture[str]) -> None:
    ends = example.main(["--small"])
    assert set(ends) == {0.01, 0.6}
    for start, end in ends.items():
        assert abs(end - example.PLANTED) < 0.7 * abs(start - example.PLANTED)
    assert capsys.readouterr().out.count("planted 0.3") == 2
