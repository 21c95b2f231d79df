"""Losses against torch and scikit-learn; eq. 14, eq. 15 and App. A against brute force, KKT and a conic solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from sklearn.metrics import accuracy_score, r2_score
from torch import Tensor

from liftednn import activations, losses
from liftednn.activations import HardSigmoid, HardTanh, Identity, LeakyReLU, MaxPool, ReLU, Simplex
from liftednn.base import Activation, Divergence, Loss
from liftednn.losses import CrossEntropy, SoftmaxCrossEntropy, Split, SquaredError
from liftednn.losses.split import entropic_projection
from liftednn.testing import check_loss

SPLITS: list[Split] = [
    Split(SquaredError(), ReLU(), 0.1),
    Split(SquaredError(), ReLU(), 10.0),
    Split(SquaredError(), Identity(), 2.0),
    Split(SquaredError(), HardTanh(), 0.5),
    Split(SquaredError(), HardSigmoid(), 3.0),
    Split(SquaredError(), Simplex(), 1.5),
    Split(CrossEntropy(), Simplex(), 0.01),
    Split(CrossEntropy(), Simplex(), 1.0),
    Split(CrossEntropy(), Simplex(), 100.0),
]
EVERY: list[Loss] = [getattr(losses, name)() for name in losses.__all__] + SPLITS
SMOOTH: list[Activation] = [
    a for name in activations.__all__ if (a := getattr(activations, name)()).curvature < torch.inf
]


def rows(n: int, p: int, seed: int = 0) -> Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def responses(loss: Loss, n: int, p: int, seed: int = 5) -> Tensor:
    decoded = loss.decode(rows(n, p, seed))
    return decoded if decoded.is_floating_point() else rows(n, p, seed).softmax(-1)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_conforms(loss: Loss, seed: int) -> None:
    check_loss(loss, seed=seed)


@pytest.mark.parametrize("activation", SMOOTH, ids=lambda a: type(a).__name__)
def test_split_is_convex_with_every_activation_it_accepts(activation: Activation) -> None:
    try:
        loss = Split(SquaredError(), activation, 0.7)
    except ValueError:
        return  # refusing is right too: only a jointly convex D stays convex when its state is minimised out
    u, other, y = 8 * rows(4000, 3), 8 * rows(4000, 3, seed=1), 3 * rows(4000, 3, seed=2)
    ends = (loss.value(u, y) + loss.value(other, y)) / 2
    worst = float(((loss.value((u + other) / 2, y) - ends) / (1 + ends)).max())
    assert worst <= 1e-9, "the value at a midpoint lies above the mean of its ends"


def test_softmax_cross_entropy_equals_torch_on_labels() -> None:
    u, labels = 3 * rows(60, 5), torch.arange(60) % 5
    loss = SoftmaxCrossEntropy()
    y = loss.encode(labels, 5).double()
    torch.testing.assert_close(loss.value(u, y), fn.cross_entropy(u, labels, reduction="none"), rtol=1e-12, atol=1e-12)
    leaf = u.clone().requires_grad_()
    fn.cross_entropy(leaf, labels, reduction="sum").backward()
    torch.testing.assert_close(loss.grad(u, y), leaf.grad, rtol=1e-12, atol=1e-12)


def test_the_constants_of_the_softmax_cross_entropy_have_the_least_loss() -> None:
    loss, weights = SoftmaxCrossEntropy(), torch.tensor([1.0, 2, 0.5, 3, 1], dtype=torch.float64)
    y = loss.encode(torch.tensor([0, 2, 2, 1, 0]), 4).double()  # no row of the last class

    def mean_loss(constants: Tensor) -> float:
        return float(weights @ loss.value(constants.expand_as(y), y))

    least, found = (
        minimize(lambda c: mean_loss(torch.tensor(c)), np.zeros(4)).fun,
        mean_loss(loss.constants(y, weights)),
    )
    assert found <= least
    assert found == pytest.approx(least, abs=1e-4)
    of_integers = loss.constants(y.long(), weights)  # `encode` gives integers for labels
    assert torch.equal(of_integers, loss.constants(y, weights))


def test_softmax_cross_entropy_on_probabilities_is_the_divergence() -> None:
    u, y = rows(60, 5), rows(60, 5, seed=1).softmax(-1)
    divergence = fn.kl_div(u.log_softmax(-1), y, reduction="none").sum(-1)
    torch.testing.assert_close(SoftmaxCrossEntropy().value(u, y), divergence, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(SoftmaxCrossEntropy().value(y.log(), y), torch.zeros(60).double(), rtol=0, atol=1e-12)


def test_cross_entropy_is_that_of_probabilities_and_infinite_at_zero() -> None:
    u, labels = rows(20, 4).softmax(-1), torch.arange(20) % 4
    y = CrossEntropy().encode(labels, 4).double()
    torch.testing.assert_close(CrossEntropy().value(u, y), fn.nll_loss(u.log(), labels, reduction="none"))
    at_zero = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert CrossEntropy().value(at_zero, first).tolist() == [torch.inf, 0.0]


def test_squared_error_equals_torch() -> None:
    u, y = rows(30, 4), rows(30, 4, seed=1)
    torch.testing.assert_close(SquaredError().value(u, y), fn.mse_loss(u, y, reduction="none").sum(-1))


@settings(deadline=None, max_examples=40)
@given(
    arrays(np.float64, (3, 4), elements=st.floats(-20, 20)),
    arrays(np.float64, (3, 4), elements=st.floats(-20, 20)),
    st.floats(1e-3, 1e3),
)
def test_target_with_relu_is_equation_14(x0: np.ndarray, y: np.ndarray, lam: float) -> None:
    expected = np.maximum(0, (y + lam * x0) / (1 + lam))
    found = Split(SquaredError(), ReLU(), lam).target(torch.from_numpy(x0), torch.from_numpy(y))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def assert_optimal(z: Tensor, x: Tensor, y: Tensor, lam: float) -> None:
    """z >= 0, 1'z = 1, and z_i - y_i / (2 lam z_i) - x_i is one number where z_i > 0, no larger than -x_i elsewhere."""
    assert bool(z.isfinite().all())
    assert bool((z >= 0).all())
    assert float((z.sum(-1) - 1).abs().max()) <= 1e-10
    assert bool((z > 0)[y > 0].all())
    linear = torch.where(y > 0, y / (2 * lam) / z, torch.zeros_like(z))
    stationary = z - linear - x
    support = z > 0
    top = stationary.masked_fill(~support, -torch.inf).amax(-1)
    bottom = stationary.masked_fill(~support, torch.inf).amin(-1)
    size = 1 + x.abs().amax(-1) + linear.amax(-1)
    assert bool((top - bottom <= 1e-9 * size).all())
    assert bool((torch.where(support, -torch.inf, (x + bottom[:, None])).amax(-1) <= 1e-9 * size).all())


