"""The work behind the commands: train on a table, predict and score one, or make initial weights for a standard network.

It imports torch; commands.py, which must start fast, imports it when a command runs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from liftednn import activations, reduce
from liftednn.base import Granularity, Loss
from liftednn.data import tables
from liftednn.data.sources import source_of
from liftednn.data.tables import Encoding, Table
from liftednn.data.tables.encoding import Task
from liftednn.data.validation import check_device
from liftednn.defaults import Recipe, named_loss
from liftednn.init import to_module
from liftednn.losses import Quantile
from liftednn.losses.regression import Bounded
from liftednn.network import LiftedNetwork
from liftednn.predict import feedforward
from liftednn.robust.naming import uncertainty_of
from liftednn.saving import Saved, load
from liftednn.training.result import Fit, Record

__all__ = ["Job", "Trained", "predict", "standard_file", "standard_source", "train"]

# A wider layer than this must be a typing error: its weights alone would fill the memory.
_WIDEST = 1_000_000

# Takes the number of passes and the name of the score; gives a function that shows the record of each pass.
Progress = Callable[[int, str], AbstractContextManager[Callable[[Record], None]]]


@dataclass(frozen=True)
class Job:
    """What `fit` and `init` train, and on what; see `liftednn fit --help`."""

    table: Path
    target: str
    hidden: str
    activation: str
    passes: int | None
    task: str
    seed: int
    device: str
    drop_constant: bool
    validation: float = 0.0
    sample_weight: str | None = None
    penalty: str = "l2"
    learn_activation: str | None = None
    loss: str = "auto"
    quantile: float | None = None
    robust: str | None = None
    prune: bool = False
    missing: tuple[str, ...] | None = None
    text: tuple[str, ...] = ()
    first: bool = False  # initial weights for a standard network, not a model: fewer passes


@dataclass(frozen=True)
class Trained:
    """A trained network, how its table is encoded, and the summary to print."""

    encoding: Encoding
    network: LiftedNetwork
    fit: Fit
    summary: dict[str, Any]


@dataclass(frozen=True)
class _Rows:
    """Inputs, targets and row weights."""

    x: NDArray[np.float32]
    y: NDArray[Any]
    row_weights: NDArray[np.float64] | None

    def at(self, chosen: NDArray[np.int64]) -> _Rows:
        return _Rows(self.x[chosen], self.y[chosen], None if self.row_weights is None else self.row_weights[chosen])


def train(job: Job, progress: Progress) -> Trained:
    """Read the table, train on it, and score the result; after Ctrl-C nothing is kept."""
    check_device(job.device)
    uncertainty_of(job.robust)
    started, hidden = time.perf_counter(), widths(job.hidden)
    encoding, rows, filled = _encoded(job)
    labels = rows.y if encoding.classes else None
    trained_on, held = (rows.at(chosen) for chosen in split(len(rows.x), job.validation, job.seed, labels))
    network, fit = _run(job, hidden, len(encoding.classes) or 1, trained_on, held, progress)
    summary = {"task": encoding.task, "why": encoding.why, "target": encoding.target, "rows": len(rows.x)}
    summary |= {
        "sample_weight": encoding.weight,
        "columns": len(encoding.columns),
        "filled": filled,
        "classes": list(encoding.classes),
        "sizes": [encoding.width, *(layer.operator.out_width for layer in network.layers)],
    }
    summary |= {
        "loss_function": repr(network.loss),
        "passes": len(fit.history),
        "warnings": list(fit.warnings),
        "measure": _measure(network),
        **quality(network, fit, trained_on),
    }
    summary["validation_score"] = quality(network, fit, held)["score"] if len(held.x) else None
    return Trained(encoding, network, fit, summary | {"seconds": round(time.perf_counter() - started, 3)})


def _encoded(job: Job) -> tuple[Encoding, _Rows, dict[str, int]]:
    """How the table is encoded, its rows of positive weight, and how many missing values were filled in, by column."""
    table = tables.read(job.table, job.text, job.missing)
    tables.check_text(table, job.text)
    task, weight = cast(Task, job.task), job.sample_weight
    outliers = job.loss not in ("auto", "squared")
    encoding = Encoding.of(table, job.target, task, job.drop_constant, weight, job.missing, outliers)
    table, row_weights = encoding.weighted(table)
    return encoding, _Rows(encoding.inputs(table), encoding.targets(table), row_weights), encoding.filled(table)


def _run(
    job: Job, hidden: list[int] | None, outputs: int, rows: _Rows, held: _Rows, progress: Progress
) -> tuple[LiftedNetwork, Fit]:
    """Train a network with one output for each class, or one for a real target."""
    loss, classes, recipe = _loss(job, outputs > 1, rows), outputs > 1, _recipe(job)
    activation, source = activations.named(job.activation, "fenchel"), source_of(rows.x, rows.y, rows.row_weights)
    hidden = recipe.widths(None if classes else source.rows, activation) if hidden is None else hidden
    activation = activations.learnable(activation) if job.learn_activation and hidden else activation
    network = LiftedNetwork.mlp([rows.x.shape[1], *hidden, outputs], activation, loss)
    network, drawn = recipe.start(network, source, rows.y, rows.row_weights)
    trainer = recipe.trainer(len(rows.x), outputs, len(hidden))
    validation = (held.x, held.y, held.row_weights) if len(held.x) else None
    with progress(trainer.passes, _measure(network)) as say:
        fit = trainer.run(network, source, weights=drawn, validation=validation, callback=say)
    if fit.status == "stopped":
        raise KeyboardInterrupt  # so that no partly trained model is saved
    if job.prune:
        smaller, weights = fit.network.prune(fit.weights)
        fit = replace(fit, network=smaller, weights=weights)
    return fit.network, fit


def _recipe(job: Job) -> Recipe:
    return Recipe(
        penalty=job.penalty,
        uncertainty=uncertainty_of(job.robust),
        passes=job.passes,
        initial=job.first,
        seed=job.seed,
        device=job.device,
        learn_activation=cast(Granularity | None, job.learn_activation),
    )


def _loss(job: Job, classes: bool, rows: _Rows) -> Loss:
    """Classes have the softmax."""
    if job.quantile is not None and job.loss != "quantile":
        raise ValueError(f"--quantile is the level of --loss quantile, and --loss is {job.loss}: give both, or neither")
    if classes and job.loss != "auto":
        raise ValueError(f"--loss {job.loss} is for a real target, and this one has classes: leave it out")
    if job.loss == "quantile" and job.quantile is not None:
        return Quantile(job.quantile)
    name = "softmax" if classes else "squared" if job.loss == "auto" else job.loss
    return named_loss(name, rows.y, rows.row_weights)


def _measure(network: LiftedNetwork) -> str:
    if network.layers[-1].operator.out_width > 1:
        return "accuracy"
    return "d2" if isinstance(network.loss, Bounded) else "r2"


def widths(hidden: str) -> list[int] | None:
    """The widths of the hidden layers, from --hidden; None for auto."""
    if hidden.strip() == "auto":
        return None
    parts = [part.strip() for part in hidden.split(",")]
    if parts != ["0"] and not all(part.isascii() and part.isdecimal() and part.strip("0") for part in parts):
        raise ValueError(
            f"--hidden takes widths such as 300 or 300,100, 0 for no hidden layer, or auto, got {hidden!r}"
        )
    if any(len(part.lstrip("0")) > len(str(_WIDEST)) or int(part) > _WIDEST for part in parts):
        raise ValueError(f"--hidden takes widths of at most {_WIDEST:,}, got {hidden[:50]}")
    return [int(part) for part in parts if part != "0"]


def split(
    rows: int, fraction: float, seed: int, labels: NDArray[Any] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, at least one of every class, and rows to hold back."""
    order = np.random.default_rng(seed).permutation(rows)
    needed = rows - 1 if labels is None else np.unique(labels[order], return_index=True)[1]
    others = np.delete(order, needed)
    back = others[: math.ceil(rows * fraction)]
    return np.setdiff1d(order, back), np.sort(back)


