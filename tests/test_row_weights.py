"""A row of weight 3 is three rows, in every block and every trainer; and fixed weights stay as they are."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import d2_pinball_score, r2_score
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import losses
from liftednn import penalties as pen
from liftednn.blocks import Design, WeightStep, update_weights
from liftednn.data.sources import Mapped


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


N, P, Q = 40, 4, 3
X, Z = draw(N, P) + 1, draw(N, Q, seed=1)
LABELS = (X[:, 0] * X[:, 1] > 0).long() + (X[:, 2] > 1).long()
REAL = torch.sin(2 * X[:, :2]) * X[:, 2:]
COUNTS = torch.arange(N) % 3 + 1  # 1, 2 and 3
GAPPED = torch.arange(N) % 4  # 0 to 3
START = lnn.Affine(0.1 * draw(Q, P, seed=2), torch.zeros(Q, dtype=torch.float64))
Fixed = list[tuple[Tensor | None, Tensor | None]]


def repeated(*rows: Tensor, counts: Tensor) -> list[Tensor]:
    return [part.repeat_interleave(counts, 0) for part in rows]


def close(a: list[lnn.Affine], b: list[lnn.Affine], rtol: float = 1e-6, atol: float = 1e-8) -> None:
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p.w, q.w, rtol=rtol, atol=atol)
        torch.testing.assert_close(p.b, q.b, rtol=rtol, atol=atol)


def same(a: list[lnn.Affine], b: list[lnn.Affine]) -> bool:
    return all(torch.equal(p.w, q.w) and torch.equal(p.b, q.b) for p, q in zip(a, b, strict=True))


# the W-step

SOFTMAX = losses.SoftmaxCrossEntropy().encode(LABELS, Q).double()
METHODS: dict[str, tuple[lnn.Divergence, lnn.Penalty, Tensor]] = {
    "ridge": (losses.SquaredError(), pen.L2(0.1), Z),
    "nnls": (losses.SquaredError(), pen.NonNegative(0.01), Z),
    "majorised": (losses.SoftmaxCrossEntropy(), pen.L2(0.01), SOFTMAX),
    "prox_gradient": (losses.SoftmaxCrossEntropy(), pen.L1(0.01), SOFTMAX),
    "prox_gradient squared": (losses.SquaredError(), pen.L1(0.1), Z),
    "projected": (losses.SoftmaxCrossEntropy(), pen.Orthogonal(0.5), SOFTMAX),
    "projected squared": (losses.SquaredError(), pen.LowRank(2, 0.1), Z),
    "splitting": (act.ReLU("l1"), pen.L2(0.1), Z.relu()),
    "splitting capped": (act.LeakyReLU(0.2), pen.L2(0.1), act.LeakyReLU(0.2)(X @ START.w.T) + Z.abs()),
}


def step(method: str, rows: Tensor, z: Tensor, counts: Tensor | None, bias: bool = True, most: int = 100) -> WeightStep:
    divergence, penalty, _ = METHODS[method]
    layer = lnn.Layer(lnn.operators.Dense(P, Q, bias=bias), divergence, penalty, 1.5)
    found = update_weights(layer, Design(rows, bias, counts), z, START, tol=1e-9, max_iter=most)
    assert found.method == method.split()[0]
    return found


@pytest.mark.parametrize(("bias", "gapped"), [(True, False), (False, True)], ids=["bias, 1 to 3", "no bias, 0 to 3"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thin(4)
def test_a_w_step_with_weights_is_that_of_repeated_rows(method: str, bias: bool, gapped: bool) -> None:
    if method == "splitting capped" and (gapped or not bias):
        pytest.skip("a cap binds on every row, however little it counts, and only an intercept can obey it")
    counts, z = GAPPED if gapped else COUNTS, METHODS[method][2]
    found = step(method, X, z, counts.double(), bias)
    oracle = step(method, *repeated(X, z, counts=counts), None, bias)
    close([found.weights], [oracle.weights], rtol=1e-6, atol=1e-7)
    scaled = step(method, X, z, 7.0 * counts, bias)
    close([found.weights], [scaled.weights], rtol=1e-6, atol=1e-7)


def test_a_weighted_w_step_is_scikit_learns_ridge() -> None:
    counts = torch.rand(N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = step("ridge", X, Z, counts).weights
    oracle = Ridge(alpha=0.1 * float(counts.sum()) / 1.5).fit(X.numpy(), Z.numpy(), sample_weight=counts.numpy())
    np.testing.assert_allclose(found.w, oracle.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.b, oracle.intercept_, rtol=1e-9)


def test_a_weighted_w_step_is_scikit_learns_logistic_regression() -> None:
    counts = torch.rand(N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = step("majorised", X, SOFTMAX, counts, most=2000).weights
    oracle = LogisticRegression(C=1.5 / (2 * 0.01 * float(counts.sum())), tol=1e-12, max_iter=10000)
    oracle.fit(X.numpy(), LABELS.numpy(), sample_weight=counts.numpy())
    np.testing.assert_allclose(found.w, oracle.coef_, atol=1e-5)
    np.testing.assert_allclose(found.b - found.b.mean(), oracle.intercept_ - oracle.intercept_.mean(), atol=1e-5)


# the objective


@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("name", ["relu", "fenchel_relu", "sigmoid"])
def test_the_objective_with_weights_is_that_of_repeated_rows(name: str, loss: str) -> None:
    network = lnn.LiftedNetwork.mlp([P, 6, 5, 3], name, loss, lam=[0.5, 2.0])
    weights = [
        lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.out_width)) for layer in network.layers
    ]
    y = SOFTMAX if loss == "softmax" else Z
    states = [X, draw(N, 6).sigmoid(), draw(N, 5, seed=5).sigmoid(), y]
    found = network.evaluate(weights, states, GAPPED.double())
    oracle = network.evaluate(weights, repeated(*states, counts=GAPPED))
    for ours, theirs in zip(found[:4], oracle[:4], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert network.objective(weights, states, 7.0 * GAPPED) == pytest.approx(oracle.objective, rel=1e-12)
    assert network.objective(weights, states, torch.ones(N).double()) == pytest.approx(
        network.objective(weights, states), rel=1e-12
    )


# full passes


@pytest.mark.parametrize("gapped", [False, True], ids=["1 to 3", "0 to 3"])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("name", ["relu", "fenchel_relu"])
@pytest.mark.thin(9)
def test_passes_with_weights_are_those_over_repeated_rows(name: str, loss: str, gapped: bool) -> None:
    counts = GAPPED if gapped else COUNTS
    network = lnn.LiftedNetwork.mlp([P, 5, 3 if loss == "softmax" else 2], name, loss, lam=0.7)
    y = LABELS if loss == "softmax" else REAL
    bcd = lnn.BCD(passes=3, tol=0, block_tol=1e-9, block_iter=5000)
    found = bcd.run(network, X, y, sample_weight=counts)
    oracle = bcd.run(network, *repeated(X, y, counts=counts))
    assert [r.objective for r in found.history] == pytest.approx([r.objective for r in oracle.history], rel=1e-6)
    close(found.weights, oracle.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in act.__all__ if not getattr(act, name)().why_not_exact])
@pytest.mark.thin(9)
def test_with_weights_the_objective_rises_at_no_block(name: str) -> None:
    network = lnn.LiftedNetwork.mlp([P, 4, 3], getattr(act, name)(), lam=0.7)
    bcd, counts = lnn.BCD(block_tol=1e-3, block_iter=40), torch.rand(10, generator=torch.Generator().manual_seed(4))
    counts[::5] = 0
    state = bcd.init(network, X[:10], LABELS[:10], sample_weight=counts)
    before = network.objective(state.weights, state.states, state.sample_weight)
    for _ in range(2):
        for block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states, state.sample_weight)
            assert after <= before + 1e-6 * abs(before), block
            before = after


@pytest.mark.slow
def test_passes_do_not_depend_on_the_scale_of_weights() -> None:
    network = lnn.LiftedNetwork.mlp([P, 5, 3], "fenchel_relu")
    bcd = lnn.BCD(passes=3, tol=0, block_tol=1e-6, block_iter=2000)
    x, y, n = X[:20], LABELS[:20], 20
    counts = torch.rand(n, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    plain, seven, eight = (bcd.run(network, x, y, sample_weight=scale * counts) for scale in (1.0, 7.0, 8.0))
    assert same(plain.weights, eight.weights)  # a power of 2 leaves no rounding
    close(plain.weights, seven.weights)
    alike, none = (bcd.run(network, x, y, sample_weight=given) for given in (np.full(n, 2.0), None))
    close(alike.weights, none.weights)


# mini-batches


def trainer(**options: Any) -> lnn.MiniBatch:
    """One batch of all rows, so that every pass is a step."""
    return lnn.MiniBatch(**{"passes": 25, "batch_size": 1000, **options})


def chosen(loss: str, hidden: tuple[int, ...] = (6,)) -> tuple[lnn.LiftedNetwork, Tensor]:
    network = lnn.LiftedNetwork.mlp([P, *hidden, 3 if loss == "softmax" else 2], "fenchel_relu", loss, lam=5.0)
    return network, LABELS if loss == "softmax" else REAL


@pytest.mark.parametrize("gapped", [False, True], ids=["1 to 3", "0 to 3"])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_settings_chosen_with_weights_are_those_of_repeated_rows(loss: str, gapped: bool) -> None:
    counts, (network, y) = GAPPED if gapped else COUNTS, chosen(loss, (6, 5))
    found = lnn.automatic(network, X, y, sample_weight=counts)
    oracle = lnn.automatic(network, *repeated(X, y, counts=counts))
    for ours, theirs in zip(found.layers, oracle.layers, strict=True):
        assert ours.penalty.ridge == pytest.approx(theirs.penalty.ridge, rel=1e-9)
        assert ours.lam == pytest.approx(theirs.lam, rel=1e-6)


@pytest.mark.parametrize("gapped", [False, True], ids=["1 to 3", "0 to 3"])
@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)], ids=str)
@pytest.mark.thin(2)
def test_a_batch_with_weights_is_one_of_repeated_rows(hidden: tuple[int, ...], loss: str, gapped: bool) -> None:
    counts, (network, y) = GAPPED if gapped else COUNTS, chosen(loss, hidden)
    assert 3 * int(counts.sum()) <= 256  # few enough for curvature without chance
    found = trainer().run(network, X, y, sample_weight=counts)
    oracle = trainer().run(network, *repeated(X, y, counts=counts))
    close(found.weights, oracle.weights, rtol=1e-6, atol=1e-6)
    assert [r.loss for r in found.history] == pytest.approx([r.loss for r in oracle.history], rel=1e-6)
    assert [r.objective for r in found.history] == pytest.approx([r.objective for r in oracle.history], rel=1e-6)


def test_with_an_l1_penalty_too() -> None:
    network = lnn.LiftedNetwork(
        [lnn.Layer(each.operator, each.divergence, pen.L1(3e-3), each.lam) for each in chosen("softmax")[0].layers]
    )
    found = trainer().run(network, X, LABELS, sample_weight=COUNTS)
    close(found.weights, trainer().run(network, *repeated(X, LABELS, counts=COUNTS)).weights, rtol=1e-6, atol=1e-6)


def test_a_row_of_weight_0_is_left_out() -> None:
    network, _ = chosen("softmax")
    counts, kept = torch.ones(N), torch.ones(N).bool()
    kept[::4] = False
    counts[::4] = 0
    broken = torch.where(kept[:, None], X, 1e6)
    found = trainer().run(network, broken, LABELS, sample_weight=counts)
    close(found.weights, trainer().run(network, X[kept], LABELS[kept]).weights)
    small = lnn.MiniBatch(passes=5, batch_size=7)
    assert same(
        small.run(network, broken, LABELS, sample_weight=counts).weights,
        small.run(network, X, LABELS, sample_weight=counts).weights,
    )


def test_batches_do_not_depend_on_the_scale_of_weights_below_the_number_of_rows() -> None:
    """Weights that add up to no more than the rows there are are relative only."""
    network, _ = chosen("softmax")
    counts = torch.rand(N, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    fits = [
        lnn.MiniBatch(passes=5, batch_size=9).run(network, X, LABELS, sample_weight=scale * counts).weights
        for scale in (1.0, 0.25, 0.3)
    ]
    assert same(fits[0], fits[1])
    close(fits[0], fits[2])


@pytest.mark.parametrize("mapped", [False, True], ids=["array", "memmap"])
def test_the_size_of_weights_changes_no_choice(tmp_path: Path, mapped: bool) -> None:
    """Not even where equal inputs have different labels, so that equal rows count."""
    network, _ = chosen("softmax")
    twice, labels = X.repeat(2, 1), torch.cat([LABELS, (LABELS + 1) % 3]).numpy()
    rows = on_disk(tmp_path, twice.numpy()) if mapped else twice
    one, four = (lnn.automatic(network, rows, labels, sample_weight=np.full(2 * N, s)) for s in (1.0, 4.0))
    for a, b in zip(one.layers, four.layers, strict=True):
        assert (b.penalty.ridge or 0.0) == pytest.approx(a.penalty.ridge or 0.0, rel=1e-9)


def on_disk(folder: Path, x: np.ndarray) -> np.memmap:
    x.tofile(folder / "rows.bin")
    return np.memmap(folder / "rows.bin", x.dtype, "r", shape=x.shape)


def contradictory() -> tuple[Tensor, Tensor, Tensor]:
    """Every row twice, with its label and with another one of smaller weight."""
    x = draw(300, P, seed=7)
    y = (x[:, 0] > 0).long()
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    counts = torch.cat([torch.full((300,), 1.6), torch.full((300,), 0.4)]).double()
    return torch.cat([x, x])[order], torch.cat([y, 1 - y])[order], counts[order]


class Batches:
    """Starts anew each time."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    def __iter__(self) -> Any:
        return zip(*(torch.split(part, 50) for part in self.parts), strict=True)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("form", ["array", "memmap", "iterable", "iterator"])
