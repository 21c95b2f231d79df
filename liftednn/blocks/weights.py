"""The W-step (sec. 6.1): min over (w, b) of  lam mean D(unfold(x) w' + b, z) + pi(w), each layer on its own.

All methods but plain ridge work in centred coordinates, (w, c) with c = b + w mean_x: the intercept then does not interact with w,
and the curvature bound is block diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.moments import Moments
from liftednn.network import Layer
from liftednn.solvers import Factor, nnls, prox_gradient, ridge, select, splitting

__all__ = ["Design", "WeightStep", "update_weights"]


@dataclass
class Design:
    """The rows of one regression. Its Gram matrix and factors are formed at most once: keep it while the rows stay the same."""

    rows: Tensor
    bias: bool = True
    _moments: Moments | None = field(default=None, repr=False)
    _factors: dict[tuple[float, float], Factor] = field(default_factory=dict, repr=False)

    def moments(self, z: Tensor) -> Moments:
        if self._moments is None:
            self._moments = Moments.of(self.rows, z)
        else:
            self._moments = self._moments.retarget(self.rows, z)
        return self._moments if self.bias else self._moments.about_zero()

    def factor(self, moments: Moments, lam: float, rho: float) -> Factor:
        if (lam, rho) not in self._factors:
            self._factors[lam, rho] = Factor.of(moments.gram, lam, rho, moments.eps)
        return self._factors[lam, rho]


@dataclass(frozen=True)
class WeightStep:
    weights: Affine
    kkt: float
    n_iter: int
    method: str


def update_weights(
    layer: Layer, design: Design, z: Tensor, current: Affine, tol: float = 1e-3, max_iter: int = 200
) -> WeightStep:
    """The minimising weights, from the present ones; `tol` bounds the block's relative KKT residual."""
    method = select(layer.divergence, layer.penalty)
    solve = {
        "ridge": _ridge,
        "nnls": _nnls,
        "majorised": _majorised,
        "prox_gradient": _prox_gradient,
        "splitting": _splitting,
    }
    w, b, kkt, n_iter = solve[method](layer, design, z, current, tol, max_iter)
    return WeightStep(Affine(w.to(current.w), b.to(current.b)), kkt, n_iter, method)


Outcome = tuple[Tensor, Tensor, float, int]


