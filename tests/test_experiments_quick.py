"""Every experiment runs: small, in a store of its own, and a second time without doing anything again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from experiments import __main__ as program
from experiments import datasets, image_blocks
from experiments.datasets import Dataset
from experiments.settings import Settings
from liftednn.training import plan

# The slowest of them.
SLOW = (
    *("initialisation", "regression", "robust", "paper-model", "versions", "variants", "curves"),
    *("convolution", "optimisers", "ablate"),  # tests of their own run a part of each
)


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten clusters in the place of MNIST, which takes a second to load."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (2000,), generator=generator)
    x = (torch.rand(10, 784, generator=generator)[y] + 0.3 * torch.randn(2000, 784, generator=generator)).clamp(0, 1)
    monkeypatch.setattr(datasets, "_mnist", lambda: Dataset(x[:1800], y[:1800], x[1800:], y[1800:]))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few passes of initial weights, of which few rows have many, and one iteration of the lifted rule for LeNet."""
    monkeypatch.setattr(plan, "_MOST_INITIAL", 3)
    monkeypatch.setattr(image_blocks, "LIFTED_MOST", 1)


@pytest.mark.usefixtures("digits", "short")
@pytest.mark.filterwarnings("ignore:lifted_. a linear model")  # after so few passes
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in program.EXPERIMENTS]
)
def test_every_experiment_runs_and_is_not_run_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    program.run(name, Settings(quick=True, results=tmp_path))
    first, stored = capsys.readouterr(), _lines(tmp_path)
    assert list(stored) == [f"{name}-cpu.jsonl"]
    assert torch.get_num_threads() == threads
    program.run(name, Settings(quick=True, results=tmp_path))
    assert _lines(tmp_path) == stored
    assert capsys.readouterr().out == first.out
    assert re.search(r"\d\.\d", first.out)


def _lines(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.usefixtures("digits")
def test_quick_results_make_a_page(tmp_path: Path) -> None:
    for name in ("compare", "regimes"):
        program.run(name, Settings(quick=True, results=tmp_path))
    program.run("report", Settings(quick=True, results=tmp_path, out=tmp_path / "r.html"))
    text = (tmp_path / "r.html").read_text()
    assert "friedman: test root mean squared error" in text
    assert "few rows" in text
