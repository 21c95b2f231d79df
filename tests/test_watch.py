"""A run that goes astray is noticed, and one that has nothing to lose is left alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.minibatch import Run
from liftednn.watch import Watch

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(400, 5, generator=GENERATOR)
Y = X[:, :1].abs() + X[:, 1:2]


def network(**options: Any) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([5, 20, 1], activation="fenchel_relu", loss="squared", **options)


def begun(scores: Tensor, y: Tensor = Y, net: lnn.LiftedNetwork | None = None) -> Watch:
    watch = Watch(net or network())
    watch.begin(scores, y)
    return watch


def test_scores_that_say_no_more_than_their_mean_have_lost_what_they_told() -> None:
    watch = begun(Y + 0.5)
    assert watch.told
    assert 20 * watch.first > float(Y.var())  # which alone would not be noticed
    assert not watch.astray(Y + 0.8, Y)
    assert watch.astray(Y.mean().expand_as(Y), Y)
    assert watch.astray(Y.mean() - 0.1 * (Y - Y.mean()), Y)


def test_scores_that_told_nothing_have_nothing_to_lose() -> None:
    noise = torch.randn(400, 1, generator=GENERATOR)
    watch = begun(0.1 * noise)
    assert not watch.told
    assert not watch.astray(torch.zeros_like(Y), Y)
    assert not watch.astray(0.2 * noise, Y)


@pytest.mark.parametrize("scores", [Y * 100, Y * math.inf, Y * math.nan], ids=["far", "infinite", "no number"])
def test_a_loss_that_runs_away_is_astray_whatever_was_told(scores: Tensor) -> None:
    assert begun(0.1 * torch.randn(400, 1, generator=GENERATOR)).astray(scores, Y)
    assert begun(Y + 0.1).astray(scores, Y)


def test_fear_may_bring_all_scores_together() -> None:
    certain = network()
    first = replace(certain.layers[0], uncertainty=lnn.robust.Noise(3.0))
    watch = begun(Y + 0.1, net=lnn.LiftedNetwork([first, *certain.layers[1:]]))
    assert not watch.astray(Y.mean().expand_as(Y), Y)
    assert watch.first >= float(Y.var(correction=0)) / 2


def test_what_is_stored_comes_back_and_older_files_are_read() -> None:
    watch, other = begun(Y + 0.1), Watch(network())
    other.load(watch.facts())
    assert (other.first, other.told) == (watch.first, True)
    other.load({"first_loss": 2.0})
    assert (other.first, other.told) == (2.0, False)


def test_a_run_whose_units_have_all_died_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Run._advance

    def advance(self: Run, *given: Any) -> None:
        if self.taken == 59:
            self.descent.weights[0].b.fill_(-100.0)
        plain(self, *given)

    monkeypatch.setattr(Run, "_advance", advance)
    net = lnn.automatic(network(), X, Y)
    fit = lnn.MiniBatch(max_iter=40).run(net, X, Y)
    assert fit.history[-1].halved == 1
    assert fit.history[-1].score > 0.95
    monkeypatch.setattr(Watch, "astray", lambda self, scores, y: False)
    dead = lnn.MiniBatch(max_iter=40).run(net, X, Y)
    assert dead.history[-1].score < 0.1
