"""Spectral steps of mini-batches, against singular values and autograd."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor

import liftednn as lnn
from liftednn.blocks.regressions import some_rows
from liftednn.data.sources import source_of
from liftednn.step import polar as polar_steps
from liftednn.step.polar import polar
from liftednn.training.batch import curvatures
from liftednn.training.choices import probes
from liftednn.training.descent import Descent
from liftednn.training.geometry import geometries_of
from liftednn.training.metric import Metric
from liftednn.training.run import Run
from liftednn.training.spectral import LEAST_SIZE, SPECTRAL_TRUST, SpectralMetric, spectral_trust

SHAPE = (2, 6, 6)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.arange(40) % 3
X, Y = draw(40, 72, seed=5), fn.one_hot(LABELS, 3).double()


def network(rho: float = 0.01) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.cnn(SHAPE, [4, "avgpool", ("dense", 5)], 3, activation="softplus", lam=1e6, rho=rho)


def descent_of(net: lnn.LiftedNetwork, momentum: float = 0.9) -> Descent:
    shapes = [layer.operator.weight_shape for layer in net.layers]
    weights = [lnn.Affine(draw(*s, seed=9 + i) / s[-1] ** 0.5, draw(s[-2], seed=i)) for i, s in enumerate(shapes)]
    geometries = geometries_of(net, net.layers, net.propagate(weights, X), 0.5, spectral=True)
    descent = Descent(net, weights, geometries, momentum)
    descent.refresh(descent.gradients(X, Y), Y, probes(Y, 0))
    return descent


def metric_of(rows: Tensor, outputs: int) -> SpectralMetric:
    layer = lnn.LiftedNetwork.mlp([rows.shape[1], outputs, 3], activation="softplus", rho=0.1).layers[0]
    metric = SpectralMetric(Metric.of(layer, rows, 0.5))
    metric.refresh([2.0])
    metric.limit(0.7)
    return metric


@pytest.mark.parametrize("outputs", [4, 9])
def test_a_spectral_step_is_nearly_the_steepest_of_those_that_move_outputs_by_the_same_in_every_direction(
    outputs: int,
) -> None:
    rows = draw(60, 6) @ draw(6, 6, seed=1) + 3.0
    metric, g, b = metric_of(rows, outputs), draw(outputs, 6, seed=2), draw(outputs, seed=3)
    metric.penalty.zero_()
    (move, shift), length = metric.direction(draw(outputs, 6, seed=4), [g], [b], 60)
    gram = torch.cov(rows.T, correction=0)
    damped = gram + 0.5 * gram.diagonal().mean() * torch.eye(6).double()
    values, vectors = torch.linalg.eigh(damped)
    root = vectors * values.sqrt()
    # In coordinates in which rows, damped, are white about their mean; the intercept there has inputs 1.
    mean = rows.mean(0)
    white = torch.cat([move @ root, (shift + move @ mean)[:, None]], 1) * length
    gradient = torch.cat([torch.linalg.solve(root, (g - torch.outer(b, mean)).T).T, b[:, None]], 1)
    u, s, v = torch.linalg.svd(gradient, full_matrices=False)
    size = math.sqrt(0.7 / len(s))
    inner = u.T @ white @ v.T / size
    assert bool(((inner.diagonal() > 0.6) & (inner.diagonal() < 1.3)).all())
    torch.testing.assert_close(inner - inner.diagonal().diag(), torch.zeros_like(inner), atol=1e-6, rtol=0)
    descent = float((g * move).sum() + (b * shift).sum()) * float(length)
    assert descent > 0.65 * size * float(s.sum())


def test_steps_of_rate_1_move_the_outputs_of_a_layer_by_their_trust() -> None:
    descent = descent_of(network(), momentum=0.0)
    before, batch = descent.values.clone(), descent.gradients(X, Y)
    descent.rate.fill_(1.0)
    old = [lnn.Affine(w.clone(), b.clone()) for w, b in descent.weights]
    for geometry in descent.geometries:
        if isinstance(geometry, SpectralMetric):
            geometry.penalty.zero_()
    descent.step(X, Y)
    assert bool((descent.values != before).any())
    for number in (0, 1):
        operator, xs = descent.network.layers[number].operator, batch.inputs[number]
        u, moved = operator.forward(xs, old[number]), operator.forward(xs, descent.weights[number])
        change = float(((moved - u).square().mean() / u.square().mean()).sqrt())
        assert 0.4 * SPECTRAL_TRUST < change < 1.3 * SPECTRAL_TRUST  # the damping makes steps shorter


def test_gradients_are_averaged_over_steps_with_nesterov() -> None:
    descent, batches = descent_of(network(), momentum=0.5), [(X[:20], Y[:20]), (X[20:], Y[20:])]
    at = next(place for place, layers in enumerate(descent.members) if tuple(layers) == (0,))
    descent.rate.fill_(1e-3)
    found = [descent.gradients(*batch).w_gradients[0].clone() for batch in batches[:1]]
    descent.step(*batches[0])
    found.append(descent.gradients(*batches[1]).w_gradients[0].clone())
    descent.step(*batches[1])
    torch.testing.assert_close(descent.velocities[at][0], 0.5 * found[0] + found[1])


def test_a_layer_without_a_gradient_stays_though_its_average_is_not_0() -> None:
    descent = descent_of(network(rho=0.0))
    descent.rate.fill_(0.1)
    descent.step(X, Y)
    descent.weights[-1].w.zero_()
    before = descent.weights[0].w.clone()
    descent.step(X, Y)
    torch.testing.assert_close(descent.weights[0].w, before, rtol=0, atol=0)


def spectral_metric(descent: Descent, number: int = 0) -> SpectralMetric:
    (metric,) = [each for each in descent.geometries if each.layer is descent.network.layers[number]]
    assert isinstance(metric, SpectralMetric)
    return metric


def moves_of(metric: SpectralMetric, w: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """With the penalty and without, from 60 rows."""
    ((whole, _), _), penalty = metric.direction(w, [g.clone()], [b], 60), metric.penalty.clone()
    metric.penalty.zero_()
    ((plain, _), _) = metric.direction(w, [g.clone()], [b], 60)
    metric.penalty.copy_(penalty)
    return whole, plain


def test_where_gradient_and_penalty_balance_a_step_does_not_descend() -> None:
    rows, w = draw(60, 6) @ draw(6, 6, seed=1) + 3.0, draw(4, 6, seed=4)
    metric, b = metric_of(rows, 4), torch.zeros(4).double()
    g = -60 * 0.2 * w  # minus the gradient of rho |w|^2, rho = 0.1, for 60 rows
    whole, plain = moves_of(metric, w, g, b)
    assert float((plain * g).sum()) > 0
    assert abs(float((whole * g).sum())) < 1e-9 * float((plain * g).sum())


def test_the_gradient_of_the_penalty_has_the_metric_and_the_mean_length_of_the_other() -> None:
    rows, w = draw(60, 6) @ draw(6, 6, seed=1) + 3.0, draw(4, 6, seed=4)
    metric, g, b = metric_of(rows, 4), 100 * draw(4, 6, seed=2), torch.zeros(4).double()
    whole, plain = moves_of(metric, w, g, b)
    gram = torch.cov(rows.T, correction=0)
    damped = gram + 0.5 * gram.diagonal().mean() * torch.eye(6).double()
    newton = torch.linalg.solve(
        damped, g.T
    ).T  # the step of a metric, of which the spectral one has the length along the gradient
    expected = (plain * g).sum() / (newton * g).sum() * torch.linalg.solve(damped, (60 * 0.2 * w).T).T
    torch.testing.assert_close(whole - plain, expected)


def test_the_penalty_moves_no_more_than_the_gradient() -> None:
    rows, w = draw(60, 6) @ draw(6, 6, seed=1), draw(4, 6, seed=4)
    metric, b = metric_of(rows, 4), torch.zeros(4).double()
    root = torch.linalg.inv(metric.root)
    for size in (1e-3, 1e-12, 0.0):
        whole, plain = moves_of(metric, w, size * draw(4, 6, seed=2), b)
        taken, moved = float(((whole - plain) @ root).norm()), float((plain @ root).norm())
        assert taken == pytest.approx(moved, abs=1e-12)


def test_early_refreshes_leave_the_penalty_out() -> None:
    descent = descent_of(network(rho=1e-3))
    assert float(spectral_metric(descent).penalty) == pytest.approx(2e-3 / 36)  # 36 positions
    descent.refresh(descent.gradients(X, Y), Y, probes(Y, 0), early=True)
    assert not spectral_metric(descent).penalty.any()
    assert spectral_metric(descent).root.any()


def test_a_layer_that_no_curvature_reaches_stays() -> None:
    metric = spectral_metric(descent_of(network()))
    metric.refresh([math.inf])
    w = draw(*metric.layer.operator.weight_shape)
    ((move, _), _) = metric.direction(w, [w.clone()], [torch.zeros(len(w)).double()], 40)
    assert not move.any()


def test_runs_of_few_steps_take_longer_ones() -> None:
    assert [spectral_trust(steps) for steps in (None, 10**6, 1000)] == [SPECTRAL_TRUST] * 3
    assert spectral_trust(90) == pytest.approx(0.1)
    assert spectral_trust(1, 1000) == spectral_trust(1) == 0.2
    # Twice the rows of a batch and half the steps: twice as long.
    assert spectral_trust(1600, 500) == pytest.approx(spectral_trust(400, 500) / 2)
    assert spectral_trust(1600, 500) > SPECTRAL_TRUST > 9 / 1600


@pytest.mark.parametrize(("passes", "size"), [(1, 40), (20, 4), (2, 25)])
def test_a_run_knows_its_steps_and_the_rows_of_a_batch(passes: int, size: int) -> None:
    run = Run(lnn.MiniBatch(passes=passes, batch_size=size), network(), source_of(X, LABELS))
    steps = passes * -(-40 // size)
    assert run.descent.spectral_trust == spectral_trust(steps, 40 * passes / steps)


def test_a_stream_of_unknown_length_has_steps_of_the_usual_size() -> None:
    y = torch.arange(40) % 3
    run = Run(lnn.MiniBatch(passes=1), network(), source_of((pair for pair in [(X, y), (X, y)]), None))
    assert run.descent.spectral_trust == SPECTRAL_TRUST


def test_outputs_of_0_count_as_a_fraction_of_the_inputs() -> None:
    descent = descent_of(network())
    descent.weights[0].w.zero_()
    descent.weights[0].b.zero_()
    batch = descent.gradients(X, Y)
    expected = 4 * SPECTRAL_TRUST**2 * LEAST_SIZE**2 * float(X.square().mean())
    assert descent._spectral_limit(0, batch, None) == pytest.approx(expected)


def test_hidden_layers_of_networks_with_convolutions_take_spectral_steps_where_they_can() -> None:
    def spectral(net: lnn.LiftedNetwork) -> list[bool]:
        run = Run(lnn.MiniBatch(passes=1, batch_size=20), net, source_of(X, LABELS))
        found = dict(zip(map(tuple, run.descent.members), run.descent.geometries, strict=True))
        return [found[number,].spectral for number in range(len(net.layers))]

    assert spectral(network()) == [True, True, False]
    assert spectral(network().with_penalty(["group:0.1", "l2", "l2"])) == [False, True, False]
    assert spectral(lnn.LiftedNetwork.mlp([72, 5, 5, 3], activation="softplus")) == [False, False, False]


def test_a_prox_is_that_of_its_own_layer_where_others_take_spectral_steps() -> None:
    shaped = lnn.LiftedNetwork.cnn(SHAPE, [4, ("conv", 3, 3)], 3, activation="softplus", lam=1e6)
    fit = lnn.MiniBatch(passes=2, batch_size=20).run(
        shaped.with_penalty(["l2", "group:100", "l2"]), X, torch.arange(40) % 3
    )
    assert [bool(w.any()) for w, _ in fit.weights] == [True, False, True]


def test_steps_are_spectral_where_only_the_last_layer_has_others() -> None:
    assert descent_of(network()).spectral
    assert not descent_of(network().with_penalty(["l1:0.1", "l2", "l2"])).spectral
    alone = lnn.LiftedNetwork.mlp([72, 3], activation="softplus")
    assert not descent_of(alone).spectral


def test_a_hidden_layer_that_shares_its_weights_with_the_last_one_takes_other_steps() -> None:
    dense, head = lnn.operators.Dense(72, 10), lnn.operators.Dense(10, 72)
    tied = lnn.LiftedNetwork(
        [
            lnn.Layer(lnn.operators.Conv2d(SHAPE, 2, 3, padding=1), lnn.activations.FenchelReLU()),
            lnn.Layer(dense, lnn.activations.FenchelReLU(), key="a"),
            lnn.Layer(head, lnn.losses.SquaredError(), key="a", transposed=True),
        ]
    )
    assert not Run(lnn.MiniBatch(passes=1), tied, source_of(X, X)).descent.spectral


def test_products_in_bfloat16_change_singular_values_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with matrix units; small matrices stay in float32."""
    large, small = draw(1, 130, 201).float(), draw(1, 20, 26).float()
    monkeypatch.setattr(polar_steps, "_has_tiles", lambda: False)
    exact, kept = polar(large), polar(small)
    monkeypatch.setattr(polar_steps, "_has_tiles", lambda: True)
    found = polar(large)
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    assert float((found - exact).norm() / exact.norm()) < 0.02
    assert torch.equal(polar(small), kept)
    assert float((polar(large.double()) - exact).norm() / exact.norm()) < 1e-4


