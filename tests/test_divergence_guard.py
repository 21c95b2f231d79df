"""A diverging run is detected and rolled back, and one whose first scores were no better than a constant is not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.training.guard import DivergenceGuard, Verdict
from liftednn.training.monitor import Tally
from liftednn.training.run import Run

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(400, 5, generator=GENERATOR)
Y = X[:, :1].abs() + X[:, 1:2]
NOISE = torch.randn(400, 1, generator=GENERATOR)


def network() -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([5, 20, 1], activation="fenchel_relu", loss="squared")


def begun(scores: Tensor, y: Tensor = Y, net: lnn.LiftedNetwork | None = None) -> DivergenceGuard:
    guard = DivergenceGuard(net or network())
    guard.begin(scores, y)
    return guard


@pytest.mark.parametrize(
    ("fraction", "verdict"), [(2.0, "good"), (0.5, "good"), (0.2, "doubtful"), (0.05, "collapsed"), (0.0, "collapsed")]
)
def test_scores_that_become_constant_have_collapsed(fraction: float, verdict: str) -> None:
    guard = begun(Y + 0.5)
    assert 20 * guard.first > float(Y.var())  # which alone would not be detected
    assert guard.judge(Y.mean() + fraction * (Y - Y.mean()), Y) == verdict


def test_an_outlier_is_not_taken_for_divergence() -> None:
    guard, far = begun(Y + 0.5), Y.clone()
    far[0] = 30.0  # which alone makes half of the loss of one score for all rows, and more
    assert guard.judge(Y, far) == "good"


def test_a_run_is_not_rolled_back_to_scores_that_are_far_worse_than_those_kept_last() -> None:
    """Their loss may be far from exploding yet; where all that was kept is as bad, there is nothing better."""
    bad = Y.mean() + 1.3 * (Y.mean() - Y)
    guard = begun(Y + 0.8)
    assert float((bad - Y).square().mean()) < 20 * guard.first
    assert guard.judge(bad, Y) == "doubtful"
    assert guard.judge(Y + 0.1, Y) == "good"
    assert guard.judge(Y.mean().expand_as(Y) + 0.4 * NOISE, Y) == "doubtful"
    assert guard.judge(bad[:2], Y[:2]) == "doubtful"  # of so few rows their own mean is too good a constant
    assert begun(Y + 0.8).judge(Y[:2] + 0.8, Y[:2]) == "good"
    guard = begun(bad)
    assert guard.judge(bad, Y) == "good"
    assert guard.judge(Y + 0.1, Y) == "good"
    assert guard.judge(bad, Y) == "doubtful"


def test_a_run_is_not_rolled_back_to_scores_that_are_nearly_constant() -> None:
    """Although the first scores, which were no better than a constant, allow that; where few rows are predicted badly, nothing is said."""
    nearly = Y.mean() + 0.02 * (Y - Y.mean())
    guard = begun(0.1 * NOISE)
    assert guard.judge(nearly, Y) == "good"
    assert guard.judge(Y + 0.8 * NOISE, Y) == "good"
    assert guard.judge(nearly, Y) == "doubtful"
    few = Y.clone()
    few[:10] += 6.0
    assert float((few - Y).square().mean()) > 0.5 * float(Y.var())
    assert guard.judge(few, Y) == "good"


def test_rows_of_weight_0_change_no_verdict() -> None:
    """Not even where they are most of a batch, and those that count are predicted worst."""
    counts = torch.zeros(400)
    counts[:4] = 1.0
    scores = torch.where(counts[:, None] > 0, Y + 0.8, Y)
    guard = begun(Y + 0.8)
    assert guard.judge(scores, Y, counts) == "good"
    assert guard.explained == pytest.approx(begun(Y + 0.8).explained, abs=0.2)
    assert guard.judge(torch.where(counts[:, None] > 0, -Y, Y), Y, counts) == "doubtful"


def test_a_far_response_in_a_small_batch_is_not_taken_for_divergence() -> None:
    """Although it is more than a twentieth of the rows; only so few scores are not kept."""
    guard, far = begun(Y + 0.5), Y[:10].clone()
    far[0] = 30.0
    assert float((far - Y[:10]).square().mean()) > 20 * guard.first
    assert guard.judge(Y[:10], far) == "doubtful"
    constant = guard.constant.whole
    assert float((Y[:10] + 3.0 - Y[:10]).square().mean()) < 20 * constant
    assert guard.judge(Y[:10] + 3.0, Y[:10]) == guard.judge(Y[:1] + 3.0, Y[:1]) == "exploded"


@pytest.mark.parametrize("weight", [1.0, 3.0, 9.0])
def test_a_far_response_of_large_weight_is_not_taken_for_divergence(weight: float) -> None:
    """Rows of the largest losses are left out as a whole; those of weight 0 are no rows."""
    far, counts = Y.clone(), torch.ones(400)
    far[0], counts[0] = 20.0, weight
    few = counts * (torch.arange(400) < 10)
    for weights in (counts[:50], few[:50]):
        guard = begun(Y + 0.5)
        assert float((weights * (far[:50, 0] - Y[:50, 0]).square()).sum() / weights.sum()) > 20 * guard.first
        assert guard.judge(Y[:50], far[:50], weights) != "exploded"


def test_a_far_response_in_the_sample_does_not_hide_an_explosion() -> None:
    guard, far = DivergenceGuard(network()), Y[:50].clone()
    far[0] = 1e4
    guard.begin(Y[50:] + 0.1, Y[50:], sample=(torch.cat([far, Y[50:]]), None))
    assert guard.judge(Y[50:] + 3.0, Y[50:]) == "exploded"


def test_a_far_response_does_not_hide_scores_that_are_far_worse_than_those_kept_last() -> None:
    """Although it moves the mean of the batch, or of the sample, so that a constant looks bad for all rows."""
    bad, far = Y.mean() + 1.3 * (Y.mean() - Y), Y[:50].clone()
    far[0] = 300.0
    guard = begun(Y + 0.8)
    assert guard.judge(Y + 0.1, Y) == "good"
    assert guard.judge(bad[:50], far) == "doubtful"
    assert guard.judge(Y[:50], far) == "good"
    guard = DivergenceGuard(network())
    guard.begin(Y[50:] + 0.8, Y[50:], sample=(torch.cat([far, Y[50:]]), None))
    assert guard.judge(Y[50:] + 0.1, Y[50:]) == "good"
    assert guard.judge(bad[50:], Y[50:]) == "doubtful"


def test_where_the_responses_of_few_rows_differ_these_rows_count() -> None:
    """Without them, good scores explain nothing."""
    rare = (torch.arange(400) % 33 == 0)[:, None].float()
    for y in (rare, rare + 0.01 * NOISE.flip(0)):
        guard = begun(y.mean() + 0.01 * NOISE, y)
        assert guard.judge(0.8 * rare + 0.1 * NOISE, y) == "good"
        assert guard.explained.whole > 0.5
        assert guard.judge(y.mean() + 0.3 * NOISE, y) == "doubtful"


def test_a_weight_counts_as_so_many_copies_of_a_row() -> None:
    counts = torch.randint(1, 9, (100,), generator=torch.Generator().manual_seed(1))
    scores, y, copies = Y[:100] + 2 * NOISE[:100], Y[:100], torch.arange(100).repeat_interleave(counts)
    guard, other = begun(Y + 0.1), begun(Y + 0.1)
    guard.begin(scores, y, counts.float())
    other.begin(scores[copies], y[copies])
    assert guard.explained == pytest.approx(other.explained, abs=1e-6)
    assert guard.constant == pytest.approx(other.constant, abs=1e-6)
    heavy = torch.ones(100)
    heavy[:5] = 1e3
    assert begun(Y + 0.1).judge(torch.where(heavy[:, None] > 1, y + 3.0, y), y, heavy) == "exploded"


def test_scores_do_not_get_worse_little_by_little() -> None:
    """Once they were better than a constant, those that are worse than one are not kept, however little worse each time."""
    guard, unit = begun(Y + 0.8), float(Y.std() / NOISE.std())
    assert guard.judge(Y + 0.1, Y) == "good"
    verdicts = [guard.judge(Y + (1 + bad / 50) * unit * NOISE, Y) for bad in range(20)]
    assert verdicts[0] == "good"
    assert verdicts[10:] == ["doubtful"] * 10


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_verdicts_do_not_depend_on_the_units_of_responses(unit: float) -> None:
    guard = begun(unit * (Y + 1e-3), unit * Y)
    assert guard.judge(unit * (Y + 0.05 * NOISE), unit * Y) == "good"
    assert guard.judge(unit * (Y + NOISE), unit * Y) == "exploded"


def test_batches_with_and_without_a_far_response_are_judged_by_their_own_variance() -> None:
    far = Y.clone()
    far[0] = 300.0
    guard = begun(far + 0.5, far)
    assert guard.beats_constant
    assert guard.spread > 100 * float(
        Y.var()
    )  # with its threshold alone, good scores of other batches would have collapsed
    assert guard.judge(Y, Y) == "good"
    assert guard.judge(Y.mean() + 0.05 * (Y - Y.mean()), Y) == "collapsed"
    same = torch.full_like(Y, 2.0)
    assert guard.judge(same + 1e-3 * NOISE, same) == "doubtful"  # responses that do not vary show nothing
    guard = begun(Y + 0.1)
    assert float((far - Y).square().mean()) > 20 * guard.first
    assert guard.judge(Y, far) == "good"
    assert guard.judge(100 * far, far) == "exploded"
    some = Y.clone()
    some[:10] = 300.0
    assert guard.judge(some, Y) == "exploded"  # few rows, but far worse than a constant


def test_a_large_loss_of_a_rare_class_has_exploded() -> None:
    """It may all be in a few rows."""
    labels = torch.zeros(400, dtype=torch.long)
    labels[:8] = 1
    net = lnn.LiftedNetwork.mlp([5, 20, 2], activation="fenchel_relu", loss="softmax")
    scores = torch.stack([torch.full((400,), 4.0), 0.1 * NOISE[:, 0]], 1)
    guard = begun(scores, y := net.loss.encode(labels, 2), net)
    assert guard.judge(scores, y) == "good"
    assert guard.judge(50 * scores, y) == "exploded"


def test_scores_no_better_than_a_constant_may_shrink_but_not_become_constant() -> None:
    guard = begun(0.1 * NOISE)
    assert not guard.beats_constant
    assert guard.judge(0.01 * NOISE, Y) == "good"
    assert guard.judge(torch.zeros_like(Y), Y) == "collapsed"


@pytest.mark.parametrize("scores", [Y * 100, Y * math.inf, Y * math.nan], ids=["far", "infinite", "no number"])
def test_an_exploding_loss_is_detected_whatever_the_first_scores(scores: Tensor) -> None:
    assert begun(0.1 * NOISE).judge(scores, Y) == "exploded"
    assert begun(Y + 0.1).judge(scores, Y) == "exploded"


def test_robust_training_may_lead_to_constant_scores() -> None:
    certain = network()
    first = replace(certain.layers[0], uncertainty=lnn.robust.Noise(3.0))
    guard = begun(Y + 0.1, net=lnn.LiftedNetwork([first, *certain.layers[1:]]))
    assert max(guard.explained) <= 0
    assert guard.judge(Y.mean().expand_as(Y), Y) == "good"
    assert guard.first >= float(Y.var(correction=0)) / 2


def test_what_is_stored_comes_back() -> None:
    guard, other = begun(Y + 0.1), DivergenceGuard(network())
    other.load(json.loads(json.dumps(guard.metadata())))
    assert other == replace(guard, network=other.network)
    assert other.judge(-Y, Y) == guard.judge(-Y, Y)


def dying(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Make all units inactive, again and again."""
    plain = Run._advance

    def advance(self: Run, *given: Any) -> None:
        if self.taken % every == every - 1:
            self.descent.weights[0].b.fill_(-100.0)
        plain(self, *given)

    monkeypatch.setattr(Run, "_advance", advance)