LAMS = [1e-6, 1e-3, 1.0, 1e3, 1e6]


@settings(deadline=None, max_examples=80)
@given(
    arrays(np.float64, (2, 5), elements=st.floats(-1e3, 1e3)),
    arrays(np.float64, (2, 5), elements=st.just(0.0) | st.floats(1e-6, 1)),
    st.floats(-6, 6),
)
@example(np.full((2, 5), 1e3), np.eye(5)[:2], -6.0)
@example(np.full((2, 5), -1e3), np.eye(5)[:2], 6.0)
@example(np.diag([1e3, -1e3, 0.0, 1e3, -1e3])[:2], np.eye(5)[1:3], 6.0)
def test_appendix_a_is_optimal(x: np.ndarray, raw: np.ndarray, log_lam: float) -> None:
    raw = raw + np.eye(5)[:2] * (raw.sum(-1, keepdims=True) == 0)
    x0, y, lam = torch.from_numpy(x), torch.from_numpy(raw / raw.sum(-1, keepdims=True)), 10.0**log_lam
    assert_optimal(entropic_projection(x0, y, lam), x0, y, lam)


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1e3])
def test_appendix_a_is_optimal_for_one_hot_responses_at_the_extremes(lam: float, size: float) -> None:
    x0 = (size * rows(200, 10)).clamp(-size, size)
    y = fn.one_hot(torch.arange(200) % 10).double()
    assert_optimal(entropic_projection(x0, y, lam), x0, y, lam)


