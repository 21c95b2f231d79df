"""`liftednn.optim.Lifted`, with nothing chosen, against other optimisers: networks with norms, residual sums, attention and recurrence.

`python -m experiments optimisers --device cuda` runs all parts, `--only` names some. Rate and weight decay of the others, and the damping
where there is one, are chosen on training rows that are held back, with one seed and fewer passes; then every seed trains on all rows, for
the same passes and for as many as take our seconds. Seconds of a pass are measured apart, by itself, without evaluations.

    resnet        ResNet-9 on CIFAR-10, crops and flips, 1 and 8 passes      noisy   the same with 40 % random labels, 6 passes
    long          wider at its end, label smoothing, 40 passes               dense   chains on MNIST, Fashion-MNIST and CIFAR-10
    vgg           six convolutions with batch norm                           vit     a small vision transformer
    chars         a transformer and an LSTM on source text                   autoencoder   a deep one on MNIST
    cost          milliseconds of a step and memory on ResNet-9; without --device, on two CPU threads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from experiments import convolution
from experiments.datasets import Dataset
from experiments.image_bench import TUNING, held_back
from experiments.markdown import table
from experiments.optimiser_cost import CPU_METHODS, THREADS, costs, measure, small_settings
from experiments.optimiser_steps import available, missing, pass_seconds, train
from experiments.optimiser_tasks import LIFTED, METHODS, PARTS, TASKS, Problem, TaskKind, best, dataset, worst
from experiments.settings import Settings, threads
from experiments.store import Fields, Store

TAKES = ("device", "seeds", "only")
SEEDS = 5
_FACTOR, _MOST = 3.0, 7  # between two rates, and how many rates there are at most
_MOST_DAMPING = 1000.0  # times that of the grid
_AUTOENCODER = 28.0  # its loss is a mean over 784 pixels: its gradients are smaller by about the root of that
_POSITIONS = 30.0  # FOOF divides by sums over positions, and takes larger rates where there are many


class Grid(NamedTuple):
    """Rates to begin with; then weight decays and dampings at the best rate, the first of each being that of all rates."""

    rates: tuple[float, ...]
    decays: tuple[float, ...]
    dampings: tuple[float, ...] = ()
    of_gradient: bool = (
        True  # whether a step is as large as the gradient, and the rate depends on the units of the loss
    )


# A method that is not named here has nothing to choose.
GRIDS = {
    "SGD": Grid((0.03, 0.1, 0.3), (5e-4, 1e-4, 2e-3)),
    "AdamW": Grid((1e-3, 3e-3, 1e-2), (0.05, 0.005, 0.3), of_gradient=False),
    "Muon": Grid((0.01, 0.03, 0.1), (0.1, 0.01, 0.5), of_gradient=False),
    "SOAP": Grid((1e-3, 3e-3, 1e-2), (0.05, 0.005, 0.3), of_gradient=False),
    "K-FAC": Grid((0.01, 0.03, 0.1), (5e-4, 1e-4, 2e-3), (3.0, 0.3, 30.0), of_gradient=False),
    "FOOF": Grid((0.01, 0.03, 0.1), (5e-4, 1e-4, 2e-3), (0.3, 0.03, 3.0)),
    "ISAAC": Grid((0.03, 0.1, 0.3), (5e-4, 1e-4, 2e-3), (1.0, 0.1, 10.0)),
}


@dataclass(frozen=True)
class Scale:
    """How much is trained; None for no bound. `divide` makes layers narrower."""

    seeds: int | None = None
    rows: int | None = None
    passes: int | None = None
    divide: int = 1

    @property
    def quick(self) -> bool:
        return self.rows is not None

    def capped(self, passes: int) -> int:
        return min(passes, self.passes or passes)

    def batch(self, kind: TaskKind) -> int:
        return min(kind.batch, self.rows or kind.batch)


QUICK = Scale(seeds=1, rows=20, passes=1, divide=16)


@dataclass(frozen=True)
class Bench:
    """A task with its data on the device."""

    store: Store
    name: str
    scale: Scale
    data: Dataset

    @property
    def kind(self) -> TaskKind:
        return TASKS[self.name]

    @property
    def passes(self) -> int:
        return self.scale.capped(self.kind.passes)

    @property
    def methods(self) -> list[str]:
        return available(self.kind.methods)

    def problem(self, data: Dataset, passes: int, seed: int) -> Problem:
        return Problem(self.kind, data, passes, seed, self.scale.batch(self.kind), self.scale.divide)

    def train(self, method: str, data: Dataset, passes: int, seed: int, settings: Mapping[str, Any]) -> Fields:
        return train(method, self.problem(data, passes, seed), settings)

    def pass_seconds(self, method: str) -> float:
        """On all rows."""
        return float(self.store(partial(self._timed, method), part=self.name, stage="time", method=method)["seconds"])

    def _timed(self, method: str) -> Fields:
        return {"seconds": pass_seconds(method, self.problem(self.data, 1, 0), small_settings(GRIDS, method))}

    def best_of(self, method: str, options: Sequence[Fields]) -> Fields:
        """The settings that score best on the training rows held back."""
        if len(options) == 1:
            return options[0]
        return options[best(self.kind, [self.held_back_score(method, option) for option in options])]

    def held_back_score(self, method: str, option: Fields) -> float:
        passes = self.scale.capped(self.kind.choose)
        fields = {"part": self.name, "stage": "choose", "method": method, "passes": passes, "settings": option}
        found = self.store(partial(self._tried, method, passes, option), **fields, seed=TUNING[0])
        return float(found["score"][-1])

    def _tried(self, method: str, passes: int, option: Fields) -> Fields:
        return self.train(method, held_back(self.data), passes, TUNING[0], option)

    def test(self, method: str, passes: int, seeds: int, settings: Fields) -> None:
        """Every seed on all rows."""
        each = self.pass_seconds(method)
        for seed in range(seeds):
            fields = {"part": self.name, "stage": "test", "method": method, "passes": passes, "seed": seed}
            self.store(partial(self._tested, method, passes, seed, settings, each), **fields)

    def _tested(self, method: str, passes: int, seed: int, settings: Fields, each: float) -> Fields:
        found = self.train(method, self.data, passes, seed, settings)
        return found | {"seconds": [each * (number + 1) for number in range(passes)]}


def chosen(bench: Bench, method: str) -> Fields:
    """The best rate, which is searched beyond the ends of its grid, then the best weight decay at it, then the best damping; with ten
    times the dampings where the smallest rate diverges."""
    if method not in GRIDS:
        return {}
    grid = GRIDS[method]
    units = _units(bench.kind, method)
    rates = [units * rate for rate in grid.rates]
    more = 1.0 if bench.scale.quick or not grid.dampings else _more_damping(bench, method, grid, units)
    named = {"decay": [decay / units for decay in grid.decays], "damping": [more * each for each in grid.dampings]}
    first = {name: values[0] for name, values in named.items() if values}
    if bench.scale.quick:
        few = rates[: 2 if method == "SGD" else 1]
        return bench.best_of(method, [{"rate": rate, **first} for rate in few])
    while True:
        # In this order the smallest rate counts where all diverge.
        found = bench.best_of(method, [{"rate": rate, **first} for rate in sorted(rates)])
        beyond = {min(rates): min(rates) / _FACTOR, max(rates): max(rates) * _FACTOR}.get(found["rate"])
        if beyond is None or len(rates) == _MOST:
            break
        rates.append(beyond)
    for name, values in named.items():
        if values:
            found = bench.best_of(method, [found | {name: value} for value in values])
    return found


def _more_damping(bench: Bench, method: str, grid: Grid, units: float) -> float:
    """A factor on dampings, for networks on which even the smallest rate diverges."""
    smallest, factor = {"rate": units * min(grid.rates), "decay": grid.decays[0] / units}, 1.0
    while factor < _MOST_DAMPING:
        if bench.held_back_score(method, smallest | {"damping": factor * grid.dampings[0]}) != worst(bench.kind):
            break
        factor *= 10
    return factor


def _units(kind: TaskKind, method: str) -> float:
    """Where the search begins: a factor on rates, by which weight decays are divided."""
    if kind.convolutional and method == "FOOF":
        return _POSITIONS
    return _AUTOENCODER if kind.autoencode and GRIDS[method].of_gradient else 1.0


def compare(bench: Bench, seeds: int) -> None:
    """Every method for the same passes, then each for as many as take our seconds, with the same choices."""
    for method in bench.methods:
        bench.pass_seconds(method)
    settings = {method: chosen(bench, method) for method in bench.methods}
    for equal_seconds in (False, True):
        for method in bench.methods:
            length = equal_length(bench, method) if equal_seconds else bench.passes
            if not (equal_seconds and bench.scale.quick):
                bench.test(method, length, seeds, settings[method])


def equal_length(bench: Bench, method: str) -> int:
    """As many passes as take at least the seconds of ours."""
    ours, own = (bench.pass_seconds(name) for name in (LIFTED, method))
    return convolution.passes_within(bench.passes * ours, own)


def summary(store: Store, name: str, passes: int | None = None) -> list[dict[str, Any]]:
    """One row per method and length."""
    return convolution.summary(store, name, passes or TASKS[name].passes, METHODS, "score")


def run_part(part: str, settings: Settings, scale: Scale) -> None:
    store = settings.store("optimisers")
    if part == "cost":
        names = CPU_METHODS if settings.device == "cpu" and not scale.quick else METHODS
        with nullcontext() if scale.quick or settings.device != "cpu" else threads(THREADS):
            measure(store, settings.device, available(names), GRIDS, scale.rows, scale.divide)
    for name in tasks_of(part, scale):
        kind = TASKS[name]
        with kind.layout(settings.device).products():
            bench = Bench(store, name, scale, dataset(kind, settings.device, scale.rows))
            compare(bench, settings.seeds or scale.seeds or SEEDS)


def tasks_of(part: str, scale: Scale) -> Sequence[str]:
    """Of quick runs one for each part."""
    return PARTS[part][:1] if scale.quick else PARTS[part]


def show(part: str, store: Store, scale: Scale) -> None:
    if part == "cost":
        table("cost: a step of ResNet-9", costs(store))
    for name in tasks_of(part, scale):
        kind = TASKS[name]
        if found := summary(store, name, scale.capped(kind.passes)):
            table(f"{name}: {kind.network}, {kind.measure}, mean over seeds; seconds, median", found)


def parts_of(settings: Settings) -> list[str]:
    """Those named, or all; on a CPU only the cost, which is measured there too, unless the run is quick."""
    if unknown := set(settings.only) - set(PARTS):
        raise ValueError(f"--only takes {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    everything = list(PARTS) if settings.quick or settings.device != "cpu" else ["cost"]
    return list(settings.only or everything)


def run(settings: Settings) -> None:
    """--only takes parts."""
    scale = QUICK if settings.quick else Scale()
    for line in missing():
        print(line)
    for part in parts_of(settings):
        run_part(part, settings, scale)
    for part in parts_of(settings):
        show(part, settings.store("optimisers"), scale)
