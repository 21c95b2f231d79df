"""Pure mathematics on tensors: no state, no knowledge of networks. Everything works row by row or entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.base import Box

__all__ = [
    "barrier",
    "box_barrier",
    "box_prox",
    "clip",
    "conjugate_softplus",
    "entropy_prox",
    "log_omega",
    "log_partition",
    "root",
    "simplex_projection",
    "soft_threshold",
    "softmax",
]


def soft_threshold(v: Tensor, threshold: Tensor | float) -> Tensor:
    """prox of threshold |.|_1: shrink each entry towards 0."""
    return (
        v - v.clamp(-threshold, threshold) if isinstance(threshold, float) else v.sign() * (v.abs() - threshold).relu()
    )


def box_prox(box: Box, v: Tensor, step: float | Tensor) -> Tensor:
    """argmin_z 1/2 weight z^2 - pull z + |z - v|^2 / (2 step) on the box."""
    pulled = v + step * box.pull if isinstance(step, Tensor) else torch.add(v, box.pull, alpha=step)
    return clip(pulled.div_(1 + step * box.weight), box.lower, box.upper)


def clip(z: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    """Clamp with bounds that may each be a number or a tensor."""
    if not isinstance(lower, Tensor) and not isinstance(upper, Tensor):
        return z.clamp(lower, upper)
    lo, hi = (torch.as_tensor(bound, dtype=z.dtype, device=z.device) for bound in (lower, upper))
    return z.clamp(lo, hi)


def barrier(violation: Tensor, scale: Tensor | float = 0.0) -> Tensor:
    """0 for each row inside a domain, +inf outside; `violation` (n, k) is how far each constraint is broken.

    Membership is judged to sqrt(eps) of 1 + |scale|, since u is a computed matrix product and carries its rounding.
    """
    allowed = torch.finfo(violation.dtype).eps ** 0.5 * (1 + torch.as_tensor(scale).abs())
    outside = (violation > allowed).any(-1)
    return torch.zeros_like(violation[..., 0]).masked_fill(outside, torch.inf)


def box_barrier(z: Tensor, lower: float, upper: float) -> Tensor:
    """`barrier` of lower <= z <= upper, in two reductions."""
    slack = torch.finfo(z.dtype).eps ** 0.5
    outside = torch.zeros_like(z[..., 0], dtype=torch.bool)
    if lower > -torch.inf:
        outside = outside | (z.amin(-1) < lower - slack)
    if upper < torch.inf:
        outside = outside | (z.amax(-1) > upper + slack)
    return torch.zeros_like(z[..., 0]).masked_fill(outside, torch.inf)


def softmax(u: Tensor) -> Tensor:
    """softmax of each row; on a CPU in elementary steps, since rows of a few classes are too short for the library's kernel there."""
    if u.device.type != "cpu":
        return torch.softmax(u, -1)
    e = (u - u.amax(-1, keepdim=True)).exp_()
    return e.div_(e.sum(-1, keepdim=True))


def log_partition(u: Tensor) -> Tensor:
    """log sum exp of each row."""
    top = u.amax(-1, keepdim=True)
    return (u - top).exp_().sum(-1).log_() + top[..., 0]


def simplex_projection(v: Tensor) -> Tensor:
    """Euclidean projection of each row on {z >= 0, sum z = 1}, by sorting."""
    v = v - v.amax(-1, keepdim=True)  # the projection does not feel a common shift, its rounding does
    ordered = v.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    count = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    support = (ordered * count > excess).sum(-1, keepdim=True).clamp(min=1)
    threshold = excess.gather(-1, support - 1) / support
    return (v - threshold).clamp(min=0)


