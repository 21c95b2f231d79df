"""Random tables into every entry point: what comes out is a model with finite predictions, or one sentence that says why not.

Numbers run from 1e-30 to 1e30, columns are constant, duplicate, NaN or infinite, rows and classes are few or one, weights are 0 or huge. A
refusal is a ValueError that the package raises itself, or scikit-learn's checks of an estimator's data; no other exception, and no warning
of numpy or torch, may reach the caller. `make test-slow` runs 2,000 cases.
"""

from __future__ import annotations

import itertools
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import liftednn as lnn
from liftednn import predict
from liftednn.cli import commands as cli
from liftednn.cli import output
from liftednn.solvers import nnls

PACKAGE = str(Path(lnn.__file__).parent)
EXPONENTS = (-30, -20, -8, 0, 8, 20, 30)
KINDS = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "object")
HIDDEN = ((), (1,), (5,), (20, 5))


@dataclass(frozen=True)
class Case:
    """What a random table is made of, and what it is given to; `seed` is of its numbers."""

    entry: str
    seed: int
    rows: int
    columns: int
    kind: str
    exponent: int
    units: bool
    offset: float
    odd: tuple[str, ...]
    layout: str
    classes: int
    labels: str
    response: str
    weight: str
    hidden: tuple[int, ...]
    passes: int
    options: dict[str, Any]

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"early_stopping": True},
    {"activation": "tanh"},
    {"activation": "leaky_relu", "learn_activation": "unit"},
    {"activation": "softplus", "learn_activation": "layer"},
    {"activation": "hardsigmoid", "prediction": "lifted"},
    {"penalty": "l1"},
    {"penalty": "orthogonal"},
    {"penalty": "group:0.01"},
    {"penalty": "low_rank:2"},
    {"penalty": "nonnegative"},
    {"penalty": "ball:1.0", "early_stopping": True},
    {"prediction": "lifted"},
    {"divergence": "euclidean"},
    {"divergence": "euclidean", "prediction": "lifted", "activation": "hardtanh"},
    {"robust": 0.1},
    {"robust": "box:0.1", "activation": "tanh"},
    {"robust": "ball:1.0", "divergence": "euclidean"},
    {"dtype": "float32"},
    {"dtype": "float64", "batch_size": 1},
    {"warm_start": True},
    {"alpha": 0.0, "lam": 1.0},
]
LOSSES: list[dict[str, Any]] = [{}, {"loss": "absolute"}, {"loss": "huber"}, {"loss": lnn.losses.Quantile((0.1, 0.9))}]


def cases() -> st.SearchStrategy[Case]:
    odd = st.sampled_from(["constant", "zero", "duplicate", "nan", "inf", "indicator", "subnormal", "far", "outlier"])
    return st.builds(
        Case,
        entry=st.sampled_from(sorted(ENTRIES)),
        seed=st.integers(0, 1 << 20),
        rows=st.sampled_from([1, 2, 3, 7, 40, 41, 120, 300]),
        columns=st.sampled_from([1, 2, 3, 8, 8, 30, 400]),
        kind=st.sampled_from(KINDS + 3 * ("float32", "float64")),
        exponent=st.sampled_from(EXPONENTS),
        units=st.booleans(),
        offset=st.sampled_from([0.0, 0.0, 1.0, 1e4, 1e9]),
        odd=st.lists(odd, max_size=2).map(tuple),
        layout=st.sampled_from(["C", "F", "locked", "strided", "reversed"]),
        classes=st.sampled_from([1, 2, 2, 3, 10, 200]),
        labels=st.sampled_from(["int", "str", "object", "bool", "far", "float"]),
        response=st.sampled_from(["real", "real", "constant", "int", "str", "bool", "pair", "near", "outlier"]),
        weight=st.sampled_from(
            ["none", "none", "none", "none", "ones", "zeros", "one", "huge", "tiny", "wild", "all zero", "nan"]
        ),
        hidden=st.sampled_from(HIDDEN),
        passes=st.sampled_from([1, 2, 3, 10]),
        options=st.builds(lambda a, b: a | b, st.sampled_from(OPTIONS), st.sampled_from(LOSSES)),
    )


