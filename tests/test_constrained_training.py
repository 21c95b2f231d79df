"""Training under constraints: every block and every mini-batch step leaves the weights in their set, to 1e-6 in float32."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import Tensor, nn

import liftednn as lnn
from liftednn import activations as act
from liftednn import losses
from liftednn import penalties as pen
from liftednn.cli import commands as cli
from liftednn.data.sources import source_of
from liftednn.training.run import Run

RAW, LABELS = load_digits(return_X_y=True)
X, Y = torch.from_numpy(RAW[:500] / 16).float(), torch.from_numpy(LABELS[:500])
MASK = torch.rand(12, 64, generator=torch.Generator().manual_seed(0)) < 0.5
CONSTRAINTS: dict[str, lnn.Penalty] = {
    "orthogonal": pen.Orthogonal(),
    "orthogonal, scaled": pen.Orthogonal(0.3),
    "low rank": pen.LowRank(3),
    "low rank, ridge": pen.LowRank(3, 1e-3),
    "frobenius": pen.Ball(2.0),
    "spectral": pen.Ball(0.7, "spectral"),
    "row": pen.Ball(0.5, "row"),
    "l1": pen.Ball(6.0, "l1"),
    "non-negative": pen.NonNegative(1e-3),
    "mask": pen.Mask(MASK, 1e-3),
}
EVERY = pytest.mark.parametrize("name", CONSTRAINTS)


def violation(penalty: lnn.Penalty, w: Tensor) -> float:
    """The violation, by numpy, relative to the constraint's size."""
    a = w.double().numpy()
    if isinstance(penalty, pen.Orthogonal):
        gram = (a.T @ a if a.shape[0] >= a.shape[1] else a @ a.T) / penalty.scale**2
        return float(np.abs(gram - np.eye(len(gram))).max())
    if isinstance(penalty, pen.LowRank):
        sizes = np.linalg.svd(a, compute_uv=False)
        return float(sizes[penalty.rank] / sizes[0])
    if isinstance(penalty, pen.Ball):
        size = {
            "frobenius": np.linalg.norm(a),
            "spectral": np.linalg.norm(a, 2),
            "row": np.linalg.norm(a, axis=1).max(),
            "l1": np.abs(a).sum(),
        }[penalty.norm]
        return float(size / penalty.radius - 1)
    if isinstance(penalty, pen.Mask):
        assert penalty.mask is not None
        return float(np.abs(a[~penalty.mask.numpy()]).max())
    return -float(a.min())


def network(penalty: lnn.Penalty, activation: lnn.Activation, lam: float = 1.0) -> lnn.LiftedNetwork:
    """The first and the middle layer constrained, wide and narrow."""
    middle = penalty if not isinstance(penalty, pen.Mask) else pen.L2(1e-3)
    dense = lnn.operators.Dense
    return lnn.LiftedNetwork(
        [
            lnn.Layer(dense(64, 12), activation, penalty, lam),
            lnn.Layer(dense(12, 15), activation, middle, lam),
            lnn.Layer(dense(15, 10), losses.SoftmaxCrossEntropy(), pen.L2(1e-3)),
        ]
    )


def broken(net: lnn.LiftedNetwork, weights: list[lnn.Affine]) -> float:
    pairs = [(layer.penalty, w.w) for layer, w in zip(net.layers, weights, strict=True)]
    return max(violation(penalty, w) for penalty, w in pairs if not isinstance(penalty, pen.L2))


