"""The parts of the experiment on convolutional networks that have files of their own: exact blocks, and a range of lam."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from experiments import convolution, extension_tables, image_blocks, image_lam, pictures
from experiments.image_blocks import lenet_of_blocks, run_case
from experiments.image_lam import LAMS, NOISES, at_infinity, units
from experiments.image_lifted import automatic, lifted_network
from experiments.image_models import NETWORKS, STARTS
from experiments.image_training import Images, Task, generated, noisy
from experiments.store import Fields, Store
from liftednn.training import choices, plan
from liftednn.training.batch import x_step

DATA = generated("mnist", 60, "cpu")
TASK = Task(Images(DATA.x, DATA.y), "LeNet", 1, 0, 60, {}, 10)


def test_an_infinite_lam_gives_the_gradients_of_back_propagation() -> None:
    """The gradient in a bias is the sum over rows and positions of that in u."""
    network, generator = lifted_network("LeNet", 20), torch.Generator().manual_seed(0)
    shapes = [layer.operator.weight_shape for layer in network.layers]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5 for shape in shapes]
    weights = [lnn.Affine(w, w.new_zeros(len(w))) for w in drawn]
    x, y = DATA.x[:5].double(), DATA.y[:5]
    step = x_step(at_infinity(network), weights, x.flatten(1), torch.nn.functional.one_hot(y, 10).double())
    module = lnn.init.to_module(network, weights)
    torch.nn.functional.cross_entropy(module(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
    biases = [part.grad for name, part in module.named_parameters() if name.endswith("bias")]
    for gradient, bias in zip(step.u_gradients, biases, strict=True):
        assert bias is not None
        torch.testing.assert_close(gradient.view(5, len(bias), -1).sum((0, 2)), bias, rtol=1e-9, atol=1e-9)


def test_automatic_lam_of_convolutions_is_at_least_three_hundred_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """And exactly that where it does not follow from the curvature."""
    monkeypatch.setattr(choices, "_LAM_FACTOR", 1e-6)
    network = automatic(TASK)
    found = [layer.lam / unit for layer, unit in zip(network.layers, units(network, TASK), strict=False)]
    assert found[:2] == pytest.approx([300, 300], rel=1e-3)


def test_random_labels_are_of_training_rows_and_of_a_seed() -> None:
    few = generated("mnist", 1000, "cpu")
    first, again, other, none = (noisy(few, *each).y for each in ((0.4, 0), (0.4, 0), (0.4, 1), (0.0, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(none, few.y)
    assert float((first != few.y).double().mean()) == pytest.approx(0.36, abs=0.05)
    assert noisy(few, 0.4, 0).y_test is few.y_test


@pytest.mark.parametrize("activation", ["relu", "fenchel_relu"])
def test_blocks_are_solved_and_never_raise_the_objective(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_blocks, "ROWS", 10)
    monkeypatch.setattr(image_blocks, "_both_rules", lambda *given: [])
    found = run_case(lenet_of_blocks("avgpool", activation, 1.0, 20), DATA, 1, 0)
    assert max(found["kkt"]) <= 1e-3
    assert found["rise"] <= 1e-6
    assert len(found["objectives"]) == 8  # the start, three states and four layers
    assert found["objectives"][-1] < found["objectives"][0]
    assert len(found["accuracy"]) == len(found["seconds"]) == 2


@pytest.mark.parametrize("start", STARTS)
def test_starts_fill_lenet_and_follow_their_seed(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MOST_INITIAL", 3)

    def weights(seed: int) -> list[Tensor]:
        module = NETWORKS["LeNet"](20)
        torch.manual_seed(5)
        STARTS[start](module, DATA.x[:20], DATA.y[:20], seed)
        assert int(torch.randint(1000, ())) == int(torch.randint(1000, (), generator=torch.Generator().manual_seed(5)))
        return [part.detach() for part in module.parameters()]

    pairs = list(zip(weights(0), weights(0), strict=True))
    assert all(bool(a.isfinite().all()) for a, _ in pairs)
    if start in ("LSUV", "lifted_"):
        assert all(torch.equal(a, b) for a, b in pairs)


def records(folder: Path) -> Store:
    store = Store(folder / "convolution-cuda.jsonl")
    for part in convolution.LAM_PARTS:
        for seed, noise, (place, lam) in ((s, n, pair) for s in range(2) for n in NOISES for pair in enumerate(LAMS)):
            cell = {"accuracy": [0.1, 0.5 + place / 100 + seed / 100 - noise], "seconds": [1.0, 2.0], "settings": {}}
            store.add(cell, part=part, stage="test", lam=lam, noise=noise, passes=5, seed=seed)
    value: Fields = {"accuracy": [0.9, 0.95], "seconds": [1.0, 2.0], "kkt": [1e-3, 5e-4], "rise": 0.0, "peak_gib": 1.5}
    value |= {"lifted_rule": [0.8, 0.9], "same_rows": [0.9, 0.94], "rows": 5000}
    store.add(value, part="bcd", stage="test", activation="relu", lam=1.0, passes=1, seed=0)
    return store


def test_tables_and_the_picture_are_of_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension_tables, "RESULTS", tmp_path)
    assert extension_tables.convolution_lam()[0].startswith("Not measured yet")
    assert extension_tables.convolution_blocks()[0].startswith("Not measured yet")
    store = records(tmp_path)
    lines = extension_tables.convolution_lam()
    assert lines[2].startswith("| mnist, LeNet, 5 passes, 0% random labels, 2 seeds | 0.5050 ± 0.0071 |")
    assert len(lines) == 8
    assert "| average pooling, `relu`, lam 1 | 5,000 | 0.9000 | 0.9500" in extension_tables.convolution_blocks()[2]
    panels = pictures.convolution_lam(store).axes
    assert [len(panel.lines) for panel in panels] == [2, 2]
    assert list(panels[0].lines[0].get_ydata())[-1] == pytest.approx(0.575)
    assert image_lam.summary(store, "lam-cifar")[-1]["lam"] == "inf"
