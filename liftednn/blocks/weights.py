"""The W-step (sec. 6.1): min over (w, b) of  lam mean D(unfold(x) w' + b, z) + pi(w), each layer on its own.

All methods but plain ridge work in centred coordinates, (w, c) with c = b + w mean_x: the Hessian bound is then
block diagonal in w and c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.blocks.centred import Centred
from liftednn.blocks.constrained import Quadratic, majorised
from liftednn.blocks.design import Design
from liftednn.network import Layer
from liftednn.solvers import Factor, nnls, prox_gradient, ridge, select, splitting
from liftednn.solvers.bounds import Bounds

__all__ = ["WeightProblem", "WeightStep", "update_weights"]


@dataclass(frozen=True)
class WeightStep:
    weights: Affine
    kkt: float
    n_iter: int
    method: str


@dataclass(frozen=True)
class WeightProblem:
    """One W-step: a layer, its rows, the states or responses z after it, and the present weights; `tol` bounds the relative KKT residual.

    `Uncertainty.update_weights` gets it, and may call `solve`.
    """

    layer: Layer
    design: Design
    z: Tensor
    current: Affine
    tol: float = 1e-3
    max_iter: int = 200

    @property
    def width(self) -> int:
        """The number of inputs p."""
        return self.design.width

    @property
    def gram(self) -> Tensor:
        """The Gram matrix of the rows, (p, p), float64."""
        return self.design.inputs.gram

    def mean(self, weights: Affine) -> float:
        """The mean over rows of the layer's divergence."""
        u = self.design.forward(weights)
        return float(reduce.mean(self.layer.divergence.value(u, self.z).double(), self.design.sample_weight))

    def solve(self, noise: Tensor | None = None, lam: float | None = None, start: Affine | None = None) -> WeightStep:
        """The minimising weights of the layer without its uncertainty.

        noise   covariance (p, p) of independent noise on the rows
        lam     instead of the layer's
        start   instead of the present weights
        """
        layer = replace(self.layer, lam=self.layer.lam if lam is None else lam, uncertainty=None)
        design = self.design if noise is None else self.design.noisy(noise)
        start = self.current if start is None else start
        method = select(layer.divergence, layer.penalty)
        w, b, kkt, n_iter = _SOLVERS[method](layer, design, self.z, start, self.tol, self.max_iter)
        return WeightStep(Affine(w.to(start.w), b.to(start.b)), kkt, n_iter, method)


def update_weights(
    layer: Layer, design: Design, z: Tensor, current: Affine, tol: float = 1e-3, max_iter: int = 200
) -> WeightStep:
    """The minimising weights, from the present ones; `tol` bounds the block's relative KKT residual."""
    problem, kind = WeightProblem(layer, design, z, current, tol, max_iter), layer.uncertainty
    step: WeightStep = problem.solve() if kind is None else kind.update_weights(problem)
    return step


Outcome = tuple[Tensor, Tensor, float, int]


