"""Table 1 of the paper (sec. 7), with the columns that it lacks: `python -m experiments table1`.

The work is a list of parts, each of which leaves files behind and is skipped where they are there. So a run can be stopped at any moment,
and the same command goes on. The table is made from the files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments import rendering, search, starts
from experiments.batched import Method
from experiments.cells import ARCHITECTURES, Group, Plan, extra_epochs, measure, named, settle, timing_file
from experiments.datasets import Dataset, mnist
from experiments.parts import Part, do, unless_there
from experiments.starts import Sizes
from liftednn.start import check_device

__all__ = ["parts", "plan_of", "run", "table1"]

_QUICK_ROWS, _QUICK_HELD, _QUICK_TRIALS = 6000, 1000, 3
_TRIALS, _SEEDS = 10, 5


def parts(plan: Plan, data: Dataset) -> list[Part]:
    """All the work, in an order in which each part finds what it needs."""
    return [part for architecture in plan.architectures for part in _parts(plan, data, architecture)]


def _parts(plan: Plan, data: Dataset, architecture: Sizes) -> Iterator[Part]:
    here = named(architecture)
    for number in range(plan.trials):
        file = search.trial_file(plan, architecture, number)
        yield Part(
            f"{here}, search {number + 1}", unless_there(file, partial(search.trial, plan, data, architecture, number))
        )
    methods: tuple[Method, ...] = ("adam", "sgd") if plan.literal else ("adam",)
    for method in methods:
        file = timing_file(plan, architecture, method)
        yield Part(f"{here}, time of an epoch", unless_there(file, partial(measure, plan, data, architecture, method)))
    for name, group in _groups(plan, architecture).items():
        yield Part(f"{here}, {name}", partial(_compute, plan, data, group))


def _compute(plan: Plan, data: Dataset, made: Callable[[], Group]) -> bool:
    group = made()
    if group.done(plan):
        return False
    group.compute(plan, data)
    return True


def _groups(plan: Plan, architecture: Sizes) -> dict[str, Callable[[], Group]]:
    """Made when they are needed, since some depend on what the search chose or on times."""
    given: dict[str, Callable[[], Group]] = {rendering.ALONE: partial(_alone, plan, architecture)}
    for name, start in starts.STARTS.items():
        given[name] = partial(Group, architecture, name, start, plan.rates, plan.epochs)
    given[rendering.EUCLIDEAN] = partial(_euclidean, plan, architecture)
    given[rendering.FENCHEL] = partial(_fenchel, plan, architecture)
    if plan.more_rates:
        given[rendering.MORE] = partial(_more, plan, architecture)
    return given | (_readings(plan, architecture) if plan.literal else {})


def _alone(plan: Plan, architecture: Sizes) -> Group:
    choice = search.best(plan, architecture, "accuracy_alone")
    start = partial(starts.euclidean, lam=choice.lam, sweeps=choice.sweeps)
    return Group(architecture, rendering.ALONE, start, (), 0, settings=choice._asdict(), phase=True)


def _euclidean(plan: Plan, architecture: Sizes) -> Group:
    choice = search.best(plan, architecture, "accuracy_after_epoch")
    start, name = partial(starts.euclidean, lam=choice.lam, sweeps=choice.sweeps), rendering.EUCLIDEAN
    return Group(architecture, name, start, plan.rates, plan.epochs, settings=choice._asdict(), phase=True)


def _fenchel(plan: Plan, architecture: Sizes) -> Group:
    start, settings = partial(starts.fenchel, passes=plan.passes), {"passes": plan.passes}
    return Group(architecture, rendering.FENCHEL, start, plan.rates, plan.epochs, settings=settings, phase=True)


def _more(plan: Plan, architecture: Sizes) -> Group:
    epochs = plan.epochs + extra_epochs(plan, architecture, _fenchel(plan, architecture))
    return Group(architecture, rendering.MORE, starts.he, plan.more_rates, epochs)


def _readings(plan: Plan, architecture: Sizes) -> dict[str, Callable[[], Group]]:
    """The paper's columns by stochastic gradients: all as printed, then with sigma = 0.1 and rates that give its figures."""
    random = {"Xavier": starts.xavier, "sigma^2-scale": starts.variance_scale}
    literal = {"Normal": starts.literal_normal} | random
    scaled = {"Normal": starts.normal} | random | {rendering.DOUBLED: starts.doubled_variance_scale}
    given: dict[str, Callable[[], Group]] = {}
    for reading, columns, scale in ((rendering.LITERAL, literal, 1.0), (rendering.SCALED, scaled, rendering.SCALE)):
        for name, start in columns.items():
            given[name + reading] = partial(
                _by_gradients, plan, Group(architecture, name, start, (), 0), reading, scale
            )
        given[rendering.EUCLIDEAN + reading] = partial(_lifted_by_gradients, plan, architecture, reading, scale)
    return given


def _lifted_by_gradients(plan: Plan, architecture: Sizes, reading: str, scale: float) -> Group:
    return _by_gradients(plan, _euclidean(plan, architecture), reading, scale)


def _by_gradients(plan: Plan, group: Group, reading: str, scale: float) -> Group:
    group = replace(group, name=group.name + reading, rates=plan.literal_rates, epochs=plan.epochs)
    return replace(group, method="sgd", phase=False, scale=scale)


def run(plan: Plan, data: Dataset) -> int:
    """Do what is left to do, then write and print the table. The exit code: 130 if it was interrupted."""
    search.check_installed()
    _make_folder(plan.out)
    settle(plan, data)
    if not do(parts(plan, data), plan.out):
        return 130
    print(rendering.write_table(plan.out))
    return 0


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} is no folder and cannot be made one ({error.strerror}): name another") from error


def plan_of(
    out: Path | None = None,
    device: str = "cpu",
    quick: bool = False,
    architectures: str | None = None,
    seeds: int | None = None,
    trials: int | None = None,
    literal: bool = False,
) -> Plan:
    """The plan of a command line. `quick` is a small one: a minute on a CPU, and figures that show only that all works."""
    given = _architectures(architectures) if architectures else None
    rows = None if device == "cuda" else search.CPU_ROWS
    plan = Plan(out or Path("results/table1"), given or ARCHITECTURES, seeds=seeds or _SEEDS, trials=trials or _TRIALS)
    plan = replace(plan, literal=literal, search_rows=rows)
    if not quick:
        return plan
    return replace(
        plan,
        out=out or Path("results/table1-quick"),
        architectures=given or ((300,),),
        rates=(1e-5, 1e-4),
        more_rates=(1e-4,),
        literal_rates=(1e-5,),
        seeds=seeds or 1,
        epochs=2,
        trials=trials or _QUICK_TRIALS,
        held=_QUICK_HELD,
    )


def _architectures(given: str) -> tuple[Sizes, ...]:
    try:
        found = tuple(tuple(int(width) for width in each.split("-")) for each in given.split(","))
    except ValueError:
        found = ((0,),)
    if any(width < 1 for each in found for width in each):
        raise ValueError(f"--architectures must be widths of hidden layers, such as 300,300-100, got {given}")
    return found


def table1(plan: Plan, device: str = "cpu", quick: bool = False) -> int:
    """Run a plan on MNIST; the exit code."""
    check_device(device)
    search.check_installed()
    data = mnist(device)
    if quick:
        data = data._replace(x=data.x[:_QUICK_ROWS], y=data.y[:_QUICK_ROWS])
    return run(plan, data)