@pytest.mark.parametrize("lam", LAMS)
def test_appendix_a_keeps_float32_on_the_simplex(lam: float) -> None:
    x0, y = (100 * rows(50, 10)).float(), fn.one_hot(torch.arange(50) % 10).float()
    z = entropic_projection(x0, y, lam)
    assert z.dtype == torch.float32
    assert bool((z >= 0).all())
    assert float((z.sum(-1) - 1).abs().max()) <= 1e-6


@pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
def test_appendix_a_equals_cvxpy(lam: float) -> None:
    x0, y = rows(4, 3), torch.eye(4, 3, dtype=torch.float64)
    y[3] = torch.tensor([0.2, 0.5, 0.3])
    found = entropic_projection(x0, y, lam)
    for row in range(4):
        z = cvxpy.Variable(3, nonneg=True)
        positive = y[row].numpy() > 0
        entropy = -y[row].numpy()[positive] @ cvxpy.log(z[positive])
        objective = cvxpy.Minimize(entropy + lam * cvxpy.sum_squares(z - x0[row].numpy()))
        cvxpy.Problem(objective, [cvxpy.sum(z) == 1]).solve(solver=cvxpy.CLARABEL)
        np.testing.assert_allclose(found[row].numpy(), z.value, atol=2e-4)
        attained = -(torch.xlogy(y[row], found[row])).sum() + lam * (found[row] - x0[row]).square().sum()
        assert float(attained) <= objective.value + 1e-6


DOMAINS: list[tuple[Split, float, float]] = [
    (Split(SquaredError(), ReLU(), 0.3), 0.0, 10.0),
    (Split(SquaredError(), ReLU(), 20.0), 0.0, 10.0),
    (Split(SquaredError(), Identity(), 1.5), -10.0, 10.0),
    (Split(SquaredError(), HardTanh(), 1.5), -1.0, 1.0),
    (Split(SquaredError(), HardSigmoid(), 0.5), 0.0, 1.0),
]


@pytest.mark.parametrize(("loss", "lower", "upper"), DOMAINS, ids=lambda x: repr(x))
def test_split_value_is_the_minimum_over_the_state(loss: Split, lower: float, upper: float) -> None:
    grid = torch.linspace(lower, upper, 200001, dtype=torch.float64)[:, None]
    for u, y in zip(rows(8, 1), rows(8, 1, seed=1), strict=True):
        brute = ((grid - y).square() + loss.lam * (u - grid).square()).min()
        assert float(loss.value(u[None], y[None])) == pytest.approx(float(brute), abs=1e-7)


@pytest.mark.parametrize("inner", [SquaredError(), CrossEntropy()], ids=repr)
@pytest.mark.parametrize("lam", [0.2, 5.0])
@pytest.mark.thin(2)
def test_split_value_is_the_minimum_over_the_simplex(inner: Loss, lam: float) -> None:
    loss, share = Split(inner, Simplex(), lam), torch.linspace(0, 1, 200001, dtype=torch.float64)
    grid = torch.stack([share, 1 - share], -1)
    for u, y in zip(rows(8, 2), rows(8, 2, seed=1).softmax(-1), strict=True):
        fit = (grid - y).square().sum(-1) if isinstance(inner, SquaredError) else -(y * grid.log()).sum(-1)
        brute = (fit + lam * (u - grid).square().sum(-1)).min()
        assert float(loss.value(u[None], y[None])) == pytest.approx(float(brute), abs=1e-7)


