"""Comparisons: rows that are held back are not trained on, time is shared out evenly, choices are made on them alone, and what was stopped
goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import __main__ as cli
from experiments import compare, comparisons, equal_time, regimes, starts
from experiments.batched import Together, train_together
from experiments.comparisons import BATCH, LIFTED, RANDOM, STARTS, TUNING, Comparison, Recipe
from experiments.datasets import Dataset
from experiments.equal_time import Case, Outcome
from experiments.store import RESULTS, Store, existing


def command(order: list[str]) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as left:
        cli.main(order)
    return int(left.value.code or 0)


def clusters(rows: int = 900) -> Dataset:
    """Four clusters in 6 dimensions; the first column numbers the rows."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (rows + 200,), generator=generator)
    x = torch.randn(4, 6, generator=generator)[y] * 2 + torch.randn(len(y), 6, generator=generator)
    x[:, 0] = torch.arange(len(y)) / len(y)
    return Dataset(x[:rows], y[:rows], x[rows:], y[rows:])


def curve(rows: int = 400) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows + 100, 3, generator=generator)
    y = 50 + 10 * (x[:, 0].abs() - x[:, 1] * 0.5) + torch.randn(len(x), generator=generator)
    return Dataset(x[:rows], y[:rows], x[rows:], y[rows:])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data in place of the sets; times as they might be."""
    monkeypatch.setattr(comparisons, "_loaded", lambda name, split: curve() if name == "california" else clusters())
    monkeypatch.setattr(comparisons, "RATES", (1e-3, 1e-2))
    monkeypatch.setattr(comparisons, "_MORE_RATES", (1e-3, 1e-2, 3e-2))


def made_up(self: Case) -> None:
    times: dict[str, Any] = {"start_seconds": dict.fromkeys(STARTS, 0.0) | {LIFTED: 0.4}}
    self.store.add(times | {"epoch_seconds": {"100": 0.2, "500": 0.1}}, **self.fields("times"))


def of(folder: Path, comparison: Comparison, **more: Any) -> Case:
    return Case(equal_time.store_of(folder, "compare", comparison, "cpu"), comparison, **more)


@pytest.mark.usefixtures("small")
def test_held_back_rows_are_not_trained_on() -> None:
    comparison = Comparison("mnist", (5,))
    tune, _ = comparison.rows_of("tune", TUNING, "cpu")
    test, _ = comparison.rows_of("test", 0, "cpu")
    assert len(tune.x) == 750
    assert len(tune.x_test) == 150
    assert not set(tune.x[:, 0].tolist()) & set(tune.x_test[:, 0].tolist())
    assert sorted(test.x[:, 0].tolist()) == sorted(clusters().x[:, 0].tolist())
    assert torch.equal(test.x_test, clusters().x_test)


@pytest.mark.usefixtures("small")
def test_few_rows_are_drawn_anew_for_each_seed() -> None:
    comparison = Comparison("mnist", (5,), rows=100)
    first, second = (comparison.rows_of("test", seed, "cpu")[0] for seed in (0, 1))
    assert len(first.x) == len(second.x) == 100
    assert set(first.x[:, 0].tolist()) != set(second.x[:, 0].tolist())
    tune, _ = comparison.rows_of("tune", TUNING, "cpu")
    assert len(tune.x) == 100
    assert not set(tune.x[:, 0].tolist()) & set(tune.x_test[:, 0].tolist())


@pytest.mark.usefixtures("small")
def test_columns_are_standardised_by_the_rows_trained_on() -> None:
    data, _ = Comparison("mnist", (5,)).rows_of("tune", TUNING, "cpu", "standardised")
    torch.testing.assert_close(data.x.mean(0), torch.zeros(6), rtol=0, atol=1e-5)
    torch.testing.assert_close(data.x.std(0), torch.ones(6))
    plain, _ = Comparison("mnist", (5,)).rows_of("tune", TUNING, "cpu")
    expected = (plain.x_test - plain.x.mean(0)) / plain.x.std(0)
    torch.testing.assert_close(data.x_test, expected)


@pytest.mark.usefixtures("small")
def test_real_responses_are_standardised_and_reported_in_their_own_units() -> None:
    data, unit = Comparison("california", (5,)).rows_of("test", 0, "cpu")
    assert float(data.y.mean()) == pytest.approx(0, abs=1e-4)
    assert float(data.y.std(correction=0)) == pytest.approx(1, rel=1e-4)
    assert unit == pytest.approx(float(curve().y.std(correction=0)), rel=1e-5)
    spread = (curve().y_test.double().mean() - curve().y.double().mean()) / unit
    assert float(data.y_test.mean()) == pytest.approx(float(spread), abs=1e-5)


def test_a_recipe_has_what_is_left_of_the_budget() -> None:
    comparison = Comparison("mnist", (5,), epochs=3, batches=(100, 500))
    epochs = {100: 0.2, 500: 0.1}
    budget = 0.4 + 3 * 0.2
    counts = {recipe.batch: recipe.epochs for recipe in comparison.recipes(0.4, budget, epochs)}
    assert counts == {100: 3, 500: 6}
    counts = {recipe.batch: recipe.epochs for recipe in comparison.recipes(0.05, budget, epochs)}
    assert counts == {100: 5, 500: 10}  # rounded up
    assert len(set(comparison.recipes(0.0, budget, epochs))) == 2 * len(comparisons.RATES) * 2
    slow = comparison.recipes(100.0, budget, epochs)
    assert {recipe.epochs for recipe in slow} == {1}


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_the_best_on_held_back_rows_is_what_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    own = of(tmp_path, Comparison("mnist", (8,), epochs=2), seeds=2, choices=2, small=True)
    for part in (*own.tuning(), *own.testing(), own.lifted_alone()):
        assert part.work()
        assert not part.work()
    for start in STARTS:
        tried = own.tried(start)
        assert own.chosen(start).mean == max(each.mean for each in tried)
        assert own.tested(start).recipes == own.chosen(start).recipes
        assert own.tested_small(start).recipes == (Recipe(1e-5, "constant", BATCH, 2),)
        assert {recipe.epochs for each in tried for recipe in each.recipes} == {2 if start == LIFTED else 4}
        assert own.value("test", start)["seeds"] == [0, 1]
    assert own.tested(LIFTED).mean > 0.7
    assert own.tested(LIFTED).seconds == pytest.approx(0.4 + 2 * 0.2)
    alone = own.value("alone")["scores"]
    assert set(alone) == {"phase", "through"}
    text = compare.table([own], "mnist")
    assert f"{own.tested('He').mean:.4f}" in text
    assert own.chosen("Xavier").description in text


@pytest.mark.usefixtures("small")
def test_what_is_stored_is_what_a_network_trained_by_itself_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    comparison = Comparison("california", (8,), epochs=2)
    own = of(tmp_path, comparison, seeds=2, choices=1)
    for part in (*own.tuning(), *own.testing()):
        part.work()
    recipe, data = own.tested("He").recipes[1], comparison.rows_of("test", 1, "cpu")
    network = Together([[starts.he((3, 8, 1), 1, data[0])]], [recipe.rate], data[0], schedules=[recipe.schedule])
    train_together(network, recipe.epochs, recipe.batch, [1])
    assert own.tested("He").scores[1] == pytest.approx(data[1] * float(network.scores()), rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_every_split_has_a_choice_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows alone are asked: what is best on another split's held-back rows may be a test row of this one."""
    monkeypatch.setattr(Case, "measure", made_up)
    asked: list[int] = []

    def loaded(name: str, split: int) -> Dataset:
        asked.append(split)
        return curve()

    monkeypatch.setattr(comparisons, "_loaded", loaded)
    own = of(tmp_path, Comparison("california", (8,), epochs=2), seeds=3, choices=2)
    for part in own.tuning():
        part.work()
    assert set(asked) == {0, 1, 2}
    facts = own.value("tune", "He")
    assert facts["seeds"] == [100, 200, 101, 201, 102, 202]
    best = {0: 1, 1: 0, 2: 4}
    for place, row in enumerate(facts["recipes"]):
        row["scores"] = [0.1 if best[seed % TUNING] == place else 9.0 for seed in facts["seeds"]]
    own.store.add(facts, **own.fields("tune", "He"))
    expected = tuple(own.recipes("He")[best[split]] for split in range(3))
    assert tuple(own.chosen("He", split).recipes[0] for split in range(3)) == expected
    for part in own.testing():
        part.work()
    tested = own.tested("He")
    assert tested.recipes == expected
    assert len(tested.scores) == 3
    text = "1e-3 cosine (1 of 3), 1e-3 constant (1 of 3), 3e-2 constant (1 of 3), batch 100, 4 epochs"
    assert tested.description == text


