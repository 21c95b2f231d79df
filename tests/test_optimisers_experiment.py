"""The experiment on optimisers: its peers against their definitions, its tasks, choices and tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from experiments import ablate, figures, optimisers, pictures
from experiments.drawing import STYLES
from experiments.optimiser_cost import costs
from experiments.optimiser_nets import CONTEXT, NETWORKS, built
from experiments.optimiser_peers import FOOF, ISAAC, KFAC, Preconditioned, rows_of, sampled_loss
from experiments.optimiser_steps import available, missing, step_of, train
from experiments.optimiser_tasks import LIFTED, METHODS, PARTS, TASKS, Problem, dataset, windows
from experiments.optimiser_variants import VARIANTS
from experiments.optimisers import GRIDS, QUICK, Bench, Scale, chosen
from experiments.settings import Settings
from experiments.store import Fields, Store

GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """No test depends on those before it."""
    torch.manual_seed(0)
    GENERATOR.manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def one_step(peer: Preconditioned, module: nn.Module, x: Tensor, y: Tensor, loss: nn.Module, rate: float = 1.0) -> None:
    outputs = module(x)
    peer.measure(outputs, loss, len(x))
    value: Tensor = loss(outputs, y)
    value.backward()  # type: ignore[no-untyped-call]
    peer.param_groups[0]["lr"] = rate
    peer.step()


def test_foof_without_damping_solves_least_squares_in_one_step() -> None:
    layer, x, y = nn.Linear(4, 3), draw(30, 4), draw(30, 3)

    class HalfSquares(nn.Module):
        def forward(self, u: Tensor, target: Tensor) -> Tensor:
            return (u - target).square().sum() / (2 * len(u))

    one_step(FOOF([layer], 0.0, 1e-7, momentum=0.0), layer, x, y, HalfSquares())
    solution = torch.linalg.lstsq(torch.cat([x, torch.ones(30, 1)], 1), y).solution
    torch.testing.assert_close(layer.weight.detach(), solution[:-1].T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(layer.bias.detach(), solution[-1], rtol=1e-3, atol=1e-4)


def test_kfac_multiplies_by_the_inverses_of_both_factors() -> None:
    layer, x, y = nn.Linear(4, 3, bias=False), draw(40, 4), torch.arange(40) % 3
    before, outputs = layer.weight.detach().clone(), layer(x).detach()
    peer, loss, rate = KFAC([layer], 0.0, 0.04, momentum=0.0), nn.CrossEntropyLoss(), 1e-4  # too short to be clipped
    generator = torch.Generator().manual_seed(0)  # as KFAC has it
    outputs.requires_grad_()
    (g,) = torch.autograd.grad(sampled_loss(outputs, loss, 40, generator), outputs)
    one_step(peer, layer, x, y, loss, rate)
    a, b = x.T @ x / 40, g.T @ g / 40
    damped = [m + 0.2 * m.diagonal().mean() * torch.eye(len(m)) for m in (a, b)]
    labels = nn.functional.one_hot(y, 3)
    gradient = (outputs.detach().softmax(1) - labels).T @ x / 40
    expected = torch.linalg.inv(damped[1]) @ gradient @ torch.linalg.inv(damped[0])
    torch.testing.assert_close((before - layer.weight.detach()) / rate, expected, rtol=1e-2, atol=1e-2)


def test_kfac_shortens_steps_that_change_predictions_too_much() -> None:
    layer, x, y = nn.Linear(4, 3), draw(40, 4), torch.arange(40) % 3
    moved = []
    for rate in (100.0, 200.0):
        copy = nn.Linear(4, 3)
        copy.load_state_dict(layer.state_dict())
        one_step(KFAC([copy], 0.0, 0.04, momentum=0.0), copy, x, y, nn.CrossEntropyLoss(), rate)
        moved.append(copy.weight.detach() - layer.weight.detach())
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 50])
def test_kfac_bounds_the_change_of_all_predictions_of_a_row(outputs: int) -> None:
    """By half of .001 in the Kullback-Leibler divergence, to second order, however many terms the criterion is a mean of."""
    layer, x, y = nn.Linear(4, outputs), draw(400, 4), (draw(400, outputs) > 1).float()
    before = layer(x).detach()
    one_step(KFAC([layer], 0.0, 1e-8, momentum=0.0), layer, x, y, nn.BCEWithLogitsLoss(), 100.0)
    p, u, v = before.sigmoid(), before, layer(x).detach()
    divergence = (p * (u - v) + nn.functional.softplus(v) - nn.functional.softplus(u)).sum(1).mean()
    assert 0.3e-3 < float(divergence) < 0.7e-3


@pytest.mark.parametrize("tokens", [1, 8])
def test_kfac_bounds_the_change_of_a_label_however_many_a_row_has(tokens: int) -> None:
    layer, x, y = nn.Linear(4, 3), draw(50, tokens, 4), torch.arange(50 * tokens) % 3
    before = layer(x).detach().flatten(0, 1).log_softmax(1)
    module = nn.Sequential(layer, nn.Flatten(0, 1))
    one_step(KFAC([layer], 0.0, 1e-8, momentum=0.0), module, x, y, nn.CrossEntropyLoss(), 100.0)
    after = layer(x).detach().flatten(0, 1).log_softmax(1)
    assert 0.3e-3 < float((before.exp() * (before - after)).sum(1).mean()) < 0.7e-3


@pytest.mark.parametrize("rows", [6, 60])
def test_isaac_uses_the_gram_matrix_of_the_batch(rows: int) -> None:
    """By either side: fewer rows than columns, and more."""
    layer, x, y = nn.Linear(20, 3), draw(rows, 20), torch.arange(rows) % 3
    before, loss = [each.detach().clone() for each in layer.parameters()], nn.CrossEntropyLoss()
    gradients = torch.autograd.grad(loss(layer(x), y), list(layer.parameters()))
    one_step(ISAAC([layer], 0.0, 0.5, momentum=0.0), layer, x, y, loss)
    expected = gradients[0] @ torch.linalg.inv(x.T @ x / rows + 0.5 * torch.eye(20)) * 0.5
    torch.testing.assert_close(before[0] - layer.weight.detach(), expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(before[1] - layer.bias.detach(), gradients[1])


def test_rows_of_convolutions_are_patches_and_of_linear_layers_tokens() -> None:
    convolution, x = nn.Conv2d(2, 5, 3, stride=2, padding=1), draw(4, 2, 6, 6)
    rows, positions = rows_of(convolution, x, bias=False)
    assert positions == 9
    torch.testing.assert_close(rows, unfold(x, 3, padding=1, stride=2).transpose(1, 2).reshape(36, 18))
    outputs = (convolution(x) - convolution.get_parameter("bias")[:, None, None]).flatten(2).transpose(1, 2)
    torch.testing.assert_close((rows @ convolution.weight.flatten(1).T).view(4, 9, 5), outputs)
    tokens, positions = rows_of(nn.Linear(7, 2), draw(4, 3, 7))
    assert (tuple(tokens.shape), positions) == ((12, 8), 3)


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_have_initial_weights_of_their_seed(network: str) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (built(network, seed, 16).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_resnet9_has_eight_convolutions_and_its_end_can_be_wider() -> None:
    for network, last in (("ResNet-9", 16), ("ResNet-9, 512 wide at its end", 32)):
        module = NETWORKS[network](16)
        widths = [each.out_channels for each in module.modules() if isinstance(each, nn.Conv2d)]
        assert widths == [4, 8, 8, 8, 16, last, last, last]


def test_text_models_predict_from_characters_before() -> None:
    x = torch.randint(128, (2, CONTEXT), generator=GENERATOR)
    changed = x.clone()
    changed[:, 50:] = 7
    for network in ("transformer", "LSTM"):
        module = built(network, 0, 16)
        with torch.no_grad():
            first, second = (module(each).view(2, CONTEXT, 128)[:, :50] for each in (x, changed))
        torch.testing.assert_close(first, second)


def test_windows_are_followed_by_the_next_characters_and_are_tested_apart() -> None:
    data = windows("abcdefghij" * 400, "cpu")
    assert len(data.x) + len(data.x_test) == 3999 // CONTEXT
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        assert torch.equal(x[:, 1:], y[:, :-1])


def test_a_noisy_task_has_random_labels_to_train_on_and_none_to_test_on() -> None:
    noisy, plain = (dataset(TASKS[name], "cpu", 1000) for name in ("noisy", "resnet 8"))
    assert 0.3 < float((noisy.y != plain.y).double().mean()) < 0.42  # a tenth of the random ones are right
    assert torch.equal(noisy.y_test, plain.y_test)


@pytest.mark.parametrize("method", [name for name in METHODS if name in available()])
def test_methods_lower_the_loss(method: str) -> None:
    kind = TASKS["dense mnist"]
    data = dataset(kind, "cpu", 60)
    problem = Problem(kind, data, 1, 0, 60, 10)
    grid = GRIDS.get(method)
    settings = {"rate": grid.rates[0] / 3, "decay": 0.0, "damping": max(grid.dampings, default=0.0)} if grid else {}
    step = step_of(method, kind, problem.module(), settings)
    with torch.no_grad():
        first = step.loss(step.module, data.x, data.y)
    for _ in range(3):
        step(data.x, data.y, 1.0)
    with torch.no_grad():
        assert step.loss(step.module, data.x, data.y) < first


def test_a_diverged_run_has_the_worst_score() -> None:
    kind = TASKS["autoencoder"]
    problem = Problem(kind, dataset(kind, "cpu", 20), 3, 0, 20, 16)
    found = train("SGD", problem, {"rate": 1e30, "decay": 0.0})
    assert found["score"][-1] == 1000.0
    assert len(found["score"]) == 3


def searched(monkeypatch: pytest.MonkeyPatch, folder: Path, score: Callable[[Fields], float]) -> Fields:
    """What is chosen for K-FAC on a task, where settings have these scores."""
    monkeypatch.setattr(Bench, "held_back_score", lambda self, method, option: score(option))
    data = dataset(TASKS["dense mnist"], "cpu", 20)
    bench = Bench(Store(folder / "optimisers-cpu.jsonl"), "dense mnist", Scale(), data)
    assert chosen(bench, LIFTED) == {}
    return chosen(bench, "K-FAC")


def test_rates_are_searched_beyond_their_ends_then_decay_and_damping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(option: Fields) -> float:
        return 100 - abs(option["rate"] - 2.0) - option["decay"] - float(option["damping"])

    found = searched(monkeypatch, tmp_path, score)
    assert 1 < found["rate"] < 3.1
    assert (found["decay"], found["damping"]) == (min(GRIDS["K-FAC"].decays), min(GRIDS["K-FAC"].dampings))


@pytest.mark.parametrize(("least", "expected"), [(100.0, 300.0), (1e9, 3000.0)])
def test_dampings_are_larger_where_the_smallest_rate_diverges(
    least: float, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings with a damping of at least `least` score the same, the others diverge; a search has an end."""
    found = searched(monkeypatch, tmp_path, lambda option: 0.5 if option["damping"] >= least else 0.0)
    assert found["damping"] == expected