def quality(network: LiftedNetwork, fit: Fit, rows: _Rows) -> dict[str, float]:
    """Loss and score of the final weights; all rows have the same weight."""
    scores = feedforward(network, fit.weights, rows.x)
    responses = network.loss.encode(torch.as_tensor(rows.y).to(scores.device), scores.shape[1]).to(scores)
    return {
        "loss": float(reduce.mean(network.loss.value(scores, responses))),
        "score": network.loss.score(scores, responses),
    }


def predict(model: Path, table: Path, probabilities: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns to write, and the summary to print."""
    saved = load(model)
    encoding = _encoding(model, saved)
    data = tables.read(table, encoding.text, encoding.missing)
    scores = feedforward(saved.network, saved.weights, encoding.inputs(data)).double().numpy()
    filled = encoding.filled(data)
    summary = {"rows": data.rows, **({"filled": filled} if filled else {})}
    summary |= scored(encoding, data, scores, saved.network.loss)
    return predictions(encoding, scores, probabilities), summary


def _encoding(model: Path, saved: Saved) -> Encoding:
    """How the model's table is encoded, if its notes contain that and it fits the network."""
    cure = "give a model that `liftednn fit` wrote"
    if "table" not in saved.notes:
        raise ValueError(f"{model} contains no encoding of a table: {cure}")
    try:
        encoding = Encoding.from_dict(saved.notes["table"])
    except ValueError as error:
        raise ValueError(f"{model} contains {error}: {cure}") from error
    there = (encoding.width, len(encoding.classes) or 1)
    here = (saved.network.in_width, saved.network.layers[-1].operator.out_width)
    if there != here:
        raise ValueError(
            f"{model} contains an encoding of {there[0]} inputs and {there[1]} outputs, but its network has {here[0]} and "
            f"{here[1]}: {cure}"
        )
    return encoding


def predictions(encoding: Encoding, scores: NDArray[Any], probabilities: bool) -> dict[str, Any]:
    """The target's column, and with `probabilities` one with the probability of each class."""
    columns: dict[str, Any] = {encoding.target: encoding.decode(scores)}
    if probabilities and not encoding.classes:
        raise ValueError("--probabilities is for classes, and this model predicts a real number: leave it out")
    if probabilities:
        odds = np.exp(scores - scores.max(1, keepdims=True))
        each = odds / odds.sum(1, keepdims=True)
        added = {f"probability_{label}": column for label, column in zip(encoding.classes, each.T, strict=True)}
        if encoding.target in added:
            what = f"--probabilities would add a column {encoding.target!r}, which is the target's own name"
            raise ValueError(f"{what}: leave it out, or rename the target and train again")
        columns |= added
    return columns


def scored(encoding: Encoding, data: Table, scores: NDArray[Any], loss: Loss) -> dict[str, Any]:
    """How good the predictions are, where the table has the target; an invalid target is reported, but is not an error. A loss of
    bounded slope has its own score, D^2, first, as in `fit`."""
    if encoding.target not in data.columns:
        return {}
    try:
        y = encoding.targets(data)
    except ValueError as error:
        return {"not scored": str(error)}
    if encoding.classes:
        return {"accuracy": float(np.mean(scores.argmax(1) == y))}
    own = {"d2": loss.score(torch.as_tensor(scores), torch.as_tensor(y)[:, None])} if isinstance(loss, Bounded) else {}
    missed, spread = np.mean((scores[:, 0] - y) ** 2), np.var(y)
    return own | {"r2": float(1 - missed / spread) if spread else None, "rmse": float(encoding.scale * np.sqrt(missed))}


def standard_file(trained: Trained) -> bytes:
    """The state_dict of the torch module that computes the same, as a safetensors file; in its header, how the table is encoded."""
    state = to_module(trained.network, trained.fit.weights).cpu().state_dict()
    return safetensors.torch.save(state, {"table": json.dumps(trained.encoding.to_dict())})


def standard_source(trained: Trained, file: Path, table: Path) -> str:
    """Python that builds that module, loads its weights from the file and encodes the table as the file's header says."""
    layers = to_module(trained.network, trained.fit.weights)
    if trained.encoding.classes:
        meaning = "y: indices into encoding.classes"
    else:
        meaning = "y: standardised; encoding.decode(module(x).numpy(force=True)) gives the target's own units"
    return f"""
import json
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from liftednn.data import tables
module = nn.Sequential({", ".join(f"nn.{layer!r}" for layer in layers.children())})
module.load_state_dict(load_file({str(file)!r}))
with safe_open({str(file)!r}, "pt") as stored:
    encoding = tables.Encoding.from_dict(json.loads(stored.metadata()["table"]))
table = tables.read({str(table)!r}, encoding.text, encoding.missing)
x, y = torch.from_numpy(encoding.inputs(table)), torch.from_numpy(encoding.targets(table))  # {meaning}"""
