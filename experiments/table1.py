"""Table 1 of the paper (sec. 7), with the columns that it lacks: `python -m experiments table1`, best with `--device cuda`.

The work is a list of parts, each of which leaves records behind and is skipped where they are there. So a run can be stopped at any
moment, and the same command goes on. The table is made from the records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from experiments import rendering, search, starts
from experiments.batched import Method
from experiments.cells import ARCHITECTURES, Group, Plan, cells, check_plan, extra_epochs, measure, named
from experiments.datasets import Dataset, mnist, small
from experiments.parts import Part, do, unless_stored
from experiments.settings import Settings
from experiments.starts import Sizes

__all__ = ["TAKES", "compute", "parts", "plan_of", "run"]

TAKES = ("device", "seeds", "only")

_QUICK_ROWS, _QUICK_HELD, _QUICK_TRIALS, _SEEDS = 600, 100, 2, 5


def parts(plan: Plan, data: Dataset) -> list[Part]:
    """All the work, in an order in which each part finds what it needs."""
    return [part for architecture in plan.architectures for part in _parts(plan, data, architecture)]


def _parts(plan: Plan, data: Dataset, architecture: Sizes) -> Iterator[Part]:
    here = named(architecture)
    for number in range(plan.trials):
        work = partial(search.trial, plan, data, architecture, number)
        stored = unless_stored(plan.store, work, kind="trial", architecture=here, number=number)
        yield Part(f"{here}, search {number + 1}", stored)
    methods: tuple[Method, ...] = ("adam", "sgd") if plan.literal else ("adam",)
    for method in methods:
        work = partial(measure, plan, data, architecture, method)
        stored = unless_stored(plan.store, work, kind="timing", architecture=here, method=method)
        yield Part(f"{here}, time of an epoch", stored)
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
    start = partial(starts.euclidean, lam=choice.lam, passes=choice.passes)
    return Group(architecture, rendering.ALONE, start, (), 0, settings=choice._asdict(), phase=True)


def _euclidean(plan: Plan, architecture: Sizes) -> Group:
    choice = search.best(plan, architecture, "accuracy_after_epoch")
    start, name = partial(starts.euclidean, lam=choice.lam, passes=choice.passes), rendering.EUCLIDEAN
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


def run(settings: Settings) -> None:
    """On MNIST; --only takes architectures, such as 300-100."""
    plan = plan_of(settings)
    data = mnist(settings.device)
    if settings.quick:
        data = small(data, _QUICK_ROWS)
    compute(plan, data)


def compute(plan: Plan, data: Dataset) -> None:
    """Do what is left to do, then print the table."""
    search.check_installed()
    check_plan(plan, data)
    do(parts(plan, data))
    print(rendering.table(list(cells(plan.store))))


def plan_of(settings: Settings) -> Plan:
    """`quick` is a small one, of figures that show only that all works."""
    given = _architectures(settings.only) if settings.only else None
    rows = None if settings.device == "cuda" else search.CPU_ROWS
    store, seeds = settings.store("table1"), settings.seeds
    if not settings.quick:
        return Plan(store, given or ARCHITECTURES, seeds=seeds or _SEEDS, search_rows=rows, literal=True)
    return Plan(
        store,
        given or ((20,),),
        rates=(1e-5, 1e-4),
        more_rates=(1e-4,),
        literal_rates=(1e-5,),
        seeds=seeds or 1,
        epochs=2,
        passes=1,
        trials=_QUICK_TRIALS,
        held=_QUICK_HELD,
        search_rows=rows,
    )


def _architectures(given: Sequence[str]) -> tuple[Sizes, ...]:
    try:
        found = tuple(tuple(int(width) for width in each.split("-")) for each in given)
    except ValueError:
        found = ((0,),)
    if any(width < 1 for each in found for width in each):
        raise ValueError(f"--only takes widths of hidden layers, such as 300-100, got {', '.join(given)}")
    return found
