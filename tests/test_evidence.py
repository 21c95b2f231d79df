"""rho from the evidence, against explicit Jacobians and Hessians and against the closed form of ridge regression."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import balanced_accuracy_score, log_loss, r2_score
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.data import sources
from liftednn.training import choices, run
from liftednn.training.batch import recursion
from liftednn.training.evidence import (
    _chances,
    _temperature,
    adaptable,
    next_change,
    raised,
    rho_factor,
    sample_of,
    with_rho_factor,
)
from liftednn.training.linearised import (
    Linearised,
    Sample,
    _effective_parameters,
    _gradients,
    _inner_products,
    _kernel,
    _needed,
)

GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


X = draw(60, 4)


@pytest.fixture(autouse=True)
def _reseed() -> None:
    """What a test draws does not depend on the tests before it."""
    GENERATOR.manual_seed(1)


SOFTMAX, SQUARED = lnn.losses.SoftmaxCrossEntropy(), lnn.losses.SquaredError()


def network(sizes: list[int], loss: str, lam: float = 1e6, rho: float = 1e-3) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp(sizes, "fenchel_relu", loss=loss, lam=lam, rho=rho)


def weights_of(sizes: list[int]) -> list[Affine]:
    return [Affine(draw(q, p) / p**0.5, draw(q) / 3) for p, q in itertools.pairwise(sizes)]


def explicit_dof(net: lnn.LiftedNetwork, weights: list[Affine], x: Tensor, hessian: Tensor) -> float:
    """trace H (H + 2 n rho)^-1 over all w, H = J' C J with J by automatic differentiation and centred rows of every layer."""
    shapes, flat = [w.shape for w, _ in weights], torch.cat([w.reshape(-1) for w, _ in weights])
    states = net.propagate(weights, x)
    centres = [state.mean(0) for state in states]

    def scores(values: Tensor) -> Tensor:
        parts = [
            p.view(s)
            for p, s in zip(values.split([s.numel() for s in shapes]), shapes, strict=True)  # type: ignore[no-untyped-call]
        ]
        state = x
        for number, (w, own, centre) in enumerate(zip(parts, weights, centres, strict=True)):
            u = (state - centre) @ w.T + own.b + centre @ own.w.T
            state = u.relu() if number + 1 < len(parts) else u
        return state

    jacobian = torch.autograd.functional.jacobian(scores, flat)  # type: ignore[no-untyped-call]
    h = torch.einsum("nkp,nkl,nlq->pq", jacobian, hessian, jacobian)
    rho = torch.cat(
        [torch.full((w.numel(),), layer.penalty.ridge) for (w, _), layer in zip(weights, net.layers, strict=True)]
    )
    return float(torch.linalg.solve(h + 2 * len(x) * torch.diag(rho.double()), h).trace())


@pytest.mark.parametrize("sizes", [[4, 1], [4, 6, 1], [4, 6, 5, 1]])
def test_effective_parameters_are_those_of_the_explicit_jacobian(sizes: list[int]) -> None:
    net, weights, y = (
        network(sizes, "squared", rho=0.2 if len(sizes) == 2 else 0.05),
        weights_of(sizes),
        draw(60, 1) * (1 if len(sizes) == 2 else 2),
    )
    dof = 1.5 * explicit_dof(net, weights, X, torch.full((60, 1, 1), 2.0, dtype=torch.float64))
    assert dof < 0.95 * 60, "the case must not be at the bound"
    loss = float(net.loss.value(net.scores(weights, X), y).mean())
    rows = len(X)
    penalty = sum(net.penalties(weights))
    expected = 2 * loss / (1 - dof / rows) * dof / (2 * rows * penalty)
    assert 0.1 < expected < 10, "the case must not be at the bounds"
    assert rho_factor(net, weights, Sample(X, y, rows)) == pytest.approx(expected, rel=1e-3)


