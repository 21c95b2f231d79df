"""The values of a table's column: what kind they are, and as numbers, labels or weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import UnionType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from liftednn.data.columns import Kind
from liftednn.data.tables.reading import Table, listed
from liftednn.functional import median_and_spread

__all__ = [
    "WORDS",
    "are_labels",
    "check_guess",
    "check_kind",
    "check_text",
    "indices_of",
    "input_mean_and_scale",
    "is_number",
    "kind_of",
    "mean_and_scale",
    "median_and_scale",
    "numbers",
    "text_of",
    "weights_of",
]

_EXACT = 2**53  # beyond it, neighbouring integers are the same double
_NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
# Numbers in forms that pyarrow does not read: 1,5 or 12,345.6 or 5% or $3.
_WRITTEN = r"^\s*[-+]?[$€£]?\s*[0-9]+((,[0-9]{3})*(\.[0-9]+)?|,[0-9]+)\s*[%$€£]?\s*$"
_TIME = r"^\s*([0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?|[0-9]{1,2}:[0-9]{2}(:[0-9.]+)?)\s*$"
# Text is taken for numbers with some odd values if at least this fraction of its distinct values are numbers.
_MOSTLY = 0.5
# Letters of a value in a sentence, at most.
_SHOWN = 60

WORDS: dict[Kind, str] = {"number": "numbers", "text": "text", "truth": "true/false"}


def kind_of(table: Table, name: str) -> Kind:
    """What that column holds; dates and all else are refused."""
    kind, types = table.columns[name].type, pa.types
    if types.is_boolean(kind):
        return "truth"
    if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    what = "dates or times" if types.is_temporal(kind) else str(kind)
    return table.refuse(name, f"holds {what}; only numbers, text and true/false are supported: recode or remove it")


def check_guess(table: Table, name: str) -> None:
    """Refuse numbers that are text only because of a few odd values, as where a single "?" would turn every number into a category.

    Distinct values are counted: categories such as "0", "low" and "high" are text, even where most rows are "0".
    """
    if name not in table.guessed:
        return
    values = table.columns[name]
    distinct = pc.unique(values).drop_null()
    for what, pattern, meant in (("numbers", _NUMBER, f"{_NUMBER}|{_WRITTEN}"), ("dates or times", _TIME, _TIME)):
        odd = ~_like(pattern, values)
        if not odd.any() or _like(meant, distinct).sum() < max(_MOSTLY * len(distinct), 1):
            continue
        others = int((~_like(pattern, distinct)).sum()) - 1
        found = f"{_shown(values[int(odd.argmax())].as_py())} in row {table.row(odd)}"
        more = f" and {others} other values" if others else ""
        cure = "correct it, name it by --missing to take it as missing, or declare the column text by --text"
        table.refuse(name, f"holds {what}, but {found}{more} cannot be read as such: {cure}")


def _like(pattern: str, values: Any) -> NDArray[np.bool_]:
    """Which values have that form; missing ones are taken as such."""
    return np.asarray(pc.match_substring_regex(values, pattern).fill_null(fill_value=True), dtype=bool)


def _shown(value: Any) -> str:
    """A value for a sentence."""
    return repr(value) if len(str(value)) <= _SHOWN else repr(str(value)[:_SHOWN]) + "..."


def check_kind(table: Table, name: str, kind: Kind) -> None:
    """Refuse a column that holds something else than in training."""
    found, example = kind_of(table, name), ""
    if found == "text" != kind:
        values = text_of(table.columns[name])
        odd = ~_like(_NUMBER, values)
        example = f" ({_shown(values[int(odd.argmax())].as_py())} in row {table.row(odd)})"
    if found != kind:
        table.refuse(name, f"holds {WORDS[found]}{example}, and {WORDS[kind]} in training")


def check_text(table: Table, names: Sequence[str]) -> None:
    """Refuse columns declared as text that are not there, or that a file other than a CSV holds as something else."""
    for name in names:
        table.check_name(name)
        kind = kind_of(table, name)
        if kind != "text":
            table.refuse(name, f"holds {WORDS[kind]}, and --text is for CSV files: store it there as text")


def text_of(values: Any) -> Any:
    """As strings; pandas' categories too."""
    return values.cast(values.type.value_type if pa.types.is_dictionary(values.type) else values.type).cast(pa.string())


