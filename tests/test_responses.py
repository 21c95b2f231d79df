"""Responses: their units do not matter, losses of another kind are refused, and so are fits that cannot be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import d2_pinball_score, r2_score
from torch import nn
from torch.nn import functional as fn
from typer.testing import CliRunner

import liftednn as lnn
from experiments import constraints
from experiments.store import Store
from liftednn import LiftedClassifier, LiftedNetwork, LiftedRegressor
from liftednn.base import Loss, Penalty
from liftednn.cli import commands as cli
from liftednn.cli import jobs
from liftednn.data import tables
from liftednn.functional import median_and_spread
from liftednn.losses import AbsoluteError, CrossEntropy, Huber, Matching, Quantile, SoftmaxCrossEntropy, SquaredError
from liftednn.modules.criteria import loss_of
from liftednn.penalties import L1, L2, Ball, NonNegative, Orthogonal
from liftednn.penalties.naming import _NAMES

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(400, 5))
U = X @ DRAWS.normal(size=(5, 3))
F = np.where(U > 0, U, 0.3 * U) @ [1.0, -1.0, 0.7]
ROWS, REAL = torch.from_numpy(X), torch.from_numpy((F - F.mean()) / F.std())[:, None]
# Each loss, and what it grows by where responses and scores are t times as large.
GROWTH: dict[str, tuple[Loss, int]] = {
    "squared": (SquaredError(), 2),
    "huber": (Huber(), 2),
    "absolute": (AbsoluteError(), 1),
    "quantile": (Quantile(0.7), 1),
}


def scaled(loss: Loss, t: float) -> Loss:
    return Huber(t * loss.delta) if isinstance(loss, Huber) else loss


def rhos(loss: Loss, y: torch.Tensor) -> np.ndarray:
    chosen = lnn.automatic(LiftedNetwork.mlp([5, 6, 4, y.shape[1]], "fenchel_relu", loss), ROWS, y)
    return np.array([layer.penalty.ridge for layer in chosen.layers])


def regressor(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0, **options})


def initialised(y: np.ndarray, loss: Any, passes: int = 20) -> torch.Tensor:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    lnn.init.lifted_(module, ROWS, torch.from_numpy(y), loss=loss, passes=passes)
    with torch.no_grad():
        return module(ROWS)[:, 0]


@pytest.mark.parametrize("name", GROWTH)
@pytest.mark.parametrize("t", [2.0**-12, 0.5, 2.0**14])
def test_rho_is_in_units_of_the_loss_and_of_the_head(name: str, t: float) -> None:
    """The scores' weights grow with t, the loss like t^d: t^d rho |W|^2 for hidden W, and t^(d-2) rho |t V|^2 for the head, keep pace."""
    loss, degree = GROWTH[name]
    one, moved = rhos(loss, REAL), rhos(scaled(loss, t), t * REAL + 3 * t)
    np.testing.assert_allclose(moved[:-1], t**degree * one[:-1], rtol=1e-12)
    np.testing.assert_allclose(moved[-1], t ** (degree - 2) * one[-1], rtol=1e-12)


@pytest.mark.parametrize("name", GROWTH)
def test_rho_of_standardised_and_of_constant_responses_is_that_of_unit_ones(name: str) -> None:
    """6.5e-4 / 2 (variance of the layer's inputs) / sqrt(rows), whatever sample of standardised responses is drawn."""
    loss = GROWTH[name][0]
    expected = 3.25e-4 * X.var(0).sum() / 20
    constant = torch.cat([REAL, torch.full_like(REAL, 7.0)], 1)
    for y in (REAL, 1.2 * REAL, 0.85 * REAL, torch.full_like(REAL, 1e-6), torch.zeros_like(REAL), constant):
        assert rhos(loss, y)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "quantile"])
@pytest.mark.thin(2)
def test_an_initialisation_does_not_depend_on_the_units(loss: str) -> None:
    """Up to the trainer's own tolerances."""
    plain, small, large = (initialised(t * F, loss).numpy() / t for t in (1.0, 2.0**-13, 2.0**13))
    assert r2_score(F, plain) > 0.95
    assert r2_score(plain, small) > 0.995
    assert r2_score(plain, large) > 0.995


def test_huber_by_name_is_in_units_of_the_spread() -> None:
    spread = float(median_and_spread(torch.from_numpy(1000 * F)[:, None])[1])
    assert torch.equal(initialised(1000 * F, "huber", 2), initialised(1000 * F, Huber(0.3 * spread), 2))


