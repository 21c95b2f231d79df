"""The comparison with stored results: a few runs agree, and a small change of one number is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import baselines
from tests.baselines import Digest, compare, digest, main, measure

FEW = ["bcd/deep", "joint/softmax", "minibatch/deep", "classifier/defaults", "lifted_/prelu", "cli/classes"]


def test_a_few_runs_agree_with_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FEW) == 0, capsys.readouterr().out
    assert f"{len(FEW)} runs, all agree" in capsys.readouterr().out


def test_a_changed_weight_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = baselines.RUNS["bcd/linear"]

    def changed() -> dict[str, Any]:
        values = run()
        values["w0"][0, 0] += 1e-4
        return values

    monkeypatch.setitem(baselines.RUNS, "bcd/linear", changed)
    assert main(["bcd/linear"]) == 1
    assert "w0, projection 1, is" in capsys.readouterr().out


def test_a_run_that_fails_or_is_not_stored_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(baselines.RUNS, "bcd/linear", lambda: {"ratio": 1 / 0})
    monkeypatch.setitem(baselines.RUNS, "new", dict)
    assert main(["bcd/linear", "new"]) == 1
    told = capsys.readouterr().out
    assert "bcd/linear: fails: ZeroDivisionError" in told
    assert "new: is not stored: run with --write" in told


def test_missing_new_and_reshaped_values_are_complaints() -> None:
    found: Digest = {"a": digest([1.0, 2.0]), "b": digest(3.0)}
    stored: Digest = {"a": digest([[1.0, 2.0]]), "c": digest(float("nan"))}
    said = compare(found, stored).complaints
    assert said == ["c is missing", "b is not stored: run with --write", "a has shape [2], was [1, 2]"]
    assert compare({"c": digest(float("nan"))}, {"c": stored["c"]}).largest == 0
    assert compare({"c": digest(1.0)}, {"c": stored["c"]}).complaints


def test_what_is_written_is_read_back_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(baselines, "STORED", tmp_path / "baselines.json")
    assert main(["bcd/linear", "--write"]) == 0
    stored = baselines._read()
    assert compare(measure("bcd/linear"), stored["bcd/linear"]) == (0.0, [])
    assert main(["prune", "--write"]) == 0
    assert baselines._read().keys() == {"bcd/linear", "prune"}