@pytest.mark.parametrize(
    ("name", "activation"),
    list(zip(CONSTRAINTS, itertools.cycle([act.ReLU(), act.FenchelReLU(), act.Sigmoid()]), strict=False)),
    ids=str,
)
@pytest.mark.thin(3)
def test_after_every_block_the_constraint_holds_and_the_objective_has_not_risen(
    name: str, activation: lnn.Activation
) -> None:
    net, bcd = network(CONSTRAINTS[name], activation), lnn.BCD(block_iter=40)
    state = bcd.init(net, X, Y)
    assert broken(net, state.weights) < 1e-6
    before = net.objective(state.weights, state.states)
    assert before < torch.inf
    for _ in range(2):
        for block in bcd.blocks(net, state):
            after = net.objective(state.weights, state.states)
            assert broken(net, state.weights) < 1e-6, block
            assert after <= before * (1 + 1e-6), block
            before = after


@EVERY
@pytest.mark.thin(2)
def test_after_every_mini_batch_step_the_constraint_holds(name: str) -> None:
    net = lnn.automatic(network(CONSTRAINTS[name], act.FenchelReLU()), X, Y)
    run = Run(lnn.MiniBatch(passes=2, batch_size=50), net, source_of(X, Y))
    seen: list[float] = []
    records = list(run.passes(lambda: seen.append(broken(net, run.unwhitened_weights()))))
    assert len(seen) == 20
    assert max(seen) < 1e-6
    assert records[-1].objective < torch.inf


def test_an_orthogonal_network_learns_by_mini_batches() -> None:
    net = lnn.LiftedNetwork.mlp([64, 40, 10], "fenchel_relu").with_penalty("orthogonal")
    assert [type(layer.penalty) for layer in net.layers] == [pen.Orthogonal, pen.L2]
    fit = lnn.MiniBatch(passes=15, batch_size=50).run(lnn.automatic(net, X, Y), X, Y)
    assert fit.history[-1].score > 0.97


def test_an_orthogonal_network_learns_by_full_passes() -> None:
    net = lnn.LiftedNetwork.mlp([64, 10, 10], "fenchel_relu").with_penalty("orthogonal", 1e-4)
    history = lnn.BCD(passes=5, block_iter=40).run(net, X, Y).history
    assert history[-1].score > history[0].score + 0.2


@EVERY
def test_random_weights_satisfy_the_constraint(name: str) -> None:
    net = network(CONSTRAINTS[name], act.FenchelReLU())
    weights = lnn.BCD().init(net, X, Y).weights
    assert broken(net, weights) < 1e-6


def test_given_weights_that_break_the_constraint_are_refused() -> None:
    net = lnn.LiftedNetwork.mlp([64, 20, 10], "fenchel_relu").with_penalty("orthogonal")
    free = lnn.BCD().init(net.with_penalty("l2"), X, Y).weights
    for trainer in (lnn.BCD(passes=1), lnn.MiniBatch(passes=1)):
        with pytest.raises(ValueError, match=r"layer 0 break the constraint Orthogonal.*: give penalty.prox\(w, 0.0\)"):
            trainer.run(net, X, Y, weights=free)
        trainer.run(net, X, Y, weights=[lnn.Affine(pen.Orthogonal().prox(free[0].w, 0.0), free[0].b), free[1]])


def test_a_head_can_be_orthogonal_too() -> None:
    net = lnn.LiftedNetwork.mlp([64, 20, 10], "fenchel_relu").with_penalty([pen.L2(), pen.Orthogonal(5.0)])
    for fit in (lnn.BCD(passes=2).run(net, X, Y), lnn.MiniBatch(passes=3).run(net, X, Y)):
        assert violation(pen.Orthogonal(5.0), fit.weights[1].w) < 1e-6
        assert fit.history[-1].score > 0.8


# entry points


@pytest.mark.parametrize("name", ["orthogonal", "low_rank:6", "nonnegative", "ball:2", "group:0.01", "none", "l1"])
@pytest.mark.thin(2)
def test_the_classifier_takes_a_penalty_by_name(name: str) -> None:
    model = lnn.LiftedClassifier(20, penalty=name, max_iter=4, random_state=0).fit(X.numpy(), Y.numpy())
    assert model.score(X.numpy(), Y.numpy()) > 0.7
    assert clone(model).penalty == name
    penalty = pen.named(name)
    assert model.network_.layers[0].penalty == penalty
    if isinstance(penalty, pen.Orthogonal | pen.LowRank | pen.Ball | pen.NonNegative):
        assert violation(penalty, torch.from_numpy(model.coefs_[0].T)) < 1e-6
    model.partial_fit(X.numpy(), Y.numpy())


