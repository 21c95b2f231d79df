"""The scale of a classifier's scores, against explicit leverages and scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.penalties import L2, Ball
from liftednn.training import calibration, minibatch
from liftednn.training.calibration import _best_factor, _factor_by_regression, _left_out, _with_errors, calibrated
from liftednn.training.cross_validation import BestRidge
from liftednn.training.linearised import Linearised, Sample

SOFTMAX = lnn.losses.SoftmaxCrossEntropy()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(sizes: list[int]) -> list[Affine]:
    return [Affine(draw(q, p, seed=q) / p**0.5, draw(q, seed=p) / 3) for p, q in itertools.pairwise(sizes)]


def separable(rows: int = 40, classes: int = 4) -> tuple[lnn.LiftedNetwork, list[Affine], Tensor, Tensor]:
    """Labels that the network gets right, with scores that are too small."""
    sizes = [5, 8, classes]
    network = lnn.LiftedNetwork.mlp(sizes, "fenchel_relu", loss="softmax", lam=1.0, rho=0.1)
    weights, x = weights_of(sizes), draw(rows, 5, seed=9)
    y = SOFTMAX.encode(network.scores(weights, x).argmax(1), classes).double()
    return network, weights, x, y


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_left_out_changes_a_linear_regression_as_its_leverage_says(weighted: bool) -> None:
    """With a count of one and a half for each parameter."""
    network = lnn.LiftedNetwork.mlp([4, 1], "fenchel_relu", loss="squared", rho=0.1)
    weights, x, y = weights_of([4, 1]), draw(30, 4), draw(30, 1, seed=1)
    counts = torch.linspace(0.5, 1.5, 30, dtype=torch.float64) if weighted else torch.ones(30, dtype=torch.float64)
    near = Linearised.of(network, weights, Sample(x, y, 30, counts if weighted else None))
    centred = counts.sqrt()[:, None] * (x - (counts[:, None] * x).mean(0))
    hat = centred @ torch.linalg.solve(centred.T @ centred + 30 * 0.1 * torch.eye(4, dtype=torch.float64), centred.T)
    h = 1.5 * hat.diagonal()
    assert float(h.max()) < 0.95, "the case must not be at the bound"
    u = network.scores(weights, x)
    torch.testing.assert_close(_left_out(near, network), u + (h / (1 - h))[:, None] * (u - y), rtol=1e-4, atol=1e-6)


def test_leverages_of_some_rows_add_up_to_the_parameters_of_all() -> None:
    network, weights, x, y = separable(rows=60)
    few, many = (Linearised.of(network, weights, Sample(x, y, rows)) for rows in (60, 600))
    for near in (few, many):
        product = near.sensitivities * near.curvatures
        leverages = product / (1 + product)
        assert float(leverages.max()) < 0.94, "the case must not be at the bound"
        assert float(leverages.mean()) == pytest.approx(near.dof / near.responses, rel=1e-6)
    assert bool((many.sensitivities < few.sensitivities).all())


@pytest.mark.parametrize("scale", [0.2, 0.5, 3.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_factor_has_the_least_loss(scale: float, weighted: bool) -> None:
    u = draw(50, 3)
    y = SOFTMAX.encode((u + draw(50, 3, seed=1)).argmax(1), 3).double()
    counts = torch.linspace(0.2, 2, 50, dtype=torch.float64) if weighted else torch.ones(50, dtype=torch.float64)
    least = minimize_scalar(
        lambda factor: float(counts @ SOFTMAX.value(factor * scale * u, y)), bounds=(0, 10), method="bounded"
    )
    found = _best_factor(SOFTMAX, scale * u, y, counts if weighted else None)
    assert found == pytest.approx(least.x, abs=1e-3)
    assert (found < 1) == (scale == 3.0)


def test_without_any_error_the_factor_is_bounded_by_the_rows() -> None:
    """With 1 / (n + 2) of wrong labels, the best probability of the right one is 1 - 1 / (n + 2)."""
    y = SOFTMAX.encode(torch.arange(20) % 2, 2).double()
    assert bool(((_with_errors(y) * 22 - y * 21 - (1 - y)).abs() < 1e-12).all())
    assert torch.allclose(_with_errors(SOFTMAX.encode(torch.arange(9) % 3, 3)).sum(1), torch.ones(9).double())
    u = y - 0.5
    factor = _best_factor(SOFTMAX, u, _with_errors(y), None)
    assert factor == pytest.approx(math.log(21), rel=1e-4)
    assert _best_factor(SOFTMAX, u, y, None) == pytest.approx(10, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_factor_by_regression_is_from_regressions_without_each_row(weighted: bool) -> None:
    """The network's scores are twice those of a ridge regression; with a strength that is known, others are fitted one by one."""
    x, labels = draw(24, 5), torch.arange(24) % 3
    x[:, 0] += labels - 1
    y = SOFTMAX.encode(labels, 3).double()
    counts = torch.linspace(0.4, 1.6, 24, dtype=torch.float64) if weighted else torch.ones(24, dtype=torch.float64)
    alpha = BestRidge.of(x, y, counts if weighted else None).strength

    def regression(rows: np.ndarray) -> Ridge:
        return Ridge(alpha).fit(x[rows], y[rows], counts[rows] / counts.mean())

    every = np.arange(24)
    fitted = torch.from_numpy(regression(every).predict(x))
    others = torch.stack([torch.from_numpy(regression(every != i).predict(x[i : i + 1])[0]) for i in every])
    least = minimize_scalar(
        lambda factor: float(counts @ SOFTMAX.value(factor * others, _with_errors(y))),
        bounds=(0, 100),
        method="bounded",
        options={"xatol": 1e-9},
    )
    sample = Sample(x, y, 24, counts if weighted else None)
    found = _factor_by_regression(SOFTMAX, 2 * (fitted - fitted.mean(1, keepdim=True)), sample)
    assert found == pytest.approx(least.x / 2, rel=1e-4)
    assert _factor_by_regression(SOFTMAX, -fitted, sample) == 0


