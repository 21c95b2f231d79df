"""Mini-batch steps of layers with uncertain rows: each direction is the gradient of the robust objective, as autograd finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.activations import FenchelReLU, Identity
from liftednn.base import Activation, Loss, Uncertainty
from liftednn.losses import SoftmaxCrossEntropy, SquaredError
from liftednn.moments import Moments
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.penalties import L2
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.box import BoxTerm
from liftednn.robust.naming import parse
from liftednn.robust.worst_case import WorstCase
from liftednn.training.checkpoint import Checkpoint
from liftednn.training.choices import with_input_uncertainty
from liftednn.training.descent import Descent
from liftednn.training.metric import Metric
from liftednn.training.whitening import Coordinates

KINDS: list[Uncertainty] = [Noise(torch.linspace(0.1, 0.5, 4)), FrobeniusBall(0.3), BoxBall(0.1)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def begun(network: LiftedNetwork, x: Tensor, y: Tensor) -> Descent:
    """A descent from random weights, its geometry refreshed once."""
    shapes = [layer.operator.weight_shape for layer in network.layers]
    weights = [lnn.Affine(draw(*s, seed=10 + i), draw(s[0], seed=20 + i)) for i, s in enumerate(shapes)]
    states = network.propagate(weights, x)
    metrics = [Metric.of(layer, z, 0.1) for layer, z in zip(network.layers, states, strict=True)]
    descent = Descent(network, weights, metrics, 0.9)
    descent.refresh(descent.gradients(x, y), y, torch.ones_like(y)[None])
    return descent


def gradient(descent: Descent, number: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer's step is a preconditioned form of."""
    batch, weights = descent.gradients(x, y), descent.weights[number]
    w = batch.w_gradients[number] / len(x)
    return w + 2 * (descent.network.layers[number].penalty.ridge or 0.0) * weights.w, batch.b_gradients[number] / len(x)