@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_gradient_is_that_of_the_value(loss: Loss) -> None:
    u = 2 * rows(20, 4, seed=3)
    u = u.softmax(-1) if isinstance(loss, CrossEntropy) else u
    y, step = responses(loss, 20, 4), 1e-6
    gradient = loss.grad(u, y)
    for i in range(4):
        move = torch.zeros_like(u)
        move[:, i] = step
        slope = (loss.value(u + move, y) - loss.value(u - move, y)) / (2 * step)
        torch.testing.assert_close(slope, gradient[:, i], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", SPLITS, ids=repr)
def test_fixing_the_target_majorises_the_split_loss(loss: Split) -> None:
    u, other, y = rows(100, 4), rows(100, 4, seed=1), responses(loss, 100, 4)
    target = loss.target(u, y)
    bound = lambda v: loss.loss.value(target, y) + loss.lam * loss.activation.value(v, target)  # noqa: E731
    torch.testing.assert_close(bound(u), loss.value(u, y))
    assert bool((bound(other) >= loss.value(other, y) - 1e-10).all())


def test_cross_entropy_prox_is_the_root_of_its_quadratic() -> None:
    v, y = 3 * rows(50, 4), rows(50, 4, seed=1).softmax(-1)
    for step in (1e-6, 1.0, 1e6):
        u = CrossEntropy().prox_u(v, y, step)
        assert bool((u > 0).all())
        torch.testing.assert_close(u - step * y / u, v, rtol=1e-9, atol=1e-9 * (1 + step) ** 0.5)
    torch.testing.assert_close(CrossEntropy().prox_u(v, torch.zeros_like(v), 1.0), v)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), CrossEntropy(), Split(CrossEntropy(), Simplex())], ids=repr)
def test_labels_are_encoded_one_hot_and_decoded_back(loss: Loss) -> None:
    labels = torch.tensor([2, 0, 1, 2])
    assert loss.encode(labels, 4).tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert torch.equal(loss.encode(labels.double(), 4), loss.encode(labels, 4))
    assert torch.equal(loss.decode(loss.encode(labels, 4).double()), labels)