@pytest.mark.thin(2)
def test_of_two_labels_the_one_of_larger_weight_is_predicted(tmp_path: Path, form: str, flipped: bool) -> None:
    x, y, counts = contradictory()
    counts = 2.0 - counts if flipped else counts
    network = lnn.LiftedNetwork.mlp([P, 8, 2], "fenchel_relu", lam=5.0)
    many = lnn.MiniBatch(passes=1 if form == "iterator" else 8, batch_size=50, step=0.2)
    if form == "memmap":
        fit = many.run(network, on_disk(tmp_path, x.numpy()), y.numpy(), sample_weight=counts.numpy())
    elif form == "array":
        fit = many.run(network, x, y, sample_weight=counts)
    else:
        batches: Any = Batches(x, y, counts)
        fit = many.run(network, iter(batches) if form == "iterator" else batches)
    found = lnn.predict.feedforward(network, fit.weights, x).argmax(1)
    heavier = (x[:, 0] > 0).long()
    assert float((found == (1 - heavier if flipped else heavier)).double().mean()) > (
        0.7 if form == "iterator" else 0.9
    )


def test_batches_that_bring_their_weights_are_rows_with_weights() -> None:
    network, _ = chosen("softmax")
    counts = COUNTS.double() / COUNTS.double().mean()
    same_damping = trainer(damping=0.5)
    whole = same_damping.run(network, X, LABELS, sample_weight=counts)
    close(whole.weights, same_damping.run(network, [(X, LABELS, counts)]).weights)


