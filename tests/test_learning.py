"""Learned activations in every trainer and at every entry point: monotone, recovered from data, written and read again."""

from __future__ import annotations

import copy
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor, nn

import liftednn as lnn
from liftednn.activations import (
    FenchelClip,
    FenchelHardTanh,
    FenchelLeakyReLU,
    FenchelReLU,
    LeakyReLU,
    Scaled,
    Sigmoid,
    Softplus,
    Tanh,
)
from liftednn.base import Activation
from liftednn.cli import main
from liftednn.data.sources import source_of
from liftednn.init import from_module, lifted_, to_module
from liftednn.training.run import Run

ALPHA = 0.3
WIDE = FenchelClip(-20.0, 20.0)
LEARNED: list[Activation] = [
    FenchelLeakyReLU(),
    FenchelLeakyReLU(0.9),
    FenchelHardTanh(),
    WIDE,
    FenchelClip(0.0, 1.0, 6.0, 3.0),
    Scaled(Tanh()),
    Scaled(Sigmoid(), 2.0),
    Scaled(Softplus()),
    Scaled(FenchelHardTanh()),
]


def planted(n: int = 2000, hidden: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Rows and what a leaky network of slope 0.3 makes of them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, w, b, v = draw(n, 5), draw(hidden, 5), 0.3 * draw(hidden), draw(3, hidden)
    u = x @ w.T + b
    return x.to(dtype), (torch.where(u < 0, ALPHA * u, u) @ v.T).to(dtype)


def slopes(activation: Activation) -> Tensor:
    """Up to the mirror image: phi_a(u) = -a phi_{1/a}(-u), so that a and 1/a are the same network with other weights."""
    assert isinstance(activation, FenchelLeakyReLU)
    alpha = torch.as_tensor(activation.alpha, dtype=torch.float64)
    return torch.minimum(alpha, 1 / alpha)


@pytest.mark.parametrize(("per", "dtype"), [("layer", torch.float64), ("unit", torch.float32)], ids=str)
@pytest.mark.parametrize("activation", LEARNED, ids=repr)
@pytest.mark.thin(9)
def test_no_block_raises_the_objective(activation: Activation, per: Any, dtype: torch.dtype) -> None:
    x, y = planted(40, dtype=dtype)
    row_weights = torch.rand(40, generator=torch.Generator().manual_seed(1)) + 0.1
    network = lnn.LiftedNetwork.mlp([5, 6, 4, 3], activation, "squared", lam=0.5, rho=1e-3)
    bcd = lnn.BCD(learn_activation=per)
    state = bcd.init(network, x, y, sample_weight=row_weights)
    before, changed = network.objective(state.weights, state.states, state.sample_weight), False
    names: list[str] = []
    for _ in range(3):
        for block in bcd.blocks(network, state):
            current = state.network or network
            after = current.objective(state.weights, state.states, state.sample_weight)
            slack = 1e-6 if dtype == torch.float32 else 1e-12
            assert after <= before * (1 + slack), block
            if block.name.startswith("phi"):
                assert block.kkt < 1e-5
                changed = changed or after < before
            before, names = after, [*names, block.name]
    assert names[:7] == ["x2", "x1", "w0", "phi1", "w1", "phi2", "w2"]
    assert changed or not activation.summed  # bounds at which some state rests stay, and wide ones close in
    if activation is WIDE:
        closed = state.network.hidden[0] if state.network else WIDE
        assert bool((torch.as_tensor(closed.upper) < 20).all())  # type: ignore[attr-defined]


def test_the_solution_has_the_network_as_refitted(tmp_path: Path) -> None:
    x, y = planted(200)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(), "squared", rho=1e-4)
    solution = lnn.BCD(passes=5, learn_activation="unit").run(network, x, y)
    (phi,) = solution.network.hidden
    assert isinstance(phi, FenchelLeakyReLU)
    assert isinstance(phi.alpha, Tensor)
    assert phi.alpha.shape == (4,)
    assert "phi1" in solution.history[-1].kkt
    last = solution.network.objective(solution.weights, solution.states)
    assert last == pytest.approx(solution.history[-1].objective)
    lnn.save(tmp_path / "model", solution.network, solution.weights)
    saved = lnn.load(tmp_path / "model")
    scores = lnn.predict.feedforward(solution.network, solution.weights, x)
    assert torch.equal(lnn.predict.feedforward(saved.network, saved.weights, x), scores)
    assert torch.allclose(to_module(saved.network, saved.weights)(x), scores)
    plain = lnn.BCD(passes=5).run(network, x, y)
    assert plain.network is network
    assert last < plain.history[-1].objective


