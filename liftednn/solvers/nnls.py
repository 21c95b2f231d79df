"""Box-constrained least squares with one matrix and many right-hand sides (the X-step, one row per sample).

    z_i = argmin over lower <= z <= upper of  1/2 z h z' - q_i z'        h: (p, p), q: (n, p)

Both parts of the problem have a cheap reflection in the metric rho D, D = diag(h): that of the box is
v = 2 clip(s) - s, that of the quadratic r = 2 (q + rho v D)(h + rho D)^-1 - v. The averaged iteration
s <- (1 - theta) s + theta r (relaxed Peaceman-Rachford splitting, that is over-relaxed ADMM; Lions and Mercier 1979,
Eckstein and Bertsekas 1992) costs one product with a shared (p, p) matrix for all rows; clip(s) converges to the solution.

The rate depends on rho. A component of the error does not shrink where both reflections act on it with the same sign; the
traces of the two cancel when the ridge h + rho D has as many effective degrees of freedom as the row has free entries,

    tr h (h + rho D)^-1 = #{j : lower_j < z_j < upper_j},

and for this rho the rate hardly depends on the condition number. Each row takes its rho from a short list, by its fraction of free entries.
Rows that are not solved then, as where one eigenvalue is far larger than all others, are solved by pivoting (pivoting.py).

The splitting does not descend, so every few steps the best point so far moves towards clip(s) by an exact line search.
The returned point is therefore in the box, and its objective is not above the start's. The certificate is the violation of the
optimality conditions by g = z h - q: 0 between the bounds, and at a bound no descent direction into the box,

    kkt = max_j { |g_j| between the bounds,  (-g_j)_+ at the lower one,  (g_j)_+ at the upper one } / max |q|

which does not depend on the units of h, q and z, and is at least L |z - clip(z - g / L)| / max |q| for any L. Entries that
a projected gradient step would take to a bound are put there first. Rows are solved in units in which the entries of q and the
diagonal of h are about 1; these are powers of two, so that nothing is rounded.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.solvers.bounds import Bounds, Units, check_options, check_problem
from liftednn.solvers.pivoting import pivoting

__all__ = ["NNLSResult", "nnls"]

RELAXATION = 0.92
FREE_FRACTIONS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIRST_REGROUP = 6
# The most steps of the splitting, which is slow where it needs more, and of the pivoting, which needs few or will not end.
_SPLITTING, _PIVOTS = 300, 300
# Residuals up to this many times their rounding level cannot be expected to fall.
_FAR = 10
# Rounds of putting entries next to a bound on it: each round changes the gradient of the others a little.
_ROUNDS = 3


@dataclass(frozen=True)
class NNLSResult:
    """What `nnls` returns.

    z        the solution, (n, p)
    kkt      its residual, the largest of all rows
    n_iter   the number of steps of the slowest row
    status   "converged" (kkt <= tol), "max_iter", or "stalled": further steps do not help, because the residual is at the rounding
             level of the dtype or because the objective has no minimum

    >>> lnn.solvers.nnls(torch.eye(2), torch.ones(3, 2)).status
    'converged'
    """

    z: Tensor
    kkt: float
    n_iter: int
    status: str


@torch.no_grad()
def nnls(
    h: Tensor,
    q: Tensor,
    z0: Tensor | None = None,
    tol: float = 1e-6,
    max_iter: int = 2000,
    upper: float | Tensor | None = None,
    *,
    lower: float | Tensor = 0.0,
    block_rows: int | None = None,
    scale: float | Tensor | None = None,
) -> NNLSResult:
    """Minimise 1/2 z h z' - q z' over lower <= z <= upper for every row of q (n, p); h (p, p) is shared and PSD.

    z0             (n, p), a start, clipped to the box; None for 0
    tol            the relative residual `kkt` at which a row is solved
    max_iter       steps at most
    lower, upper   numbers or tensors broadcastable to q, infinite where there is no bound; upper=None for none
    block_rows     rows that are solved at a time: memory beyond q and z is a dozen (block_rows, p) arrays
    scale          what residuals are relative to; None for max |q|. Other rows change the solution of a row only through it: where q
                   holds only a part of the rows, give max |q| over all of them, and the solutions are those of one call for all. Or
                   one for each row, (n,), all positive

    Returns an `NNLSResult`.

    >>> h, q = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, -1.0]])
    >>> lnn.solvers.nnls(h, q).z.round(decimals=3).tolist()
    [[1.0, 0.0]]
    """
    check_problem(h, q, z0)
    check_options(tol, max_iter, block_rows, scale, len(q))
    box, units = Bounds.of(lower, upper, q), Units.of(h, reduce.largest(q if scale is None else scale))
    scales = scale.double() / units.q if isinstance(scale, Tensor) else h.new_tensor(units.scale, dtype=torch.float64)
    scales = scales.expand(len(q))
    shared = _SharedMatrix(h / units.h)
    z = torch.empty_like(q)
    residuals, n_iter, endings = [scales.new_zeros(1)], 0, {"converged"}
    count = block_rows or _default_block_rows(q)
    for first in range(0, len(q), count):
        rows = slice(first, first + count)
        box.take(rows).check()
        part, right = box.take(rows).scaled(1 / units.z, q), q[rows] / units.q
        start = part.clip(torch.zeros_like(right) if z0 is None else (z0[rows].double() / units.z).to(q))
        block = _Block(shared, right, part, start, scales[rows].to(q))
        steps, ending = block.solve(z[rows], tol, min(max_iter, _SPLITTING))
        residual = _certify(shared, right, part, z[rows], tol * scales[rows])
        if max_iter > _SPLITTING:  # whatever the other rows of the block needed
            most = min(max_iter - _SPLITTING, _PIVOTS)
            more = _finish(shared, right, part, z[rows], residual, scales[rows], tol, most)
            steps, ending = steps + more, "max_iter" if _SPLITTING + more == max_iter else "stalled"
        residuals.append(residual / scales[rows])
        box.take(rows).clip((z[rows].double() * units.z).to(q), out=z[rows])
        n_iter = max(n_iter, steps)
        endings.add(ending)
    kkt = torch.cat(residuals).max().item()
    if not bool(z.isfinite().all()):
        raise ValueError(f"the solution is beyond the range of {z.dtype}: scale h and q, or give float64")
    if kkt <= tol:
        return NNLSResult(z, kkt, n_iter, "converged")
    return NNLSResult(z, kkt, n_iter, "max_iter" if "max_iter" in endings else "stalled")


def _certify(shared: _SharedMatrix, q: Tensor, box: Bounds, z: Tensor, goal: Tensor) -> Tensor:
    """The certificate of each row times its scale, from a newly computed gradient.

    In rows that miss the goal, entries of z next to a bound are first put on it, in place.
    """
    g = torch.addmm(q, z, shared.h, beta=-1)
    residual = box.residual(z, g)
    for _ in range(_ROUNDS):
        rows = torch.nonzero(~(residual <= goal)).flatten()
        if not len(rows):
            break
        part = box.take(rows)
        moved = part.snap(z[rows], g[rows], shared.norm)
        fresh = torch.addmm(q[rows], moved, shared.h, beta=-1)
        z[rows], g[rows], residual[rows] = moved, fresh, part.residual(moved, fresh)
    return residual


def _finish(
    shared: _SharedMatrix, q: Tensor, box: Bounds, z: Tensor, residual: Tensor, scale: Tensor, tol: float, max_iter: int
) -> int:
    """Pivoting for the rows that are not solved, up to rounding; z and their residuals change in place. Returns the steps."""
    rows = torch.nonzero(residual > torch.maximum(tol * scale, _FAR * shared.rounding(z, scale))).flatten()
    if not len(rows):
        return 0
    part, goal, h = box.take(rows), 0.5 * tol * scale[rows], shared.h.double()
    # Rounding may have made eigenvalues negative.
    h = h + torch.finfo(q.dtype).eps * shared.norm * torch.eye(len(h)).to(h)
    moved, steps = pivoting(h, q[rows].double(), part.double(), z[rows].double(), goal, max_iter)
    moved = part.clip(moved.to(q))
    fresh = _certify(shared, q[rows], part, moved, tol * scale[rows])
    better = fresh < residual[rows]
    z[rows[better]], residual[rows[better]] = moved[better], fresh[better]
    return steps


class _SharedMatrix:
    """Everything that depends on h alone: the metric D, the spectrum of D^-1/2 h D^-1/2, and a reflection for each free fraction."""

    def __init__(self, h: Tensor) -> None:
        self.h = h
        self.norm = h.abs().sum(1).max().item() or 1.0
        diagonal = h.diagonal().double()
        typical = diagonal.abs().mean().item() or self.norm or 1.0
        self.metric = torch.where(diagonal > 0, diagonal, typical)
        scale = self.metric.rsqrt()
        spectrum = torch.linalg.eigvalsh(scale[:, None] * h.double() * scale).cpu()
        self.rho = _penalties(spectrum, torch.finfo(h.dtype).eps)
        self._reflections: dict[int, tuple[Tensor, Tensor]] = {}

    def rounding(self, z: Tensor, scale: Tensor) -> Tensor:
        """The rounding level of the gradient of each row, for q of the size `scale`."""
        return torch.finfo(z.dtype).eps * (scale + self.norm * z.abs().amax(1))

    def reflection(self, level: int) -> tuple[Tensor, Tensor]:
        """Matrices (a, b) with theta r = (v / 2) a + q b, made in float64 once for each level."""
        if level not in self._reflections:
            weight = self.rho[level] * self.metric
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.h.double() + weight.diag()))
            reflect = 2 * weight[:, None] * inverse - torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
            pair = (2 * RELAXATION * reflect).to(self.h.dtype), (2 * RELAXATION * inverse).to(self.h.dtype)
            self._reflections[level] = pair
        return self._reflections[level]


def _penalties(spectrum: Tensor, eps: float) -> list[float]:
    """For each free fraction the rho with mean lam / (lam + rho) = fraction, read off a fine grid."""
    bottom, top = spectrum[0].item(), spectrum[-1].item() or 1.0
    if bottom < -10 * len(spectrum) * eps * abs(top):
        raise ValueError(
            f"h must be positive semi-definite, got a smallest eigenvalue of {bottom:.3g} and a largest of {top:.3g} "
            "(diagonal scaled to 1); pass a Gram matrix such as weights.T @ weights"
        )
    # negative eigenvalues of h that come from rounding must be smaller than rho
    lowest = max(1e-9, eps, -10 * bottom / abs(top))
    grid = top * torch.logspace(1, math.log10(lowest), 1000, dtype=torch.float64)
    freedom = (spectrum.clamp(min=0) / (spectrum.clamp(min=0) + grid[:, None])).mean(1)
    # a singular h cannot reach the larger fractions: stay at three quarters of its rank
    largest = 0.75 * (spectrum > lowest * top).double().mean().item()
    return [grid[min(int((freedom < min(fraction, largest)).sum()), 999)].item() for fraction in FREE_FRACTIONS]


class _Block:
    """The rows of one block that are still being solved, sorted by their level, the index of their rho.

    The solution of a row is written when the row is first found done, and later steps do not change it.
    """

    def __init__(self, shared: _SharedMatrix, q: Tensor, box: Bounds, z: Tensor, scale: Tensor) -> None:
        self.shared, self.q, self.box, self.scale = shared, q, box, scale
        self.z, self.g = z, torch.addmm(q, z, shared.h, beta=-1)
        self.kkt = box.distance(self.z, self.g, shared.norm) / scale
        self.best_kkt, self.best_step = self.kkt, torch.zeros(len(q), dtype=torch.long, device=q.device)
        self.rows = torch.arange(len(q), device=q.device)
        self.written = torch.zeros(len(q), dtype=torch.bool, device=q.device)
        self._begin()

    def _begin(self) -> None:
        """Multipliers from the gradient where it keeps an entry at its bound; elsewhere s = z."""
        active = self.box.clip(self.z - self.g) == self.z
        # the gradient at the start overestimates the free entries, and too large a rho costs less than too small a one
        self.level = (_levels(~active) - 1).clamp(min=0)
        weight = self._rho() * self.shared.metric.to(self.q.dtype)
        self.s = torch.where(active, self.z - self.g / weight, self.z)
        self.c = torch.empty_like(self.q)

    def solve(self, out: Tensor, tol: float, max_iter: int) -> tuple[int, str]:
        """Write the solution to out; return the steps taken and how they ended."""
        step, regroup_at = 0, FIRST_REGROUP
        if not self._drop(self.kkt <= tol, out):
            return step, "converged"
        self._sort()
        while step < max_iter:
            stride = min(3 + step // 8, max_iter - step)
            for _ in range(stride):
                self._step()
            step += stride
            self._descend()
            # the margin covers the rounding of the interpolated gradient: the reported residual is computed anew
            if not self._drop((self.kkt <= 0.95 * tol) | self._stuck(step), out):
                return step, "stalled"
            if step >= regroup_at:
                self._regroup()
                regroup_at = 2 * step
        self._write(torch.nonzero(~self.written).flatten(), out)
        return step, "max_iter"

    def _step(self) -> None:
        half = torch.sub(self.box.clip(self.s, out=self.v), self.s, alpha=0.5, out=self.v)
        torch.add(self.c, self.s, alpha=1 - RELAXATION, out=self.s)
        for level, rows in self.groups:
            self.s[rows].addmm_(half[rows], self.shared.reflection(level)[0])

    def _descend(self) -> None:
        """Exact line search from the best point so far to clip(s), both in the box; the gradient is interpolated likewise."""
        z = self.box.clip(self.s, out=self.v)
        g = torch.addmm(self.q, z, self.shared.h, beta=-1)
        move = z - self.z
        slope, final_slope = (move * self.g).sum(1), (move * g).sum(1)
        curvature = (final_slope - slope).clamp(min=torch.finfo(z.dtype).tiny)
        length = (-slope / curvature).clamp(0, 1)[:, None]
        self.z, self.g = self.box.clip(torch.lerp(self.z, z, length)), torch.lerp(self.g, g, length)
        self.kkt = self.box.distance(self.z, self.g, self.shared.norm) / self.scale

    def _stuck(self, step: int) -> Tensor:
        """Rows whose residual has not halved for 30 steps at rounding level, elsewhere for max(300, the step of the last halving)."""
        halved = self.kkt < 0.5 * self.best_kkt
        self.best_kkt = torch.where(halved, self.kkt, self.best_kkt)
        self.best_step = torch.where(halved, step, self.best_step)
        rounding = self.shared.rounding(self.z, self.scale) / self.scale
        patience = torch.where(self.best_kkt < _FAR * rounding, 30, self.best_step.clamp(min=300))
        return step - self.best_step > patience

    def _drop(self, done: Tensor, out: Tensor) -> bool:
        """Write rows that are newly done to out; drop written rows once they are over 10%, to save copies. False when none is left."""
        fresh = torch.nonzero(done & ~self.written).flatten()
        if not len(fresh):
            return True
        self._write(fresh, out)
        left = torch.nonzero(~self.written).flatten()
        if 0 < len(left) < 0.9 * len(done):
            self._take(left)
        return len(left) > 0

    def _write(self, index: Tensor, out: Tensor) -> None:
        out[self.rows[index]] = self.box.take(index).snap(self.z[index], self.g[index], self.shared.norm)
        self.written[index] = True

    def _regroup(self) -> None:
        """Give each row the rho of its present fraction of free entries, keeping its multipliers rho D (s - clip(s))."""
        before = self._rho()
        self.level = _levels(self.box.inside(self.s))
        self.s = torch.lerp(self.box.clip(self.s), self.s, before / self._rho())
        self._sort()

    def _sort(self) -> None:
        self._take(torch.argsort(self.level, stable=True))
        for level, rows in self.groups:
            torch.mm(self.q[rows], self.shared.reflection(level)[1], out=self.c[rows])

    def _take(self, index: Tensor) -> None:
        for name in ("q", "z", "g", "s", "c", "scale", "rows", "written", "level", "kkt", "best_kkt", "best_step"):
            setattr(self, name, getattr(self, name)[index])
        self.box = self.box.take(index)
        self.v = torch.empty_like(self.s)
        counts = torch.bincount(self.level, minlength=len(FREE_FRACTIONS)).tolist()
        ends = list(itertools.accumulate(counts))
        spans = enumerate(zip(counts, ends, strict=True))
        self.groups = [(level, slice(end - count, end)) for level, (count, end) in spans if count]

    def _rho(self) -> Tensor:
        return self.q.new_tensor(self.shared.rho)[self.level][:, None]


def _levels(free: Tensor) -> Tensor:
    """The index of the entry of FREE_FRACTIONS nearest to each row's fraction of free entries."""
    fraction = free.sum(1) / free.shape[1]
    spacing = FREE_FRACTIONS[1] - FREE_FRACTIONS[0]
    return ((fraction - FREE_FRACTIONS[0]) / spacing).round().clamp(0, len(FREE_FRACTIONS) - 1).long()


def _default_block_rows(q: Tensor) -> int:
    """On a CPU the working arrays stay in cache; a GPU needs large blocks, within its memory."""
    entries = 2**25 if q.is_cuda else 2**19
    return max(64, entries // q.shape[1])
