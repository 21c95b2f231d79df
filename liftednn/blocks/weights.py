"""The W-step (sec. 6.1): min over (w, b) of  lam mean D(unfold(x) w' + b, z) + pi(w), each layer on its own.

All methods but plain ridge work in centred coordinates, (w, c) with c = b + w mean_x: the Hessian bound is then
block diagonal in w and c.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.blocks.constrained import Quadratic, majorised
from liftednn.moments import Moments
from liftednn.network import Layer
from liftednn.solvers import Factor, nnls, prox_gradient, ridge, select, splitting
from liftednn.solvers.bounds import Bounds

__all__ = ["Centred", "Design", "WeightProblem", "WeightStep", "update_weights"]


@dataclass
class Design:
    """The rows (n, p) of one regression, and their sample weights.

    The Gram matrix and its factors are computed at most once: reuse the object while the rows stay the same.

    noise   covariance (p, p) of independent noise on the rows: the Gram matrix becomes gram + noise
    """

    rows: Tensor
    bias: bool = True
    sample_weight: Tensor | None = None
    noise: Tensor | None = None
    _factors: dict[tuple[float, float], Factor] = field(default_factory=dict, repr=False)

    @property
    def width(self) -> int:
        """The number of inputs p."""
        return self.rows.shape[1]

    @property
    def total(self) -> float:
        """The number of rows, or the sum of their weights."""
        return float(reduce.count(self.rows, self.sample_weight))

    def forward(self, weights: Affine) -> Tensor:
        """rows w' + b, (n, q)."""
        return torch.addmm(weights.b, self.rows, weights.w.T)

    def product(self, r: Tensor, scale: float = 1.0) -> Tensor:
        """scale r' rows, (q, p), for r (n, q)."""
        return reduce.product(r, self.rows, scale)

    @cached_property
    def _centred(self) -> Moments:
        return Moments.of(self.rows, self.rows[:, :0], self.sample_weight)

    @cached_property
    def inputs(self) -> Moments:
        """The moments of the rows without targets, about 0 where there is no intercept."""
        return self._noisy(self._centred if self.bias else self._centred.about_zero())

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, clamped at 0, and eigenvectors of the Gram matrix."""
        values, vectors = torch.linalg.eigh(self.inputs.gram)
        return values.clamp(min=0), vectors

    def _noisy(self, moments: Moments) -> Moments:
        return moments if self.noise is None else replace(moments, xx=moments.xx + moments.weight * self.noise)

    def noisy(self, noise: Tensor) -> Design:
        """The same rows with this noise; the moments of the rows are reused."""
        self._centred  # noqa: B018, computed once for both
        other = copy.copy(self)
        other.noise, other._factors = noise, {}
        for name in ("inputs", "spectrum", "largest"):
            other.__dict__.pop(name, None)
        return other

    def moments(self, z: Tensor) -> Moments:
        """The moments of the rows with targets z (n, q)."""
        both = self._retargeted(z)
        return self._noisy(both if self.bias else both.about_zero())

    def _retargeted(self, z: Tensor) -> Moments:
        return self._centred.retarget(self.rows, z, self.sample_weight)

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue of the Gram matrix."""
        return float(torch.linalg.eigvalsh(self.inputs.gram)[-1])

    def factor(self, lam: float, rho: float) -> Factor:
        if (lam, rho) not in self._factors:
            self._factors[lam, rho] = Factor.of(self.inputs.gram, lam, rho, self.inputs.eps)
        return self._factors[lam, rho]


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
    gradient = lam * (w @ moments.gram - moments.cross.T) + rho * w
    return w, moments.bias(w), _relative(gradient, lam * moments.cross), 1