def test_a_penalty_for_each_layer() -> None:
    each = [pen.Orthogonal(), "low_rank:2", "l1"]
    model = lnn.LiftedClassifier((12, 8), penalty=each, alpha=0.01, max_iter=3, random_state=0).fit(X, Y)
    expected = [pen.Orthogonal(), pen.LowRank(2, 0.01), pen.L1(0.01)]
    assert [layer.penalty for layer in model.network_.layers] == expected
    assert clone(model).penalty == each
    with pytest.raises(ValueError, match="penalty has 3 entries for 2 layers"):
        lnn.LiftedClassifier(12, penalty=each).fit(X, Y)


def test_a_regressors_constraints_hold_for_x_and_y_as_they_are_given() -> None:
    model = lnn.LiftedRegressor(12, penalty=[pen.Orthogonal(), pen.Ball(3.0)], max_iter=5, random_state=0)
    model.fit(10 * X.numpy(), 100 * Y.numpy().astype(np.float32))
    assert violation(pen.Orthogonal(), torch.from_numpy(model.coefs_[0].T)) < 1e-6
    assert violation(pen.Ball(3.0), torch.from_numpy(model.coefs_[1].T)) < 1e-6


@pytest.mark.slow
def test_lifted_takes_a_penalty() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    lnn.init.lifted_(module, X, Y, penalty="orthogonal")
    first = module[0]
    assert isinstance(first, nn.Linear)
    assert violation(pen.Orthogonal(), first.weight.detach()) < 1e-6
    with torch.no_grad():
        assert float((module(X).argmax(1) == Y).double().mean()) > 0.8
    with pytest.raises(ValueError, match="unknown penalty 'orthodox'"):
        lnn.init.lifted_(module, X, Y, penalty="orthodox")


def test_the_command_line_takes_a_penalty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "digits.csv"
    names = [f"p{place}" for place in range(64)]
    kept = [place for place in range(64) if float(X[:, place].std()) > 0]
    lines = [",".join([*(names[place] for place in kept), "label"])]
    lines += [
        ",".join([*(f"{float(row[place]):.4f}" for place in kept), f"d{int(y)}"]) for row, y in zip(X, Y, strict=True)
    ]
    table.write_text("\n".join(lines))
    out = tmp_path / "model.safetensors"
    line = ["fit", str(table), "--target", "label", "--out", str(out), "--hidden", "15", "--passes", "3", "--json"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*line, "--penalty", "low_rank:4"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["score"] > 0.5
    saved = lnn.load(out)
    assert saved.network.layers[0].penalty == pen.LowRank(4)
    assert violation(pen.LowRank(4), saved.weights[0].w) < 1e-6
    with pytest.raises(SystemExit) as ended:
        cli.main([*line, "--penalty", "rank"])
    assert ended.value.code == 2
    assert "unknown penalty 'rank'" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("ball", [pen.Ball(1.0, "l1"), pen.Ball(0.3, "frobenius")], ids=repr)
@pytest.mark.thin(2)
def test_intercepts_do_not_move_against_a_constraint(ball: pen.Ball) -> None:
    """Where the constraint undoes the steps of w, intercepts that belonged to these steps would grow without end."""
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    constant = torch.bincount(y).double().div(300).log()[y].mean().neg()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    lnn.init.lifted_(module, x, y, penalty=ball)
    with torch.no_grad():
        assert float(nn.functional.cross_entropy(module(x), y)) < float(constant)
    assert max(abs(each) for each in module[2].bias.tolist()) < 3  # type: ignore[union-attr, operator]