@pytest.mark.usefixtures("small")
def test_without_tuning_there_is_the_usual_rate_alone() -> None:
    comparison = Comparison("mnist", (5,), epochs=3, batches=(100,), tuned=False)
    assert comparison.recipes(0.0, 0.6, {100: 0.2}) == [Recipe(1e-3, "constant", 100, 3)]


def test_falling_rates_and_real_responses_are_torch_s_own() -> None:
    data = Dataset(*(part.double() for part in curve()))
    rates, schedules = [1e-2, 3e-2], ["constant", "cosine"]
    first = [[starts.he((3, 6, 1), seed, data)] * 2 for seed in (0, 1)]
    together = Together(first, rates, data, schedules=schedules)  # type: ignore[arg-type]
    train_together(together, 2, 50, (0, 1))
    for s in (0, 1):
        for v, (rate, schedule) in enumerate(zip(rates, schedules, strict=True)):
            w0, w1 = first[s][v]
            net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1)).double()
            for place, (w, b) in ((0, w0), (2, w1)):
                net[place].load_state_dict({"weight": w.double(), "bias": b.double()})
            optimiser = torch.optim.Adam(net.parameters(), rate)
            falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: (1 + math.cos(math.pi * t / 16)) / 2)
            for epoch in (1, 2):
                order = torch.randperm(400, generator=torch.Generator().manual_seed(1_000_003 * s + epoch))
                for rows in torch.split(order, 50):
                    optimiser.zero_grad()
                    nn.functional.mse_loss(net(data.x[rows])[:, 0], data.y[rows]).backward()
                    optimiser.step()
                    if schedule == "cosine":
                        falling.step()
            error = nn.functional.mse_loss(net(data.x_test)[:, 0], data.y_test).detach().sqrt()
            assert float(together.scores()[s, v]) == pytest.approx(float(error), rel=1e-7)


