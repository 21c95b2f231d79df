"""Box-constrained least squares with one matrix and many right-hand sides (the X-step, one row per sample).

    z_i = argmin over lower <= z <= upper of  1/2 z h z' - q_i z'        h: (p, p), q: (n, p)

Both halves of the problem have a cheap reflection in the metric rho D, D = diag(h): of the box,
v = 2 clip(s) - s, and of the quadratic, r = 2 (q + rho v D)(h + rho D)^-1 - v. The averaged iteration
s <- (1 - theta) s + theta r (relaxed Peaceman-Rachford splitting, that is over-relaxed ADMM; Lions and Mercier 1979,
Eckstein and Bertsekas 1992) costs one product with a shared (p, p) matrix for all rows; clip(s) tends to the answer.

The rate hangs on rho. An error survives both reflections where the box keeps a sign that the quadratic keeps too; the
traces of the two cancel when the ridge h + rho D has as many effective degrees of freedom as the row has free entries,

    tr h (h + rho D)^-1 = #{j : lower_j < z_j < upper_j},

and there the condition number nearly drops out. Each row takes its rho from a short list by its own free share.

The splitting does not descend, so every few steps the best point so far moves towards clip(s) by an exact line search.
What is returned is therefore in the box and never worse than the start, and its certificate is

    kkt = max |z - clip(z - (z h - q))| / max |q|        (for z >= 0:  max |min(z, z h - q)| / max |q|).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from liftednn.checks import check_count, check_dense, check_number

__all__ = ["NNLSResult", "nnls"]

RELAXATION = 0.92
FREE_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIRST_REGROUP = 6


@dataclass(frozen=True)
class NNLSResult:
    """Solution z (n, p), its residual kkt, the steps of the slowest row block and how the solve ended.

    status is "converged" (kkt <= tol), "max_iter", or "stalled": further steps brought nothing, because the residual is
    at the floor of the floating-point type or because the objective has no minimum.
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
) -> NNLSResult:
    """Minimise 1/2 z h z' - q z' over lower <= z <= upper for every row of q (n, p); h (p, p) is shared and PSD.

    lower and upper are numbers or tensors broadcastable to q, infinite where there is no bound. z0 (n, p) is a start,
    clipped to the box. Rows are solved block_rows at a time: memory beyond q and z is a dozen (block_rows, p) arrays.
    """
    check_dense(h=h, q=q, z0=q if z0 is None else z0)
    _check_problem(h, q, z0)
    _check_options(tol, max_iter, block_rows)
    box = _Box.of(lower, upper, q)
    scale = _largest("q", q) or 1.0
    shared = _SharedMatrix(h)
    z = torch.empty_like(q)
    residuals, n_iter, endings = [q.new_zeros(1)], 0, {"converged"}
    size = block_rows or _default_block_rows(q)
    for first in range(0, len(q), size):
        rows = slice(first, first + size)
        part = box.take(rows)
        part.check()
        start = part.clip(torch.zeros_like(q[rows]) if z0 is None else z0[rows])
        steps, ending = _Block(shared, q[rows], part, start, scale).solve(z[rows], tol, max_iter)
        gradient = torch.addmm(q[rows], z[rows], h, beta=-1)
        residuals.append(_residual(z[rows], gradient, part))
        n_iter = max(n_iter, steps)
        endings.add(ending)
    kkt = torch.cat(residuals).max().item() / scale
    if kkt <= tol:
        return NNLSResult(z, kkt, n_iter, "converged")
    return NNLSResult(z, kkt, n_iter, "max_iter" if "max_iter" in endings else "stalled")


