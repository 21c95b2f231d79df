"""Tables: what is read and encoded is right to the last digit, and everything doubtful is refused with a message."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from liftednn.cli.jobs import split
from liftednn.data import tables
from liftednn.data.tables import Encoding, Table, read
from liftednn.data.tables.values import kind_of

FRAME = pd.DataFrame(
    {
        "age": [20, 30, 40, 50, 20, 30],
        "size": [1.5, -2.0, 0.25, 1e3, 7.0, 0.0],
        "city": ["Oslo", "Rome", "Oslo", 'a "b", c', "Rome", "Oslo"],
        "member": [True, False, True, True, False, False],
        "label": ["yes", "no", "no", "yes", "no", "yes"],
    }
)


def stored(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, **{n: frame[n].to_numpy(str if frame[n].dtype == "str" else None) for n in frame})
    else:
        frame.to_csv(path, index=False)
    return path


def table(tmp_path: Path, content: str, text: Sequence[str] = ()) -> Table:
    (tmp_path / "t.csv").write_text(content)
    return read(tmp_path / "t.csv", text)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.npz", "T.CSV"])
def test_every_kind_of_file_gives_the_same_inputs(name: str, tmp_path: Path) -> None:
    found = read(stored(FRAME, tmp_path / name))
    encoding = Encoding.of(found, "label")
    assert list(found.columns) == list(FRAME)
    assert found.rows == 6
    assert (encoding.task, encoding.classes) == ("classification", ("no", "yes"))
    scaled = (FRAME[["age", "size"]] - FRAME[["age", "size"]].mean()) / FRAME[["age", "size"]].std(ddof=0)
    dummies = pd.get_dummies(FRAME[["city", "member"]], columns=["city", "member"])
    expected = pd.concat([scaled, dummies[sorted(dummies, key=lambda name: name.replace('a "b', "Za"))]], axis=1)
    inputs = encoding.inputs(found)
    assert inputs.dtype == np.float32
    assert inputs.shape == (6, encoding.width) == (6, 7)
    columns = {column.name: column.categories for column in encoding.columns}
    assert columns["city"] == ("Oslo", "Rome", 'a "b", c')
    assert columns["member"] == ("false", "true")
    np.testing.assert_allclose(inputs, expected.to_numpy(float), rtol=1e-6)
    assert encoding.targets(found).tolist() == [1, 0, 0, 1, 0, 1]


def test_an_encoding_survives_json(tmp_path: Path) -> None:
    found = read(stored(FRAME, tmp_path / "t.csv"))
    for target in FRAME:
        encoding = Encoding.of(found, target)
        assert Encoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.npz"])
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    columns = {"a b": np.array([0.1 + 0.2, -1e300]), "k": np.array(["x,y", 'q"'])}
    tables.write(tmp_path / "part", tables.suffix(name), columns)
    found = read((tmp_path / "part").rename(tmp_path / name)).columns
    assert found["a b"].to_pylist() == columns["a b"].tolist()
    assert found["k"].to_pylist() == ["x,y", 'q"']


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "kwds", "a/b", "x.npy", "é"])
def test_a_column_of_an_npz_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    columns = {name: np.array([1.5, 2.5]), "other": np.array([True, False])}
    tables.write(tmp_path / "t.npz", ".npz", columns)
    assert {each: values.to_pylist() for each, values in read(tmp_path / "t.npz").columns.items()} == {
        name: [1.5, 2.5],
        "other": [True, False],
    }
    with np.load(tmp_path / "t.npz") as arrays:
        assert arrays[name].tolist() == [1.5, 2.5]


def test_matrices_of_an_npz_file_become_numbered_columns(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.uint8).reshape(3, 2)
    np.savez(tmp_path / "t.npz", x=x, y=np.array([0.5, 1.5, 2.5]))
    found = read(tmp_path / "t.npz")
    assert {name: values.to_pylist() for name, values in found.columns.items()} == {
        "x0": [0, 2, 4],
        "x1": [1, 3, 5],
        "y": [0.5, 1.5, 2.5],
    }


def test_the_index_of_a_pandas_table_is_no_column(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2]}, index=[7, 3]).to_parquet(tmp_path / "t.parquet")
    assert list(read(tmp_path / "t.parquet").columns) == ["a"]


def test_categories_of_pandas_are_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["3", "1", "3", "1"]), "y": pd.Categorical(["u", "v", "u", "v"])})
    frame.to_parquet(tmp_path / "t.parquet")
    encoding = Encoding.of(read(tmp_path / "t.parquet"), "y")
    assert encoding.columns[0].categories == ("1", "3")
    assert encoding.classes == ("u", "v")


def test_text_that_looks_like_numbers_later_is_still_text(tmp_path: Path) -> None:
    encoding = Encoding.of(table(tmp_path, "code,y\n01,1.5\nx,2.5\n01,3.5\n2020-01-01,1\n"), "y")
    assert encoding.text == ["code"]
    later = table(tmp_path, "code\n01\n2020-01-01\n", text=encoding.text)
    assert encoding.inputs(later).tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        (["a", "b"] * 4, "classification", "holds text"),
        (["true", "false"] * 4, "classification", "holds true/false"),
        ([3, 1] * 4, "classification", "whole numbers, 2 distinct ones in 8 rows"),
        (range(8), "regression", "whole numbers, 8 distinct ones in 8 rows"),
        ([1.5, 2.0] * 4, "regression", "real numbers"),
    ],
    ids=["text", "truth", "labels", "counts", "reals"],
)
def test_the_task_is_inferred_and_the_reason_printed(values: Any, task: str, why: str, tmp_path: Path) -> None:
    rows = "".join(f"{place % 3},{value}\n" for place, value in enumerate(values))
    encoding = Encoding.of(table(tmp_path, "x,y\n" + rows), "y")
    assert encoding.task == task
    assert why in encoding.why


def test_many_whole_numbers_are_quantities(tmp_path: Path) -> None:
    found = table(tmp_path, "x,y\n" + "".join(f"{i % 7},{i % 31}\n" for i in range(100)))
    assert Encoding.of(found, "y").task == "regression"
    forced = Encoding.of(found, "y", "classification")
    assert (forced.task, forced.classes, forced.why) == ("classification", tuple(range(31)), "as given by --task")


def test_a_real_target_is_standardised_and_restored(tmp_path: Path) -> None:
    found = table(tmp_path, "x,y\n1,10.5\n2,20.5\n3,60.5\n")
    encoding = Encoding.of(found, "y")
    z = encoding.targets(found)
    np.testing.assert_allclose([z.mean(), z.std()], [0, 1], atol=1e-6)
    np.testing.assert_allclose(encoding.decode(z[:, None]), [10.5, 20.5, 60.5], rtol=1e-6)


def test_huge_numbers_are_standardised_without_overflow(tmp_path: Path) -> None:
    found = table(tmp_path, "x,y\n1e300,1.5\n-1e300,2.5\n3e300,3.5\n")
    assert np.abs(Encoding.of(found, "y").inputs(found)).max() < 2


def test_labels_keep_their_type(tmp_path: Path) -> None:
    for values, labels in (("a\nb", ["b", "a"]), ("3\n5", [5, 3]), ("true\nfalse", [False, True])):
        first, second = values.split("\n")
        found = table(tmp_path, f"x,y\n1,{first}\n2,{second}\n3,{first}\n4,{second}\n")
        encoding = Encoding.of(found, "y")
        order = [encoding.classes.index(label) for label in labels]
        assert encoding.decode(np.eye(2)[order]).tolist() == labels
        assert encoding.decode(np.eye(2)[encoding.targets(found)]).tolist() == found.columns["y"].to_pylist()


def refused(sentence: str, path: Path, target: str = "y", **options: Any) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        Encoding.of(read(path), target, **options)


CUT = gzip.compress(b"x,y\n" + b"1,2.5\n" * 500)
FILES: dict[str, tuple[str, str | bytes, str]] = {
    "ragged": ("t.csv", "x,y\n1,2\n3\n", r"t\.csv cannot be read.*Row #3: Expected 2 columns, got 1"),
    "too many": ("t.csv", "x,y\n1,2\n3,4,5\n", r"Row #3: Expected 2 columns, got 3"),
    "open quote": ("t.csv", 'x,y\n1,2\n3,"ab', "a quotation mark is opened and never closed"),
    "cut gz": ("t.csv.gz", CUT[:-10], r"t\.csv\.gz cannot be read, so it is cut"),
    "no gz": ("t.csv.gz", "x,y\n1,2\n", "cannot be read, so it is cut off, damaged or of another format"),
    "gz as csv": ("t.csv", CUT, "is not UTF-8, so it has another encoding or is not a CSV"),
    "empty": ("t.csv", "", r"t\.csv is empty: give a table"),
    "header alone": ("t.csv", "x,y\n", r"t\.csv has no rows"),
    "same names": ("t.csv", "x,x,y\n1,2,3\n", r"same one: 'x'"),
    "no name": ("t.csv", ",x,y\n0,1,2\n", "columns without a name, or with the same one: ''"),
    "text as parquet": ("t.parquet", "x,y\n1,2\n", "cannot be read"),
    "text as npz": ("t.npz", "x,y\n1,2\n", "cannot be read"),
    "extension": ("t.xlsx", "x", r"t\.xlsx does not end in one of \.csv, \.csv\.gz, \.parquet, \.npz"),
    "unknown target": ("t.csv", "x,Y_\n1,2\n", r"no column 'y'\. Its columns: 'x', 'Y_'"),
    "missing": ("t.csv", "x,z,y\n1,a,1\n,b,2\n3,,3\n,a,4\n", r"missing values in 'x' \(2, first in row 2\), 'z' \(1, first in row 3\)"),
    "missing label": ("t.csv", "x,y\n1,a\n2,\n", r"missing values in 'y' \(1, first in row 2\): fill"),
    "NA": ("t.csv", "x,y\n1,a\nNA,b\n", r"missing values in 'x'"),
    "no values": ("t.csv", "x,y\n,1\n,2\n", r"missing values in 'x' \(2, first in row 1\)"),
    "constant": ("t.csv", "x,c,d,y\n1,5,u,1\n2,5,u,2\n3,5,u,3\n", r"constant columns, which carry no information: 'c', 'd'; remove"),
    "one class": ("t.csv", "x,y\n1,a\n2,a\n", r"column 'y' of .* is 'a' in all rows: a target needs two classes"),
    "constant target": ("t.csv", "x,y\n1,.5\n2,.5\n", r"column 'y' of .* is 0\.5 in all rows"),
    "identifier": ("t.csv", "x,i,y\n1,a,1\n2,b,2\n3,c,3\n", r"column 'i' of .* a different value in each of its 3 rows"),
    "label each": ("t.csv", "x,y\n1,a\n2,b\n3,c\n", r"column 'y' of .* a different class in each row"),
    "infinite": ("t.csv", "x,y\n1,1.5\ninf,2.5\n", r"column 'x' of .* infinite value in row 2"),
    "infinite target": ("t.csv", "x,y\n1,1.5\n2,-inf\n", r"column 'y' of .* infinite value in row 2"),
    "wide integers": ("t.csv", f"x,y\n1,1.5\n{2**53 + 1},2.5\n{2**60},3\n", r"column 'x' of .* beyond 2\^53 in row 3"),
    "dates": ("t.csv", "x,y\n2020-01-01,1.5\n2020-01-02,2.5\n", r"column 'x' of .* holds dates or times"),
    "clock": ("t.csv", "x,y\n12:30:00,1.5\n12:31:00,2.5\n", r"column 'x' of .* holds dates or times"),
    "bytes": ("t.csv", b"x,y\n\xff\xfe,1.5\nb,2.5\n", "is not UTF-8"),
    "no inputs": ("t.csv", "y\n1.5\n2.5\n", "has no columns to learn 'y' from"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_what_cannot_be_learnt_from_is_refused(case: str, tmp_path: Path) -> None:
    name, content, sentence = FILES[case]
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    refused(sentence, tmp_path / name)


def test_the_first_integer_that_a_double_cannot_hold_is_beyond(tmp_path: Path) -> None:
    found = table(tmp_path, f"x,y\n1,1.5\n{2**53},2.5\n")
    assert Encoding.of(found, "y").width == 1


def test_other_refusals(tmp_path: Path) -> None:
    refused("there is no file", tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    refused("is a folder", tmp_path / "folder.csv")
    found = tmp_path / "t.csv"
    found.write_text("x,label\n1,a\n2,b\n")
    refused(r"no column 'lable'; did you mean 'label'\? Its columns: 'x', 'label'", found, "lable")
    refused("holds text, and a regression needs numbers", found, "label", task="regression")
    found.write_text("c,y\n1,1.5\n1,2.5\n")
    refused("has no columns to learn 'y' from", found, drop_constant=True)
    found.write_text("x,c,y\n" + "".join(f"{i % 3},c{i // 2},1.{i}\n" for i in range(2002)))
    refused("'c' of .* has 1001 categories, 1000 at most", found)


def test_constant_columns_can_be_left_out(tmp_path: Path) -> None:
    found = table(tmp_path, "x,c,d,y\n1,5,u,1\n2,5,u,2\n3,5,u,3\n")
    encoding = Encoding.of(found, "y", drop_constant=True)
    assert [column.name for column in encoding.columns] == ["x"]


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_files_cut_anywhere_are_refused(kind: str, tmp_path: Path) -> None:
    path = stored(FRAME, tmp_path / f"t.{kind}")
    whole = path.read_bytes()
    for length in (1, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused("cannot be read, so it is cut off, damaged", path, "label")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.ones((2, 2, 2))}, r"array 'x' has shape \(2, 2, 2\); give \(rows,\) or \(rows, columns\)"),
        ({"x": np.ones(3), "y": np.ones(2)}, "different numbers of rows"),
        ({"x": np.array([1, "a", None], dtype=object)}, "the array .x. holds Python objects"),
        ({"x": np.array([1 + 2j, 2]), "y": np.array([1.5, 2])}, "cannot be read"),
        ({"x0": np.ones(2), "x": np.ones((2, 1))}, "same one: 'x0'"),
        ({"x": np.ones((0, 3)), "y": np.ones(0)}, "has no rows"),
        ({}, "has no rows"),
        ({"x": np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"), "y": np.array([1.5, 2])}, "holds dates or times"),
    ],
    ids=["3-d", "lengths", "objects", "complex", "names", "no rows", "nothing", "dates"],
)
def test_arrays_that_make_no_table_are_refused(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    refused(sentence, tmp_path / "t.npz")


def test_lists_in_a_column_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [[1], [2]], "y": [1.5, 2.5]}), tmp_path / "t.parquet")
    refused("column 'x' of .* holds list", tmp_path / "t.parquet")


@pytest.fixture
def learnt(tmp_path: Path) -> Encoding:
    return Encoding.of(read(stored(FRAME, tmp_path / "train.csv")), "label")


LIES: list[Any] = [
    None,
    "x",
    -1,
    0,
    10**400,
    True,
    [],
    {},
    [[]],
    [1, 1],
    ["a", "a"],
    ["a", 1],
    math.nan,
    math.inf,
    "number",
    "text",
]


def test_forged_facts_are_refused_or_an_encoding_that_works(learnt: Encoding, tmp_path: Path) -> None:
    """Every value replaced by every wrong one: nothing but a ValueError, then or when a table is encoded."""
    read_from, fields = read(stored(FRAME, tmp_path / "t.csv")), json.loads(json.dumps(learnt.to_dict()))
    places = [(fields, key) for key in fields] + [(column, key) for column in fields["columns"] for key in column]
    refused = 0
    for (inner, key), lie in itertools.product(places, LIES):
        true, inner[key] = inner[key], lie
        try:
            encoding = Encoding.from_dict(fields)
            assert np.isfinite(encoding.inputs(read_from)).all()
            encoding.decode(np.zeros((2, len(encoding.classes) or 1)))
            encoding.targets(read_from)
        except ValueError:
            refused += 1
        inner[key] = true
    assert Encoding.from_dict(fields) == learnt
    assert refused > 0.7 * len(places) * len(LIES)


@pytest.mark.parametrize("fields", [None, [], {}, {"columns": 3, "classes": []}, {"columns": [3], "classes": []}, "x"])
def test_what_describes_no_table_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"no encoding of a table \("):
        Encoding.from_dict(fields)


def test_other_columns_are_ignored_and_the_target_may_be_absent(learnt: Encoding, tmp_path: Path) -> None:
    later = FRAME.drop(columns="label")[["member", "size", "city", "age"]].assign(note="same", gap=np.nan)
    whole = read(stored(FRAME, tmp_path / "a.csv"))
    assert np.array_equal(learnt.inputs(read(stored(later, tmp_path / "b.csv"))), learnt.inputs(whole))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"city": "Paris"},
            r"column 'city' of .* holds 'Paris' in row 1, which is not in the training data: that has 'Oslo'",
        ),
        (
            {"age": ["1", "2", "old", "4", "5", "6"]},
            r"'age' of .* holds text \('old' in row 3\), and numbers in training",
        ),
        ({"age": [True] * 6}, r"column 'age' of .* holds true/false, and numbers in training"),
        ({"member": [1] * 6}, r"column 'member' of .* holds numbers, and true/false in training"),
        ({"size": [1.0, np.nan, 2, 3, 4, np.nan]}, r"missing values in 'size' \(2, first in row 2\)"),
        ({"size": [1.0, np.inf, 2, 3, 4, 5]}, r"column 'size' of .* infinite value in row 2"),
        ({"size": [1.0, 1e300, 2, 3, 4, 5]}, r"column 'size' of .* is too large, compared with training, in row 2"),
    ],
    ids=["unseen", "text", "truth", "numbers", "missing", "infinite", "huge"],
)
def test_rows_unlike_those_of_training_are_refused(
    change: dict[str, Any], sentence: str, learnt: Encoding, tmp_path: Path
) -> None:
    later = read(stored(FRAME.assign(**change), tmp_path / "later.csv"), learnt.text)
    with pytest.raises(ValueError, match=sentence):
        learnt.inputs(later)


def test_lacking_columns_are_named(learnt: Encoding, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks columns that the model was trained on: 'age', 'city'"):
        learnt.inputs(read(stored(FRAME.drop(columns=["age", "city"]), tmp_path / "later.csv")))


def test_unseen_labels_are_refused_as_targets(learnt: Encoding, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'label' of .* holds 'perhaps' in row 1, which is not in the training data"):
        learnt.targets(read(stored(FRAME.assign(label="perhaps"), tmp_path / "later.csv")))


def test_labels_written_as_reals_are_the_same_labels(tmp_path: Path) -> None:
    encoding = Encoding.of(table(tmp_path, "x,y\n1,0\n2,1\n3,0\n4,1\n"), "y")
    assert encoding.targets(table(tmp_path, "x,y\n1,1.0\n2,0.0\n")).tolist() == [1, 0]


def test_a_row_of_weight_k_is_k_rows(tmp_path: Path) -> None:
    counts = np.array([3, 0, 1, 2, 5, 1])
    weighted = read(stored(FRAME.assign(n=counts), tmp_path / "a.csv"))
    repeated = read(stored(FRAME.loc[np.repeat(FRAME.index, counts)], tmp_path / "b.csv"))
    for target in ("label", "size"):
        one, two = Encoding.of(weighted, target, weight="n"), Encoding.of(repeated, target)
        assert (one.classes, one.weight, one.width) == (two.classes, "n", two.width)
        np.testing.assert_allclose([one.mean, one.scale], [two.mean, two.scale], rtol=1e-12)
        for a, b in zip(one.columns, two.columns, strict=True):
            assert (a.name, a.categories) == (b.name, b.categories)
            np.testing.assert_allclose([a.mean, a.scale], [b.mean, b.scale], rtol=1e-12)
        kept, found = one.weighted(weighted)
        assert found is not None
        assert found.tolist() == [3, 1, 2, 5, 1]
        np.testing.assert_allclose(
            np.repeat(one.inputs(kept), [3, 1, 2, 5, 1], axis=0), two.inputs(repeated), rtol=1e-6
        )


def test_without_weights_all_rows_have_the_same_weight(learnt: Encoding, tmp_path: Path) -> None:
    found = read(stored(FRAME, tmp_path / "t.csv"))
    assert learnt.weighted(found) == (found, None)
    alike = Encoding.of(read(stored(FRAME.assign(n=7), tmp_path / "n.csv")), "label", weight="n")
    np.testing.assert_allclose(alike.inputs(found), learnt.inputs(found), rtol=1e-6)


def test_an_encoding_with_weights_survives_json_and_needs_none(tmp_path: Path) -> None:
    encoding = Encoding.of(read(stored(FRAME.assign(n=1.5), tmp_path / "t.csv")), "label", weight="n")
    again = Encoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding
    assert again.inputs(read(stored(FRAME, tmp_path / "new.csv"))).shape == (6, 7)


def test_refusals_count_rows_as_the_file_does(tmp_path: Path) -> None:
    found = table(tmp_path, "x,n,y\n1,0,1.5\n2,1,2.5\n3,0,3.5\ninf,1,2\n5,1,4\n")
    with pytest.raises(ValueError, match=r"column 'x' of .* infinite value in row 4"):
        Encoding.of(found, "y", weight="n")
    found = table(tmp_path, "x,n,y\n,0,1.5\n2,1,2.5\n,1,3.5\n4,1,2\n")
    with pytest.raises(ValueError, match=r"missing values in 'x' \(1, first in row 3\)"):
        Encoding.of(found, "y", weight="n")
    only = found.only(np.array([False, True, True, True])).only(np.array([False, True, True]))
    assert only.row(np.array([False, True])) == 4
    assert only.columns["y"].to_pylist() == [3.5, 2]


@pytest.mark.parametrize(
    "raw",
    ["name,y\nrosé,1\nred,2\n".encode("latin-1"), "größe,y\n1,1\n".encode("latin-1"), "x,y\n1,2\n".encode("utf-16")],
    ids=["value", "header", "utf-16"],
)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_csv_that_is_not_utf_8_is_refused(raw: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    with pytest.raises(ValueError, match=f"{name} is not UTF-8, so it has another encoding"):
        read(tmp_path / name)


def test_utf_8_is_read_with_a_byte_order_mark_and_across_blocks(tmp_path: Path) -> None:
    lines = ["näme,y"] + ["é" * 7 + f",{row}" for row in range(100_000)]
    (tmp_path / "t.csv").write_text("\n".join(lines), "utf-8-sig")
    found = read(tmp_path / "t.csv")
    assert list(found.columns) == ["näme", "y"]
    assert found.rows == 100_000


def test_only_text_and_wide_integers_are_taken_for_identifiers(tmp_path: Path) -> None:
    counted = table(tmp_path, "id,x,y\n0,1.5,a\n1,2.5,b\n2,0.5,a\n3,4,b\n")
    assert [column.name for column in Encoding.of(counted, "y").columns] == ["id", "x"]
    wide = table(tmp_path, f"id,x,y\n{2**53 + 2},1.5,a\n1,2.5,b\n2,0.5,a\n3,4,b\n")
    with pytest.raises(ValueError, match="if it is an identifier, remove it"):
        Encoding.of(wide, "y")


ODD = "x,y\n" + "".join(f"{'?' if row == 7 else row % 26},{row}.5\n" for row in range(60))


def test_a_column_of_numbers_with_one_odd_value_is_refused_by_name(tmp_path: Path) -> None:
    found = table(tmp_path, ODD)
    with pytest.raises(
        ValueError,
        match=r"column 'x' of .*t.csv holds numbers, but '\?' in row 8 cannot be read as such: .*--missing.*--text",
    ):
        Encoding.of(found, "y")
    with pytest.raises(ValueError, match=r"column 'x' of .*, but '\?' in row 8"):
        Encoding.of(found, "x")
    with pytest.raises(ValueError, match=r"column 'x' of .*, but '\?' in row 8"):
        Encoding.of(found, "y", weight="x")
    assert Encoding.of(table(tmp_path, ODD, ["x"]), "y").columns[0].kind == "text"


@pytest.mark.parametrize(
    ("values", "guess"),
    [
        (["0"] * 9 + ["low", "high"], "text"),
        (["A1", "B2", "7"], "text"),
        (["1.2.2020", "3.4.2021", "5"], "text"),
        (["1", "2", ">=3"], "odd"),
        (["12345", "12345-6789", "99999"], "odd"),
        (["?"] * 9 + ["1", "2.5e3"], "odd"),
        (["?", "-", "1", "2"], "odd"),
        (["1,5", "2,5", "3,25"], "odd"),
        (["5%", "7.5%"], "odd"),
        (["$3", "$1,200.50"], "odd"),
        (["2020-01-01", "?", "2020-01-03 10:00"], "odd"),
        (["10:30", "25", "11:45:10"], "odd"),
    ],
)  # fmt: skip
def test_text_is_distinguished_from_numbers_by_its_distinct_values(
    values: list[str], guess: str, tmp_path: Path
) -> None:
    found = table(tmp_path, "x,y\n" + "".join(f'"{each}",{row}.5\n' for row, each in enumerate(values * 2)))
    if guess == "text":
        assert Encoding.of(found, "y").columns[0].kind == "text"
    else:
        with pytest.raises(ValueError, match="cannot be read as such: correct it"):
            Encoding.of(found, "y")


def test_values_in_a_sentence_are_cut(tmp_path: Path) -> None:
    found = table(tmp_path, "x,y\n" + "".join(f"{row},{row}.5\n" for row in range(9)) + f"{'u' * 10**5},1\n")
    with pytest.raises(ValueError, match=r"u'\.\.\. in row 10") as raised:
        Encoding.of(found, "y")
    assert len(str(raised.value)) < 500


def test_arrays_of_either_byte_order_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([1.5, 2.5], ">f8"), y=np.array([1, 2], "<i4"))
    assert read(tmp_path / "t.npz").columns["x"].to_pylist() == [1.5, 2.5]


def test_text_of_a_file_that_says_so_may_hold_numbers(tmp_path: Path) -> None:
    pd.DataFrame({"x": ["1", "2", "?"] * 2, "y": [1.5, 2, 3, 4, 5, 6]}).to_parquet(tmp_path / "t.parquet")
    assert Encoding.of(read(tmp_path / "t.parquet"), "y").columns[0].categories == ("1", "2", "?")


GAPS = pd.DataFrame(
    {
        "n": [1.0, np.nan, 3, 5, np.nan, 7],
        "t": ["u", None, "v", "u", "v", None],
        "b": ["true", "false", None, "true", "false", "true"],
        "y": [1.5, 2, 3, 4, 5, 6],
    }
)


@pytest.mark.parametrize("mark", ["", "?", "-999"])
def test_missing_values_are_filled_in_on_request(mark: str, tmp_path: Path) -> None:
    GAPS.to_csv(tmp_path / "t.csv", index=False, na_rep=mark)
    found = read(tmp_path / "t.csv", missing=[mark])
    encoding = Encoding.of(found, "y", missing=[mark])
    assert encoding.filled(found) == {"n": 2, "t": 2, "b": 1}
    assert (encoding.columns[0].mean, encoding.columns[0].scale) == (4.0, np.sqrt(5))
    assert [column.categories for column in encoding.columns[1:]] == [("", "u", "v"), ("", "false", "true")]
    x = encoding.inputs(found)
    assert (encoding.columns[0].fill, encoding.columns[0].flagged) == (3.0, True)
    np.testing.assert_allclose(x[:, 0], np.array([-3, -1, -1, 1, -1, 3]) / np.sqrt(5), rtol=1e-6)  # the median is 3
    assert x[:, 1].tolist() == [0, 1, 0, 0, 1, 0]
    assert x[:, 2].tolist() == [0, 1, 0, 0, 0, 1]
    assert x[:, 5].tolist() == [0, 0, 1, 0, 0, 0]
    assert Encoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding
    later = f"b,t,n\n{mark},{mark},{mark}\ntrue,u,4\n"
    (tmp_path / "new.csv").write_text(later)
    np.testing.assert_allclose(
        encoding.inputs(read(tmp_path / "new.csv", encoding.text, encoding.missing)),
        [[-1 / np.sqrt(5), 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 1]],
        rtol=1e-6,
    )
    older = {
        **encoding.to_dict(),
        "columns": [{**c, "fill": None, "flagged": False} for c in encoding.to_dict()["columns"]],
    }
    for column in older["columns"]:  # as a file written before has it: the mean stands for a missing number
        del column["fill"], column["flagged"]
    assert Encoding.from_dict(older).inputs(found)[1, 0] == 0


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_other_files_have_missing_values_too(kind: str, tmp_path: Path) -> None:
    data = pd.DataFrame({"n": [1, -999, 3, 5], "t": ["u", "-999", "v", "u"], "y": [1.5, 2, 3, 4]})
    found = read(stored(data, tmp_path / f"t.{kind}"), missing=["-999"])
    encoding = Encoding.of(found, "y", missing=["-999"])
    assert (encoding.columns[0].mean, encoding.columns[1].categories) == (3.0, ("", "u", "v"))
    assert encoding.filled(found) == {"n": 1, "t": 1}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x,y\n1,1.5\n2,\n", r"missing values in 'y' \(1, first in row 2\)"),
        ("x,z,y\n1,,1.5\n2,,2.5\n", "column 'z' of .* has no values: remove it"),
    ],
    ids=["target", "no values"],
)
def test_what_filling_in_cannot_mend_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        Encoding.of(table(tmp_path, content), "y", missing=[""])


def test_missing_text_that_training_never_saw_is_refused(learnt: Encoding, tmp_path: Path) -> None:
    encoding = Encoding.of(read(stored(FRAME, tmp_path / "t.csv")), "label", missing=[""])
    later = read(stored(FRAME.assign(city=[None, *FRAME["city"][1:]]), tmp_path / "l.csv"), encoding.text, [""])
    with pytest.raises(ValueError, match=r"column 'city' of .* holds '' in row 1, which is not in the training data"):
        encoding.inputs(later)


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.ones(3))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(ValueError, match=r"its member 'readme\.txt' is no array"):
        read(tmp_path / "t.npz")


def test_a_seldom_indicator_keeps_its_unit_as_in_the_estimators(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7 + i / 100},{3 * (i == 5)},{i % 2}.5\n" for i in range(60))
    encoding = Encoding.of(table(tmp_path, "a,flag,y\n" + rows), "y")
    assert [column.scale == 3 for column in encoding.columns] == [False, True]


def test_outliers_do_not_set_the_unit_of_a_target(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{10**12 if i == 5 else i % 5}.5\n" for i in range(60))
    found = table(tmp_path, "a,y\n" + rows)
    assert Encoding.of(found, "y", outliers=True).scale < 5
    assert Encoding.of(found, "y").scale > 1e10


def test_an_empty_line_of_a_single_column_is_a_missing_cell(tmp_path: Path) -> None:
    assert table(tmp_path, "a\n1\n\n3\n").rows == 3
    assert table(tmp_path, "a,b\n1,2\n\n3,4\n").rows == 2
    with pytest.raises(ValueError, match="its values are not separated by commas"):
        table(tmp_path, "a;b\n1;2\n").check_name("b")


def test_a_row_of_every_class_is_trained_on() -> None:
    labels = np.array([0] * 20 + [1] * 19 + [2])
    for seed in range(20):
        kept, back = split(40, 0.5, seed, labels)
        assert set(labels[kept]) == {0, 1, 2}
        assert len(back) == 20
        assert sorted([*kept, *back]) == list(range(40))


def test_decimals_are_integers_where_they_are_whole(tmp_path: Path) -> None:
    """Databases write them; as labels they would be neither numbers nor text."""
    whole, cents = pa.array([Decimal(i % 2) for i in range(6)]), pa.array([Decimal(i) / 4 for i in range(6)])
    huge = pa.array([Decimal(10) ** 25 * i for i in range(6)])
    parquet.write_table(pa.table({"whole": whole, "cents": cents, "huge": huge}), tmp_path / "t.parquet")
    columns = read(tmp_path / "t.parquet").columns
    assert columns["whole"].to_pylist() == [0, 1, 0, 1, 0, 1]
    assert pa.types.is_int64(columns["whole"].type)
    assert columns["cents"].to_pylist() == [0, 0.25, 0.5, 0.75, 1, 1.25]
    assert columns["huge"].to_pylist() == pytest.approx([1e25 * i for i in range(6)])


def test_views_of_text_are_text_and_python_objects_are_named(tmp_path: Path) -> None:
    text = pa.array(["a", None, "b"], pa.string_view())
    parquet.write_table(pa.table({"t": text}), tmp_path / "t.parquet")
    assert kind_of(read(tmp_path / "t.parquet"), "t") == "text"
    np.savez(tmp_path / "t.npz", x=np.zeros(2), t=np.array(["a", "b"], dtype=object))
    with pytest.raises(ValueError, match=r"t.npz: the array 't' holds Python objects: save text by array.astype"):
        read(tmp_path / "t.npz")
    np.savez(tmp_path / "cube.npz", x=np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"cube.npz: the array 'x' has shape \(2, 2, 2\)"):
        read(tmp_path / "cube.npz")


def test_only_the_named_cells_and_empty_ones_are_missing(tmp_path: Path) -> None:
    content = 'x,region,y\n1,NA,a\n2,"NA",b\n3,EU,a\n4,,b\n5,?,a\n'
    (tmp_path / "t.csv").write_text(content)
    assert read(tmp_path / "t.csv").missing("region").tolist() == [True, False, False, True, False]
    assert read(tmp_path / "t.csv", missing=[""]).missing("region").tolist() == [False, False, False, True, False]
    assert read(tmp_path / "t.csv", missing=["?"]).missing("region").tolist() == [False, False, False, True, True]


def test_long_cells_are_read_and_decimal_commas_explained(tmp_path: Path) -> None:
    found = table(tmp_path, "x,t,y\n" + "".join(f"{k},{'z' * 2_500_000 if k == 2 else 'a'},b\n" for k in range(3)))
    assert found.rows == 3
    with pytest.raises(ValueError, match="separate values by commas, and write numbers with points"):
        table(tmp_path, "a;b\n1,5;2,5\n3,5;4,5\n")
