"""The training benchmark: times and tables are what the records say, methods learn."""

from pathlib import Path

import pytest
import torch

from experiments.store import Store
from experiments.training import METHODS, Task, settings, summary, time_to, train


def test_the_time_to_a_goal_is_the_end_of_the_first_pass_that_reaches_it() -> None:
    cell = {"accuracy": [0.9, 0.98, 0.97, 0.99], "seconds": [1.0, 2.0, 3.0, 4.0]}
    assert time_to(cell, 0.975) == 2.0
    assert time_to(cell, 0.995) == float("inf")


def test_the_summary_is_of_the_last_pass(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells.jsonl")
    for seed, last in enumerate((0.9, 0.8, 0.7)):
        cell = {"accuracy": [0.95, last], "seconds": [1.0, 2.0 + seed], "settings": {}}
        store.add(cell, task="mnist 300", method="Adam", seed=seed)
    store.add(cell, task="mnist 300", method="Adam", stage="choose", passes=2, settings={"rate": 1})
    (row,) = summary(store, "mnist 300")
    assert (row["method"], row["seeds"], row["last"], row["seconds"]) == ("Adam", 3, 0.8, 3.0)
    assert row["spread"] == pytest.approx(0.2)
    assert row["mean"] == pytest.approx(0.8)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.thin(2)
def test_every_method_learns_a_small_problem(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 8, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 0).long()
    first = {**settings(name, "cpu")[-1], **({"batch": 20} if "batch" in settings(name, "cpu")[-1] else {})}
    passes = 60 if name == "scikit-learn MLP" else 6  # its batches are of 200 rows
    cell = train(METHODS[name][0], Task(x[:500], y[:500], (8, 20, 3), passes, 0, first), x[500:], y[500:])
    assert len(cell["accuracy"]) == len(cell["seconds"]) == passes + (name == "lifted, full batch")
    assert max(cell["accuracy"]) > 0.6
    assert cell["seconds"] == sorted(cell["seconds"])