def test_two_classes_are_one_logistic_regression() -> None:
    """With opposite scores, the softmax of two classes has the effective parameters of a logistic regression on their difference."""
    net, v = network([4, 2], "softmax", rho=1e-2), draw(1, 4)
    weights = [Affine(torch.cat([v, -v]), torch.zeros(2, dtype=torch.float64))]
    p = (2 * X @ v.T).sigmoid()[:, 0]
    y = SOFTMAX.encode((p > 0.5).long(), 2).double()
    # The difference d = 2 x v', |w|^2 = 2 |v|^2: in v, a Hessian of 4 p (1 - p) x x' and a penalty of 2 rho |v|^2.
    centred = X - X.mean(0)
    h = 4 * (centred.T * (p * (1 - p))) @ centred
    dof = 1.5 * float(torch.linalg.solve(h + 4 * 60 * 1e-2 * torch.eye(4), h).trace())
    expected = dof / (2 * 60 * 1e-2 * float(weights[0].w.square().sum()))
    assert rho_factor(net, weights, Sample(X, y, 60)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("classes", [4, 70])
def test_the_hessian_vectors_of_the_softmax_make_up_its_hessian(classes: int) -> None:
    u = draw(3, classes)
    vectors = SOFTMAX.hessian_vectors(u, torch.zeros_like(u))
    for row, scores in enumerate(u):
        own = torch.autograd.functional.hessian(lambda s: s.logsumexp(0), scores)  # type: ignore[no-untyped-call]
        assert torch.allclose(torch.einsum("mp,mq->pq", vectors[:, row], vectors[:, row]), own)


@pytest.mark.parametrize("classes", [2, 4, 70])
@pytest.mark.parametrize("loss", [SOFTMAX, SQUARED], ids=["softmax", "squared"])
def test_combined_hessian_vectors_are_their_sums(loss: lnn.Loss, classes: int) -> None:
    u = draw(3, classes)
    vectors = loss.hessian_vectors(u, torch.zeros_like(u))
    coefficients = draw(5, len(vectors))
    found = loss.combined_hessian_vectors(u, torch.zeros_like(u), coefficients)
    torch.testing.assert_close(found, torch.einsum("km,mnp->knp", coefficients, vectors))


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.thin(2)
def test_rho_follows_the_noise(noise: float) -> None:
    """The more noise, the larger rho; predictions of pure noise shrink towards the mean."""
    x = draw(400, 6)
    signal = x[:, :1].abs() + x[:, 1:2]
    fits = {}
    for size in (noise, noise + 4):
        y = (signal + size * draw(400, 1)) / math.sqrt(1 + size**2)
        net = lnn.automatic(lnn.LiftedNetwork.mlp([6, 20, 1], "fenchel_relu", loss="squared"), x, y)
        fits[size] = lnn.MiniBatch(passes=40, learn_rho=True).run(net, x, y).network.layers[0].penalty.ridge or 0.0
    assert fits[noise + 4] > 2 * fits[noise]


def test_what_can_be_adapted() -> None:
    net = network([4, 6, 1], "squared")
    assert adaptable(net)
    assert not adaptable(net.with_penalty("l1", 1e-3))
    assert not adaptable(net.with_penalty("none"))
    uncertain = lnn.LiftedNetwork([replace(net.layers[0], uncertainty=lnn.robust.Noise(1.0)), *net.layers[1:]])
    assert not adaptable(uncertain)
    mixed = with_rho_factor(net.with_penalty([lnn.penalties.L1(0.5), lnn.penalties.L2(0.5)]), 3.0)
    assert [layer.penalty for layer in mixed.layers] == [lnn.penalties.L1(0.5), lnn.penalties.L2(1.5)]


def test_weights_that_are_zero_raise_rho_and_row_weights_act_as_copies() -> None:
    net, y = network([4, 6, 1], "squared", rho=0.05), draw(60, 1)
    zero = [Affine(torch.zeros_like(w), b) for w, b in weights_of([4, 6, 1])]
    assert rho_factor(net, zero, Sample(X, y, 60)) == 10.0
    weights = weights_of([4, 6, 1])
    once = rho_factor(net, weights, Sample(X.repeat(2, 1), y.repeat(2, 1), 60))
    assert 0.1 < once < 10
    weighted = rho_factor(net, weights, Sample(X, y, 60, torch.full((60,), 2.0, dtype=torch.float64)))
    assert weighted == pytest.approx(once, rel=1e-6)


@pytest.mark.parametrize("validated", [False, True])
def test_a_resumed_run_continues_with_its_rho(tmp_path: object, validated: bool) -> None:
    x = draw(200, 4)
    y = x[:, :1].abs() + 0.5 * draw(200, 1)
    net = lnn.automatic(network([4, 8, 1], "squared"), x, y)
    # On responses of the other sign the first pass is the best; rho changes after it.
    held = (x, -y) if validated else None
    trainer, stops = lnn.MiniBatch(passes=12, learn_rho=True), iter([False] * 6 + [True])
    whole = trainer.run(net, x, y, validation=held)
    path = lnn.Checkpoint(f"{tmp_path}/run.safetensors")
    trainer.run(net, x, y, validation=held, checkpoint=path, callback=lambda record: next(stops))
    resumed = trainer.run(net, x, y, validation=held, checkpoint=path)
    assert resumed.network.layers == whole.network.layers
    assert all(torch.equal(a.w, b.w) for a, b in zip(resumed.weights, whole.weights, strict=True))


def test_small_changes_of_rho_are_longer_where_the_evidence_asks_for_a_part_of_the_way() -> None:
    at = change = 0.0
    for _ in range(7):
        change = next_change(math.exp(0.3 * (1 - at)), change)
        at += change
    assert 1 - at < (1 - 0.3) ** 7 / 4  # what is left of the way without it, and a quarter of that
    assert next_change(4.0, 1.0) == math.log(4.0)  # large changes overshoot easily
    assert next_change(1.9, 1.0) == math.log(2.0)
    assert next_change(0.5, 1.0) == math.log(0.5)
    assert next_change(0.9, 0.0) == math.log(0.9)
    assert next_change(1.0, 2.0) == 0.0


def test_rho_is_found_for_the_rows_without_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def factor(*arguments: Any) -> float:
        given.append(arguments[2].rows)
        return 1.0

    monkeypatch.setattr(run, "rho_factor", factor)
    counts = iter([7])  # whitening may make copies differ by rounding, so rows are counted once, as given
    monkeypatch.setattr(sources, "independent_rows", lambda *_: next(counts))
    lnn.MiniBatch(passes=3, learn_rho=True).run(network([3, 5, 1], "squared"), draw(200, 3), draw(200, 1))
    assert set(given) == {7}


def test_outputs_together_have_the_parameters_of_the_explicit_jacobian() -> None:
    """Three outputs share the hidden weights; all rows fit into the kernel of rows times outputs."""
    sizes, y = [4, 6, 3], draw(60, 3)
    net, weights = network(sizes, "squared", rho=0.05), weights_of(sizes)
    dof = 1.5 * explicit_dof(net, weights, X, 2 * torch.eye(3, dtype=torch.float64).expand(60, 3, 3))
    loss = float(net.loss.value(net.scores(weights, X), y).mean())
    expected = 2 * loss / 3 / (1 - dof / 180) * dof / (2 * 60 * sum(net.penalties(weights)))
    assert rho_factor(net, weights, Sample(X, y, 60)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("shown", "within"), [(300, 0.6), (500, 0.2)])
def test_few_rows_show_about_how_many_parameters_all_have(shown: int, within: float) -> None:
    x, sizes = draw(2000, 8), [8, 30, 1]
    net, weights = network(sizes, "squared", rho=1e-4), weights_of(sizes)
    states, u = recursion(net, weights, x)
    vectors = SQUARED.hessian_vectors(u[-1], u[-1])
    kernel = _kernel(net, states, _gradients(net, weights, u, vectors), None)
    whole, found = _effective_parameters(kernel, 2000), _effective_parameters(kernel[:shown, :shown], 2000)
    assert found == pytest.approx(whole, rel=within)


@pytest.mark.parametrize("rows", [60, 400])
def test_few_rows_begin_with_a_rho_that_leaves_parameters_fewer_than_rows(rows: int) -> None:
    x, y = draw(rows, 6), draw(rows, 1)
    net = network([6, 50, 1], "squared", rho=1e-5)
    known = x, y, None, [(None, None)] * 2, rows
    start = choices.random_features(net, 0, *known)
    assert Linearised.of(net, start, Sample(x, y, rows)).fits_all
    factor, weights = raised(net, start, partial(choices.fitted_head, x=x, y=y), Sample(x, y, rows))
    if rows == 400:
        assert (factor, weights) == (1.0, start)
        return
    near = Linearised.of(with_rho_factor(net, factor), weights, Sample(x, y, rows))
    assert not near.fits_all
    assert torch.equal(weights[0].w, start[0].w)


@pytest.mark.parametrize("rows", [25, 50])
def test_few_noisy_rows_are_not_fitted_exactly(rows: int) -> None:
    """The network by itself is about as good as the best ridge regression, where the response is linear."""
    scores = []
    for seed in range(4):
        random = np.random.RandomState(seed)
        x = random.normal(size=(rows + 500, 5))
        truth = x @ random.normal(size=5)
        y = truth + truth.std() * random.normal(size=len(x))
        models = (
            lnn.LiftedRegressor((100,), random_state=0),
            RidgeCV(np.logspace(-3, 3, 13)),
        )
        scores.append([r2_score(truth[rows:], m.fit(x[:rows], y[:rows]).predict(x[rows:])) for m in models])
    network_score, linear_score = np.mean(scores, 0)
    assert network_score > linear_score - 0.1


def test_no_refresh_follows_soon_after_one_for_a_new_rho(monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed, updated = [], []
    refresh, update = run.Run._refresh, run.Run._update_model

    def noted_refresh(self: run.Run, *batch: Tensor | None) -> None:
        refreshed.append(self.taken)
        refresh(self, *batch)

    def noted_update(self: run.Run, progress: float) -> bool:
        updated.append(self.taken)
        return update(self, progress)

    monkeypatch.setattr(run.Run, "_refresh", noted_refresh)
    monkeypatch.setattr(run.Run, "_update_model", noted_update)
    trainer = lnn.MiniBatch(passes=80, batch_size=25, refresh=40, learn_rho=True)
    trainer.run(network([3, 5, 1], "squared"), draw(100, 3), draw(100, 1))
    late = [step for step in refreshed if step > max(run.EARLY)]
    assert set(run.EARLY) <= set(refreshed)
    assert set(updated) <= set(refreshed)
    others = [step for step in late if step not in updated]
    assert others
    assert all(step % 40 == 0 and step - max(each for each in refreshed if each < step) >= 20 for step in others)
    assert any(step not in refreshed for step in range(40, 320, 40))


@pytest.mark.parametrize("outputs", [3, 20])  # of more than 16 outputs, the mean kernel is of random combinations
def test_the_kernel_of_all_outputs_is_that_of_explicit_gradients(outputs: int) -> None:
    net, weights = network([4, 6, outputs], "squared", rho=0.05), weights_of([4, 6, outputs])
    x, count = X[:10], 10 * outputs
    states, u = recursion(net, weights, x)
    vectors = torch.eye(outputs, dtype=torch.float64)[:, None].expand(-1, 10, -1)
    found = _kernel(net, states, _gradients(net, weights, u, vectors), None, joint=True)
    slopes = (u[0] > 0).double()
    hidden = torch.einsum("kh,nh,np->knhp", weights[1].w, slopes, x - x.mean(0)).reshape(count, -1)
    centred = states[1] - states[1].mean(0)
    last = torch.einsum("kl,nh->knlh", torch.eye(outputs, dtype=torch.float64), centred).reshape(count, -1)
    wanted = (hidden @ hidden.T + last @ last.T) / (2 * 0.05)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e9])
