"""X as values for the encoding of `liftednn.data.columns`: numbers, and indices of categories.

Frames are read by `columns`, `frame[name]`, `dtype` and `to_numpy()`, which those of pandas and of polars have.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_array, check_X_y
from sklearn.utils.validation import validate_data

from liftednn.data.columns import MOST_CATEGORIES, Column, Columns, medians
from liftednn.estimators.rows import blocks, is_sparse
from liftednn.estimators.scaling import Array

__all__ = [
    "NO_RESPONSES",
    "Known",
    "categorical_mask",
    "check_categorical",
    "encoding_of",
    "known_categories",
    "read",
    "that_count",
]

NO_RESPONSES = "no_validation"  # what validate_data takes for y
Known = tuple[tuple[Any, ...] | None, ...]


def read(model: Any, x: Any, y: Any, known: Known | None, reset: bool, **options: Any) -> Any:
    """X checked, as values (n, features), and y unless it is `NO_RESPONSES`; a sparse X stays sparse.

    known   the categories of each column, None for a column of numbers; None: all are numbers
    """
    options["ensure_all_finite"] = True if is_sparse(x) else "allow-nan"
    stored = getattr(x, "data", None) if is_sparse(x) else None
    if isinstance(stored, np.ndarray) and stored.dtype.kind == "f" and np.isnan(stored).any():
        raise ValueError("a sparse X holds NaN: give it dense, where NaN is a missing value, or fill these in")
    _check_kinds(x, known)
    if known is None:
        _check_no_text(x, reset)
        return validate_data(model, x, y, reset=reset, accept_sparse="csr", **options)
    validate_data(model, x, reset=reset, skip_check_array=True)
    values = _values(x, known)
    if isinstance(y, str) and y == NO_RESPONSES:
        return check_array(values, estimator=model, **options)
    return check_X_y(values, y, estimator=model, **options)


def check_categorical(given: Any) -> None:
    """Refuse what `categorical_features` cannot be, before X is known."""
    if given is not None and np.ndim(given) == 0 and not (isinstance(given, str) and given == "from_dtype"):
        raise ValueError(
            f"categorical_features must be None, 'from_dtype' or a list of names or numbers, got {given!r}"
        )


def categorical_mask(x: Any, given: Any) -> Array | None:
    """Which columns of X hold categories, from `categorical_features`; None where there are none."""
    if given is None or (isinstance(given, str) and not _is_frame(x)):
        return None
    if isinstance(given, str):
        return np.array([_is_category(column) for _, column in _frame_columns(x)], bool)
    if is_sparse(x):
        raise ValueError("categorical_features is for a dense X, and X is sparse: give categorical_features=None")
    return _mask(np.asarray(given), x)


def _mask(given: Array, x: Any) -> Array:
    """From names, indices or a mask."""
    count, names = np.shape(x)[1], list(x.columns) if _is_frame(x) else []
    if not given.size or (given.dtype == bool and given.shape == (count,)):
        return given.astype(bool) if given.size else np.zeros(count, bool)
    if given.dtype.kind in "iu" and all(0 <= index < count for index in given):
        return np.isin(np.arange(count), given)
    if given.dtype.kind in "UO" and all(name in names for name in given):
        return np.array([name in list(given) for name in names], bool)
    where = f"columns {names}" if names else "columns without names"
    raise ValueError(
        f"categorical_features={given.tolist()!r} must be names, indices or a mask of the columns of X, which has {count} {where}"
    )


def known_categories(x: Any, mask: Array | None, whole: bool = True) -> Known | None:
    """The distinct values of the categorical columns, in order, and None at the end where some are missing; where x is not the whole data,
    those that the types of columns name too."""
    if mask is None or not mask.any():
        return None
    frame = _is_frame(x) and not whole
    declared = [_declared(column) for _, column in _frame_columns(x)] if frame else [[]] * len(mask)
    return tuple(
        _distinct([*values.tolist(), *more], name) if holds else None
        for (name, values), more, holds in zip(_columns(x), declared, mask, strict=True)
    )


def _declared(column: Any) -> list[Any]:
    """The categories that the type of a frame's column names, if they are not too many."""
    found = getattr(column.dtype, "categories", None) if _is_category(column) else None
    return list(found) if found is not None and len(found) <= MOST_CATEGORIES else []


def that_count(x: Any, sample_weight: Any) -> Any:
    """The rows of X, as it is given, with a positive weight; all of them where weights are not valid, which is refused later."""
    try:
        counts = np.asarray(sample_weight, float) > 0 if sample_weight is not None else np.ones(0, bool)
    except (TypeError, ValueError):
        return x
    if counts.all() or counts.ndim != 1 or len(counts) != np.shape(x)[0]:
        return x
    return _safe_indexing(x, np.flatnonzero(counts))


