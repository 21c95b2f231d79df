"""One step on a batch, against autograd, brute force and the full-batch blocks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.blocks import Design, update_weights
from liftednn.network import LiftedNetwork, Weights
from liftednn.runtime.graphs import InOrder
from liftednn.training.batch import curvatures, recursion, why_not_minibatch, x_step
from liftednn.training.descent import Descent, refresh_due
from liftednn.training.geometry import geometries_of
from liftednn.training.metric import Metric
from liftednn.training.model import BatchGradients


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = draw(40, 5), torch.nn.functional.one_hot(torch.arange(40) % 3, 3).double()


def setup(
    lam: float, activation: str | lnn.Activation = "softplus", hidden: tuple[int, ...] = (7, 6)
) -> tuple[LiftedNetwork, list[lnn.Affine]]:
    network = LiftedNetwork.mlp([5, *hidden, 3], activation=activation, lam=lam, rho=0.01)
    shapes = [layer.operator.weight_shape for layer in network.layers]
    return network, [lnn.Affine(draw(*s, seed=9 + i) / s[1] ** 0.5, draw(s[0], seed=i)) for i, s in enumerate(shapes)]


def autograd_gradients(network: LiftedNetwork, weights: list[lnn.Affine]) -> list[Tensor]:
    """d loss / d u of every layer, by back-propagation."""
    _, u = recursion(network, weights, X)
    shifts = [torch.zeros_like(part, requires_grad=True) for part in u]
    with torch.enable_grad():
        states = [X]
        for place, layer in enumerate(network.layers):
            pre = network.preactivation(place, weights, states) + shifts[place]
            states.append(layer.divergence(pre) if place + 1 < len(u) else pre)
        network.loss.value(states[-1], Y).sum().backward()  # type: ignore[no-untyped-call]
    return [shift.grad for shift in shifts if shift.grad is not None]


@pytest.mark.parametrize("activation", ["softplus", "tanh", "sigmoid", "fenchel_relu", "fenchel_leaky_relu"])
def test_for_large_lam_the_gradients_are_the_gradients_of_the_loss(activation: str) -> None:
    errors = []
    for lam in (1e3, 1e5):
        network, weights = setup(lam, activation)
        u_gradients, truth = x_step(network, weights, X, Y).u_gradients, autograd_gradients(network, weights)
        errors.append(max(float((a - b).abs().max()) for a, b in zip(u_gradients, truth, strict=True)))
    assert errors[1] < 1e-4
    assert errors[1] < 0.05 * errors[0] or errors[0] < 1e-9


def test_the_state_step_minimises_its_linearised_block() -> None:
    """Against torch's L-BFGS on <g, z> + lam D(u, z), one hidden layer."""
    network, weights = setup(0.8, "fenchel_leaky_relu", (6,))
    step = x_step(network, weights, X, Y)
    u = network.preactivation(0, weights, [X])
    g = network.loss.grad(network.scores(weights, X), Y) @ weights[1].w
    z = step.forward[1].clone().requires_grad_()
    optimiser = torch.optim.LBFGS([z], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        energy = (g * z).sum() + 0.8 * network.hidden[0].value(u, z).sum()
        energy.backward()  # type: ignore[no-untyped-call]
        return energy

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(step.states[0], z.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in act.__all__ if not getattr(act, n)().joint])
def test_the_state_step_does_not_raise_its_block_where_lam_is_at_least_the_curvature(name: str) -> None:
    activation = getattr(act, name)()
    if activation.curvature == torch.inf:
        pytest.skip("no finite curvature")
    network, weights = setup(1.0, activation, (6,))
    after = network.layers[1]
    # D is strongly convex in z with modulus 1 / curvature.
    lam = activation.curvature * after.divergence.curvature * after.operator.norm(weights[1]) ** 2
    network = LiftedNetwork([replace(network.layers[0], lam=lam), after])
    step = x_step(network, weights, X, Y)
    before = network.evaluate(weights, [X, step.forward[1], Y]).objective
    assert network.evaluate(weights, [X, step.states[0], Y]).objective <= before * (1 + 1e-12)
    assert not torch.equal(step.states[0], step.forward[1])


