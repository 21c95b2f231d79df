"""The experiments as a program: `python -m experiments NAME`; `python -m experiments --help` lists the names.

What is stored is not run again: stop at any moment, and the same command goes on. Exit codes are those of the `liftednn` command.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from experiments.settings import Settings
from experiments.store import RESULTS
from liftednn.cli import output
from liftednn.data.validation import check_device

__all__ = ["EXPERIMENTS", "PAGES", "app", "main", "run"]

# Modules that measure and store, each with `run(settings)`. `TAKES` names the options that it takes besides the common ones.
EXPERIMENTS = {
    "table1": "experiments.table1",
    "compare": "experiments.compare",
    "regimes": "experiments.regimes",
    "training": "experiments.training",
    "estimators": "experiments.estimators",
    "tables": "experiments.tables",
    "curves": "experiments.curves",
    "initialisation": "experiments.initialisation",
    "robust": "experiments.robust",
    "refit": "experiments.refit",
    "constraints": "experiments.constraints",
    "regression": "experiments.regression",
    "examples": "experiments.examples",
    "paper-model": "experiments.paper_model",
    "nnls": "experiments.nnls",
    "full-pass": "experiments.full_pass",
    "memory": "experiments.memory",
    "streaming": "experiments.streaming",
    "convolution": "experiments.convolution",
    "optimisers": "experiments.optimisers",
    "robustness": "experiments.robustness",
    "ablate": "experiments.ablate",
    "gpu": "experiments.gpu",
    "variants": "experiments.variants",
    "versions": "experiments.versions",
}
# Modules that show what is stored; the demonstration trains.
PAGES = {
    "demo": "experiments.demo",
    "figure1": "experiments.figure1",
    "report": "experiments.report",
    "figures": "experiments.figures",
}

DeviceName = StrEnum("DeviceName", "cpu cuda")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(
    epilog="Example:  python -m experiments table1 --quick, or with a GPU:  python -m experiments table1 --device cuda"
)
def _command(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join((*EXPERIMENTS, *PAGES))}.", metavar="NAME")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A tiny run, to see that all works; stored only if --results is given, in its subfolder quick.",
        ),
    ] = False,
    device: Annotated[DeviceName, typer.Option(help="Where to compute.")] = DeviceName.cpu,
    results: Annotated[
        Path | None, typer.Option(help="The folder of the store; by default the repository's results.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, where it can be chosen.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only a part: an architecture of table1, a set of compare or estimators, a kind of regimes, a part, set or method "
            "of tables, a panel of curves, a part of convolution or optimisers, the commit of versions. Repeatable."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file of the picture or page, where one is made.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many processes, each with one thread, where it can be chosen.")
    ] = None,
) -> None:
    """Run an experiment, or show what is stored of all of them (demo, figure1, report, figures)."""
    folder = results / "quick" if quick and results else results or RESULTS
    given = Settings(quick, device.value, folder, seeds, tuple(only or ()), out, workers)
    if name in EXPERIMENTS:
        check_device(device.value)
    if quick and results is None and name in EXPERIMENTS:
        with tempfile.TemporaryDirectory() as passing:
            run(name, replace(given, results=Path(passing)))
    else:
        run(name, given)


def run(name: str, settings: Settings) -> None:
    """Run one of `EXPERIMENTS` or `PAGES`."""
    known = EXPERIMENTS | PAGES
    if name not in known:
        raise ValueError(f"there is no experiment {name!r}: the names are {', '.join(known)}")
    module = import_module(known[name])
    takes = getattr(module, "TAKES", ())
    if settings.device != "cpu" and "device" not in takes:
        raise ValueError(f"{name} runs on the CPU alone: leave out --device")
    for option in ("seeds", "only", "out", "workers"):
        if getattr(settings, option) and option not in takes:
            raise ValueError(f"{name} takes no --{option}: leave it out")
    module.run(settings)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line, and exit with its code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    stored = "what is done is stored, and the same command goes on from there"
    output.run_app(app, given, "python -m experiments", stored)


if __name__ == "__main__":
    main()
