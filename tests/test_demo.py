"""The demonstration, small: an unwritable path is refused first, and the commands that it prints can be run one after another."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from experiments import __main__ as cli
from experiments import demo
from experiments.datasets import Dataset
from experiments.settings import Settings


def parsed(line: str) -> dict[str, Any]:
    """What a command would be given."""
    own: Any = typer.main.get_command(cli.app)
    given: dict[str, Any] = own.make_context("experiments", shlex.split(line)).params
    return given


@pytest.mark.parametrize("line", demo.NEXT)
def test_every_command_is_one(line: str) -> None:
    assert parsed(line)["name"] in cli.EXPERIMENTS | cli.PAGES


def test_what_is_read_was_written_before() -> None:
    written = set()
    for given in map(parsed, demo.NEXT):
        if given["name"] == "table1":
            written.add(given["results"])
        else:
            assert given["results"] in written
    assert written == {Path("quick"), None}


def synthetic() -> Dataset:
    """Four clusters in 12 dimensions, in the place of MNIST."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (700,), generator=generator)
    x = 2 * torch.randn(4, 12, generator=generator)[y] + torch.randn(700, 12, generator=generator)
    return Dataset(x[:500], y[:500], x[500:], y[500:])


@pytest.mark.parametrize("name", ["d.svg", "d.png"])
@pytest.mark.thin(2)
def test_it_prints_and_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "mnist", synthetic)
    monkeypatch.setattr(demo, "_HIDDEN", (8,))
    demo.run(Settings(out=tmp_path / name))
    told = " ".join(capsys.readouterr().out.split())
    assert "epoch 3 of 3 of Adam" in told
    assert "0.898 ± 0.005 lifted alone; standard network from Xavier 0.923 ± 0.005, from lifted 0.962 ± 0.003" in told
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


@pytest.mark.parametrize(
    ("name", "words"), [("d.foo", "must end in one of .png, .svg, .pdf"), ("no/d.png", "there is no folder")]
)
def test_a_place_is_refused_before_the_work(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "mnist", lambda: pytest.fail("the work has begun"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", "--out", str(tmp_path / name)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