@pytest.mark.parametrize(
    "loss", ["squared", "huber", Quantile(0.8), Quantile((0.2, 0.8)), AbsoluteError(0.02)], ids=str
)
@pytest.mark.parametrize("head", [Ball(1e9), L2()], ids=["ball", "l2"])
@pytest.mark.thin(6)
def test_predictions_move_with_the_responses_under_any_head(loss: str | Loss, head: Penalty) -> None:
    t = 2.0**13
    fits = [regressor(loss=loss, penalty=["l2", head]).fit(X, y).predict(X) for y in (F, t * F - 3e5)]
    assert r2_score(fits[0], (fits[1] + 3e5) / t) > 0.999


def test_huber_under_a_ball_learns_in_any_units() -> None:
    assert regressor(loss="huber", penalty=["l2", Ball(1e9)]).fit(X, 1000 * F).score(X, 1000 * F) > 0.9


@pytest.mark.parametrize(("first", "then"), [(Quantile((0.1, 0.9)), "squared"), ("squared", Quantile((0.1, 0.9)))])
def test_other_levels_cannot_be_resumed(first: str | Loss, then: str | Loss) -> None:
    model = regressor(loss=first, max_iter=2).fit(X, F)
    before = model.predict(X)
    model.set_params(warm_start=True, loss=then)
    for go_on in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=r"keep the outputs of the last fit, whose loss was .*: with loss=.*, fit"):
            go_on(X, F)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.set_params(warm_start=False).fit(X, F).predict(X).ndim == (1 if then == "squared" else 2)


@pytest.mark.parametrize(
    ("penalty", "what"),
    [("ball:20", "the columns of X"), ("orthogonal", "the columns of X"), (["l2", Ball(5.0)], "responses")],
)
def test_scaled_columns_cannot_be_resumed_under_a_ball(penalty: Any, what: str) -> None:
    x = X * [0.01, 1, 1, 1, 1]
    model = regressor(max_iter=2).fit(x, F).set_params(warm_start=True, penalty=penalty)
    for go_on in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=f"keep {what} as the last fit scaled them, so coefs_ would not obey"):
            go_on(x, F)
    first, *_, last = model.set_params(warm_start=False).fit(x, F).coefs_
    bound = last if what == "responses" else first
    assert np.linalg.norm(bound) <= (5.0 if what == "responses" else 20) * (1 + 1e-5)
    model.set_params(warm_start=True).fit(x, F).partial_fit(x, F)


@pytest.mark.parametrize("loss", ["absolute", "quantile", "huber", "squared", Matching()], ids=str)
def test_a_classifier_refuses_losses_of_real_responses(loss: str | Loss) -> None:
    model = LiftedClassifier((4,), loss=loss)
    for fit in (lambda: model.fit(X, F > 0), lambda: model.partial_fit(X, F > 0, [False, True])):
        with pytest.raises(ValueError, match="is for real responses, and a classifier has labels: leave loss='auto'"):
            fit()


@pytest.mark.parametrize("loss", ["softmax", SoftmaxCrossEntropy(), CrossEntropy()], ids=str)
def test_a_regressor_refuses_losses_of_labels(loss: str | Loss) -> None:
    for fit in (regressor(loss=loss).fit, regressor(loss=loss).partial_fit):
        with pytest.raises(ValueError, match="is for labels, and a regressor has real responses: leave loss='auto'"):
            fit(X, F)


def test_alpha_is_for_names_without_a_number() -> None:
    def penalties(**options: Any) -> list[Penalty]:
        return [layer.penalty for layer in regressor(max_iter=1, **options).fit(X, F).network_.layers]

    assert penalties(penalty="l1", alpha=0.5) == [L1(0.5)] * 2
    assert penalties(penalty="l1") == [L1()] * 2
    assert penalties(penalty="l1:0.01", alpha=0.5) == penalties(penalty=L1(0.01), alpha=0.5) == [L1(0.01)] * 2
    assert penalties(penalty=L2(0.01), alpha=0.5) == [L2(0.01)] * 2
    assert penalties(penalty=L2(0.01)) == penalties()


