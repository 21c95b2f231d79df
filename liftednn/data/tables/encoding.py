"""How a table's columns become a network's inputs and targets, learned from the training table and stored with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from liftednn.data.columns import MOST_CATEGORIES, Column, Columns, Kind, medians
from liftednn.data.tables.reading import Table, listed
from liftednn.data.tables.values import (
    WORDS,
    are_labels,
    check_guess,
    check_kind,
    indices_of,
    input_mean_and_scale,
    is_number,
    kind_of,
    mean_and_scale,
    median_and_scale,
    numbers,
    text_of,
    weights_of,
)

__all__ = ["Column", "Encoding", "Task"]

# A target of integers with more distinct values than this is a quantity, with fewer it holds labels.
_FEW_LABELS = 30

Task = Literal["auto", "classification", "regression"]


def _learned(table: Table, name: str, row_weights: NDArray[np.float64] | None = None) -> Column:
    """How a table's column is encoded; mean, scale and median are weighted by `row_weights`. Missing text or true/false is the
    category ""."""
    present = ~table.missing(name)
    if not present.any():
        table.refuse(name, "has no values: remove it")
    check_guess(table, name)
    kind = kind_of(table, name)
    if kind == "number":
        found, weights = numbers(table.present(name), name), None if row_weights is None else row_weights[present]
        mean, scale = input_mean_and_scale(found, weights)
        flagged = not present.all()  # then the column varies, even where its numbers do not
        fill = medians(found[:, None], weights)[0]
        return Column(name, kind, mean, scale or float(flagged), fill=fill, flagged=flagged)
    categories = sorted(pc.unique(text_of(table.columns[name]).fill_null("")).to_pylist())
    if kind == "text" and len(categories) == table.rows > 1:
        table.refuse(name, f"has a different value in each of its {table.rows} rows, as an identifier does: remove it")
    if len(categories) > MOST_CATEGORIES:
        table.refuse(name, f"has {len(categories)} categories, {MOST_CATEGORIES} at most: group or remove them")
    return Column(name, kind, categories=tuple(categories))


def _values(column: Column, table: Table) -> NDArray[np.float64]:
    """A table's column as numbers, NaN where they are missing, or as indices of categories, (rows,)."""
    present = ~table.missing(column.name)
    if present.any():
        check_kind(table.present(column.name), column.name, column.kind)
    if column.kind != "number":
        texts = text_of(table.columns[column.name]).fill_null("")
        return indices_of(table, column.name, texts, column.categories).astype(np.float64)
    values = np.full(table.rows, np.nan)
    values[present] = numbers(table.present(column.name), column.name)
    return values


