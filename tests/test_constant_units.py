"""Constant hidden units are drawn anew without a change of the scores, and a training run has few of them at its end."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine
from liftednn.training.constant_units import redraw_constant_units

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR, dtype=torch.float64)


def weights_of(*sizes: int) -> list[Affine]:
    pairs = itertools.pairwise(sizes)
    return [Affine(torch.randn(q, p, generator=GENERATOR).double(), torch.zeros(q).double()) for p, q in pairs]


def constant(network: lnn.LiftedNetwork, weights: list[Affine]) -> list[int]:
    states = network.propagate(weights, X)[1:]
    return [int((state.amax(0) == state.amin(0)).sum()) for state in states]


@pytest.mark.parametrize("activation", ["fenchel_relu", "fenchel_leaky_relu"])
def test_scores_stay_and_no_unit_is_constant(activation: str) -> None:
    network, weights = lnn.LiftedNetwork.mlp([4, 6, 5, 2], activation, loss="squared"), weights_of(4, 6, 5, 2)
    for number, unit in ((0, 1), (0, 4), (1, 2)):  # a leaky unit is constant where it has no weights
        weights[number].w[unit], weights[number].b[unit] = 0.0, -3.0
    velocity = [Affine(torch.ones_like(w), torch.ones_like(b)) for w, b in weights]
    before, found = network.scores(weights, X), constant(network, weights)
    assert found == [2, 1]
    assert redraw_constant_units(network, weights, velocity, X, seed=0) == 3
    assert constant(network, weights) == [0, 0]
    torch.testing.assert_close(network.scores(weights, X), before)
    assert float(velocity[0].w[1].abs().max()) == float(velocity[1].w[:, 1].abs().max()) == 0
    assert bool((velocity[0].w[0] == 1).all())


def test_a_unit_that_varies_in_a_late_row_is_not_constant() -> None:
    """The first rows are tested first."""
    network, weights = lnn.LiftedNetwork.mlp([4, 3, 2], "fenchel_relu", loss="squared"), weights_of(4, 3, 2)
    weights[0].w[0], weights[0].b[0] = torch.eye(4)[0].double(), -50.0
    weights[0].b[1] = -1000.0
    x = torch.cat([X, X, X])
    x[500, 0] = 60.0
    assert redraw_constant_units(network, weights, weights_of(4, 3, 2), x, seed=0) == 1
    assert weights[0].b[0] == -50.0


def test_what_must_not_change_does_not() -> None:
    plain = lnn.LiftedNetwork.mlp([4, 6, 2], "fenchel_relu", loss="squared")

    def found(network: lnn.LiftedNetwork, free: list[tuple[bool, bool]] | None = None) -> int:
        weights = weights_of(4, 6, 2)
        weights[0].b[:] = -100.0
        weights[0].b[0] = 0.0
        return redraw_constant_units(network, weights, weights_of(4, 6, 2), X, 0, None, free)

    assert found(plain) == 5
    assert found(plain, [(True, True), (False, True)]) == 0
    assert found(plain.with_penalty("group")) == 0


def test_few_units_are_constant_and_more_passes_do_not_cost_training_accuracy() -> None:
    x = torch.randn(1500, 5, generator=GENERATOR)
    y = (torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).long()
    network = lnn.automatic(lnn.LiftedNetwork.mlp([5, 60, 2], "fenchel_relu"), x, y)

    def trained(passes: int) -> tuple[float, float]:
        fit = lnn.MiniBatch(passes=passes, learn_rho=True).run(network, x, y)
        states: Tensor = fit.network.propagate(fit.weights, x)[1]
        return fit.history[-1].score, float((states.amax(0) == states.amin(0)).double().mean())

    (short, _), (long, constant_fraction) = trained(10), trained(40)
    assert long > short - 0.005
    assert constant_fraction < 0.3
