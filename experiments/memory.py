"""nnls on a million rows of 500 unknowns: the working memory beyond inputs and output stays that of a few row blocks.

`python -m experiments.memory [cpu|cuda]`
"""

from __future__ import annotations

import resource
import sys
import time

import torch

from experiments.screen import store, table
from liftednn.solvers import nnls

ROWS, UNKNOWNS = 1_000_000, 500


def held(device: str) -> float:
    """The most memory this process has held so far, in GiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(4 * UNKNOWNS, UNKNOWNS, generator=generator, device=device)
    h = a.T @ a / (4 * UNKNOWNS)
    q = torch.empty(ROWS, UNKNOWNS, device=device).normal_(generator=generator)
    before, started = held(device), time.perf_counter()
    result = nnls(h, q, tol=1e-3)
    spent, output = time.perf_counter() - started, result.z.numel() * result.z.element_size() / 2**30
    row = {
        "device": device,
        "rows": ROWS,
        "unknowns": UNKNOWNS,
        "seconds": spent,
        "kkt": result.kkt,
        "input_gib": before,
        "output_gib": output,
        "working_gib": held(device) - before - output,
    }
    table("a million rows", [row])
    store(f"memory-{device}", [row])


if __name__ == "__main__":
    main()