def test_the_last_rows_of_an_epoch_are_trained_on_too() -> None:
    """130 rows are three batches of 50, 50 and 30."""
    data = Dataset(*(part[:130].double() for part in curve()))
    first = starts.he((3, 6, 1), 0, data)
    together = Together([[first]], [1e-2], data)
    train_together(together, 2, 50, [0])
    linears = [nn.Linear(p, q).double() for p, q in ((3, 6), (6, 1))]
    for linear, (w, b) in zip(linears, first, strict=True):
        linear.load_state_dict({"weight": w.double(), "bias": b.double()})
    net = nn.Sequential(linears[0], nn.ReLU(), linears[1])
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for epoch in (1, 2):
        order = torch.randperm(130, generator=torch.Generator().manual_seed(epoch))
        for rows in torch.split(order, 50):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(data.x[rows])[:, 0], data.y[rows]).backward()
            optimiser.step()
    torch.testing.assert_close(together.parameters[0][0], linears[0].weight.detach())


def test_low_precision_is_that_of_the_whole_training() -> None:
    data = clusters()
    comparison = Comparison("mnist", (8,), precision="bfloat16")
    rows = of(Path(), comparison)._cast(data)
    networks = Together([[starts.he((6, 8, 4), 0, data)]], [1e-2], rows, schedules=["cosine"])
    assert networks.values.dtype == networks.move.dtype == torch.bfloat16
    before = float(networks.scores())
    train_together(networks, 3, 50, [0])
    assert float(networks.scores()) > before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("clock", ["own", "cpu"])
