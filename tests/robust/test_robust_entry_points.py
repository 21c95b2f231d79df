"""Estimators, the initialiser, files and the command line accept an uncertainty and apply it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import liftednn as lnn
from liftednn import robust
from liftednn.activations import FenchelReLU, Tanh
from liftednn.base import Divergence, Uncertainty
from liftednn.cli import main
from liftednn.estimators.structure import Structured
from liftednn.losses import SoftmaxCrossEntropy, Split, SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.testing import check_uncertainty

KINDS: list[Uncertainty] = [getattr(robust, name)() for name in robust.__all__]
Data = tuple[NDArray[Any], NDArray[Any]]


PAIRS = [
    (kind, divergence)
    for kind in KINDS
    for divergence in (SquaredError(), FenchelReLU(), Tanh())
    if kind.joint or not isinstance(divergence, Tanh)  # whose W-step in a box takes seconds
] + [(robust.BoxBall(0.1), Split())]


@pytest.mark.parametrize(("kind", "divergence"), PAIRS, ids=lambda each: type(each).__name__)
@pytest.mark.thin(2)
def test_every_kind_passes_the_public_check(kind: Uncertainty, divergence: Divergence) -> None:
    check_uncertainty(kind, divergence)


def test_the_public_check_can_fail() -> None:
    class Nothing(Noise):
        def term(self, mean: float, curvature: float, w: torch.Tensor) -> float:
            return mean

    class Concave(Noise):
        def term(self, mean: float, curvature: float, w: torch.Tensor) -> float:
            return mean + 1e5 * float(torch.as_tensor(self.sigma).max()) / (1 + float(w.square().sum()))

    with pytest.raises(AssertionError, match="must be larger"):
        check_uncertainty(Nothing())
    with pytest.raises(AssertionError, match="not convex"):
        check_uncertainty(Concave())


@pytest.fixture(scope="module")
def digits() -> Data:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


@pytest.mark.parametrize("given", [0.3, "ball:0.5", BoxBall(0.01)], ids=repr)
@pytest.mark.slow
def test_a_robust_classifier_withstands_noise_that_a_plain_one_does_not(
    given: Any, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits
    noisy = (x + np.random.default_rng(0).normal(0, 0.3, x.shape)).astype(np.float32)[1200:]

    def fitted(robust: Any) -> lnn.LiftedClassifier:
        return lnn.LiftedClassifier((30,), max_iter=10, random_state=0, robust=robust).fit(x[:1200], y[:1200])

    plain, ours = fitted(None), fitted(given)
    monkeypatch.setattr(Structured, "_uncertainty", lambda self: None)
    scaled = fitted(given)  # columns measured with the noise, and no robust term
    assert ours.score(noisy, y[1200:]) > max(each.score(noisy, y[1200:]) for each in (plain, scaled)) + 0.1
    assert ours.score(x[1200:], y[1200:]) > plain.score(x[1200:], y[1200:]) - 0.03
    assert ours.network_.layers[0].uncertainty is not None
    assert ours.network_.layers[1].uncertainty is None


def test_sizes_are_in_the_units_of_x(digits: Data) -> None:
    x, y = digits
    wide = 1000 * x
    a = lnn.LiftedClassifier((10,), max_iter=3, random_state=0, robust=0.3, dtype="float64").fit(x, y)
    b = lnn.LiftedClassifier((10,), max_iter=3, random_state=0, robust=300.0, dtype="float64").fit(wide, y)
    np.testing.assert_allclose(a.predict_proba(x), b.predict_proba(wide), atol=1e-4)


def test_without_hidden_layers_a_regressor_is_robust_ridge() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    y = x @ [2.0, -1.0, 0.5] + 0.1 * rng.normal(size=500)
    model = lnn.LiftedRegressor((), robust=Noise(0.5), max_iter=80, alpha=0.0, random_state=0).fit(x, y)
    centred = x - x.mean(0)
    gram = centred.T @ centred / 500 + 0.25 * np.eye(3)
    np.testing.assert_allclose(
        model.coefs_[0][:, 0], np.linalg.solve(gram, centred.T @ (y - y.mean()) / 500), atol=0.01
    )


def test_parameters_and_refusals(digits: Data) -> None:
    model = lnn.LiftedClassifier(robust=Noise(0.3))
    assert isinstance(clone(model).get_params()["robust"], Noise)
    with pytest.raises(ValueError, match="KIND:SIZE"):
        lnn.LiftedClassifier(robust="noise").fit(*digits)
    with pytest.raises(ValueError, match="robust must be None"):
        lnn.LiftedClassifier(robust=[0.1]).fit(*digits)
    with pytest.raises(ValueError, match="2 inputs, and the layer has 64"):
        lnn.LiftedClassifier(robust=BoxBall(torch.ones(2))).fit(*digits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_robust_estimator_is_one_of_scikit_learn() -> None:
    check_estimator(lnn.LiftedClassifier((5,), max_iter=3, robust=0.05))


@pytest.mark.parametrize("given", [0.05, "ball:0.2", "box:0.01"])
@pytest.mark.thin(3)
def test_the_papers_model_passes_with_uncertain_inputs(given: Any, digits: Data) -> None:
    x, y = digits
    model = lnn.LiftedClassifier((5,), divergence="euclidean", lam=0.1, max_iter=2, robust=given, random_state=0)
    model.fit(x[:300], y[:300])
    objectives = [record.objective for record in model.history_]
    assert objectives[1] < objectives[0]
    assert objectives[2] <= objectives[1]


@pytest.mark.filterwarnings("ignore:lifted_")  # 20 units and few passes
def test_a_module_is_initialised_robustly(digits: Data) -> None:
    x, y = (torch.as_tensor(part) for part in digits)
    norms = []
    for given in (None, "noise:1"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
        lnn.init.lifted_(module, x, y, robust=given, passes=5)
        norms.append(float(next(module.parameters()).detach().norm()))
    assert norms[1] < 0.8 * norms[0]


@pytest.mark.parametrize(
    "kind", [Noise(torch.ones(3)), FrobeniusBall(0.3), BoxBall(0.1)], ids=lambda k: type(k).__name__
)
def test_a_robust_network_is_saved_and_loaded(kind: Uncertainty, tmp_path: Path) -> None:
    network = LiftedNetwork([Layer(Dense(3, 2), SoftmaxCrossEntropy(), uncertainty=kind)])
    weights = [lnn.Affine(torch.randn(2, 3), torch.zeros(2))]
    lnn.save(tmp_path / "m.safetensors", network, weights)
    loaded = lnn.load(tmp_path / "m.safetensors").network
    x, y = torch.randn(5, 3), torch.eye(2)[[0, 1, 0, 1, 0]]
    assert loaded.objective(weights, [x, y]) == network.objective(weights, [x, y])
    assert loaded.objective(weights, [x, y]) > LiftedNetwork.mlp([3, 2]).objective(weights, [x, y])


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: Data) -> None:
    x, y = digits
    np.savez(tmp_path / "t.npz", **{f"c{j}": x[:300, j] for j in range(2, 6)}, label=y[:300])
    fit = [
        "fit",
        str(tmp_path / "t.npz"),
        "--target",
        "label",
        "--task",
        "classification",
        "--hidden",
        "5",
        "--passes",
        "2",
    ]
    fit += ["--json", "--quiet", "--out", str(tmp_path / "m.safetensors")]
    with pytest.raises(SystemExit) as done:
        main([*fit, "--robust", "noise:0.3"])
    assert done.value.code == 0
    kind = lnn.load(json.loads(capsys.readouterr().out)["file"]).network.layers[0].uncertainty
    assert isinstance(kind, Noise)
    with pytest.raises(SystemExit) as done:
        main([*fit, "--robust", "noise"])
    assert done.value.code == 2
    assert "KIND:SIZE" in capsys.readouterr().out
