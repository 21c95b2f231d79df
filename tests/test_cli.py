"""The command line: from a table to predictions, errors in one sentence with exit code 2, and no partial file is left."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import liftednn as lnn
from liftednn.cli import commands as cli
from liftednn.cli import jobs
from liftednn.data import tables
from liftednn.defaults import Recipe
from liftednn.training.plan import passes

ROOT = Path(__file__).parents[1]


class Ran(NamedTuple):
    code: Any
    out: str
    err: str


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line as the shell would, in this process."""

    def command(*arguments: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(each) for each in arguments])
        return Ran(ended.value.code, *capfd.readouterr())

    return command


def frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, rows))
    colour, member = random.choice(["red", "green", "blue, or so"], rows), random.random(rows) < 0.5
    strength = a + 2 * (colour == "red") + member
    label = np.where(strength > 1.2, "yes", np.where(strength > 0, "perhaps", "no"))
    return pd.DataFrame(
        {"a": 100 * a + 7, "b": b, "colour": colour, "member": member, "label": label, "strength": 10 * strength + 500}
    )


def stored(data: pd.DataFrame, path: Path, encoding: str = "utf-8") -> Path:
    if path.suffix == ".parquet":
        data.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, **{n: data[n].to_numpy(str if data[n].dtype == "str" else None) for n in data})
    else:
        data.to_csv(path, index=False, encoding=encoding)
    return path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and a model of each task."""
    folder = tmp_path_factory.mktemp("shelf")
    for kind in ("csv", "parquet", "npz"):
        stored(frame().drop(columns="strength"), folder / f"train.{kind}")
        stored(frame(200, 1).drop(columns="strength"), folder / f"new.{kind}")
    stored(frame().drop(columns="label"), folder / "real.csv")
    stored(frame(200, 1).drop(columns="label"), folder / "real_new.csv")
    for name, target, table in (("model", "label", "train.csv"), ("real", "strength", "real.csv")):
        order = ["fit", folder / table, "--target", target, "--hidden", "20", "--passes", "15", "--quiet"]
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, order), "--out", str(folder / f"{name}.safetensors")])
        assert ended.value.code == 0
    return folder


def no_control(text: str) -> bool:
    return all(sign.isprintable() or sign == "\n" for sign in text)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_fit_then_predict(kind: str, run: Any, shelf: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "m.safetensors", tmp_path / f"p.{kind}"
    order = ["--target", "label", "--hidden", "20", "--passes", "10", "--validation", "0.1"]
    done = run("fit", shelf / f"train.{kind}", *order, "--out", model)
    assert done.code == 0
    assert "task: classification\nwhy: 'label' holds text" in done.out
    assert done.err.count("pass ") == 10
    assert "pass 10 of 10  objective" in done.err
    assert "validation 0." in done.err
    assert no_control(done.out + done.err)
    done = run("predict", model, shelf / f"new.{kind}", "--out", out, "--probabilities", "--json")
    told = json.loads(done.out)
    assert told["accuracy"] > 0.8
    predicted = tables.read(out).columns
    labels = np.asarray(predicted["label"])
    assert told["accuracy"] == (labels == frame(200, 1)["label"].to_numpy(str)).mean()
    shares = np.stack([np.asarray(predicted[f"probability_{label}"]) for label in ("no", "perhaps", "yes")], 1)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    assert np.array_equal(np.array(["no", "perhaps", "yes"])[shares.argmax(1)], labels)
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", f"p.{kind}"]


def test_predictions_are_those_of_the_python_interface(run: Any, shelf: Path, tmp_path: Path) -> None:
    assert run("predict", shelf / "model.safetensors", shelf / "new.csv", "--out", tmp_path / "p.csv").code == 0
    table = tables.read(shelf / "train.csv")
    encoding = tables.Encoding.of(table, "label")
    x, y = encoding.inputs(table), encoding.targets(table)
    network = lnn.automatic(lnn.LiftedNetwork.mlp([encoding.width, 20, 3], activation="fenchel_relu"), x, y, 0)
    fit = Recipe(passes=15, device="cpu").trainer(len(x), 3).run(network, x, y)
    scores = lnn.predict.feedforward(network, fit.weights, encoding.inputs(tables.read(shelf / "new.csv")))
    labels = [encoding.classes[place] for place in scores.argmax(1).tolist()]
    assert pd.read_csv(tmp_path / "p.csv")["label"].tolist() == labels
    saved = lnn.load(shelf / "model.safetensors")
    assert saved.network == fit.network
    assert [record.number for record in saved.history] == list(range(1, 16))


def test_a_regression_predicts_in_the_target_s_own_units(run: Any, shelf: Path, tmp_path: Path) -> None:
    done = run("predict", shelf / "real.safetensors", shelf / "real_new.csv", "--out", tmp_path / "p.parquet", "--json")
    told, truth = json.loads(done.out), frame(200, 1)["strength"].to_numpy()
    predicted = pd.read_parquet(tmp_path / "p.parquet")["strength"].to_numpy()
    assert told["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - truth) ** 2)), rel=1e-4)
    assert told["r2"] == pytest.approx(1 - np.mean((predicted - truth) ** 2) / truth.var(), rel=1e-4)
    assert told["r2"] > 0.9
    done = run(
        "predict", shelf / "real.safetensors", shelf / "real_new.csv", "--out", tmp_path / "q.csv", "--probabilities"
    )
    assert done.code == 2
    assert "--probabilities is for classes" in done.err
    assert not (tmp_path / "q.csv").exists()


def test_json_prints_one_object_only(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--hidden", "5", "--passes", "2", "--validation", "0.25", "--activation", "tanh", "--json"]
    out = tmp_path / "m.safetensors"
    done = run("fit", shelf / "train.csv", "--target", "label", *order, "--out", out)
    told = json.loads(done.out)
    assert told["classes"] == ["no", "perhaps", "yes"]
    assert (told["task"], told["rows"], told["columns"], told["sizes"]) == ("classification", 400, 4, [7, 5, 3])
    assert (told["passes"], told["measure"], told["file"]) == (2, "accuracy", str(out))
    assert told["validation_score"] == max(record.validation_score for record in lnn.load(out).history)
    assert {"loss", "score", "seconds", "why"} <= set(told)
    assert lnn.load(out).network.hidden == [lnn.activations.Tanh()]


def test_json_and_quiet_print_the_object_alone(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "label", "--hidden", "0", "--passes", "2", "--json", "--out", tmp_path / "m.safetensors"]
    done = run("fit", shelf / "train.csv", *order)
    assert done.err.count("pass ") == 2
    quiet = run("fit", shelf / "train.csv", *order, "--quiet")
    assert quiet.err == ""
    assert json.loads(quiet.out) | {"seconds": 0} == json.loads(done.out) | {"seconds": 0}


def test_a_run_that_ends_badly_gives_a_warning(
    run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "training diverged: try a smaller step"
    monkeypatch.setattr("liftednn.training.minibatch.problems_of", lambda *_: (sentence,))
    order = ["fit", shelf / "train.csv", "--target", "label", "--hidden", "0", "--passes", "1"]
    order += ["--out", tmp_path / "m.safetensors"]
    done = run(*order)
    assert f"liftednn: warning: {sentence}\n" in done.err
    assert sentence not in done.out
    assert json.loads(run(*order, "--json").out)["warnings"] == [sentence]
    assert run(*order, "--quiet") == (0, "", "")


def test_quiet_is_silent(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "label", "--hidden", "0", "--passes", "2", "--quiet"]
    assert run("fit", shelf / "train.csv", *order, "--out", tmp_path / "m.safetensors") == (0, "", "")
    done = run("predict", tmp_path / "m.safetensors", shelf / "new.csv", "--out", tmp_path / "p.csv", "--quiet")
    assert done == (0, "", "")


def test_a_terminal_gets_one_line_that_is_rewritten(
    run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    order = ["--target", "label", "--hidden", "5", "--passes", "3", "--out", tmp_path / "m.safetensors"]
    done = run("fit", shelf / "train.csv", *order)
    assert done.code == 0
    assert no_control(done.out)
    assert "\x1b" in done.err


@pytest.mark.parametrize("activation", [each.value for each in cli.Activation])
def test_init_starts_the_same_function_in_torch(activation: str, run: Any, shelf: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    order = ["--target", "label", "--hidden", "6,5", "--passes", "1", "--activation", activation, "--json"]
    told = json.loads(run("init", shelf / "train.csv", *order, "--out", out).out)
    assert list(load_file(out)) == [f"{place}.{part}" for place in (0, 2, 4) for part in ("bias", "weight")]
    scope: dict[str, Any] = {}
    exec(told["python"], scope)
    assert np.array_equal(scope["y"], pd.factorize(frame()["label"], sort=True)[0])
    accuracy = (scope["module"](scope["x"]).argmax(1) == scope["y"]).double().mean()
    assert float(accuracy) == pytest.approx(told["score"])


@pytest.mark.slow
def test_init_prints_python_that_runs(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "label", "--hidden", "6", "--quiet", "--out", tmp_path / "w.safetensors"]
    assert run("init", shelf / "train.csv", *order).out == ""
    order.remove("--quiet")
    done = run("init", shelf / "train.csv", *order)
    python = done.out.partition("python: \n")[2]
    linear = [f"nn.Linear(in_features={p}, out_features={q}, bias=True)" for p, q in ((7, 6), (6, 3))]
    assert f"\nmodule = nn.Sequential({linear[0]}, nn.ReLU(), {linear[1]})\n" in python
    assert "passes: 150" in done.out
    scope: dict[str, Any] = {}
    exec(python, scope)
    assert (scope["module"](scope["x"]).shape, scope["y"].shape) == ((400, 3), (400,))


def test_fit_removes_units_without_effect(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "label", "--hidden", "30", "--penalty", "group:0.1", "--passes", "40", "--json"]
    whole, small = (tmp_path / f"{name}.safetensors" for name in ("whole", "small"))
    all_of = json.loads(run("fit", shelf / "train.csv", *order, "--out", whole).out)
    told = json.loads(run("fit", shelf / "train.csv", *order, "--prune", "--out", small).out)
    assert told["sizes"][1] < all_of["sizes"][1] == 30
    assert told["score"] == all_of["score"]
    assert len(lnn.load(small).weights[0].b) == told["sizes"][1]


@pytest.mark.slow
def test_init_takes_the_options_of_fit(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "strength", "--hidden", "6", "--activation", "leaky_relu", "--out", tmp_path / "w.safetensors"]
    more = ["--loss", "huber", "--penalty", "nonnegative", "--learn-activation", "unit", "--passes", "20", "--json"]
    told = json.loads(run("init", shelf / "real.csv", *order, *more).out)
    scope: dict[str, Any] = {}
    exec(told["python"], scope)
    assert bool((scope["module"][0].weight >= 0).all())
    assert scope["module"][1].weight.shape == (6,)
    assert told["loss_function"].startswith("Huber")
    plain = json.loads(run("init", shelf / "real.csv", *order, "--passes", "5", "--json").out)
    robust = json.loads(run("init", shelf / "real.csv", *order, "--robust", "noise:1", "--passes", "5", "--json").out)
    assert robust["score"] != plain["score"]


def test_init_says_that_a_real_target_is_standardised(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "strength", "--hidden", "20", "--passes", "10", "--json", "--out", tmp_path / "w.safetensors"]
    told = json.loads(run("init", shelf / "real.csv", *order).out)
    assert "y: standardised; encoding.decode(" in told["python"]
    scope: dict[str, Any] = {}
    exec(told["python"], scope)
    assert float(scope["y"].mean()) == pytest.approx(0, abs=1e-5)
    predicted = scope["encoding"].decode(scope["module"](scope["x"]).numpy(force=True))
    truth = frame()["strength"].to_numpy()
    assert 1 - np.mean((predicted - truth) ** 2) / truth.var() == pytest.approx(told["score"], abs=1e-3)


def edited(change: Any) -> Any:
    return lambda folder: stored(change(frame().drop(columns="strength")), folder / "t.csv")


def written(text: str, name: str = "t.csv") -> Any:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


REFUSED: dict[str, tuple[Any, list[str], str]] = {
    "missing values": (edited(lambda f: f.assign(b=f["b"].where(f["b"] < 1))), [], "missing values in 'b' ("),
    "constant": (edited(lambda f: f.assign(same=1)), [], "constant columns, which carry no information: 'same'"),
    "one class": (edited(lambda f: f.assign(label="yes")), [], "is 'yes' in all rows"),
    "identifier": (edited(lambda f: f.assign(key=[f"k{i}" for i in range(len(f))])), [], "column 'key'"),
    "dates": (edited(lambda f: f.assign(day=["2020-01-01", "2020-01-02"] * 200)), [], "holds dates or times"),
    "no target": (edited(lambda f: f.rename(columns={"label": "labels"})), [], "did you mean 'labels'?"),
    "cut": (written("a,label\n1,x\n2"), [], "Row #3: Expected 2 columns, got 1"),
    "empty": (written(""), [], "is empty"),
    "no rows": (written("a,label\n"), [], "has no rows"),
    "extension": (written("a", "t.txt"), [], "does not end in one of .csv, .csv.gz, .parquet, .npz"),
    "no file": (lambda folder: folder / "none.csv", [], "there is no file"),
    "text as number": (edited(lambda f: f), ["--task", "regression"], "a regression needs numbers"),
    "hidden": (edited(lambda f: f), ["--hidden", "3,x"], "--hidden takes widths such as 300 or 300,100"),
    "hidden, huge": (edited(lambda f: f), ["--hidden", "1000001"], "--hidden takes widths of at most 1,000,000"),
    "hidden, no memory": (
        edited(lambda f: f),
        ["--hidden", "1000000,1000000"],
        "layers of 7-1000000-1000000-3 would need about",
    ),
    "hidden, absurd": (edited(lambda f: f), ["--hidden", "9" * 5000], "--hidden takes widths of at most 1,000,000"),
    "seed": (
        edited(lambda f: f),
        ["--seed", str(2**63)],
        f"'--seed': Input should be less than or equal to {2**63 - 1}",
    ),
    "latin 1": (
        lambda folder: stored(frame().replace("red", "rosé"), folder / "t.csv", "latin-1"),
        [],
        "t.csv is not UTF-8, so it has another encoding",
    ),
    "hidden 0": (edited(lambda f: f), ["--hidden", "3,0"], "--hidden takes widths"),
    "passes": (edited(lambda f: f), ["--passes", "0"], "--passes"),
    "validation": (edited(lambda f: f), ["--validation", "1.5"], "--validation"),
    "activation": (edited(lambda f: f), ["--activation", "swish"], "--activation"),
    "option": (edited(lambda f: f), ["--depth", "3"], "--depth"),
}


@pytest.mark.parametrize("how", [[], ["--json"], ["--quiet"]], ids=["plain", "json", "quiet"])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_sentences(case: str, how: list[str], run: Any, tmp_path: Path) -> None:
    make, more, words = REFUSED[case]
    table = make(tmp_path)
    before = os.listdir(tmp_path)
    done = run("fit", table, "--target", "label", "--out", tmp_path / "m.safetensors", *more, *how)
    said = json.loads(done.out)["error"] if how == ["--json"] else done.err
    assert done.code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert (done.err if how == ["--json"] else done.out) == ""
    assert os.listdir(tmp_path) == before


def test_a_missing_gpu_is_reported(run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "m.safetensors"
    done = run("fit", shelf / "train.csv", "--target", "label", "--device", "cuda", "--out", out)
    assert done.code == 2
    assert "device 'cuda' needs a GPU" in done.err


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("m.csv", "must end in .safetensors"),
        ("none/m.safetensors", "there is no folder"),
        ("folder.safetensors", "is a folder"),
    ],
    ids=["extension", "no folder", "folder"],
)
def test_an_unwritable_model_path_is_an_error_before_training(
    out: str, words: str, run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    monkeypatch.setattr(jobs, "train", None)
    done = run("fit", shelf / "train.csv", "--target", "label", "--out", tmp_path / out)
    assert done.code == 2
    assert words in done.err


@pytest.mark.parametrize("command", ["fit", "init", "predict"])
def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    command: str, run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "touch", denied)  # since root may write anywhere
    monkeypatch.setattr(jobs, "train", None)
    monkeypatch.setattr(jobs, "predict", None)
    out, table = tmp_path / "m.safetensors", shelf / "train.csv"
    if command == "predict":
        out = tmp_path / "p.csv"
        done = run("predict", shelf / "model.safetensors", table, "--out", out)
    else:
        done = run(command, table, "--target", "label", "--out", out)
    assert done.code == 2
    assert done.err == f"liftednn: {out} cannot be written (Permission denied): name another file, or another folder\n"


def test_the_largest_seed_is_taken(run: Any, shelf: Path, tmp_path: Path) -> None:
    order = ["--target", "label", "--hidden", "3", "--passes", "1", "--validation", "0.1", "--seed", str(2**63 - 1)]
    assert run("fit", shelf / "train.csv", *order, "--out", tmp_path / "m.safetensors").code == 0


def test_a_target_named_like_a_probability_is_refused_with_probabilities(run: Any, tmp_path: Path) -> None:
    table = stored(frame()[["a", "b", "label"]].rename(columns={"label": "probability_yes"}), tmp_path / "t.csv")
    model, out = tmp_path / "m.safetensors", tmp_path / "p.csv"
    order = ["--target", "probability_yes", "--hidden", "0", "--passes", "1", "--quiet"]
    assert run("fit", table, *order, "--out", model).code == 0
    done = run("predict", model, table, "--out", out, "--probabilities")
    assert done.code == 2
    assert "would add a column 'probability_yes', which is the target's own name" in done.err
    assert not out.exists()
    assert run("predict", model, table, "--out", out, "--quiet").code == 0


def test_what_is_read_is_not_overwritten(run: Any, shelf: Path) -> None:
    before = (shelf / "new.csv").read_bytes()
    done = run("predict", shelf / "model.safetensors", shelf / "new.csv", "--out", shelf / "new.csv")
    assert done.code == 2
    assert "would overwrite what is read" in done.err
    assert (shelf / "new.csv").read_bytes() == before


def test_constant_columns_can_be_left_out(run: Any, tmp_path: Path) -> None:
    table, model = stored(frame().assign(same=1), tmp_path / "t.csv"), tmp_path / "m.safetensors"
    order = ["--target", "label", "--hidden", "5", "--passes", "1", "--drop-constant", "--quiet"]
    assert run("fit", table, *order, "--out", model).code == 0
    assert run("predict", model, table, "--out", tmp_path / "p.csv").code == 0


NEW: dict[str, tuple[Any, str]] = {
    "unseen": (lambda f: f.assign(colour=["red"] * 4 + ["mauve"] + ["red"] * 195), "holds 'mauve' in row 5"),
    "lacking": (lambda f: f.drop(columns=["a", "member"]), "trained on: 'a', 'member'"),
    "text": (lambda f: f.assign(a=["tall"] * 200), "column 'a'"),
    "missing": (lambda f: f.assign(b=np.nan), "missing values in 'b' (200, first in row 1)"),
}


@pytest.mark.parametrize("case", NEW)
def test_rows_that_cannot_be_predicted_are_refused(case: str, run: Any, shelf: Path, tmp_path: Path) -> None:
    change, words = NEW[case]
    table = stored(change(frame(200, 1)), tmp_path / "t.csv")
    done = run("predict", shelf / "model.safetensors", table, "--out", tmp_path / "p.csv")
    assert done.code == 2
    assert words in done.err
    assert os.listdir(tmp_path) == ["t.csv"]


def test_the_target_may_be_absent_or_wrong(run: Any, shelf: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    table = stored(frame(200, 1).drop(columns="label"), tmp_path / "a.csv")
    told = json.loads(run("predict", shelf / "model.safetensors", table, "--out", out, "--json").out)
    assert told == {"rows": 200, "file": str(out)}
    table = stored(frame(200, 1).assign(label="never"), tmp_path / "b.csv")
    told = json.loads(run("predict", shelf / "model.safetensors", table, "--out", out, "--json").out)
    assert "holds 'never' in row 1, which is not in the training data" in told["not scored"]
    assert len(pd.read_csv(out)) == 200


def test_models_that_are_none_are_refused(run: Any, shelf: Path, tmp_path: Path) -> None:
    raw = (shelf / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(raw[:-7])
    network = lnn.LiftedNetwork.mlp([2, 2])
    lnn.save(tmp_path / "bare.safetensors", network, [lnn.Affine(torch.ones(2, 2), torch.ones(2))])
    for name, words in (
        ("cut", "not a complete model file"),
        ("bare", "contains no encoding of a table: give a model"),
        ("none", "there is no file"),
    ):
        done = run("predict", tmp_path / f"{name}.safetensors", shelf / "new.csv", "--out", tmp_path / "p.csv")
        assert done.code == 2
        assert words in done.err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": ()}, "contains no encoding of a table (columns, target"),
        ({"colour": 1}, "contains no encoding of a table (TypeError: "),
        ({"classes": ("a", "b")}, "but its network has"),
    ],
    ids=["no columns", "unknown key", "other classes"],
)
def test_a_forged_encoding_is_refused(
    change: dict[str, Any], words: str, run: Any, shelf: Path, tmp_path: Path
) -> None:
    saved, forged = lnn.load(shelf / "model.safetensors"), tmp_path / "forged.safetensors"
    lnn.save(forged, saved.network, saved.weights, notes={"table": saved.notes["table"] | change})
    done = run("predict", forged, shelf / "new.csv", "--out", tmp_path / "p.csv")
    assert done.code == 2
    assert words in done.err
    assert "give a model that `liftednn fit` wrote" in done.err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("command", ["fit", "init", "predict"])
def test_a_full_disk_is_reported_and_no_file_is_left(
    command: str, run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    if command == "predict":
        done = run("predict", shelf / "model.safetensors", shelf / "new.csv", "--out", tmp_path / "p.csv")
    else:
        order = ["--target", "label", "--hidden", "5", "--passes", "1", "--out", tmp_path / "m.safetensors", "--quiet"]
        done = run(command, shelf / "train.csv", *order)
    assert done.code == 1
    assert "could not be written: No space left on device" in done.err
    assert os.listdir(tmp_path) == []


def test_ctrl_c_while_reading_is_130(run: Any, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "read", pressed)
    done = run("fit", shelf / "train.csv", "--target", "label", "--out", tmp_path / "m.safetensors", "--json")
    assert done.code == 130
    assert json.loads(done.out) == {"error": "interrupted: no file was written"}


# A shell's background job ignores Ctrl-C, and so would what it starts.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from liftednn.cli import main; main()"
)


@pytest.mark.slow
def test_ctrl_c_in_training_writes_nothing(shelf: Path, tmp_path: Path) -> None:
    order = ["fit", str(shelf / "train.csv"), "--target", "label", "--passes", "100000", "--hidden", "10"]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *order, "--out", str(tmp_path / "m.safetensors")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert child.stderr is not None
    assert "pass 1 of" in child.stderr.readline()
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines()[-1] == "liftednn: interrupted: no file was written"
    assert "Traceback" not in err
    assert out == ""
    assert os.listdir(tmp_path) == []


def test_help_comes_without_torch() -> None:
    script = """