def test_times_are_measured(tmp_path: Path, clock: Any) -> None:
    threads = torch.get_num_threads()
    own = of(tmp_path, Comparison("mnist", (8,), batches=(100, 500), clock=clock))
    own.measure()
    times = own.value("times")
    assert set(times["epoch_seconds"]) == {"100", "500"}
    assert set(times["start_seconds"]) == set(STARTS)
    assert times["start_seconds"][LIFTED] > times["start_seconds"]["He"] > 0
    assert own.machine("times")["threads"] == (2 if clock == "cpu" else threads)
    assert torch.get_num_threads() == threads


def test_a_store_of_another_kind_is_refused(tmp_path: Path) -> None:
    of(tmp_path, Comparison("mnist", (8,))).check()
    of(tmp_path, Comparison("mnist", (8,))).check()
    with pytest.raises(ValueError, match="mnist_8_17-epochs with seeds 5, and these would have 3: name another folder"):
        of(tmp_path, Comparison("mnist", (8,)), seeds=3).check()


def test_what_a_record_was_written_without_has_its_default(tmp_path: Path) -> None:
    own = of(tmp_path, Comparison("mnist", (8,)))
    fields = own.fields("comparison")
    del fields["inputs"], fields["cap"]
    own.store.add({"seeds": 5, "choices": 2, "small": False}, **fields)
    own.check()
    assert len(own.store.records) == 1
    assert not of(tmp_path, Comparison("mnist", (8,), cap=3)).has("comparison")
    assert not of(tmp_path, Comparison("mnist", (8,), inputs=comparisons.ANY_INPUTS)).has("comparison")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_recipe_may_standardise_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    wide = clusters()
    wide = Dataset(1000 * wide.x, wide.y, 1000 * wide.x_test, wide.y_test)
    monkeypatch.setattr(comparisons, "_loaded", lambda name, split: wide)
    comparison = Comparison("mnist", (8,), epochs=2, inputs=comparisons.ANY_INPUTS)
    own = of(tmp_path, comparison, seeds=2, choices=1)
    for part in (*own.tuning(), *own.testing()):
        part.work()
    own.check()
    assert len(own.tried("He")) == 2 * 4
    recipe = own.tested("He").recipes[0]
    assert recipe.inputs == "standardised"
    assert "standardised inputs" in own.tested("He").description
    data, _ = comparison.rows_of("test", 0, "cpu", "standardised")
    network = Together([[starts.he((6, 8, 4), 1, data)]], [recipe.rate], data, schedules=[recipe.schedule])
    train_together(network, recipe.epochs, recipe.batch, [1])
    assert own.tested("He").scores[1] == pytest.approx(float(network.scores()))


@pytest.mark.usefixtures("small")
def test_choices_of_other_times_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    own = of(tmp_path, Comparison("mnist", (8,), epochs=2), seeds=1, choices=1)
    for part in own.tuning():
        part.work()
    own.check()
    times = own.value("times")
    own.store.add(times | {"epoch_seconds": {"100": 0.1}}, **own.fields("times"))
    with pytest.raises(ValueError, match=r"from Xavier was chosen under other times, or among other recipes"):
        own.check()
    lines = [line for line in own.store.path.read_text().splitlines(True) if '"times"' not in line]
    own.store.path.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"remove its lines of stage tune and test"):
        of(tmp_path, own.comparison, seeds=1, choices=1).check()


