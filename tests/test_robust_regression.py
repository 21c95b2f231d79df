"""The losses of bounded slope at every entry point: estimator, automatic choices, command line, torch initialiser, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.metrics import d2_pinball_score
from sklearn.utils.estimator_checks import check_estimator
from torch import nn
from typer.testing import CliRunner

import liftednn as lnn
from liftednn import LiftedRegressor
from liftednn.base import Loss
from liftednn.cli.commands import app
from liftednn.functional import median_and_spread, quantile
from liftednn.losses import AbsoluteError, Huber, Quantile, SoftmaxCrossEntropy, SquaredError
from liftednn.training import choices

X, Y = make_friedman1(600, noise=1.0, random_state=0)
NEW, TRUTH = make_friedman1(400, random_state=1)
LOSSES: list[str | Loss] = ["absolute", "huber", Quantile(0.8), Quantile((0.2, 0.8))]


def small(**options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"hidden_layer_sizes": (20,), "max_iter": 3, "random_state": 0, **options})


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.thin(2)
def test_predictions_move_with_the_responses(loss: str | Loss) -> None:
    plain, moved = small(loss=loss).fit(X, Y).predict(NEW), small(loss=loss).fit(X, 1e4 * Y - 3e5).predict(NEW)
    np.testing.assert_allclose((moved + 3e5) / 1e4, plain, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("loss", ["absolute", "huber"])
@pytest.mark.thin(2)
def test_outliers_change_only_the_squared_error(loss: str) -> None:
    wild = Y.copy()
    wild[::20] += 100 * np.sign(np.sin(np.arange(30)))
    errors = {
        name: np.median(np.abs(small(loss=name, max_iter=30).fit(X, wild).predict(NEW) - TRUTH))
        for name in (loss, "squared")
    }
    assert errors[loss] < 0.5 * errors["squared"]


def test_a_quantile_covers_its_fraction_of_new_responses() -> None:
    draws = np.random.default_rng(0)
    x, new = draws.uniform(0, 1, (8000, 5)), draws.uniform(0, 1, (20_000, 5))

    def noisy(rows: np.ndarray) -> np.ndarray:
        return rows.sum(1) + (0.1 + rows[:, 0]) * draws.standard_normal(len(rows))

    y, y_new = noisy(x), noisy(new)
    found = small(loss=Quantile((0.1, 0.5, 0.9)), max_iter=20).fit(x, y).predict(new)
    np.testing.assert_allclose((y_new[:, None] <= found).mean(0), (0.1, 0.5, 0.9), atol=0.025)
    assert np.corrcoef(found[:, 2] - found[:, 0], new[:, 0])[0, 1] > 0.9, "the band must widen with the noise"


def test_several_levels_come_in_their_own_order_and_have_a_score() -> None:
    model = small(loss=Quantile((0.9, 0.1, 0.5))).fit(X, Y)
    found = model.predict(NEW)
    assert found.shape == (400, 3)
    assert (found[:, 1] <= found[:, 2]).all()
    assert (found[:, 2] <= found[:, 0]).all()
    parts = [d2_pinball_score(Y, p, alpha=q) for p, q in zip(model.predict(X).T, (0.9, 0.1, 0.5), strict=True)]
    assert model.score(X, Y) == pytest.approx(np.mean(parts))
    more = model.partial_fit(X, Y).predict(NEW)
    assert more.shape == (400, 3)
    with pytest.raises(ValueError, match="y has 2 columns, but the network has 1 outputs"):
        model.partial_fit(X, np.stack([Y, Y], 1))


def test_several_responses_have_a_level_each() -> None:
    both = np.stack([Y, -Y], 1)
    found = small(loss=Quantile((0.1, 0.9)), max_iter=20).fit(X, both).predict(X)
    np.testing.assert_allclose((both <= found).mean(0), (0.1, 0.9), atol=0.06)
    assert small(loss="absolute").fit(X, both).predict(NEW).shape == (400, 2)


def test_squared_is_auto_whatever_its_name() -> None:
    expected = small().fit(X, Y).predict(NEW)
    for loss in ("squared", SquaredError()):
        np.testing.assert_array_equal(small(loss=loss).fit(X, Y).predict(NEW), expected)


def test_full_passes_are_exact_and_mini_batches_smoothed() -> None:
    exact = small(loss="absolute", divergence="euclidean", max_iter=1).fit(X[:30], Y[:30])
    assert exact.network_.loss == AbsoluteError()
    for options in ({}, {"lam": 1.0, "alpha": 1e-3}):
        loss = small(loss="absolute", max_iter=1, **options).fit(X, Y).network_.loss
        assert isinstance(loss, AbsoluteError)
        assert loss.smoothing == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize("loss", ["absolute", Quantile(0.5, 0.05)], ids=str)
@pytest.mark.slow
def test_scikit_learns_checks_pass(loss: str | Loss) -> None:
    model = LiftedRegressor((10,), loss=loss, max_iter=5)
    check_estimator(model, on_skip=None)
    assert clone(model).get_params()["loss"] == loss


def test_choices_scale_with_the_spread() -> None:
    y = torch.from_numpy(Y)[:, None]
    spread = float(median_and_spread(y)[1])
    assert choices.smoothed(AbsoluteError(), y) == AbsoluteError(0.01 * spread)
    for kept in (AbsoluteError(0.2), Huber(), SquaredError(), SoftmaxCrossEntropy()):
        assert choices.smoothed(kept, y) is kept
    chosen = lnn.automatic(lnn.LiftedNetwork.mlp([10, 5, 1], "fenchel_relu", "absolute"), X, Y)
    assert chosen.loss == AbsoluteError(0.01 * spread)
    with pytest.raises(ValueError, match="give a loss a smoothing"):
        lnn.MiniBatch().run(lnn.LiftedNetwork.mlp([10, 5, 1], "fenchel_relu", "absolute"), X, Y)


def test_quantiles_and_spread_are_numpys_with_and_without_weights() -> None:
    draws = np.random.default_rng(0)
    y, counts = draws.standard_normal((101, 2)), draws.integers(1, 4, 101)
    for level in (0.1, 0.25, 0.5, 0.9):
        plain = np.quantile(y, level, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(quantile(torch.from_numpy(y), level), plain)
        repeated = np.quantile(y.repeat(counts, axis=0), level, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(quantile(torch.from_numpy(y), level, torch.from_numpy(counts)), repeated)
    many = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    many[:20_000] += 1000
    assert float(median_and_spread(3 * many)[1]) == pytest.approx(3, rel=0.2)
    alike = torch.zeros(100, 1).double()
    assert float(median_and_spread(alike)[1]) == 1
    alike[0] = 10
    assert float(median_and_spread(alike)[1]) == pytest.approx(float(alike.std(correction=0)))


@pytest.mark.parametrize(
    ("criterion", "loss"),
    [
        (nn.MSELoss(), SquaredError()),
        (nn.L1Loss(), AbsoluteError()),
        (nn.HuberLoss(delta=0.5), Huber(0.5)),
        (nn.SmoothL1Loss(beta=0.2), Huber(0.2)),
        (nn.SmoothL1Loss(beta=0.0), AbsoluteError()),
    ],
    ids=str,
)
@pytest.mark.thin(3)
def test_torchs_losses_initialise_as_ours(criterion: nn.Module, loss: Loss) -> None:
    x, y = torch.from_numpy(X).float(), torch.from_numpy((Y - Y.mean()) / Y.std()).float()
    weights = []
    for given in (criterion, loss):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
        lnn.init.lifted_(module, x, y, loss=given, passes=20)
        weights.append(next(module.parameters()).detach())
        with torch.no_grad():
            assert float((module(x)[:, 0] - y).abs().mean()) < 0.6 * float(y.abs().mean())
    assert torch.equal(*weights)


def test_a_report_names_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    module = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 1))
    lnn.init.lifted_(
        module, torch.from_numpy(X).float(), torch.from_numpy(Y).float(), loss="absolute", passes=10, report=True
    )
    assert "D^2" in capsys.readouterr().out


def test_a_network_with_levels_is_saved_and_loaded(tmp_path: Path) -> None:
    model = small(loss=Quantile((0.1, 0.9))).fit(X, Y)
    weights = [
        (torch.from_numpy(w.T), torch.from_numpy(b)) for w, b in zip(model.coefs_, model.intercepts_, strict=True)
    ]
    lnn.save(tmp_path / "model.safetensors", model.network_, weights)
    assert lnn.load(tmp_path / "model.safetensors").network == model.network_


def table(path: Path) -> str:
    rows = [",".join(map(str, row)) for row in np.column_stack([X[:200, :5], Y[:200]]).round(4)]
    path.write_text("\n".join(["a,b,c,d,e,y", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (["--loss", "absolute"], "AbsoluteError(smoothing="),
        (["--loss", "huber"], "Huber(delta="),
        (["--loss", "quantile", "--quantile", "0.9"], "Quantile(q=0.9"),
        ([], "SquaredError()"),
    ],
)
@pytest.mark.thin(2)
def test_the_command_line_takes_a_loss(tmp_path: Path, options: list[str], function: str) -> None:
    out = ["--out", str(tmp_path / "m.safetensors"), "--json", "--passes", "20"]
    done = CliRunner().invoke(app, ["fit", table(tmp_path / "t.csv"), "--target", "y", *out, *options])
    facts = json.loads(done.stdout)
    assert facts["loss_function"].startswith(function)
    assert facts["measure"] == ("d2" if options else "r2")
    assert facts["score"] > 0.3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--quantile", "0.9"], "--quantile is the level of --loss quantile"),
        (["--loss", "absolute", "--task", "classification"], "--loss absolute is for a real target"),
    ],
)
def test_the_command_line_refuses(tmp_path: Path, options: list[str], sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(50)))
    out = ["--out", str(tmp_path / "m.safetensors")]
    done = CliRunner().invoke(app, ["fit", str(path), "--target", "y", *out, *options])
    assert done.exit_code != 0
    assert sentence in str(done.exception)


def test_the_spread_is_1_where_all_rows_of_positive_weight_are_alike() -> None:
    y = torch.tensor([[1.0], [2.0], [5.0]])
    assert float(median_and_spread(y, torch.tensor([0.0, 0.0, 1.0]))[1]) == 1


def test_a_single_row_of_positive_weight_is_fitted() -> None:
    x, y = np.arange(6.0)[:, None], np.arange(6.0)
    model = lnn.LiftedRegressor((5,), loss="absolute", max_iter=2, random_state=0).fit(x, y, np.eye(6)[3])
    np.testing.assert_allclose(model.predict(x[3:4]), [3.0], atol=0.1)
