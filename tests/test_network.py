from typing import Any

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn.base import Affine
from liftednn.network import LiftedNetwork
from liftednn.operators import AvgPool2d, Composed, Conv2d, Dense


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(network: lnn.LiftedNetwork) -> list[lnn.Affine]:
    return [
        lnn.Affine(draw(*layer.operator.weight_shape), draw(layer.operator.weight_shape[0])) for layer in network.layers
    ]


def test_mlp_reads_like_its_arguments() -> None:
    network = lnn.LiftedNetwork.mlp([784, 300, 100, 10], activation=["relu", act.Tanh()], lam=[2.0, 3.0], rho=0.5)
    assert [layer.operator.weight_shape for layer in network.layers] == [(300, 784), (100, 300), (10, 100)]
    assert network.hidden == [act.ReLU(), act.Tanh()]
    assert [layer.lam for layer in network.layers] == [2.0, 3.0, 1.0]
    assert all(layer.penalty == lnn.penalties.L2(0.5) for layer in network.layers)


def test_mlp_sizes_are_widths_of_states() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 2], activation=act.MaxPool(3), loss="squared")
    assert network.layers[0].operator.weight_shape == (18, 4)
    assert network.propagate(weights_of(network), draw(5, 4))[1].shape == (5, 6)


@pytest.mark.parametrize("name", act.__all__)
def test_gaps_vanish_exactly_where_the_recursion_holds(name: str) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 2], activation=getattr(act, name)(), loss="squared")
    weights, y = weights_of(network), draw(30, 2)
    states = [*network.propagate(weights, draw(30, 4)), y]
    assert network.gaps(weights, states)[0] == pytest.approx(0, abs=1e-9)
    other = [*network.propagate(weights, draw(30, 4, seed=7)), y]
    states[1] = torch.lerp(states[1], other[1], 0.5)
    if network.objective(weights, states) < torch.inf:
        assert network.gaps(weights, states)[0] > 1e-6


def test_evaluate_does_not_depend_on_how_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 3], activation="tanh")
    weights, x = weights_of(network), draw(50, 4)
    states = [*network.propagate(weights, x), network.loss.encode(torch.arange(50) % 3, 3).double()]
    whole = network.evaluate(weights, states)
    monkeypatch.setattr("liftednn.network.network._CPU_ROWS", 7)
    cut = network.evaluate(weights, states)
    assert cut.objective == pytest.approx(whole.objective, rel=1e-12)
    assert cut.gaps == pytest.approx(whole.gaps, abs=1e-12)
    assert cut.score == whole.score