def test_responses_that_are_already_encoded_stay() -> None:
    probabilities, real = rows(6, 3).softmax(-1), rows(6, 3)
    assert torch.equal(SoftmaxCrossEntropy().encode(probabilities, 3), probabilities)
    assert torch.equal(SquaredError().encode(real, 3), real)
    assert torch.equal(SquaredError().encode(real[:, 0], 1), real[:, :1])
    assert torch.equal(SquaredError().decode(real), real)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: SoftmaxCrossEntropy().encode(torch.tensor([0, 3]), 3),
            r"labels must lie in 0 \.\. 2, .* got 0 \.\. 3",
        ),
        (
            lambda: SoftmaxCrossEntropy().encode(torch.tensor([-1, 2]), 3),
            r"labels must lie in 0 \.\. 2, .* got -1 \.\. 2",
        ),
        (lambda: SoftmaxCrossEntropy().encode(torch.tensor([0.5, 1.0]), 3), "labels must be integers"),
        (lambda: CrossEntropy().encode(torch.tensor([float("nan")]), 3), "labels must be integers"),
        (lambda: CrossEntropy().encode(torch.ones(2, 2) / 2, 3), "y has 2 columns, but the network has 3 outputs"),
        (lambda: CrossEntropy().encode(torch.ones(2, 3), 3), "must be a probability distribution"),
        (lambda: CrossEntropy().encode(torch.tensor([[-1.0, 2.0]]), 2), "must be a probability distribution"),
        (lambda: CrossEntropy().encode(torch.ones(2, 2, 2), 2), r"give labels \(n,\) or probabilities \(n, 2\)"),
        (lambda: SquaredError().encode(torch.ones(4), 2), r"y has shape \(4,\), but the network has 2 outputs"),
        (lambda: SquaredError().encode(torch.ones(4, 3), 2), r"give \(n, 2\)"),
        (lambda: Split(lam=0.0), "lam must be positive, got 0.0"),
        (lambda: Split(lam=float("inf")), "lam must be positive, got inf"),
        (lambda: Split(CrossEntropy(), ReLU()), "cannot combine CrossEntropy with ReLU"),
        (lambda: Split(SoftmaxCrossEntropy(), Simplex()), "cannot combine SoftmaxCrossEntropy with Simplex"),
        (
            lambda: Split(SquaredError(), LeakyReLU()),
            "SquaredError with a jointly convex activation of finite curvature",
        ),
        (lambda: Split(SquaredError(), MaxPool()), "cannot combine SquaredError with MaxPool"),
        (
            lambda: losses.named("hinge"),
            "unknown loss 'hinge': give one of absolute, huber, quantile, softmax, squared, or a Loss",
        ),
    ],
)
def test_mistakes_are_refused_with_a_sentence(call: Callable, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_named_gives_the_two_usual_losses() -> None:
    assert losses.named("softmax") == SoftmaxCrossEntropy()
    assert losses.named("squared") == SquaredError()


def test_only_cross_entropy_alone_refuses_to_train_and_says_what_to_use() -> None:
    assert [loss for loss in EVERY if loss.why_not_trainable] == [CrossEntropy()]
    assert "use Split(CrossEntropy(), Simplex()) or SoftmaxCrossEntropy()" in CrossEntropy().why_not_trainable


@pytest.mark.parametrize("step", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    "loss",
    [SquaredError(), SoftmaxCrossEntropy(), Split(), Split(CrossEntropy(), Simplex(), 2.0)],
    ids=["squared", "softmax", "split", "split entropy"],
)
@pytest.mark.thin(2)
def test_the_default_prox_in_u_is_where_the_gradient_vanishes(loss: Loss, step: float) -> None:
    v = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.eye(3, dtype=torch.float64)[torch.arange(6) % 3]
    u = Divergence.prox_u(loss, v, z, step)
    torch.testing.assert_close(loss.grad(u, z) + (u - v) / step, torch.zeros_like(u), rtol=0, atol=1e-9)
    torch.testing.assert_close(loss.prox_u(v, z, step), u, rtol=1e-7, atol=1e-7)


def test_an_infinite_curvature_needs_a_prox_in_u_of_its_own() -> None:
    kind: Any = type("Rough", (SquaredError,), {"curvature": math.inf, "prox_u": Divergence.prox_u})
    with pytest.raises(TypeError, match="Rough declares an infinite curvature and has no prox_u: implement it"):
        kind().prox_u(torch.zeros(1, 2), torch.zeros(1, 2), 1.0)


@pytest.mark.parametrize("step", [1e-3, 0.5, 30.0])
def test_the_prox_of_the_softmax_cross_entropy_is_stationary(step: float) -> None:
    generator = torch.Generator().manual_seed(0)
    v, y = (
        3 * torch.randn(50, 4, generator=generator, dtype=torch.float64),
        torch.eye(4, dtype=torch.float64).repeat(13, 1)[:50],
    )
    u = SoftmaxCrossEntropy().prox_u(v, y, step)
    assert float((u.softmax(-1) - y + (u - v) / step).abs().max()) < 1e-9 / min(step, 1.0)


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), CrossEntropy()], ids=repr)
def test_class_score_equals_sklearn_accuracy(loss: Loss) -> None:
    u, labels = rows(200, 4), torch.arange(200) % 4
    expected = accuracy_score(labels.numpy(), u.argmax(-1).numpy())
    assert loss.score(u, loss.encode(labels, 4)) == pytest.approx(expected, abs=1e-15)


def test_split_score_is_that_of_the_activated_scores() -> None:
    u, y = rows(80, 3), rows(80, 3, seed=1)
    expected = r2_score(y.numpy(), u.relu().numpy(), multioutput="variance_weighted")
    assert Split(SquaredError(), ReLU()).score(u, y) == pytest.approx(expected, abs=1e-12)


def test_regression_score_equals_sklearn_r2() -> None:
    y = rows(200, 3)
    u = y + 0.5 * rows(200, 3, seed=1)
    expected = r2_score(y.numpy(), u.numpy(), multioutput="variance_weighted")
    assert SquaredError().score(u, y) == pytest.approx(expected, abs=1e-12)
    assert SquaredError().score(u[:, :1], y[:, :1]) == pytest.approx(
        r2_score(y[:, 0].numpy(), u[:, 0].numpy()), abs=1e-12
    )
    assert SquaredError().score(y, torch.ones_like(y)) == 0.0


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_responses_that_do_not_vary_have_score_0(value: float) -> None:
    """The rounding of their mean is no variance."""
    u = torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert SquaredError().score(u, torch.full((60, 1), value, dtype=torch.float64)) == 0.0
