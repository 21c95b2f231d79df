"""The experiments as a program: `python -m experiments --help`. Exit codes are those of the `liftednn` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from liftednn import output
from liftednn.files import check_place

__all__ = ["app", "main"]

app = typer.Typer(
    help="The experiments of lifted neural networks.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# What typer raises for a wrong command line, wherever its version keeps it.
_UsageError: Any = typer.BadParameter.__mro__[1]

Place = StrEnum("Place", "cpu cuda")
Sets = StrEnum("Sets", "mnist fashion cifar10 adult uci california")
Device = Annotated[Place, typer.Option(help="Where to train.")]


@app.command(epilog="Example:  python -m experiments demo --out demo.png")
def demo(out: Annotated[Path, typer.Option(help="Where to draw it.")] = Path("demo.png")) -> None:
    """Train 784-300-10 on MNIST, lifted and standard, and draw it; a few minutes."""
    from experiments.demo import main as run

    run([str(out)])


@app.command(
    epilog="Example:  python -m experiments table1 --quick, or with a GPU:  python -m experiments table1 --device cuda"
)
def table1(
    out: Annotated[
        Path | None, typer.Option(help="The folder for figures and table; results/table1 if not given.")
    ] = None,
    device: Device = Place.cpu,
    quick: Annotated[bool, typer.Option("--quick", help="A minute on a CPU, to see that all works.")] = False,
    architectures: Annotated[str | None, typer.Option(help="As 300,300-100; by default the paper's five.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Of first weights and order of rows; by default 5.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Of the search for lam and sweeps; by default 10.")] = None,
    literal: Annotated[
        bool, typer.Option("--literal", help="Also other readings: SGD, as printed and as fits.")
    ] = False,
) -> None:
    """Table 1 of the paper on MNIST, with the columns that it lacks. Every figure is a file: stop at any moment, and the same command
    goes on."""
    from experiments import table1 as run

    plan = run.plan_of(out, device.value, quick, architectures, seeds, trials, literal)
    code = run.table1(plan, device.value, quick)
    if code:
        sys.exit(code)  # what was interrupted has said so itself, and its files stay


@app.command(epilog="Example:  python -m experiments compare --data fashion --device cuda")
def compare(
    data: Annotated[Sets, typer.Option(help="What to compare on; uci is eight regression sets.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder for figures and tables; results/compare if not given.")
    ] = None,
    device: Device = Place.cpu,
    quick: Annotated[bool, typer.Option("--quick", help="Small and short, to see that all works.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, max=5, help="Of the test; by default 5.")] = None,
) -> None:
    """Standard networks from lifted and from random weights on other data, at a small rate and at a tuned one for the same total time.
    Stop at any moment, and the same command goes on."""
    from experiments.compare import compare as run

    code = run(out, data.value, device.value, quick, seeds)
    if code:
        sys.exit(code)


@app.command(epilog="Example:  python -m experiments regimes --device cuda")
def regimes(
    out: Annotated[Path, typer.Option(help="The folder for figures and table.")] = Path("results/regimes"),
    device: Device = Place.cpu,
    only: Annotated[list[str] | None, typer.Option(help="A kind of setting, as 'few rows'; again for more.")] = None,
) -> None:
    """Where lifted weights help most at tuned settings and equal total time: tried on held-back rows, tested once with fresh seeds.
    Hours without a GPU. Stop at any moment, and the same command goes on."""
    from experiments.regimes import regimes as run

    code = run(out, device.value, only or ())
    if code:
        sys.exit(code)


@app.command(epilog="Example:  python -m experiments figure1 results/table1 --out figure1.png")
def figure1(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `python -m experiments table1` wrote.")],
    out: Annotated[Path, typer.Option(help="The picture, .png; an .svg is written beside it.")] = Path("figure1.png"),
) -> None:
    """Figure 1 of the paper: test accuracy against epochs and against wall time, from the files of table1."""
    from experiments.figure1 import figure1 as draw

    _check_ending(out, ".png")
    for path in draw(run, out):
        typer.echo(str(path))


@app.command(
    epilog="Example:  python -m experiments report results/table1 results/compare results/regimes --out report.html"
)
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of `table1`, `compare` and `regimes`, in any order.")
    ],
    out: Annotated[Path, typer.Option(help="The page, .html.")] = Path("report.html"),
) -> None:
    """One page to look through: tables beside the paper's, curves, the search, and what was run. It needs no network."""
    from experiments.report import report as write

    _check_ending(out, ".html")
    typer.echo(str(write(runs, out)))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line, and exit with its code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(given or ["--help"], prog_name="python -m experiments", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except _UsageError as error:
        code = output.fail(f"{error.format_message()} See python -m experiments --help", 2, False)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        code = output.fail(str(error), 2, False)
    sys.exit(code)


def _check_ending(out: Path, ending: str) -> None:
    check_place(out)
    if not out.name.endswith(ending):
        raise ValueError(f"--out {out} must end in {ending}, the kind of file that is written")


if __name__ == "__main__":
    main()