def test_the_search_begins_where_the_units_of_a_task_are() -> None:
    starts = {name: optimisers._units(kind, "FOOF") for name, kind in TASKS.items()}
    assert starts["resnet 8"] == starts["vit"] == 30
    assert (starts["autoencoder"], starts["dense cifar10"], optimisers._units(TASKS["autoencoder"], "AdamW")) == (
        28,
        1,
        1,
    )


def test_a_quick_part_is_stored_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(quick=True, results=tmp_path, only=("dense",))
    optimisers.run(settings)
    first, stored = capsys.readouterr().out, (tmp_path / "optimisers-cpu.jsonl").read_text()
    optimisers.run(settings)
    assert capsys.readouterr().out == first
    assert (tmp_path / "optimisers-cpu.jsonl").read_text() == stored
    assert [line for line in first.splitlines() if "left out" in line] == missing()
    assert all(name in first for name in available())


def test_costs_are_times_that_of_adam_and_memory_beyond_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "optimisers-cuda.jsonl")
    for method, recorded, milliseconds, peak in (
        (LIFTED, False, 6.0, 500.0),
        (LIFTED, True, 4.5, 550.0),
        ("AdamW", False, 4.0, 300.0),
        ("AdamW", True, 3.0, 350.0),
    ):
        value = {"milliseconds": milliseconds, "pass_seconds": 1.0, "state_MB": 1.0, "peak_MB": peak}
        store.add(value, part="cost", method=method, recorded=recorded)
    found = [(row["method"], row["steps"], row["times Adam"], row["peak beyond Adam, MB"]) for row in costs(store)]
    lifted = [(LIFTED, "plain", 1.5, 200.0), (LIFTED, "recorded", 1.5, 200.0)]
    assert found == [*lifted, ("AdamW", "plain", 1.0, 0.0), ("AdamW", "recorded", 1.0, 0.0)]