@pytest.mark.parametrize("form", ["memmap", "iterable"])
def test_a_batch_may_have_weight_0(tmp_path: Path, form: str) -> None:
    x, y, counts = contradictory()
    counts[100:150] = 0
    network = lnn.LiftedNetwork.mlp([P, 8, 2], "fenchel_relu", lam=5.0)
    many = lnn.MiniBatch(passes=2, batch_size=10, refresh=1)
    if form == "memmap":
        counts[:500] = 0
        fit = many.run(network, on_disk(tmp_path, x.numpy()), y.numpy(), sample_weight=counts.numpy())
    else:
        fit = many.run(network, Batches(x, y, counts))
    assert all(bool(part.isfinite().all()) for pair in fit.weights for part in pair)
    assert np.isfinite(fit.history[-1].loss)


# errors

BAD = {
    "negative": torch.where(torch.arange(N) == 3, -1.0, 1.0),
    "NaN": torch.where(torch.arange(N) == 3, torch.nan, 1.0),
    "infinite": torch.where(torch.arange(N) == 3, torch.inf, 1.0),
    "all zero": torch.zeros(N),
    "short": torch.ones(N - 1),
    "a matrix": torch.ones(N, 1),
}
RUNS: dict[str, Callable[[Any], Any]] = {
    "BCD": lambda counts: lnn.BCD(passes=1).run(chosen("softmax")[0], X, LABELS, sample_weight=counts),
    "MiniBatch": lambda counts: lnn.MiniBatch(passes=1).run(chosen("softmax")[0], X, LABELS, sample_weight=counts),
    "automatic": lambda counts: lnn.automatic(chosen("softmax")[0], X, LABELS, sample_weight=counts),
}
ESTIMATORS: dict[str, Callable[[Any], Any]] = {
    "classifier": lambda counts: lnn.LiftedClassifier((4,), max_iter=1).fit(X.numpy(), LABELS.numpy(), counts.numpy()),
    "classifier, full passes": lambda counts: lnn.LiftedClassifier((4,), divergence="euclidean", max_iter=1).fit(
        X.numpy(), LABELS.numpy(), counts.numpy()
    ),
    "regressor": lambda counts: lnn.LiftedRegressor((4,), max_iter=1).fit(X.numpy(), REAL.numpy(), counts.numpy()),
    "regressor, part": lambda counts: lnn.LiftedRegressor((4,)).partial_fit(X.numpy(), REAL.numpy(), counts.numpy()),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("run", RUNS)
def test_wrong_weights_are_refused_in_words(run: str, bad: str) -> None:
    sentence = "sample_weight has shape" if bad in ("short", "a matrix") else "sample_weight must hold finite numbers"
    with pytest.raises(ValueError, match=sentence):
        RUNS[run](BAD[bad])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("run", ESTIMATORS)
def test_estimators_refuse_wrong_weights_as_scikit_learn_does(run: str, bad: str) -> None:
    with pytest.raises(ValueError, match=r"[Ss]ample.?weight"):
        ESTIMATORS[run](BAD[bad])


def test_negative_weights_are_refused_before_they_are_used() -> None:
    """Their variance may be negative."""
    with pytest.raises(ValueError, match="sample_weight"):
        lnn.LiftedRegressor((4,), max_iter=1).fit(X[:2].numpy(), [0.0, 1.0], [3.0, -1.0])


def test_one_weight_for_all_rows_is_scikit_learns_way() -> None:
    for model, y in ((lnn.LiftedClassifier((4,), max_iter=1), LABELS), (lnn.LiftedRegressor((4,), max_iter=1), REAL)):
        assert model.fit(X.numpy(), y.numpy(), sample_weight=1.0).n_iter_ == 1


@pytest.mark.parametrize("run", ["MiniBatch", "automatic"])
def test_weights_beside_an_iterable_are_refused(run: str) -> None:
    start: Any = lnn.MiniBatch(passes=1).run if run == "MiniBatch" else lnn.automatic
    with pytest.raises(ValueError, match="an iterable gives batches"):
        start(chosen("softmax")[0], [(X, LABELS)], sample_weight=torch.ones(N))


@pytest.mark.parametrize("bad", ["negative", "NaN", "infinite", "short", "a matrix"])
def test_wrong_weights_in_a_batch_are_refused_in_words(bad: str) -> None:
    with pytest.raises(ValueError, match="sample_weight"):
        lnn.MiniBatch(passes=1).run(chosen("softmax")[0], [(X, LABELS, BAD[bad])])


def test_weights_in_some_batches_only_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="sample_weight"):
        lnn.MiniBatch(passes=1).run(chosen("softmax")[0], [(X, LABELS, torch.ones(N)), (X, LABELS)])