@dataclass(frozen=True)
class Encoding:
    """How a table becomes the inputs and the target of a network. `why` says what the task was inferred from.

    classes       the labels, as the table has them; empty for a regression
    mean, scale   of a real target, which is learned as (value - mean) / scale
    weight        the column of the rows' weights, which is no input; None: all have the same
    missing       what stands for a missing value, to be filled in; None: missing values are refused
    """

    columns: tuple[Column, ...]
    target: str
    kind: Kind
    task: Literal["classification", "regression"]
    why: str
    classes: tuple[Any, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    weight: str | None = None
    missing: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        table: Table,
        target: str,
        task: Task = "auto",
        drop_constant: bool = False,
        weight: str | None = None,
        missing: Sequence[str] | None = None,
        outliers: bool = False,
    ) -> Encoding:
        """Learn it from the rows of positive weight. Constant columns are refused, or with `drop_constant` left out; missing inputs are
        refused, or where `missing` is given, as it was to `read`, filled in. A real target that may hold `outliers` has its median and
        quartiles in place of mean and standard deviation."""
        if weight == target:
            raise ValueError(f"{target!r} cannot be both the target and the rows' weights: name two columns")
        table, row_weights = _weighted(table, weight)
        table.column(target)
        if missing is None:
            table.check_whole(table.columns)
        check_guess(table, target)
        kind = kind_of(table, target)
        chosen, why = _infer(table, target, kind) if task == "auto" else (task, "as given by --task")
        classes = _classes(table, target, kind) if chosen == "classification" else ()
        mean, scale = (0.0, 1.0) if classes else _real(table, target, kind, row_weights, outliers)
        columns = [_learned(table, name, row_weights) for name in table.columns if name not in (target, weight)]
        used = _varying(table, columns, target, drop_constant)
        named = None if missing is None else tuple(missing)
        return cls(tuple(used), target, kind, chosen, why, classes, mean, scale, weight, named)

    @property
    def width(self) -> int:
        """The network's inputs."""
        return Columns(self.columns).width

    @property
    def text(self) -> list[str]:
        """The columns that `read` must take for text, even where they look like numbers."""
        kinds = {column.name: column.kind for column in self.columns} | {self.target: self.kind}
        return [name for name, kind in kinds.items() if kind == "text"]

    def weighted(self, table: Table) -> tuple[Table, NDArray[np.float64] | None]:
        """The rows to train on, and their weights; rows of weight 0 are left out."""
        return _weighted(table, self.weight)

    def inputs(self, table: Table) -> NDArray[np.float32]:
        """(rows, width). Columns that training did not have are ignored."""
        lacking = [column.name for column in self.columns if column.name not in table.columns]
        if lacking:
            raise ValueError(f"{table.path} lacks columns that the model was trained on: {listed(lacking)}")
        if self.missing is None:
            table.check_whole(column.name for column in self.columns)
        encode, values = Columns(self.columns), np.column_stack([_values(column, table) for column in self.columns])
        with np.errstate(over="ignore"):
            found = encode(values).astype(np.float32)
        for column, start in zip(self.columns, encode.starts, strict=False):
            if not (finite := np.isfinite(found[:, start])).all():
                table.refuse(column.name, f"is too large, compared with training, in row {table.row(~finite)}")
        return found

    def filled(self, table: Table) -> dict[str, int]:
        """How many missing values of each column are filled in, where some are."""
        found = {column.name: int(table.missing(column.name).sum()) for column in self.columns}
        return {name: count for name, count in found.items() if count}

    def targets(self, table: Table) -> NDArray[Any]:
        """Labels as 0, 1, ... or the standardised real target, (rows,)."""
        values = table.column(self.target)
        check_kind(table, self.target, self.kind)
        if self.classes:
            return indices_of(table, self.target, text_of(values) if self.kind == "text" else values, self.classes)
        return np.asarray((numbers(table, self.target) - self.mean) / self.scale, dtype=np.float32)

    def decode(self, scores: NDArray[Any]) -> NDArray[Any]:
        """A network's scores (rows, outputs) -> what the target's column would hold, (rows,)."""
        if self.classes:
            return np.asarray(np.asarray(self.classes)[scores.argmax(1)])
        return np.asarray(self.mean + self.scale * scores[:, 0].astype(np.float64))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Encoding:
        """The encoding from what `to_dict` returned, also where JSON made lists of its tuples; invalid ones raise a ValueError."""
        try:
            columns = [Column(**{**column, "categories": _tuple(column["categories"])}) for column in fields["columns"]]
            missing = None if fields.get("missing") is None else _tuple(fields["missing"])
            parts = {"columns": tuple(columns), "classes": _tuple(fields["classes"]), "missing": missing}
            found = cls(**{**fields, **parts})
            wrong = _wrong(found)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"no encoding of a table ({type(error).__name__}: {error})") from error
        if wrong:
            raise ValueError(f"no encoding of a table ({wrong})")
        return found


def _tuple(given: Any) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        raise TypeError(f"{given!r:.50} is no list")
    return tuple(given)