def test_a_run_whose_units_have_all_become_inactive_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, 180)
    net = lnn.automatic(network(), X, Y)
    fit = lnn.MiniBatch(passes=40).run(net, X, Y)
    assert fit.history[-1].halved == 1
    assert fit.history[-1].score > 0.95
    monkeypatch.setattr(DivergenceGuard, "judge", lambda *_: "good")
    collapsed = lnn.MiniBatch(passes=40).run(net, X, Y)
    assert collapsed.history[-1].score < 0.1


def test_a_run_that_keeps_collapsing_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty may make all scores equal: that is no error."""
    dying(monkeypatch, 60)
    fit = lnn.MiniBatch(passes=100).run(lnn.automatic(network(), X, Y), X, Y)
    assert fit.history[-1].halved == 8
    assert fit.status == "finished"


def judged(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
    """These verdicts at the first refreshes, and good ones after them."""
    given: Iterator[Verdict] = iter(verdicts)
    monkeypatch.setattr(DivergenceGuard, "judge", lambda *_: next(given, "good"))


def halvings(net: lnn.LiftedNetwork, y: Tensor, **settings: Any) -> list[int]:
    fit = lnn.MiniBatch(**settings).run(lnn.automatic(net, X, y), X, y)
    return [record.halved for record in fit.history]


@pytest.mark.parametrize("bad", ["exploded", "collapsed"])
def test_halvings_of_the_first_steps_are_taken_back_one_by_one(bad: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refreshes are before steps 0, 2, 5, 10, 20, 30, ...; a pass has 8 steps."""
    judged(monkeypatch, "good", bad, bad)
    assert halvings(network(), Y, passes=6, refresh=10) == [2, 2, 2, 1, 1, 0]


def test_later_halvings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, *["good"] * 5, "exploded")
    assert halvings(network(), Y, passes=10, refresh=10)[3:] == [1] * 7


@pytest.mark.parametrize(
    ("loss", "y", "size", "expected"),
    [
        ("squared", Y, 5, [0, 0, 0, 1, 1, 2, 2]),
        ("squared", Y, 50, [0] * 7),  # 8 steps in a pass
        ("softmax", (Y[:, 0] > 0).long(), 5, [0] * 7),
    ],
)
def test_the_rate_is_halved_where_the_loss_of_passes_rises(
    loss: str, y: Tensor, size: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a twentieth of the loss of a constant, over the least one since the last halving."""
    constant = float(Y.var(correction=0))
    given = iter([0.5, 0.2, 0.24, 0.26, 0.3, 0.35, 0.35])
    monkeypatch.setattr(Tally, "close", lambda self: (constant * next(given), 0.0))
    net = network() if loss == "squared" else lnn.LiftedNetwork.mlp([5, 20, 2], activation="fenchel_relu")
    # A record is written before its own rise counts.
    assert halvings(net, y, passes=7, batch_size=size) == [0, *expected[:-1]]
