"""Whether a regressor has hidden units: not where a linear regression does as well."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score

from liftednn import LiftedClassifier, LiftedRegressor
from liftednn.estimators.linear import fitted as fitted_linear
from liftednn.estimators.rows import Rows
from liftednn.training.cross_validation import _STRENGTHS, BestRidge

X = np.random.default_rng(0).normal(size=(1000, 5))
NOISE = np.random.default_rng(1).normal(size=1000)
LINEAR = X @ [1.0, -0.5, 2.0, 0.0, 0.3] + 4 + NOISE


def fitted(y: np.ndarray, **options: Any) -> LiftedRegressor:
    return LiftedRegressor(**{"random_state": 0, **options}).fit(X, y)


# The hidden layers of a regressor with enough rows.
UNITS = [50, 50]


def widths(model: Any) -> list[int]:
    return [len(b) for b in model.intercepts_[:-1]]


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.thin(2)
def test_errors_are_those_of_regressions_without_each_row(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, h, y = (torch.randn(30, k, generator=generator, dtype=torch.float64) for k in (4, 6, 2))
    y = 0.3 * y + x[:, :2] + h[:, :2]
    weights = torch.rand(30, generator=generator, dtype=torch.float64) + 0.5 if weighted else torch.ones(30).double()
    found = BestRidge.of(x, y, weights if weighted else None)
    relative = weights / weights.mean()

    def centred(part: torch.Tensor) -> torch.Tensor:
        return part - (relative @ part) / relative.sum()

    def left_out(rows: torch.Tensor, ridge: torch.Tensor) -> torch.Tensor:
        """Fit without each row in turn: an intercept that is not penalised, and a strength for each column."""
        ones, errors = torch.ones(30, 1, dtype=torch.float64), []
        design = torch.cat([ones, rows], 1)
        penalty = torch.cat([ridge.new_zeros(1), ridge]).diag()
        for i in range(30):
            kept = torch.arange(30) != i
            gram = design[kept].T @ (relative[kept, None] * design[kept]) + penalty
            fit = torch.linalg.solve(gram, design[kept].T @ (relative[kept, None] * y[kept]))
            errors.append(relative[i] * (y[i] - design[i] @ fit).square().sum())
        return torch.stack(errors)

    unit = (relative[:, None] * centred(x).square()).sum() / 4
    alone = {s: left_out(x, (s * unit).expand(4)) for s in _STRENGTHS}
    best = min(alone, key=lambda s: float(alone[s].mean()))
    torch.testing.assert_close(found.errors.sum(1), alone[best], rtol=1e-7, atol=1e-9)
    # The strengths of h are in units of what x leaves of it.
    root = relative.sqrt()[:, None]
    a, b = centred(x) * root, centred(h) * root
    left = b - a @ torch.linalg.solve(a.T @ a + best * unit * torch.eye(4).double(), a.T @ b)
    unit_of_h = (b * left).sum() / 6
    both = torch.cat([x, h], 1)
    every = [left_out(both, torch.cat([(best * unit).expand(4), (s * unit_of_h).expand(6)])) for s in _STRENGTHS]
    expected = min([alone[best], *every], key=lambda errors: float(errors.mean()))
    torch.testing.assert_close(found.errors_with(h).sum(1), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.thin(2)
def test_a_linear_response_needs_no_hidden_units(noise: float) -> None:
    truth = LINEAR - NOISE
    y = truth + noise * NOISE
    model, linear = fitted(y), LinearRegression().fit(X, y)
    assert widths(model) == []
    fresh = np.random.default_rng(2).normal(size=(1000, 5))
    exact = fresh @ [1.0, -0.5, 2.0, 0.0, 0.3] + 4
    assert r2_score(exact, model.predict(fresh)) >= r2_score(exact, linear.predict(fresh)) - 1e-4 * (1 + noise)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 0] + 0.5 * x[:, 1] ** 2,
        lambda x: x[:, 0] + 0.7 * np.abs(x[:, 4]),
        lambda x: x[:, 0] + x[:, 1] * x[:, 2],
        lambda x: 3 * np.sign(x[:, 0] * x[:, 1] * x[:, 2]),  # which units that are not trained do not show
        lambda x: np.sin(4 * x[:, 0]) * 2,
    ],
    ids=["square", "kink", "product", "three signs", "sine"],
)
@pytest.mark.thin(2)
def test_other_responses_keep_their_units(function: Any) -> None:
    assert widths(fitted(function(X) + 0.5 * NOISE)) == UNITS


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_layer_sizes": (100,)},
        {"hidden_layer_sizes": (20, 10)},
        {"loss": "absolute"},
        {"divergence": "euclidean", "max_iter": 1},
        {"penalty": "l1"},
        {"learn_activation": "layer", "activation": "leaky_relu", "max_iter": 2},
        {"robust": 0.1, "max_iter": 2},
        {"lam": [2.0], "max_iter": 2},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.thin(2)
def test_what_was_asked_for_is_kept(options: dict[str, Any]) -> None:
    expected = options.get("hidden_layer_sizes", UNITS if "loss" in options or "activation" in options else [100])
    assert widths(fitted(LINEAR, **options)) == list(expected)


def test_a_classifier_has_hidden_units_and_so_has_a_stream() -> None:
    assert widths(LiftedClassifier(random_state=0, max_iter=2).fit(X, LINEAR > 4)) == [100]
    assert widths(LiftedRegressor(random_state=0).partial_fit(X, LINEAR)) == [100]


@pytest.mark.parametrize("columns", [3, 40])
def test_constant_columns_give_the_mean(columns: int) -> None:
    x, y = np.full((30, columns), 0.1), NOISE[:30]
    model = LiftedRegressor(random_state=0).fit(x, y)
    np.testing.assert_allclose(model.predict(x[:1]), y.mean(), atol=1e-6)


@pytest.mark.slow
def test_training_goes_on_from_the_network_that_a_regression_replaced() -> None:
    model = fitted(LINEAR, warm_start=True)
    before = model.predict(X)
    assert widths(model.fit(X, LINEAR)) == []  # asked again
    np.testing.assert_allclose(model.predict(X), before, atol=0.05)
    assert widths(model.fit(X, X[:, 0] ** 2)) == UNITS
    assert model.score(X, X[:, 0] ** 2) > 0.9
    assert widths(fitted(LINEAR).partial_fit(X[:100], LINEAR[:100])) == UNITS
    given = fitted(LINEAR, warm_start=True).set_params(hidden_layer_sizes=UNITS)
    assert widths(given.fit(X, LINEAR)) == UNITS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.thin(3)
def test_an_interaction_that_untrained_units_miss_is_kept(seed: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4000, 25))
    y = np.where(generator.integers(0, 2, 4000) == 1, 1, -1)
    x[:, 0] = y
    y = y * x[:, 1] + generator.normal(size=4000)
    assert widths(LiftedRegressor(random_state=seed).fit(x, y)) == UNITS


def test_one_output_that_needs_units_is_enough() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3000, 40))
    y = np.c_[x[:, 0] * x[:, 1] + 0.3 * generator.normal(size=3000), generator.normal(size=(3000, 3))]
    assert widths(LiftedRegressor(random_state=0).fit(x, y)) == UNITS


@pytest.mark.slow
def test_copies_of_rows_decide_as_weights_do() -> None:
    counts = np.random.default_rng(3).integers(1, 6, 400)
    x, y = X[:400], LINEAR[:400] + NOISE[:400]
    weighted = LiftedRegressor(random_state=0).fit(x, y, counts)
    copied = LiftedRegressor(random_state=0).fit(np.repeat(x, counts, 0), np.repeat(y, counts))
    assert widths(weighted) == widths(copied) == []
    np.testing.assert_allclose(weighted.predict(X), copied.predict(X), atol=0.1)


def test_where_the_response_is_exactly_linear_no_network_is_trained() -> None:
    y = np.stack([LINEAR - NOISE, 2 * X[:, 1] - 7], 1)
    model = fitted(y, warm_start=True)
    assert widths(model) == []
    assert model.n_iter_ == len(model.history_) == 1
    assert model.history_[0].score == pytest.approx(model.score(X, y), abs=1e-6)
    exact = model.predict(X)
    model._restore_units()  # what training goes on from computes the same
    assert widths(model) == UNITS
    np.testing.assert_allclose(model.predict(X), exact, atol=1e-9)
    squares = np.stack([X[:, 0] ** 2, X[:, 1] ** 2], 1)
    assert fitted(y, warm_start=True).fit(X, squares).score(X, squares) > 0.9
    for _ in range(10):
        model.partial_fit(X, squares)
    assert model.score(X, squares) > 0.5
    assert widths(fitted(y, activation="tanh")) == []  # by training first
    assert fitted(y, activation="tanh").n_iter_ > 1
    assert widths(fitted(y, early_stopping=True)) == []


@pytest.mark.slow
def test_a_number_in_the_penalty_is_kept_and_a_list_of_penalties_can_go_on() -> None:
    model = fitted(LINEAR, penalty="l2:0.5", alpha=1e-3)
    assert [layer.penalty.rho for layer in model.network_.layers] == [0.5, 0.5]
    listed = fitted(LINEAR, penalty=["l2", "l2"], warm_start=True)
    assert widths(listed.fit(X, LINEAR)) == []
    assert widths(listed.prune().fit(X, LINEAR)) == []


def test_a_network_that_is_replaced_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    assert widths(fitted(LINEAR, max_iter=1, activation="tanh")) == []
    LiftedRegressor().fit([[1.0, 2.0]], [3.0])
    assert not recwarn.list


def test_a_model_without_units_has_every_method() -> None:
    weights = 1.0 + (X[:, 0] > 0)
    model = LiftedRegressor(random_state=0).fit(X, np.stack([LINEAR, -2 * LINEAR], 1), sample_weight=weights)
    assert widths(model) == []
    np.testing.assert_allclose(model.transform(X), X)
    assert model.get_feature_names_out().shape == (5,)
    with torch.no_grad():
        np.testing.assert_allclose(model.to_module()(torch.from_numpy(X)), model.predict(X), atol=1e-9)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    lifted = LiftedRegressor(random_state=0, prediction="lifted").fit(X, LINEAR)
    np.testing.assert_allclose(lifted.predict(X), fitted(LINEAR).predict(X), atol=1e-6)


@pytest.mark.parametrize("columns", [5, 60], ids=["tall", "wide"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_the_regression_is_that_of_scikit_learn(columns: int, weighted: bool) -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(40, columns)) + 3, generator.normal(size=(40, 2))
    weights = generator.uniform(0.5, 2, 40) if weighted else None
    w, b = fitted_linear(Rows.of(x, None), torch.from_numpy(y), weights, 0.3)
    alpha = 0.3 * (40 if weights is None else weights.sum())
    expected = Ridge(alpha=alpha).fit(x, y, weights)
    np.testing.assert_allclose(w, expected.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(b, expected.intercept_, rtol=1e-8, atol=1e-10)


def test_with_a_given_alpha_no_regression_replaces_the_network() -> None:
    """Correlated columns need large weights, which alpha |w|^2 of one layer shrinks far more than that of two layers."""
    generator = np.random.default_rng(0)
    first = generator.normal(size=500)
    x = np.c_[first, first + 0.1 * generator.normal(size=500), generator.normal(size=(500, 3))]
    y = 10 * (x[:, 1] - x[:, 0])
    model = LiftedRegressor(alpha=0.01, random_state=0).fit(x, y)
    assert widths(model) == UNITS
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "noise"])
@pytest.mark.thin(2)
def test_copies_of_rows_change_nothing(exact: bool) -> None:
    generator = np.random.default_rng(0)
    x, noise = generator.normal(size=(150, 5)), generator.normal(size=150)
    y = x @ np.arange(5) + (0.0 if exact else 3.0) * noise
    once = LiftedRegressor(random_state=0).fit(x, y)
    repeated = LiftedRegressor(random_state=0).fit(np.repeat(x, 20, 0), np.repeat(y, 20))
    assert widths(once) == widths(repeated) == []
    assert repeated.network_.layers[0].penalty.rho == pytest.approx(once.network_.layers[0].penalty.rho)
    np.testing.assert_allclose(repeated.predict(x), once.predict(x), rtol=1e-6, atol=1e-6)


def test_copies_of_rows_add_no_rows_to_a_network() -> None:
    """About the same rho, which copies in its sample would change: rows seem to predict each other there."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(240, 60))
    y = x @ generator.normal(size=60) / 60**0.5 + 2 * generator.normal(size=240)
    weighted = LiftedRegressor((100,), random_state=0).fit(x, y, np.full(240, 8.0))
    copied = LiftedRegressor((100,), random_state=0).fit(np.repeat(x, 8, 0), np.repeat(y, 8))
    rhos = [model.network_.layers[0].penalty.rho for model in (copied, weighted)]
    assert 0.5 < rhos[0] / rhos[1] < 2


@pytest.mark.parametrize("far", [1e4, 1e6, 1e8])
@pytest.mark.thin(3)
def test_one_far_entry_leaves_a_linear_response_linear(far: float) -> None:
    generator = np.random.default_rng(0)
    x, others = generator.normal(size=(300, 5)), generator.normal(size=(500, 5))
    x[0, 0] = far
    model = LiftedRegressor(random_state=0).fit(x, x @ np.arange(1, 6))
    assert model.score(others, others @ np.arange(1, 6)) > 0.999


def test_many_columns_and_few_rows_are_no_problem() -> None:
    wide = np.random.default_rng(3).normal(size=(40, 300))
    model = LiftedRegressor(random_state=0).fit(wide, wide[:, :3].sum(1))
    assert np.isfinite(model.predict(wide)).all()
