"""Table 1 under real signals: killed ten times at seeded moments and started again, it leaves what one run leaves.

The command runs in processes of its own, forked from one that has imported torch already: twelve starts then take seconds.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import replace
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import __main__ as cli
from experiments import rendering, table1
from experiments.datasets import Dataset
from experiments.store import Store

EPOCHS = 2  # of --quick


def synthetic() -> Dataset:
    """Four clusters in 12 dimensions, in the place of MNIST."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 12, generator=generator)
    y = torch.randint(0, 4, (1300,), generator=generator)
    x = centres[y] + torch.randn(len(y), 12, generator=generator)
    return Dataset(x[:1200], y[:1200], x[1200:], y[1200:])


def command(out: Path, log: Path) -> None:
    """The whole command line, on small data."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    torch.set_num_threads(1)
    setattr(table1, "mnist", lambda device: synthetic())  # noqa: B010 (its type is another)
    setattr(table1, "small", lambda data, rows: data)  # noqa: B010
    plan_of = table1.plan_of
    setattr(table1, "plan_of", lambda given: replace(plan_of(given), literal=True))  # noqa: B010
    order = ["--quick", "--only", "8", "--only", "6-5", "--seeds", "2", "--results", str(out)]
    with log.open("w") as told:
        sys.stdout = sys.stderr = told
        cli.main(["table1", *order])


def started(out: Path, log: Path) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    # What is imported at its first use would else be imported in every process.
    late = ["optuna", "torch._dynamo", "pydantic.type_adapter", "pytest"]
    context.set_forkserver_preload(["experiments.table1", "experiments.__main__", *late])
    process = context.Process(target=command, args=(out, log), daemon=True)
    process.start()
    return process


def stopped(process: BaseProcess, sign: signal.Signals) -> int:
    """Send the signal, and give the exit code. Again if need be: Python drops a Ctrl-C that falls into an object's end."""
    assert process.pid is not None
    while process.is_alive():
        os.kill(process.pid, sign)
        process.join(5)
    assert process.exitcode is not None
    return process.exitcode


def store_of(out: Path) -> Path:
    return out / "quick" / "table1-cpu.jsonl"  # quick runs have a folder of their own


def stored(out: Path) -> list[dict[str, Any]]:
    return [dict(fields) | value for fields, value, _ in Store(store_of(out)).records]


def count(out: Path) -> int:
    path = store_of(out)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def await_files(process: BaseProcess, out: Path, number: int) -> None:
    while count(out) < number and process.is_alive():
        time.sleep(0.002)


def contents(out: Path) -> list[dict[str, Any]]:
    """All records. Times are left out, and with them how many epochs fit into one: there is always one more, and it is compared."""
    return [_without_times(facts) for facts in stored(out)]


def _without_times(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in facts.items() if "seconds" not in name}
    if facts.get("parameters", {}).get("start") == rendering.MORE:
        kept["parameters"] = facts["parameters"] | {"epochs": "by time"}
        kept |= {"curve": facts["curve"][: EPOCHS + 2], "accuracy": "by time"}
    return kept


def check_epochs_by_time(out: Path, architecture: str) -> None:
    """He's further epochs are those that the store's own times give, whenever it was killed."""
    cells = [each for each in stored(out) if each.get("architecture") == architecture]
    (epoch,) = [
        c["epoch_seconds_alone"] for c in cells if c["kind"] == "timing" and c["parameters"]["method"] == "adam"
    ]
    named = [(cell, cell["kind"], cell["parameters"].get("start")) for cell in cells]
    phase = [cell["start_seconds"] for cell, kind, start in named if (kind, start) == ("phase", rendering.FENCHEL)]
    more = [cell for cell, _, start in named if start == rendering.MORE]
    assert len(more) == len(phase) == 2
    for cell in more:
        assert cell["parameters"]["epochs"] == EPOCHS + math.ceil(statistics.median(phase) / epoch)
        assert (len(cell["curve"]), cell["accuracy"]) == (cell["parameters"]["epochs"] + 1, cell["curve"][-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_ten_real_kills_leave_what_one_run_leaves(tmp_path: Path) -> None:
    once, often, log, draw = tmp_path / "once", tmp_path / "often", tmp_path / "log", random.Random(0)
    whole = started(once, log)
    whole.join()
    assert whole.exitcode == 0, log.read_text()
    for place in range(10):
        sign, code = (signal.SIGINT, 130) if place % 3 == 1 else (signal.SIGKILL, -signal.SIGKILL)
        process = started(often, log)
        # By records, so that all ten fall before the end on a machine of any speed; then some way into what comes next.
        await_files(process, often, count(often) + draw.randint(1, 7))
        time.sleep(draw.uniform(0, 0.05))
        assert stopped(process, sign) == code, log.read_text()
        assert sign is signal.SIGKILL or "the same command goes on" in log.read_text()
    assert count(often) < count(once)
    last = started(often, log)
    last.join()
    assert last.exitcode == 0, log.read_text()
    assert contents(often) == contents(once)
    for out, architecture in product((once, often), ("8", "6-5")):
        check_epochs_by_time(out, architecture)
