"""Tables in files.

A table is a CSV (plain or .gz), Parquet or npz file whose columns have names. Of an npz file, a 1-d array is a column, and a 2-d array
`x` gives the columns x0, x1, ...  Rows are counted from 1, a CSV's header apart. What cannot be read for certain is refused, not guessed.
"""

from __future__ import annotations

import codecs
import difflib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

__all__ = ["Table", "listed", "read", "suffix", "write"]

_LISTED = 8  # names in a sentence, at most
_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npz")
_BLOCK = 1 << 26  # bytes of a CSV that are read at a time; a cell must fit in


@dataclass(frozen=True)
class Table:
    """Named columns, as pyarrow arrays of one length, and the file they are from.

    numbers   the rows' numbers in the file, if not all of its rows are here
    guessed   columns that hold text because some of their values could not be read as numbers or dates; only a CSV has such columns
    """

    path: str
    columns: Mapping[str, Any]
    rows: int
    numbers: NDArray[np.int64] | None = None
    guessed: frozenset[str] = frozenset()

    def column(self, name: str) -> Any:
        """The column of that name; refused where it does not exist or has missing values."""
        self.check_name(name)
        self.check_whole([name])
        return self.columns[name]

    def check_name(self, name: str) -> None:
        if name not in self.columns:
            hint = "".join(f"; did you mean {close!r}?" for close in difflib.get_close_matches(name, self.columns, 1))
            split = any(mark in only for only in self.columns for mark in ";\t|") and len(self.columns) == 1
            hint = "; its values are not separated by commas" if split else hint
            raise ValueError(f"{self.path} has no column {name!r}{hint or '.'} Its columns: {listed(self.columns)}")

    def check_whole(self, names: Iterable[str]) -> None:
        """Refuse missing values, in all those columns at once."""
        masks = {name: self.missing(name) for name in names}
        lacking = [
            f"{name!r} ({mask.sum()}, first in row {self.row(mask)})" for name, mask in masks.items() if mask.any()
        ]
        if lacking:
            where = listed(lacking, str)
            cure = "fill them in, remove rows or columns, or, for inputs, train with --missing to have them filled in"
            words = (
                ""
                if ".csv" not in self.path
                else ". NA, null and the like are missing, unless quoted or with --missing ''"
            )
            raise ValueError(f"{self.path} has missing values in {where}: {cure}{words}")

    def missing(self, name: str) -> NDArray[np.bool_]:
        """Which rows have no value in that column."""
        return np.asarray(pc.is_null(self.columns[name], nan_is_null=True), dtype=bool)

    def present(self, name: str) -> Table:
        """The column of that name alone, without the rows that have no value in it."""
        return replace(self, columns={name: self.columns[name]}).only(~self.missing(name))

    def only(self, mask: NDArray[np.bool_]) -> Table:
        """Only the rows of the mask; errors still name them by their numbers in the file."""
        columns = {name: values.filter(pa.array(mask)) for name, values in self.columns.items()}
        numbers = np.arange(1, self.rows + 1) if self.numbers is None else self.numbers
        return replace(self, columns=columns, rows=int(mask.sum()), numbers=numbers[mask])

    def row(self, mask: NDArray[np.bool_]) -> int:
        """The number of the first row in the mask."""
        index = int(mask.argmax())
        return index + 1 if self.numbers is None else int(self.numbers[index])

    def refuse(self, name: str, sentence: str) -> NoReturn:
        raise ValueError(f"column {name!r} of {self.path} {sentence}")


def suffix(path: str | Path) -> str:
    """Which kind of table that file is, by its name."""
    found = [each for each in _SUFFIXES if str(path).lower().endswith(each)]
    if not found:
        raise ValueError(f"{path} does not end in one of {', '.join(_SUFFIXES)}: give a table of one of these kinds")
    return found[-1]


class _RefusedError(ValueError):
    """What a file that can be read must not hold."""