def inputs(case: Case) -> Any:
    """The table X."""
    rng, shape = case.rng, (case.rows, case.columns)
    scale = 10.0 ** (rng.integers(-30, 30, case.columns) if case.units else case.exponent)
    x = scale * (rng.standard_normal(shape) + case.offset)
    for odd in case.odd:
        column = rng.integers(case.columns)
        x[:, column] = odd_column(odd, x, column, rng)
    return laid_out(as_kind(x, case.kind), case.layout)


def odd_column(odd: str, x: Any, column: int, rng: np.random.Generator) -> Any:
    found = x[:, column].copy()
    if odd in ("nan", "inf", "outlier"):
        found[rng.integers(len(x))] = {"nan": np.nan, "inf": -np.inf, "outlier": 1e20}[odd]
        return found
    parts: dict[str, Any] = {
        "constant": found[0],
        "zero": 0.0,
        "duplicate": x[:, 0],
        "subnormal": 1e-42 * rng.random(len(x)),
    }
    parts |= {"indicator": 7e5 * (np.arange(len(x)) == 0), "far": 1e8 + rng.integers(2, size=len(x))}
    return parts[odd]


def as_kind(x: Any, kind: str) -> Any:
    if kind == "object":
        return np.array(
            [[str(cell) if column % 2 else cell for column, cell in enumerate(row)] for row in x.tolist()], object
        )
    if kind == "bool":
        return x > np.median(x)
    if kind.startswith("float"):
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(kind)
    limits = np.iinfo(kind)
    return np.nan_to_num(x).clip(limits.min / 2, limits.max / 2).astype(kind)


def laid_out(x: Any, layout: str) -> Any:
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "reversed":
        return x[::-1]
    if layout == "strided":
        return np.repeat(np.repeat(x, 2, axis=0), 2, axis=1)[::2, ::2]
    x.flags.writeable = layout != "locked"
    return x


def labels(case: Case) -> Any:
    places = case.rng.integers(case.classes, size=case.rows)
    kinds: dict[str, Callable[[], Any]] = {
        "int": lambda: places,
        "str": lambda: np.char.add("c", places.astype(str)),
        "object": lambda: np.array([f"c{each}" for each in places], object),
        "bool": lambda: places > 0,
        "far": lambda: places - (1 << 62),
        "float": lambda: places.astype("float32"),
    }
    return kinds[case.labels]()


def responses(case: Case) -> Any:
    rng = case.rng
    y = 10.0 ** EXPONENTS[rng.integers(len(EXPONENTS))] * rng.standard_normal(case.rows)
    kinds: dict[str, Callable[[], Any]] = {
        "real": lambda: y,
        "constant": lambda: np.full_like(y, y[0]),
        "int": lambda: rng.integers(-1000, 1000, case.rows),
        "str": lambda: y.astype(str).astype(object),
        "bool": lambda: y > 0,
        "pair": lambda: np.stack([y, np.zeros_like(y)], axis=1),
        "near": lambda: 1e8 + 1e-7 * rng.standard_normal(case.rows),
        "outlier": lambda: np.where(np.arange(case.rows) == 0, 1e30, y),
    }
    return kinds[case.response]()


def weights(case: Case) -> Any:
    rng, ones = case.rng, np.ones(case.rows)
    kinds: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "ones": lambda: ones,
        "zeros": lambda: rng.integers(0, 2, case.rows),
        "one": lambda: (np.arange(case.rows) == case.rows - 1) * 2.0,
        "huge": lambda: 1e30 * rng.random(case.rows),
        "tiny": lambda: 1e-30 * rng.random(case.rows),
        "wild": lambda: 10.0 ** rng.uniform(-30, 30, case.rows),
        "all zero": lambda: 0 * ones,
        "nan": lambda: np.where(np.arange(case.rows) == 0, np.nan, 1.0),
    }
    return kinds[case.weight]()


def check_finite(found: Any, shape: tuple[int, ...]) -> None:
    found = np.asarray(found)
    assert found.shape == shape, (found.shape, shape)
    assert found.dtype.kind not in "fc" or np.isfinite(found).all(), "predictions are not finite"


