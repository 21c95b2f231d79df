"""Time nnls against scipy.optimize.nnls and scikit-learn's coordinate descent, row for row, on the same problems.

`python -m experiments nnls`. The three solvers take turns within one process, so that a busy machine slows all of them, and every figure
is a median over the turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import torch
from sklearn.decomposition._cdnmf_fast import _update_cdnmf_fast
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.markdown import table
from experiments.settings import Settings
from liftednn.solvers import nnls

UNKNOWNS, ROWS, TURNS, PEER_ROWS, TOL = 300, 20_000, 5, 12, 1e-6
MOST_CYCLES = 4000
Problem = tuple[Tensor, Tensor]


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating-point operations of the matrix products made inside its block."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


def well_conditioned(p: int, n: int) -> Problem:
    """h = a'a / 4p with a gaussian (4p, p): condition number about 9; gaussian right-hand sides."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4 * p, p, dtype=torch.float64, generator=generator)
    return a.T @ a / (4 * p), torch.randn(n, p, dtype=torch.float64, generator=generator)


def spectrum_of_five_decades(p: int) -> Tensor:
    vectors = torch.linalg.qr(torch.randn(p, p, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    h = (vectors * torch.logspace(0, -5, p, dtype=torch.float64)) @ vectors.T
    symmetric: Tensor = (h + h.T) / 2
    return symmetric


def badly_conditioned(p: int, n: int) -> Problem:
    """Condition number 1e5; right-hand sides of states that are half zero, with noise."""
    h, generator = spectrum_of_five_decades(p), torch.Generator().manual_seed(1)
    q = torch.randn(n, p, dtype=torch.float64, generator=generator).clamp(min=0) @ h
    return h, q + 0.01 * q.std() * torch.randn(n, p, dtype=torch.float64, generator=generator)


def badly_conditioned_gaussian(p: int, n: int) -> Problem:
    """Condition number 1e5; gaussian right-hand sides, whose solutions are large."""
    return spectrum_of_five_decades(p), torch.randn(
        n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def residual(h: Tensor, q: Tensor, z: Tensor) -> float:
    return ((z @ h - q).minimum(z).abs().max() / q.abs().max()).item()


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    value = function()
    return time.perf_counter() - begin, value


def scipy_rows(h: Tensor, q: Tensor) -> tuple[float, Tensor]:
    """Seconds and solution, row by row on |a z - b|^2 with a'a = h, a'b = q; the factor is made outside the clock."""
    factor = torch.linalg.cholesky(h)
    a = factor.T.contiguous().numpy()
    right = torch.linalg.solve_triangular(factor, q.T, upper=False).T.contiguous().numpy()
    spent, rows = seconds(lambda: [scipy.optimize.nnls(a, b, maxiter=20 * len(h))[0] for b in right])
    return spent, torch.from_numpy(np.stack(rows))


def descent_rows(h: Tensor, q: Tensor) -> tuple[float, Tensor]:
    """Seconds and solution of scikit-learn's cyclic coordinate descent; the residual is looked at outside the clock."""
    states, order = np.zeros(q.shape), np.arange(len(h), dtype=np.intp)
    matrix, right = h.contiguous().numpy(), q.contiguous().numpy()
    spent, cycles, burst = 0.0, 0, 2
    while residual(h, q, torch.from_numpy(states)) > TOL and cycles < MOST_CYCLES:
        spent += seconds(lambda: [_update_cdnmf_fast(states, matrix, right, order) for _ in range(burst)])[0]  # noqa: B023
        cycles, burst = cycles + burst, 2 + cycles // 10
    return spent, torch.from_numpy(states)


def peak_gflops(size: int) -> float:
    """The float64 matrix product rate of this machine now, best of a few."""
    a = torch.randn(size, size, dtype=torch.float64)
    return 2 * size**3 / min(seconds(lambda: a @ a)[0] for _ in range(5)) / 1e9


def versus_peers(name: str, h: Tensor, q: Tensor, turns: int) -> dict[str, Any]:
    ours: list[float] = []
    scipys: list[float] = []
    descents: list[float] = []
    peaks: list[float] = []
    kkts = {"scipy": 0.0, "sklearn": 0.0}
    nnls(h, q[:2000], tol=TOL)
    for turn in range(turns):
        part = q[turn * PEER_ROWS : (turn + 1) * PEER_ROWS]
        spent, result = seconds(lambda: nnls(h, q, tol=TOL))
        ours.append(1e3 * spent / len(q))
        for key, solver, times in (("scipy", scipy_rows, scipys), ("sklearn", descent_rows, descents)):
            spent, z = solver(h, part)
            times.append(1e3 * spent / PEER_ROWS)
            kkts[key] = max(kkts[key], residual(h, part, z))
        peaks.append(peak_gflops(5 * len(h)))
    with ProductCounter() as counter:  # type: ignore[no-untyped-call]
        nnls(h, q, tol=TOL)
    mine, gflops = statistics.median(ours), counter.flops / (statistics.median(ours) * 1e-3 * len(q)) / 1e9
    return {
        "name": name,
        "conditioning": torch.linalg.cond(h).item(),
        "rows": len(q),
        "unknowns": len(h),
        "ms_per_row": mine,
        "scipy_ms_per_row": statistics.median(scipys),
        "sklearn_ms_per_row": statistics.median(descents),
        "times_scipy": statistics.median(scipys) / mine,
        "times_sklearn": statistics.median(descents) / mine,
        "kkt": result.kkt,
        "scipy_kkt": kkts["scipy"],
        "sklearn_kkt": kkts["sklearn"],
        "n_iter": result.n_iter,
        "gflops": gflops,
        "share_of_peak": gflops / statistics.median(peaks),
        "largest_difference_from_scipy": difference_from_scipy(h, q[:PEER_ROWS]),
    }


def difference_from_scipy(h: Tensor, q: Tensor) -> float:
    """At tol = 1e-12, relative to the largest entry."""
    expected = scipy_rows(h, q)[1]
    return ((nnls(h, q, tol=1e-12).z - expected).abs().max() / expected.max()).item()


def growth(name: str, h: Tensor, q: Tensor, **options: Any) -> dict[str, Any]:
    times = []
    for _ in range(3):
        spent, result = seconds(lambda: nnls(h, q, **options))
        times.append(1e3 * spent / len(q))
    return {
        "name": name,
        "conditioning": torch.linalg.cond(h.double()).item(),
        "rows": len(q),
        "unknowns": len(h),
        "ms_per_row": statistics.median(times),
        "kkt": result.kkt,
        "n_iter": result.n_iter,
    }


def lifted_states(rows: int, unknowns: int) -> dict[str, Any]:
    """What one X-step asks: float32, tol 1e-3, started from the states of slightly different weights."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(100, unknowns, generator=generator) / math.sqrt(unknowns)
    states = torch.randn(rows, unknowns, generator=generator).clamp(min=0)
    step = 0.01 * torch.randn(100, unknowns, generator=generator) / math.sqrt(unknowns)
    q = states @ weights.T @ weights + torch.randn(rows, unknowns, generator=generator)
    start = nnls(weights.T @ weights + torch.eye(unknowns), q, tol=1e-4).z
    h = (weights + step).T @ (weights + step) + torch.eye(unknowns)
    return growth("float32 warm start", h, q, z0=start, tol=1e-3)


Case = tuple[str, int, int, Callable[[], dict[str, Any]]]
PEERS: dict[str, Callable[[int, int], Problem]] = {
    "well conditioned": well_conditioned,
    "badly conditioned": badly_conditioned,
    "badly conditioned, gaussian q": badly_conditioned_gaussian,
}


def against_peers(name: str, unknowns: int, rows: int, turns: int) -> dict[str, Any]:
    return versus_peers(name, *PEERS[name](unknowns, rows), turns)


def grown(name: str, problem: Callable[[int, int], Problem], unknowns: int, rows: int) -> dict[str, Any]:
    return growth(name, *problem(unknowns, rows), tol=TOL)


def cases(quick: bool) -> Iterator[Case]:
    """The name, the rows and the unknowns of a problem, and the work."""
    rows, unknowns, turns = (100, 20, 1) if quick else (ROWS, UNKNOWNS, TURNS)
    for name in PEERS:
        yield name, rows, unknowns, partial(against_peers, name, unknowns, rows, turns)
    for n in (100, 200) if quick else (2_000, 20_000, 80_000):
        yield "growth with rows", n, unknowns, partial(grown, "growth with rows", well_conditioned, unknowns, n)
    for p in (10, 20) if quick else (100, 200, 400, 800):
        n = 100 if quick else 4_000
        yield "growth with unknowns", n, p, partial(grown, "growth with unknowns", badly_conditioned, p, n)
    n = 200 if quick else 60_000
    yield "float32 warm start", n, unknowns, partial(lifted_states, n, unknowns)


def run(settings: Settings) -> None:
    store = settings.store("nnls")
    store.tell(
        f"{torch.get_num_threads()} threads; if other programs share the cores, set OMP_NUM_THREADS below their number"
    )
    for name, rows, unknowns, work in cases(settings.quick):
        store(work, name=name, rows=rows, unknowns=unknowns)
    found = store.values()
    table("nnls against its peers, medians of 5", [row for row in found if "times_scipy" in row])
    table("how nnls grows", [row for row in found if "times_scipy" not in row])
