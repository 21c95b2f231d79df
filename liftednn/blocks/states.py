"""The X-step (sec. 6.2): min over the states with the weights fixed, parallel over samples.

One layer (eq. 13):   min_z  lam_next D_next(A z, x_next) + lam D(u, z),   u the pre-activation of the layer that gives z; where
several layers read the state, the sum of their terms.
All layers at once: blocks/joint.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Box, SelfAdjoint
from liftednn.blocks.readers import Reader, StateProblem, added, row_scales, spans
from liftednn.functional import box_prox, clip
from liftednn.network import Layer
from liftednn.solvers import Factor, nnls, prox_gradient, splitting
from liftednn.solvers.splitting import ROWS

__all__ = ["StateStep", "gather", "update_state"]

_PROXIMAL = 1e-3


@dataclass(frozen=True)
class StateStep:
    """New states, the largest relative KKT residual over samples, and the most iterations any of them took."""

    states: list[Tensor]
    kkt: float
    n_iter: int
    method: str


def update_state(problem: StateProblem, z: Tensor, tol: float = 1e-3, max_iter: int = 200) -> StateStep:
    """The minimising state of one layer, from the present z."""
    method = problem.method()
    if method == "nnls":  # nnls cuts the rows into blocks itself
        return _bounded(problem, z, tol, max_iter)
    if method == "dual":
        return gather(_capped(part, rows) for part, rows in problem.cut(z, ROWS))
    scales = problem.scale(z)
    if method == "splitting":
        normal, largest = _together(problem.readers), float(scales.max())  # factored once for all blocks of rows
        return gather(_split(part, rows, normal, largest, tol, max_iter) for part, rows in problem.cut(z, ROWS))
    cut = zip(problem.cut(z), spans(z), strict=True)
    return gather(_descend(part, rows, scales[span], tol, max_iter) for (part, rows), span in cut)


def _quadratic(problem: StateProblem, z: Tensor) -> tuple[Tensor, Tensor, Box]:
    """h, q and the box of  1/2 z h z' - q z',  its matrix h shared by all samples."""
    box, lam = problem.activation.box(problem.u), problem.layer.lam
    h = added(_weight(reader.layer) * reader.normal.matrix() for reader in problem.readers)
    h.diagonal().add_(lam * torch.as_tensor(box.weight, dtype=h.dtype, device=h.device).squeeze(0))
    q = lam * box.linear - problem.at_zero(z)
    # A bound that depends on u has the rounding error of a product: the present state is taken as inside.
    lower = torch.minimum(box.lower, z) if isinstance(box.lower, Tensor) else box.lower
    return h, q, box._replace(lower=lower)


def _weight(layer: Layer) -> float:
    """lam times the curvature; below its cap, a divergence has the curvature 2."""
    return layer.lam * (2.0 if layer.divergence.capped else layer.divergence.curvature)


def _bounded(problem: StateProblem, z: Tensor, tol: float, max_iter: int) -> StateStep:
    h, q, box = _quadratic(problem, z)
    scales = row_scales(q.abs().amax(1))
    result = nnls(h, q, z, tol, max_iter, lower=box.lower, upper=box.upper, scale=scales)
    return StateStep([result.z], result.kkt, result.n_iter, "nnls")


def _capped(problem: StateProblem, z: Tensor) -> StateStep:
    """Quadratic under linear constraints z g' <= c, g shared: its dual, min over m >= 0, is again non-negative least squares.

    In float64 and to a small residual, since a residual of the dual is a violation of the constraints. Samples whose energy would rise
    keep their state, and the residual then includes their distance from the dual solution.
    """
    precise = _doubled(problem)
    h, q, box = _quadratic(precise, z.double())
    g, c = _constraints(precise, box, z.double())
    factor = Factor.of(h, 1.0, 0.0, 0.0)
    gh = factor.solve(g.T).T
    m = gh @ g.T
    multipliers, kkt, n_iter = _dual((m + m.T) / 2, q @ gh.T - c)
    exact = clip(factor.solve((q - multipliers @ g).T).T, box.lower, box.upper)
    found = exact.to(z.dtype)
    before, after = (problem.energy(problem.preactivations(point), point) for point in (z, found))
    kept = torch.where((after <= before)[:, None], found, z)
    distance = reduce.largest(kept - exact) / (reduce.largest(exact) or 1.0)
    return StateStep([kept], max(kkt, distance), n_iter, "dual")


def _doubled(problem: StateProblem) -> StateProblem:
    """The problem in float64."""
    readers = (replace(r, weights=Affine(r.weights.w.double(), r.weights.b.double())) for r in problem.readers)
    xs = tuple(tuple(x.double() for x in each) for each in problem.xs)
    after = tuple(x.double() for x in problem.after)
    return StateProblem(problem.layer, problem.u.double(), tuple(readers), xs, after)


def _constraints(problem: StateProblem, box: Box, z: Tensor) -> tuple[Tensor, Tensor]:
    """g (k, p) and c (n, k) of  z g' <= c: the caps of the readers with capped divergences, and the finite sides of the box.

    Rounding may have moved the present z out of a cap: it is taken as inside, since otherwise no point might be.
    """
    offsets, eye = problem.preactivations(torch.zeros_like(z)), torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    g: list[Tensor] = []
    c: list[Tensor] = []
    for reader, offset, after in zip(problem.readers, offsets, problem.after, strict=True):
        if reader.layer.divergence.capped:
            rows = reader.adjoint(torch.eye(offset.shape[1], dtype=z.dtype, device=z.device))
            g, c = [*g, rows], [*c, torch.maximum(reader.layer.divergence.cap(after) - offset, z @ rows.T)]
    for sign, bound in ((-1, box.lower), (1, box.upper)):
        limit = torch.as_tensor(bound, dtype=z.dtype, device=z.device)
        if bool(limit.isfinite().all()):
            g, c = [*g, sign * eye], [*c, sign * limit.expand_as(z)]
    return torch.cat(g), torch.cat(c, 1)


def _dual(m: Tensor, q: Tensor, tol: float = 1e-12, passes: int = 50) -> tuple[Tensor, float, int]:
    """Non-negative least squares with a singular matrix: scaled to unit diagonal, then proximal steps, each well conditioned."""
    scale = torch.where(
        m.diagonal() > 0, m.diagonal(), torch.ones_like(m[0])
    ).rsqrt()  # a unit whose weights are 0 gives no constraint
    m, q = scale[:, None] * m * scale, q * scale
    proximal, found, n_iter = m + _PROXIMAL * torch.eye(len(m), dtype=m.dtype, device=m.device), torch.zeros_like(q), 0
    for _ in range(passes):
        step = nnls(proximal, q + _PROXIMAL * found, found, tol)
        found, n_iter = step.z, n_iter + step.n_iter
        kkt = reduce.largest(torch.minimum(found, found @ m - q)) / (reduce.largest(q) or 1.0)
        if kkt <= 10 * tol:
            break
    return found * scale, kkt, n_iter


def _descend(problem: StateProblem, z: Tensor, scale: Tensor, tol: float, max_iter: int) -> StateStep:
    smooth, step = _Smooth(problem), 1 / max(sum(reader.lipschitz for reader in problem.readers), 1e-9)
    convexity = 0.0 if smooth.box is None else problem.layer.lam * float(torch.as_tensor(smooth.box.weight).min())
    result = prox_gradient(smooth, [z], step, tol, max_iter, scale, convexity)
    return StateStep(result.x, result.kkt, result.n_iter, "prox_gradient")


def _split(problem: StateProblem, z: Tensor, normal: SelfAdjoint, scale: float, tol: float, max_iter: int) -> StateStep:
    result = splitting(_Copied(problem, normal), z, problem.layer.lam, tol, 50 * max_iter, scale)
    return StateStep([result.x], result.kkt, result.n_iter, "splitting")


class _Smooth:
    """The block as a `Composite` that separates over samples: the readers' terms are the smooth part."""

    def __init__(self, problem: StateProblem) -> None:
        self.problem, self.activation, self.u = problem, problem.activation, problem.u
        self.box = self.activation.box(self.u) if self.activation.boxed else None  # once, not at every prox

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        return self.problem.preactivations(x[0])

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        return self.problem.energy(ax, x[0])

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        return [self.problem.adjoint(self.problem.u_gradients(ax))]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        step, u = self.problem.layer.lam * step, self.u.to(x[0].dtype)
        if self.box is None:
            return [self.activation.prox(x[0], u, step)]
        return [box_prox(self.box if u is self.u else self.activation.box(u), x[0], step)]


