"""Networks whose layers read states by name and share weights: what is refused, and that everything else works for them too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn import activations as act
from liftednn import penalties as pen
from liftednn.data.sources import source_of
from liftednn.losses import SoftmaxCrossEntropy, SquaredError
from liftednn.operators import Dense, Residual, Sum
from liftednn.training.batch import recursion, x_step
from liftednn.training.geometry import SharedMetric
from liftednn.training.run import Run
from tests.shaped import Grouped, Halves, Pointwise

DEPTH = 20


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draw(0, 300, 6)
Y = ((X[:, 0] * X[:, 1] + X[:, 2].abs()) > 0.8).long()
CODES = torch.tanh(draw(1, 300, 2) @ draw(2, 2, 6))


def residual(phi: lnn.Activation, depth: int = DEPTH) -> lnn.LiftedNetwork:
    middle = [lnn.Layer(Residual(Dense(8, 8)), phi) for _ in range(depth - 2)]
    return lnn.LiftedNetwork([lnn.Layer(Dense(6, 8), phi), *middle, lnn.Layer(Dense(8, 2), SoftmaxCrossEntropy())])


def autoencoder(phi: lnn.Activation) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(6, 4), phi, pen.L2(1e-4), key="w"),
            lnn.Layer(Dense(4, 6), SquaredError(), pen.L2(1e-4), key="w", transposed=True),
        ]
    )


def recurrent(phi: lnn.Activation) -> lnn.LiftedNetwork:
    """One square w three times, states that skip a layer, and a last layer that reads two."""
    shared: dict[str, Any] = {"penalty": pen.L2(1e-3), "key": "again"}
    return lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(6, 5), phi, name="in"),
            lnn.Layer(Dense(5, 5), phi, name="a", **shared),
            lnn.Layer(Sum(Dense(5, 5)), phi, name="b", reads=("a", "in"), **shared),
            lnn.Layer(Residual(Dense(5, 5, bias=False)), phi, name="c", **shared),
            lnn.Layer(Sum(Dense(5, 2), (True, True), (False, False)), SoftmaxCrossEntropy(), reads=("c", "a")),
        ]
    )


def shaped(phi: lnn.Activation) -> lnn.LiftedNetwork:
    """A strided 1x1 convolution, one matrix on two halves, and groups."""
    return lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(6, 32), phi),
            lnn.Layer(Pointwise(2, 8, 4, 2), phi),
            lnn.Layer(Dense(32, 32), phi),
            lnn.Layer(Halves(16, 8), phi),
            lnn.Layer(Grouped(2, 8, 4), phi),
            lnn.Layer(Dense(8, 2), SoftmaxCrossEntropy()),
        ]
    )


def tied(network: lnn.LiftedNetwork, weights: list[lnn.Affine]) -> bool:
    """Whether layers that share a key have the same w."""
    flips = [layer.transposed for layer in network.layers]
    links = zip(network.connections.owners, flips, weights, strict=True)
    return all(torch.equal(w.T if flip else w, weights[owner].w) for owner, flip, (w, _) in links)


CASES: dict[str, tuple[Any, Tensor]] = {
    "residual": (residual, Y),
    "autoencoder": (autoencoder, CODES),
    "recurrent": (recurrent, Y),
    "shaped": (shaped, Y),
}


@pytest.mark.parametrize("phi", [act.ReLU(), act.FenchelReLU()], ids=["euclidean", "fenchel"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.thin(2)
def test_no_block_raises_the_objective(name: str, phi: lnn.Activation) -> None:
    make, y = CASES[name]
    network, x = make(phi), CODES if name == "autoencoder" else X
    bcd = lnn.BCD()
    state = bcd.init(network, x, y)
    first = before = network.objective(state.weights, state.states)
    for _ in range(1 if name == "residual" else 3):
        for block in bcd.blocks(network, state):
            after = network.objective(state.weights, state.states)
            assert after <= before + 1e-9 * abs(before), block.name
            assert block.kkt <= 1e-3, block.name
            before = after
    assert before < 0.95 * first
    assert tied(network, state.weights)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thin(2)
def test_mini_batches_learn(name: str) -> None:
    make, y = CASES[name]
    x = CODES if name == "autoencoder" else X
    network = lnn.automatic(make(act.FenchelReLU()), x, y)
    fit = lnn.MiniBatch(passes=20, batch_size=30).run(network, x, y)
    assert fit.history[-1].score > 0.85
    assert tied(network, fit.weights)


@pytest.mark.parametrize("name", [name for name in CASES if name != "autoencoder"])
def test_for_large_lam_rows_and_gradients_give_the_gradient_in_the_weights(name: str) -> None:
    """Against back-propagation, with smooth activations: a w that layers share has the sum of their gradients."""
    network = CASES[name][0](act.Softplus())
    network = lnn.LiftedNetwork([*(replace(layer, lam=1e7) for layer in network.layers[:-1]), network.layers[-1]])
    run = Run(lnn.MiniBatch(keep=1.0), network, source_of(X, Y))
    inner, descent = run.descent.network, run.descent
    rows, y, _ = next(iter(run.feed.batches(40, 0, 0)))
    descent.norm_limit = None
    batch = descent.gradients(rows, y)
    leaves = {owner: descent.weights[owner].w.clone().requires_grad_() for owner in set(inner.connections.owners)}
    intercepts = [pair.b.clone().requires_grad_() for pair in descent.weights]
    flips = [layer.transposed for layer in inner.layers]
    pairs = zip(inner.connections.owners, flips, intercepts, strict=True)
    weights = [lnn.Affine(leaves[owner].T if flip else leaves[owner], b) for owner, flip, b in pairs]
    with torch.enable_grad():
        inner.loss.value(inner.scores(weights, rows), y).mean().backward()  # type: ignore[no-untyped-call]
    for owner, leaf in leaves.items():
        total = torch.zeros_like(leaf)
        for each in inner.connections.sharing(owner):
            part = batch.w_gradients[each]
            total += (part.T if flips[each] else part) / len(rows)
            torch.testing.assert_close(batch.b_gradients[each] / len(rows), intercepts[each].grad, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(total, leaf.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_network_is_saved_and_comes_back(name: str, tmp_path: Path) -> None:
    network = CASES[name][0](act.FenchelReLU())
    x = X[:20]
    weights = lnn.BCD(passes=0).run(network, x, CASES[name][1][:20]).weights
    lnn.save(tmp_path / "model", network, weights)
    saved = lnn.load(tmp_path / "model", classes=[Pointwise, Halves, Grouped])
    assert saved.network == network
    assert saved.network.connections == network.connections
    torch.testing.assert_close(saved.network.scores(saved.weights, x), network.scores(weights, x), rtol=0, atol=0)


def test_a_file_whose_shared_weights_differ_is_refused(tmp_path: Path) -> None:
    network = autoencoder(act.ReLU())
    weights = lnn.BCD(passes=0).run(network, CODES, CODES).weights
    weights[1] = lnn.Affine(2 * weights[1].w, weights[1].b)
    with pytest.raises(ValueError, match="layers 0 and 1 share the key 'w', but their weights differ"):
        lnn.save(tmp_path / "model", network, weights)
    with pytest.raises(ValueError, match="layers 0 and 1 share the key 'w', but their weights differ"):
        lnn.BCD().run(network, CODES, CODES, weights)


@pytest.mark.parametrize("name", ["residual", "recurrent", "shaped"])
@pytest.mark.thin(4)
def test_a_resumed_run_gives_the_weights_of_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    network = lnn.automatic(CASES[name][0](act.FenchelReLU()), X, Y)
    whole = lnn.MiniBatch(passes=4).run(network, X, Y)
    path = lnn.Checkpoint(tmp_path / "run")
    lnn.MiniBatch(passes=4).run(network, X, Y, checkpoint=path, callback=lambda record: len(record.gaps) > 0)
    again = lnn.MiniBatch(passes=4).run(network, X, Y, checkpoint=path)
    assert len(again.history) == 4
    for a, b in zip(whole.weights, again.weights, strict=True):
        torch.testing.assert_close(a.w, b.w, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["recurrent", "shaped"])
@pytest.mark.thin(2)
def test_the_lifted_rule_ends_below_the_feed_forward_one(name: str) -> None:
    network = CASES[name][0](act.ReLU())
    weights = lnn.BCD(passes=2).run(network, X[:60], Y[:60]).weights
    scores = lnn.predict.lifted(network, weights, X[:2])
    for label in range(2):
        y = network.loss.encode(torch.full((2,), label), 2).double()
        states = [*network.propagate(weights, X[:2]), y]
        terms = [
            layer.lam * layer.divergence.value(network.preactivation(number, weights, states), states[number + 1])
            for number, layer in enumerate(network.layers)
        ]
        assert bool((-scores[:, label] <= torch.stack(terms).sum(0) + 1e-9).all())


def test_pruning_leaves_what_a_sum_or_a_key_needs() -> None:
    """Only units between plain layers with weights of their own are removed; predictions stay."""
    phi = act.FenchelReLU()
    network = lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(6, 5), phi, name="a"),
            lnn.Layer(Dense(5, 4), phi, name="b"),
            lnn.Layer(Dense(5, 4), phi, name="c", reads=("a",)),
            lnn.Layer(Sum(Dense(4, 4)), phi, reads=("b", "c")),
            lnn.Layer(Dense(4, 2), SoftmaxCrossEntropy()),
        ]
    )
    weights = [
        lnn.Affine(draw(i, *layer.operator.weight_shape), draw(9 + i, layer.operator.outputs))
        for i, layer in enumerate(network.layers)
    ]
    for number in (0, 1):
        weights[number].w[1] = 0  # constants: the first goes into both biases, the second is part of a sum
    weights[1].w[:, 3] = weights[2].w[:, 3] = 0  # no layer uses unit 3
    weights[1].w[:, 2] = 0  # one of two layers uses unit 2
    smaller, found = network.prune(weights)
    assert [layer.operator.out_width for layer in smaller.layers] == [3, 4, 4, 4, 2]
    torch.testing.assert_close(smaller.scores(found, X), network.scores(weights, X))
    with pytest.raises(ValueError, match="no unit can be removed"):
        autoencoder(phi).prune([lnn.Affine(weights[0].w, weights[0].b)] * 2)


def network_with(*layers: lnn.Layer) -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork([*layers, lnn.Layer(Dense(4, 2), SquaredError())])


RELU = act.ReLU()
REFUSED = {
    "every state needs a name of its own": lambda: network_with(
        lnn.Layer(Dense(3, 4), RELU, name="a"), lnn.Layer(Dense(4, 4), RELU, name="a")
    ),
    r"layer 1 reads \('b',\): give names of states before it, each once: \['x0', 'x1'\]": lambda: network_with(
        lnn.Layer(Dense(3, 4), RELU), lnn.Layer(Dense(4, 4), RELU, reads=("b",))
    ),
    r"reads 2 states, and reads=\('x1',\) names 1": lambda: network_with(
        lnn.Layer(Dense(3, 4), RELU), lnn.Layer(Sum(Dense(4, 4)), RELU)
    ),
    "no layer reads the state 'x1'": lambda: network_with(
        lnn.Layer(Dense(3, 4), RELU), lnn.Layer(Dense(3, 4), RELU, reads=("x0",))
    ),
    "layer 0 gives 5 states, but layer 1 takes 4": lambda: network_with(lnn.Layer(Dense(3, 5), RELU)),
    r"layer 0 gives \(2, 6\) states, but layer 1 takes \(6, 2\)": lambda: network_with(
        lnn.Layer(Halves(3, 6), RELU), lnn.Layer(Turned(), RELU)
    ),
    r"share the key 'w', so w of layer 1 should have shape \(4, 3\), and has \(4, 4\)": lambda: network_with(
        lnn.Layer(Dense(3, 4), RELU, key="w"), lnn.Layer(Dense(4, 4), RELU, key="w")
    ),
    "share the key 'w', so they must have one penalty": lambda: network_with(
        lnn.Layer(Dense(4, 4), RELU, key="w"), lnn.Layer(Dense(4, 4), RELU, pen.L1(0.1), key="w")
    ),
    "transposed=True needs a key": lambda: network_with(lnn.Layer(Dense(4, 4), RELU, transposed=True)),
    "does not act on every unit alone and alike": lambda: network_with(lnn.Layer(Halves(3, 2), act.Softmax())),
    "BoxBall needs an operator u = x w' \\+ b": lambda: network_with(
        lnn.Layer(Halves(3, 2), RELU, uncertainty=lnn.robust.BoxBall(0.1))
    ),
    "an uncertainty needs a layer that shares its w with no other": lambda: network_with(
        lnn.Layer(Dense(4, 4), RELU, key="w", uncertainty=lnn.robust.Noise(0.1))
    ),
}


class Turned(Halves):
    """Two columns, six rows."""

    in_shapes = property(lambda self: ((6, 2),))
    out_shape = property(lambda self: (4,))
    weight_shape = property(lambda self: (4, 12))


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_fit_is_refused_in_words(sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        REFUSED[sentence]()


def test_layers_that_share_w_need_a_convex_penalty_to_be_trained() -> None:
    orthogonal = pen.Orthogonal()
    layers = [lnn.Layer(Dense(4, 4), RELU, orthogonal, key="w") for _ in range(2)]
    with pytest.raises(ValueError, match="layers that share their w need a convex penalty"):
        lnn.BCD().run(network_with(*layers), draw(0, 9, 4), draw(1, 9, 2))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((Dense(4, 3), (True,), (True,)), r"has the shape \(4,\) before .* and \(3,\) after it"),
        ((Dense(4, 3), (True, False), (True,)), "one entry for each state that is read"),
        ((Dense(4, 3), (False,), (True,)), "some state must enter"),
        ((Dense(4, 3), (True, False), (False, False)), "must enter or be added"),
        ((Sum(Dense(4, 3)),), "an operator that reads one state"),
    ],
)
def test_sums_that_make_no_sense_are_refused(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Sum(*arguments)


def test_images_may_be_given_in_their_shape() -> None:
    network = lnn.LiftedNetwork(
        [lnn.Layer(Pointwise(2, 3, 4, 2), act.FenchelReLU()), lnn.Layer(Dense(12, 2), SoftmaxCrossEntropy())]
    )
    images = draw(3, 30, 2, 4, 4)
    fit = lnn.MiniBatch(passes=2).run(network, images, Y[:30])
    flat = lnn.MiniBatch(passes=2).run(network, images.flatten(1), Y[:30])
    assert fit.history[-1].loss == flat.history[-1].loss
    scores = lnn.predict.feedforward(network, fit.weights, images)
    torch.testing.assert_close(scores, network.scores(fit.weights, images.flatten(1)))
    torch.testing.assert_close(
        Pointwise(2, 3, 4, 2).forward([images.flatten(1)], fit.weights[0]).view(30, 3, 2, 2),
        torch.nn.functional.conv2d(images, fit.weights[0].w[:, :, None, None], fit.weights[0].b, stride=2),
    )


def test_a_recursion_reads_states_in_any_order_before_it() -> None:
    network = recurrent(act.Tanh())
    weights = lnn.BCD(passes=0).run(network, X, Y).weights
    states, u = recursion(network, weights, X)
    (w0, b0), (w1, b1), (w2, b2), (w3, b3), (w4, b4) = weights
    first = torch.tanh(X @ w0.T + b0)
    a = torch.tanh(first @ w1.T + b1)
    b = torch.tanh(a @ w2.T + b2 + first)
    c = torch.tanh(b @ w3.T + b3 + b)
    torch.testing.assert_close(states[-1], c)
    torch.testing.assert_close(u[-1], (c + a) @ w4.T + b4)
    assert len(x_step(network, weights, X, network.loss.encode(Y, 2).double()).states) == 4


def test_rescaling_is_for_chains() -> None:
    network = recurrent(act.ReLU())
    with pytest.raises(ValueError, match="only a chain of layers"):
        network.equalised([], [])


@pytest.mark.parametrize("size", [1e-2, 100.0])
def test_a_tied_autoencoder_learns_at_every_scale(size: float) -> None:
    x = size * CODES
    network = lnn.automatic(autoencoder(act.FenchelReLU()), x, x)
    assert lnn.MiniBatch(passes=30, batch_size=30).run(network, x, x).history[-1].score > 0.9


@pytest.mark.parametrize("square", [True, False])
def test_a_penalty_that_looks_at_rows_holds_for_the_first_of_those_that_share(square: bool, tmp_path: Path) -> None:
    """Transposed, the weights may break it; a mask is compared by what it holds."""
    out = 3 if square else 4
    mask = torch.ones(out, 3).triu()
    layers = [
        lnn.Layer(Dense(3, out), act.FenchelReLU(), pen.Mask(mask.clone()), key="w"),
        lnn.Layer(Dense(out, 3), SquaredError(), pen.Mask(mask.clone()), key="w", transposed=True),
    ]
    network, x = lnn.LiftedNetwork(layers), draw(0, 40, 3)
    weights = lnn.BCD(passes=1).run(network, x, x).weights
    lnn.BCD(passes=1).run(network, x, x, weights)
    fit = lnn.MiniBatch(passes=1).run(network, x, x, weights)
    assert bool((fit.weights[0].w[mask == 0] == 0).all())
    lnn.save(tmp_path / "model", network, weights)
    assert lnn.load(tmp_path / "model").network.connections == network.connections


def test_a_prox_is_found_for_smooth_readers_beside_rough_ones() -> None:
    """A split loss is smooth and an l1 ReLU is not; an operator that views its input needs it contiguous."""
    layers = [
        lnn.Layer(Dense(6, 6), RELU, name="a"),
        lnn.Layer(Halves(3, 3), act.ReLU("l1"), name="b"),
        lnn.Layer(Sum(Dense(6, 2), (True, True), (False, False)), lnn.losses.Split(), reads=("b", "a")),
    ]
    network = lnn.LiftedNetwork(layers)
    bcd = lnn.BCD(block_iter=20)
    state = bcd.init(network, X[:20], draw(3, 20, 2).relu())
    before = network.objective(state.weights, state.states)
    for block in bcd.blocks(network, state):
        after = network.objective(state.weights, state.states)
        assert after <= before * (1 + 1e-9), block.name
        before = after


def test_inputs_that_are_all_0_leave_a_shared_w_where_it_is() -> None:
    zeros, penalty = torch.zeros(50, 6, dtype=torch.float64), pen.L1(1e-3)
    layers = [replace(layer, penalty=penalty) for layer in autoencoder(act.FenchelReLU()).layers]
    assert lnn.MiniBatch(passes=1).run(lnn.LiftedNetwork(layers), zeros, zeros).status == "finished"


def test_a_w_that_is_fixed_in_one_layer_is_fixed_in_all_that_share_it() -> None:
    network, w = autoencoder(act.FenchelReLU()), draw(5, 4, 6)
    fit = lnn.MiniBatch(passes=1).run(network, CODES, CODES, fixed=[(w, None), (None, None)])
    assert torch.equal(fit.weights[0].w, w)
    assert torch.equal(fit.weights[1].w, w.T)


def test_the_lifted_rule_takes_any_names() -> None:
    network = lnn.LiftedNetwork([lnn.Layer(Dense(6, 4), RELU, name="x3"), lnn.Layer(Dense(4, 2), lnn.losses.Split())])
    weights = lnn.BCD(passes=1).run(network, X[:30], draw(2, 30, 2).relu()).weights
    assert lnn.predict.lifted(network, weights, X[:3]).shape == (3, 2)


def test_one_name_may_be_given_as_it_is() -> None:
    assert lnn.Layer(Dense(3, 4), RELU, reads="ab").reads == ("ab",)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"reads must be names of states, such as \('x1', 'x0'\), got 1"):
        lnn.Layer(Dense(3, 4), RELU, reads=1)  # type: ignore[arg-type]


def test_units_of_several_positions_share_what_is_learned() -> None:
    leaky = act.FenchelLeakyReLU(0.2)
    network = lnn.LiftedNetwork([lnn.Layer(Halves(3, 2), leaky), lnn.Layer(Dense(4, 2), SquaredError())])
    with pytest.raises(ValueError, match="several positions or groups, whose units share one parameter: give 'layer'"):
        lnn.BCD(learn_activation="unit").run(network, X, draw(1, 300, 2))


def test_a_shared_penalty_counts_once() -> None:
    network = autoencoder(act.FenchelReLU())
    weights = lnn.BCD(passes=0).run(network, CODES, CODES).weights
    assert network.penalties(weights) == (pytest.approx(1e-4 * float(weights[0].w.square().sum())), 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_learns_the_same(name: str) -> None:
    make, y = CASES[name]
    x = CODES if name == "autoencoder" else X
    network = lnn.automatic(make(act.FenchelReLU()), x, y)
    here, there = (lnn.MiniBatch(passes=2, device=device).run(network, x, y) for device in ("cpu", "cuda"))
    assert there.history[-1].loss == pytest.approx(here.history[-1].loss, rel=1e-6)
    bcd = lnn.BCD(passes=1)
    full = [bcd.run(make(act.ReLU()), x.to(device), y.to(device)) for device in ("cpu", "cuda")]
    assert full[1].history[-1].objective == pytest.approx(full[0].history[-1].objective, rel=1e-4)


def test_a_learned_rho_of_a_shared_w_is_written_where_a_recorded_step_reads_it() -> None:
    network, x = recurrent(act.FenchelReLU()), torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    run = Run(lnn.MiniBatch(passes=1), network, source_of(x, torch.arange(40) % 2))
    (shared,) = (each for each in run.descent.geometries if isinstance(each, SharedMetric))
    place = shared.shrinkage
    run._set_rho_factor(3.0)
    assert shared.shrinkage is place
    assert float(place) == pytest.approx(6e-3)