# weights that must stay

SIZES = [P, 7, 6, 3]
PLACES = {"first": 0, "middle": 1, "head": 2}
PARTS = {"w": (True, False), "b": (False, True), "both": (True, True)}


def deep(penalty: lnn.Penalty) -> lnn.LiftedNetwork:
    layers = lnn.automatic(lnn.LiftedNetwork.mlp(SIZES, "fenchel_relu"), X, LABELS).layers
    return lnn.LiftedNetwork([lnn.Layer(each.operator, each.divergence, penalty, each.lam) for each in layers])


def given() -> list[lnn.Affine]:
    pairs = itertools.pairwise(SIZES)
    return [lnn.Affine(draw(q, p, seed=q) * p**-0.5, 0.1 * draw(q, seed=p)) for p, q in pairs]


def loss_at(network: lnn.LiftedNetwork, weights: list[lnn.Affine], x: Tensor = X) -> float:
    h = x
    for w, b in weights[:-1]:
        h = (h @ w.T + b).relu()
    return float(torch.nn.functional.cross_entropy(h @ weights[-1].w.T + weights[-1].b, LABELS))


def keep(place: int, parts: tuple[bool, bool]) -> Fixed:
    fixed: Fixed = [(None, None)] * 3
    w, b = given()[place]
    fixed[place] = (w if parts[0] else None, b if parts[1] else None)
    return fixed