def records(folder: Path) -> Store:
    """Ours takes 4 seconds for 8 passes, SGD 2."""
    store = Store(folder / "optimisers-cuda.jsonl")
    for (method, seconds, passes), seed in itertools.product(
        ((LIFTED, 4.0, 8), ("SGD", 2.0, 8), ("SGD", 4.0, 16)), range(2)
    ):
        spent = [seconds * (number + 1) / passes for number in range(passes)]
        value = {"score": [0.8 + seed / 100] * passes, "seconds": spent, "settings": {"rate": 0.1}}
        store.add(value, part="resnet 8", stage="test", method=method, passes=passes, seed=seed)
    return store


def test_tables_and_the_picture_have_equal_passes_and_equal_seconds(tmp_path: Path) -> None:
    store = records(tmp_path)
    rows = optimisers.summary(store, "resnet 8")
    assert [(row["method"], row["passes"], row["seconds"]) for row in rows] == [
        (LIFTED, 8, 4.0),
        ("SGD", 8, 2.0),
        ("SGD", 16, 4.0),
    ]
    panel, _ = pictures.optimisers(store).axes  # the other has no records
    assert [(line.get_label(), len(line.get_xdata())) for line in panel.lines] == [(LIFTED, 8), ("SGD", 16)]


def test_tables_of_docs_say_what_is_not_measured() -> None:
    assert figures.optimisers()
    assert figures.optimiser_cost()