def encoding_of(x: Any, known: Known | None, row_weights: Array | None) -> Columns:
    """How the columns of values x, an array or a sparse matrix, are encoded. Medians are of evenly spaced rows, as many as are read at a
    time."""
    few = slice(None, None, -(-x.shape[0] // next(blocks(*x.shape)).stop))
    sample = x[few].toarray() if is_sparse(x) else x[few]
    fills = medians(np.asarray(sample, np.float64), None if row_weights is None else row_weights[few])
    missing = _have_missing(x)
    return Columns(
        tuple(
            Column(str(index), "number", fill=fills[index], flagged=bool(missing[index]))
            if categories is None
            else Column(str(index), "text", categories=categories)
            for index, categories in enumerate(known or [None] * x.shape[1])
        )
    )


def _have_missing(x: Any) -> Array:
    """Which columns hold NaN; a sparse X holds none."""
    found = np.zeros(x.shape[1], bool)
    for part in () if is_sparse(x) or x.dtype.kind != "f" else blocks(*x.shape):
        found |= np.isnan(x[part]).any(axis=0)
    return found


def _distinct(values: Sequence[Any], name: Any) -> tuple[Any, ...]:
    every = set(values)
    present = sorted((each for each in every if not _is_missing(each)), key=lambda each: (type(each).__name__, each))
    if len(present) > MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r} of X has {len(present)} categories, {MOST_CATEGORIES} at most: group them, or take it out of "
            "categorical_features"
        )
    return (*present, *([None] if len(present) < len(every) else []))


def _values(x: Any, known: Known) -> Array:
    """(n, features), in float32 where all numbers are."""
    columns = _columns(x)
    pairs = [(values, categories) for (_, values), categories in zip(columns, known, strict=True)]
    single = [values.dtype == np.float32 for values, categories in pairs if categories is None]
    found = np.empty((len(columns[0][1]), len(columns)), np.float32 if single and all(single) else np.float64)
    for index, (values, categories) in enumerate(pairs):
        found[:, index] = _numbers(values, columns[index][0]) if categories is None else _indices(values, categories)
    return found


def _indices(values: Array, categories: Sequence[Any]) -> Array:
    """The index of each value among the categories; NaN where it is none of them."""
    index = {category: float(number) for number, category in enumerate(categories)}
    missing = index.get(None, np.nan)
    found = [index.get(value, np.nan) for value in values.tolist()]
    if missing == missing:
        pairs = zip(found, values.tolist(), strict=True)
        found = [missing if at != at and _is_missing(value) else at for at, value in pairs]
    return np.array(found)


def _numbers(values: Array, name: Any) -> Array:
    """NaN where they are missing."""
    return values if values.dtype.kind in "biuf" else np.array([_number(value, name) for value in values])


def _number(value: Any, name: Any) -> float:
    try:
        return np.nan if _is_missing(value) else float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {name!r} of X is one of numbers and holds {value!r}: give numbers, or NaN where they are missing, or name it in "
            "categorical_features"
        ) from error


def _is_missing(value: Any) -> bool:
    """None, NaN, and what pandas has for them."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # comparing pandas' NA gives NA, which is neither true nor false
        return True


def _is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "dtypes")


def _frame_columns(x: Any) -> list[tuple[Any, Any]]:
    names = list(x.columns)
    if len(set(names)) < len(names):
        raise ValueError(f"X has columns of the same name among {names}: name each")
    return [(name, x[name]) for name in names]


def _columns(x: Any) -> list[tuple[Any, Array]]:
    """The names and values of the columns of a frame, or of an array of anything."""
    if _is_frame(x):
        return [(name, column.to_numpy()) for name, column in _frame_columns(x)]
    array = np.asarray(x) if hasattr(x, "dtype") else np.asarray(x, object)
    return list(enumerate(array.T))


def _is_category(column: Any) -> bool:
    return str(column.dtype).lower().startswith(("categor", "enum")) or _is_text(column)


def _is_text(column: Any) -> bool:
    """Whether a frame's column holds text; columns of numbers are not read."""
    if getattr(column.dtype, "kind", "O") not in "OUST" or str(column.dtype).lower().startswith(
        ("int", "uint", "float")
    ):
        return False
    values = column.to_numpy()
    return values.dtype.kind in "OUST" and any(isinstance(value, str) for value in values.tolist())


def _check_kinds(x: Any, known: Known | None) -> None:
    """Refuse frames with columns of dates, durations or complex numbers that are no categories."""
    columns = _frame_columns(x) if _is_frame(x) else []
    pairs = zip(columns, known or [None] * len(columns), strict=False)
    numbers = {name: _kind(column) for (name, column), categories in pairs if categories is None}
    if names := [name for name, kind in numbers.items() if kind in "mMc"]:
        raise ValueError(
            f"X has columns of dates, durations or complex numbers, {names}: give real numbers, such as the days since a date"
        )


def _kind(column: Any) -> str:
    """That of a column's dtype, and "M" where it holds dates or times as Python objects."""
    kind = getattr(column.dtype, "kind", "")
    first = next(iter(column.to_numpy()), None) if kind == "O" else None
    return "M" if isinstance(first, datetime.date | datetime.time) else kind or "O"


def _check_no_text(x: Any, fits: bool) -> None:
    names = [name for name, column in _frame_columns(x) if _is_text(column)] if _is_frame(x) else []
    advice = "give categorical_features='from_dtype', or name them there, or remove them"
    if names:
        raise ValueError(
            f"X has columns of text, {names}: {advice if fits else 'they had numbers in fit, so give numbers'}"
        )