@pytest.mark.parametrize("penalty", [pen.L2(1e-3), pen.L1(1e-3)], ids=["l2", "l1"])
@pytest.mark.parametrize("start", [False, True], ids=["random", "given"])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.thin(6)
def test_what_is_fixed_stays_and_the_rest_is_trained(place: str, parts: str, start: bool, penalty: lnn.Penalty) -> None:
    network, fixed = deep(penalty), keep(PLACES[place], PARTS[parts])
    seen: list[float] = []
    fit = trainer(passes=25).run(
        network, X, LABELS, given() if start else None, callback=lambda record: seen.append(record.loss), fixed=fixed
    )
    for layer, (pair, stay) in enumerate(zip(fit.weights, fixed, strict=True)):
        for part, kept, before in zip(pair, stay, given()[layer], strict=True):
            if kept is not None:
                assert torch.equal(part, kept)
            elif start:
                assert not torch.allclose(part, before, atol=1e-4)
    assert seen[-1] < seen[0]
    assert loss_at(network, fit.weights) < seen[0]
    if start:
        assert seen[0] == pytest.approx(loss_at(network, given()), rel=1e-9)


@pytest.mark.parametrize("penalty", [pen.L2(1e-3), pen.L1(1e-3)], ids=["l2", "l1"])
def test_where_all_is_fixed_nothing_moves(penalty: lnn.Penalty) -> None:
    network, fixed = deep(penalty), [(w, b) for w, b in given()]
    fit = trainer(passes=3).run(network, X, LABELS, fixed=fixed)
    assert same(fit.weights, given())
    assert [record.loss for record in fit.history] == pytest.approx([loss_at(network, given())] * 3, rel=1e-9)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_run_without_a_step_gives_back_what_it_was_given(place: str, parts: str) -> None:
    """Also where a column of the rows is constant, so that whitening leaves a direction out."""
    x = X.clone()
    x[:, 3] = 2.0
    network, fixed = deep(pen.L2(1e-3)), keep(PLACES[place], PARTS[parts])
    fit = trainer(passes=1, step=1e-12).run(network, x, LABELS, given(), fixed=fixed)
    assert loss_at(network, fit.weights, x) == pytest.approx(loss_at(network, given(), x), rel=1e-6)


