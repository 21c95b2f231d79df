"""The check for uncertainties: the term, and that all steps are steps on that term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn.activations import Identity
from liftednn.base import Affine, Divergence, Uncertainty
from liftednn.blocks import Design, RobustTerm, update_weights
from liftednn.losses import SquaredError
from liftednn.network import Layer
from liftednn.operators import Dense
from liftednn.penalties import L2, NoPenalty
from liftednn.testing.common import SLACK, WIDTH, close, draws, rivals

__all__ = ["check_uncertainty"]

_OUTPUTS, _LAM = 3, 0.7
# Of finite differences; and the relative KKT residual of a W-step, whose square bounds how far its objective is from the least.
_STEP, _RTOL, _TOL = 1e-6, 1e-5, 1e-4


def check_uncertainty(
    kind: Uncertainty, divergence: Divergence | None = None, width: int = WIDTH, seed: int = 0
) -> None:
    """A term that is convex in the weights, above the one without uncertainty, larger where that is, the same in other coordinates.

    And on that term: `update_weights` minimises it, `slope` bounds it, and the gradients of `batch_term` are its own.

    kind         an object of your class, for rows of `width` inputs
    divergence   of the layer that it is checked in; None for SquaredError()
    seed         of the random points

    Returns None, or raises an AssertionError that says what does not hold.

    >>> lnn.testing.check_uncertainty(lnn.robust.Noise(0.3))
    """
    divergence = SquaredError() if divergence is None else divergence
    reason = kind.why_not(divergence, NoPenalty(), (_OUTPUTS, width))
    assert not reason, f"a layer refuses it: {reason}"
    x, z = draws(seed, 2, width)
    at = _Point(kind, divergence, x, divergence(z[:, :_OUTPUTS]), draws(seed + 1, 1, width)[0][:_OUTPUTS])
    _check_term(at, seed)
    _check_coordinates(at, seed)
    _check_slope(at)
    _check_weights(at, seed)
    if divergence.curvature < torch.inf:
        _check_batch_term(at, seed)
        _check_x_step(replace(at, divergence=Identity()), seed)


@dataclass(frozen=True)
class _Point:
    """A layer with an uncertainty, rows x, what comes after them, and weights w."""

    kind: Uncertainty
    divergence: Divergence
    x: Tensor
    z: Tensor
    w: Tensor

    def term(self, u: Tensor | None = None) -> float:
        """The robust energy, at the pre-activations of the rows or at u."""
        robust = self.kind.robust_divergence(self.divergence, self.w)
        mean = float(robust.value(self.x @ self.w.T if u is None else u, self.z).mean())
        return self.kind.term(mean, self.divergence.curvature, self.w)

    def batch_term(self, u: Tensor) -> RobustTerm:
        """The batch term, updated at pre-activations u."""
        found: RobustTerm = self.kind.batch_term(self.divergence, _LAM, self.w)
        found.update(self.w, u, self.z, None, None)
        return found


def _same(a: float, b: float, sentence: str, rtol: float = 1e-9) -> None:
    close(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), sentence, rtol)


def _check_term(at: _Point, seed: int) -> None:
    plain, robust = float(at.divergence.value(at.x @ at.w.T, at.z).mean()), at.term()
    assert robust > plain, f"the term is {robust:.6g}, and without uncertainty {plain:.6g}: it must be larger"
    assert replace(at, kind=at.kind.scaled(2.0)).term() > robust, "twice the uncertainty must give a larger term"
    other = draws(seed + 1, 2, at.w.shape[1])[1][:_OUTPUTS]
    middle, ends = replace(at, w=(at.w + other) / 2).term(), (robust + replace(at, w=other).term()) / 2
    assert middle <= ends + SLACK * (1 + ends), "the term is not convex in the weights"


def _check_coordinates(at: _Point, seed: int) -> None:
    kind, x, w, robust, width = at.kind, at.x, at.w, at.term(), at.w.shape[1]
    factors, basis = torch.linspace(0.5, 2, width, dtype=torch.float64), draws(seed + 2, 1, width)[0][:width]
    there = replace(at, kind=kind.columns(factors), x=x * factors, w=w / factors)
    _same(there.term(), robust, "columns(factors) must be the same in other units")
    there = replace(at, kind=kind.through(basis), x=x @ basis, w=torch.linalg.solve(basis, w.T).T)
    _same(there.term(), robust, "through(basis) must be the same in other coordinates", rtol=1e-6)
    kept = torch.arange(0, width, 2)
    some, unused = kind.restrict(kept), torch.zeros_like(w).index_copy(1, kept, w[:, kept])
    if some is not None:
        there = replace(at, kind=some, x=x[:, kept], w=w[:, kept])
        _same(there.term(), replace(at, w=unused).term(), "restrict(inputs) must be as if others had no weight")


def _check_slope(at: _Point) -> None:
    """lam slope times the mean, and a constant, touches the term at the present mean: it must not be below it at others."""
    mean = float(at.kind.robust_divergence(at.divergence, at.w).value(at.x @ at.w.T, at.z).mean())
    curvature, now = at.divergence.curvature, at.term()
    slope = at.kind.slope(lambda: mean, curvature, at.w)
    for factor in (0.1, 0.5, 0.9, 1.1, 2.0, 10.0):
        bound, there = now + slope * (factor - 1) * mean, at.kind.term(factor * mean, curvature, at.w)
        assert there <= bound + SLACK * (1 + abs(bound)), (
            f"slope {slope:.6g} gives an X-step a bound of {bound:.6g} where the term is {there:.6g}: it must not be below the term"
        )


def _check_weights(at: _Point, seed: int) -> None:
    layer = Layer(Dense(at.w.shape[1], _OUTPUTS), at.divergence, L2(0.1), _LAM, at.kind)

    def objective(wb: Tensor) -> float:
        w, b = wb[:, :-1], wb[:, -1]
        return _LAM * replace(at, w=w).term(at.x @ w.T + b) + float(layer.penalty.value(w))

    start = Affine(at.w, torch.zeros(_OUTPUTS, dtype=at.w.dtype))
    found = update_weights(layer, Design(at.x), at.z, start, _TOL, 500).weights
    assert found.w.shape == at.w.shape, (
        f"update_weights gave w of shape {tuple(found.w.shape)}: expected {tuple(at.w.shape)}"
    )
    joined = torch.cat([found.w, found.b[:, None]], 1)
    least, towards = objective(joined), torch.cat([start.w, start.b[:, None]], 1)
    others = [point for more in range(8) for point in rivals(joined, seed + more, lambda v: torch.lerp(joined, v, 0.5))]
    others += [torch.lerp(joined, point, size) for point in (towards, 0 * joined) for size in (-0.1, -0.01, 0.01, 0.1)]
    best = min(objective(rival) for rival in others)
    assert best >= least - _TOL * (1 + abs(least)) / 10, (
        f"update_weights ends at {least:.6g}, and other weights have {best:.6g}: it must minimise lam term + pi"
    )


def _check_batch_term(at: _Point, seed: int) -> None:
    (u, along), (w_along,) = (d[:, :_OUTPUTS] for d in draws(seed + 3, 2, WIDTH)), draws(seed + 4, 1, at.w.shape[1])
    w_along, term = w_along[:_OUTPUTS], at.batch_term(u)
    u_gradient, radius_gradient = term.gradients(at.w, u, at.z)
    expected = _slope_of(lambda step: _LAM * at.term(u + step * along))
    _same(
        float((u_gradient * along).sum() / len(u)),
        expected,
        "gradients[0] is not the gradient of the term in u",
        _RTOL,
    )
    expected = _slope_of(lambda step: _LAM * replace(at, w=at.w + step * w_along).term(u))
    w_gradient = term.w_gradient(at.w, radius_gradient)
    _same(
        float((w_gradient * w_along).sum()),
        expected,
        "w_gradient is not the gradient of the term in w at fixed u",
        _RTOL,
    )
    added_curvature = term.added_curvature()
    close(added_curvature, added_curvature.T, "added_curvature is not symmetric")
    assert float(torch.linalg.eigvalsh(added_curvature)[0]) >= -SLACK, "added_curvature has a negative eigenvalue"
    other: RobustTerm = at.kind.batch_term(at.divergence, _LAM, at.w)
    other.load(term.state())
    close(
        other.gradients(at.w, u, at.z)[0],
        u_gradient,
        "state and load must bring back what update wrote: other gradients",
    )
    close(
        other.added_curvature(),
        added_curvature,
        "state and load must bring back what update wrote: another added_curvature",
    )


def _check_x_step(at: _Point, seed: int) -> None:
    """For the identity, where every kind can be exact: z is the minimiser, and the gradient that of the minimum in u."""
    u, g, along = (d[:, :_OUTPUTS] for d in draws(seed + 5, 3, WIDTH))
    term, robust = at.batch_term(u), at.kind.robust_divergence(at.divergence, at.w)

    def energy(u: Tensor, z: Tensor) -> Tensor:
        return robust.value(u, z) / term.fraction + (g * z).sum(-1)

    z, u_gradient, _ = term.x_step(at.w, u, g)
    least = energy(u, z)
    for rival in rivals(z, seed, lambda v: torch.lerp(z, v, 0.5)):
        assert bool((energy(u, rival) >= least - SLACK * (1 + least.abs())).all()), (
            "x_step does not return the argmin over z"
        )

    def lowest(step: float) -> float:
        moved = u + step * along
        return _LAM * float(energy(moved, term.x_step(at.w, moved, g)[0]).sum())

    _same(
        float((u_gradient * along).sum()),
        _slope_of(lowest),
        "the gradient that x_step returns is not that of the minimum in u",
        _RTOL,
    )


def _slope_of(value: Callable[[float], float]) -> float:
    return (value(_STEP) - value(-_STEP)) / (2 * _STEP)
