"""Table 1 as a command: the batched arithmetic is torch's own, a run that is killed and resumed equals an uninterrupted one, and the report
says what the files hold."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from records import kept
from torch import Tensor, nn

import liftednn as lnn
from experiments import __main__ as cli
from experiments import batched, cells, drawing, figure1, parts, rendering, search, starts, table1
from experiments.batched import Together, epoch_seconds, train_together
from experiments.cells import Plan
from experiments.datasets import Dataset
from experiments.settings import Settings
from experiments.store import Store

SIZES = (12, 8, 5, 4)


def synthetic(rows: int = 300, dtype: torch.dtype = torch.float32) -> Dataset:
    """Four clusters in 12 dimensions."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 12, generator=generator)
    y = torch.randint(0, 4, (rows + 100,), generator=generator)
    x = (centres[y] + torch.randn(len(y), 12, generator=generator)).to(dtype)
    return Dataset(x[:rows], y[:rows], x[rows:], y[rows:])


def module(weights: list[lnn.Affine]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for w, b in weights:
        layer = nn.Linear(w.shape[1], w.shape[0], dtype=torch.float64)
        layer.load_state_dict({"weight": w.double(), "bias": b.double()})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def several(method: batched.Method = "adam") -> tuple[Together, list[list[nn.Sequential]], list[float]]:
    """Two seeds and three variants, and the same networks as torch's own modules."""
    data, rates = synthetic(dtype=torch.float64), [1e-2, 1e-3, 3e-2]
    chosen = (starts.normal, starts.xavier, starts.he)
    first = [[start(SIZES, seed, data) for start in chosen] for seed in (3, 4)]
    return Together(first, rates, data, method), [[module(w) for w in seed] for seed in first], rates


def parameters_of(networks: Together, seed: int, variant: int) -> list[Tensor]:
    return [part[2 * variant + seed].squeeze() for part in networks.parameters]


def test_gradients_are_autograd_s() -> None:
    networks, modules, _ = several()
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(1))[:40].view(2, 20)
    each_s = rows.repeat(3, 1)
    found = networks.gradients(networks.data.x[each_s], networks.targets[each_s])
    for s, seed in enumerate(modules):
        for v, each in enumerate(seed):
            loss = nn.functional.cross_entropy(each(networks.data.x[rows[s]]), networks.data.y[rows[s]])
            expected = torch.autograd.grad(loss, list(each.parameters()))
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine[2 * v + s].squeeze(), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["adam", "sgd"])
def test_training_is_torch_s_own(method: batched.Method) -> None:
    networks, modules, rates = several(method)
    curves: list[Tensor] = []
    train_together(networks, 2, 50, (3, 4), lambda epoch, seen: curves.append(seen))
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[method]
    for s, seed in enumerate((3, 4)):
        for v, rate in enumerate(rates):
            each = modules[s][v]
            steps = optimiser(each.parameters(), rate)
            for epoch in (1, 2):
                order = torch.randperm(300, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
                for rows in torch.split(order, 50):
                    steps.zero_grad()
                    nn.functional.cross_entropy(each(networks.data.x[rows]), networks.data.y[rows]).backward()
                    steps.step()
            for mine, theirs in zip(parameters_of(networks, s, v), each.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs.detach(), rtol=1e-8, atol=1e-10)
            right = (each(networks.data.x_test).argmax(1) == networks.data.y_test).double().mean()
            assert float(curves[-1][s, v]) == pytest.approx(float(right))
    assert len(curves) == 3


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    data = synthetic(30)
    networks = Together([[starts.he(SIZES, 0, data)]], [1e-3], data)
    before = networks.parameters[0].clone()
    train_together(networks, 1, 100, [0], lambda epoch, seen: None)
    assert not torch.equal(before, networks.parameters[0])
    assert epoch_seconds(networks, 100) > 0


@pytest.mark.gpu
def test_the_recorded_step_is_the_plain_one() -> None:
    curves: dict[str, list[Tensor]] = {"cpu": [], "cuda": []}
    for device, seen_there in curves.items():
        data = Dataset(*(part.to(device) for part in synthetic(dtype=torch.float64)))
        networks = Together([[starts.he(SIZES, s, data)] * 2 for s in (0, 1)], [1e-2, 1e-3], data)
        train_together(networks, 3, 50, (0, 1), lambda epoch, seen, there=seen_there: there.append(seen.cpu()))  # type: ignore[misc]
    torch.testing.assert_close(curves["cpu"], curves["cuda"])


@pytest.mark.parametrize(
    ("name", "variance", "bias"),
    [
        ("Normal", lambda p, q: 0.01, 0.1),
        ("Xavier", lambda p, q: 2 / (p + q), 0.1),
        ("sigma^2-scale", lambda p, q: 1 / p, 0.1),
        ("He", lambda p, q: 2 / p, 0.0),
        ("literal", lambda p, q: 0.1, 0.1),
    ],
)
def test_random_starts_have_the_variance_they_declare(name: str, variance: Any, bias: float) -> None:
    start = starts.STARTS.get(name, starts.literal_normal)
    wide = (400, 300, 200)
    weights = start(wide, 0, synthetic())
    for (p, q), (w, b) in zip(pairwise(wide), weights, strict=True):
        assert float(w.var()) == pytest.approx(variance(p, q), rel=0.03)
        assert bool((b == bias).all())
    assert torch.equal(weights[0].w, start(wide, 0, synthetic())[0].w)
    assert not torch.equal(weights[0].w, start(wide, 1, synthetic())[0].w)


def test_orthogonal_rows_and_lsuv_s_variance() -> None:
    data = synthetic()
    for w, _ in starts.orthogonal(SIZES, 0, data):
        torch.testing.assert_close(w @ w.T, 2 * torch.eye(len(w)), rtol=1e-5, atol=1e-5)
    x = data.x
    for w, b in starts.lsuv(SIZES, 0, data):
        u = x @ w.T + b
        assert float(u.var()) == pytest.approx(1, rel=1e-4)
        x = u.relu()


def test_pca_s_features_are_uncorrelated_and_centred() -> None:
    data = synthetic()
    w, b = starts.pca(SIZES, 0, data)[0]
    u = data.x @ w.T + b
    covariance = u.T.cov(correction=0)
    torch.testing.assert_close(u.mean(0), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(covariance, covariance.diag().diag(), rtol=0, atol=1e-5)
    assert float(covariance.diag().mean()) == pytest.approx(1, rel=1e-4)
    assert bool((covariance.diag().diff() <= 0).all())


def test_a_wide_layer_s_spare_rows_are_he_s() -> None:
    data = synthetic()
    w, _ = starts.pca((12, 20, 4), 0, data)[0]
    assert torch.equal(w[12:], starts.he((12, 20, 4), 0, data)[0].w[12:])


def test_fitted_and_lifted_starts_beat_chance_before_any_epoch() -> None:
    data = synthetic()
    fitted = starts.fitted_head(SIZES, 0, data)
    lifted = starts.euclidean(SIZES, 0, data, lam=1.0, passes=1)
    fenchel = starts.fenchel(SIZES, 0, data, passes=3)
    hidden = starts.BCD(seed=0).init(lnn.LiftedNetwork.mlp(SIZES), data.x, data.y).weights
    assert torch.equal(fitted[0].w, hidden[0].w)
    assert bool((Together([[fitted, lifted, fenchel]], [0.0] * 3, data).scores() > 0.5).all())


def test_a_phase_that_was_stopped_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("liftednn.training.bcd.BCD.blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        starts.euclidean(SIZES, 0, synthetic(), lam=1.0, passes=1)


def tiny(out: Path, **changes: Any) -> Plan:
    shape: Any = (((8,), (6, 5)), (1e-2, 1e-3), (1e-3,), (1e-2,), 2, 2, 50, 1, 5, 60, 150, True)
    return replace(Plan(Store(out / "table1-cpu.jsonl"), *shape), **changes)


def contents(plan: Plan) -> list[Any]:
    """All records, times aside."""
    return [[fields, {k: v for k, v in value.items() if "seconds" not in k}] for fields, value, _ in plan.store.records]


class Ticks:
    """Counts steps and writings, and is Ctrl-C at the chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.last = 0, sys.maxsize
        for place, name in ((Together, "step"), (Store, "add_all")):
            monkeypatch.setattr(place, name, self.counted(getattr(place, name)))

    def counted(self, work: Any) -> Any:
        def tick(*given: Any) -> None:
            self.count += 1
            if self.count == self.last:
                raise KeyboardInterrupt
            work(*given)

        return tick


@pytest.mark.slow
def test_kills_leave_what_one_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # How many epochs fit into a phase depends on the clock; all else must not.
    monkeypatch.setattr(table1, "extra_epochs", lambda *given: 1)
    data, ticks, moments = synthetic(), Ticks(monkeypatch), random.Random(0)
    once, often = tmp_path / "once", tmp_path / "often"
    table1.compute(tiny(once), data)
    total = ticks.count
    for _ in range(4):
        ticks.count, ticks.last = 0, moments.randint(1, total // 4)
        with pytest.raises(KeyboardInterrupt):
            table1.compute(tiny(often), data)
        assert "parts are done" in capsys.readouterr().err
    ticks.last = sys.maxsize
    table1.compute(tiny(often), data)
    assert contents(tiny(once)) == contents(tiny(often))
    # 2 architectures: 5 trials, 2 timings, 2 seeds of 3 phases, 10 starts at 2 rates, more epochs, 4 starts as printed, 5 scaled.
    assert len(contents(tiny(once))) == 1 + 2 * (5 + 2 + 2 * (3 + 10 * 2 + 1 + 4 + 5))
    ticks.count = 0
    table1.compute(tiny(often), data)
    assert ticks.count == 0


def test_a_scaled_reading_trains_at_its_own_rate(tmp_path: Path) -> None:
    """What is stored under a printed rate is what gradients at 250 times that rate give."""
    data, plan = synthetic(), tiny(tmp_path, literal_rates=(1e-5,))
    cells.measure(plan, data, (6,), "sgd")
    group = table1._by_gradients(
        plan, cells.Group((6,), "Xavier", starts.xavier, (), 0), rendering.SCALED, rendering.SCALE
    )
    group.compute(plan, data)
    stored = plan.store.get(kind="cell", rate=1e-5, seed=1)
    assert stored is not None
    assert stored["parameters"]["rate"] == 1e-5
    assert stored["parameters"]["scale"] == 250
    assert group.done(plan)
    alone = Together([[starts.xavier(cells.sizes((6,), data), 1, data)]], [2.5e-3], data, "sgd")
    train_together(alone, plan.epochs, plan.batch, [1])
    assert stored["accuracy"] == float(alone.scores())


def test_a_store_of_another_plan_is_refused(tmp_path: Path) -> None:
    cells.check_plan(tiny(tmp_path), synthetic())
    with pytest.raises(ValueError, match=r"holds figures with epochs 2, and these would have 3: name another folder"):
        cells.check_plan(tiny(tmp_path, epochs=3), synthetic())
    with pytest.raises(ValueError, match=r"figures with trials 5, and these would have 1: name another folder"):
        cells.check_plan(tiny(tmp_path, trials=1), synthetic())
    with pytest.raises(ValueError, match="400 rows cannot be held back of 300"):
        search.split(tiny(tmp_path, held=400), synthetic())


def test_a_plan_without_trials_has_the_default_ones(tmp_path: Path) -> None:
    plan = tiny(tmp_path, trials=10)
    plan.store.add({"epochs": 2, "batch": 50, "passes": 1, "rows": 300, "held": 60, "search_rows": 150}, kind="plan")
    with pytest.raises(ValueError, match="figures with trials 10, and these would have 3"):
        cells.check_plan(tiny(tmp_path, trials=3), synthetic())
    cells.check_plan(plan, synthetic())


def test_a_group_needs_the_time_of_an_epoch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no time of an epoch of 8: run table1, which measures it"):
        cells.Group((8,), "He", starts.he, (1e-2,), 1).compute(tiny(tmp_path), synthetic())


def test_cells_of_another_choice_are_made_again(tmp_path: Path) -> None:
    plan, data = tiny(tmp_path), synthetic()
    cells.measure(plan, data, (8,), "adam")
    group = cells.Group((8,), "He", starts.he, (1e-2,), 1, settings={"lam": 1.0})
    assert not group.done(plan)
    group.compute(plan, data)
    assert group.done(plan)
    other = replace(group, settings={"lam": 2.0})
    assert not other.done(plan)
    other.compute(plan, data)
    assert other.done(plan)
    assert len([cell for cell in cells.cells(plan.store) if cell["kind"] == "cell"]) == 2  # the later ones count
    stored, known = plan.store.find(kind="cell", seed=1)[0][1:]
    assert len(stored["curve"]) == 2
    assert stored["seconds_alone"] == pytest.approx(stored["epoch_seconds_alone"] + stored["start_seconds"])
    assert known["torch"] == torch.__version__


def test_the_time_of_a_phase_as_epochs(tmp_path: Path) -> None:
    plan = tiny(tmp_path, seeds=3)
    phase = cells.Group((8,), "Lifted (Fenchel)", starts.he, (1e-2,), 1, phase=True)
    plan.store.add({"epoch_seconds_alone": 0.5}, kind="timing", architecture="8", method="adam")
    for seed, seconds in enumerate((1.2, 90.0, 1.3)):
        plan.store.add({"start_seconds": seconds}, kind="phase", architecture="8", start=phase.name, seed=seed)
    assert cells.extra_epochs(plan, (8,), phase) == 3


def test_the_search_resumes_and_chooses_twice(tmp_path: Path) -> None:
    plan = tiny(tmp_path, trials=6)
    for number, lam in enumerate((0.01, 0.1, 1.0, 10.0, 100.0)):
        scores = {"accuracy_after_epoch": 0.9 - 0.1 * abs(number - 1), "accuracy_alone": 0.9 - 0.1 * abs(number - 3)}
        plan.store.add({"lam": lam, "passes": 1, **scores}, kind="trial", architecture="8", number=number)
    search.trial(plan, synthetic(), (8,), 5)
    *past, stored = plan.store.values(kind="trial")
    assert search.proposal(past) == search.proposal(past) == (stored["lam"], stored["passes"])
    assert stored["rows"] == 150
    assert stored["seconds"] > 0
    five = replace(plan, trials=5)
    assert search.best(five, (8,), "accuracy_after_epoch") == (0.1, 1)
    assert search.best(five, (8,), "accuracy_alone") == (10.0, 1)


def test_the_search_never_uses_the_test_rows(tmp_path: Path) -> None:
    data = synthetic()
    rows = search.split(tiny(tmp_path, search_rows=None), data)
    assert torch.equal(rows.x, data.x[:240])
    assert torch.equal(rows.x_test, data.x[240:])


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "liftednn\[tune\]"'):
        table1.compute(tiny(tmp_path), synthetic())


def figure(net: str, start: str, rate: float | None, seed: int, curve: list[float]) -> dict[str, Any]:
    """A made-up record, as a run would leave it."""
    known = {"liftednn": "1", "torch": "2", "python": "3", "processor": "x", "device": "cpu"}
    parameters: dict[str, Any] = {"architecture": net, "start": start}
    facts = {"accuracy": curve[-1], "seed": seed, "rows": 60_000, "versions": known, "start_seconds": 2.0}
    if rate is None:
        return facts | {"kind": "phase", "parameters": parameters}
    facts |= {"kind": "cell", "curve": curve, "seconds_alone": 19.0, "epoch_seconds_alone": 1.0}
    facts["group_training_seconds"] = 5.0
    return facts | {"parameters": parameters | {"rate": rate, "epochs": 17, "batch": 100}}


def one_trial(number: int, **more: Any) -> dict[str, Any]:
    facts = {"kind": "trial", "parameters": {"architecture": "300"}, "number": number, "seed": 0, "rows": 50_000}
    return facts | {"lam": 0.1234, "passes": 2, "accuracy_alone": 0.8, "accuracy_after_epoch": 0.9} | more


def rendered(store: Store) -> str:
    return rendering.table(list(cells.cells(store)))


def made_up(folder: Path) -> Store:
    facts = []
    for net in figure1.ARCHITECTURES:
        for seed in (0, 1):
            facts.append(figure(net, rendering.ALONE, None, seed, [0.8]))
            facts.append(figure(net, "He", 1e-5, seed, [0.1, 0.5, 0.90 + 0.02 * seed]))
            facts.append(figure(net, rendering.EUCLIDEAN, 1e-5, seed, [0.8, 0.85, 0.95]))
            facts.append(figure(net, "Xavier" + rendering.LITERAL, 1e-5, seed, [0.1, 0.2, 0.3]))
    return kept(folder / "table1-cpu.jsonl", *facts)


def test_the_table_is_what_the_records_say(tmp_path: Path) -> None:
    text = rendered(kept(made_up(tmp_path).path, one_trial(0)))
    blank = "  |" * 5
    accuracy = "| 300 | 0.8000 ± 0.0000 [0.898 ± 0.005] |  |  |  |  | 0.9100 ± 0.0141 |  |  |  |  "
    accuracy += "| **0.9500 ± 0.0000** [0.962 ± 0.003] |  |  |"
    assert text.count(accuracy) == 1
    assert "| 300 |  |  |  | 0.5000 ± 0.0000 |" in text
    assert f"| 300 |{'  |' * 3} 19.00 |{blank[: 3 * 4]} 19.00 |  |  |" in text
    assert "| 300 | lam 0.123, passes 2, 0.9000 | lam 0.123, passes 2, 0.8000 |" in text
    assert "## As printed: stochastic gradients, sigma^2 = 0.1, rate 1e-5" in text
    assert "| 300 | **0.3000 ± 0.0000** [0.923 ± 0.005] |\n" in text
    assert "mean ± standard deviation over 2 seeds; the best of a row in bold, the paper's figure in brackets" in text


def test_the_table_shows_the_seconds_of_all_that_is_stored(tmp_path: Path) -> None:
    path = made_up(tmp_path).path
    # 2 architectures: 4 starts of 2 seeds, each of 2 s, and 3 groups, each of 5 s.
    told = "initial weights 32 s, training of whole groups 30 s; the paper's columns 26 s of it."
    search_ = "search 0 s, without 1 of 1 trials whose time is not stored"
    assert f"took 62 s: {search_}, {told}" in rendered(kept(path, one_trial(0)))
    assert f"took 65 s: search 3 s, {told}" in rendered(kept(path, one_trial(0, seconds=3.0)))


def test_the_table_shows_how_close_the_random_columns_come(tmp_path: Path) -> None:
    """Distances of means; an average over seeds and columns, and a count."""
    facts = []
    for rate in (1e-5, 1e-6):
        for name, gap in (("Xavier", 0.01), ("Normal", -0.03)):
            facts.append(figure("300", name, rate, 0, [0.1, 0.5, rendering.PAPER["300", name, rate].mean + gap]))
    text = rendered(kept(tmp_path / "t.jsonl", *facts))
    assert "| Adam, sigma = 0.1 | 0.0200, 1 of 2 | 0.0200, 1 of 2 |" in text
    assert "| as printed |" not in text


def test_figures_of_fewer_rows_stand_without_the_paper_s(tmp_path: Path) -> None:
    few = [cell | {"rows": 6000} for cell in cells.cells(made_up(tmp_path)) if cell["seed"] == 0]
    text = rendering.table(few)
    assert "[0." not in text
    assert "batch 100; one seed; the best of a row in bold. Our Model" in text
    assert "No cell is stored yet" in rendering.table([])


def test_the_paper_s_table_is_complete() -> None:
    assert len(rendering.PAPER) == 5 + 2 * 5 * 4
    assert rendering.PAPER["400-200-100-50", rendering.EUCLIDEAN, 1e-6] == (0.959, 0.003)
    assert str(rendering.PAPER["300", "Xavier", 1e-5]) == "0.923 ± 0.005"


def test_the_figure_is_drawn_from_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"no cells of 300 at rate 1e-5: make them with  python -m experiments table1"):
        figure1.figure1(Store(tmp_path / "none.jsonl"), tmp_path / "f.png")
    run = made_up(tmp_path)
    curve = figure1.curves(run, "300", 1e-5)[0]
    assert curve.name == "He"
    assert curve.accuracy == [[0.1, 0.5, 0.9], [0.1, 0.5, 0.92]]
    assert curve.seconds == [2.0, 3.0, 4.0]
    assert figure1.figure1(run, tmp_path / "f.png") == [tmp_path / "f.png", tmp_path / "f.svg"]
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "Lifted (euclidean)" in (tmp_path / "f.svg").read_text()
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "liftednn\[plot\]"'):
        figure1.figure1(run, tmp_path / "f.png")


def test_plans_of_command_lines(tmp_path: Path) -> None:
    whole = table1.plan_of(Settings(device="cuda", results=tmp_path))
    assert (len(whole.architectures), whole.seeds, whole.epochs, whole.trials) == (5, 5, 17, 10)
    assert (whole.store.path, whole.search_rows) == (tmp_path / "table1-cuda.jsonl", None)
    assert table1.plan_of(Settings(results=tmp_path)).search_rows == 20_000
    quick = table1.plan_of(Settings(quick=True, results=tmp_path, only=("20", "20-10")))
    assert (quick.architectures, quick.epochs) == (((20,), (20, 10)), 2)
    for wrong in ("a", "300,", "300-0", "-3"):
        with pytest.raises(ValueError, match="--only takes widths of hidden layers"):
            table1.plan_of(Settings(results=tmp_path, only=(wrong,)))


def command(*arguments: object) -> Any:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(each) for each in arguments])
    return ended.value.code


@pytest.mark.slow  # test_experiments_quick.py runs the first
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(table1, "mnist", lambda device: synthetic(1200))
    monkeypatch.setattr(table1, "small", lambda data, rows: data)
    order = ("--quick", "--only", "8", "--results", tmp_path)
    assert command("table1", *order) == 0
    told = capsys.readouterr()
    assert "## Accuracy, rate 1e-5" in told.out
    assert "1 of 15  8, search 1" in told.err
    assert command("table1", *order) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (told.out, "")
    assert command("figure1", "--results", tmp_path / "quick", "--out", tmp_path / "f.png") == 2
    assert "no cells of 300 at rate 1e-5" in capsys.readouterr().err
    made_up(tmp_path / "made")
    assert command("figure1", "--results", tmp_path / "made", "--out", tmp_path / "f.png") == 0
    assert (tmp_path / "f.svg").exists()


def test_ctrl_c_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table1, "mnist", lambda device: synthetic(1200))
    monkeypatch.setattr(table1, "small", lambda data, rows: data)
    Ticks(monkeypatch).last = 100
    assert command("table1", "--quick", "--only", "8", "--results", tmp_path) == 130
    told = capsys.readouterr().err
    assert "parts are done" in told
    assert "what is done is stored, and the same command goes on" in told
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for wrong, words in (
        (["table1", "--seeds", "0"], "--seeds"),
        (["table1", "--only", "x"], "--only takes widths"),
        (["table1", "--device", "cuda"], "needs a GPU and a torch built for it, and there is none here"),
        (["tabel1"], "there is no experiment 'tabel1': the names are table1, compare"),
        (["nnls", "--only", "x"], "nnls takes no --only: leave it out"),
        (["figures", "--device", "cuda"], "figures runs on the CPU alone: leave out --device"),
        (["figures", "--quick"], "from the repository's own results: leave out --quick and --results"),
        (["nnls", "--results", __file__], "results must be a folder, and"),
        (["figure1", "--results", str(tmp_path / "none")], "holds no table1: make it with"),
        (["figure1", "--results", str(tmp_path / "quick"), "--out", "f.gif"], "f.gif must end in .png"),
    ):
        assert command(*wrong) == 2
        assert words in capsys.readouterr().err


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with parts.progress(3) as tell:
        tell("300, He", 0, None)
        tell("300, PCA", 1, 200.0)
    told = capsys.readouterr().err
    assert "2/3" in told
    assert "about 3 min left, done: 300, PCA" in told