@pytest.mark.parametrize("name", ["compare", "regimes"])
@pytest.mark.thin(2)
def test_committed_records_can_be_continued(name: str) -> None:
    """They are of comparisons that still exist, and nothing would be written or refused."""
    stores = {store.device: store for store in existing(RESULTS, name)}
    before = {device: store.path.read_bytes() for device, store in stores.items()}
    sets = {data: compare.cases(RESULTS, data, "cuda") for data in compare.CHOICES}
    groups = sets if name == "compare" else regimes.cases(RESULTS, "cuda")
    every = [own for group in groups.values() for own in group if own.has("comparison")]
    assert len(every) == sum(len(store.find(stage="comparison")) for store in stores.values())
    for own in every:
        own.check()
    assert {device: store.path.read_bytes() for device, store in stores.items()} == before


def test_every_comparison_has_a_title_of_its_own() -> None:
    every = [comparison for all_ in regimes.REGIMES.values() for comparison in all_]
    assert len({comparison.title for comparison in every}) == len(every)


def outcomes(**scores: list[float]) -> Any:
    recipe = Recipe(1e-3, "constant", 100, 1)
    return lambda start: Outcome((recipe,), scores.get(start, scores["other"]), 1.0)


def test_a_lead_is_given_in_deviations_of_a_difference() -> None:
    own = of(Path(), Comparison("mnist", (8,)))
    best_other, lead, deviations = own.standing(outcomes(Lifted=[0.9, 0.92], LSUV=[0.8, 0.84], other=[0.7, 0.71]))
    assert best_other == "LSUV"
    assert lead == pytest.approx(0.09)
    assert deviations == pytest.approx(0.09 / math.sqrt(0.0002 + 0.0008))
    assert own.standing(outcomes(Lifted=[0.9], other=[0.8])).deviations == 0.0  # one seed decides nothing
    assert own.standing(outcomes(Lifted=[0.9, 0.91], LSUV=[math.nan, math.nan], other=[0.8, 0.81]))[0] == "Xavier"
    assert equal_time.bold_if_large(2.1) == "**+2.1**"
    assert equal_time.bold_if_large(-1.94) == "-1.9"


def test_where_seeds_are_splits_a_lead_is_given_in_deviations_of_the_differences() -> None:
    own = of(Path(), Comparison("california", (8,)))
    scores = {"Lifted": [1.0, 3.0, 5.0], "LSUV": [1.1, 3.2, 5.3], "other": [9.0, 9.0, 9.0]}
    best_other, lead, deviations = own.standing(outcomes(**scores))
    assert best_other == "LSUV"  # of errors, the least
    assert lead == pytest.approx(0.2)
    assert deviations == pytest.approx(2.0)


@pytest.mark.parametrize(("deviations", "led"), [(2.1, True), (2.0, False), (-3.0, False), (math.nan, False)])
def test_what_leads_by_two_deviations_is_tested(deviations: float, led: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "standing", lambda self, outcome: equal_time.Standing("He", 0.1, deviations))
    assert regimes.promising(of(Path(), Comparison("mnist", (8,)))) is led


@pytest.mark.parametrize(
    "comparison", [Comparison("mnist", (8,)), Comparison("california", (8,))], ids=["classes", "real"]
)
def test_no_seed_of_a_choice_is_one_of_the_test(comparison: Comparison) -> None:
    seeds = comparison.tuning_seeds(5, 3)
    assert not set(seeds) & set(range(5))
    assert len(set(seeds)) == len(seeds) == (15 if comparison.real else 3)


def test_a_recipe_that_diverges_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (
        Outcome((Recipe(rate, "constant", 100, 1),), [score], 1.0) for rate, score in ((1.0, 0.3), (9.0, math.nan))
    )
    monkeypatch.setattr(Case, "tried", lambda self, start: [bad, good, bad])
    own = of(Path(), Comparison("mnist", (8,)), choices=1)
    assert own.chosen("He").recipes == good.recipes


def test_a_cpu_s_seconds_are_those_of_two_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with equal_time._clock("cpu") as device:
            assert device == "cpu"
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
        with equal_time._clock("own") as device:
            assert device is None
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_lifted_model_has_as_many_passes_as_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = starts.fenchel

    def counted(layout: starts.Sizes, seed: int, data: Dataset, passes: int) -> Any:
        seen.append(passes)
        return plain(layout, seed, data, passes)

    monkeypatch.setattr(starts, "fenchel", counted)
    of(tmp_path, Comparison("mnist", (8,), epochs=7, passes=2), seeds=1).alone()
    assert seen == [2, 7, 2, 2, 7, 7]


