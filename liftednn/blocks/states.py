"""The X-step (sec. 6.2): min over the states with the weights fixed, parallel over samples.

One layer (eq. 13):   min_z  lam_next D_next(A z, x_next) + lam D(u, z),   u the pre-activation that feeds the layer
All layers at once: blocks/joint.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from liftednn.base import Activation, Affine, Box
from liftednn.functional import box_prox, clip, row_mean
from liftednn.network import Layer
from liftednn.solvers import Factor, nnls, prox_gradient, select, splitting

__all__ = ["Link", "StateStep", "chunks", "gather", "plain_layer", "update_state"]

# Samples that an iterative method solves together: what stays in cache on a CPU, as many as fit easily on a GPU.
_CPU_ROWS, _GPU_ROWS = 2048, 1 << 17
_PROXIMAL = 1e-3


@dataclass(frozen=True)
class StateStep:
    """New states, the largest relative KKT residual over samples, and the most iterations any of them took."""

    states: list[Tensor]
    kkt: float
    n_iter: int
    method: str


@dataclass(frozen=True)
class Link:
    """Two neighbouring layers and the weights between them: all of a state's surroundings that samples share."""

    layer: Layer
    following: Layer
    weights: Affine

    @property
    def activation(self) -> Activation:
        assert isinstance(self.layer.divergence, Activation)
        return self.layer.divergence

    @cached_property
    def lipschitz(self) -> float:
        """Of the gradient of the next layer's term in z."""
        curvature = self.following.lam * self.following.divergence.curvature
        return curvature * self.following.operator.norm(self.weights) ** 2

    @cached_property
    def copies(self) -> Factor:
        """(A'A + I)^-1, for splitting."""
        return Factor.of(self.following.operator.gram(self.weights).double(), 1.0, 1.0, 0.0)


def plain_layer(layer: Layer, weights: Affine, rows: Tensor, z: Tensor, counts: Tensor | None = None) -> Layer:
    """The layer without uncertainty that an X-step may take in its place: equal to its term at these rows and z, up to a constant, and
    never below it."""
    kind = layer.uncertainty
    if kind is None:
        return layer
    seen = layer.seen(weights.w)

    def mean() -> float:
        energy = seen.value(layer.operator.forward(rows, weights), z).double()
        return float(row_mean(energy, counts))

    slope = kind.slope(mean, layer.divergence.curvature, weights.w)
    return replace(layer, divergence=seen, lam=layer.lam * slope, uncertainty=None)


def update_state(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float = 1e-3, max_iter: int = 200) -> StateStep:
    """The minimising state of one layer, from the present z; u is its pre-activation, x_next the state after it."""
    method = select(link.following.divergence, link.activation)
    solve = {"nnls": _bounded, "dual": _capped, "prox_gradient": _descend, "splitting": _split}[method]
    whole = method == "nnls"  # it cuts the rows into blocks itself
    parts = [[u, z, x_next]] if whole else chunks(u, z, x_next)
    return gather(solve(link, u, z, x_next, tol, max_iter) for u, z, x_next in parts)


def _quadratic(link: Link, u: Tensor, z: Tensor, x_next: Tensor, curvature: float) -> tuple[Tensor, Tensor, Box]:
    """h, q and the box of  1/2 z h z' - q z',  its matrix h shared by all samples."""
    box, lam, following = link.activation.box(u), link.layer.lam, link.following
    h = following.lam * curvature * following.operator.gram(link.weights)
    h.diagonal().add_(lam * torch.as_tensor(box.weight, dtype=h.dtype, device=h.device).squeeze(0))
    offset = following.operator.forward(torch.zeros_like(z), link.weights)
    q = lam * box.pull - following.operator.adjoint(
        following.lam * following.divergence.grad(offset, x_next), link.weights
    )
    # A bound that depends on u carries the rounding of a product: the present state counts as inside.
    lower = torch.minimum(box.lower, z) if isinstance(box.lower, Tensor) else box.lower
    return h, q, box._replace(lower=lower)


def _bounded(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float, max_iter: int) -> StateStep:
    h, q, box = _quadratic(link, u, z, x_next, link.following.divergence.curvature)
    result = nnls(h, q, z, tol, max_iter, lower=box.lower, upper=box.upper)
    return StateStep([result.z], result.kkt, result.n_iter, "nnls")


def _capped(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float, max_iter: int) -> StateStep:
    """Quadratic under linear constraints z g' <= c, g shared: its dual, min over m >= 0, is non-negative least squares again.

    In float64 and to a small residual, since what the dual leaves open is a violation of the constraints. Samples whose energy would
    not fall keep their state, and the residual then says how far that is from the dual's.
    """
    precise = replace(link, weights=Affine(link.weights.w.double(), link.weights.b.double()))
    h, q, box = _quadratic(precise, u.double(), z.double(), x_next.double(), 2.0)
    g, c = _constraints(precise, box, x_next.double(), q)
    factor = Factor.of(h, 1.0, 0.0, 0.0)
    gh = factor.solve(g.T).T
    multipliers, kkt, n_iter = _dual(gh @ g.T, q @ gh.T - c)
    exact = clip(factor.solve((q - multipliers @ g).T).T, box.lower, box.upper)
    problem, found = _Smooth(link, u, x_next), exact.to(z.dtype)
    before, after = (problem.value([point], problem.image([point])) for point in (z, found))
    kept = torch.where((after <= before)[:, None], found, z)
    distance = float((kept - exact).abs().max()) / (float(exact.abs().max()) or 1.0)
    return StateStep([kept], max(kkt, distance), n_iter, "dual")