def test_effective_parameters_are_exact_enough_for_kernels_of_all_sizes(size: float) -> None:
    a = draw(60, 30)
    kernel = size * a @ a.T
    values = torch.linalg.eigvalsh(kernel / 60).clamp(min=0)
    assert _effective_parameters(kernel, 60) == pytest.approx(float((values / (values + 1)).sum()), rel=1e-3)


@pytest.mark.parametrize("unit", [1e-25, 1.0, 1e25])
def test_products_in_float32_do_not_overflow(unit: float) -> None:
    a = draw(5, 7)
    products, square = _inner_products(unit * a)
    torch.testing.assert_close(square * products.double(), unit**2 * (a @ a.T), rtol=1e-5, atol=1e-6 * unit**2)


@pytest.mark.parametrize("signal", [True, False])
def test_rho_stays_where_a_linear_regression_needs_as_many_parameters_as_rows(signal: bool) -> None:
    """With more columns than rows, as many parameters as rows are no sign of noise, if a linear regression is best so."""
    x = draw(60, 400)
    y = x[:, :100] @ draw(100, 1) / 10 if signal else draw(60, 1)
    x[:, 100:] = x[:, :300] + 0.1 * draw(60, 300)
    assert _needed(0.7, x, y, 60, None) == signal
    assert not _needed(0.7, x, y, 600, None)  # some of many rows
    assert not _needed(0.7, x[:, :40], y, 60, None)