class _Copied:
    """The block as a `Separable` that separates over samples; the pre-activations of all readers are concatenated."""

    def __init__(self, problem: StateProblem, normal: SelfAdjoint) -> None:
        self.problem, self.normal, self.smooth = problem, normal, _Smooth(problem)
        self.widths = [reader.layer.operator.out_width for reader in problem.readers]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.problem.preactivations(x), 1)

    def adjoint(self, u: Tensor) -> Tensor:
        return self.problem.adjoint([part.contiguous() for part in torch.split(u, self.widths, 1)])

    def solve(self, x: Tensor) -> Tensor:
        return self.normal.solve(1.0, x)

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        parts = zip(self.problem.readers, torch.split(u, self.widths, 1), self.problem.after, strict=True)
        return torch.cat([r.layer.divergence.prox_u(v, after, r.layer.lam * step) for r, v, after in parts], 1)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return self.smooth.prox([x], step)[0]

    def value(self, x: Tensor) -> Tensor:
        return self.problem.energy(self.problem.preactivations(x), x)

    def retract(self, x: Tensor) -> Tensor:
        return x


def _together(readers: Sequence[Reader]) -> SelfAdjoint:
    """The sum of the readers' A'A."""
    normals = [reader.normal for reader in readers]
    if len(normals) == 1:
        return normals[0]

    def apply(x: Tensor) -> Tensor:
        return added(normal.apply(x) for normal in normals)

    def form() -> Tensor:
        return added(normal.matrix() for normal in normals)

    return SelfAdjoint(normals[0].width, apply, form if all(normal.small for normal in normals) else None)


def gather(parts: Iterable[StateStep]) -> StateStep:
    parts = list(parts)
    states = [torch.cat(pieces) for pieces in zip(*(part.states for part in parts), strict=True)]
    return StateStep(states, max(p.kkt for p in parts), max(p.n_iter for p in parts), parts[0].method)
