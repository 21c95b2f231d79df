"""nnls on a million rows of 500 unknowns: the working memory beyond inputs and output stays that of a few row blocks.

`python -m experiments memory [--device cuda]`
"""

from __future__ import annotations

import resource
import time
from functools import partial
from typing import Any

import torch

from experiments.markdown import table
from experiments.settings import Settings
from liftednn.solvers import nnls

TAKES = ("device",)
ROWS, UNKNOWNS = 1_000_000, 500


def held(device: str) -> float:
    """The most memory this process has held so far, in GiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(device: str, rows: int, unknowns: int) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(4 * unknowns, unknowns, generator=generator, device=device)
    h = a.T @ a / (4 * unknowns)
    q = torch.empty(rows, unknowns, device=device).normal_(generator=generator)
    before, started = held(device), time.perf_counter()
    result = nnls(h, q, tol=1e-3)
    spent, output = time.perf_counter() - started, result.z.numel() * result.z.element_size() / 2**30
    return {
        "device": device,
        "rows": rows,
        "unknowns": unknowns,
        "seconds": spent,
        "kkt": result.kkt,
        "input_gib": before,
        "output_gib": output,
        "working_gib": held(device) - before - output,
    }


def run(settings: Settings) -> None:
    store = settings.store("memory")
    rows, unknowns = (1000, 50) if settings.quick else (ROWS, UNKNOWNS)
    store(partial(measure, settings.device, rows, unknowns), rows=rows, unknowns=unknowns)
    table("many rows", store.values())