def test_fixed_features_leave_a_ridge_regression() -> None:
    """With the hidden layers fixed, the head's problem is convex, and scikit-learn knows its minimiser."""
    rho = 0.05
    network = lnn.LiftedNetwork.mlp([P, 7, 6, 2], "fenchel_relu", "squared", lam=5.0, rho=rho)
    hidden = given()[:2]
    fixed: Fixed = [*[(w, b) for w, b in hidden], (None, None)]
    fit = trainer(passes=400, step=0.5, damping=0.0).run(network, X, REAL, fixed=fixed)
    features = ((X @ hidden[0].w.T + hidden[0].b).relu() @ hidden[1].w.T + hidden[1].b).relu()
    oracle = Ridge(alpha=rho * N).fit(features.numpy(), REAL.numpy())
    np.testing.assert_allclose(fit.weights[-1].w, oracle.coef_, atol=1e-4)
    np.testing.assert_allclose(fit.weights[-1].b, oracle.intercept_, atol=1e-4)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.thin(3)
def test_a_bias_alone_finds_its_best_value(place: int) -> None:
    """All else fixed and a linear activation: the gradient of the mean square in b vanishes."""
    network = lnn.LiftedNetwork.mlp([P, 7, 6, 2], "identity", "squared", lam=50.0)
    start = [*given()[:2], lnn.Affine(draw(2, 6), draw(2))]
    fixed: Fixed = [(w, None if layer == place else b) for layer, (w, b) in enumerate(start)]
    fit = trainer(passes=400, step=0.5, damping=0.0).run(network, X, REAL, start, fixed=fixed)
    assert all(torch.equal(p.w, q.w) for p, q in zip(fit.weights, start, strict=True))
    left = (network.scores(fit.weights, X) - REAL).mean(0)
    for w, _ in reversed(fit.weights[place + 1 :]):
        left = left @ w
    assert float(left.abs().max()) < 1e-3