def _nnls(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    moments, weight, box = design.moments(z), layer.lam * layer.divergence.curvature, layer.penalty.box()
    h, q = weight * (moments.gram + moments.gram.T) / 2, weight * moments.cross.T
    h.diagonal().add_(box.weight)
    bounds = Bounds.of(_wide(box.lower, h), _wide(box.upper, h), q)
    # Rounding may make the Gram matrix slightly indefinite.
    lifted = h + len(h) * moments.eps * h.diagonal().max() * torch.eye(len(h)).to(h)
    found = nnls(lifted, q, current.w.double(), tol, max_iter * 10, lower=bounds.lower, upper=bounds.upper)
    w = _as_returned(found.z, current)
    return w, moments.bias(w), _relative(bounds.residual(w, w @ h - q), q), found.n_iter


def _majorised(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = Centred(layer, design, z)
    curvature, rho = layer.lam * layer.divergence.curvature, layer.penalty.ridge or 0.0
    inverse = design.factor(curvature / 2, rho).inverse().to(current.w.dtype) / 2

    def precondition(gradient: list[Tensor]) -> list[Tensor]:
        return [gradient[0] @ inverse, gradient[1] / curvature]

    result = prox_gradient(problem, problem.centre(current), precondition, tol, max_iter, problem.scale())
    return *problem.uncentre(result.x), result.kkt, result.n_iter


def _prox_gradient(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    if layer.divergence.quadratic:
        moments = design.moments(z)
        model = _quadratic(layer, design, moments.cross)
        found = prox_gradient(model, [current.w.double()], 1 / model.lipschitz, tol, max_iter * 10, model.scale)
        w = _as_returned(found.x[0], current)
        return w, moments.bias(w), model.step(w)[1], found.n_iter
    problem = Centred(layer, design, z)
    step = 1 / (layer.lam * layer.divergence.curvature * max(design.largest, 1.0))
    result = prox_gradient(problem, problem.centre(current), step, tol, max_iter * 10, problem.scale())
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
    x, kkt, n_iter = majorised(problem, start, block, problem.scale(), tol, max_iter)
    return *problem.uncentre(x), kkt, n_iter


def _quadratic(layer: Layer, design: Design, cross: Tensor) -> Quadratic:
    weight = layer.lam * layer.divergence.curvature / 2
    return Quadratic(design.inputs.gram, cross, weight, layer.penalty, design.largest, design.factor)


def _splitting(layer: Layer, design: Design, z: Tensor, current: Affine, tol: float, max_iter: int) -> Outcome:
    problem = _Copied(Centred(layer, design, z))
    start = torch.cat([part.view(len(current.b), -1) for part in problem.data.centre(current)], 1)
    result = splitting(problem, start, layer.lam, tol, max_iter * 50, problem.data.scale())
    return *problem.data.uncentre([result.x[:, :-1], result.x[:, -1]]), result.kkt, result.n_iter


_SOLVERS = {
    "ridge": _ridge,
    "nnls": _nnls,
    "majorised": _majorised,
    "prox_gradient": _prox_gradient,
    "splitting": _splitting,
    "projected": _projected,
}


class Centred:
    """The block as a `Composite` in (w, c): one scalar value, from the data."""

    def __init__(self, layer: Layer, design: Design, z: Tensor) -> None:
        self.layer, self.design, self.bias, self.z = layer, design, design.bias, z
        self.mean, self.gram = design.inputs.mean_x.to(z.dtype), design.inputs.gram
        self.row_weights, self.total = design.sample_weight, design.total
        # A squared norm is part of the smooth term, so that a preconditioner can include it.
        self.ridge = layer.penalty.ridge if layer.divergence.curvature < torch.inf else None
        self.noise = None if design.noise is None else layer.lam * layer.divergence.curvature * design.noise.to(z.dtype)

    def centre(self, weights: Affine) -> list[Tensor]:
        return [weights.w, weights.b + weights.w @ self.mean]

    def uncentre(self, x: list[Tensor]) -> tuple[Tensor, Tensor]:
        w, c = x
        return w, c - w @ self.mean

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        w, b = self.uncentre(x)
        return [self.design.forward(Affine(w, b))]

    def value(self, x: list[Tensor], ax: list[Tensor]) -> Tensor:
        mean = reduce.mean(self.layer.divergence.value(ax[0], self.z), self.row_weights)
        noise = 0.0 if self.noise is None else ((x[0] @ self.noise) * x[0]).sum(dtype=torch.float64) / 2
        return self.layer.lam * mean + noise + self.layer.penalty.value(x[0])

    def gradient(self, x: list[Tensor], ax: list[Tensor]) -> list[Tensor]:
        w, c = self.adjoint(self.layer.divergence.grad(ax[0], self.z), self.layer.lam)
        w = w if self.noise is None else w + x[0] @ self.noise
        return [w + 2 * self.ridge * x[0] if self.ridge else w, c]

    def scale(self) -> float:
        """max |gradient at 0|; A 0 = 0, so that no product is needed."""
        zero = self.z.new_zeros(len(self.z), self.layer.operator.weight_shape[-2])
        at_zero = self.adjoint(self.layer.divergence.grad(zero, self.z), self.layer.lam)
        return reduce.largest(*at_zero) or 1.0

    def adjoint(self, r: Tensor, weight: float = 1.0) -> list[Tensor]:
        """The adjoint of (w, c) -> u in the weighted mean over rows, times `weight`."""
        r, scale = r if self.row_weights is None else r * self.row_weights.to(r)[:, None], weight / self.total
        c = (reduce.total(r) * scale).to(r)
        w = torch.addr(self.design.product(r, scale), c, self.mean, alpha=-1)
        return [w, c if self.bias else torch.zeros_like(c)]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        return x if self.ridge is not None else [self.layer.penalty.prox(x[0], step), x[1]]


class _Copied:
    """The block as a `Separable` in the matrix [w c]."""

    def __init__(self, data: Centred) -> None:
        self.data = data
        self.factor = Factor.of(data.gram, 1.0, 1.0, 0.0)

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
        return torch.cat([self.data.layer.penalty.prox(x[:, :-1], step), x[:, -1:]], 1)

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


def _relative(residual: Tensor, scale: Tensor) -> float:
    return float(residual.abs().max() / scale.abs().max().clamp(min=torch.finfo(scale.dtype).tiny))


def _wide(bound: Tensor | float, like: Tensor) -> Tensor | float:
    return bound.to(like) if isinstance(bound, Tensor) else bound
