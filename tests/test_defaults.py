"""One recipe: the estimators, `lifted_` and the command line train the same network on the same rows, and giving a setting changes that
setting alone."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import liftednn as lnn
from liftednn import LiftedClassifier, LiftedRegressor, init, losses
from liftednn.cli import jobs
from liftednn.data.sources import source_of
from liftednn.defaults import Recipe, named_loss
from liftednn.functional import median_and_spread
from liftednn.losses import AbsoluteError, Huber
from liftednn.penalties import L1, L2
from liftednn.robust import Noise

Array = NDArray[Any]
SEED = int(
    torch.randint(1 << 31, (), generator=torch.Generator().manual_seed(0))
)  # what lifted_ draws after torch.manual_seed(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4))
COUNTS = RNG.integers(1, 4, 300).astype(float)
LABELS = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 0.5)
REAL = X[:, 0] * X[:, 1] + 0.3 * RNG.standard_t(2, 300)
NETWORK = lnn.LiftedNetwork.mlp([4, 6, 5, 3], "fenchel_relu")
SOURCE = source_of(torch.from_numpy(X), torch.from_numpy(LABELS))


class Training(NamedTuple):
    trainer: lnn.MiniBatch
    network: lnn.LiftedNetwork


class Begun(Exception):  # noqa: N818
    """Ends a call where its trainer would begin, and has what the trainer was given."""

    @property
    def training(self) -> Training:
        return Training(*self.args[:2])


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **options: Any) -> None:
        raise Begun(*arguments)

    monkeypatch.setattr(lnn.MiniBatch, "run", run)


class Seeded(np.random.RandomState):
    """Gives an estimator the seed itself."""

    def randint(self, *arguments: Any, **options: Any) -> Any:
        return SEED


def by_estimator(x: Array, y: Array, row_weights: Array | None = None, **options: Any) -> Training:
    kind = LiftedClassifier if y.dtype.kind == "i" else LiftedRegressor
    with pytest.raises(Begun) as begun:
        kind(**{"hidden_layer_sizes": (6, 5), **options}, random_state=Seeded()).fit(x, y, row_weights)
    return begun.value.training


def by_command(x: Array, y: Array, row_weights: Array | None = None, **options: Any) -> Training:
    """As the command line trains, on rows that are encoded already."""
    job = replace(jobs.Job(Path(), "y", "6,5", "relu", None, "auto", SEED, "cpu", False), **options)
    rows, outputs = jobs._Rows(x, y, row_weights), 3 if y.dtype.kind == "i" else 1
    with pytest.raises(Begun) as begun:
        jobs._run(
            job, jobs.widths(job.hidden), outputs, rows, rows.at(np.arange(0)), lambda *_: nullcontext(lambda _: None)
        )
    return begun.value.training


def by_lifted(*data: Any, outputs: int = 1, **options: Any) -> Training:
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs)]
    module = nn.Sequential(*layers).double()
    torch.manual_seed(0)
    with pytest.raises(Begun) as begun:
        init.lifted_(module, *data, **options)
    return begun.value.training


def standardised(a: Array, row_weights: Array | None = None) -> Array:
    mean = np.average(a, axis=0, weights=row_weights)
    return np.asarray((a - mean) / np.sqrt(np.average((a - mean) ** 2, axis=0, weights=row_weights)))


def robustly(y: Array, row_weights: Array | None = None) -> Array:
    """As a regressor standardises the responses of losses of bounded slope."""
    given = None if row_weights is None else torch.from_numpy(row_weights)
    centre, spread = median_and_spread(torch.from_numpy(y)[:, None], given)
    return (y - centre.numpy()) / spread.numpy()


def numbers(network: lnn.LiftedNetwork) -> list[float]:
    """lam, rho and uncertainty of every layer, and what the loss has."""
    found = [float(each) for each in vars(network.loss).values()]
    for layer in network.layers:
        kind = layer.uncertainty
        found += [layer.lam, float(layer.penalty.value(torch.ones(2, 2)))]
        found += [float(torch.as_tensor(kind.sigma).mean())] if isinstance(kind, Noise) else []
    return found


def assert_alike(one: lnn.LiftedNetwork, other: lnn.LiftedNetwork) -> None:
    """Up to the rounding of standardised rows."""
    kinds = [[type(layer.penalty) for layer in each.layers] + [type(each.loss)] for each in (one, other)]
    assert kinds[0] == kinds[1]
    assert numbers(one) == pytest.approx(numbers(other), rel=1e-6)


@pytest.mark.parametrize("loss", ["softmax", "squared", "huber", "absolute", "quantile"])
@pytest.mark.parametrize(
    "options", [{}, {"penalty": "group:0.01"}, {"robust": "noise:0.3"}], ids=["plain", "group", "noise"]
)
@pytest.mark.thin(2)
def test_all_entry_points_train_the_same_network(loss: str, options: dict[str, Any]) -> None:
    x, classes = standardised(X), loss == "softmax"
    y = LABELS if classes else standardised(REAL) if loss == "squared" else robustly(REAL)
    if "robust" in options:
        x = x * np.sqrt(1 - 0.3**2)  # an estimator scales columns to variance 1 with the noise
    named = {} if loss in ("softmax", "squared") else {"loss": loss}
    estimator, command = by_estimator(x, y, **named, **options), by_command(x, y, **named, **options)
    first = by_command(x, y, **named, **options, first=True)
    lifted = by_lifted(torch.from_numpy(x), torch.from_numpy(y), outputs=3 if classes else 1, **named, **options)
    for other in (command, first, lifted):
        assert_alike(estimator.network, other.network)
    assert (estimator.network.layers[0].uncertainty is not None) == ("robust" in options)
    assert replace(estimator.trainer, device="cpu") == command.trainer
    assert replace(lifted.trainer, learn_activation=None) == first.trainer


@pytest.mark.parametrize("loss", ["softmax", "huber", "absolute"])
def test_row_weights_act_alike_in_the_estimators_and_the_command_line(loss: str) -> None:
    x, y = standardised(X, COUNTS), LABELS if loss == "softmax" else robustly(REAL, COUNTS)
    named = {} if loss == "softmax" else {"loss": loss}
    weighted = [call(x, y, COUNTS, **named).network for call in (by_estimator, by_command)]
    assert_alike(*weighted)
    assert numbers(weighted[1]) != pytest.approx(numbers(by_command(x, y, **named).network), rel=1e-3)
    expected = {"softmax": {}, "huber": {"delta": 0.3}, "absolute": {"smoothing": 0.01}}[loss]
    assert vars(weighted[1].loss) == pytest.approx(expected)


def test_the_unit_of_a_loss_is_from_all_responses_at_hand() -> None:
    """So the seed does not change it."""
    x, y = RNG.standard_normal((12_000, 4)), RNG.standard_normal(12_000)
    spread = float(median_and_spread(torch.from_numpy(y)[:, None])[1])
    rows, batches = torch.from_numpy(x), DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 3000)
    for found in (by_command(x, y, loss="huber"), by_lifted(rows, torch.from_numpy(y), loss="huber")):
        assert found.network.loss == Huber(0.3 * spread)
    kinked = [by_command(x, y, loss="absolute"), by_lifted(rows, torch.from_numpy(y), loss=nn.L1Loss())]
    assert [each.network.loss for each in kinked] == [AbsoluteError(0.01 * spread)] * 2
    for loss in ("huber", "absolute"):
        sampled = by_lifted(batches, loss=loss).network.loss
        assert sampled != losses.named(loss)
        assert sampled.curvature == pytest.approx(
            (Huber() if loss == "huber" else AbsoluteError(0.01)).curvature, rel=0.2
        )


def test_of_several_responses_the_least_spread_is_used() -> None:
    y = np.stack([REAL, 10 * REAL, 3 * REAL], 1)
    assert named_loss("huber", y) == named_loss("huber", REAL)
    assert named_loss("squared", y) == losses.SquaredError()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64], ids=str)
def test_the_unit_of_hubers_loss_is_not_rounded(dtype: torch.dtype) -> None:
    y = torch.from_numpy(1000 * REAL).to(dtype)
    assert named_loss("huber", y) == named_loss("huber", y.double())
    rounded = by_lifted(torch.from_numpy(X), y, loss="absolute").network.loss
    assert vars(rounded) == pytest.approx({"smoothing": 0.01 / 0.3 * vars(named_loss("huber", y))["delta"]}, rel=1e-6)


def prepared(**options: Any) -> lnn.LiftedNetwork:
    return Recipe(seed=SEED, **options).network(NETWORK, SOURCE, LABELS)


def test_what_is_given_changes_nothing_else() -> None:
    free = prepared()
    assert prepared(lam=2.0) == free.with_lam(2.0)
    assert prepared(lam=[2.0, 3.0]) == free.with_lam([2.0, 3.0])
    assert prepared(rho=0.5) == free.with_penalty(L2(0.5))
    assert prepared(rho=0.5, lam=2.0) == free.with_penalty(L2(0.5)).with_lam(2.0)
    sparse = prepared(penalty=["l1", "l2", "l2"])
    assert [layer.penalty for layer in sparse.layers] == [L1(), *(layer.penalty for layer in free.layers[1:])]


def test_an_uncertainty_is_scaled_where_lam_is_chosen() -> None:
    kind = Noise(0.3)
    for network, size in ((prepared(uncertainty=kind), 0.03), (prepared(uncertainty=kind, lam=2.0), 0.3)):
        first, *others = network.layers
        assert isinstance(first.uncertainty, Noise)
        assert first.uncertainty.sigma == pytest.approx(size / np.sqrt(first.divergence.curvature if size < 0.3 else 1))
        assert [layer.uncertainty for layer in others] == [None, None]


def test_full_passes_have_nothing_chosen() -> None:
    kinked = lnn.LiftedNetwork.mlp([4, 6, 1], "relu", "absolute")
    assert Recipe(penalty="l1", rho=0.5, lam=2.0).unchosen(kinked) == kinked.with_penalty(L1(0.5)).with_lam(2.0)
    assert Recipe(penalty=L2(0.5)).unchosen(kinked) == kinked.with_penalty(L2(0.5))


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 30),
        ({"lam": 1.0}, 30),
        ({"initial": True}, 60),
        ({"initial": True, "lam": 1.0}, 3),
        ({"passes": 7, "initial": True, "lam": 1.0}, 7),
    ],
)
def test_passes_are_chosen_by_rows_and_purpose(options: dict[str, Any], passes: int) -> None:
    assert Recipe(**options).trainer(1000).passes == passes


@pytest.mark.parametrize(
    ("rows", "classes", "passes"), [(5000, 2, 30), (5000, 10, 30), (5000, 26, 48), (5000, 1000, 60), (300, 26, 83)]
)
def test_more_passes_for_more_classes(rows: int, classes: int, passes: int) -> None:
    assert Recipe().trainer(rows, classes).passes == passes


RELU = lnn.activations.FenchelReLU()


@pytest.mark.parametrize(
    ("recipe", "rows", "activation", "widths"),
    [
        (Recipe(), 500, RELU, [50, 50]),
        (Recipe(lam=1.0, rho=0.1), 10**6, lnn.activations.FenchelLeakyReLU(), [50, 50]),
        (Recipe(), 499, RELU, [100]),
        (Recipe(), None, RELU, [100]),
        (Recipe(), 500, lnn.activations.Tanh(), [100]),
        (Recipe(penalty="l1"), 500, RELU, [100]),
        (Recipe(penalty=["l2", "l2"]), 500, RELU, [100]),
        (Recipe(lam=[1.0]), 500, RELU, [100]),
        (Recipe(uncertainty=Noise(0.1)), 500, RELU, [100]),
    ],
)
def test_many_rows_of_real_responses_have_two_hidden_layers(
    recipe: Recipe, rows: int | None, activation: lnn.Activation, widths: list[int]
) -> None:
    assert recipe.widths(rows, activation) == recipe.widths(rows, activation, outputs=10) == widths
    assert recipe.widths(rows, activation, outputs=11) == [100] * len(widths)


def test_all_entry_points_have_the_same_hidden_layers() -> None:
    x, labels = RNG.standard_normal((600, 4)), RNG.integers(0, 3, 600)
    for y, expected in ((x[:, 0] * x[:, 1], [50, 50]), (labels, [100])):
        estimator = by_estimator(x, y, hidden_layer_sizes="auto")
        command = by_command(x, y, hidden="auto")
        for network in (estimator.network, command.network):
            assert [layer.width for layer in network.layers[:-1]] == expected
        assert replace(estimator.trainer, device="cpu") == command.trainer


def test_copies_of_rows_add_no_hidden_layer() -> None:
    x = np.repeat(RNG.standard_normal((300, 4)), 2, 0)
    assert len(by_estimator(x, x[:, 0] * x[:, 1], hidden_layer_sizes="auto").network.hidden) == 1


def test_the_rate_is_in_proportion_to_larger_batches() -> None:
    larger = Recipe().trainer(1200, 2)
    assert larger.batch_size == 150
    assert larger.step == pytest.approx(3 * lnn.MiniBatch().step)
    assert Recipe().trainer(20).step == lnn.MiniBatch().step  # as for the same rows with weights in place of copies
    for given in (
        Recipe(batch_size=50).trainer(1200, 2),
        Recipe(initial=True).trainer(1200, 2),
        Recipe().trainer(None),
    ):
        assert given.step == lnn.MiniBatch().step


@pytest.mark.parametrize("loss", ["huber", "absolute", "squared"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_responses_that_are_not_finite_are_refused_as_such(loss: str, wrong: float) -> None:
    y = torch.from_numpy(np.where(np.arange(300) == 5, wrong, REAL))
    with pytest.raises(ValueError, match="y holds NaN or infinity: remove those rows first"):
        init.lifted_(nn.Sequential(nn.Linear(4, 1)), X, y, loss=loss)


def test_a_report_has_one_loss_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[lnn.Loss] = []
    quality = init._Quality.at

    def at(network: lnn.LiftedNetwork, *rest: Any) -> Any:
        seen.append(network.loss)
        return quality(network, *rest)

    monkeypatch.setattr(init._Quality, "at", at)
    trained = by_lifted(torch.from_numpy(X), torch.from_numpy(REAL), loss="absolute", report=True)
    assert seen == [trained.network.loss]


def test_weights_are_those_of_the_choices_unless_rho_is_given() -> None:
    found = [Recipe(seed=SEED, **options).start(NETWORK, SOURCE, LABELS)[1] for options in ({}, {"lam": 2.0})]
    for one, other in zip(*(each or [] for each in found), strict=True):
        assert torch.equal(one.w, other.w)
    assert found[0]
    assert Recipe(seed=SEED, rho=0.5).start(NETWORK, SOURCE, LABELS)[1] is None