def read(path: str | Path, text: Sequence[str] = (), missing: Sequence[str] | None = None) -> Table:
    """The table in that file.

    text      columns of a CSV that hold text even if they look like numbers or dates
    missing   what stands for a missing value, as written, beside what always does: an empty cell, NA or NaN
    """
    kind, path = suffix(path), Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if path.is_dir() or not path.stat().st_size:
        raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'empty'}: give a table")
    try:
        columns = _read_npz(path) if kind == ".npz" else _read_arrow(path, kind, text, missing or ())
    except _RefusedError as error:
        raise ValueError(f"{path}: {error}") from None
    except (OSError, ValueError, TypeError, EOFError, pa.ArrowException, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(_unreadable(path, kind, error)) from error
    wrong = [name for name, count in Counter(name for name, _ in columns).items() if count > 1 or not name]
    if wrong:
        raise ValueError(f"{path} has columns without a name, or with the same one: {listed(wrong)}; name each")
    if not columns or not len(columns[0][1]):
        raise ValueError(f"{path} has no rows: give at least a few")
    if not kind.startswith(".csv"):
        plain = {name: _usual(_blanked(values, missing or ())) for name, values in columns}
        return Table(str(path), plain, len(columns[0][1]))
    guessed = frozenset(name for name, values in columns if pa.types.is_string(values.type)) - frozenset(text)
    return Table(str(path), dict(columns), len(columns[0][1]), guessed=guessed)


def _blanked(values: Any, missing: Sequence[str]) -> Any:
    """Without the values that stand for missing ones; values that cannot be cast to text, such as lists, stay."""
    try:
        found = pc.is_in(values.cast(pa.string()), value_set=pa.array(missing, pa.string()))
        return pc.if_else(found, pa.scalar(None, values.type), values) if missing else values
    except pa.ArrowException:
        return values


def _usual(values: Any) -> Any:
    """Decimals as integers, where all are whole and small enough, otherwise as floating-point numbers; views of text as text."""
    if pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if not pa.types.is_decimal(values.type):
        return values
    try:
        return values.cast(pa.int64())
    except pa.ArrowException:
        return values.cast(pa.float64())


def _unreadable(path: Path, kind: str, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError) and kind.startswith(".csv"):
        return f"{path} is not UTF-8, so it has another encoding or is not a CSV: save it as UTF-8"
    reason = (str(error) or type(error).__name__).splitlines()[0][:200]
    if "Expected 1 columns" in reason and kind.startswith(".csv"):
        return f"{path} has one name in its first row and more values in others: separate values by commas, and write numbers with points"
    return f"{path} cannot be read, so it is cut off, damaged or of another format: {reason}"


def write(path: Path, kind: str, columns: Mapping[str, Any]) -> None:
    """Write columns to a new file of that kind, given as a suffix."""
    if kind == ".npz":
        _write_npz(path, columns)
        return
    with pa.output_stream(str(path), compression="gzip" if kind == ".csv.gz" else None) as stream:
        (parquet.write_table if kind == ".parquet" else csv.write_csv)(pa.table(dict(columns)), stream)


def _write_npz(path: Path, columns: Mapping[str, Any]) -> None:
    """Not by numpy.savez: it takes names as keywords, and `file` and `allow_pickle` are its own."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)


def _read_arrow(path: Path, kind: str, text: Sequence[str], missing: Sequence[str]) -> list[tuple[str, Any]]:
    table = parquet.read_table(str(path)) if kind == ".parquet" else _read_csv(path, text, missing)
    # The index of a pandas table is no column, unless it was given a name.
    columns = zip(table.column_names, table.columns, strict=True)
    return [(name, values) for name, values in columns if not re.fullmatch(r"__index_level_\d+__", name)]


def _read_csv(path: Path, text: Sequence[str], missing: Sequence[str]) -> Any:
    """Quoted cells are text, unless they are named as missing. Where some are named, these and empty cells are missing, and no others."""
    _check_csv(path)
    nulls = csv.ConvertOptions(
        strings_can_be_null=True,
        quoted_strings_can_be_null=bool(missing),
        column_types=dict.fromkeys(text, pa.string()),
        null_values=["", *missing] if missing else csv.ConvertOptions().null_values,
    )
    reading = csv.ReadOptions(use_threads=False, block_size=_BLOCK)  # one thread, so that an error names its row
    with pa.input_stream(str(path), compression="detect") as stream:
        single = b"," not in stream.read(1 << 16).split(b"\n")[0]  # where an empty line is a missing cell
    parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not single)
    return csv.read_csv(str(path), reading, parsing, nulls)


def _check_csv(path: Path) -> None:
    """Refuse what pyarrow accepts: it reads text that is not UTF-8 as bytes, and an unclosed quotation as the last value."""
    decoder, quotes = codecs.getincrementaldecoder("utf-8")(), 0
    with pa.input_stream(str(path), compression="detect") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            decoder.decode(block)
            quotes += block.count(b'"')
    decoder.decode(b"", final=True)
    if quotes % 2:
        raise ValueError("a quotation mark is opened and never closed")


def _read_npz(path: Path) -> list[tuple[str, Any]]:
    columns: list[tuple[str, NDArray[Any]]] = []
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            array = _array(arrays, name)
            if not isinstance(array, np.ndarray):
                raise _RefusedError(f"its member {name!r} is no array: write it by numpy.savez")
            if array.ndim not in (1, 2):
                raise _RefusedError(f"the array {name!r} has shape {array.shape}; give (rows,) or (rows, columns)")
            columns += [(name, array)] if array.ndim == 1 else [(f"{name}{j}", a) for j, a in enumerate(array.T)]
    if len({len(array) for _, array in columns}) > 1:
        raise _RefusedError("its arrays have different numbers of rows")
    return [
        (name, pa.chunked_array([pa.array(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))]))
        for name, array in columns
    ]


def _array(arrays: Any, name: str) -> Any:
    """One array of an .npz file; arrays of Python objects are refused, since reading them would run code of the file."""
    try:
        return arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise _RefusedError(
            f"the array {name!r} holds Python objects: save text by array.astype('U'), numbers by array.astype(float)"
        ) from None


def listed(names: Iterable[Any], shown: type[str] | Any = repr) -> str:
    """Names for a sentence: the first few, and how many more."""
    every = [shown(name) for name in names]
    return ", ".join(every[:_LISTED]) + (f" and {len(every) - _LISTED} more" if len(every) > _LISTED else "")
