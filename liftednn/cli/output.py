"""What a command line prints: results on stdout, progress and errors on stderr. An error in printing does not stop the work."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from liftednn.training.result import Record

__all__ = ["fail", "flush", "open_streams", "print_summary", "progress", "reason", "run_app"]

# What typer raises for a wrong command line, in any version.
_UsageError: Any = typer.BadParameter.__mro__[1]


def run_app(
    app: typer.Typer,
    arguments: Sequence[str],
    program: str,
    interrupted: str,
    failures: tuple[type[Exception], ...] = (),
    as_json: bool = False,
) -> NoReturn:
    """Run a command line and exit with its code: 0 success, 1 one of `failures`, 2 invalid arguments or files, 130 Ctrl-C, each but
    the first with a sentence (see `fail`). Other errors are raised. No arguments show the help; `interrupted` says what Ctrl-C left."""
    open_streams()
    try:
        code = app(list(arguments) or ["--help"], prog_name=program, standalone_mode=False) or 0
        flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except _UsageError as error:
        code = fail(f"{error.format_message()} See {program} --help", 2, as_json)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        code = fail(str(error), 2, as_json)
    except failures as error:
        code = fail(reason(error), 1, as_json)
    if code == 130:
        fail(f"interrupted: {interrupted}", 130, as_json)
    sys.exit(code)


def open_streams() -> None:
    """Replace a closed stdout or stderr by os.devnull; otherwise the next file opened would get its number, and the output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def flush() -> None:
    """Flush stdout while an error can still be reported: at exit, Python would print a traceback."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OSError(reason(error)) from error


def reason(error: Exception) -> str:
    """Why a command failed, in words. An OSError without a file name is one of stdout, since errors of files.py name
    the file."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return f"stdout cannot be written to ({error.strerror}): the files are written, the printed results are lost"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{str(error.filename)[:100]} cannot be read or written: {error.strerror}"
    return str(error) or type(error).__name__


def fail(sentence: str, code: int, as_json: bool) -> int:
    """Print why a command failed: as JSON on stdout if `as_json` and possible, otherwise on stderr."""
    with suppress(OSError):
        if as_json:
            typer.echo(json.dumps({"error": sentence}))
            return code
    with suppress(OSError):
        typer.echo(f"liftednn: {sentence}", err=True)
    return code


@contextmanager
def progress(quiet: bool, passes: int, measure: str) -> Iterator[Callable[[Record], None]]:
    """Show each pass on stderr: on one line that is updated if it is a terminal, otherwise on a line each."""

    def line(record: Record) -> str:
        gap, score = max(record.gaps, default=0.0), record.validation_score
        shown = f"objective {record.objective:.4f}  gap {gap:.4f}  {measure} {record.score:.4f}"
        return f"pass {record.number} of {passes}  {shown}" + ("" if score is None else f"  validation {score:.4f}")

    if quiet or not sys.stderr.isatty():
        yield lambda record: None if quiet else _on_stderr(line(record))
        return
    from rich.console import Console

    with Console(stderr=True).status("first pass") as status:
        yield lambda record: status.update(line(record))


def _on_stderr(line: str) -> None:
    with suppress(OSError):
        typer.echo(line, err=True)


def print_summary(summary: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Print the results, one a line or as one JSON object."""
    if as_json:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in summary.items()}
        typer.echo(json.dumps(plain, allow_nan=False))
    for sentence in () if quiet else summary.pop("warnings", ()):
        _on_stderr(f"liftednn: warning: {sentence}")
    shown = {} if as_json or quiet else {name: value for name, value in summary.items() if value not in (None, [], {})}
    for name, value in shown.items():
        typer.echo(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