def test_the_objective_is_added_up_in_float64() -> None:
    network = lnn.LiftedNetwork.mlp([4, 6, 2], activation="relu", loss="squared")
    weights = weights_of(network)
    states = [draw(2000, 4), draw(2000, 6).abs(), draw(2000, 2)]
    exact = network.objective(weights, states)
    single = network.objective([lnn.Affine(w.float(), b.float()) for w, b in weights], [s.float() for s in states])
    assert single == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: lnn.LiftedNetwork.mlp([4]), "at least inputs and outputs"),
        (lambda: lnn.LiftedNetwork.mlp([4, 3, 2], activation="swish"), "unknown activation 'swish'"),
        (lambda: lnn.LiftedNetwork.mlp([4, 3, 2], loss="hinge"), "unknown loss 'hinge'"),
        (lambda: lnn.LiftedNetwork.mlp([4, 3, 2], lam=-1.0), "lam must be positive, got -1.0"),
        (lambda: lnn.LiftedNetwork.mlp([4, 3, 2], lam=[1.0, 2.0]), "lam has 2 entries for 1 hidden layers"),
        (lambda: lnn.LiftedNetwork.mlp([4, 3, 2], rho=-1e-3), "rho must be non-negative"),
        (lambda: lnn.LiftedNetwork([]), "at least one layer"),
        (lambda: lnn.LiftedNetwork([lnn.Layer(lnn.operators.Dense(2, 2), act.ReLU())]), "must be a Loss"),
        (lambda: _chain(5, 4), "layer 0 gives 5 states, but layer 1 takes 4"),
        (lambda: _chain(5, 5, lnn.losses.SquaredError()), "must be an Activation"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(build, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


def _chain(gives: int, takes: int, first: lnn.Divergence | None = None) -> lnn.LiftedNetwork:
    dense, loss = lnn.operators.Dense, lnn.losses.SquaredError()
    return lnn.LiftedNetwork([lnn.Layer(dense(3, gives), first or act.ReLU()), lnn.Layer(dense(takes, 1), loss)])


def test_lam_can_be_given_anew() -> None:
    network = lnn.LiftedNetwork.mlp([4, 3, 3, 2], lam=2.0)
    assert [layer.lam for layer in network.with_lam(5.0).layers] == [5.0, 5.0, 1.0]
    assert [layer.lam for layer in network.with_lam([3.0, 4.0]).layers] == [3.0, 4.0, 1.0]
    assert network.with_lam([2.0, 2.0]) == network
    with pytest.raises(ValueError, match="lam has 3 entries for 2 hidden layers"):
        network.with_lam([1.0, 2.0, 3.0])


def test_a_cnn_is_convolutions_with_the_poolings_before_the_next_layer() -> None:
    network = LiftedNetwork.cnn(
        (1, 8, 8), [4, "avgpool", 6, "avgpool", "avgpool", ("dense", 5)], outputs=3, lam=[1, 2, 3]
    )
    first, second, third, last = (layer.operator for layer in network.layers)
    assert first == Conv2d((1, 8, 8), 4, 3, padding=1)
    assert second == Composed(Conv2d((4, 4, 4), 6, 3, padding=1), AvgPool2d(2), (4, 8, 8))
    assert third == Composed(Composed(Dense(6, 5), AvgPool2d(2), (6, 2, 2)), AvgPool2d(2), (6, 4, 4))
    assert last == Dense(5, 3)
    assert [layer.lam for layer in network.layers] == [1, 2, 3, 1]


def test_a_cnn_has_the_scores_of_torchs_layers() -> None:
    network = LiftedNetwork.cnn((2, 9), [4, "avgpool"], outputs=3)
    module = torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AvgPool1d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )
    weights = [Affine(layer.weight.detach().flatten(1), layer.bias.detach()) for layer in (module[0], module[4])]  # type: ignore[union-attr, operator, arg-type]
    x = torch.randn(5, 2, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network.scores(weights, network.check_rows(x)), module(x).detach())


@pytest.mark.parametrize("activation", ["relu", "fenchel_relu"])
def test_a_cnn_with_max_pooling_has_the_scores_of_torchs_layers(activation: str) -> None:
    network = LiftedNetwork.cnn((1, 10, 10), [("conv", 4, 3), "maxpool", ("dense", 6)], 3, activation)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 6),
        torch.nn.ReLU(),
        torch.nn.Linear(6, 3),
    )
    parts = [module[0], module[4], module[6]]
    weights = [Affine(each.weight.detach().flatten(1), each.bias.detach()) for each in parts]  # type: ignore[union-attr, operator, arg-type]
    x = torch.randn(5, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network.scores(weights, network.check_rows(x)), module(x).detach())


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (["pool"], "layers may hold numbers of channels, .*, got 'pool'"),
        (["maxpool"], "'maxpool' must follow a convolution"),
        ([4, "maxpool", "maxpool"], "'maxpool' must follow a convolution"),
        ([("dense", 3), 4], "a convolution of 4 channels cannot follow a dense layer"),
        ([("dense", 3)], "holds no convolution or pooling, got .*: use LiftedNetwork.mlp"),
        ([], "holds no convolution or pooling"),
        ([("dense", 3), "avgpool"], "'avgpool' needs channels"),
        (["avgpool"] * 4, r"do not fit in samples of \(1, 1, 1\)"),
    ],
)
def test_impossible_layers_of_a_cnn_are_refused(layers: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LiftedNetwork.cnn((1, 8, 8), layers, outputs=2)


def test_a_cnn_needs_channels_and_sizes() -> None:
    with pytest.raises(ValueError, match=r"in_shape must be \(channels, height, width\) or \(channels, length\), got"):
        LiftedNetwork.cnn((784,), [4], outputs=2)