@pytest.mark.parametrize("loss", [SquaredError(), SoftmaxCrossEntropy()], ids=["squared", "softmax"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
def test_without_hidden_layers_the_direction_is_the_gradient_of_the_objective(kind: Uncertainty, loss: Loss) -> None:
    x = draw(30, 4)
    y = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    network = LiftedNetwork([Layer(Dense(4, 3), loss, L2(0.01), 0.7, kind)])
    descent = begun(network, x, y)
    term = descent.terms[0]
    if isinstance(term, BoxTerm):
        term.near.zero_()
    w, b = (part.clone().requires_grad_() for part in descent.weights[0])
    objective(network.layers[0], w, b, x, y).backward()
    found = gradient(descent, 0, x, y)
    torch.testing.assert_close(found[0], w.grad, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[1], b.grad, rtol=1e-6, atol=1e-8)
    assert float(objective(network.layers[0], w, b, x, y).detach()) == pytest.approx(
        network.objective([descent.weights[0]], [x, y])
    )


def objective(layer: Layer, w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The layer's term and its penalty, in operations that autograd follows."""
    kind, c, u = layer.uncertainty, layer.divergence.curvature, x @ w.T + b
    mean, shrunk = layer.divergence.value(u, y).mean(), (layer.penalty.ridge or 0.0) * w.square().sum()
    if isinstance(kind, Noise):
        return layer.lam * (mean + c / 2 * torch.trace(w @ kind.covariance(4, w.detach()) @ w.T)) + shrunk
    if isinstance(kind, FrobeniusBall):
        return layer.lam * (mean.sqrt() + (c / 2) ** 0.5 * kind.eps * w.norm()).square() + shrunk
    assert isinstance(kind, BoxBall)
    radius = w.abs().sum(1) * kind.eps
    if isinstance(layer.divergence, SquaredError):
        return layer.lam * ((u - y).abs() + radius).square().sum(1).mean() + shrunk
    return layer.lam * layer.divergence.value(u + (1 - 2 * y) * radius, y).mean() + shrunk


@pytest.mark.parametrize("activation", [Identity(), FenchelReLU()], ids=lambda a: type(a).__name__)
def test_the_x_step_of_a_hidden_layer_in_a_box_minimises_over_its_state(activation: Activation) -> None:
    """E(u, r) = min_z lam worst(u, z; r) + <g, z>: the returned gradients are dE/du and dE/dr, away from the kinks of phi."""
    u, g = 3 + draw(40, 3), 2 * draw(40, 3, seed=1)
    u[::2] -= 6  # as far off on the side where a ReLU is 0
    layer = Layer(Dense(3, 3), activation, L2(0.0), 2.0, BoxBall(0.2))
    weights = lnn.Affine(draw(3, 3, seed=2), draw(3, seed=3))
    network = LiftedNetwork([layer, Layer(Dense(3, 1), SquaredError())])
    descent = begun(network, draw(40, 3), draw(40, 1))
    term = descent.terms[0]
    assert term is not None
    kind = layer.uncertainty
    assert isinstance(kind, BoxBall)
    radius = kind.radius(weights.w)
    _, u_gradient, radius_gradient = term.x_step(weights.w, u, g / 2)
    assert radius_gradient is not None
    away = ((u - radius).abs() > 0.5) & ((u + radius).abs() > 0.5) & ((u - radius) * (u + radius) > 0)

    def energy(u: Tensor, radius: Tensor) -> Tensor:
        # Tilted by g, the worst of both ends has its minimum at an end's own, or where both are equally bad.
        worst = WorstCase(activation, radius)
        z = worst._lowest(
            activation.argmin(u - radius, g / 2), activation.argmin(u + radius, g / 2), lambda z: worst._tilt(u, z)
        )
        return 2 * torch.maximum(*worst.ends(u, z)) + g * z

    step = 1e-5
    slope_u = (energy(u + step, radius) - energy(u - step, radius)) / (2 * step)
    slope_r = (energy(u, radius + step) - energy(u, radius - step)) / (2 * step)
    torch.testing.assert_close(u_gradient[away], slope_u[away], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(radius_gradient[away], slope_r[away], rtol=1e-3, atol=1e-3)
    assert int(away.sum()) > 40


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: type(k).__name__)
def test_whitened_inputs_have_the_same_robust_objective_and_gradient(kind: Uncertainty) -> None:
    x, y = draw(50, 4) * torch.tensor([1.0, 3.0, 0.2, 1.0]), draw(50, 2, seed=1)
    network = LiftedNetwork([Layer(Dense(4, 2), SquaredError(), L2(0.0), uncertainty=kind)])
    there = Coordinates.of(network, x, x[:, :1], Moments.of(x, x[:, :0]), 0.1, 1.0)
    assert there.whitening is not None
    weights = [lnn.Affine(draw(2, 4, seed=2), draw(2, seed=3))]
    inner = there.to_whitened(weights)
    white = there.whiten(x)
    assert there.network.objective(inner, [white, y]) == pytest.approx(network.objective(weights, [x, y]))
    descents = [
        Descent(net, w, [Metric.of(net.layers[0], rows, 0.1)], 0.9)
        for net, w, rows in ((network, weights, x), (there.network, inner, white))
    ]
    found = []
    for descent, rows in zip(descents, (x, white), strict=True):
        term, step = descent.terms[0], descent.gradients(rows, y).x_step
        assert term is not None
        assert step is not None
        term.update(descent.weights[0].w, step.preactivations[0], y, step.radius_gradients[0], None)
        again = descent.gradients(rows, y).x_step
        assert again is not None
        found.append(term.w_gradient(descent.weights[0].w, again.radius_gradients[0]))
    plain, carried = found
    torch.testing.assert_close(plain @ (there.whitening.basis * there.whitening.scale), carried, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [Noise(0.5), FrobeniusBall(0.5), BoxBall(0.1)], ids=lambda k: type(k).__name__)
def test_mini_batches_come_near_the_full_batch_minimum(kind: Uncertainty) -> None:
    x = draw(400, 4).float()
    y = (2 * x[:, :1] - x[:, 1:2]) + 0.1 * draw(400, 1, seed=1).float()
    network = LiftedNetwork([Layer(Dense(4, 1), SquaredError(), L2(1e-3), uncertainty=kind)])
    least = lnn.BCD(passes=3).run(network, x, y)
    fit = lnn.MiniBatch(passes=60, batch_size=100).run(network, x, y)
    plain = lnn.MiniBatch(passes=60, batch_size=100).run(
        LiftedNetwork([replace(network.layers[0], uncertainty=None)]), x, y
    )
    best = least.history[-1].objective
    assert network.objective(fit.weights, [x, y]) <= best * 1.02
    assert network.objective(plain.weights, [x, y]) > network.objective(fit.weights, [x, y])


def test_the_uncertainty_is_scaled_to_its_weight_at_the_loss() -> None:
    network = LiftedNetwork.mlp([4, 3, 2], "fenchel_relu")
    first = with_input_uncertainty(network, Noise(0.5)).layers[0].uncertainty
    assert isinstance(first, Noise)
    assert first.sigma == pytest.approx(0.05)
    bare = with_input_uncertainty(LiftedNetwork.mlp([4, 2]), Noise(0.5)).layers[0].uncertainty
    assert isinstance(bare, Noise)
    assert bare.sigma == 0.5
    assert with_input_uncertainty(network, None) is network


@pytest.mark.parametrize("words", ["noise:0.3", "ball:0.5", "box:0.05"])
def test_a_robust_run_resumes_from_a_checkpoint(words: str, tmp_path: Path) -> None:
    x, y = draw(200, 4).float(), torch.arange(200) % 3
    network = with_input_uncertainty(LiftedNetwork.mlp([4, 5, 3], "fenchel_relu"), parse(words))
    trainer = lnn.MiniBatch(passes=3, batch_size=20)
    whole = trainer.run(network, x, y)
    path = tmp_path / "run.safetensors"
    trainer.run(network, x, y, callback=lambda record: record.number == 1, checkpoint=Checkpoint(path))
    resumed = trainer.run(network, x, y, checkpoint=Checkpoint(path))
    for a, b in zip(whole.weights, resumed.weights, strict=True):
        torch.testing.assert_close(a.w, b.w)
