"""The search for lam and the number of passes of the paper's lifted phase (sec. 7: "selected using Bayesian Optimization").

A trial trains on the first training rows and is scored on the last ones, which are held back; the test rows are never seen. It has two
scores: of the standard network after one epoch from the lifted weights, which the search maximises, and of the lifted weights as they are.
So one study gives two choices: for initial weights of a standard network, and for a model alone. Every trial is stored, and a study is
built again from them for each proposal, so that a resumed search proposes what an uninterrupted one does.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import Tensor

from experiments.batched import Together, clock, train_together
from experiments.cells import Plan, named, sizes
from experiments.datasets import Dataset
from experiments.starts import Sizes, euclidean

__all__ = ["CPU_ROWS", "Choice", "best", "check_installed", "proposal", "split", "trial"]

CPU_ROWS = 20_000  # rows that a trial trains on where there is no GPU
_LAM, _PASSES = (1e-3, 1e3), (1, 5)
_RATE = 1e-5  # the paper's, at which the first score is taken
_SEED = 0


class Choice(NamedTuple):
    lam: float
    passes: int


# Where every search begins: spread over the space, with few passes, which cost least.
_FIRST = (Choice(0.1, 1), Choice(10.0, 2), Choice(0.01, 3), Choice(100.0, 1))


def check_installed() -> None:
    if find_spec("optuna") is None:
        raise ValueError('lam is searched for with optuna, which is not installed: pip install "liftednn[tune]"')


def trial(plan: Plan, data: Dataset, architecture: Sizes, number: int) -> None:
    """Run and store trial `number`; those before it are there."""
    started = clock(data.x)
    choice, rows, curve = proposal(_past(plan, architecture, number)), split(plan, data), []
    weights = euclidean(sizes(architecture, data), _SEED, rows, *choice)

    def keep(epoch: int, seen: Tensor) -> None:
        curve.append(float(seen))

    train_together(Together([[weights]], [_RATE], rows), 1, plan.batch, [_SEED], keep)
    value = {"parameters": {"architecture": named(architecture)}, "seed": _SEED, **choice._asdict()}
    value |= {"accuracy_alone": curve[0], "accuracy_after_epoch": curve[1], "rows": len(rows.x)}
    value |= {"seconds": clock(data.x) - started}
    plan.store.add(value, kind="trial", architecture=named(architecture), number=number)


def _past(plan: Plan, architecture: Sizes, count: int) -> list[dict[str, Any]]:
    found = [plan.store.get(kind="trial", architecture=named(architecture), number=number) for number in range(count)]
    return [value for value in found if value is not None]


def split(plan: Plan, data: Dataset) -> Dataset:
    """Training rows to train on and training rows to score on, in the place of test rows."""
    if not 0 < plan.held < len(data.x):
        raise ValueError(f"{plan.held} rows cannot be held back of {len(data.x)}: hold back fewer")
    kept = len(data.x) - plan.held
    rows = min(kept, plan.search_rows or kept)
    return Dataset(data.x[:rows], data.y[:rows], data.x[kept:], data.y[kept:])


def proposal(past: list[dict[str, Any]]) -> Choice:
    """Where to look next: at a few fixed places first, then where a Gaussian process expects the most."""
    if len(past) < len(_FIRST):
        return _FIRST[len(past)]
    import optuna

    with warnings.catch_warnings():
        # In some versions this sampler is marked as experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=len(past), n_startup_trials=1)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        space = {
            "lam": optuna.distributions.FloatDistribution(*_LAM, log=True),
            "passes": optuna.distributions.IntDistribution(*_PASSES),
        }
        for each in past:
            params = {"lam": each["lam"], "passes": each["passes"]}
            value = each["accuracy_after_epoch"]
            study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
        asked = study.ask(space).params
    finally:
        optuna.logging.set_verbosity(level)
    return Choice(float(asked["lam"]), int(asked["passes"]))


def best(plan: Plan, architecture: Sizes, score: str) -> Choice:
    """The choice with the highest `accuracy_alone` or `accuracy_after_epoch`; the earliest of equal ones."""
    top = max(_past(plan, architecture, plan.trials), key=lambda each: float(each[score]))
    return Choice(top["lam"], top["passes"])