def test_few_rows_of_many_columns_have_scores_that_are_sure_enough() -> None:
    random = np.random.RandomState(0)
    y, y_test = random.randint(0, 2, 80), random.randint(0, 2, 500)
    shift = 0.8 * (np.arange(600) < 30)
    x, x_test = (random.normal(size=(len(each), 600)) + np.outer(each, shift) for each in (y, y_test))
    found = lnn.LiftedClassifier(random_state=0).fit(x, y).predict_proba(x_test)
    linear = LogisticRegression(max_iter=500).fit(x, y).predict_proba(x_test)
    assert log_loss(y_test, found) < 1.15 * log_loss(y_test, linear)


def test_the_noise_of_rows_that_count_more_counts_as_often_too() -> None:
    """Takeuchi's count: trace (H + 2 n rho)^-1 sum_i w_i^2 C_i x_i x_i', H with w_i."""
    net, v, w = network([4, 2], "softmax", rho=1e-2), draw(1, 4), torch.rand(60, generator=GENERATOR).double() + 0.1
    w = w / w.mean()
    weights = [Affine(torch.cat([v, -v]), torch.zeros(2, dtype=torch.float64))]
    p = (2 * X @ v.T).sigmoid()[:, 0]
    y = SOFTMAX.encode((p > 0.5).long(), 2).double()
    centred = X - (w[:, None] * X).mean(0)
    h, noise = (4 * (centred.T * (scale * p * (1 - p))) @ centred for scale in (w, w**2))
    dof = 1.5 * float(torch.linalg.solve(h + 4 * 60 * 1e-2 * torch.eye(4), noise).trace())
    expected = dof / (2 * 60 * 1e-2 * float(weights[0].w.square().sum()))
    assert rho_factor(net, weights, Sample(X, y, 60, w, w)) == pytest.approx(expected, rel=1e-6)
    assert rho_factor(net, weights, Sample(X, y, 60, w)) != pytest.approx(expected, rel=1e-2)


