"""The descent: monotone at every block for every pair, training as claimed, errors for invalid arguments, determinism."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import losses
from liftednn.activations import fenchel
from liftednn.training.result import Record


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


X = draw(60, 4)
LABELS = (X[:, 0] * X[:, 1] > 0).long() + (X[:, 2] > 0.5).long()
REAL = torch.sin(2 * X[:, :2]) * X[:, 2:]
EXACT = [name for name in act.__all__ if not getattr(act, name)().why_not_exact]
LOSSES = {
    "SquaredError": losses.SquaredError(),
    "SoftmaxCrossEntropy": losses.SoftmaxCrossEntropy(),
    "Split(SquaredError, ReLU)": losses.Split(),
    "Split(CrossEntropy, Simplex)": losses.Split(losses.CrossEntropy(), act.Simplex(), 2.0),
}


def problem(loss: lnn.Loss, activation: lnn.Activation | str, hidden: list[int]) -> tuple[lnn.LiftedNetwork, Tensor]:
    y = LABELS if not loss.decode(torch.zeros(1, 3)).is_floating_point() else REAL
    outputs = 3 if y.ndim == 1 else 2
    return lnn.LiftedNetwork.mlp([4, *hidden, outputs], activation=activation, loss=loss, lam=0.7, rho=1e-3), y


def rises(
    network: lnn.LiftedNetwork, y: Tensor, bcd: lnn.BCD, x: Tensor, passes: int
) -> tuple[float, dict[str, float]]:
    """The largest relative rise of the objective over all blocks, and the last residual of each block."""
    state = bcd.init(network, x, y)
    before, worst, kkt = network.objective(state.weights, state.states), -np.inf, {}
    for _ in range(passes):
        for block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert np.isfinite(after)
            worst, before, kkt[block.name] = max(worst, (after - before) / abs(before)), after, block.kkt
    return worst, kkt


@pytest.mark.parametrize(("name", "loss"), list(zip(EXACT, itertools.cycle(LOSSES), strict=False)))
@pytest.mark.thin(4)
def test_the_objective_rises_at_no_block(name: str, loss: str) -> None:
    network, y = problem(LOSSES[loss], getattr(act, name)(), [6])
    worst, kkt = rises(network, y[:40], lnn.BCD(block_tol=1e-4, block_iter=400), X[:40], passes=2)
    assert worst <= 1e-6
    assert max(kkt.values()) <= 1e-4


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.thin(12)
def test_the_objective_rises_at_no_block_in_float32_with_two_hidden_layers(name: str) -> None:
    network, y = problem(losses.SoftmaxCrossEntropy(), getattr(act, name)(), [6, 5])
    worst, _ = rises(network, y[:30], lnn.BCD(block_tol=1e-3, block_iter=8), X[:30].float(), passes=2)
    assert worst <= 1e-6


@pytest.mark.parametrize("norm", ["l1"])
@pytest.mark.slow
def test_variants_descend_too(norm: str) -> None:
    network, y = problem(losses.SquaredError(), act.ReLU(norm), [6])  # type: ignore[arg-type]
    worst, kkt = rises(network, y, lnn.BCD(block_tol=1e-4, block_iter=400), X, passes=2)
    assert worst <= 1e-6
    assert max(kkt.values()) <= 1e-4


@pytest.mark.parametrize("penalty", [getattr(lnn.penalties, name)() for name in lnn.penalties.__all__], ids=repr)
@pytest.mark.thin(4)
def test_every_penalty_descends(penalty: lnn.Penalty) -> None:
    dense = lnn.operators.Dense
    network = lnn.LiftedNetwork(
        [
            lnn.Layer(dense(4, 6), act.FenchelReLU(), penalty),
            lnn.Layer(dense(6, 3), losses.SoftmaxCrossEntropy(), penalty),
        ]
    )
    bcd = lnn.BCD(block_tol=1e-3, block_iter=50)
    state = bcd.init(network, X[:30], LABELS[:30])
    for _ in bcd.blocks(network, state):  # the first W-steps bring the random weights into the penalty's domain
        pass
    before = network.objective(state.weights, state.states)
    assert before < torch.inf
    for _ in range(2):
        for _block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert after <= before * (1 + 1e-6)
            before = after


@pytest.mark.parametrize("name", fenchel.__all__)
@pytest.mark.slow
def test_fenchel_activations_learn_what_is_not_linear(name: str) -> None:
    x = 4 * torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
    y = (x[:, 0] * x[:, 1] > 0).long()
    linear = lnn.BCD(block_tol=1e-8).run(lnn.LiftedNetwork.mlp([2, 2], rho=1e-4), x, y)
    network = lnn.LiftedNetwork.mlp([2, 4, 2], activation=getattr(act, name)(), lam=0.3, rho=1e-4)
    history = lnn.BCD(passes=4, tol=0, block_iter=20).run(network, x, y).history
    assert history[-1].loss < linear.history[-1].loss
    assert history[-1].loss < history[0].loss


def test_without_hidden_layer_it_is_ridge_or_logistic_regression() -> None:
    solution = lnn.BCD(block_tol=1e-9).run(lnn.LiftedNetwork.mlp([4, 2], loss="squared", rho=0.1), X, REAL)
    np.testing.assert_allclose(
        solution.weights[0].w.numpy(), Ridge(alpha=0.1 * 60).fit(X.numpy(), REAL.numpy()).coef_, rtol=1e-8
    )
    solution = lnn.BCD(block_tol=1e-9, block_iter=5000).run(lnn.LiftedNetwork.mlp([4, 3], rho=0.01), X, LABELS)
    oracle = LogisticRegression(C=1 / (2 * 0.01 * 60), tol=1e-12, max_iter=10000).fit(X.numpy(), LABELS.numpy())
    np.testing.assert_allclose(solution.weights[0].w.numpy(), oracle.coef_, atol=1e-5)


def test_joint_and_cyclic_descents_agree_where_both_are_allowed() -> None:
    network, y = problem(losses.SquaredError(), "relu", [6, 5])
    worst, _ = rises(network, y, lnn.BCD(joint=True, block_tol=1e-6, block_iter=5000), X, passes=3)
    assert worst <= 1e-6
    joint = lnn.BCD(passes=1, joint=True, block_tol=1e-8, block_iter=20000).run(network, X, y).history[-1].objective
    cyclic = lnn.BCD(passes=1, block_tol=1e-8, block_iter=20000).run(network, X, y).history[-1].objective
    assert joint <= cyclic * (1 + 1e-6)


@pytest.mark.parametrize("activation", [act.LeakyReLU(0.2), act.MaxPool(2), act.ReLU("l1")], ids=repr)
@pytest.mark.thin(3)
def test_joint_descent_without_smoothness_rises_at_no_block(activation: lnn.Activation) -> None:
    network, y = problem(losses.SquaredError(), activation, [5, 4])
    worst, kkt = rises(network, y[:15], lnn.BCD(joint=True, block_tol=1e-4, block_iter=200), X[:15], passes=1)
    assert worst <= 1e-6
    assert kkt["x"] <= 1e-4


def test_history_starts_with_random_features_and_a_fitted_head() -> None:
    network, y = problem(losses.SoftmaxCrossEntropy(), "relu", [6])
    solution = lnn.BCD(passes=3, tol=0).run(network, X, y)
    first, last = solution.history[0], solution.history[-1]
    assert [record.number for record in solution.history] == [0, 1, 2, 3]
    assert first.gaps == (0.0,)
    assert list(first.kkt) == ["w1"]
    assert set(last.kkt) == {"x1", "w0", "w1"}
    assert max(last.kkt.values()) <= 1e-3
    assert last.objective == pytest.approx(network.objective(solution.weights, solution.states), rel=1e-12)
    assert last.objective == pytest.approx(sum(last.terms) + sum(last.penalties))
    scores = lnn.predict.feedforward(network, solution.weights, X)
    assert last.score == float((network.loss.decode(scores) == y).double().mean())
    assert last.seconds > first.seconds > 0


def test_same_seed_same_result_other_seed_another() -> None:
    network, y = problem(losses.SoftmaxCrossEntropy(), "fenchel_relu", [6])
    one, two, other = (lnn.BCD(passes=2, seed=seed).run(network, X, y) for seed in (1, 1, 2))
    assert all(torch.equal(a.w, b.w) and torch.equal(a.b, b.b) for a, b in zip(one.weights, two.weights, strict=True))
    assert not torch.equal(one.weights[0].w, other.weights[0].w)


def test_given_weights_are_where_it_starts() -> None:
    network, y = problem(losses.SquaredError(), "relu", [6])
    weights = [(draw(6, 4), draw(6)), (draw(2, 6), draw(2))]
    solution = lnn.BCD(passes=0).run(network, X, y, weights=weights)
    assert torch.equal(solution.weights[0].w, weights[0][0])
    assert solution.states is not None
    torch.testing.assert_close(solution.states[1], (X @ weights[0][0].T + weights[0][1]).relu())


def test_arrays_labels_and_integer_pixels_are_taken_as_they_come() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3])
    pixels = np.arange(80, dtype=np.uint8).reshape(20, 4)
    solution = lnn.BCD(passes=1).run(network, pixels, np.arange(20) % 3)
    assert solution.weights[0].w.dtype == torch.float32


def test_it_says_how_it_ended() -> None:
    network, y = problem(losses.SquaredError(), "relu", [6])
    assert lnn.BCD(passes=2, tol=0).run(network, X, y).result.startswith("finished: all 2 passes done")
    converged = lnn.BCD(passes=500, tol=1e-2).run(network, X, y)
    assert converged.status == "converged"
    assert converged.result.startswith("converged: pass")
    stopped = lnn.BCD(passes=9).run(network, X, y, callback=lambda record: record.number == 1)
    assert (stopped.status, len(stopped.history)) == ("stopped", 2)


def test_interrupting_returns_the_best_so_far() -> None:
    network, y = problem(losses.SquaredError(), "relu", [6])

    def interrupt(record: Record) -> None:
        if record.number == 2:
            raise KeyboardInterrupt

    solution = lnn.BCD(passes=9, tol=0).run(network, X, y, callback=interrupt)
    assert solution.status == "stopped"
    assert "interrupted after 2 complete passes" in solution.result
    assert network.objective(solution.weights, solution.states) == pytest.approx(
        min(r.objective for r in solution.history)
    )


def poisoned(value: float) -> Tensor:
    x = X.clone()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (poisoned(float("nan")), LABELS, "x holds NaN or infinity"),
        (poisoned(float("inf")), LABELS, "x holds NaN or infinity"),
        (X[:, :3], LABELS, r"x has shape \(60, 3\), but the network takes rows of 4"),
        (X[:0], LABELS[:0], "with n >= 1"),
        (X, LABELS[:50], "x has 60 rows and y has 50"),
        (X, LABELS + 1, r"labels must lie in 0 .. 2, the network's 3 outputs, got 1 .. 3"),
        (X, LABELS - 1, "got -1 .. 1"),
        (X, LABELS + 0.5, "labels must be integers"),
        (X, torch.full((60,), float("nan")), "y holds NaN or infinity"),
        (X, torch.zeros(60, 2), "y has 2 columns, but the network has 3 outputs"),
    ],
)
def test_bad_data_is_refused_at_the_door(x: Tensor, y: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD().run(lnn.LiftedNetwork.mlp([4, 6, 3]), x, y)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([(draw(6, 4), draw(6))], "has 2 layers, weights were given for 1"),
        ([(draw(5, 4), draw(6)), (draw(3, 6), draw(3))], r"layer 0 takes w \(6, 4\) and b \(6,\), got \(5, 4\)"),
        ([(draw(6, 4), draw(6)), (draw(3, 6) / 0, draw(3))], "weights of layer 1 hold NaN or infinity"),
    ],
)
def test_bad_weights_are_refused(weights: list, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD().run(lnn.LiftedNetwork.mlp([4, 6, 3]), X, LABELS, weights=weights)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"passes": -1}, "passes"),
        ({"tol": -1.0}, "tol"),
        ({"block_tol": 0.0}, "block_tol"),
        ({"block_iter": 0}, "block_iter"),
    ],
)
def test_bad_options_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD(**options)


@pytest.mark.parametrize(
    ("activation", "loss", "sentence"),
    [
        (act.MaxPool(2, form="paper"), losses.SquaredError(), "without lower bound"),
        (act.ReLU(), losses.CrossEntropy(), "no lower bound"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(activation: lnn.Activation, loss: lnn.Loss, sentence: str) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3], activation=activation, loss=loss)
    with pytest.raises(ValueError, match=sentence):
        lnn.BCD().run(network, X, LABELS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["relu", "fenchel_relu", "hardtanh", "sigmoid"])
def test_cuda_gives_what_the_cpu_gives(name: str) -> None:
    network, y = problem(losses.SoftmaxCrossEntropy(), name, [6, 5])
    bcd = lnn.BCD(passes=2, tol=0, block_tol=1e-8, block_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu, gpu = (bcd.run(network, X.to(device), y.to(device)) for device in ("cpu", "cuda"))
    assert gpu.history[-1].objective == pytest.approx(cpu.history[-1].objective, rel=1e-5)


def test_units_of_a_feature_do_not_matter_in_float32() -> None:
    x = draw(500, 30, dtype=torch.float32)
    x[:, 0] *= 600
    solution = lnn.BCD().run(lnn.LiftedNetwork.mlp([30, 1], loss="squared"), x, x[:, 1])
    assert solution.history[-1].score > 0.999


@pytest.mark.parametrize(
    "penalty", [lnn.penalties.NonNegative(), lnn.penalties.Mask(torch.ones(2, 50).bool())], ids=["w>=0", "mask"]
)
def test_constrained_weights_on_fewer_rows_than_columns_in_float32(penalty: lnn.Penalty) -> None:
    network = lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(50, 2), losses.SquaredError(), penalty)])
    x = draw(20, 50, dtype=torch.float32)
    history = lnn.BCD(passes=2).run(network, x, x[:, :2].abs()).history
    assert np.isfinite(history[-1].objective)


def test_a_unit_without_weights_does_no_harm() -> None:
    network = lnn.LiftedNetwork.mlp([4, 5, 4, 3], activation="leaky_relu")
    weights = [(draw(5, 4), draw(5)), (draw(4, 5), draw(4)), (draw(3, 4), draw(3))]
    weights[1][0][2] = 0
    assert np.isfinite(lnn.BCD(passes=1).run(network, X, LABELS, weights=weights).history[-1].objective)


def test_a_bounded_function_may_saturate() -> None:
    network = lnn.LiftedNetwork.mlp([4, 8, 3], activation=act.Monotone(torch.tanh, torch.atanh))
    history = lnn.BCD(passes=1).run(network, 20 * X.float(), LABELS).history
    assert np.isfinite(history[-1].objective)


def test_a_bias_where_there_is_none_is_refused() -> None:
    network = lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(4, 2, bias=False), losses.SquaredError())])
    with pytest.raises(ValueError, match="layer 0 has no bias"):
        lnn.BCD().run(network, X, REAL, weights=[(draw(2, 4), draw(2))])


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Mask does not fit weights of shape \(2, 4\)"):
        lnn.Layer(lnn.operators.Dense(4, 2), losses.SquaredError(), lnn.penalties.Mask(torch.ones(4, 2).bool()))


@pytest.mark.parametrize(
    ("activation", "per"), [(act.FenchelClip(-5.0, 5.0), "layer"), (act.FenchelHardTanh(), "unit")]
)
def test_rows_that_do_not_count_stay_inside_learned_bounds(activation: lnn.Activation, per: Any) -> None:
    counts = torch.ones(len(X), dtype=X.dtype)
    counts[::2] = 0
    network = lnn.LiftedNetwork.mlp([4, 6, 2], activation, "squared")
    fit = lnn.BCD(passes=3, tol=0.0, learn_activation=per).run(network, X, REAL, sample_weight=counts)
    objectives = [record.objective for record in fit.history]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(objectives))


def test_a_ridge_that_is_small_beside_rounding_does_not_raise_the_objective() -> None:
    x, y = torch.rand(3, 18, generator=torch.Generator().manual_seed(0)) * 1e4, draw(3, 2).float()
    network = lnn.LiftedNetwork.mlp([18, 2], loss="squared", rho=1e-8)
    fit = lnn.BCD(passes=3, tol=0.0).run(network, x, y, weights=[(torch.zeros(2, 18), torch.zeros(2))])
    assert fit.history[-1].objective < 0.2 * fit.history[0].objective


@pytest.mark.slow
def test_very_different_lam_around_a_capped_layer() -> None:
    layers = [
        lnn.Layer(lnn.operators.Dense(4, 6), act.ReLU(), lam=1e-4),
        lnn.Layer(lnn.operators.Dense(6, 5), act.LeakyReLU(0.1), lam=1e4),
        lnn.Layer(lnn.operators.Dense(5, 2), losses.SquaredError()),
    ]
    fit = lnn.BCD(passes=2).run(lnn.LiftedNetwork(layers), X.float(), REAL.float())
    assert np.isfinite(fit.history[-1].objective)


def test_the_result_says_what_was_done() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 2], "relu", "squared")
    assert lnn.BCD(passes=0).run(network, X, REAL).result == "finished: all 0 passes done"
    rough = lnn.BCD(passes=1, tol=0.0, block_tol=1e-9, block_iter=1).run(
        network.with_penalty(lnn.penalties.L1(0.1)), X, REAL
    )
    assert "ended at a KKT residual of" in rough.result