def _ridge(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    moments, lam, rho = design.moments(z), layer.lam * layer.divergence.curvature / 2, layer.penalty.ridge or 0.0
    w = _as_returned(ridge(moments, lam, rho, factor=design.factor(lam, rho)).w, current)
    gradient, unit = lam * (w @ moments.gram - moments.cross.T) + rho * w, _units(moments.gram)
    return w, moments.bias(w), _in_any_units(gradient, lam * moments.cross.T, unit), 1


def _nnls(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    moments, weight, box = design.moments(z), layer.lam * layer.divergence.curvature, layer.penalty.box()
    h, q = weight * (moments.gram + moments.gram.T) / 2, weight * moments.cross.T
    h.diagonal().add_(box.weight)
    unit = _units(h)
    bounds = Bounds.of(_wide(box.lower, h), _wide(box.upper, h), q)
    # Rounding may make it slightly indefinite.
    rounding = len(h) * moments.eps
    scaled = h / unit[:, None] / unit + torch.diag(rounding * h.diagonal() / unit**2)
    lower, upper = bounds.lower * unit, bounds.upper * unit
    # `nnls` stops by the residual in units of the columns. Where that of the weights as they are is larger, it goes on while that helps.
    w, n_iter, stricter, before = current.w.double(), 0, tol, math.inf
    while True:
        found = nnls(scaled, q / unit, w * unit, stricter, max_iter * 10, lower=lower, upper=upper)
        w, n_iter = _as_returned(found.z / unit, current), n_iter + found.n_iter
        kkt = _in_any_units(bounds.inward(w, w @ h - q), q, unit)
        if not (max(tol, rounding) < kkt < before and 0 < found.kkt <= stricter):
            return w, moments.bias(w), kkt, n_iter
        stricter, before = min(stricter, found.kkt) * tol / kkt / 2, kkt


def _majorised(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    unit = _units(design.inputs.gram)
    problem = Centred(layer, design, z, unit.to(z.dtype))
    curvature, rho = layer.lam * layer.divergence.curvature, layer.penalty.ridge or 0.0
    inverse = (unit[:, None] * design.factor(curvature / 2, rho).inverse() * unit / 2).to(current.w.dtype)

    def precondition(gradient: list[Tensor]) -> list[Tensor]:
        return [gradient[0] @ inverse, gradient[1] / curvature]

    start = problem.centre(current)
    result = prox_gradient(problem, start, precondition, tol, max_iter, problem.scale(start[1]))
    return *problem.uncentre(result.x), result.kkt, result.n_iter


def _prox_gradient(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    if layer.divergence.quadratic:
        moments = design.moments(z)
        model = _quadratic(layer, design, moments.cross)
        found = prox_gradient(model, [current.w.double()], 1 / model.lipschitz, tol, max_iter * 10, model.scale)
        w = _as_returned(found.x[0], current)
        return w, moments.bias(w), model.step(w)[1], found.n_iter
    problem = Centred(layer, design, z, design.unit)
    step, start = 1 / (layer.lam * layer.divergence.curvature), problem.centre(current)
    result = prox_gradient(problem, start, step, tol, max_iter * 10, problem.scale(start[1]))
    return *problem.uncentre(result.x), result.kkt, result.n_iter


def _projected(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    if layer.divergence.quadratic:
        moments = design.moments(z)
        model = _quadratic(layer, design, moments.cross)
        w, n_iter = model.minimise(current.w.double(), tol, max_iter)
        w = _as_returned(w, current)
        return w, moments.bias(w), model.step(w)[1], n_iter
    problem = Centred(layer, design, z)
    start, block = problem.centre(current), partial(_quadratic, layer, design)
    x, kkt, n_iter = majorised(problem, start, block, problem.scale(start[1]), tol, max_iter)
    return *problem.uncentre(x), kkt, n_iter


def _quadratic(layer: Layer, design: Design, cross: Tensor) -> Quadratic:
    weight = layer.lam * layer.divergence.curvature / 2
    return Quadratic(design.inputs.gram, cross, weight, layer.penalty, design.largest, design.factor)


def _splitting(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = _Copied(Centred(layer, design, z, design.unit))
    start = torch.cat([part.view(len(current.b), -1) for part in problem.data.centre(current)], 1)
    result = splitting(problem, start, layer.lam, tol, max_iter * 50, problem.data.scale(start[:, -1]))
    return *problem.data.uncentre([result.x[:, :-1], result.x[:, -1]]), result.kkt, result.n_iter


_SOLVERS = {
    "ridge": _ridge,
    "nnls": _nnls,
    "majorised": _majorised,
    "prox_gradient": _prox_gradient,
    "splitting": _splitting,
    "projected": _projected,
}


class _Copied:
    """The block as a `Separable` in the matrix [w c]."""

    def __init__(self, data: Centred) -> None:
        self.data = data
        assert isinstance(data.unit, float)
        self.factor = Factor.of(data.gram / data.unit**2, 1.0, 1.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.data.forward([x[:, :-1], x[:, -1]])[0]

    def adjoint(self, u: Tensor) -> Tensor:
        w, c = self.data.adjoint(u)
        return torch.cat([w, c[:, None]], 1)

    def solve(self, x: Tensor) -> Tensor:
        w = self.factor.solve(x[:, :-1].double().T).T.to(x.dtype)
        return torch.cat([w, x[:, -1:] / 2], 1)

    def prox_f(self, u: Tensor, step: float) -> Tensor:
        return self.data.layer.divergence.prox_u(u, self.data.z, self.data.layer.lam * step)

    def prox(self, x: Tensor, step: float) -> Tensor:
        w, _ = self.data.proxed([x[:, :-1], x[:, -1]], step)
        return torch.cat([w, x[:, -1:]], 1)

    def value(self, x: Tensor) -> Tensor:
        parts = [x[:, :-1], x[:, -1]]
        return self.data.value(parts, self.data.forward(parts))

    def retract(self, x: Tensor) -> Tensor:
        """Where z bounds u above, lower each unit's intercept until all its rows satisfy the bound."""
        divergence = self.data.layer.divergence
        if not (divergence.capped and self.data.bias):
            return x
        excess = reduce.ends(self.forward(x) - divergence.cap(self.data.z))[1].clamp(min=0)
        return torch.cat([x[:, :-1], x[:, -1:] - excess[:, None]], 1)


def _as_returned(w: Tensor, current: Affine) -> Tensor:
    """w rounded to the precision of the present weights, as the caller gets it: its residual must be computed from this."""
    return w.to(current.w).double()


def _units(gram: Tensor) -> Tensor:
    """The unit of each column, about its deviation, 1 where it is constant: gradients in these hardly depend on the units of the data. They
    are powers of 2, by which products are exact."""
    variance = gram.diagonal()
    return torch.where(variance > 0, variance, 1.0).log2().div(2).floor().exp2()


def _in_any_units(residual: Tensor, scale: Tensor, unit: Tensor) -> float:
    """The larger residual of the weights as they are and of those in units of the columns."""
    return max(_relative(residual, scale), _relative(residual / unit, scale / unit))


def _relative(residual: Tensor, scale: Tensor) -> float:
    return float(residual.abs().max() / scale.abs().max().clamp(min=torch.finfo(scale.dtype).tiny))


def _wide(bound: Tensor | float, like: Tensor) -> Tensor | float:
    return bound.to(like) if isinstance(bound, Tensor) else bound