@pytest.mark.parametrize("classes", [True, False])
def test_torchs_losses_of_classes_are_ours(classes: bool) -> None:
    """The same gradient in the scores, for every row."""
    criterion: nn.Module = nn.CrossEntropyLoss(reduction="sum") if classes else nn.BCEWithLogitsLoss(reduction="sum")
    y = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(0))
    given = y if classes else fn.one_hot(y, 3).double()
    u = torch.from_numpy(U[:20]).requires_grad_()
    criterion(u, given).backward()
    loss = loss_of(criterion)
    assert loss is not None
    assert u.grad is not None
    torch.testing.assert_close(loss.grad(u.detach(), loss.encode(given, 3).double()), u.grad)


@pytest.mark.slow
def test_lifted_takes_torchs_losses_of_classes() -> None:
    x, y = ROWS.float(), torch.from_numpy(F > 0).long()
    for outputs, criterion in ((2, nn.CrossEntropyLoss()), (1, nn.BCEWithLogitsLoss())):
        weights = []
        for loss in (criterion, None):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, outputs))
            weights.append(next(lnn.init.lifted_(module, x, y, loss=loss).parameters()).detach())
        assert torch.equal(*weights)


@pytest.mark.parametrize("penalty", [NonNegative(), Orthogonal()], ids=str)
def test_the_error_for_frozen_weights_outside_a_constraint_says_that_they_are_frozen(penalty: Penalty) -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    module[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"layer 0 break the constraint .*: the layer is frozen \(requires_grad=False"):
        lnn.init.lifted_(module, ROWS.float(), REAL.float(), penalty=[penalty, "l2"])


def test_levels_that_do_not_fit_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="give one level for each column of y, or fit each column alone"):
        regressor(loss=Quantile((0.1, 0.5, 0.9))).fit(X, np.column_stack([F, F]))


def table(path: Path) -> str:
    counts = np.where(np.abs(F) < np.median(np.abs(F)), 1.0, 0.01)
    rows = [",".join(map(str, row)) for row in np.column_stack([X, F, counts]).round(4)]
    path.write_text("\n".join(["a,b,c,d,e,y,n", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_predict_prints_the_score_of_the_loss(tmp_path: Path, level: float) -> None:
    data, model, out = table(tmp_path / "t.csv"), str(tmp_path / "m.safetensors"), str(tmp_path / "p.csv")
    loss = ["--loss", "quantile", "--quantile", str(level), "--passes", "5"]
    fit = CliRunner().invoke(cli.app, ["fit", data, "--target", "y", "--out", model, "--json", *loss])
    done = CliRunner().invoke(cli.app, ["predict", model, data, "--out", out, "--json"])
    printed = json.loads(done.stdout)
    said = np.loadtxt(out, skiprows=1, delimiter=",", ndmin=2)[:, -1]
    assert printed["d2"] == pytest.approx(d2_pinball_score(F.round(4), said, alpha=level), abs=1e-5)
    assert printed["d2"] == pytest.approx(json.loads(fit.stdout)["score"], abs=1e-5)


def test_the_command_line_s_spread_is_weighted(tmp_path: Path) -> None:
    order = ["--target", "y", "--out", str(tmp_path / "m.safetensors"), "--json", "--passes", "1", "--loss", "huber"]
    done = CliRunner().invoke(cli.app, ["fit", table(tmp_path / "t.csv"), *order, "--sample-weight", "n"])
    model = lnn.load(tmp_path / "m.safetensors")
    encoding = jobs.Encoding.from_dict(model.notes["table"])
    data, counts = encoding.weighted(tables.read(tmp_path / "t.csv"))
    y = torch.as_tensor(encoding.targets(data))[:, None]
    spread, alike = (float(median_and_spread(y, n)[1]) for n in (torch.as_tensor(counts), None))
    assert json.loads(done.stdout)["loss_function"] == repr(model.network.loss)
    assert isinstance(model.network.loss, Huber)
    assert model.network.loss.delta == pytest.approx(0.3 * spread)
    assert spread < 0.8 * alike


@pytest.mark.parametrize("command", ["fit", "init"])
def test_help_names_every_penalty(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert [name for name in _NAMES if name not in shown] == []


def test_records_of_other_passes_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "constraints-cpu.jsonl")
    monkeypatch.setattr(constraints, "TRAININGS", {"l2": [L2(), L2()]})
    for passes, accuracy in ((2, 0.5), (4, 0.75)):
        outcome = {"accuracy": accuracy, "violation": 0.0, "units": 0.0, "seconds": 0.0}
        store.add(outcome, task="training", penalty="l2", passes=passes, seed=0)
    assert [constraints.trainings(store, 1, passes)[0]["accuracy"] for passes in (2, 4)] == [0.5, 0.75]