def test_products_with_the_root_are_in_bfloat16_where_damping_bounds_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows share a strong direction, and the gradient has a low rank."""
    layer = lnn.LiftedNetwork.mlp([150, 140, 3], activation="softplus", rho=0.1).layers[0]
    rows = (draw(400, 150) + 3 * draw(400, 1, seed=1) @ draw(1, 150, seed=2)).float()
    w, g, b = draw(140, 150, seed=3).float(), (draw(140, 20, seed=4) @ draw(20, 150, seed=5)).float(), torch.zeros(140)
    metrics = [SpectralMetric(Metric.of(layer, rows, damping)) for damping in (3.0, 1e-3)]
    assert [metric.rounds for metric in metrics] == [True, False]
    for metric in metrics:
        metric.refresh([2.0])
        metric.limit(0.7)
        with monkeypatch.context() as patch:
            exact = metric.direction(w, [g.clone()], [b.clone()], 60)[0][0]
            patch.setattr(polar_steps, "_has_tiles", lambda: True)
            found = metric.direction(w, [g.clone()], [b.clone()], 60)[0][0]
            rounds, metric.rounds = metric.rounds, False
            by_polar = metric.direction(w, [g.clone()], [b.clone()], 60)[0][0]
        assert found.dtype == torch.float32
        cosines = [float(fn.cosine_similarity(each.reshape(-1), exact.reshape(-1), 0)) for each in (found, by_polar)]
        assert cosines[0] > cosines[1] - 0.01
        assert torch.equal(found, by_polar) != rounds


def test_where_all_hidden_steps_are_spectral_only_the_loss_has_its_curvature_measured() -> None:
    descent = descent_of(network())
    batch = descent.gradients(X, Y)
    assert descent.spectral
    expected = curvatures(descent.network, descent.weights, batch.preactivations, probes(Y, 0), None, Y)
    found = [float(metric.metric.curvature) for metric in descent.geometries if isinstance(metric, SpectralMetric)]
    assert found == [1, 1]
    assert descent.model.probe(descent.weights, batch, Y, None, None)[0] == [1.0, 1.0, expected[-1]]
    assert expected[0] != 1.0


@pytest.mark.parametrize("name", ["relu", "hard_tanh", "fenchel_relu"])
def test_a_convolution_that_nothing_reads_stays(name: str) -> None:
    """Jointly convex divergences have a gradient in u even there."""
    net = lnn.LiftedNetwork.cnn(SHAPE, [4], 3, activation=name, lam=10.0, rho=0.0)
    weights = [(draw(*layer.operator.weight_shape), draw(layer.operator.outputs, seed=1)) for layer in net.layers]
    weights[-1] = (torch.zeros_like(weights[-1][0]), torch.zeros_like(weights[-1][1]))
    fixed = [(None, None), weights[-1]]
    found = lnn.MiniBatch(passes=2, batch_size=20).run(net, X, Y.argmax(1), weights=weights, fixed=fixed)
    assert torch.equal(found.weights[0].w, weights[0][0])


def test_samples_without_weight_give_no_rows() -> None:
    operator = network().layers[0].operator
    few, counts = some_rows(operator, [X], torch.cat([torch.zeros(39), torch.full((1,), 2.0)]).double())
    assert counts is not None
    assert len(few) == len(counts) == operator.positions
    assert torch.equal(few, operator.rows([X[39:]]))
    none, zeros = some_rows(operator, [X], torch.zeros(40).double())
    assert zeros is not None
    assert len(none) == len(zeros) == 40 * operator.positions


def test_weights_between_passes_are_averages_over_steps_of_which_later_ones_count_more() -> None:
    """The weight of step i of n is C(i + 7, 8) / C(n + 8, 9) (Shamir and Zhang 2013, eta = 8)."""
    run = Run(lnn.MiniBatch(passes=3, batch_size=10), network(), source_of(X, LABELS))
    values: list[Tensor] = []
    for _ in run.passes(lambda: values.append(run.descent.values.clone())):
        last = run.planned == len(run.monitor.history)
        parts = [math.comb(number + 7, 8) / math.comb(len(values) + 8, 9) for number in range(1, len(values) + 1)]
        average = torch.stack([part * each for part, each in zip(parts, values, strict=True)]).sum(0)
        expected = run.coordinates.from_whitened(run.descent.views(values[-1] if last else average))
        for found, wanted in zip(run.unwhitened_weights(), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert not torch.allclose(average, values[-1])


def test_a_run_that_is_stopped_has_the_averages_and_one_rolled_back_the_last_good_weights() -> None:
    trainer = lnn.MiniBatch(passes=3, batch_size=10)
    fit = trainer.run(network(), X, LABELS, callback=lambda record: True)
    run = Run(trainer, network(), source_of(X, LABELS))
    next(run.passes())
    assert torch.equal(fit.weights[0].w, run.unwhitened_weights()[0].w)
    assert not torch.equal(fit.weights[0].w, run.coordinates.from_whitened(run.descent.weights)[0].w)
    run.descent.values.fill_(math.nan)
    run.descent.average.fill_(math.nan)
    run.roll_back_if_diverged()
    assert torch.equal(run.unwhitened_weights()[0].w, run.coordinates.from_whitened(run.descent.views(run.good))[0].w)


def test_averages_are_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    trainer, checkpoint = lnn.MiniBatch(passes=3, batch_size=10), lnn.Checkpoint(tmp_path / "run")
    given = {"validation": (X, LABELS)}
    trainer.run(network(), X, LABELS, **given, checkpoint=checkpoint, callback=lambda record: True)  # type: ignore[arg-type]
    resumed = trainer.run(network(), X, LABELS, **given, checkpoint=checkpoint)  # type: ignore[arg-type]
    whole = trainer.run(network(), X, LABELS, **given)  # type: ignore[arg-type]
    assert [record.validation_loss for record in resumed.history] == [
        record.validation_loss for record in whole.history
    ]


@pytest.mark.parametrize("penalty", [lnn.penalties.L2(0.01), lnn.penalties.GroupL2(0.01)])
def test_only_smooth_penalties_of_spectral_steps_have_averages(penalty: lnn.Penalty) -> None:
    """The average of sparse weights is not sparse."""
    net = lnn.LiftedNetwork([replace(layer, penalty=penalty) for layer in network().layers])
    run = Run(lnn.MiniBatch(passes=1), net, source_of(X, LABELS))
    assert run.descent.averaged == (penalty.ridge is not None)
    dense = lnn.LiftedNetwork.mlp([72, 5, 3], activation="softplus")
    assert not Run(lnn.MiniBatch(passes=1), dense, source_of(X, LABELS)).descent.averaged


def test_where_the_rate_does_not_fall_a_run_ends_with_the_averages() -> None:
    batches = [(X[at : at + 10], LABELS[at : at + 10]) for at in range(0, 40, 10)]
    for source, trainer in ((iter(batches), lnn.MiniBatch(passes=1)), (batches, lnn.MiniBatch(passes=3))):
        run = Run(trainer, network(), source_of(source, None))
        records = list(run.passes())
        assert (records[-1].rate == trainer.step) == (trainer.passes == 1)
        assert torch.equal(run.descent.average, run.descent.values) == (trainer.passes == 3)