@pytest.mark.slow
def test_with_known_states_a_full_batch_finds_the_slope_in_one_step() -> None:
    """From the true weights, the recursion of a wrong slope is corrected pass by pass."""
    x, y = planted(200, hidden=2)
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((200, 5), (2, 5), (2,), (3, 2))
    ]
    weights = [(drawn[1], 0.3 * drawn[2]), (drawn[3], torch.zeros(3, dtype=torch.float64))]
    for start in (0.1, 0.6):
        network = lnn.LiftedNetwork.mlp([5, 2, 3], FenchelLeakyReLU(start), "squared", lam=0.1, rho=1e-7)
        solution = lnn.BCD(passes=150, tol=0.0, learn_activation="layer", block_tol=1e-7).run(network, x, y, weights)
        assert float(slopes(solution.network.hidden[0])) == pytest.approx(ALPHA, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.01, 0.9])
def test_the_true_slope_is_recovered_from_data(start: float) -> None:
    """The best of six random starts in the training loss: about every other ends in a local minimum of the weights."""
    x, y = planted()
    runs = []
    for seed in range(6):
        network = lnn.automatic(lnn.LiftedNetwork.mlp([5, 3, 3], FenchelLeakyReLU(start), "squared"), x, y, seed)
        runs.append(lnn.MiniBatch(passes=60, batch_size=50, learn_activation="layer", seed=seed).run(network, x, y))
    best = min(runs, key=lambda fit: fit.history[-1].loss)
    assert best.history[-1].score > 0.999
    assert float(slopes(best.network.hidden[0])) == pytest.approx(ALPHA, abs=1e-2)


@pytest.mark.slow
def test_true_slopes_of_units_are_recovered_in_float32() -> None:
    x, y = planted(seed=2, dtype=torch.float32)
    runs = []
    for seed in range(2):
        network = lnn.automatic(lnn.LiftedNetwork.mlp([5, 3, 3], FenchelLeakyReLU(0.1), "squared"), x, y, seed)
        runs.append(lnn.MiniBatch(passes=60, batch_size=50, learn_activation="unit", seed=seed).run(network, x, y))
    best = min(runs, key=lambda fit: fit.history[-1].loss)
    found = slopes(best.network.hidden[0])
    assert found.shape == (3,)
    assert bool(((found - ALPHA).abs() < 2e-2).all())


def test_a_scale_is_learned_by_batches() -> None:
    x, y = planted()
    network = lnn.LiftedNetwork.mlp([5, 8, 3], Scaled(Tanh(), 3.0), "squared", rho=1e-4)
    fit = lnn.MiniBatch(passes=10, learn_activation="layer").run(network, x, y)
    (phi,) = fit.network.hidden
    assert isinstance(phi, Scaled)
    assert isinstance(phi.scale, float)
    assert phi.scale > 4.0
    unit = lnn.MiniBatch(passes=2, learn_activation="unit").run(network, x, y, sample_weight=torch.rand(len(x)) + 0.5)
    assert unit.network.hidden[0].scale.shape == (8,)  # type: ignore[attr-defined]
    assert network.hidden[0] == Scaled(Tanh(), 3.0)


