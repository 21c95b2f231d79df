"""The W-step of layers that share their w (sec. 6.1):

    min over (W, b_1, ..., b_k) of  sum_i lam_i mean D_i(rows_i w_i' + b_i, z_i) + pi(W),    w_i = W, or W' where layer i has it transposed

In centred coordinates W and the intercepts have no cross terms: with a_i = lam_i curvature(D_i) the curvature in W is bounded by

    W -> W M + N W,    M = sum of a_i gram_i (+ 2 rho I) over the layers that have W,  N = the same over those that have W'

With no transposed layer this is one linear system, otherwise a Sylvester equation, solved by the spectra of M and N. Where all D are
quadratic and pi is a squared norm, one step gives the minimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Penalty
from liftednn.blocks.centred import Centred
from liftednn.blocks.design import Design
from liftednn.blocks.regressions import Regression, regressions
from liftednn.blocks.weights import WeightStep
from liftednn.network import Layer
from liftednn.penalties import NoPenalty
from liftednn.solvers import prox_gradient, splitting

__all__ = ["Sylvester", "update_shared"]


@dataclass(frozen=True)
class Sylvester:
    """The inverse of W -> W M + N W, for symmetric positive semi-definite M (p, p) and N (q, q) or None; 0 on its null space."""

    right: tuple[Tensor, Tensor]
    left: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, m: Tensor, n: Tensor | None) -> Sylvester:
        return cls(_spectrum(m), None if n is None else _spectrum(n))

    @property
    def largest(self) -> float:
        """The largest eigenvalue of the map."""
        return float(self.right[0][-1]) + (float(self.left[0][-1]) if self.left else 0.0)

    @cached_property
    def inverse(self) -> Tensor:
        """1 over the eigenvalues of the map, the sums of those of M and N, (q, p) or (1, p); 0 where they are 0 to their precision."""
        sums = self.right[0][None] if self.left is None else self.right[0][None] + self.left[0][:, None]
        enough = sums > sums.shape[1] * torch.finfo(sums.dtype).eps * sums.max()
        return torch.where(enough, 1 / torch.where(enough, sums, 1.0), 0.0)

    def solve(self, c: Tensor) -> Tensor:
        """W of  W M + N W = C, (q, p), in the precision of C."""
        inner = c.double() @ self.right[1]
        inner = (inner if self.left is None else self.left[1].T @ inner) * self.inverse
        inner = inner if self.left is None else self.left[1] @ inner
        return (inner @ self.right[1].T).to(c.dtype)


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp(min=0), vectors


def update_shared(
    layers: Sequence[Layer],
    designs: Sequence[Sequence[Design]],
    xs: Sequence[Sequence[Tensor]],
    zs: Sequence[Tensor],
    currents: Sequence[Affine],
    tol: float = 1e-3,
    max_iter: int = 200,
) -> tuple[list[Affine], WeightStep]:
    """The minimising weights of layers that share their w, the first of which is the owner; and the `WeightStep` of the owner."""
    posed = [regressions(*each, by_moments=False) for each in zip(layers, designs, xs, zs, currents, strict=True)]
    flips = [layer.transposed for layer in layers]
    steps = [_solve(list(group), flips, layers[0].penalty, tol, max_iter) for group in zip(*posed, strict=True)]
    grouped, weights = layers[0].operator.grouped, []
    for member, flip in enumerate(flips):
        ws, bs = [x[0] for x, *_ in steps], [x[1 + member] for x, *_ in steps]
        w = torch.stack(ws) if grouped else ws[0].T if flip else ws[0]
        weights.append(Affine(w.to(currents[member].w), torch.cat(bs).to(currents[member].b)))
    kkt, n_iter = max(step[1] for step in steps), max(step[2] for step in steps)
    return weights, WeightStep(weights[0], kkt, n_iter, steps[0][3])


def _solve(
    members: list[Regression], flips: Sequence[bool], penalty: Penalty, tol: float, max_iter: int
) -> tuple[list[Tensor], float, int, str]:
    """W and the intercepts, the residual, iterations and the method."""
    problem = Shared(members, flips, penalty)
    start = problem.centre([member.current for member in members])
    if problem.nonsmooth:
        copied = _Copied(problem, start)
        found = splitting(copied, copied.stack(start), 1.0, tol, 50 * max_iter, problem.scale(start))
        return problem.uncentre(copied.unstack(found.x)), found.kkt, found.n_iter, "splitting"
    bound = problem.bound()
    if penalty.ridge is not None:
        result = prox_gradient(problem, start, problem.precondition(bound), tol, max_iter, problem.scale(start))
        return problem.uncentre(result.x), result.kkt, result.n_iter, "majorised"
    step = 1 / max(bound.largest, *problem.curvatures)
    result = prox_gradient(problem, start, step, tol, 10 * max_iter, problem.scale(start))
    return problem.uncentre(result.x), result.kkt, result.n_iter, "prox_gradient"


class Shared:
    """The block as a `Composite` in (W, c_1, ..., c_k)."""

    def __init__(self, members: Sequence[Regression], flips: Sequence[bool], penalty: Penalty) -> None:
        self.flips, self.penalty = flips, penalty
        self.parts = [Centred(replace(m.layer, penalty=NoPenalty()), m.design, m.z) for m in members]
        self.curvatures = [part.layer.lam * part.layer.divergence.curvature for part in self.parts]
        self.nonsmooth = max(self.curvatures) == torch.inf

    def _own(self, x: list[Tensor], member: int) -> list[Tensor]:
        """(w, c) of one layer."""
        return [x[0].T if self.flips[member] else x[0], x[1 + member]]

    def centre(self, weights: Sequence[Affine]) -> list[Tensor]:
        return [weights[0].w, *(part.centre(pair)[1] for part, pair in zip(self.parts, weights, strict=True))]

    def uncentre(self, x: list[Tensor]) -> list[Tensor]:
        return [x[0], *(part.uncentre(self._own(x, member))[1] for member, part in enumerate(self.parts))]

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        return [part.forward(self._own(x, member))[0] for member, part in enumerate(self.parts)]

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        terms = [part.value(self._own(x, i), [ax[i]]) for i, part in enumerate(self.parts)]
        return torch.stack(terms).sum() + self.penalty.value(x[0])

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        found = self._gathered([part.gradient(self._own(x, i), [ax[i]]) for i, part in enumerate(self.parts)])
        return [found[0] + 2 * self.penalty.ridge * x[0], *found[1:]] if self.penalty.ridge else found

    def _gathered(self, pairs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Each layer's (w, c) as one (W, c_1, ..., c_k)."""
        ws = [w.T if flip else w for (w, _), flip in zip(pairs, self.flips, strict=True)]
        return [torch.stack(ws).sum(0), *(c for _, c in pairs)]

    def adjoint(self, us: Sequence[Tensor]) -> list[Tensor]:
        """The adjoint of (W, c_1, ..., c_k) -> A x."""
        return self._gathered([part.adjoint(r) for part, r in zip(self.parts, us, strict=True)])

    def scale(self, x: list[Tensor]) -> float:
        """The largest of the layers', at the intercepts of x."""
        return max(part.scale(c) for part, c in zip(self.parts, x[1:], strict=True))

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return x if self.penalty.ridge is not None and not self.nonsmooth else [self.penalty.prox(x[0], step), *x[1:]]

    def bound(self, weights: Sequence[float] | None = None, ridge: float | None = None) -> Sylvester:
        """The bound with M and N; `weights` and `ridge` replace a_i and 2 rho."""
        given = self.curvatures if weights is None else weights
        ridge = 2 * (self.penalty.ridge or 0.0) if ridge is None else ridge
        sides: list[list[Tensor]] = [[], []]
        for part, weight, flip in zip(self.parts, given, self.flips, strict=True):
            sides[flip].append(weight * part.gram)
        right = torch.stack(sides[0]).sum(0)  # the first layer is never transposed against itself
        right.diagonal().add_(ridge)
        return Sylvester.of(right, torch.stack(sides[1]).sum(0) if sides[1] else None)

    def precondition(self, bound: Sylvester) -> Callable[[list[Tensor]], list[Tensor]]:
        """The map from a gradient to the step that minimises the quadratic bound."""
        return lambda g: [bound.solve(g[0]), *(c / a for c, a in zip(g[1:], self.curvatures, strict=True))]