def test_chances_are_in_proportion_to_weights_up_to_one() -> None:
    weights = torch.tensor([1.0, 1, 1, 2, 50, 9], dtype=torch.float64)
    assert torch.allclose(_chances(weights, 3), torch.tensor([0.2, 0.2, 0.2, 0.4, 1, 1], dtype=torch.float64))
    assert torch.equal(_chances(weights, 6), torch.ones(6, dtype=torch.float64))
    assert torch.allclose(_chances(torch.ones(8), 2), torch.full((8,), 0.25))


def test_rows_of_a_rare_class_with_large_weights_are_all_in_the_sample() -> None:
    x, labels = draw(3000, 3), (torch.arange(3000) % 100 == 7).long()
    y = SOFTMAX.encode(labels, 2).double()
    weights = torch.where(labels == 1, 50.0, 0.5).double()
    found = sample_of(SOFTMAX, x, y, weights, 3000, 200)
    assert found.row_weights is not None
    assert found.importance is not None
    assert (len(found.x), int(found.y[:, 1].sum()), found.rows) == (200, 30, 3000)
    mean = (found.row_weights[:, None] * found.y).sum(0) / found.row_weights.sum()
    assert torch.allclose(mean, (weights[:, None] * y).sum(0) / weights.sum())
    assert torch.allclose(found.importance, (49.5 * found.y[:, 1] + 0.5) / weights.mean())


@pytest.mark.parametrize("loss", [SOFTMAX, SQUARED], ids=["softmax", "squared"])
def test_weights_that_are_not_of_classes_choose_the_first_rows(loss: lnn.Loss) -> None:
    x, y = draw(300, 3), SOFTMAX.encode(torch.arange(300) % 2, 2).double()
    uneven, of_classes = torch.linspace(0.1, 2, 300, dtype=torch.float64), 1 + y[:, 1]
    for weights in (None, torch.full((300,), 3.0), uneven, *([] if loss is SOFTMAX else [of_classes])):
        found = sample_of(loss, x, y, weights, 300, 100)
        assert torch.equal(found.x, x[:100])
        assert found.importance is None
        assert (found.row_weights is None) == (weights is None)


def test_balanced_classes_are_found_as_often_as_by_a_logistic_regression() -> None:
    """Of a fraction of 1 / 50, which weights alone do not tell from noise."""
    x, y = make_classification(4600, 20, n_informative=8, n_redundant=4, weights=[0.98], flip_y=0, random_state=0)
    models = (
        lnn.LiftedClassifier(class_weight="balanced", random_state=0),
        LogisticRegression(class_weight="balanced", max_iter=1000),
    )
    ours, linear = (balanced_accuracy_score(y[600:], m.fit(x[:600], y[:600]).predict(x[600:])) for m in models)
    assert ours > linear


@pytest.mark.parametrize("loss", ["huber", "absolute", "quantile"])
def test_a_far_response_hardly_changes_the_noise_under_a_loss_of_bounded_slope(loss: str) -> None:
    u = torch.randn(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, found = torch.zeros_like(u), list[float]()
    for far in (0.0, 1e6):
        y[3] += far
        found.append(_temperature(lnn.losses.named(loss), u, y, None, 0.1))
    assert found[1] == pytest.approx(found[0], rel=0.05)
    assert found[0] == pytest.approx(float(lnn.losses.named(loss).value(u, torch.zeros_like(u)).mean()) / 0.9, rel=1e-6)