def test_the_best_pass_keeps_its_own_slopes_and_a_checkpoint_all_of_it(tmp_path: Path) -> None:
    x, y = planted(600)
    network = lnn.LiftedNetwork.mlp([5, 3, 3], FenchelLeakyReLU(0.05), "squared", lam=50.0, rho=1e-5)
    settings = lnn.MiniBatch(passes=6, batch_size=50, learn_activation="unit")

    def run(**options: Any) -> lnn.Fit:
        return settings.run(network, x[:500], y[:500], validation=(x[500:], y[500:]), **options)

    whole = run()
    scores = lnn.predict.feedforward(whole.network, whole.weights, x[500:])
    best = max(record.validation_score or -1.0 for record in whole.history)
    assert whole.network.loss.score(scores, y[500:]) == pytest.approx(best, abs=1e-9)
    path = tmp_path / "run"
    run(checkpoint=lnn.Checkpoint(path), callback=lambda record: record.number == 3)
    again = run(checkpoint=lnn.Checkpoint(path))
    assert torch.equal(again.network.hidden[0].alpha, whole.network.hidden[0].alpha)  # type: ignore[attr-defined]
    assert torch.equal(again.weights[0].w, whole.weights[0].w)
    resumed = run(checkpoint=lnn.Checkpoint(path))
    assert torch.equal(resumed.network.hidden[0].alpha, whole.network.hidden[0].alpha)  # type: ignore[attr-defined]


@pytest.mark.parametrize("per", ["layer", "unit"])
def test_a_batch_that_overflows_does_not_change_the_slopes(per: Any) -> None:
    x, y = planted(100)
    network = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelLeakyReLU(), "squared")
    run = Run(lnn.MiniBatch(learn_activation=per), network, source_of(x, y))
    run.descent.rate.fill_(0.05)
    for size in (1e200, float("inf")):
        run.learner.step(x[:, : run.descent.weights[0].w.shape[1]] * size, y, None, 0)
        assert torch.equal(run.network.hidden[0].alpha, torch.full_like(run.network.hidden[0].alpha, 0.01))  # type: ignore[attr-defined]
    assert not bool(run.learner.means.any())


def test_layers_may_differ_and_refusals() -> None:
    x, y = planted(100)
    network = lnn.LiftedNetwork.mlp([5, 4, 4, 3], [FenchelLeakyReLU(), FenchelReLU()], "squared")
    fit = lnn.MiniBatch(passes=1, learn_activation=("unit", None)).run(network, x, y)
    assert fit.network.hidden[0].alpha.shape == (4,)  # type: ignore[attr-defined]
    assert fit.network.hidden[1] == FenchelReLU()
    for trainer in (lnn.MiniBatch(learn_activation="layer"), lnn.BCD(learn_activation="layer")):
        with pytest.raises(ValueError, match=r"layer 1: FenchelReLU\(\) has no parameter to learn"):
            trainer.run(network, x, y)
        with pytest.raises(ValueError, match="learn_activation must be None, 'layer' or 'unit'"):
            replace(trainer, learn_activation="rows").run(network, x, y)
        with pytest.raises(ValueError, match="for each of the 2 hidden layers"):
            replace(trainer, learn_activation=("unit",)).run(network, x, y)
    with pytest.raises(ValueError, match="no parameter to learn"):
        lnn.BCD(learn_activation="layer").run(lnn.LiftedNetwork.mlp([5, 4, 3], LeakyReLU(), "squared"), x, y)
    bounded = lnn.LiftedNetwork.mlp([5, 4, 3], FenchelHardTanh(), "squared")
    with pytest.raises(ValueError, match="a batch does not contain: use BCD, or learn a scale"):
        lnn.MiniBatch(learn_activation="layer").run(bounded, x, y)
    several = lnn.LiftedNetwork.mlp([5, 4, 3], TwoSlopes(), "squared")
    with pytest.raises(ValueError, match="batches learn one parameter"):
        lnn.MiniBatch(learn_activation="layer").run(several, x, y)