def test_fixed_weights_with_weighted_rows() -> None:
    network, fixed = deep(pen.L2(1e-3)), keep(1, (True, True))
    found = trainer().run(network, X, LABELS, given(), sample_weight=COUNTS, fixed=fixed)
    x, y = repeated(X, LABELS, counts=COUNTS)
    oracle = trainer().run(network, x, y, given(), fixed=fixed)
    close(found.weights, oracle.weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        ([(None, None)] * 2, "fixed has 2 entries for 3 layers: give a pair for each"),
        ([], "fixed has 0 entries for 3 layers: give a pair for each"),
        ([(draw(3, 3), None), (None, None), (None, None)], r"layer 0 takes w \(7, 4\) and b \(7,\), got \(3, 3\)"),
        ([(None, None), (None, None), (None, draw(5))], r"layer 2 takes w \(3, 6\) and b \(3,\), got .* and \(5,\)"),
        ([(None, torch.full((7,), torch.nan)), (None, None), (None, None)], "weights of layer 0 hold NaN"),
    ],
    ids=["two entries", "no entry", "shape of w", "shape of b", "NaN"],
)
@pytest.mark.parametrize("start", [False, True], ids=["random", "given"])
def test_what_cannot_be_fixed_is_refused_in_words(start: bool, fixed: Fixed, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        trainer(passes=1).run(deep(pen.L2(1e-3)), X, LABELS, given() if start else None, fixed=fixed)


def test_fixed_weights_that_break_a_constraint_are_refused() -> None:
    with pytest.raises(ValueError, match="break the constraint"):
        trainer(passes=1).run(deep(pen.NonNegative()), X, LABELS, fixed=keep(0, (True, False)))


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [N, 8], ids=["all rows", "batches"])
def test_a_gpu_weights_rows_as_the_cpu_does(batch: int) -> None:
    """Its step is a recorded graph from the fourth batch on."""
    net = lnn.automatic(lnn.LiftedNetwork.mlp([P, 7, 3], "fenchel_relu"), X, LABELS, 0, COUNTS)
    trainer = lnn.MiniBatch(passes=6, batch_size=batch)
    here = trainer.run(net, X, LABELS, sample_weight=COUNTS)
    there = trainer.run(net, X.cuda(), LABELS.cuda(), sample_weight=COUNTS)
    close(here.weights, [lnn.Affine(w.cpu(), b.cpu()) for w, b in there.weights], 1e-5, 1e-7)
    bcd = lnn.BCD(passes=2)
    one = bcd.run(net, X, LABELS, sample_weight=COUNTS)
    other = bcd.run(net, X.cuda(), LABELS.cuda(), sample_weight=COUNTS)
    assert other.history[-1].objective == pytest.approx(one.history[-1].objective, rel=1e-3)


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_weighted_scores_are_those_of_scikit_learn(level: float) -> None:
    generator = torch.Generator().manual_seed(0)
    u, y = torch.randn(50, 1, generator=generator), torch.randn(50, 1, generator=generator) ** 3
    weights = torch.rand(50, generator=generator) ** 4
    expected = d2_pinball_score(y, u, sample_weight=weights, alpha=level)
    assert lnn.losses.Quantile(level).score(u, y, weights) == pytest.approx(expected, abs=1e-6)
    expected = r2_score(y, u, sample_weight=weights)
    assert lnn.losses.SquaredError().score(u, y, weights) == pytest.approx(expected, abs=1e-6)
    constant = lnn.losses.Huber(0.5).constants(y.double(), weights.double())
    assert lnn.losses.Huber(0.5).score(constant.expand_as(y), y, weights) == pytest.approx(0, abs=1e-6)


