"""How comparisons are run: one record for each stage of each start, from which the tables are made.

A stage that is stored is not computed again, and it is stored when it is complete, so that no figure depends on where a run was stopped.
The budget of a comparison is measured once and kept: what was chosen under it stays comparable.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments import starts
from experiments.batched import Together, epoch_seconds, train_together
from experiments.cells import made, sizes
from experiments.comparisons import BATCH, LIFTED, SMALL, STARTS, TUNING, Comparison, Recipe, Stage
from experiments.datasets import Dataset
from experiments.parts import Part, unless_stored
from experiments.settings import threads
from experiments.store import Fields, Store, open_store
from liftednn.base import Affine

__all__ = ["DEVIATIONS", "Case", "Outcome", "Standing", "bold_if_large", "store_of"]

_THREADS = 2
DEVIATIONS = 2.0  # a lead of more is not noise


@dataclass(frozen=True)
class Outcome:
    """Scores over seeds with the recipes they were reached with, one for all or one each; `seconds` of one network trained alone, its
    initialisation included."""

    recipes: tuple[Recipe, ...]
    scores: list[float]
    seconds: float

    @property
    def description(self) -> str:
        steps = Counter(recipe.step for recipe in self.recipes).most_common()
        counted = [step if len(steps) == 1 else f"{step} ({count} of {len(self.recipes)})" for step, count in steps]
        return ", ".join([*counted, *dict.fromkeys(recipe.length for recipe in self.recipes)])

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0


class Standing(NamedTuple):
    """The best of the other starts, how far the lifted weights are ahead of it, and that in standard deviations: of the difference of
    two runs or, where seeds are splits that both have, of their differences."""

    best_other: str
    lead: float
    deviations: float


@dataclass(frozen=True)
class Case:
    """One comparison, and its records.

    device   where networks are trained; where the comparison's clock is the CPU's, any will do
    seeds    of the test
    choices  seeds of the choice, for each split where every test has its own
    small    whether the small rate is also run, for the same epochs from every start
    """

    store: Store
    comparison: Comparison
    device: str = "cpu"
    seeds: int = 5
    choices: int = 2
    small: bool = False

    def fields(self, stage: str, start: str | None = None) -> Fields:
        """What names a record of this comparison."""
        return asdict(self.comparison) | {"stage": stage} | ({"start": start} if start else {})

    def value(self, stage: str, start: str | None = None) -> Fields:
        found = self.store.get(**self.fields(stage, start))
        if found is None:
            problem = (
                f"{self.store.path} has no {stage} of {self.comparison.title}{f' from {start}' if start else ''} yet"
            )
            raise ValueError(f"{problem}: run the experiment, and it is made")
        return found

    def has(self, stage: str, start: str | None = None) -> bool:
        return self.store.get(**self.fields(stage, start)) is not None

    def machine(self, stage: str) -> Fields:
        """Where a stage was measured."""
        return self.store.find(**self.fields(stage))[-1].machine

    def check(self) -> None:
        """Refuse a store that holds figures of another kind: a table must not mix them."""
        given = {"seeds": self.seeds, "choices": self.choices, "small": self.small}
        stored = (
            self.value("comparison") if self.has("comparison") else self.store.add(given, **self.fields("comparison"))
        )
        for name, value in given.items():
            if stored.get(name) != value:
                problem = f"{self.store.path} holds figures of {self.comparison.title} with {name} {stored.get(name)}"
                raise ValueError(f"{problem}, and these would have {value}: name another folder by --results")
        for start in STARTS:
            self._check_choice(start)

    def _check_choice(self, start: str) -> None:
        """Refuse a choice that was made under other times, or among other recipes, than the ones there are."""
        if not self.has("tune", start):
            return
        stored = [each.recipes[0] for each in self.tried(start)] if self.has("times") else []
        if not stored or stored != self.recipes(start):
            problem = f"in {self.store.path}, {self.comparison.title} from {start} was chosen under other times, or among other recipes"
            raise ValueError(f"{problem}, than there are: remove its lines of stage tune and test")

    def _part(self, name: str, work: Callable[[], object], stage: str, start: str | None = None) -> Part:
        return Part(f"{self.comparison.title}, {name}", unless_stored(self.store, work, **self.fields(stage, start)))

    def tuning(self) -> Iterator[Part]:
        """The work up to the choices."""
        yield self._part("times", self.measure, "times")
        for start in STARTS:
            yield self._part(f"choose for {start}", partial(self._train_stage, "tune", start), "tune", start)

    def testing(self) -> Iterator[Part]:
        """The work on the test rows."""
        for start in STARTS:
            yield self._part(f"test {start}", partial(self._train_stage, "test", start), "test", start)

    def lifted_alone(self) -> Part:
        return self._part("lifted alone", self.alone, "alone")

    def measure(self) -> None:
        """Store the seconds of an epoch of one network trained alone, for each batch size, and of each initialisation."""
        with _clock(self.comparison.clock) as device:
            data, _ = self.comparison.rows_of("test", TUNING, device or self.device)
            layout = sizes(self.comparison.hidden, data)
            first = made(self.comparison.start("He"), layout, TUNING, data)[0]
            rows = self._cast(data)
            epochs = {b: min(self._epoch(first, rows, b) for _ in range(2)) for b in {*self.comparison.batches, BATCH}}
            kinds = {name: self.comparison.start(name) for name in STARTS}
            spent = {name: min(made(kind, layout, TUNING, data)[1] for _ in range(2)) for name, kind in kinds.items()}
            self.store.add({"start_seconds": spent, "epoch_seconds": epochs}, **self.fields("times"))

    def _epoch(self, weights: list[Affine], rows: Dataset, batch: int) -> float:
        return epoch_seconds(Together([[weights]], [1e-5], rows), batch)

    def _cast(self, data: Dataset) -> Dataset:
        to = getattr(torch, self.comparison.precision)
        return data._replace(x=data.x.to(to), x_test=data.x_test.to(to))

    def recipes(self, start: str) -> list[Recipe]:
        """What a start may choose from: the budget is the time of the lifted weights and their epochs."""
        times = self.value("times")
        epochs = {int(batch): float(seconds) for batch, seconds in times["epoch_seconds"].items()}
        budget = times["start_seconds"][LIFTED] + self.comparison.epochs * epochs[BATCH]
        return self.comparison.recipes(times["start_seconds"][start], budget, epochs)

    def _train_stage(self, stage: Stage, start: str) -> None:
        """Train with the recipes of this stage, and store the scores of each over its seeds."""
        plan, found = self._plan(stage, start), dict[tuple[Recipe, int], float]()
        seeds = list(dict.fromkeys(seed for _, own in plan for seed in own))
        for together in [[seed] for seed in seeds] if self.comparison.split else [seeds]:
            recipes = list(dict.fromkeys(recipe for recipe, own in plan if together[0] in own))
            for inputs in dict.fromkeys(recipe.inputs for recipe in recipes):
                data, unit = self.comparison.rows_of(stage, together[0], self.device, inputs)
                alike = [recipe for recipe in recipes if recipe.inputs == inputs]
                scores = self._train(start, alike, together, data)
                found |= {run: unit * score for run, score in scores.items()}
        rows = [recipe._asdict() | {"scores": [found[recipe, seed] for seed in own]} for recipe, own in plan]
        self.store.add_all([(self.fields(stage, start), {"seeds": seeds, "recipes": rows})], self.device)

    def _plan(self, stage: Stage, start: str) -> list[tuple[Recipe, list[int]]]:
        """Recipes, and the seeds that each is run with. The small rate of a test comes last."""
        if stage == "tune":
            seeds = self.comparison.tuning_seeds(self.seeds, self.choices)
            return [(recipe, seeds) for recipe in self.recipes(start)]
        every = list(range(self.seeds))
        plan = [
            (self.chosen(start, own[0]).recipes[0], own)
            for own in ([[s] for s in every] if self.comparison.real else [every])
        ]
        return plan + [(Recipe(SMALL, "constant", BATCH, self.comparison.epochs), every)] * self.small

    def _train(
        self, start: str, recipes: Sequence[Recipe], seeds: list[int], data: Dataset
    ) -> dict[tuple[Recipe, int], float]:
        """Scores by recipe and seed: those of one batch size and length are trained together."""
        layout = sizes(self.comparison.hidden, data)
        first = [made(self.comparison.start(start), layout, seed, data)[0] for seed in seeds]
        rows = self._cast(data)
        found: dict[tuple[Recipe, int], float] = {}
        for kind in dict.fromkeys((r.batch, r.epochs) for r in recipes):
            own = [r for r in recipes if (r.batch, r.epochs) == kind]
            rates, schedules = [r.rate for r in own], [r.schedule for r in own]
            networks = Together([[weights] * len(own) for weights in first], rates, rows, schedules=schedules)
            train_together(networks, kind[1], kind[0], seeds)
            found |= dict(zip(product(own, seeds), networks.scores().T.flatten().tolist(), strict=True))
        return found

    def alone(self) -> None:
        """Store the scores of the lifted model alone: after its phase, and trained for as many passes as the others have epochs."""
        lengths = {"phase": self.comparison.passes, "through": self.comparison.epochs}
        phases = {name: partial(starts.fenchel, passes=passes) for name, passes in lengths.items()}
        scores: dict[str, list[float]] = {name: [] for name in phases}
        for seed in range(self.seeds):
            data, unit = self.comparison.rows_of("test", seed, self.device)
            layout = sizes(self.comparison.hidden, data)
            for name, phase in phases.items():
                weights, _ = made(phase, layout, seed, data)
                scores[name].append(unit * float(Together([[weights]], [0.0], data).scores()))
        with _clock(self.comparison.clock) as device:
            data, _ = self.comparison.rows_of("test", TUNING, device or self.device)
            seconds = {name: [made(phase, layout, TUNING, data)[1] for _ in range(2)] for name, phase in phases.items()}
            self.store.add({"scores": scores, "seconds": seconds}, **self.fields("alone"))

    def whole(self, stage: Stage) -> bool:
        """Whether every start has been through a stage."""
        return all(self.has(stage, start) for start in STARTS)

    def tried(self, start: str, stage: Stage = "tune") -> list[Outcome]:
        """Everything of a stage that is stored."""
        rows: list[dict[str, Any]] = self.value(stage, start)["recipes"]
        times, outcomes = self.value("times"), []
        for row in rows:
            recipe = Recipe(**{name: row[name] for name in Recipe._fields if name in row})
            seconds = times["start_seconds"][start] + recipe.epochs * times["epoch_seconds"][str(recipe.batch)]
            outcomes.append(Outcome((recipe,), row["scores"], seconds))
        return outcomes

    def chosen(self, start: str, seed: int = 0) -> Outcome:
        """The recipe that is best on the held-back rows, the first of equal ones; for a test's own split, where it has one."""
        seeds = self.comparison.tuning_seeds(self.seeds, self.choices)
        own = [place for place, each in enumerate(seeds) if not self.comparison.real or each % TUNING == seed]
        outcomes = [replace(each, scores=[each.scores[place] for place in own]) for each in self.tried(start)]
        sign = -1 if self.comparison.real else 1
        return max(outcomes, key=lambda each: sign * each.mean if math.isfinite(each.mean) else -math.inf)

    def tested(self, start: str) -> Outcome:
        own = self.tried(start, "test")[: -1 if self.small else None]
        recipes = tuple(recipe for each in own for recipe in each.recipes)
        return Outcome(recipes, [s for each in own for s in each.scores], statistics.fmean(e.seconds for e in own))

    def tested_small(self, start: str) -> Outcome:
        return self.tried(start, "test")[-1]

    def standing(self, outcome: Callable[[str], Outcome]) -> Standing:
        """How the lifted weights stand against the best of the others, by `chosen` or `tested`."""
        sign = -1 if self.comparison.real else 1
        others = {start: sign * outcome(start).mean for start in STARTS if start != LIFTED}
        best_other = max(others, key=lambda start: others[start] if math.isfinite(others[start]) else -math.inf)
        ours, theirs = outcome(LIFTED), outcome(best_other)
        noise, gap = math.hypot(ours.deviation, theirs.deviation), sign * (ours.mean - theirs.mean)
        if self.comparison.real and len(ours.scores) > 1 and math.isfinite(gap):
            noise = statistics.stdev(a - b for a, b in zip(ours.scores, theirs.scores, strict=True))
        return Standing(best_other, gap, in_deviations(gap, noise))


def in_deviations(gap: float, noise: float) -> float:
    """A gap in units of the noise; without noise, as of one seed, nothing is decided."""
    return gap / noise if noise else 0.0


def bold_if_large(deviations: float) -> str:
    """In bold what is more than noise, either way."""
    return f"**{deviations:+.1f}**" if abs(deviations) > DEVIATIONS else f"{deviations:+.1f}"


def store_of(results: Path, experiment: str, comparison: Comparison, device: str) -> Store:
    """By whose seconds count. What a record was written without has its default."""
    usual = {each.name: each.default for each in fields(Comparison) if each.default is not MISSING}
    return open_store(results, experiment, "cpu" if comparison.clock == "cpu" else device, defaults=usual)


@contextmanager
def _clock(clock: str) -> Iterator[str | None]:
    """Where seconds are counted: None for where the work is done, or the CPU, with two threads."""
    if clock == "own":
        yield None
        return
    with threads(_THREADS):
        yield "cpu"