class TwoSlopes(FenchelLeakyReLU):
    learned = ("alpha", "beta")  # type: ignore[assignment]
    beta = 1.0


def prelu(count: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.PReLU(count), nn.Linear(6, 3)).to(dtype)
    module[1].weight.data = torch.linspace(0.1, 0.8, count, dtype=dtype)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 6])
def test_a_prelu_is_read_and_written(count: int, dtype: torch.dtype) -> None:
    module, x = prelu(count, dtype), planted(50, dtype=dtype)[0]
    network, weights = from_module(module, "squared")
    back = to_module(network, weights)
    assert isinstance(back, nn.Sequential)
    assert isinstance(back[1], nn.PReLU)
    assert back[1].num_parameters == count
    assert back[1].weight.requires_grad
    assert {name: part.dtype for name, part in back.state_dict().items()}["1.weight"] == dtype
    assert all(torch.equal(part, back.state_dict()[name]) for name, part in module.state_dict().items())
    assert torch.allclose(back(x), module(x))
    assert torch.allclose(lnn.predict.feedforward(network, weights, x), module(x))


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.slow
def test_lifted_learns_the_slopes_of_a_prelu_by_default(count: int) -> None:
    x, y = planted(1000, dtype=torch.float32)
    kept, errors = torch.full((count,), 0.05), {}
    options: dict[str, Any]
    for learns, options in ((True, {}), (False, {"learn_activation": None})):
        module = prelu(count, torch.float32)
        module[1].weight.data.copy_(kept)
        lifted_(module, x, y, passes=40, **options)
        assert torch.equal(module[1].weight, kept) != learns
        assert module[1].weight.shape == (count,)
        assert bool((module[1].weight > 0).all())
        errors[learns] = float((module(x) - y).detach().square().mean())
    assert errors[True] < errors[False] / 3
    frozen = prelu(count, torch.float32)
    frozen[1].weight.data.copy_(kept)
    frozen[1].weight.requires_grad_(False)
    lifted_(frozen, x, y)
    assert torch.equal(frozen[1].weight, kept)
    zero = prelu(count, torch.float32)
    zero[1].weight.data.zero_()
    assert bool((lifted_(zero, x, y)[1].weight > 0).all())