def _ridge(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    moments, lam, rho = design.moments(z), layer.lam * layer.divergence.curvature / 2, layer.penalty.ridge or 0.0
    w, b = ridge(moments, lam, rho, factor=design.factor(moments, lam, rho))
    gradient = lam * (w @ moments.gram - moments.cross.T) + rho * w
    return w, b, _share(gradient, lam * moments.cross), 1


def _nnls(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    moments, weight, box = design.moments(z), layer.lam * layer.divergence.curvature, layer.penalty.box()
    h = weight * moments.gram
    h.diagonal().add_(box.weight)
    result = nnls(
        h,
        weight * moments.cross.T,
        current.w.double(),
        tol,
        max_iter * 10,
        lower=_wide(box.lower, h),
        upper=_wide(box.upper, h),
    )
    return result.z, moments.bias(result.z), result.kkt, result.n_iter


def _majorised(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = _Centred(layer, design.rows, z, design.moments(z), design.bias)
    curvature, rho = layer.lam * layer.divergence.curvature, layer.penalty.ridge or 0.0
    inverse = design.factor(problem.moments, curvature / 2, rho).inverse().to(current.w.dtype) / 2

    def metric(gradient: list[Tensor]) -> list[Tensor]:
        return [gradient[0] @ inverse, gradient[1] / curvature]

    result = prox_gradient(problem, problem.centre(current), metric, tol, max_iter)
    return *problem.uncentre(result.x), result.kkt, result.n_iter


def _prox_gradient(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = _Centred(layer, design.rows, z, design.moments(z), design.bias)
    largest = float(torch.linalg.eigvalsh(problem.moments.gram)[-1])
    step = 1 / (layer.lam * layer.divergence.curvature * max(largest, 1.0))
    result = prox_gradient(problem, problem.centre(current), step, tol, max_iter * 10)
    return *problem.uncentre(result.x), result.kkt, result.n_iter


def _splitting(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = _Copied(_Centred(layer, design.rows, z, design.moments(z), design.bias))
    start = torch.cat([part.view(len(current.b), -1) for part in problem.data.centre(current)], 1)
    scale = float(problem.adjoint(layer.lam * layer.divergence.grad(problem.image(0 * start), z)).abs().max()) or 1.0
    result = splitting(problem, start, layer.lam, tol, max_iter * 50, scale)
    return *problem.data.uncentre([result.x[:, :-1], result.x[:, -1]]), result.kkt, result.n_iter


class _Centred:
    """The block as a `Composite` in (w, c): one scalar value, from the data."""

    def __init__(self, layer: Layer, rows: Tensor, z: Tensor, moments: Moments, bias: bool) -> None:
        self.layer, self.rows, self.z, self.moments, self.bias = layer, rows, z, moments, bias
        self.mean = moments.mean_x.to(rows.dtype)
        # With a squared norm the penalty joins the smooth part, so that a metric can carry it.
        self.ridge = layer.penalty.ridge if layer.divergence.curvature < torch.inf else None

    def centre(self, weights: Affine) -> list[Tensor]:
        return [weights.w, weights.b + weights.w @ self.mean]

    def uncentre(self, x: list[Tensor]) -> tuple[Tensor, Tensor]:
        w, c = x
        return w, c - w @ self.mean

    def image(self, x: list[Tensor]) -> list[Tensor]:
        w, b = self.uncentre(x)
        return [torch.addmm(b, self.rows, w.T)]

    def value(self, x: list[Tensor], image: list[Tensor]) -> Tensor:
        rows = self.layer.divergence.value(image[0], self.z)
        return self.layer.lam * rows.mean(dtype=torch.float64) + self.layer.penalty.value(x[0])

    def gradient(self, x: list[Tensor], image: list[Tensor]) -> list[Tensor]:
        w, c = self.pull(self.layer.lam * self.layer.divergence.grad(image[0], self.z))
        return [w + 2 * self.ridge * x[0] if self.ridge else w, c]

    def pull(self, r: Tensor) -> list[Tensor]:
        """The adjoint of (w, c) -> u in the mean over rows."""
        c = r.mean(0)
        return [r.T @ self.rows / len(r) - torch.outer(c, self.mean), c if self.bias else torch.zeros_like(c)]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return x if self.ridge is not None else [self.layer.penalty.prox(x[0], step), x[1]]


class _Copied:
    """The block as a `Separable` in the matrix [w c]."""

    def __init__(self, data: _Centred) -> None:
        self.data = data
        self.factor = Factor.of(data.moments.gram, 1.0, 1.0, 0.0)

    def image(self, x: Tensor) -> Tensor:
        return self.data.image([x[:, :-1], x[:, -1]])[0]

    def adjoint(self, u: Tensor) -> Tensor:
        w, c = self.data.pull(u)
        return torch.cat([w, c[:, None]], 1)

    def solve(self, x: Tensor) -> Tensor:
        w = self.factor.solve(x[:, :-1].double().T).T.to(x.dtype)
        return torch.cat([w, x[:, -1:] / 2], 1)

    def prox_image(self, u: Tensor, step: float) -> Tensor:
        return self.data.layer.divergence.prox_u(u, self.data.z, self.data.layer.lam * step)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return torch.cat([self.data.layer.penalty.prox(x[:, :-1], step), x[:, -1:]], 1)

    def value(self, x: Tensor) -> Tensor:
        parts = [x[:, :-1], x[:, -1]]
        return self.data.value(parts, self.data.image(parts))

    def retract(self, x: Tensor) -> Tensor:
        """Where z caps u, lower each unit's intercept until all its rows obey."""
        divergence = self.data.layer.divergence
        if not (divergence.capped and self.data.bias):
            return x
        excess = (self.image(x) - divergence.cap(self.data.z)).amax(0).clamp(min=0)
        return torch.cat([x[:, :-1], x[:, -1:] - excess[:, None]], 1)


def _share(residual: Tensor, scale: Tensor) -> float:
    return float(residual.abs().max() / scale.abs().max().clamp(min=torch.finfo(scale.dtype).tiny))


def _wide(bound: Tensor | float, like: Tensor) -> Tensor | float:
    return bound.to(like) if isinstance(bound, Tensor) else bound
