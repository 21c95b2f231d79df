"""Fewer passes where classes are easy to tell apart, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.defaults import Recipe
from liftednn.training.result import Record
from liftednn.training.schedule import Schedule, negligible_loss

PASSES = 30


def easy(rows: int = 200, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Two classes far from each other; a fraction of the labels is wrong."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % 2
    x = torch.randn(rows, 3, generator=generator) + 20 * y[:, None]
    return x, torch.where(torch.rand(rows, generator=generator) < noise, 1 - y, y)


def fitted(
    x: Tensor, y: Tensor, shorten: bool = True, checkpoint: lnn.Checkpoint | None = None, passes: int = PASSES
) -> lnn.Fit:
    """At most so many passes, of those that are planned, are done in this call."""
    network = lnn.automatic(lnn.LiftedNetwork.mlp([3, 10, 2], activation="fenchel_relu"), x, y)
    trainer = lnn.MiniBatch(passes=PASSES, batch_size=5, shorten=shorten)
    network = network.with_penalty("l2", 1e-8)
    return trainer.run(network, x, y, checkpoint=checkpoint, callback=lambda record: record.number >= passes)


def test_classes_that_are_far_apart_take_few_passes_and_end_at_rate_0() -> None:
    fit = fitted(*easy())
    assert len(fit.history) <= PASSES / 5
    assert fit.status == "finished"
    assert "negligible" in fit.result
    assert fit.history[-1].score == 1
    assert fit.history[-1].rate < 0.02 < fit.history[0].rate


def test_passes_that_are_asked_for_are_done() -> None:
    assert len(fitted(*easy(), shorten=False).history) == PASSES
    trainers = [Recipe(passes=passes).trainer(1000) for passes in (None, 12)]
    assert [trainer.shorten for trainer in trainers] == [True, False]


def test_with_a_few_wrong_labels_all_passes_are_done() -> None:
    assert len(fitted(*easy(noise=0.02)).history) == PASSES


@pytest.mark.parametrize("passes", [2, 4])
def test_a_resumed_run_keeps_its_shorter_schedule(passes: int, tmp_path: Path) -> None:
    """Stopped before and after it has become shorter."""
    whole, checkpoint = fitted(*easy()), lnn.Checkpoint(tmp_path / "run")
    assert len(whole.history) == 6  # twice the 3 after which the loss is negligible
    assert len(fitted(*easy(), checkpoint=checkpoint, passes=passes).history) == passes
    again = fitted(*easy(), checkpoint=checkpoint)
    assert [record.rate for record in again.history] == [record.rate for record in whole.history]
    assert torch.equal(again.weights[0].w, whole.weights[0].w)


def test_a_loss_that_becomes_negligible_late_changes_nothing() -> None:
    def records(*losses: float) -> list[Record]:
        return [Record(number, 0.0, (), loss, 0.0, 0.0) for number, loss in enumerate(losses, 1)]

    schedule = Schedule(30, negligible=0.1)
    assert schedule.planned(records(1.0, 0.05, 0.2)) == 4
    assert schedule.planned(records(1.0, 1.0, 1.0, 0.05)) == 30
    assert Schedule(3, negligible=0.1).planned(records(0.05)) == 2
    assert Schedule(1, negligible=0.1).planned(records(0.05)) == 1


def test_real_responses_uncertain_inputs_and_other_penalties_always_have_something_to_gain() -> None:
    y = torch.eye(2).repeat(50, 1)
    network = lnn.LiftedNetwork.mlp([3, 4, 2])
    entropy = float(torch.tensor(2.0).log())
    assert negligible_loss(network, y, None, 1000) == pytest.approx(1e-3 * entropy)
    assert negligible_loss(network, y, None, 39) == negligible_loss(network, y, None, None) == 0
    first = replace(network.layers[0], divergence=lnn.activations.FenchelReLU(), uncertainty=lnn.robust.Noise(0.1))
    uncertain = lnn.LiftedNetwork([first, *network.layers[1:]])
    for other in (lnn.LiftedNetwork.mlp([3, 4, 2], loss="squared"), network.with_penalty("l1", 0.1), uncertain):
        assert negligible_loss(other, y, None, 1000) == 0
    weights = torch.tensor([1.0, 0.0]).repeat(50)  # only rows of one class count
    assert negligible_loss(network, y, weights, 1000) == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes_give_passes_and_several_responses_do_not() -> None:
    x, y = np.random.default_rng(0).standard_normal((900, 2)), np.arange(900) % 20
    assert lnn.LiftedClassifier(3, random_state=0).fit(x, y).n_iter_ == 42
    assert lnn.LiftedRegressor(3, random_state=0).fit(x, np.eye(20)[y]).n_iter_ == 30
    assert lnn.LiftedClassifier(3, random_state=0).fit(x, np.eye(20, dtype=int)[y]).n_iter_ == 30