def test_two_rows_of_each_class_have_scores_that_are_sure_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the factor by regression, leave-one-out says next to nothing."""
    generator = np.random.default_rng(0)
    centres, labels = generator.normal(size=(10, 20)), np.arange(1020) % 10
    x = centres[labels] + generator.normal(size=(1020, 20))

    def loss() -> float:
        model = lnn.LiftedClassifier(random_state=0).fit(x[:20], labels[:20])
        return float(log_loss(labels[20:], model.predict_proba(x[20:])))

    ours = loss()
    monkeypatch.setattr(calibration, "_factor_by_regression", lambda *_: 0.0)
    assert ours < 0.7 * loss()


def test_only_the_head_of_a_classifier_of_few_rows_is_scaled() -> None:
    network, weights, x, y = separable()
    small = [weights[0], Affine(0.3 * weights[1].w, 0.3 * weights[1].b)]
    network = network.with_penalty(L2(3.0))  # few effective parameters
    found = calibrated(network, small, Sample(x, y, 40))
    assert found[0] is small[0]
    factor = float((found[1].w / small[1].w).mean())
    assert factor > 1.1
    torch.testing.assert_close(found[1].w, factor * small[1].w)
    torch.testing.assert_close(found[1].b, factor * small[1].b)
    assert calibrated(network, small, Sample(x, y, calibration._MANY + 1)) is small
    for other in (network.with_penalty([L2(0.1), Ball(10.0)]), network.with_penalty([L2(0.1), L2(0.0)])):
        assert calibrated(other, small, Sample(x, y, 40)) is small
    squared = lnn.LiftedNetwork.mlp([5, 8, 4], "fenchel_relu", loss="squared", rho=0.1)
    assert calibrated(squared, small, Sample(x, y, 40)) is small


def test_only_runs_that_learn_rho_scale_their_scores() -> None:
    x, y = load_digits(return_X_y=True)
    rows, labels = torch.from_numpy(x[:80] / 4).float(), torch.from_numpy(y[:80])
    network = lnn.automatic(lnn.LiftedNetwork.mlp([64, 50, 10], "fenchel_relu"), rows, labels)
    losses = {}
    for learned in (False, True):
        fit = lnn.MiniBatch(passes=60, learn_rho=learned).run(network, rows, labels)
        own = float(SOFTMAX.value(fit.network.scores(fit.weights, rows), SOFTMAX.encode(labels, 10)).mean())
        losses[learned] = own / fit.history[-1].loss
    assert losses[False] == pytest.approx(1, abs=0.1)
    assert losses[True] < 0.7


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.thin(1)
def test_probabilities_of_many_classes_from_few_rows_are_as_good_as_those_of_a_logistic_regression(seed: int) -> None:
    x, y = load_digits(return_X_y=True)
    order = np.random.RandomState(seed).permutation(len(y))
    train, test = order[:150], order[150:]
    model = lnn.LiftedClassifier(random_state=seed).fit(x[train], y[train])
    linear = LogisticRegression(max_iter=2000).fit(x[train] / 8, y[train])
    ours = log_loss(y[test], model.predict_proba(x[test]))
    assert ours < log_loss(y[test], linear.predict_proba(x[test] / 8))


def test_scores_of_classes_that_overlap_stay_as_they_are() -> None:
    x, y = make_classification(300, 10, n_informative=5, n_classes=3, flip_y=0.3, random_state=0)
    scaled, plain = lnn.LiftedClassifier(random_state=0).fit(x, y), lnn.LiftedClassifier(random_state=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatch, "calibrated", lambda network, weights, *_: weights)
        plain.fit(x, y)
    assert np.array_equal(scaled.coefs_[1], plain.coefs_[1])