def _wrong(encoding: Encoding) -> str:
    """What is wrong with an encoding that a file holds; empty if nothing is."""
    names = [*(column.name for column in encoding.columns), encoding.target]
    names += [] if encoding.weight is None else [encoding.weight]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or len(encoding.columns) == 0:
        return "columns, target and weight must have names of their own"
    parts: list[Column | Encoding] = [*encoding.columns, encoding]
    for part in parts:
        if part.kind not in WORDS or not is_number(part.mean) or not (is_number(part.scale) and part.scale > 0):
            return f"{(part.name if isinstance(part, Column) else part.target)!r} has no valid kind, mean or scale"
    for column in encoding.columns:
        if not (column.fill is None or is_number(column.fill)) or not isinstance(column.flagged, bool):
            return f"{column.name!r} has no valid value for missing ones"
        if column.flagged and column.kind != "number":
            return f"{column.name!r} says where numbers are missing, and holds none"
        if bool(column.categories) == (column.kind == "number") or not are_labels("text", column.categories):
            return f"{column.name!r} has categories that do not fit its kind"
    if not are_labels("text", encoding.missing or ()):
        return "what counts as missing is no list of texts"
    labelled = encoding.task == "classification" and len(encoding.classes) > 1
    if not labelled and (encoding.task != "regression" or encoding.classes or encoding.kind != "number"):
        return f"the task {encoding.task!r:.50} does not fit the kind and the classes of the target"
    return "" if are_labels(encoding.kind, encoding.classes) else "the classes do not fit the kind of the target"


def _weighted(table: Table, weight: str | None) -> tuple[Table, NDArray[np.float64] | None]:
    if weight is None:
        return table, None
    row_weights = weights_of(table, weight)
    return table.only(row_weights > 0), row_weights[row_weights > 0]


def _varying(table: Table, columns: Sequence[Column], target: str, drop_constant: bool) -> list[Column]:
    """The columns that are not constant; if there are others, `drop_constant` must allow it."""
    constant = [column.name for column in columns if column.constant]
    if constant and not drop_constant:
        names, cure = listed(constant), "remove them, or leave them out by --drop-constant"
        raise ValueError(f"{table.path} has constant columns, which carry no information: {names}; {cure}")
    if len(constant) == len(columns):
        raise ValueError(f"{table.path} has no columns to learn {target!r} from: it needs one that varies")
    return [column for column in columns if not column.constant]


def _infer(table: Table, target: str, kind: Kind) -> tuple[Literal["classification", "regression"], str]:
    if kind != "number":
        return "classification", f"{target!r} holds {WORDS[kind]}"
    if not pa.types.is_integer(table.columns[target].type):
        return "regression", f"{target!r} holds real numbers"
    distinct = len(pc.unique(table.columns[target]))
    why = f"{target!r} holds whole numbers, {distinct} distinct ones in {table.rows} rows"
    return ("classification" if distinct <= min(_FEW_LABELS, table.rows / 2) else "regression"), why


def _classes(table: Table, target: str, kind: Kind) -> tuple[Any, ...]:
    values = table.columns[target]
    classes = sorted(pc.unique(text_of(values) if kind == "text" else values).to_pylist())
    if len(classes) == 1:
        table.refuse(target, f"is {classes[0]!r} in all rows: a target needs two classes or more")
    if len(classes) == table.rows > 2:
        table.refuse(
            target, "has a different class in each row: name another target, or for numbers give --task regression"
        )
    return tuple(classes)


def _real(
    table: Table, target: str, kind: Kind, row_weights: NDArray[np.float64] | None, outliers: bool
) -> tuple[float, float]:
    if kind != "number":
        table.refuse(target, f"holds {WORDS[kind]}, and a regression needs numbers: give --task classification")
    mean, scale = (median_and_scale if outliers else mean_and_scale)(numbers(table, target), row_weights)
    if scale == 0:
        table.refuse(target, f"is {mean:g} in all rows: there is nothing to learn")
    return mean, scale