def test_quick_comparisons_have_few_epochs() -> None:
    for name in compare.CHOICES:
        [comparison] = compare.comparisons(name, quick=True)
        recipes = comparison.recipes(0.0, 1000.0, {100: 0.001})
        assert {recipe.epochs for recipe in recipes} == {3}


@pytest.mark.usefixtures("small")
def test_only_settings_that_lead_are_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    fast, slow = Comparison("mnist", (8,), epochs=1), Comparison("fashion", (8,), epochs=1)
    monkeypatch.setattr(regimes, "REGIMES", {"first": [fast], "second": [slow]})
    monkeypatch.setattr(regimes, "promising", lambda own: own.comparison == fast)
    own = regimes.cases(tmp_path, "cpu", (), 2, 2, regimes.REGIMES)
    regimes.compute([each for all_ in own.values() for each in all_])
    text, (led, other) = regimes.table(own), (own["first"][0], own["second"][0])
    assert led.has("test", LIFTED)
    assert not other.has("test", LIFTED)
    assert "2 settings, 1 with a lead" in text
    one = regimes.cases(tmp_path, "cpu", ["first"], 2, 2, regimes.REGIMES)
    regimes.compute(one["first"])
    lines = led.store.path.read_text().splitlines(True)
    led.store.path.write_text("".join(x for x in lines if not ('"fashion"' in x and '"He"' in x and '"tune"' in x)))
    text = regimes.table(regimes.cases(tmp_path, "cpu", (), 2, 2, regimes.REGIMES))
    assert "1 settings, 1 with a lead" in text
    assert "1 more are not complete yet" in text


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_a_stopped_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Case, "measure", made_up)
    order = ["compare", "--only", "fashion", "--quick", "--results"]
    play = Case._train_stage

    def stopped(self: Case, stage: Any, start: str) -> None:
        if stage == "test" and start == "LSUV":
            raise KeyboardInterrupt
        play(self, stage, start)

    monkeypatch.setattr(Case, "_train_stage", stopped)
    assert command([*order, str(tmp_path / "often")]) == 130
    assert "goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(Case, "_train_stage", play)
    assert command([*order, str(tmp_path / "often")]) == 0
    assert command([*order, str(tmp_path / "once")]) == 0
    once, often = (Store(tmp_path / name / "compare-cpu.jsonl").find(stage="test") for name in ("once", "often"))
    assert [each[:2] for each in once] == [each[:2] for each in often]


def test_a_quick_run_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(compare, "run", lambda settings: seen.append(settings.results))
    assert command(["compare", "--quick"]) == 0
    assert seen[0] != RESULTS
    assert not seen[0].exists()
    assert command(["compare", "--quick", "--results", str(tmp_path)]) == 0
    assert command(["compare"]) == 0
    assert seen[1:] == [tmp_path / "quick", RESULTS]  # its records are never taken for those of a whole run


def test_wrong_orders_are_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="--only takes mnist, fashion"):
        compare.comparisons("wine")
    with pytest.raises(ValueError, match="--seeds must be from 1 to 5"):
        compare.cases(tmp_path, "uci", seeds=0)
    assert regimes.table(regimes.cases(tmp_path)) == "No setting is complete yet.\n"
    with pytest.raises(ValueError, match="--only takes few epochs"):
        regimes.cases(tmp_path, only=["none"])
    assert command(["regimes", "--only", "none", "--results", str(tmp_path)]) == 2
    assert "--only takes" in capsys.readouterr().err
    assert command(["compare", "--only", "wine", "--results", str(tmp_path)]) == 2


def test_random_weights_are_of_three_kinds() -> None:
    assert set(RANDOM) == {"Xavier", "He", "LSUV"}
