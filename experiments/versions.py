"""The working tree against an earlier commit: seconds of a pass, of a full pass over the blocks and of nnls, interleaved in one run.

`python -m experiments versions --only COMMIT`; without a commit, the last one. Both run on one thread, in processes of their own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.datasets import mnist
from experiments.markdown import table
from experiments.settings import Settings

__all__ = ["TAKES", "run"]

TAKES = ("only",)
ROOT = Path(__file__).parents[1]
CASES = ("pass 300", "pass 500-200-100", "blocks relu", "blocks fenchel_relu", "nnls float32", "nnls float64")
TURNS, ROWS, FEW = 9, 20_000, 4_000

# Names of modules and parameters differ between versions; the work does not.
WORKER = r"""
import sys, time, torch
torch.set_num_threads(1)
import liftednn as lnn
try:
    from liftednn.training.run import Run
    from liftednn.data.sources import source_of
    passes = "passes"
except ImportError:
    from liftednn.minibatch import Run
    from liftednn.sources import source_of
    passes = "max_iter"
x, y = torch.load(sys.argv[1])
few = int(sys.argv[2])

def batches(hidden):
    sizes = [x.shape[1], *map(int, hidden.split("-")), 10]
    network = lnn.automatic(lnn.LiftedNetwork.mlp(sizes, "fenchel_relu"), x, y)
    run = Run(lnn.MiniBatch(**{passes: 60}), network, source_of(x, y)).passes()
    return lambda: next(run)

def blocks(name):
    network, bcd = lnn.LiftedNetwork.mlp([x.shape[1], 300, 10], name), lnn.BCD()
    state = bcd.init(network, x[:few], y[:few])
    first = list(state.weights), list(state.states)
    def work():
        state.weights, state.states = list(first[0]), list(first[1])
        for _ in bcd.blocks(network, state):
            pass
    return work

def least_squares(name):
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, name)
    w = torch.randn(150, 300, generator=generator, dtype=dtype) / 300**0.5
    h, q = w.T @ w + 0.1 * torch.eye(300, dtype=dtype), torch.randn(few, 300, generator=generator, dtype=dtype)
    return lambda: lnn.solvers.nnls(h, q, tol=1e-3)

kinds = {"pass": batches, "blocks": blocks, "nnls": least_squares}
with torch.no_grad():
    for line in sys.stdin:
        order, _, name = line.strip().partition(" ")
        if order == "prepare":
            kind, what = name.split(" ")
            work = kinds[kind](what)
        started = time.perf_counter()
        work()
        print(time.perf_counter() - started, flush=True)
"""


@contextmanager
def worker(package: Path, data: Path, few: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has the package of this folder."""
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    order = [sys.executable, "-c", WORKER, str(data), str(few)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(order, env=environment, cwd=package, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(process: subprocess.Popen[str], order: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return float(process.stdout.readline() or "nan")


def archived(commit: str, folder: Path) -> str:
    """The package of a commit, in a folder; its short name."""
    found = subprocess.run(["git", "rev-parse", "--short", commit], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"git knows no commit {commit!r} here: name one of this repository with --only")
    packed = subprocess.run(["git", "archive", commit, "liftednn"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed, check=True)
    return found.stdout.strip()


def compared(case: str, old: subprocess.Popen[str], new: subprocess.Popen[str], turns: int) -> dict[str, Any]:
    """Medians; the two take turns in going first."""
    times: dict[str, list[float]] = {"old": [], "new": []}
    both = [("old", old), ("new", new)]
    for _, process in both:
        ask(process, f"prepare {case}")
    for turn in range(turns):
        for name, process in both[:: 1 if turn % 2 else -1]:
            times[name].append(ask(process, "go"))
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {"case": case, **medians, "new / old": medians["new"] / medians["old"]}


def run(settings: Settings) -> None:
    store, (commit, *_) = settings.store("versions"), (*settings.only, "HEAD")
    rows, few, turns = (500, 100, 1) if settings.quick else (ROWS, FEW, TURNS)
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), mnist()
        short = archived(commit, folder)
        torch.save((data.x[:rows], data.y[:rows]), folder / "rows.pt")
        with worker(folder, folder / "rows.pt", few) as old, worker(ROOT, folder / "rows.pt", few) as new:
            for case in CASES:
                store(partial(compared, case, old, new, turns), commit=short, case=case, turns=turns)
    table(f"seconds, {short} against the working tree, medians of {turns}", store.values(commit=short, turns=turns))