def root(fn: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, max_iter: int = 120) -> Tensor:
    """The root of a monotone fn in each entry of [lower, upper], to the last bits of the dtype.

    Bisection, with the inverse quadratic step wherever Chandrupatla's criterion (1997) says that it is safe: never slower than
    bisection by more than a factor, and about ten evaluations on smooth functions.
    """
    eps, tiny = torch.finfo(lower.dtype).eps, torch.finfo(lower.dtype).tiny
    x1, x2, f1, f2 = _bracket(lower, upper, fn(lower), fn(upper))
    t = torch.full_like(x1, 0.5)
    for _ in range(max_iter):
        x = x1 + t * (x2 - x1)
        f = fn(x)
        same = f.sign() == f1.sign()
        x3, f3 = torch.where(same, x1, x2), torch.where(same, f1, f2)
        x2, f2 = torch.where(same, x2, x1), torch.where(same, f2, f1)
        x1, f1 = x, f
        best = torch.where(f2.abs() < f1.abs(), x2, x1)
        margin = (2 * eps * best.abs() + tiny) / (x2 - x1).abs().clamp(min=tiny)
        if bool(((margin > 0.5) | (f1 == 0) | (f2 == 0)).all()):
            break
        t = _inverse_quadratic(x1, x2, x3, f1, f2, f3).clamp(min=0).maximum(margin).minimum(1 - margin).clamp(0, 1)
    return torch.where(f2.abs() < f1.abs(), x2, x1)


def _bracket(x1: Tensor, x2: Tensor, f1: Tensor, f2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where rounding has lost the change of sign, the root is the better end: both ends become it."""
    lost = f1.sign() * f2.sign() > 0
    first = f1.abs() <= f2.abs()
    x, f = torch.where(first, x1, x2), torch.where(first, f1, f2)
    return torch.where(lost, x, x1), torch.where(lost, x, x2), torch.where(lost, f, f1), torch.where(lost, f, f2)


def _inverse_quadratic(x1: Tensor, x2: Tensor, x3: Tensor, f1: Tensor, f2: Tensor, f3: Tensor) -> Tensor:
    """Where to look next between x1 and x2, as a share; one half where inverse interpolation is not to be trusted."""
    xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
    safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
    t = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    return torch.where(safe & t.isfinite(), t, torch.full_like(t, 0.5))


def log_omega(x: Tensor) -> Tensor:
    """y with y + e^y = x, the logarithm of Wright's omega function.

    Newton from the right of a convex increasing function: monotone, and the start is close enough for eight steps.
    """
    y = torch.where(x > 1, x.clamp(min=1).log(), x)
    for _ in range(8):
        e = y.exp()
        y = y - (y + e - x) / (1 + e)
    return y


def entropy_prox(y: Tensor, step: float) -> Tensor:
    """argmin_z sum z log z + |z - y|^2 / (2 step) over the simplex, row by row.

    z_i / step + log z_i = y_i / step - nu, hence z = step omega(y / step - log step - nu), with nu from 1'z = 1.

    The largest entry lies between 1/p and 1, which brackets nu.
    """
    shifted = (y - y.amax(-1, keepdim=True)) / step - math.log(step)
    lower, p = torch.full_like(y[..., :1], -1 / step), y.shape[-1]
    upper = torch.full_like(lower, math.log(p) - 1 / (p * step))
    nu = root(lambda nu: step * log_omega(shifted - nu).exp().sum(-1, keepdim=True) - 1, lower, upper)
    return step * log_omega(shifted - nu).exp()


# B_2k / (2k + 1)!, the coefficients of Li_2(1 - e^-y) = y - y^2/4 + sum_k B_2k y^(2k+1) / (2k+1)!
_DILOGARITHM = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -691 / 16999766784000,
    1 / 1120863744000,
)


def conjugate_softplus(u: Tensor) -> Tensor:
    """The integral of softplus from -inf to u, which is -Li_2(-e^u), the dilogarithm.

    With x = e^-|u| in (0, 1] and y = log(1 + x) <= log 2, the Bernoulli series converges like (y / 2 pi)^2k; positive u follow
    from the inversion formula -Li_2(-e^u) = pi^2/6 + u^2/2 + Li_2(-e^-u).
    """
    y = torch.log1p((-u.abs()).exp())
    square, series = y * y, torch.zeros_like(y)
    for coefficient in reversed(_DILOGARITHM):
        series = (series + coefficient) * square
    small = y * (1 + y / 4 + series)  # -Li_2(-x)
    return torch.where(u > 0, torch.pi**2 / 6 + u * u / 2 - small, small)
