"""A run that ended badly gives warnings, and one that ended well gives none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.training.choices import fitted_head
from liftednn.training.diagnostics import problems_of
from liftednn.training.guard import DivergenceGuard, Verdict

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(400, 5, generator=GENERATOR, dtype=torch.float64)
NOISE = torch.randn(400, 1, generator=GENERATOR, dtype=torch.float64)
LINEAR = X[:, :1] - 2 * X[:, 1:2] + 0.5 * NOISE
BENT = X[:, :1].abs() + X[:, 1:2]


def network(loss: str = "squared", outputs: int = 1) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([5, 20, outputs], activation="fenchel_relu", loss=loss, rho=1e-4)


def start(net: lnn.LiftedNetwork, y: Tensor) -> list[Affine]:
    """Random features with a fitted head."""
    return lnn.BCD().init(net, X, y).weights


def found(net: lnn.LiftedNetwork, weights: list[Affine], y: Tensor, halved: int = 0, rows: int = 400) -> list[str]:
    sentences = problems_of(net, weights, X[:rows], X[:rows], y[:rows], None, halved)
    return [sentence.split(" ")[0] + " " + sentence.split(" ")[1] for sentence in sentences]


def test_a_good_run_gives_no_warning() -> None:
    for y in (LINEAR, BENT):
        fit = lnn.MiniBatch(passes=30).run(lnn.automatic(network(), X, y), X, y)
        assert fit.warnings == ()


@pytest.mark.parametrize(("halved", "said"), [(0, []), (2, []), (3, ["the rate"]), (8, ["the rate"])])
def test_three_halvings_or_more_give_a_warning(halved: int, said: list[str]) -> None:
    net = network()
    assert found(net, start(net, BENT), BENT, halved) == said


@pytest.mark.parametrize(("count", "said"), [(6, []), (7, ["7 of"])])
def test_more_than_a_third_of_constant_units_gives_a_warning(count: int, said: list[str]) -> None:
    net = network()
    (w, b), last = start(net, BENT)
    b = b.clone()
    b[:count] = -1000.0
    last = last._replace(w=torch.where(torch.arange(20) < count, 0.0, last.w))
    fitted = fitted_head(net, [Affine(w, b), last], X, BENT)
    assert [each for each in found(net, fitted, BENT) if "of" in each] == said


def test_units_that_a_penalty_sets_to_zero_give_no_warning() -> None:
    net = network().with_penalty([lnn.penalties.GroupL2(0.1), lnn.penalties.L2(1e-4)])
    (w, b), last = start(net, BENT)
    assert found(net, [Affine(torch.zeros_like(w), b), last._replace(w=torch.zeros_like(last.w))], BENT) == [
        "the predictions"
    ]


@pytest.mark.parametrize("name", ["squared", "softmax", "absolute", "huber"])
def test_predictions_no_better_than_a_constant_give_a_warning(name: str) -> None:
    classes = name == "softmax"
    net = network(name, 3 if classes else 1)
    y = torch.eye(3, dtype=X.dtype)[(BENT[:, 0] > 0).long() + (X[:, 2] > 1)] if classes else BENT
    if name in ("absolute", "huber"):
        net = lnn.automatic(net, X, y)
    weights = start(net, y.argmax(1) if classes else y)
    assert "the predictions" not in found(net, weights, y)
    dull = [*weights[:-1], Affine(torch.zeros_like(weights[-1].w), torch.zeros_like(weights[-1].b))]
    assert found(net, dull, y) == ["the predictions"]


def test_a_network_worse_than_a_linear_model_gives_a_warning_but_not_one_that_equals_it() -> None:
    net = network()
    linear = torch.linalg.lstsq(X, LINEAR).solution.T
    first = Affine(torch.cat([linear, -linear, torch.zeros(18, 5)]).double(), torch.zeros(20, dtype=X.dtype))
    for fraction, said in ((1.0, []), (0.99, []), (0.5, ["a linear"])):  # of 0.99, the rest is 1e-4 of the variance
        w = torch.zeros(1, 20, dtype=X.dtype)
        w[0, 0], w[0, 1] = fraction, -fraction  # relu(u) - relu(-u) = u
        weights = [first, Affine(w, torch.zeros(1, dtype=X.dtype))]
        for y in (LINEAR, X @ linear.T.double()):
            assert [each for each in found(net, weights, y) if "of" not in each] == said


def test_no_warning_for_few_rows_constant_responses_or_a_constrained_network() -> None:
    net = network()
    weights = start(net, LINEAR)
    poor = [*weights[:-1], weights[-1]._replace(w=0.3 * weights[-1].w)]
    assert found(net, poor, LINEAR) == ["a linear"]
    assert found(net, poor, LINEAR, rows=39) == []
    free = LINEAR.mean().expand_as(LINEAR)
    assert "the predictions" not in found(net, start(net, free), free)
    uncertain = lnn.LiftedNetwork([replace(net.layers[0], uncertainty=lnn.robust.Noise(1.0)), *net.layers[1:]])
    assert found(uncertain, poor, LINEAR) == []
    assert found(net.with_penalty("nonnegative"), poor, LINEAR) == []


def test_an_estimator_warns_and_a_pass_of_a_stream_does_not() -> None:
    x, y = X.numpy(), NOISE[:, 0].numpy()
    options: dict[str, Any] = {"hidden_layer_sizes": (8,), "max_iter": 2, "random_state": 0, "alpha": 100.0}
    with pytest.warns(ConvergenceWarning, match="no better than one and the same for all rows"):
        lnn.LiftedRegressor(**options).fit(x, y)
    with pytest.warns(ConvergenceWarning, match="no better than one and the same for all rows"):
        lnn.LiftedClassifier(**options).fit(x, (y > 0).astype(int))
    lnn.LiftedRegressor(**options).partial_fit(x, y)


@pytest.mark.parametrize("times", [1.0, 1e5])
def test_a_row_beside_which_all_others_are_alike_is_named(times: float) -> None:
    x, labels = X.clone(), (X[:, 0] > 0).long()
    x[-1] *= times
    fit = lnn.MiniBatch(passes=3).run(
        lnn.automatic(lnn.LiftedNetwork.mlp([x.shape[1], 8, 2], "fenchel_relu"), x, labels), x, labels
    )
    assert any("no better than one and the same" in line for line in fit.warnings) == (times > 1)
    assert any("as large as most rows: leave it out" in line for line in fit.warnings) == (times > 1)


def test_row_weights_enter_the_comparison() -> None:
    """Rows of weight 0 do not enter the comparison."""
    net, row_weights = network(), torch.cat([torch.full((200,), 2.0), torch.full((200,), 1e-9)]).double()
    y = torch.cat([BENT[:200], -BENT[200:]])
    weights = lnn.BCD().init(net, X[:200], y[:200]).weights
    assert problems_of(net, weights, X, X, y, None, 0)
    sentences = problems_of(net, weights, X, X, y, row_weights, 0)
    assert not [sentence for sentence in sentences if "one and the same for all rows" in sentence]


@pytest.mark.parametrize("bad", ["collapsed", "exploded"])
@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.thin(2)
def test_a_run_counts_its_halvings(times: int, bad: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    good: Verdict = "good"
    verdicts = iter([*[good] * 5, *[bad] * times])  # halvings of the first steps are taken back
    monkeypatch.setattr(DivergenceGuard, "judge", lambda *_: next(verdicts, "good"))
    fit = lnn.MiniBatch(passes=20, refresh=10).run(lnn.automatic(network(), X, BENT), X, BENT)
    assert fit.history[-1].halved == times
    assert [f"halved {times} times" in sentence for sentence in fit.warnings] == [True] * (times > 2)
