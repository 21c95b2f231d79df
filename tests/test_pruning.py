"""Pruned networks predict what the unpruned ones do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
UNITWISE = [
    "fenchel_relu",
    "relu",
    "sigmoid",
    "tanh",
    "softplus",
    "fenchel_leaky_relu",
    "leaky_relu",
    "hard_tanh",
    "sin",
    "identity",
]


def weights(*sizes: int, seed: int = 0) -> list[lnn.Affine]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [lnn.Affine(draw(q, p), draw(q)) for p, q in itertools.pairwise(sizes)]


def widths(network: lnn.LiftedNetwork) -> list[int]:
    return [layer.operator.out_width for layer in network.layers]


def same(network: lnn.LiftedNetwork, whole: list[lnn.Affine]) -> tuple[lnn.LiftedNetwork, list[lnn.Affine]]:
    """Prune, compare the scores, and give what is left."""
    smaller, left = network.prune(whole)
    torch.testing.assert_close(smaller.scores(left, X), network.scores(whole, X), rtol=1e-10, atol=1e-10)
    return smaller, left


@pytest.mark.parametrize("name", UNITWISE)
def test_units_without_weights_become_constants_of_the_next_bias(name: str) -> None:
    network, whole = lnn.LiftedNetwork.mlp([5, 6, 7, 3], name), weights(5, 6, 7, 3)
    whole[0].w[[1, 4]] = 0
    whole[1].w[2] = 0
    smaller, _ = same(network, whole)
    assert widths(smaller) == [4, 6, 3]


def test_slopes_of_pruned_units_go_with_them() -> None:
    slopes = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    network, whole = lnn.LiftedNetwork.mlp([5, 6, 3], act.FenchelLeakyReLU(slopes)), weights(5, 6, 3)
    whole[0].w[[1, 4]] = 0
    smaller, _ = same(network, whole)
    alone = smaller.layers[0].divergence
    assert isinstance(alone, act.FenchelLeakyReLU)
    assert torch.equal(torch.as_tensor(alone.alpha), slopes[[0, 2, 3, 5]])


def test_units_that_the_next_layer_ignores_are_removed() -> None:
    network, whole = lnn.LiftedNetwork.mlp([5, 6, 7, 3], "sigmoid"), weights(5, 6, 7, 3)
    whole[2].w[:, [0, 5]] = 0
    smaller, left = same(network, whole)
    assert widths(smaller) == [6, 5, 3]
    assert torch.equal(left[2].w, whole[2].w[:, [1, 2, 3, 4, 6]])


def test_what_is_left_over_by_a_pruned_unit_goes_too() -> None:
    forward, whole = lnn.LiftedNetwork.mlp([5, 6, 7, 3], "tanh"), weights(5, 6, 7, 3)
    whole[0].w[3] = 0
    whole[1].w[2] = 0
    whole[1].w[2, 3] = 1.0  # unit 2 reads a constant only
    assert widths(same(forward, whole)[0]) == [5, 6, 3]
    whole = weights(5, 6, 7, 3)
    whole[2].w[:, 4] = 0
    whole[1].w[:, 1] = 0
    whole[1].w[4, 1] = 1.0  # only a unit that no layer uses reads unit 1
    assert widths(same(forward, whole)[0]) == [5, 6, 3]


@pytest.mark.parametrize("number", [0, 1])
def test_one_unit_stays_where_none_has_an_effect(number: int) -> None:
    network, whole = lnn.LiftedNetwork.mlp([5, 6, 7, 3], "sigmoid"), weights(5, 6, 7, 3)
    whole[number].w.zero_()
    assert min(widths(same(network, whole)[0])[:2]) == 1


def test_a_constant_stays_where_the_next_layer_has_no_bias() -> None:
    dense = lnn.operators.Dense
    layers = [lnn.Layer(dense(5, 6), act.FenchelReLU()), lnn.Layer(dense(6, 3, bias=False), lnn.losses.SquaredError())]
    whole = weights(5, 6, 3)
    whole[1].b.zero_()
    whole[0].w[[0, 1]] = 0
    whole[0].b[0], whole[0].b[1] = 2.0, -2.0  # relu(-2) = 0 needs no bias
    assert widths(same(lnn.LiftedNetwork(layers), whole)[0]) == [5, 3]


def test_nothing_to_prune_leaves_all() -> None:
    network, whole = lnn.LiftedNetwork.mlp([5, 6, 3], act.Softmax()), weights(5, 6, 3)
    smaller, left = same(network, whole)
    assert widths(smaller) == [6, 3]
    assert all(torch.equal(a.w, b.w) for a, b in zip(left, whole, strict=True))


def test_a_topology_is_cut_with_its_units() -> None:
    mask, whole = torch.ones(6, 5, dtype=torch.bool), weights(5, 6, 3)
    mask[2] = False
    mask[0, 1] = False
    network = lnn.LiftedNetwork.mlp([5, 6, 3], "fenchel_relu").with_penalty([pen.Mask(mask), "l2"])
    whole[0] = lnn.Affine(whole[0].w * mask, whole[0].b)
    smaller, left = same(network, whole)
    penalty = smaller.layers[0].penalty
    assert isinstance(penalty, pen.Mask)
    assert torch.equal(penalty.mask, mask[[0, 1, 3, 4, 5]])  # type: ignore[arg-type]
    assert float(penalty.value(left[0].w)) < torch.inf


@pytest.mark.parametrize(
    ("activation", "sentence"),
    [
        (
            act.Softmax(),
            r"Softmax\(\) is not declared `unitwise`, so its units may depend on each other and none can be removed",
        ),
        (
            act.Simplex(),
            r"Simplex\(\) is not declared `unitwise`, so its units may depend on each other and none can be removed",
        ),
        (act.Scaled(act.Softmax(), 2.0), r"Scaled\(.*\) is not declared `unitwise`"),
        (act.MaxPool(2), "MaxPool.* makes one state of several units, so none can be removed"),
    ],
)
def test_units_that_depend_on_each_other_are_refused(activation: lnn.Activation, sentence: str) -> None:
    network = lnn.LiftedNetwork.mlp([5, 4, 3], activation)
    whole = weights(5, network.layers[0].operator.out_width, 3)
    whole = [whole[0], lnn.Affine(whole[1].w[:, :4], whole[1].b)]
    whole[0].w[1] = 0
    with pytest.raises(ValueError, match=f"layer 0: .*{sentence}"):
        network.prune(whole)


def test_an_orthogonal_layer_is_not_broken() -> None:
    network = lnn.LiftedNetwork.mlp([5, 6, 3], "fenchel_relu").with_penalty(["orthogonal", "l2"])
    whole = weights(5, 6, 3)
    whole[0] = lnn.Affine(pen.Orthogonal().prox(whole[0].w, 0.0), whole[0].b)
    whole[1].w[:, 2] = 0
    with pytest.raises(
        ValueError, match=r"the weights of layer 0 would violate Orthogonal\(scale=1.0\): give that layer"
    ):
        network.prune(whole)
    smaller, _ = network.with_penalty("l2").prune(whole)
    assert widths(smaller) == [5, 3]


def test_weights_are_needed_for_every_layer() -> None:
    with pytest.raises(ValueError, match="the network has 2 layers, weights were given for 1"):
        lnn.LiftedNetwork.mlp([5, 6, 3]).prune(weights(5, 6))


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


def test_group_sparsity_removes_a_third_of_a_classifiers_units(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    whole = lnn.LiftedClassifier(100, penalty="group:0.1", max_iter=40, random_state=0).fit(x[:1200], y[:1200])
    model = whole.prune()
    left = len(model.intercepts_[0])
    assert model.hidden_layer_sizes == (left,)
    assert left <= 66
    assert whole.hidden_layer_sizes == 100
    assert whole.coefs_[0].shape == (64, 100)
    np.testing.assert_allclose(model.predict_proba(x), whole.predict_proba(x), rtol=1e-5, atol=1e-6)
    assert model.score(x[1200:], y[1200:]) > 0.9
    assert model.transform(x).shape == (len(x), left)
    module = model.to_module()
    assert (module[0].out_features, module[2].in_features) == (left, left)
    with torch.no_grad():
        scores = module(torch.from_numpy(x)).softmax(1).numpy()
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=1e-4, atol=1e-6)
    assert clone(model).hidden_layer_sizes == (left,)
    model.partial_fit(x[:300], y[:300])
    assert model.coefs_[0].shape == (64, left)


def test_a_pruned_regressor_predicts_the_same_and_keeps_its_topology(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    mask = torch.ones(8, 64, dtype=torch.bool)
    mask[:3] = False
    whole = lnn.LiftedRegressor(8, penalty=[pen.Mask(mask), "l2"], max_iter=3, random_state=0).fit(x, y.astype(float))
    model = whole.prune()
    assert model.hidden_layer_sizes == (5,)
    np.testing.assert_allclose(model.predict(x), whole.predict(x), rtol=1e-5, atol=1e-5)
    assert model.fit(x, y.astype(float)).coefs_[0].shape == (64, 5)


@pytest.mark.parametrize("shape", [(6, 4), (1, 4), (4,), (6, 1)])
def test_a_mask_of_one_row_or_column_is_pruned_with_the_rest(shape: tuple[int, ...]) -> None:
    mask = torch.ones(shape)
    mask[..., 0] = 0 if shape[-1] > 1 else 1
    layers = [
        lnn.Layer(lnn.operators.Dense(4, 6), lnn.activations.FenchelReLU(), lnn.penalties.Mask(mask)),
        lnn.Layer(lnn.operators.Dense(6, 2), lnn.losses.SquaredError()),
    ]
    network, x = lnn.LiftedNetwork(layers), torch.randn(20, 4)
    weights = [lnn.Affine(torch.randn(6, 4) * mask, torch.randn(6)), lnn.Affine(torch.randn(2, 6), torch.randn(2))]
    weights[0].w[2] = 0
    smaller, fewer = network.prune(weights)
    assert fewer[0].w.shape == (5, 4)
    expected = lnn.predict.feedforward(network, weights, x)
    torch.testing.assert_close(lnn.predict.feedforward(smaller, fewer, x), expected)
    smaller.layers[0].penalty.prox(fewer[0].w, 0.1)