def _constraints(link: Link, box: Box, x_next: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """g (k, p) and c (n, k) of  z g' <= c: the caps of the next layer, and the sides of the box that are finite."""
    operator = link.following.operator
    offset = operator.forward(torch.zeros_like(q), link.weights)
    outputs, eye = (torch.eye(p, dtype=q.dtype, device=q.device) for p in (operator.out_width, q.shape[1]))
    g, c = [operator.adjoint(outputs, link.weights)], [link.following.divergence.cap(x_next) - offset]
    for sign, bound in ((-1, box.lower), (1, box.upper)):
        limit = torch.as_tensor(bound, dtype=q.dtype, device=q.device)
        if bool(limit.isfinite().all()):
            g, c = [*g, sign * eye], [*c, sign * limit.expand_as(q)]
    return torch.cat(g), torch.cat(c, 1)


def _dual(m: Tensor, q: Tensor, tol: float = 1e-12, passes: int = 50) -> tuple[Tensor, float, int]:
    """Non-negative least squares with a matrix of more rows than rank: equilibrated, and by proximal points, each well conditioned."""
    scale = torch.where(
        m.diagonal() > 0, m.diagonal(), torch.ones_like(m[0])
    ).rsqrt()  # a unit without weights constrains nothing
    m, q = scale[:, None] * m * scale, q * scale
    proximal, found, n_iter = m + _PROXIMAL * torch.eye(len(m), dtype=m.dtype, device=m.device), torch.zeros_like(q), 0
    for _ in range(passes):
        step = nnls(proximal, q + _PROXIMAL * found, found, tol)
        found, n_iter = step.z, n_iter + step.n_iter
        kkt = float(torch.minimum(found, found @ m - q).abs().max()) / (float(q.abs().max()) or 1.0)
        if kkt <= 10 * tol:
            break
    return found * scale, kkt, n_iter


def _descend(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float, max_iter: int) -> StateStep:
    problem, step = _Smooth(link, u, x_next), 1 / max(link.lipschitz, 1e-9)
    convexity = 0.0 if problem.box is None else link.layer.lam * float(torch.as_tensor(problem.box.weight).min())
    result = prox_gradient(problem, [z], step, tol, max_iter, convexity=convexity)
    return StateStep(result.x, result.kkt, result.n_iter, "prox_gradient")


def _split(link: Link, u: Tensor, z: Tensor, x_next: Tensor, tol: float, max_iter: int) -> StateStep:
    problem, following = _Copied(link, u, x_next), link.following
    pull = problem.adjoint(following.lam * following.divergence.grad(problem.image(torch.zeros_like(z)), x_next))
    result = splitting(problem, z, link.layer.lam, tol, 50 * max_iter, float(pull.abs().max()) or 1.0)
    return StateStep([result.x], result.kkt, result.n_iter, "splitting")


class _Smooth:
    """The block as a `Composite` that separates over samples: the next layer's term is the smooth part."""

    def __init__(self, link: Link, u: Tensor, x_next: Tensor) -> None:
        self.link, self.u, self.x_next = link, u, x_next
        self.box = link.activation.box(u) if link.activation.boxed else None  # once, not at every prox

    def image(self, x: list[Tensor]) -> list[Tensor]:
        return [self.link.following.operator.forward(x[0], self.link.weights)]

    def value(self, x: list[Tensor], image: list[Tensor]) -> Tensor:
        link = self.link
        after = link.following.divergence.value(image[0], self.x_next)
        return link.following.lam * after + link.layer.lam * link.activation.value(self.u, x[0])

    def gradient(self, x: list[Tensor], image: list[Tensor]) -> list[Tensor]:
        following = self.link.following
        return [
            following.operator.adjoint(
                following.lam * following.divergence.grad(image[0], self.x_next), self.link.weights
            )
        ]

    def prox(self, x: list[Tensor], step: float) -> list[Tensor]:
        step, u, activation = self.link.layer.lam * step, self.u.to(x[0].dtype), self.link.activation
        if self.box is None:
            return [activation.prox(x[0], u, step)]
        return [box_prox(self.box if u is self.u else activation.box(u), x[0], step)]


class _Copied:
    """The block as a `Separable` that separates over samples."""

    def __init__(self, link: Link, u: Tensor, x_next: Tensor) -> None:
        self.link, self.x_next, self.smooth = link, x_next, _Smooth(link, u, x_next)

    def image(self, x: Tensor) -> Tensor:
        return self.smooth.image([x])[0]

    def adjoint(self, u: Tensor) -> Tensor:
        return self.link.following.operator.adjoint(u, self.link.weights)

    def solve(self, x: Tensor) -> Tensor:
        return self.link.copies.solve(x.double().T).T.to(x.dtype)

    def prox_image(self, u: Tensor, step: float) -> Tensor:
        return self.link.following.divergence.prox_u(u, self.x_next, self.link.following.lam * step)

    def prox(self, x: Tensor, step: float) -> Tensor:
        return self.smooth.prox([x], step)[0]

    def value(self, x: Tensor) -> Tensor:
        return self.smooth.value([x], [self.image(x)])

    def retract(self, x: Tensor) -> Tensor:
        return x


def chunks(*tensors: Tensor) -> Iterator[list[Tensor]]:
    size = _CPU_ROWS if tensors[0].device.type == "cpu" else _GPU_ROWS
    for start in range(0, len(tensors[0]), size):
        yield [tensor[start : start + size] for tensor in tensors]


def gather(parts: Iterable[StateStep]) -> StateStep:
    parts = list(parts)
    states = [torch.cat(pieces) for pieces in zip(*(part.states for part in parts), strict=True)]
    return StateStep(states, max(p.kkt for p in parts), max(p.n_iter for p in parts), parts[0].method)