def test_a_prelu_used_twice_stays_and_the_report_is_of_the_learned_module(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    x, y = planted(500, dtype=torch.float32)
    shared = nn.PReLU()
    module = nn.Sequential(nn.Linear(5, 6), shared, nn.Linear(6, 6), shared, nn.Linear(6, 3))
    lifted_(module, x, y, passes=10)
    assert shared.weight.tolist() == [0.25]
    own = prelu(6, torch.float32)
    lifted_(own, x, y, passes=10, report=True)
    after = [line for line in capsys.readouterr().out.splitlines() if line.startswith("after")][-1]
    loss = float((own(x) - y).detach().square().sum(1).mean())
    assert float(after.split()[2].rstrip(",")) == pytest.approx(loss, rel=1e-3)
    with pytest.raises(ValueError, match="learn_activation must be 'auto'"):
        lifted_(copy.deepcopy(own), x, y, learn_activation="layer")


@pytest.mark.parametrize("name", ["leaky_relu", "tanh", "hardtanh", "logistic"])
@pytest.mark.parametrize("per", ["layer", "unit"])
@pytest.mark.thin(3)
def test_estimators_learn(name: str, per: str) -> None:
    x, y = (part.numpy() for part in planted(300))
    model = lnn.LiftedRegressor((6,), name, learn_activation=per, max_iter=5, random_state=0).fit(x, y)
    (phi,) = model.network_.hidden
    assert isinstance(phi, FenchelLeakyReLU | Scaled)
    (given,) = (torch.as_tensor(getattr(phi, each)) for each in phi.learned)
    assert given.shape == (() if per == "layer" else (6,))
    plain = lnn.LiftedRegressor((6,), name, max_iter=5, random_state=0).fit(x, y)
    gain = -1e-3 if name == "logistic" else 1e-3  # the first scale of a sigmoid is near its best here
    assert model.score(x, y) > plain.score(x, y) + gain
    assert float((given / (0.01 if name == "leaky_relu" else 1.0)).log().abs().max()) > 3e-3
    assert clone(model).get_params()["learn_activation"] == per
    assert np.allclose(model.to_module()(torch.from_numpy(x)).detach().numpy(), model.predict(x))
    if name == "leaky_relu":
        same = copy.deepcopy(model).partial_fit(x, y)
        assert 0 < float((slopes(same.network_.hidden[0]) / slopes(phi)).log().abs().max()) < 0.6


def test_a_warm_start_continues_from_the_learned_slopes() -> None:
    x, y = (part.numpy() for part in planted(300))
    model = lnn.LiftedRegressor(
        (6,), "leaky_relu", learn_activation="unit", max_iter=1, warm_start=True, random_state=0
    )
    before = model.set_params(max_iter=20).fit(x, y).network_.hidden[0].alpha.clone()  # type: ignore[attr-defined]
    after = model.set_params(max_iter=1).fit(x, y).network_.hidden[0].alpha  # type: ignore[attr-defined]
    assert float((after / before - 1).abs().max()) < 0.5
    assert float((before / 0.01).log().abs().max()) > 0.7


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"learn_activation": "rows"}, "learn_activation must be None, 'layer' or 'unit', got 'rows'"),
        ({"learn_activation": "layer"}, r"FenchelReLU\(\) has nothing to learn"),
        (
            {"learn_activation": "layer", "activation": "leaky_relu", "divergence": "euclidean"},
            "give divergence='fenchel'",
        ),
    ],
)
def test_estimators_refuse(parameters: dict[str, Any], sentence: str) -> None:
    x, y = (part.numpy() for part in planted(50))
    with pytest.raises(ValueError, match=sentence):
        lnn.LiftedClassifier(**parameters).fit(x, y[:, 0] > 0)


def test_the_command_line_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = planted(200)
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d", "e", "y"], *torch.cat([x, y[:, :1]], 1).tolist()])
    out = tmp_path / "model.safetensors"
    arguments = ["fit", str(table), "--target", "y", "--activation", "leaky_relu", "--hidden", "7", "--passes", "3"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(out), "--learn-activation", "unit", "--quiet", "--json"])
    assert ended.value.code == 0, capsys.readouterr()
    assert json.loads(capsys.readouterr().out)["task"] == "regression"
    (phi,) = lnn.load(out).network.hidden
    assert isinstance(phi, FenchelLeakyReLU)
    assert torch.as_tensor(phi.alpha).shape == (7,)
    with pytest.raises(SystemExit) as refused:
        main(["fit", str(table), "--target", "y", "--learn-activation", "layer", "--out", str(out)])
    assert refused.value.code == 2
    assert "nothing to learn" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_scale_of_a_softmax_is_learned_in_every_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(150, 4, generator=generator, dtype=torch.float64)
    activation = lnn.activations.Scaled(lnn.activations.Softmax(), 1.0)
    found = activation.refit(u.to(dtype), (3 * u).softmax(1).to(dtype))
    assert float(found.scale) == pytest.approx(3, rel=1e-5)
    x, y = torch.randn(200, 5, generator=generator).to(dtype), torch.randn(200, 2, generator=generator).to(dtype)
    network = lnn.LiftedNetwork.mlp([5, 4, 2], activation, "squared", lam=1.0, rho=1e-4)
    fit = lnn.MiniBatch(passes=3, learn_activation="layer").run(network, x, y)
    assert float(fit.network.hidden[0].scale) != 1.0  # type: ignore[attr-defined]