def check_probabilities(found: Any, shape: tuple[int, ...]) -> None:
    check_finite(found, shape)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-4)


def estimator(case: Case, kind: Any) -> Any:
    options = dict(case.options)
    if kind is lnn.LiftedClassifier or "divergence" in options:  # full passes take seconds where the loss has a kink
        options.pop("loss", None)
    return kind(case.hidden, max_iter=case.passes, random_state=0, **options)


def classifier(case: Case) -> None:
    x, y, model = inputs(case), labels(case), estimator(case, lnn.LiftedClassifier)
    model.fit(x, y, weights(case))
    if case.options.get("warm_start"):
        model.fit(x, y, weights(case))
    check_classifier(case, model, x)


def classifier_stream(case: Case) -> None:
    x, y, model = inputs(case), labels(case), estimator(case, lnn.LiftedClassifier)
    model.partial_fit(x, y, np.unique(y), weights(case))
    model.partial_fit(x[::-1], y[::-1])
    check_classifier(case, model, x)


def check_classifier(case: Case, model: Any, x: Any) -> None:
    check_finite(model.predict(x), (case.rows,))
    check_probabilities(model.predict_proba(x), (case.rows, len(model.classes_)))
    check_finite(model.transform(x), (case.rows, len(model.coefs_[-1])))


def regressor(case: Case) -> None:
    x, y, model = inputs(case), responses(case), estimator(case, lnn.LiftedRegressor)
    model.fit(x, y, weights(case))
    if case.options.get("warm_start"):
        model.fit(x, y, weights(case))
    check_regressor(case, model, x, y)


def regressor_stream(case: Case) -> None:
    x, y, model = inputs(case), responses(case), estimator(case, lnn.LiftedRegressor)
    model.partial_fit(x, y, weights(case))
    model.partial_fit(x[::-1], y[::-1])
    check_regressor(case, model, x, y)


def check_regressor(case: Case, model: Any, x: Any, y: Any) -> None:
    wide = (2,) if y.ndim == 2 or model.loss == LOSSES[-1]["loss"] else ()
    check_finite(model.predict(x), (case.rows, *wide))
    check_finite(model.transform(x), (case.rows, len(model.coefs_[-1])))


def sizes(case: Case) -> tuple[Any, list[int]]:
    """Responses, classes where the number is even, and the widths of a network for them."""
    if case.seed % 2:
        y = responses(case)
        return y, [case.columns, *case.hidden, y.shape[-1] if y.ndim == 2 else 1]
    return case.rng.integers(case.classes, size=case.rows), [case.columns, *case.hidden, case.classes]


def module(case: Case) -> None:
    x, (y, widths) = inputs(case), sizes(case)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.PReLU())]
    made = nn.Sequential(*layers[:-1]).to(torch.float64 if case.kind == "float64" else torch.float32)
    robust = case.options.get("robust")
    lnn.init.lifted_(made, x, y, passes=case.passes, penalty=case.options.get("penalty", "l2"), robust=robust)
    with torch.no_grad():
        rows = torch.from_numpy(np.ascontiguousarray(x).astype(np.float64)).to(made[0].weight)
        check_finite(made(rows).numpy(), (case.rows, widths[-1]))


def network(case: Case, widths: list[int], activation: str) -> Any:
    loss = "squared" if case.seed % 2 else "softmax"
    return lnn.LiftedNetwork.mlp(widths, activation=activation, loss=loss)


def minibatch(case: Case) -> None:
    x, (y, widths), counts = inputs(case), sizes(case), weights(case)
    net = lnn.automatic(network(case, widths, "fenchel_relu"), x, y, sample_weight=counts)
    fit = lnn.MiniBatch(passes=case.passes, seed=case.seed).run(net, x, y, sample_weight=counts)
    check_finite(predict.feedforward(fit.network, fit.weights, x).numpy(), (case.rows, widths[-1]))


def bcd(case: Case) -> None:
    x, (y, widths) = inputs(case), sizes(case)
    trainer = lnn.BCD(passes=case.passes, block_iter=20, joint=bool(case.seed % 3))
    net = network(case, widths, "relu" if case.seed % 5 else "hardtanh")
    fit = trainer.run(net, x, y, sample_weight=weights(case))
    check_finite(predict.feedforward(net, fit.weights, x).numpy(), (case.rows, widths[-1]))