def numbers(table: Table, name: str) -> NDArray[np.float64]:
    """A column of numbers, if they are finite and doubles can hold them."""
    values = table.column(name)
    found = np.asarray(values.cast(pa.float64(), safe=False))
    wide = np.abs(found) > _EXACT
    if pa.types.is_integer(values.type) and wide.any():
        table.refuse(name, f"holds an integer beyond 2^53 in row {table.row(wide)}: if it is an identifier, remove it")
    if not np.isfinite(found).all():
        table.refuse(name, f"holds an infinite value in row {table.row(~np.isfinite(found))}: remove that row")
    return found


def indices_of(table: Table, name: str, values: Any, known: Sequence[Any]) -> NDArray[np.int64]:
    """For each value, its index in `known`, (rows,)."""
    among = pa.array(known)
    if among.type != values.type:
        among, values = among.cast(pa.float64()), values.cast(pa.float64())
    indices = pc.index_in(values, value_set=among)
    if indices.null_count:
        unseen = np.asarray(pc.is_null(indices))
        value = _shown(values[int(unseen.argmax())].as_py())
        held = f"holds {value} in row {table.row(unseen)}, which is not in the training data"
        table.refuse(name, f"{held}: that has {listed(known)}; remove that row, or train on rows that have it")
    return np.asarray(indices).astype(np.int64)


def is_number(value: Any) -> bool:
    """Whether it is a finite number; an integer must be one that a table's column can hold."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**64
    return isinstance(value, float) and math.isfinite(value)


def are_labels(kind: Kind, labels: Sequence[Any]) -> bool:
    """Whether they can be the distinct values of a column of that kind."""
    types: dict[Kind, type | UnionType] = {"text": str, "truth": bool, "number": int | float}
    if not all(isinstance(label, types[kind]) for label in labels):
        return False
    held = kind != "number" or all(is_number(label) for label in labels)
    return held and len(set(labels)) == len(labels)


def weights_of(table: Table, name: str) -> NDArray[np.float64]:
    """The weight of each row, from that column."""
    table.column(name)
    check_guess(table, name)
    kind = kind_of(table, name)
    if kind != "number":
        table.refuse(name, f"holds {WORDS[kind]}, and the weights of rows are numbers: name another column")
    row_weights = numbers(table, name)
    for wrong, what in ((row_weights < 0, "a negative weight"), (row_weights > _EXACT, "a weight beyond 2^53")):
        if wrong.any():
            table.refuse(name, f"holds {what} in row {table.row(wrong)}: weights are from 0 to 2^53")
    if not row_weights.any():
        table.refuse(name, "is 0 in all rows: some weight must be positive")
    return row_weights


def mean_and_scale(values: NDArray[np.float64], row_weights: NDArray[np.float64] | None = None) -> tuple[float, float]:
    """Mean and standard deviation, without overflow even for the largest doubles; the latter is 0 where all values are the same.

    row_weights   the weight of each value; None: all the same
    """
    if values.min() == values.max():
        return float(values[0]), 0.0
    size = float(np.abs(values).max())
    mean = np.average(values / size, weights=row_weights)
    variance = np.average((values / size - mean) ** 2, weights=row_weights)
    return float(mean * size), float(np.sqrt(variance) * size)


def input_mean_and_scale(
    values: NDArray[np.float64], row_weights: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """The same for an input: where all values are 0 or one other number, that is the scale, as in the estimators: divided by its standard
    deviation, an indicator that is seldom 1 would be the largest of all inputs."""
    mean, scale = mean_and_scale(values, row_weights)
    mark = float(values.min() + values.max())
    indicates = 0.0 in (values.min(), values.max()) and bool(((values == 0) | (values == mark)).all())
    return mean, abs(mark) if scale and indicates else scale


def median_and_scale(
    values: NDArray[np.float64], row_weights: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """The median and the interquartile range / 1.349, which outliers do not change; 0 where all values are the same."""
    if values.min() == values.max():
        return float(values[0]), 0.0
    weights = None if row_weights is None else torch.as_tensor(row_weights)
    centre, spread = median_and_spread(torch.from_numpy(np.array(values))[:, None], weights)
    return float(centre), float(spread)