def test_row_weights_weigh_the_loss() -> None:
    network, weights = setup(1e6)
    outlier_weights = torch.rand(len(X), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plain, weighed = x_step(network, weights, X, Y), x_step(network, weights, X, Y, outlier_weights)
    for a, b in zip(plain.u_gradients, weighed.u_gradients, strict=True):
        torch.testing.assert_close(a * outlier_weights[:, None], b, rtol=1e-3, atol=1e-5)


def active_fractions(network: LiftedNetwork, weights: list[lnn.Affine]) -> Tensor:
    """Of every layer, the fraction of units whose gradient differs for other responses."""
    u_gradients = [x_step(network, weights, X, Y.roll(turn, 1)).u_gradients for turn in range(3)]
    moved = [torch.stack([a - b for b in rest]).abs().amax((0, 1)) for a, *rest in zip(*u_gradients, strict=True)]
    return torch.tensor([float((part > 0).double().mean()) for part in moved])


@pytest.mark.parametrize("activation", ["softplus", "fenchel_relu", "relu"])
def test_curvatures_are_mean_diagonals_of_the_loss_s_bound_through_the_jacobian(activation: str) -> None:
    network, weights = setup(1e7, activation)
    _, u = recursion(network, weights, X)
    found = curvatures(network, weights, u, torch.sign(draw(200, 40, 3)))
    slopes = [
        (layer.divergence(part + 1e-6) - layer.divergence(part)) / 1e-6
        for layer, part in zip(network.layers, u, strict=True)
    ]
    jacobian = torch.eye(3, dtype=torch.float64).expand(40, 3, 3)
    truth = [0.5]
    for place in (2, 1):
        jacobian = (jacobian @ weights[place].w) * slopes[place - 1][:, None, :]
        truth.insert(0, float(0.5 * jacobian.square().sum(1).mean()))
    mean = torch.tensor(found) * active_fractions(
        network, weights
    )  # over all units, including those without a gradient
    torch.testing.assert_close(mean, torch.tensor(truth).to(mean), rtol=0.05, atol=0)


@pytest.mark.parametrize("row_weights", [None, torch.ones(40, dtype=torch.float64)], ids=["plain", "counted"])
def test_constant_units_are_left_out_of_the_curvature(row_weights: Tensor | None) -> None:
    """With four constant units of ten, the curvatures are those of the network without them."""
    network, weights = setup(1e3, "fenchel_relu", (10,))
    weights[0].b[:4] = -100.0
    without = LiftedNetwork.mlp([5, 6, 3], activation="fenchel_relu", lam=1e3, rho=0.01)
    kept = [lnn.Affine(weights[0].w[4:], weights[0].b[4:]), lnn.Affine(weights[1].w[:, 4:], weights[1].b)]
    probes = torch.sign(draw(2, 40, 3))
    found = [
        curvatures(net, given, recursion(net, given, X)[1], probes, row_weights)
        for net, given in ((network, weights), (without, kept))
    ]
    torch.testing.assert_close(found[0], found[1])
    weights[0].b.fill_(-100.0)
    assert float(curvatures(network, weights, recursion(network, weights, X)[1], probes, row_weights)[0]) == torch.inf


@pytest.mark.parametrize("shape", [(40, 3), (2, 40, 1), (2, 1, 3), (0, 40, 3)], ids=str)
def test_probes_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    network, weights = setup(1e3)
    with pytest.raises(
        ValueError, match=r"probes have shape .*: give \(m, 40, 3\), m >= 1 probes of the network's scores"
    ):
        curvatures(network, weights, recursion(network, weights, X)[1], torch.ones(shape, dtype=torch.float64))


def test_a_whole_batch_is_the_full_batch_step() -> None:
    """Rate 1, no momentum, no damping, the divergence's own curvature: one ridge step on pseudo-targets, as BCD's W-step takes."""
    network, weights = setup(3.0, "softplus", (6,))
    step = x_step(network, weights, X, Y)
    metrics = []
    for layer, rows in zip(network.layers, step.forward, strict=True):
        metric = Metric.of(layer, rows, 0.0)
        metric.refresh([layer.lam * layer.divergence.curvature])
        metrics.append(metric)
    descent = Descent(network, weights, metrics, 0.0)
    descent.rate.fill_(1.0)
    descent.step(X, Y)
    for place, target in ((0, step.states[0]), (1, Y)):
        layer, design = network.layers[place], Design(step.forward[place])
        full = update_weights(layer, design, target, weights[place], 1e-30, 1)
        assert full.n_iter == 1
        torch.testing.assert_close(descent.weights[place].w, full.weights.w, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(descent.weights[place].b, full.weights.b, rtol=1e-9, atol=1e-11)


def test_batches_merge_into_the_moments_of_all_their_rows() -> None:
    network, _ = setup(1.0)
    parts, rows = Metric.of(network.layers[0], X[:15], 0.3), Metric.of(network.layers[0], X, 0.3)
    parts.forget = 1.0
    parts.add_rows([X[15:]], [None])
    for metric in (parts, rows):
        metric.refresh([0.7])
    torch.testing.assert_close(parts.inverse, rows.inverse, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(parts.mean, X.mean(0))
    gram, eye = torch.cov(X.T, correction=0), torch.eye(5, dtype=torch.float64)
    truth = torch.linalg.inv(0.7 * (gram + 0.3 * gram.diagonal().mean() * eye) + 2 * 0.01 * eye)
    torch.testing.assert_close(rows.inverse, truth, rtol=1e-9, atol=1e-10)


def test_the_direction_is_the_preconditioned_gradient() -> None:
    """Against autograd on the layer's term as a function of (w, c), c the intercept at the mean input."""
    network, weights = setup(2.0, "softplus", (6,))
    layer, metric = network.layers[0], Metric.of(network.layers[0], X, 0.2)
    metric.refresh([0.9])
    z = x_step(network, weights, X, Y).states[0]
    u = network.preactivation(0, weights, [X])
    g = layer.lam * layer.divergence.grad(u, z)
    w, b = taken(metric, weights[0].w, g, X)
    v = weights[0].w.clone().requires_grad_()
    c = (weights[0].b + weights[0].w @ X.mean(0)).requires_grad_()
    with torch.enable_grad():
        term = layer.lam * layer.divergence.value((X - X.mean(0)) @ v.T + c, z).mean() + 0.01 * v.square().sum()
        gv, gc = torch.autograd.grad(term, [v, c])
    torch.testing.assert_close(w, gv @ metric.inverse, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(b + w @ X.mean(0), gc / 0.9, rtol=1e-9, atol=1e-12)


def taken(metric: Metric, w: Tensor, g: Tensor, x: Tensor) -> list[Tensor]:
    """What a step of rate 1 subtracts from w and b, for rows x and a gradient g in the outputs."""
    moves, length = metric.direction(w, [g.T @ x], [g.sum(0)], len(x))
    return [length * move for move in moves]


def test_momentum_is_nesterov_s() -> None:
    network, weights = setup(5.0, "softplus", (6,))
    metrics = [
        Metric.of(layer, rows, 0.1) for layer, rows in zip(network.layers, network.propagate(weights, X), strict=True)
    ]
    for metric in metrics:
        metric.refresh([1.0])
    descent = Descent(network, weights, metrics, 0.9)
    descent.rate.fill_(0.01)
    parameters = [torch.nn.Parameter(weights[0].w.clone()), torch.nn.Parameter(weights[0].b.clone())]
    optimiser = torch.optim.SGD(parameters, 0.01, momentum=0.9, nesterov=True)
    for _ in range(4):
        step = x_step(network, descent.weights, X, Y)
        moves = taken(metrics[0], descent.weights[0].w, step.u_gradients[0], X)
        for parameter, move in zip(parameters, moves, strict=True):
            parameter.grad = move.clone()
        descent.step(X, Y)
        optimiser.step()
        torch.testing.assert_close(descent.weights[0].w, parameters[0].detach())
        torch.testing.assert_close(descent.weights[0].b, parameters[1].detach())


def test_a_refresh_bounds_the_motion_of_every_layer() -> None:
    network, weights = setup(1e4, "fenchel_relu")
    weights[-1] = lnn.Affine(weights[-1].w * 1e-3, weights[-1].b)  # next to no curvature below, so long steps there
    metrics = [
        Metric.of(layer, rows, 0.01) for layer, rows in zip(network.layers, network.propagate(weights, X), strict=True)
    ]
    descent = Descent(network, weights, metrics, 0.0)
    descent.refresh(descent.gradients(X, Y), Y, torch.sign(draw(2, 40, 3, seed=1)))
    step, (_, u) = x_step(network, weights, X, Y), recursion(network, weights, X)
    for place, metric in enumerate(metrics):
        move = lnn.Affine(*taken(metric, weights[place].w, step.u_gradients[place], step.forward[place]))
        motion = network.layers[place].operator.forward([step.forward[place]], move).square().mean().sqrt()
        assert float(motion) <= 0.31 * float(u[place].square().mean().sqrt())


def test_one_outlier_does_not_let_the_other_rows_move_farther() -> None:
    """Neither by one batch nor by the length of steps: it counts as little for these as for the gradients."""
    network, weights = setup(1.0)
    probes, found = draw(2, 41, 3, seed=5), list[list[Tensor]]()
    for far in (1.0, 1e3):
        x, y = torch.cat([X, far * X[:1]]), torch.cat([Y, Y[:1]])
        geometries = geometries_of(network, network.layers, recursion(network, weights, X)[0], 0.01)
        descent = Descent(network, weights, geometries, 0.9, 10 * X.shape[1] * X.square().mean())
        descent.refresh(descent.gradients(x, y), y, probes)
        found.append([geometry.allowed / geometry.curvature for geometry in descent.geometries])  # type: ignore[attr-defined]
    for near, one in zip(*found, strict=True):
        assert float(one) < 2 * float(near)


def test_the_reason_names_the_layer() -> None:
    network = LiftedNetwork.mlp([5, 4, 3], activation=["leaky_relu"])
    assert why_not_minibatch(network).startswith("layer 0: LeakyReLU")
    assert why_not_minibatch(setup(1.0)[0]) == ""


def _against(probe: Tensor, scores: Tensor) -> Tensor:
    return (scores * probe).sum()


class Backpropagation:
    """A network as a standard one: rows by its forward pass, gradients and curvatures by torch.autograd, no states."""

    def __init__(self, network: LiftedNetwork) -> None:
        self.network = network

    def gradients(
        self,
        weights: Weights,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None = None,
        outlier_weights: Tensor | None = None,
        work: InOrder | None = None,
    ) -> BatchGradients:
        states, preactivations = recursion(self.network, [lnn.Affine(w.detach(), b.detach()) for w, b in weights], x)
        u_gradients = self._back(preactivations, lambda scores: self.network.loss.value(scores, y).sum())
        w_gradients = [g.T @ state for g, state in zip(u_gradients, states, strict=True)]
        b_gradients, inputs = [g.sum(0) for g in u_gradients], [[state] for state in states]
        return BatchGradients(inputs, w_gradients, b_gradients, preactivations, preactivations[-1])

    def _back(self, preactivations: list[Tensor], value: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The gradient in every pre-activation, by another forward pass from the first one on."""
        shifts = [torch.zeros_like(u, requires_grad=True) for u in preactivations]
        with torch.enable_grad():
            u = preactivations[0] + shifts[0]
            for number, activation in enumerate(self.network.hidden, start=1):
                moved = activation(u) - activation(preactivations[number - 1])
                u = preactivations[number] + moved @ self.weights[number].w.T + shifts[number]
            return list(torch.autograd.grad(value(u), shifts))

    weights: Weights

    def probe(
        self, weights: Weights, batch: BatchGradients, y: Tensor, probes: Tensor, row_weights: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        top = self.network.loss.curvature
        arrived = [self._back(batch.preactivations, partial(_against, top**0.5 * probe)) for probe in probes]
        found = [
            torch.stack([u_gradient.square().mean() for u_gradient in u_gradients]).mean()
            for u_gradients in zip(*arrived, strict=True)
        ]
        return [*found[:-1], torch.tensor(top, dtype=torch.float64)], [None] * len(found)

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, named: dict[str, Tensor]) -> None:
        pass


def test_a_step_takes_any_model_that_gives_rows_gradients_and_curvatures() -> None:
    """Back-propagation is the limit of large lam: the same steps, whichever model computes them."""
    network, weights = setup(1e8, "softplus")
    standard = Backpropagation(network)
    descents = [
        Descent(
            network,
            weights,
            geometries_of(network, network.layers, network.propagate(weights, X), 0.1),
            0.9,
            model=model,
        )
        for model in (None, standard)
    ]
    standard.weights = descents[1].weights
    for _ in range(3):
        for descent in descents:
            descent.refresh(
                descent.gradients(X, Y), Y, torch.eye(3, dtype=torch.float64)[:, None].expand(3, len(X), 3) * 3**0.5
            )
            descent.rate.fill_(0.05)
            for _ in range(2):
                descent.step(X, Y)
    torch.testing.assert_close(descents[0].values, descents[1].values, rtol=1e-4, atol=1e-6)
    assert float((descents[0].values - torch.cat([p.reshape(-1) for pair in weights for p in pair])).abs().max()) > 0.01


def refreshes(steps: int, every: int | None, spectral: bool, learns_rho: bool = False) -> list[int]:
    found = [0]
    for taken in range(1, steps):
        if refresh_due(taken, found[-1], every, spectral, learns_rho):
            found.append(taken)
    return found


def test_refreshes_are_frequent_at_first_and_become_rarer_with_spectral_steps_or_where_rho_is_learned() -> None:
    first = [0, 2, 5, 10, 20, 60, 120, 180, 240]
    assert refreshes(400, None, spectral=False) == [*first, 300, 360]
    assert refreshes(1300, None, spectral=False, learns_rho=True) == [*first, 360, 480, 720, 960, 1200]
    for learns_rho in (False, True):
        assert refreshes(800, None, True, learns_rho) == [0, 5, 20, 60, 120, 240, 480, 720]
        assert refreshes(100, 30, False, learns_rho) == [0, 2, 5, 10, 20, 60, 90]
        assert refreshes(100, 30, True, learns_rho) == [0, 5, 20, 60, 90]
        for spectral in (False, True):
            assert not refresh_due(120, 100, None, spectral, learns_rho)  # another one was soon before


class Falling(lnn.Activation):
    """phi(u) = sigmoid(-u) by D(u, z) = Phi(z) + <u, z>, whose gradient in u is z itself."""

    curvature, joint, unitwise = 0.25, False, True

    def __call__(self, u: Tensor) -> Tensor:
        return (-u).sigmoid()

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (torch.xlogy(z, z) + torch.xlogy(1 - z, 1 - z) + u * z).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return z

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return lnn.activations.Sigmoid().prox(v, -u, step)

    def argmin(self, u: Tensor, g: Tensor) -> Tensor:
        return (-u - g).sigmoid()


class Constant(Falling):
    """Its gradient is the same number for all units."""

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return z[:, :1].expand_as(z)


class Doubled(lnn.activations.Tanh):
    """Has a gradient of its own."""

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * super().grad(u, z)


@pytest.mark.parametrize("activation", [Falling(), Constant(), Doubled()])
def test_the_x_step_takes_the_gradient_of_the_activation_and_does_not_write_into_it(activation: lnn.Activation) -> None:
    u, g = draw(10, 3), draw(10, 3, seed=1)
    phi, step = activation.phi_and_x_step(u)
    z, gradient = step(g, 5.0)
    torch.testing.assert_close(phi, activation(u))
    torch.testing.assert_close(z, activation.argmin(u, g / 5))
    torch.testing.assert_close(gradient, 5 * activation.grad(u, z))
    again = step(g, 5.0)
    assert all(torch.equal(one, other) for one, other in zip(again, (z, gradient), strict=True))