class _Copied:
    """The block as a `Separable` in one vector."""

    def __init__(self, shared: Shared, start: list[Tensor]) -> None:
        self.shared, self.shapes = shared, [part.shape for part in start]
        self.ax_shapes = [ax.shape for ax in shared.forward(start)]
        self.factor = shared.bound([1.0] * len(shared.parts), 1.0)

    def stack(self, x: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(-1) for part in x])

    def _split(self, x: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        pieces = torch.split(x, [shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def unstack(self, x: Tensor) -> list[Tensor]:
        return self._split(x, self.shapes)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(self.shared.forward(self.unstack(x)))

    def adjoint(self, u: Tensor) -> Tensor:
        return self.stack(self.shared.adjoint(self._split(u, self.ax_shapes)))

    def solve(self, x: Tensor) -> Tensor:
        w, *others = self.unstack(x)
        return self.stack([self.factor.solve(w), *(c / 2 for c in others)])

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        parts = zip(self.shared.parts, self._split(u, self.ax_shapes), strict=True)
        return self.stack([p.layer.divergence.prox_u(v, p.z, p.layer.lam * step) for p, v in parts])

    def prox(self, x: Tensor, step: float) -> Tensor:
        return self.stack(self.shared.prox(self.unstack(x), step))

    def value(self, x: Tensor) -> Tensor:
        point = self.unstack(x)
        return self.shared.value(point, self.shared.forward(point))

    def retract(self, x: Tensor) -> Tensor:
        """Where z bounds u above, lower each unit's intercept until all its rows satisfy the bound."""
        point = self.unstack(x)
        for member, (part, u) in enumerate(zip(self.shared.parts, self.shared.forward(point), strict=True)):
            if part.layer.divergence.capped and part.bias:
                excess = reduce.ends(u - part.layer.divergence.cap(part.z))[1].clamp(min=0)
                point[1 + member] = point[1 + member] - excess
        return self.stack(point)