@dataclass(frozen=True)
class _Box:
    """The bounds: two numbers, or two tensors with p or 1 columns and n or 1 rows."""

    lower: float | Tensor
    upper: float | Tensor

    @staticmethod
    def of(lower: float | Tensor, upper: float | Tensor | None, q: Tensor) -> _Box:
        upper = math.inf if upper is None else upper
        for name, bound in (("lower", lower), ("upper", upper)):
            if not isinstance(bound, (Tensor, Real)):
                raise ValueError(f"{name} must be a number or a tensor, got {bound!r}")
        if not isinstance(lower, Tensor) and not isinstance(upper, Tensor):
            return _Box(float(lower), float(upper))
        return _Box(_bound("lower", lower, q), _bound("upper", upper, q))

    def take(self, rows: slice | Tensor) -> _Box:
        if not isinstance(self.lower, Tensor) or not isinstance(self.upper, Tensor):
            return self
        return _Box(*(bound[rows] if len(bound) > 1 else bound for bound in (self.lower, self.upper)))

    def clip(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.clamp(x, self.lower, self.upper, out=out)  # type: ignore[arg-type]

    def inside(self, x: Tensor) -> Tensor:
        return (x > self.lower) & (x < self.upper)

    def check(self) -> None:
        lower, upper = torch.as_tensor(self.lower), torch.as_tensor(self.upper)
        if not bool(((lower <= upper) & (lower < math.inf) & (upper > -math.inf)).all()):
            raise ValueError(
                f"lower must not exceed upper, and neither may be NaN, got lower={self.lower} and upper={self.upper}; "
                "use lower=-inf or upper=None where there is no bound"
            )


class _SharedMatrix:
    """What depends on h alone: the metric D, the spectrum of D^-1/2 h D^-1/2, and a reflection for each free share."""

    def __init__(self, h: Tensor) -> None:
        self.h = h
        self.norm = h.abs().sum(1).max().item()
        diagonal = h.diagonal().double()
        typical = diagonal.abs().mean().item() or self.norm or 1.0
        self.metric = torch.where(diagonal > 0, diagonal, typical)
        scale = self.metric.rsqrt()
        spectrum = torch.linalg.eigvalsh(scale[:, None] * h.double() * scale).cpu()
        self.rho = _penalties(spectrum, torch.finfo(h.dtype).eps)
        self._reflections: dict[int, tuple[Tensor, Tensor]] = {}

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
    """For each free share the rho with mean lam / (lam + rho) = share, read off a fine grid."""
    bottom, top = spectrum[0].item(), spectrum[-1].item() or 1.0
    if bottom < -10 * len(spectrum) * eps * abs(top):
        raise ValueError(
            f"h must be positive semi-definite, got a smallest eigenvalue of {bottom:.3g} and a largest of {top:.3g} "
            "(diagonal scaled to 1); pass a Gram matrix such as weights.T @ weights"
        )
    # the negative eigenvalues that rounding leaves in h must not outweigh rho
    lowest = max(1e-9, eps, -10 * bottom / abs(top))
    grid = top * torch.logspace(1, math.log10(lowest), 1000, dtype=torch.float64)
    freedom = (spectrum.clamp(min=0) / (spectrum.clamp(min=0) + grid[:, None])).mean(1)
    # a singular h never reaches the larger shares: stay where three quarters of its rank are in use
    reach = 0.75 * (spectrum > lowest * top).double().mean().item()
    return [grid[min(int((freedom < min(share, reach)).sum()), 999)].item() for share in FREE_SHARES]


class _Block:
    """The rows of one block that are still being solved, sorted by their level, the index of their rho."""

    def __init__(self, shared: _SharedMatrix, q: Tensor, box: _Box, z: Tensor, scale: float) -> None:
        self.shared, self.q, self.box, self.scale = shared, q, box, scale
        self.z, self.g = z, torch.addmm(q, z, shared.h, beta=-1)
        self.kkt = _residual(self.z, self.g, box) / scale
        self.best_kkt, self.best_step = self.kkt, torch.zeros(len(q), dtype=torch.long, device=q.device)
        self.rows = torch.arange(len(q), device=q.device)
        self._begin()

    def _begin(self) -> None:
        """Multipliers from the gradient where it holds an entry at its bound; elsewhere s = z."""
        held = self.box.clip(self.z - self.g) == self.z
        # a start is rarely as free as its gradient says, and too large a rho costs less than too small a one
        self.level = (_levels(~held) - 1).clamp(min=0)
        weight = self._rho() * self.shared.metric.to(self.q.dtype)
        self.s = torch.where(held, self.z - self.g / weight, self.z)
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
            # the margin covers the rounding of the mixed gradient, as the residual reported is computed afresh
            if not self._drop((self.kkt <= 0.95 * tol) | self._stuck(step), out):
                return step, "stalled"
            if step >= regroup_at:
                self._regroup()
                regroup_at = 2 * step
        out[self.rows] = self.z
        return step, "max_iter"

    def _step(self) -> None:
        half = torch.sub(self.box.clip(self.s, out=self.v), self.s, alpha=0.5, out=self.v)
        torch.add(self.c, self.s, alpha=1 - RELAXATION, out=self.s)
        for level, rows in self.groups:
            self.s[rows].addmm_(half[rows], self.shared.reflection(level)[0])

    def _descend(self) -> None:
        """Exact line search from the best point so far to clip(s), both in the box; their gradients mix likewise."""
        z = self.box.clip(self.s, out=self.v)
        g = torch.addmm(self.q, z, self.shared.h, beta=-1)
        move = z - self.z
        slope, final_slope = (move * self.g).sum(1), (move * g).sum(1)
        curvature = (final_slope - slope).clamp(min=torch.finfo(z.dtype).tiny)
        length = (-slope / curvature).clamp(0, 1)[:, None]
        self.z, self.g = self.box.clip(torch.lerp(self.z, z, length)), torch.lerp(self.g, g, length)
        self.kkt = _residual(self.z, self.g, self.box) / self.scale

    def _stuck(self, step: int) -> Tensor:
        """Rows whose residual has not halved: 30 steps near the rounding floor, elsewhere as long as before."""
        halved = self.kkt < 0.5 * self.best_kkt
        self.best_kkt = torch.where(halved, self.kkt, self.best_kkt)
        self.best_step = torch.where(halved, step, self.best_step)
        rounding = torch.finfo(self.z.dtype).eps * (1 + self.shared.norm * self.z.abs().amax(1) / self.scale)
        patience = torch.where(self.best_kkt < 10 * rounding, 30, self.best_step.clamp(min=300))
        return step - self.best_step > patience

    def _drop(self, done: Tensor, out: Tensor) -> bool:
        """Write finished rows to out and forget them, once enough to repay the copy; False when none is left."""
        count = int(done.sum())
        if count == len(done):
            out[self.rows] = self.z
        elif count > 0.1 * len(done):
            out[self.rows[done]] = self.z[done]
            self._take(torch.nonzero(~done).flatten())
        return count < len(done)

    def _regroup(self) -> None:
        """Give each row the rho of its present free share, keeping its multipliers rho D (s - clip(s))."""
        before = self._rho()
        self.level = _levels(self.box.inside(self.s))
        self.s = torch.lerp(self.box.clip(self.s), self.s, before / self._rho())
        self._sort()

    def _sort(self) -> None:
        self._take(torch.argsort(self.level, stable=True))
        for level, rows in self.groups:
            torch.mm(self.q[rows], self.shared.reflection(level)[1], out=self.c[rows])

    def _take(self, index: Tensor) -> None:
        for name in ("q", "z", "g", "s", "c", "rows", "level", "kkt", "best_kkt", "best_step"):
            setattr(self, name, getattr(self, name)[index])
        self.box = self.box.take(index)
        self.v = torch.empty_like(self.s)
        counts = torch.bincount(self.level, minlength=len(FREE_SHARES)).tolist()
        ends = list(itertools.accumulate(counts))
        spans = enumerate(zip(counts, ends, strict=True))
        self.groups = [(level, slice(end - count, end)) for level, (count, end) in spans if count]

    def _rho(self) -> Tensor:
        return self.q.new_tensor(self.shared.rho)[self.level][:, None]


def _levels(free: Tensor) -> Tensor:
    """The index of the entry of FREE_SHARES nearest to each row's share of free entries."""
    share = free.sum(1) / free.shape[1]
    spacing = FREE_SHARES[1] - FREE_SHARES[0]
    return ((share - FREE_SHARES[0]) / spacing).round().clamp(0, len(FREE_SHARES) - 1).long()


def _residual(z: Tensor, g: Tensor, box: _Box) -> Tensor:
    """max over j of |z - clip(z - g)|, one number per row."""
    return box.clip(z - g).sub_(z).abs_().amax(1)


def _default_block_rows(q: Tensor) -> int:
    """On a CPU the working arrays stay in cache; a GPU wants blocks as large as its memory comfortably allows."""
    entries = 2**25 if q.is_cuda else 2**19
    return max(64, entries // q.shape[1])


def _largest(name: str, x: Tensor) -> float:
    """max |x| without a copy of x."""
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    largest = max(-low.item(), high.item())
    if not math.isfinite(largest):
        raise ValueError(f"{name} must be finite, got NaN or infinite entries; remove or replace them first")
    return largest


def _bound(name: str, bound: float | Tensor, q: Tensor) -> Tensor:
    if not isinstance(bound, Tensor):
        return q.new_full((1, 1), bound)
    _check_like(name, bound, q)
    shape = (1,) * (2 - bound.dim()) + tuple(bound.shape)
    if len(shape) > 2 or shape[0] not in (1, len(q)) or shape[1] not in (1, q.shape[1]):
        raise ValueError(f"{name} must be a number or broadcast to q, {tuple(q.shape)}, got {tuple(bound.shape)}")
    return bound.reshape(shape)


def _check_like(name: str, x: Tensor, q: Tensor) -> None:
    if x.dtype != q.dtype or x.device != q.device:
        raise ValueError(
            f"{name} must have the dtype and device of q, {q.dtype} on {q.device}, got {x.dtype} on {x.device}; "
            f"use {name}.to(q)"
        )


def _check_problem(h: Tensor, q: Tensor, z0: Tensor | None) -> None:
    if q.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"q must be float32 or float64, got {q.dtype}; use q.float() or q.double()")
    if q.dim() != 2 or h.shape != (q.shape[1], q.shape[1]) or q.shape[1] == 0:
        raise ValueError(f"h must be (p, p) and q (n, p) with p >= 1, got h {tuple(h.shape)} and q {tuple(q.shape)}")
    if z0 is not None and z0.shape != q.shape:
        raise ValueError(f"z0 must have the shape of q, {tuple(q.shape)}, got {tuple(z0.shape)}")
    for name, x in (("h", h), ("z0", z0)):
        if x is not None:
            _check_like(name, x, q)
            _largest(name, x)
    gap = (h - h.T).abs().max().item()
    if gap > 1000 * torch.finfo(h.dtype).eps * _largest("h", h):
        raise ValueError(
            f"h must be symmetric, got entries that differ from their mirror by {gap:.3g}; use (h + h.T) / 2"
        )


def _check_options(tol: float, max_iter: int, block_rows: int | None) -> None:
    check_number("tol", tol, infinite=True)
    check_count("max_iter", max_iter)
    check_count("block_rows", 1 if block_rows is None else block_rows, least=1)