def test_methods_differ_in_grey_print() -> None:
    for kind in (1, 2):
        assert len({STYLES[name][kind] for name in METHODS}) == len(METHODS)


def test_parts_belong_to_a_device() -> None:
    assert optimisers.parts_of(Settings()) == ["cost"]
    assert optimisers.parts_of(Settings(device="cuda")) == list(PARTS)
    assert [name for part in PARTS.values() for name in part] == list(TASKS)
    assert all(len(optimisers.tasks_of(part, QUICK)) == (part != "cost") for part in PARTS)
    with pytest.raises(ValueError, match="--only takes resnet, noisy"):
        optimisers.parts_of(Settings(only=("none",)))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_learns(name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(40, 1, 8, 8)
    y, optimiser, losses = (x.mean((1, 2, 3)) > 0).long(), VARIANTS[name](module, nn.CrossEntropyLoss()), []
    for _ in range(30):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_a_gram_matrix_changes_the_direction_of_a_step_and_not_how_far_it_moves_the_outputs() -> None:
    x, motions, steps = torch.randn(500, 6) * torch.tensor([5.0, 1, 1, 1, 1, 0.2]), [], []
    for name in ("Lifted", "Lifted, Gram matrices", "Lifted, regression instead of polar"):
        torch.manual_seed(0)
        module: Any = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 2))
        optimiser, before = VARIANTS[name](module, nn.MSELoss()), module[0].weight.detach().clone()
        nn.functional.mse_loss(module(x), x[:, :2]).backward()
        optimiser.step()
        steps.append(before - module[0].weight.detach())
        motions.append(float((x @ steps[-1].T).norm()))
    assert motions[1] == pytest.approx(motions[0], rel=0.3)
    assert float((steps[0] - steps[1]).norm() / steps[0].norm()) > 0.2


def test_what_a_part_buys_is_in_deviations_of_seeds(tmp_path: Path) -> None:
    store, (base, other) = Store(tmp_path / "ablate-cuda.jsonl"), list(VARIANTS)[:2]
    for task, difference in (("vgg", 0.02), ("autoencoder", 4.0)):
        for seed in range(3):
            score, worse = (0.9 + 0.01 * seed, -difference) if task == "vgg" else (60 + 2.0 * seed, difference)
            store.add({"score": [score]}, task=task, variant=base, seed=seed)
            store.add({"score": [score + worse]}, task=task, variant=other, seed=seed)
    first, second = ablate.summary(store)
    assert (first["variant"], second["variant"]) == (base, other)
    assert second["worth"] == pytest.approx(2.0)
    assert second["standard error"] == pytest.approx(0.0, abs=1e-9)
