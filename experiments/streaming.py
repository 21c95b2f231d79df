"""How a pass of mini-batch training grows with the rows: seconds in memory, and peak memory from a memory map.

`python -m experiments streaming`
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import liftednn as lnn
from experiments.datasets import mnist
from experiments.full_pass import peak
from experiments.markdown import table
from experiments.settings import Settings
from liftednn.data.sources import source_of
from liftednn.training.run import Run

BATCH, WIDTH = 500, 256


def pass_time(rows: int, hidden: int = 300, size: int = 3000) -> dict[str, Any]:
    """Median seconds of a pass over so many digits, and the share of the machine's matrix peak."""
    data = mnist()
    x, y = data.x[:rows], data.y[:rows]
    net = lnn.automatic(lnn.LiftedNetwork.mlp([784, hidden, 10], activation="fenchel_relu"), x, y)
    with torch.no_grad():
        run = Run(lnn.MiniBatch(passes=8, batch_size=BATCH), net, source_of(x, y))
        ends = [run.seconds, *(record.seconds for record in run.passes())]
    median = statistics.median(after - before for before, after in pairwise(ends[1:]))
    width = run.descent.network.in_width
    work = rows * (4 * width * hidden + 6 * hidden * 10) / 1e9
    return {
        "rows": rows,
        "set_up_s": ends[0],
        "pass_s": median,
        "us_per_row": 1e6 * median / rows,
        "share_of_peak": work / median / peak("cpu", size),
    }


def _held() -> float:
    """MiB of memory that is this process's own; pages of a file are not."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


@contextmanager
def _watched(peaks: list[float]) -> Iterator[None]:
    advance = Run._advance

    def watching(self: Run, *args: Any) -> None:
        advance(self, *args)
        peaks.append(_held())

    with mock.patch.object(Run, "_advance", watching):
        yield


def peak_memory(rows: int, folder: Path, start: float) -> dict[str, Any]:
    """Peak memory beyond `start`, training one pass from a memory map of so many rows."""
    path = folder / "rows.f32"
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, rows, 1 << 15):
            rng.standard_normal((min(1 << 15, rows - first), WIDTH), dtype=np.float32).tofile(file)
    x = np.memmap(path, np.float32, "r", shape=(rows, WIDTH))
    y = (np.arange(rows) // 7) % 2
    net = lnn.LiftedNetwork.mlp([WIDTH, 100, 2], activation="fenchel_relu")
    peaks, started = [0.0], time.perf_counter()
    with _watched(peaks):
        lnn.MiniBatch(passes=1, batch_size=BATCH).run(lnn.automatic(net, x, y), x, y)
    return {
        "rows": rows,
        "file_MiB": path.stat().st_size >> 20,
        "peak_MiB": max(peaks) - start,
        "us_per_row": 1e6 * (time.perf_counter() - started) / rows,
    }


def run(settings: Settings) -> None:
    store, start, quick = settings.store("streaming"), _held(), settings.quick
    with tempfile.TemporaryDirectory() as folder:
        for rows in (1 << 12,) if quick else (1 << 17, 1 << 18, 1 << 19):
            store(partial(peak_memory, rows, Path(folder), start), task="memory", rows=rows)
    if not quick:
        pass_time(5_000)  # loads what is loaded at first use
    sizes = (20, 300) if quick else (300, 3000)
    for rows in (500, 1_000) if quick else (15_000, 30_000, 60_000):
        store(partial(pass_time, rows, *sizes), task="time", rows=rows)
    table(f"one pass from a memory map, {WIDTH}-100-2, batch {BATCH}", store.values(task="memory"))
    table(f"a pass over MNIST, 784-300-10, batch {BATCH}", store.values(task="time"))
