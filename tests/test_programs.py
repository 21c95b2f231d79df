"""How the two programs, `liftednn` and `python -m experiments`, end: by exit codes, with a sentence in the place of a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from experiments import __main__ as experiments
from liftednn.cli import commands
from liftednn.data import tables

# For each program: where its work begins, a command line that leads there, and what Ctrl-C leaves.
PROGRAMS: dict[str, tuple[ModuleType, tuple[ModuleType, str], list[str], str]] = {
    "liftednn": (commands, (tables, "read"), ["fit", "t.csv", "--target", "y"], "no file was written"),
    "python -m experiments": (
        experiments,
        (experiments, "run"),
        ["demo"],
        "what is done is stored, and the same command goes on from there",
    ),
}


def raises(error: BaseException) -> Callable[..., Any]:
    def work(*_: object, **__: object) -> None:
        raise error

    return work


def code_of(main: Callable[[list[str]], Any], arguments: list[str]) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, None),
        (typer.Abort(), 130, None),
        (ValueError("give another"), 2, "give another"),
        (FileNotFoundError("no file"), 2, "no file"),
        (PermissionError("not yours"), 2, "not yours"),
        (typer.BadParameter("wrong."), 2, "Invalid value: wrong. See {program} --help"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else None,
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_both_programs_end_alike(
    program: str,
    error: BaseException,
    code: int,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, place, order, left = PROGRAMS[program]
    monkeypatch.setattr(*place, raises(error))
    out = ["--out", str(tmp_path / "m.safetensors")] if program == "liftednn" else []
    assert code_of(module.main, [*order, *out]) == code
    sentence = f"interrupted: {left}" if said is None else said.format(program=program)
    assert capsys.readouterr() == ("", f"liftednn: {sentence}\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_arguments_show_the_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(PROGRAMS[program][0].main, []) == 0
    assert f"Usage: {program} " in capsys.readouterr().out


@pytest.mark.parametrize("error", [OSError("no space"), ArithmeticError("inf"), MemoryError("full"), RuntimeError("x")])
def test_a_failed_run_is_a_sentence_of_the_command_and_a_traceback_of_an_experiment(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _, place, *_ in PROGRAMS.values():
        monkeypatch.setattr(*place, raises(error))
    order = ["fit", "t.csv", "--target", "y", "--out", str(tmp_path / "m.safetensors")]
    assert code_of(commands.main, [*order, "--json"]) == 1
    assert capsys.readouterr() == (f'{{"error": "{error}"}}\n', "")
    with pytest.raises(type(error)):
        experiments.main(["demo"])
