"""The command line: train on a table, predict, initialise a standard network. See `liftednn --help`.

Exit codes: 0 success, 1 a run failed, 2 invalid arguments or files, 130 Ctrl-C. Files are written completely or not at all. Torch is
imported by the commands that need it, with jobs.py, so that --help is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import liftednn as lnn
from liftednn.cli import output
from liftednn.runtime.files import beside, check_writable

__all__ = ["app", "main"]

app = typer.Typer(
    help="Lifted neural networks: trained on a table, with no learning rate to tune.",
    epilog="Begin with:  liftednn fit train.csv --target label --out model.safetensors",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Activation = StrEnum("Activation", "relu leaky_relu hardtanh hardsigmoid sigmoid tanh softplus")
Task = StrEnum("Task", "auto classification regression")
Loss = StrEnum("Loss", "auto squared absolute huber quantile")
DeviceName = StrEnum("DeviceName", "cpu cuda")
Granularity = StrEnum("Granularity", "layer unit")

TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .csv.gz, .parquet or .npz file.")]
Target = Annotated[str, typer.Option(help="The column to learn.")]
Hidden = Annotated[
    str, typer.Option(help="Widths of the hidden layers, as 300 or 300,100; 0 for none; auto: by the rows.")
]
Acts = Annotated[Activation, typer.Option(help="The activation of the hidden layers.")]
Goal = Annotated[Task, typer.Option(help="By default inferred from the target; the reason is printed.")]
Error = Annotated[Loss, typer.Option(help="Of a real target; auto is squared. Classes have the softmax.")]
Level = Annotated[float | None, typer.Option(min=1e-6, max=1 - 1e-6, help="Of --loss quantile; by default 0.5.")]
Held = Annotated[float, typer.Option(min=0, max=0.9, help="Share of rows to hold back: the best pass on them is kept.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the initial weights and the order of rows.")]
Device = Annotated[DeviceName, typer.Option(help="Where to train.")]
Weights = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The weight of each row in training; not an input. Scores do not use it."),
]
Penalty = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="l2, l1, elastic_net, none, nonnegative, group, orthogonal, low_rank or ball; as low_rank:5.",
    ),
]
Refit = Annotated[
    Granularity | None,
    typer.Option(help="Learn the activation's slope or scale, one for a layer or one for each unit."),
]
Robust = Annotated[
    str | None,
    typer.Option(metavar="KIND:SIZE", help="Inputs may differ: noise:0.3, ball:1 or box:0.1, in standard deviations."),
]
DropConstant = Annotated[bool, typer.Option("--drop-constant", help="Leave constant columns out; else refused.")]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VALUE",
        help="Take such cells as missing, as '?', and fill in these and empty ones: numbers by the median, text as a category. Repeatable.",
    ),
]
Text = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="It holds text, though it looks like numbers. Repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]


@app.command(epilog="Example:  liftednn fit train.csv --target label --hidden 300,100 --out model.safetensors")
def fit(
    table: TableFile,
    target: Target,
    out: Annotated[Path, typer.Option(help="The model's file, .safetensors.")],
    hidden: Hidden = "auto",
    activation: Acts = Activation.relu,
    penalty: Penalty = "l2",
    passes: Annotated[int | None, typer.Option(min=1, help="Passes over the rows; by default by their number.")] = None,
    task: Goal = Task.auto,
    loss: Error = Loss.auto,
    quantile: Level = None,
    validation: Held = 0.0,
    sample_weight: Weights = None,
    learn_activation: Refit = None,
    robust: Robust = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop units that do not matter, as --penalty group leaves some.")
    ] = False,
    seed: Seed = 0,
    device: Device = DeviceName.cpu,
    missing: Missing = None,
    text: Text = None,
    drop_constant: DropConstant = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on a table and save it. Numbers are standardised; text and true/false become one input per category. Missing
    values are refused unless --missing is given, and so are dates, constant columns and numbers with odd values among them."""
    from liftednn.cli import jobs

    _check_out(out, table, ending=".safetensors")
    held, goal = validation, task.value
    job = jobs.Job(table, target, hidden, activation, passes, goal, seed, device, drop_constant, held, sample_weight)
    job = replace(job, loss=loss.value, quantile=quantile, penalty=penalty, robust=robust, prune=prune)
    job = replace(job, learn_activation=learn_activation.value if learn_activation else None, **_cells(missing, text))
    trained = jobs.train(job, partial(output.progress, quiet))
    notes = {"table": trained.encoding.to_dict()}
    lnn.save(out, trained.network, trained.fit.weights, history=trained.fit.history, notes=notes)
    output.print_summary(trained.summary | {"file": str(out)}, quiet, as_json)


@app.command(epilog="Example:  liftednn predict model.safetensors new.csv --out predictions.csv --probabilities")
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `liftednn fit` wrote.")],
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Where to write, by its extension: .csv, .csv.gz, .parquet or .npz.")],
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add a column for each class.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Predict the target of each row of a table. It needs the columns of training, in any order; others are ignored. Where it has the
    target too, the predictions are scored."""
    from liftednn.cli import jobs
    from liftednn.data import tables

    kind = tables.suffix(out)
    _check_out(out, model, table)
    columns, summary = jobs.predict(model, table, probabilities)
    with beside(out) as part:
        tables.write(part, kind, columns)
    output.print_summary(summary | {"file": str(out)}, quiet, as_json)


@app.command(epilog="Example:  liftednn init train.csv --target label --hidden 300,100 --out weights.safetensors")
def init(
    table: TableFile,
    target: Target,
    out: Annotated[Path, typer.Option(help="The weights' file, .safetensors.")],
    hidden: Hidden = "auto",
    activation: Acts = Activation.relu,
    penalty: Penalty = "l2",
    passes: Annotated[int | None, typer.Option(min=1, help="Passes over the rows; by default by their number.")] = None,
    task: Goal = Task.auto,
    loss: Error = Loss.auto,
    quantile: Level = None,
    learn_activation: Refit = None,
    robust: Robust = None,
    seed: Seed = 0,
    device: Device = DeviceName.cpu,
    missing: Missing = None,
    text: Text = None,
    drop_constant: DropConstant = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write lifted initial weights for a standard torch network, and print the Python that loads them and encodes the table."""
    from liftednn.cli import jobs

    _check_out(out, table, ending=".safetensors")
    job = jobs.Job(table, target, hidden, activation, passes, task.value, seed, device, drop_constant)
    job = replace(job, loss=loss.value, quantile=quantile, penalty=penalty, robust=robust)
    job = replace(
        job, learn_activation=learn_activation.value if learn_activation else None, first=True, **_cells(missing, text)
    )
    trained = jobs.train(job, partial(output.progress, quiet))
    with beside(out) as part:
        part.write_bytes(jobs.standard_file(trained))
    output.print_summary(
        trained.summary | {"file": str(out), "python": jobs.standard_source(trained, out, table)}, quiet, as_json
    )


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"liftednn {lnn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line, and exit with its code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    failures = (OSError, ArithmeticError, MemoryError, RuntimeError)
    output.run_app(app, given, "liftednn", "no file was written", failures, as_json="--json" in given)


def _cells(missing: list[str] | None, text: list[str] | None) -> dict[str, Any]:
    return {"missing": tuple(missing) if missing else None, "text": tuple(text or ())}


def _check_out(out: Path, *inputs: Path, ending: str = "") -> None:
    check_writable(out)
    if not out.name.endswith(ending):
        raise ValueError(f"--out {out} must end in {ending}, the kind of file that is written")
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise ValueError(f"--out {out} would overwrite what is read: name another file")