def test_a_score_without_weights_is_refused_before_training() -> None:
    class Own(lnn.losses.SquaredError):
        def score(self, u: Tensor, y: Tensor) -> float:  # type: ignore[override]
            return -float((u - y).square().mean())

    network = lnn.LiftedNetwork.mlp([P, 8, 1], activation="fenchel_relu", loss=Own())
    x = draw(50, P, seed=3)
    with pytest.raises(ValueError, match="takes no row_weights, and validation has weights"):
        lnn.MiniBatch(passes=1).run(network, x, x[:, 0], validation=(x, x[:, 0], torch.rand(50)))
    with pytest.raises(ValueError, match=r"must be None, \(x, y\) or \(x, y, weights\), got 4 parts"):
        lnn.MiniBatch(passes=1).run(network, x, x[:, 0], validation=(x, x, x, x))


@pytest.mark.parametrize("seed", range(4))
def test_a_memory_map_in_which_few_rows_count_is_prepared_from_these(tmp_path: Path, seed: int) -> None:
    x, weights = np.random.RandomState(0).normal(size=(40_000, P)), np.zeros(40_000)
    y = (x[:, 0] > 0).astype(int)
    weights[20_000:20_100] = 1.0
    rows, found, counts = (np.asarray(part) for part in Mapped(on_disk(tmp_path, x), y, weights).sample(8192, seed))
    assert len(rows) == 100
    assert np.array_equal(np.sort(rows[:, 0]), np.sort(x[20_000:20_100, 0]))
    assert np.array_equal(found, rows[:, 0] > 0)
    assert counts.all()


def test_weights_that_underflow_in_the_precision_of_the_rows_count_as_the_smallest() -> None:
    """They are not 0, which leaves a row out: a batch of them would be refused."""
    x, y, weights = X.float(), REAL.float(), torch.full((N,), 1e-60, dtype=torch.float64)
    weights[0] = 1.0
    fit = lnn.MiniBatch(passes=1, batch_size=10).run(
        lnn.LiftedNetwork.mlp([P, 3, 2], "fenchel_relu", "squared"), x, y, sample_weight=weights
    )
    assert bool(fit.weights[0].w.isfinite().all())
