"""The experiment on convolutional networks: its data, its opponents and what it makes of its records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments import convolution, image_models, pictures
from experiments.convolution import ORDER, chosen
from experiments.drawing import STYLES
from experiments.image_bench import LIFTED, METHODS, SETTINGS, Bench, Scale
from experiments.image_models import NETWORKS, fit_head_, he_, layers_of, lsuv_
from experiments.image_training import (
    ConvolutionMuon,
    Images,
    Layout,
    Task,
    as_matrix,
    cropped_and_flipped,
    generated,
    gradient,
    share_of_rate,
)
from experiments.methods import Scorer
from experiments.settings import Settings
from experiments.store import Fields, Store

GENERATOR = torch.Generator().manual_seed(0)
DATA = generated("mnist", 60, "cpu")


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.parametrize(("name", "convolutions"), [("LeNet", 2), ("six convolutions", 6), ("residual", 8)])
def test_networks_have_their_convolutions_and_ten_scores(name: str, convolutions: int) -> None:
    module, shape = NETWORKS[name](16), (1, 28, 28) if name == "LeNet" else (3, 32, 32)
    assert sum(isinstance(layer, nn.Conv2d) for layer in layers_of(module)) == convolutions
    assert module(draw(2, *shape)).shape == (2, 10)


def test_lenet_has_the_usual_size() -> None:
    assert [tuple(layer.weight.shape) for layer in layers_of(NETWORKS["LeNet"](1))] == [
        (20, 1, 5, 5),
        (50, 20, 5, 5),
        (500, 800),
        (10, 500),
    ]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_muon_moves_convolutions_as_torch_moves_their_matrices(layout: torch.memory_format) -> None:
    weight = nn.Parameter(draw(4, 3, 2, 2).contiguous(memory_format=layout))
    matrix = nn.Parameter(as_matrix(weight.detach()).clone())
    ours, theirs = ConvolutionMuon([weight], 0.1), torch.optim.Muon([matrix], 0.03, 0.1)
    for _ in range(3):
        weight.grad = draw(4, 3, 2, 2).contiguous(memory_format=layout)
        matrix.grad = as_matrix(weight.grad).clone()
        ours.param_groups[0]["lr"] = 0.03
        ours.step()
        theirs.step()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(as_matrix(weight.detach()), matrix.detach(), rtol=1e-5, atol=1e-6)


def test_crops_are_windows_of_the_padded_images_some_of_them_mirrored() -> None:
    x = draw(40, 2, 6, 6)
    padded = nn.functional.pad(x, (4, 4, 4, 4), mode="reflect")
    found = set()
    for image, wide in zip(cropped_and_flipped(x, torch.Generator().manual_seed(1)), padded, strict=True):
        ways = itertools.product(range(9), range(9), (False, True))
        windows = {(i, j, m): wide[:, i : i + 6, j : j + 6].flip(2 if m else ()) for i, j, m in ways}
        found.add(next(way for way, window in windows.items() if torch.equal(window, image)))
    assert {mirrored for _, _, mirrored in found} == {False, True}
    assert len({way[:2] for way in found}) > 20


def test_a_pass_has_every_image_once_in_an_order_of_seed_and_pass() -> None:
    source = Images(torch.arange(50.0).view(50, 1, 1, 1), torch.arange(50))
    first, again, later = (list(source.batches(8, 3, number)) for number in (0, 0, 1))
    labels = [torch.cat([y for _, y, _ in batches]) for batches in (first, again, later)]
    assert len(first) == source.steps(8) == 7
    assert labels[0].sort().values.tolist() == list(range(50))
    assert torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[0], labels[2])
    assert all(torch.equal(x.flatten(), y.float()) for x, y, _ in first)


def test_the_rate_rises_then_falls_to_zero() -> None:
    shares = [share_of_rate(taken, 100) for taken in range(100)]
    assert shares.index(max(shares)) == 4
    assert shares == sorted(shares[:5]) + sorted(shares[5:], reverse=True)
    assert 0.19 < shares[0] <= 0.2
    assert shares[-1] < 1e-3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.thin(2)
def test_methods_learn_the_same_in_every_layout(method: str) -> None:
    settings = {"method": method, "rate": 1e-3, "decay": 1e-3}
    losses = []
    for layout in (Layout(), Layout(channels_last=True)):
        x = DATA.x.contiguous(memory_format=layout.memory_format)
        task = Task(Images(x, DATA.y, layout=layout), "LeNet", 2, 0, 60, settings, 10)
        with torch.no_grad():
            first = nn.functional.cross_entropy(task.module()(DATA.x), DATA.y)
        for scorer in METHODS[method](task):
            with torch.no_grad():
                losses.append(float(nn.functional.cross_entropy(scorer(DATA.x), DATA.y)))
    assert losses[1] < losses[0] < float(first)
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-2 if method == "Muon" else 1e-4)  # Muon rounds to bfloat16


def test_the_fitted_head_predicts_every_class_as_often_as_it_occurs() -> None:
    """As a logistic regression with free biases does."""
    module = NETWORKS["LeNet"](5)
    he_(module, 0)
    hidden = [layer.weight.detach().clone() for layer in layers_of(module)[:-1]]
    fit_head_(module, DATA.x, DATA.y)
    with torch.no_grad():
        scores = module(DATA.x)
    frequencies = torch.bincount(DATA.y, minlength=10) / len(DATA.y)
    torch.testing.assert_close(scores.softmax(1).mean(0), frequencies, atol=2e-3, rtol=0)
    assert bool((scores.argmax(1) == DATA.y).all())
    assert all(torch.equal(layer.weight, old) for layer, old in zip(layers_of(module), hidden, strict=False))


@pytest.mark.parametrize("name", NETWORKS)
def test_lsuv_gives_pre_activations_of_variance_one(name: str) -> None:
    module, x = NETWORKS[name](16), draw(20, *((1, 28, 28) if name == "LeNet" else (3, 32, 32)))
    lsuv_(module.to(memory_format=torch.channels_last), x, 0)  # type: ignore[call-overload]
    with torch.no_grad():
        deviations = [float(image_models._output(module, layer, x).std()) for layer in layers_of(module)]
    assert deviations == pytest.approx([1.0] * len(deviations), rel=1e-4)


def records(folder: Path) -> Store:
    """The lifted model takes 3 seconds for 5 passes, SGD 2 and Muon 6."""
    store = Store(folder / "convolution-cuda.jsonl")
    for (method, seconds), seed in itertools.product(((LIFTED, 3.0), ("SGD", 2.0), ("Muon", 6.0)), range(2)):
        spent = [seconds * (number + 1) / 5 for number in range(5)]
        value = {"accuracy": [0.9, 0.95, 0.96, 0.97, 0.98 + seed / 100], "seconds": spent, "settings": {"rate": 0.1}}
        store.add(value, part="mnist", stage="test", method=method, passes=5, seed=seed)
    return store


def test_equal_seconds_are_at_least_those_of_the_lifted_model(tmp_path: Path) -> None:
    store = records(tmp_path)
    found = {name: convolution.lengths(store, "mnist", name, 5) for name in ORDER}
    assert found == {LIFTED: [5], "SGD": [5, 8], "AdamW": [5], "Muon": [5, 3]}


def test_rates_are_searched_beyond_the_ends_of_their_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def choices(self: Bench, method: str, passes: int, options: Sequence[Fields]) -> list[Fields]:
        return [{"accuracy": [1 - abs(option["rate"] - 0.8)], "settings": option} for option in options]

    monkeypatch.setattr(Bench, "choices", choices)
    bench = Bench(records(tmp_path), "mnist", Scale(), DATA, Layout())
    assert chosen(bench, "SGD", 5)["rate"] == 0.8
    assert chosen(bench, LIFTED, 5) == {}


def test_a_lifted_method_gives_all_others_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lifted(task: Task) -> Iterator[Scorer]:
        return gradient(replace(task, settings={"method": "SGD", "rate": 1e-3}))

    monkeypatch.setitem(METHODS, LIFTED, lifted)
    monkeypatch.setattr(convolution, "ORDER", (LIFTED, "SGD"))
    settings = Settings(quick=True, results=tmp_path, only=("mnist",))
    convolution.run(settings)
    store = settings.store("convolution")
    assert {record.fields["method"] for record in store.find(stage="choose")} == {"SGD"}
    length = convolution.lengths(store, "mnist", "SGD", 1)[-1]
    (run,) = convolution.runs(store, "mnist", "SGD", length)
    assert len(run["accuracy"]) == length


def test_tables_are_of_the_last_pass_and_pictures_of_equal_seconds(tmp_path: Path) -> None:
    store = records(tmp_path)
    rows = convolution.summary(store, "mnist", 5)
    assert [(row["method"], row["passes"], row["seconds"]) for row in rows] == [
        (LIFTED, 5, 3.0),
        ("SGD", 5, 2.0),
        ("Muon", 5, 6.0),
    ]
    assert rows[0]["mean"] == pytest.approx(0.985)
    store.add({"accuracy": [0.9] * 8, "seconds": [1.0] * 8, "settings": {}}, **_test("SGD", 8))
    panel, *others = pictures.convolution(store).axes
    assert [line.get_label() for line in panel.lines] == [LIFTED, "SGD"]
    assert [len(line.get_xdata()) for line in panel.lines] == [5, 8]
    assert not any(other.lines for other in others)


def _test(method: str, passes: int) -> dict[str, object]:
    return {"part": "mnist", "stage": "test", "method": method, "passes": passes, "seed": 0}


def test_methods_differ_in_grey_print() -> None:
    for kind in (1, 2):
        assert len({STYLES[name][kind] for name in ORDER}) == len(ORDER)


@pytest.mark.parametrize("faster", [100, 250])
def test_in_the_race_others_choose_their_batch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: int
) -> None:
    def train(method: object, task: Task, kept: object) -> Fields:
        return {
            "accuracy": [0.995],
            "seconds": [1.0 if task.batch == faster else 2.0],
            "settings": {**task.settings, "rows": task.batch},
        }

    bench = Bench(Store(tmp_path / "convolution-cpu.jsonl"), "cpu", Scale(seeds=1), DATA, Layout())
    monkeypatch.setattr(Bench, "train", staticmethod(train))
    convolution.reach_goal(bench, 1)
    found = {
        name: bench.store.values(stage="test", method=name)[0]["settings"]["rows"] for name in (LIFTED, "SGD", "Adam")
    }
    assert found == {LIFTED: 250, "SGD": faster, "Adam": faster}


def test_parts_belong_to_a_device() -> None:
    assert convolution.parts_of(Settings()) == ["cpu"]
    assert convolution.parts_of(Settings(device="cuda")) == [
        part for part in SETTINGS if part not in ("cpu", "bcd-max")
    ]
    assert convolution.parts_of(Settings(only=("mnist",))) == ["mnist"]
    with pytest.raises(ValueError, match="--only takes mnist, cifar"):
        convolution.parts_of(Settings(only=("none",)))
    with pytest.raises(ValueError, match="leave out --device"):
        convolution.parts_of(Settings(only=("cpu",), device="cuda"))
