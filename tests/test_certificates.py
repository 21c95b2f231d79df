"""Certificates are true at every scale: what a block reports is no less than its residual, computed anew in float64 from its answer.

The oracle differentiates the energies by autograd; it knows nothing of the solvers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen
from liftednn.blocks import Design, Reader, update_all_states, update_weights
from liftednn.losses import Huber, Matching, SoftmaxCrossEntropy, Split, SquaredError
from liftednn.solvers import nnls
from tests.chains import Link, update_state

N, P, Q = 12, 6, 4
SCALES = (1e-12, 1e-8, 1e-4, 1.0, 1e4, 1e8, 1e12)
DTYPES = (torch.float32, torch.float64)
TOL = 1e-5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bounded(g: Tensor, z: Tensor, lower: Tensor | float, upper: Tensor | float) -> float:
    """The largest |g| between the bounds, and of what points into the box at one."""
    left = torch.where(z <= lower, g.clamp(max=0), torch.where(z >= upper, g.clamp(min=0), g))
    return float(left.abs().max())


def held(reported: float, true: float, rounding: float) -> None:
    """The certificate covers the residual, and is not far above it; both up to the rounding of the problem."""
    assert true <= 1.01 * reported + rounding
    assert reported <= 100 * true + rounding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("box", [(0.0, math.inf), (-0.25, 0.5)])
@pytest.mark.parametrize("which", ["h", "q", "both"])
@pytest.mark.thin(2)
def test_bounded_least_squares(which: str, box: tuple[float, float], dtype: torch.dtype) -> None:
    root = draw(3 * P, P)
    for scale in SCALES:
        on_h, on_q = (1.0 if which == "q" else scale), (1.0 if which == "h" else scale)
        h, q = (on_h * root.T @ root).to(dtype), (on_q * draw(N, P, seed=1)).to(dtype)
        h = (h + h.T) / 2
        lower, upper = (torch.tensor(bound * (on_q / on_h)).to(dtype) for bound in box)
        result = nnls(h, q, tol=TOL, lower=lower.expand_as(q), upper=upper.expand_as(q))
        z = result.z.double()
        true = bounded(z @ h.double() - q.double(), z, lower, upper) / float(q.abs().max())
        assert result.status == "converged"
        held(result.kkt, true, 30 * torch.finfo(dtype).eps)


def surroundings(
    activation: lnn.Activation, following: lnn.Divergence, lam: float, lam_next: float, w: float, dtype: torch.dtype
) -> Link:
    weights = lnn.Affine((w * draw(Q, P)).to(dtype), draw(Q, seed=1).to(dtype))
    first = lnn.Layer(lnn.operators.Dense(3, P), activation, lam=lam)
    return Link(first, lnn.Layer(lnn.operators.Dense(P, Q), following, lam=lam_next), weights)


def gradient_in_z(link: Link, u: Tensor, z: Tensor, x_next: Tensor, own: bool) -> Tensor:
    """The gradient of the next layer's term in z, and with `own` of the layer's own, in float64."""
    at = z.detach().clone().double().requires_grad_()
    image = at @ link.weights.w.double().T + link.weights.b.double()
    energy = link.following.lam * link.following.divergence.value(image, x_next.double()).sum()
    if own:
        energy = energy + link.layer.lam * link.layer.divergence.value(u.double(), at).sum()
    return torch.autograd.grad(energy, at)[0]


KNOBS = ("lam", "lam_next", "both", "weights")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.thin(2)
def test_states_by_bounded_least_squares(knob: str, dtype: torch.dtype) -> None:
    u, y = draw(N, P, seed=2).to(dtype), draw(N, Q, seed=3).to(dtype)
    for scale in SCALES:
        lam, lam_next, w = (
            scale if knob in names else 1.0 for names in (("lam", "both"), ("lam_next", "both"), ("weights",))
        )
        link = surroundings(act.ReLU(), SquaredError(), lam, lam_next, w, dtype)
        step = update_state(link, u, u.relu(), y, TOL, 5000)
        z, scaled = step.states[0], float(gradient_in_z(link, u, torch.zeros_like(u), y, own=True).abs().max())
        g = gradient_in_z(link, u, z, y, own=True)
        terms = lam * float(u.abs().max()) + lam_next * w * w * float(z.abs().max()) + lam_next * w
        held(step.kkt, bounded(g, z.double(), 0.0, math.inf) / scaled, 100 * torch.finfo(dtype).eps * terms / scaled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("activation", [act.ReLU(), act.FenchelReLU(), act.Tanh()], ids=repr)
@pytest.mark.thin(6)
def test_states_by_proximal_gradients(activation: lnn.Activation, knob: str, dtype: torch.dtype) -> None:
    u, y = draw(N, P, seed=2).to(dtype), SoftmaxCrossEntropy().encode(torch.arange(N) % Q, Q).to(dtype)
    for scale in (SCALES[0], SCALES[-1]):
        lam, lam_next, w = (
            scale if knob in names else 1.0 for names in (("lam", "both"), ("lam_next", "both"), ("weights",))
        )
        link = surroundings(activation, SoftmaxCrossEntropy(), lam, lam_next, w, dtype)
        step = update_state(link, u, activation(u), y, 1e-3, 40)
        z, curvature = step.states[0].double(), max(Reader(link.following, link.weights).lipschitz, 1e-9)
        g, scaled = (
            gradient_in_z(link, u, z, y, own=False),
            float(gradient_in_z(link, u, torch.zeros_like(z), y, own=False).abs().max()),
        )
        moved = activation.prox(z - g / curvature, u.double(), lam / curvature)
        true = curvature * float((z - moved).abs().max()) / scaled
        held(step.kkt, true, 300 * torch.finfo(dtype).eps * (1 + curvature * float(z.abs().max()) / scaled))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("activation", "following"),
    [(act.LeakyReLU(0.2), act.LeakyReLU(0.2)), (act.MaxPool(2), act.LeakyReLU(0.2)), (act.HardTanh(), act.ReLU("l1"))],
    ids=repr,
)
@pytest.mark.thin(2)
def test_states_where_the_next_divergence_is_not_smooth(
    activation: lnn.Activation, following: lnn.Activation, dtype: torch.dtype
) -> None:
    """The certificate bounds how far the answer is from the one found in float64 to many digits."""
    u = draw(N, activation.preactivation_width(P), seed=2).to(dtype)
    precise = surroundings(activation, following, 1.0, 1.0, 1.0, torch.float64)
    start = activation(u)
    after = following(start @ precise.weights.w.to(dtype).T + precise.weights.b.to(dtype)) + draw(
        N, Q, seed=5
    ).abs().to(dtype)
    best = update_state(precise, u.double(), start.double(), after.double(), 1e-8, 1000)
    assert best.kkt <= 1e-7
    for scale in SCALES[::3]:
        found = update_state(surroundings(activation, following, scale, scale, 1.0, dtype), u, start, after, 1e-4, 200)
        distance = float((found.states[0].double() - best.states[0]).abs().max() / best.states[0].abs().max())
        assert found.kkt <= 1e-3
        assert distance <= 30 * found.kkt + 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.thin(2)
def test_all_states_at_once(dtype: torch.dtype) -> None:
    x, y = draw(N, 3, seed=2).to(dtype), draw(N, 2, seed=3).to(dtype)
    weights = [
        lnn.Affine(draw(*shape, seed=k).to(dtype), draw(shape[0], seed=k + 9).to(dtype))
        for k, shape in enumerate([(P, 3), (Q, P), (2, Q)])
    ]
    for lam, loss in itertools.product(SCALES[::2], SCALES[::2]):
        network = lnn.LiftedNetwork.mlp([3, P, Q, 2], "relu", "squared", lam=lam)
        network = lnn.LiftedNetwork(
            [*network.layers[:-1], lnn.Layer(lnn.operators.Dense(Q, 2), SquaredError(), lam=loss)]
        )
        states = [*network.propagate(weights, x), y]
        step = update_all_states(network, weights, states, 1e-3, 200)
        at = [state.clone().double().requires_grad_() for state in step.states]
        origin = [torch.zeros_like(a).requires_grad_() for a in at]
        g = torch.autograd.grad(joint_energy(network, weights, x, at, y), at)
        first = torch.autograd.grad(joint_energy(network, weights, x, origin, y), origin)
        scaled = max(float(part.abs().max()) for part in first)
        curvature = joint_curvature(network, weights)
        moved = [(a - d / curvature).relu() for a, d in zip(at, g, strict=True)]
        with torch.no_grad():
            true = curvature * max(float((a - m).abs().max()) for a, m in zip(at, moved, strict=True)) / scaled
            size = max(float(a.abs().max()) for a in at)
        held(step.kkt, true, 300 * torch.finfo(dtype).eps * (1 + curvature * size / scaled))


def joint_energy(
    network: lnn.LiftedNetwork, weights: list[lnn.Affine], x: Tensor, hidden: list[Tensor], y: Tensor
) -> Tensor:
    """|u - z|^2 whatever the domain: its gradient is then defined on the boundary too."""
    states = [x.double(), *hidden, y.double()]
    total = x.new_zeros((), dtype=torch.float64)
    for layer, (w, b), z, after in zip(network.layers, weights, states, states[1:], strict=False):
        total = total + layer.lam * (z @ w.double().T + b.double() - after).square().sum()
    return total


def joint_curvature(network: lnn.LiftedNetwork, weights: list[lnn.Affine]) -> float:
    from liftednn.blocks.joint import _lipschitz

    return _lipschitz(network, weights)


PENALTIES = [pen.L2(1e-3), pen.NonNegative(1e-3), pen.L1(1e-3), pen.ElasticNet(1e-3, 1e-3), pen.GroupL2(1e-3)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("divergence", [SquaredError(), act.FenchelReLU()], ids=repr)
@pytest.mark.thin(2)
def test_weights(divergence: lnn.Divergence, penalty: lnn.Penalty, dtype: torch.dtype) -> None:
    x = (draw(40, P) + 3).to(dtype)
    z = (
        divergence(draw(40, Q, seed=1)).to(dtype)
        if isinstance(divergence, lnn.Activation)
        else draw(40, Q, seed=1).to(dtype)
    )
    for on_x, on_lam in itertools.product((1e-6, 1.0, 1e6), SCALES):
        rows = x * on_x
        layer = lnn.Layer(lnn.operators.Dense(P, Q), divergence, penalty, lam=on_lam)
        start = lnn.Affine(penalty.prox(torch.zeros(Q, P, dtype=dtype), 0.0), torch.zeros(Q, dtype=dtype))
        step = update_weights(layer, Design(rows), z, start, 1e-3, 500)
        true, rounding = weight_residual(layer, rows, z, step.weights, step.method)
        held(step.kkt, true, rounding)


@pytest.mark.parametrize("activation", [act.ReLU(), act.FenchelReLU(), act.Sigmoid()], ids=repr)
def test_a_row_that_is_far_larger_hides_nothing_of_the_others(activation: lnn.Activation) -> None:
    """The residual of each row is relative to its own size, or to that of most rows."""
    link = Link(
        lnn.Layer(lnn.operators.Dense(4, 8), activation),
        lnn.Layer(lnn.operators.Dense(8, 2), SquaredError()),
        lnn.Affine(draw(2, 8, seed=1), draw(2, seed=2)),
    )
    u, y = draw(100, 8, seed=3), draw(100, 2, seed=4)
    alone, far = update_state(link, u, activation(u), y, 1e-4, 5000), y.clone()
    far[0] = 1e6
    among = update_state(link, u, activation(u), far, 1e-4, 5000)
    assert max(alone.kkt, among.kkt) <= 1e-4
    torch.testing.assert_close(among.states[0][1:], alone.states[0][1:], rtol=0, atol=1e-2)


@pytest.mark.parametrize("penalty", [pen.L2(0.0), pen.L1(0.0)], ids=repr)
@pytest.mark.parametrize("loss", ["huber", "absolute", "softmax"])
@pytest.mark.thin(2)
def test_the_units_of_the_inputs_do_not_change_what_a_w_step_fits(loss: str, penalty: lnn.Penalty) -> None:
    x = draw(200, 3)
    y = (x[:, 0] + draw(200, seed=1) > 1.5).long() if loss == "softmax" else 5 + x[:, :1]
    network = lnn.LiftedNetwork.mlp([3, 2 if loss == "softmax" else 1], loss=loss).with_penalty([penalty])
    found = [lnn.BCD(passes=2, tol=0.0).run(network, x * unit, y).history[-1] for unit in (1e-6, 1.0, 1e4)]
    for each in found:
        assert each.loss == pytest.approx(found[1].loss, rel=1e-4, abs=1e-8)
        assert each.kkt["w0"] <= 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [Matching(act.FenchelReLU()), Split(SquaredError(), act.ReLU()), Huber(1.0)], ids=repr)
def test_an_offset_of_the_responses_does_not_hide_what_w_can_explain(loss: lnn.Loss, dtype: torch.dtype) -> None:
    """The gradient in the intercept at 0 is as large as the offset, that in w is not."""
    x = draw(300, 4)
    y = 2 * x[:, :1] - x[:, 1:2] + 0.1 * draw(300, 1, seed=1)
    network = lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(4, 1), loss, pen.L2(1e-6))])
    for offset in (20.0, 1e4):
        w = lnn.BCD(passes=3).run(network, x.to(dtype), (y + offset).to(dtype)).weights[0].w
        torch.testing.assert_close(w.double(), torch.tensor([[2.0, -1, 0, 0]]).double(), rtol=0, atol=0.05)


def weight_residual(layer: lnn.Layer, x: Tensor, z: Tensor, weights: lnn.Affine, method: str) -> tuple[float, float]:
    """max |gradient| with the intercept in centred coordinates, in float64, or the proximal residual; and the rounding to allow."""
    rows, mean = x.double(), x.double().mean(0)

    def slopes(w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        w, c = w.clone().requires_grad_(), c.clone().requires_grad_()
        energy = layer.lam * layer.divergence.value(rows @ w.T + (c - w @ mean), z.double()).mean()
        return torch.autograd.grad(energy, (w, c))  # type: ignore[return-value]

    w, c = weights.w.double(), weights.b.double() + weights.w.double() @ mean
    at_zero, g = slopes(torch.zeros_like(w), torch.zeros_like(c)), slopes(w, c)
    gram = (rows - mean).T @ (rows - mean) / len(rows)
    largest, rho = float(torch.linalg.eigvalsh(gram)[-1]), layer.penalty.ridge
    curvature = layer.lam * layer.divergence.curvature * largest
    # With the intercept, slopes in w are in units of the rows: those of single columns, or of the direction of most variance.
    unit: Tensor | float = largest**0.5 if rho is None else gram.diagonal().sqrt()
    unit = 1.0 if layer.divergence.quadratic else unit
    parts = at_zero[:1] if layer.divergence.quadratic else (at_zero[0] / unit, at_zero[1])
    scale = max(float(part.abs().max()) for part in parts)
    if rho is not None:
        slope = g[0] + 2 * rho * w
    elif method == "nnls":
        box = layer.penalty.box()
        slope = g[0] + box.weight * w
        slope = torch.where(w <= box.lower, slope.clamp(max=0), slope)
    else:
        slope = curvature * (w - layer.penalty.prox(w - g[0] / curvature, 1 / curvature))
    slope = slope / unit
    true = (
        float(slope.abs().max())
        if layer.divergence.quadratic
        else max(float(slope.abs().max()), float(g[1].abs().max()))
    )
    eps = torch.finfo(x.dtype).eps
    size = curvature * float(w.abs().max()) + layer.lam * layer.divergence.curvature * float(
        rows.abs().max() * (weights.b.abs().max() + 1)
    )
    return true / scale, 300 * eps * (1 + size / scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [[6], [6, 4]])
@pytest.mark.thin(2)
def test_lifted_predictions(hidden: list[int], dtype: torch.dtype) -> None:
    """All energies times a factor: the same classes, and energies that many times as large."""
    x = draw(5, 3, seed=2).to(dtype)
    sizes = [3, *hidden, 3]
    weights = [
        lnn.Affine(draw(q, p, seed=q).to(dtype), draw(q, seed=p).to(dtype)) for p, q in itertools.pairwise(sizes)
    ]
    network = lnn.LiftedNetwork.mlp(sizes, "relu", "softmax", lam=0.5)
    plain = lnn.predict.lifted(network, weights, x, tol=1e-4, max_iter=300).double()
    for scale in SCALES[::3]:
        scaled = lnn.LiftedNetwork([replace(layer, lam=scale * layer.lam) for layer in network.layers])
        found = lnn.predict.lifted(scaled, weights, x, tol=1e-4, max_iter=300).double() / scale
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)
        assert torch.equal(found.argmax(1), plain.argmax(1))