import sys
from liftednn.cli import main
for order in (["--help"], ["fit", "--help"], ["--version"], ["fit"], []):
    try:
        main(order)
    except SystemExit as ended:
        print("code", ended.code)
print("loaded", sorted({"torch", "numpy", "pyarrow", "sklearn"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == [
        f"code {n}" for n in (0, 0, 0, 2, 0)
    ]
    assert f"liftednn {lnn.__version__}" in done.stdout
    assert done.stderr == "liftednn: Missing argument 'TABLE'. See liftednn --help\n"


@pytest.mark.parametrize("command", ["fit", "predict", "init"])
def test_help_gives_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"])
    assert shown.exit_code == 0
    assert f"Example:  liftednn {command} " in shown.output
    assert no_control(shown.output)


def test_the_package_is_a_program_too() -> None:
    order = [sys.executable, "-m", "liftednn", "--version"]
    done = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"liftednn {lnn.__version__}\n"


@pytest.mark.slow
def test_passes_by_default_are_by_the_number_of_rows(run: Any, tmp_path: Path) -> None:
    table = stored(frame(15_000)[["a", "b", "label"]], tmp_path / "t.parquet")
    order = ["--target", "label", "--hidden", "0", "--json", "--out", tmp_path / "m.safetensors"]
    assert json.loads(run("fit", table, *order).out)["passes"] == passes(15_000)


def test_the_version_has_help() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"]).output
    assert "Print the version and exit." in shown


def test_a_target_may_have_the_name_of_an_option_of_numpy(run: Any, tmp_path: Path) -> None:
    for name in ("file", "allow_pickle"):
        table = stored(frame()[["a", "b", "label"]].rename(columns={"label": name}), tmp_path / "t.csv")
        model, out = tmp_path / "m.safetensors", tmp_path / "p.npz"
        order = ["--target", name, "--hidden", "0", "--passes", "1", "--quiet"]
        assert run("fit", table, *order, "--out", model).code == 0
        assert run("predict", model, table, "--out", out, "--quiet").code == 0
        with np.load(out) as found:
            assert set(found[name]) <= {"no", "perhaps", "yes"}


def weighted(run: Any, data: pd.DataFrame, folder: Path, *more: object) -> tuple[dict[str, Any], lnn.Saved]:
    """What a fit with the weights in column `n` prints and saves."""
    table, model = stored(data, folder / "t.parquet"), folder / "m.safetensors"
    order = ["--target", "label", "--sample-weight", "n", "--hidden", "8", "--passes", "5", "--json", *more]
    done = run("fit", table, *order, "--out", model)
    assert done.code == 0, done.out
    return json.loads(done.out), lnn.load(model)


@pytest.mark.parametrize("more", [[], ["--validation", "0.2"]], ids=["all", "validation"])
def test_a_row_of_weight_0_is_as_if_it_were_not_there(more: list[str], run: Any, tmp_path: Path) -> None:
    data = frame().drop(columns="strength").assign(n=np.arange(400) % 3 + 0.5)
    ghosts = data.iloc[:50].assign(a=1e9, b=np.nan, colour="mauve", label="never", n=0)
    mixed = pd.concat([ghosts, data.iloc[:100], ghosts, data.iloc[100:]])
    (told, one), (told_too, two) = (weighted(run, each, tmp_path, *more) for each in (data, mixed))
    assert one.notes == two.notes
    assert told_too | {"seconds": 0} == told | {"seconds": 0}
    for a, b in zip(one.weights, two.weights, strict=True):
        assert torch.equal(a.w, b.w)
        assert torch.equal(a.b, b.b)


def test_predictions_follow_rows_of_larger_weight(run: Any, tmp_path: Path) -> None:
    """Every row is there with the right label and with a wrong one; the weights decide."""
    data = frame().drop(columns="strength")
    wrong = data.assign(label=data["label"].map({"yes": "no", "no": "perhaps", "perhaps": "yes"}))
    for right in (0.95, 0.05):
        both = pd.concat([data.assign(n=right), wrong.assign(n=1 - right)])
        told, saved = weighted(run, both, tmp_path, "--passes", "15")
        encoding = tables.Encoding.from_dict(saved.notes["table"])
        table = tables.read(stored(data, tmp_path / "d.parquet"))  # without the weights: predicting needs none
        scores = lnn.predict.feedforward(saved.network, saved.weights, encoding.inputs(table)).numpy()
        agreed = np.mean(scores.argmax(1) == encoding.targets(table))
        assert agreed > 0.8 if right > 0.5 else agreed < 0.2
        assert (told["sample_weight"], told["columns"]) == ("n", 4)


def test_a_model_trained_with_weights_predicts_without_them(run: Any, tmp_path: Path) -> None:
    data = frame().drop(columns="strength")
    weighted(run, data.assign(n=1.0), tmp_path)
    table = stored(data, tmp_path / "new.csv")
    assert run("predict", tmp_path / "m.safetensors", table, "--out", tmp_path / "p.csv").code == 0


BAD_WEIGHTS: dict[str, tuple[Any, str]] = {
    "negative": ([1.0, -0.5] * 200, "holds a negative weight in row 2"),
    "all zero": (0, "is 0 in all rows: some weight"),
    "text": (["much", "little"] * 200, "holds text, and the weights of rows are numbers"),
    "truth": ([True, False] * 200, "holds true/false, and the weights of rows are numbers"),
    "missing": ([1.0, np.nan] * 200, "missing values in 'n' (200, first in row 2)"),
    "infinite": ([1.0, np.inf] * 200, "holds an infinite value in row 2"),
    "huge": ([1.0, 1e300] * 200, "holds a weight beyond 2^53 in row 2"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_cannot_be_ones_are_refused(case: str, run: Any, tmp_path: Path) -> None:
    values, words = BAD_WEIGHTS[case]
    table = stored(frame().assign(n=values), tmp_path / "t.csv")
    done = run("fit", table, "--target", "label", "--sample-weight", "n", "--out", tmp_path / "m.safetensors")
    assert done.code == 2
    assert words in done.err
    assert os.listdir(tmp_path) == ["t.csv"]


def test_weights_are_a_column_and_not_the_target(run: Any, shelf: Path, tmp_path: Path) -> None:
    for column, words in (("label", "cannot be both the target and the rows' weights"), ("m", "no column 'm'")):
        order = ["--target", "label", "--sample-weight", column, "--out", tmp_path / "m.safetensors"]
        done = run("fit", shelf / "train.csv", *order)
        assert done.code == 2
        assert words in done.err


def test_missing_values_are_filled_in_and_reported(run: Any, tmp_path: Path) -> None:
    data = frame().drop(columns="strength")
    data = data.assign(
        b=data["b"].astype(object).where(data.index != 7, "?"), colour=data["colour"].where(data.index > 2)
    )
    table, model, out = stored(data, tmp_path / "t.csv"), tmp_path / "m.safetensors", tmp_path / "p.csv"
    order = ["fit", table, "--target", "label", "--hidden", "5", "--passes", "2", "--json", "--out", model]
    assert "missing values in 'colour'" in json.loads(run(*order).out)["error"]
    assert json.loads(run(*order, "--missing", "?").out)["filled"] == {"b": 1, "colour": 3}
    assert json.loads(run("predict", model, table, "--out", out, "--json").out)["filled"] == {"b": 1, "colour": 3}
    order[0] = "init"
    scope: dict[str, Any] = {}
    exec(json.loads(run(*order, "--missing", "?").out)["python"], scope)
    assert scope["x"][:, 2].nonzero().tolist() == [[7]]  # the input that says where b is missing


def test_numbers_with_an_odd_value_can_be_declared_text(run: Any, tmp_path: Path) -> None:
    table = stored(frame().assign(b=["1", "2", "3+", "2"] * 100), tmp_path / "t.csv")
    order = ["fit", table, "--target", "label", "--hidden", "5", "--passes", "1", "--out", tmp_path / "m.safetensors"]
    done = run(*order)
    assert done.code == 2
    assert "column 'b' of" in done.err
    assert "holds numbers, but '3+' in row 3 cannot be read as such" in done.err
    assert run(*order, "--text", "b").code == 0
    assert "no column 'B'" in run(*order, "--text", "B").err
    table = stored(frame(), tmp_path / "t.parquet")
    assert "--text is for CSV files" in run("fit", table, *order[2:], "--text", "b").err


def test_the_model_is_written_even_if_there_is_no_stderr(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Python leaves it where the shell has closed it."""
    monkeypatch.setattr(sys, "stderr", None)
    order = ["--target", "label", "--hidden", "0", "--passes", "1", "--out", str(tmp_path / "m.safetensors")]
    with pytest.raises(SystemExit) as ended:
        cli.main(["fit", str(shelf / "train.csv"), *order])
    sys.stderr.close()
    assert ended.value.code == 0
    assert "passes: 1\n" in capfd.readouterr().out
    assert lnn.load(tmp_path / "m.safetensors").history


MORE_STREAMS = [
    ("2>&-", 0, ""),
    ("2>/dev/full", 0, ""),
    ("--json >/dev/full", 1, "liftednn: stdout cannot be written to (No space left on device)"),
    (">&- 2>&-", 0, ""),
]


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">/dev/full", 1, "liftednn: stdout cannot be written to (No space left on device)"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_STREAMS),
    ],
)
def test_the_model_is_written_even_if_printing_fails(
    streams: str, code: int, said: str, shelf: Path, tmp_path: Path
) -> None:
    order = f"fit {shelf / 'train.csv'} --target label --hidden 0 --passes 1 --out {tmp_path / 'm.safetensors'}"
    command = f"{sys.executable} -m liftednn {order} {streams}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert lnn.load(tmp_path / "m.safetensors").history
