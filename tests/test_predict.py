"""The two prediction rules; the lifted one against cvxpy and against what theory says of it."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import fenchel


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: lnn.LiftedNetwork) -> list[lnn.Affine]:
    shapes = [layer.operator.weight_shape for layer in network.layers]
    return [lnn.Affine(draw(*s, seed=i), draw(s[0], seed=20 + i)) for i, s in enumerate(shapes)]


def test_feedforward_is_the_torch_module() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3])
    weights, x = weights_of(network), draw(9, 4, seed=3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).double()
    with torch.no_grad():
        for place, part in zip((0, 2), weights, strict=True):
            module[place].load_state_dict({"weight": part.w, "bias": part.b})
        torch.testing.assert_close(lnn.predict.feedforward(network, weights, x), module(x))
    torch.testing.assert_close(lnn.predict.feedforward(network, weights, x.numpy()), network.scores(weights, x))


@pytest.mark.parametrize("name", fenchel.__all__)
def test_for_real_responses_a_fenchel_network_predicts_as_it_feeds_forward(name: str) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 5, 2], activation=getattr(fenchel, name)(), loss="squared", lam=[0.5, 2.0])
    weights, x = weights_of(network), draw(9, 4, seed=3)
    torch.testing.assert_close(
        lnn.predict.lifted(network, weights, x), network.scores(weights, x), atol=1e-3, rtol=1e-3
    )


def test_with_one_hidden_layer_and_real_responses_the_rules_agree() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 2], activation="relu", loss="squared")
    weights, x = weights_of(network), draw(9, 4, seed=3)
    torch.testing.assert_close(lnn.predict.lifted(network, weights, x), network.scores(weights, x))


@pytest.mark.parametrize("hidden", [[5], [5, 4]])
def test_classes_by_smallest_optimal_energy_against_a_conic_solver(hidden: list[int]) -> None:
    lams = [0.7, 1.3][: len(hidden)]
    network = lnn.LiftedNetwork.mlp([4, *hidden, 3], activation="relu", lam=lams)
    weights, x = weights_of(network), draw(3, 4, seed=3)
    scores = lnn.predict.lifted(network, weights, x, tol=1e-8).numpy()
    for row, found in zip(x.numpy(), scores, strict=True):
        for label in range(3):
            states, energy, before = [cp.Variable(p, nonneg=True) for p in hidden], 0, row
            for state, lam, (w, b) in zip(states, lams, weights, strict=False):
                energy, before = energy + lam * cp.sum_squares(state - w.numpy() @ before - b.numpy()), state
            u = weights[-1].w.numpy() @ before + weights[-1].b.numpy()
            goal = cp.Problem(cp.Minimize(energy + cp.log_sum_exp(u) - u[label]))
            goal.solve(solver=cp.CLARABEL)
            assert -found[label] == pytest.approx(goal.value, rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_the_lifted_energy_of_each_class_is_below_that_of_the_recursion() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 5, 3], activation="fenchel_relu")
    weights, x = weights_of(network), draw(3, 4, seed=3)
    energies = -lnn.predict.lifted(network, weights, x)
    for label in range(3):
        y = torch.full((3,), label)
        forward = torch.nn.functional.cross_entropy(network.scores(weights, x), y, reduction="none")
        assert bool((energies[:, label] <= forward + 1e-9).all())
        assert bool((energies[:, label] >= -1e-9).all())


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3])
    weights, x = weights_of(network), draw(9, 4, seed=3)
    whole = lnn.predict.lifted(network, weights, x)
    monkeypatch.setattr("liftednn.predict._ROWS", 2)
    np.testing.assert_allclose(lnn.predict.lifted(network, weights, x).numpy(), whole.numpy(), atol=1e-6)


@pytest.mark.parametrize("rule", [lnn.predict.feedforward, lnn.predict.lifted])
def test_bad_rows_are_refused(rule) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3])
    weights = weights_of(network)
    with pytest.raises(ValueError, match=r"x has shape \(9, 5\), but the network takes rows of 4"):
        rule(network, weights, draw(9, 5))
    with pytest.raises(ValueError, match="x holds NaN or infinity"):
        rule(network, weights, draw(9, 4) / 0)


def test_a_split_loss_leaves_its_activation_behind() -> None:
    network = lnn.LiftedNetwork.mlp([1, 1, 1], activation="relu", loss=lnn.losses.Split())
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    weights = [lnn.Affine(one, zero), lnn.Affine(one, zero - 3)]
    score = lnn.predict.lifted(
        network, weights, one, tol=1e-10
    )  # min over z >= 0 of (1 - z)^2 + (z - 3)_-^2 is at z = 2
    assert float(score) == pytest.approx(-1.0, abs=1e-6)


def test_deep_leaky_classes_against_a_conic_solver() -> None:
    network = lnn.LiftedNetwork.mlp([3, 4, 4, 2], activation=lnn.activations.LeakyReLU(0.2))
    weights, x = weights_of(network), draw(2, 3, seed=3)
    scores = lnn.predict.lifted(network, weights, x, tol=1e-7).numpy()
    (w0, b0), (w1, b1), (w2, b2) = [(w.numpy(), b.numpy()) for w, b in weights]
    for row, found in zip(x.numpy(), scores, strict=True):
        for label in range(2):
            z1, z2 = cp.Variable(4), cp.Variable(4)
            u0, u1, u2 = w0 @ row + b0, w1 @ z1 + b1, w2 @ z2 + b2
            energy = cp.sum_squares(z1 - u0) + cp.sum_squares(z2 - u1) + cp.log_sum_exp(u2) - u2[label]
            goal = cp.Problem(cp.Minimize(energy), [z1 >= 0.2 * u0, z2 >= 0.2 * u1])
            goal.solve(solver=cp.CLARABEL)
            assert -found[label] == pytest.approx(goal.value, rel=1e-4)