def solver(case: Case) -> None:
    dtype, rng = (np.float64 if case.kind == "float64" else np.float32), case.rng
    with np.errstate(all="ignore"):
        x = inputs(case).astype(dtype)[:, :8]
        h, q = x.T @ x, (10.0**case.exponent * rng.standard_normal((5, x.shape[1]))).astype(dtype)
    upper = None if case.seed % 2 else abs(case.offset)
    found = nnls(torch.from_numpy(h), torch.from_numpy(q), max_iter=50, upper=upper)
    check_finite(found.z.numpy(), q.shape)


def command_line(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "fail", refused)
        here, columns = Path(folder), table(case)
        data = stored(here, columns, case)
        more = ["--hidden", ",".join(map(str, case.hidden)) or "0", "--passes", case.passes, "--quiet"]
        more += ["--sample-weight", "w"] * ("w" in columns) + ["--drop-constant"] * (case.seed % 3 > 0)
        more += ["--validation", 0.2] * bool(case.options.get("early_stopping"))
        if command("fit", data, "--target", "y", "--out", here / "m.safetensors", *more):
            return
        more = ["--probabilities"] * (case.seed % 2 == 0 and case.labels in ("str", "object", "bool"))
        assert not command("predict", here / "m.safetensors", data, "--out", here / "out.npz", "--quiet", *more)
        with np.load(here / "out.npz") as found:
            for name in found.files:
                check_finite(found[name], (case.rows,))


def table(case: Case) -> dict[str, Any]:
    x = inputs(case)[:, :8]
    y, w = responses(case) if case.seed % 2 else labels(case), weights(case)
    columns = {f"x{place}": x[:, place] for place in range(x.shape[1])} | {"y": y if y.ndim == 1 else y[:, 0]}
    return columns if w is None else columns | {"w": w}


def stored(folder: Path, columns: dict[str, Any], case: Case) -> Path:
    if case.layout in ("C", "F"):
        np.savez(folder / "t.npz", **{name: np.asarray(part.tolist()) for name, part in columns.items()})  # type: ignore[arg-type]
        return folder / "t.npz"
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "t.csv").write_text("\n".join(lines))
    return folder / "t.csv"


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(each) for each in arguments])
    assert ended.value.code in (0, 2)
    return int(ended.value.code)


def refused(sentence: str, code: int, as_json: bool) -> int:
    """Instead of printing why a command failed, raise the exception itself."""
    import sys

    judge(sys.exc_info()[1])
    return code


def judge(error: BaseException | None) -> None:
    """Accept a ValueError that the package raises, or one of scikit-learn's input checks; raise anything else again."""
    assert error is not None
    last = traceback.extract_tb(error.__traceback__)[-1]
    own = last.filename.startswith(PACKAGE) and (last.line or "").startswith("raise ")
    if type(error) is not ValueError or not (own or "sklearn/utils" in last.filename):
        raise error


@contextmanager
def finite_or_refused() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="early_stopping holds back|lifted_: ")
        # scikit-learn looks for infinity by a sum, of which numpy warns.
        warnings.filterwarnings("ignore", message="invalid value encountered in reduce")
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
        try:
            yield
        except ValueError as error:
            judge(error)


ENTRIES: dict[str, Callable[[Case], None]] = {
    "classifier": classifier,
    "classifier stream": classifier_stream,
    "regressor": regressor,
    "regressor stream": regressor_stream,
    "module": module,
    "minibatch": minibatch,
    "bcd": bcd,
    "nnls": solver,
    "command line": command_line,
}


def check(case: Case) -> None:
    with finite_or_refused():
        ENTRIES[case.entry](case)


test_fifty_random_tables = settings(max_examples=50, suppress_health_check=list(HealthCheck))(given(cases())(check))
test_two_thousand_random_tables = pytest.mark.slow(
    settings(max_examples=2000, suppress_health_check=list(HealthCheck))(given(cases())(check))
)
