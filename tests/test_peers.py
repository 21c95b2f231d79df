"""The peer methods: their objectives fall where their theory says so, the scalar step is exact, and both learn."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from experiments import peers
from liftednn.base import Affine

SIZES = [5, 7, 6, 3]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draw(40, 5)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
TARGETS = torch.eye(3, dtype=torch.float64)[LABELS]


def accuracy(weights: list[Affine], x: Tensor, y: Tensor) -> float:
    for w, b in weights[:-1]:
        x = torch.relu(x @ w.T + b)
    w, b = weights[-1]
    return float(((x @ w.T + b).argmax(1) == y).double().mean())


def contractions() -> list[Tensor]:
    """Weights of norm 0.9, for which the fixed point of every hidden layer is a contraction."""
    weights = [draw(q, p + 1, seed=p) for p, q in pairwise(SIZES)]
    return [0.9 * w / torch.linalg.matrix_norm(w, 2) for w in weights]


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_three_splitting_falls_at_every_block(gamma: float) -> None:
    split = peers.split_start(X, LABELS, SIZES, 0, gamma, alpha=0.5)
    value = float(split.objective())
    for _ in range(5):
        names = []
        for name in peers.split_blocks(split):
            names.append(name)
            value, last = float(split.objective()), value
            assert value <= last + 1e-10
        assert names == ["v3", "u3", "w3", "v2", "u2", "w2", "v1", "u1", "w1"]


def test_scalar_step_against_a_grid() -> None:
    v, pre, old = 2 * draw(3, 200)
    grid = torch.linspace(-9, 9, 36_001, dtype=torch.float64)[:, None]

    def energy(u: Tensor) -> Tensor:
        return 0.7 * ((v - torch.relu(u)) ** 2 + (u - pre) ** 2) + 0.4 * (u - old) ** 2

    best = energy(grid).min(0).values
    found = energy(peers.split_u(v, pre, old, 0.7, 0.4))
    assert bool((found <= best + 1e-12).all())
    assert float((best - found).max()) < 1e-6


def test_v_and_w_blocks_are_stationary() -> None:
    split = peers.split_start(X, LABELS, SIZES, 0, 0.3, 0.5)
    for _ in range(2):
        before = split.weights[1]
        for name in peers.split_blocks(split):
            if name == "v2":
                assert gradient(split, split.v, 2).abs().max() < 1e-12
            if name == "w2":
                proximal = split.alpha * (split.weights[1] - before)
                assert (gradient(split, split.weights, 1) + proximal).abs().max() < 1e-10


def gradient(split: peers.Split, block: list[Tensor], place: int) -> Tensor:
    block[place].requires_grad_()
    (grad,) = torch.autograd.grad(split.objective(), block[place])
    block[place] = block[place].detach()
    return grad


def test_lpom_states_fall_to_a_fixed_point() -> None:
    weights = contractions()
    states = peers.recursion(weights, X)
    value = float(peers.lpom_objective(weights, states, TARGETS, 20.0))
    for _ in range(300):
        states = peers.lpom_states(weights, states, TARGETS, 20.0, 1)
        value, last = float(peers.lpom_objective(weights, states, TARGETS, 20.0)), value
        assert value <= last + 1e-10
    after = peers.lpom_states(weights, states, TARGETS, 20.0, 1)
    assert max(float((a - b).abs().max()) for a, b in zip(after, states, strict=True)) < 1e-10


def test_lpom_objective_vanishes_on_the_recursion() -> None:
    weights = contractions()
    states = peers.recursion(weights, X)
    assert float(peers.lpom_objective(weights, states, states[-1], 20.0)) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("inverse", [True, False])
@pytest.mark.parametrize("rows", [4, 40])
def test_lpom_weights_fall_and_reach_the_minimum(inverse: bool, rows: int) -> None:
    x, z, w = X[:rows], torch.relu(draw(rows, 7, seed=1)), draw(7, 6, seed=2)

    def value(w: Tensor) -> float:
        return float(peers.lpom_objective([w], [x, z], z, 1.0))

    far = peers.lpom_weights(w, x, z, 1000, inverse)
    residual = torch.relu(peers.extend(x) @ far.T) - z
    assert (residual.T @ peers.extend(x)).abs().max() < 1e-4
    for _ in range(10):
        w, last = peers.lpom_weights(w, x, z, 1, inverse), value(w)
        assert value(far) - 1e-9 <= value(w) <= last


@pytest.mark.parametrize("inverse", [True, False])
def test_lpom_weights_are_nesterovs_iterates(inverse: bool) -> None:
    x, z, w = peers.extend(X[:4]), torch.relu(draw(4, 7, seed=1)), draw(7, 6, seed=2)
    p = torch.linalg.pinv(x.T) if inverse else x / torch.linalg.matrix_norm(x, 2) ** 2
    now, ahead, t = w, w, 1.0
    for _ in range(6):
        step = ahead - (torch.relu(x @ ahead.T) - z).T @ p
        t, last = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
        ahead, now = step + (last - 1) / t * (step - now), step
    torch.testing.assert_close(peers.lpom_weights(w, X[:4], z, 6, inverse), now)


def separable() -> tuple[Tensor, Tensor]:
    y = torch.arange(600) % 3
    centres = 3 * torch.eye(3, 5, dtype=torch.float64)
    return (centres[y] + draw(600, 5) / 2).float(), y


def test_lpom_learns() -> None:
    x, y = separable()
    seen: list[float] = []
    weights = peers.lpom(x, y, [5, 20, 3], 5, 0, batch=20, callback=lambda w: seen.append(accuracy(w, x, y)))
    assert len(seen) == 5
    assert seen[-1] == accuracy(weights, x, y) > 0.95
    assert [(w.shape, b.shape, w.dtype) for w, b in weights] == [
        ((20, 5), (20,), torch.float32),
        ((3, 20), (3,), torch.float32),
    ]


def test_three_splitting_learns() -> None:
    x, y = separable()
    seen: list[float] = []
    weights = peers.three_splitting(x, y, [5, 20, 3], 20, 0, callback=lambda w: seen.append(accuracy(w, x, y)))
    assert len(seen) == 20
    assert seen[-1] == accuracy(weights, x, y) > 0.95


@pytest.mark.parametrize("train", [peers.lpom, peers.three_splitting])
def test_same_seed_same_weights(train: object) -> None:
    x, y = separable()
    first, second = (train(x, y, [5, 8, 3], 2, 3) for _ in range(2))  # type: ignore[operator]
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.w, b.w)
        assert torch.equal(a.b, b.b)
