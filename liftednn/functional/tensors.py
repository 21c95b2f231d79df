"""Functions of tensors: projections, proxes, quantiles, roots and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from liftednn import reduce
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
    "median_and_spread",
    "quantile",
    "root",
    "simplex_projection",
    "soft_threshold",
    "softmax",
]

# Columns from which on torch's softmax of rows is fast on a CPU: it takes so many entries of a row at a time.
_AT_A_TIME = 16
# The interquartile range of normal data, over its standard deviation.
NORMAL_RANGE = 1.349


def soft_threshold(v: Tensor, threshold: Tensor | float) -> Tensor:
    """prox of threshold |.|_1: shrink each entry of v towards 0.

    >>> lnn.functional.soft_threshold(torch.tensor([3.0, -0.5]), 1.0).tolist()
    [2.0, 0.0]
    """
    return (
        v - v.clamp(-threshold, threshold) if isinstance(threshold, float) else v.sign() * (v.abs() - threshold).relu()
    )


def box_prox(box: Box, v: Tensor, step: Tensor | float) -> Tensor:
    """argmin_z 1/2 weight z^2 - linear z + |z - v|^2 / (2 step) on the box.

    >>> lnn.functional.box_prox(lnn.Box(0.0, 1.0, 0.0, 0.0), torch.tensor([[-2.0, 0.5]]), step=1.0).tolist()
    [[0.0, 0.5]]
    """
    shifted = v + step * box.linear if isinstance(step, Tensor) else torch.add(v, box.linear, alpha=step)
    return clip(shifted.div_(1 + step * box.weight), box.lower, box.upper)


def clip(z: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    """z clamped to [lower, upper], each a number or a tensor that broadcasts.

    >>> lnn.functional.clip(torch.tensor([-2.0, 5.0]), 0.0, torch.tensor([1.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    if not isinstance(lower, Tensor) and not isinstance(upper, Tensor):
        return z.clamp(lower, upper)
    lo, hi = (torch.as_tensor(bound, dtype=z.dtype, device=z.device) for bound in (lower, upper))
    return z.clamp(lo, hi)


def barrier(violation: Tensor, scale: Tensor | float = 0.0) -> Tensor:
    """0 for each row inside a domain, +inf outside; `violation` (n, k) is how far each constraint is violated.

    The tolerance is sqrt(eps) (1 + |scale|), since u is a computed matrix product with rounding errors.

    >>> lnn.functional.barrier(torch.tensor([[-1.0, 0.0], [-1.0, 0.5]]))
    tensor([0., inf])
    """
    allowed = torch.finfo(violation.dtype).eps ** 0.5 * (1 + torch.as_tensor(scale).abs())
    outside = (violation > allowed).any(-1)
    return torch.zeros_like(violation[..., 0]).masked_fill(outside, torch.inf)


def box_barrier(z: Tensor, lower: Tensor | float, upper: Tensor | float) -> Tensor:
    """`barrier` of lower <= z <= upper, in two reductions where the bounds are numbers.

    >>> lnn.functional.box_barrier(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), 0.0, 1.0)
    tensor([0., inf])
    """
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        return barrier((z - clip(z, lower, upper)).abs())
    slack = torch.finfo(z.dtype).eps ** 0.5
    outside = torch.zeros_like(z[..., 0], dtype=torch.bool)
    if lower > -torch.inf:
        outside = outside | (z.amin(-1) < lower - slack)
    if upper < torch.inf:
        outside = outside | (z.amax(-1) > upper + slack)
    return torch.zeros_like(z[..., 0]).masked_fill(outside, torch.inf)


def softmax(u: Tensor) -> Tensor:
    """softmax of each row of u (n, p); of few columns on a CPU as that of the columns of u', which takes a fraction of the time.

    >>> lnn.functional.softmax(torch.tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """
    if u.device.type == "cpu" and u.ndim > 1 and u.shape[-1] < _AT_A_TIME:
        return torch.softmax(u.mT, -2).mT
    return torch.softmax(u, -1)


def log_partition(u: Tensor) -> Tensor:
    """log sum exp of each row of u, (n, p) -> (n,).

    >>> lnn.functional.log_partition(torch.tensor([[-200.0, 3.0]]))
    tensor([3.])
    """
    top = u.amax(-1, keepdim=True)
    return (u - top).exp_().sum(-1).log_() + top[..., 0]


def simplex_projection(v: Tensor) -> Tensor:
    """Euclidean projection of each row of v (n, p) on {z >= 0, sum z = 1}, by sorting.

    >>> lnn.functional.simplex_projection(torch.tensor([[2.0, 0.5]])).tolist()
    [[1.0, 0.0]]
    """
    v = v - v.amax(-1, keepdim=True)  # a common shift does not change the projection, but it changes the rounding
    ordered = v.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    count = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    support = (ordered * count > excess).sum(-1, keepdim=True).clamp(min=1)
    threshold = excess.gather(-1, support - 1) / support
    return (v - threshold).clamp(min=0)


def quantile(y: Tensor, level: Tensor | float, row_weights: Tensor | None = None) -> Tensor:
    """For each column of y (n, p), the smallest entry that at least a fraction `level` of the rows does not exceed, (p,): a minimiser of
    the pinball loss. Rows are weighted by `row_weights`.

    >>> lnn.functional.quantile(torch.tensor([[1.0], [2.0], [6.0]]), 0.5)
    tensor([2.])
    """
    levels = torch.as_tensor(level, dtype=torch.float64, device=y.device).expand(y.shape[1])
    return _at_levels(y, levels[None], row_weights)[0]


def quartiles(y: Tensor, row_weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The `quantile` of each column of y (n, p) at 1/4, 1/2 and 3/4, in the time of one."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=y.device)
    low, centre, high = _at_levels(y, levels[:, None].expand(3, y.shape[1]), row_weights)
    return low, centre, high


def _at_levels(y: Tensor, levels: Tensor, row_weights: Tensor | None) -> Tensor:
    """The quantiles (k, p) of y (n, p) at levels (k, p)."""
    if row_weights is None or bool((row_weights == row_weights[0]).all()):  # the same fractions in all columns
        ordered = _sorted(y)
        fraction = torch.arange(1, len(y) + 1, dtype=torch.float64, device=y.device) / len(y)
        found = torch.searchsorted(fraction, levels.contiguous())
    else:
        ordered, order = _sorted_with_order(y)
        weights = row_weights.double()[order]
        fraction = weights.cumsum(0) / weights.sum(0)
        found = torch.searchsorted(fraction.T.contiguous(), levels.T.contiguous()).T
    return ordered.gather(0, found.clamp(max=len(y) - 1))


def _sorted(y: Tensor) -> Tensor:
    """The columns of y, sorted; on a CPU by numpy, which is faster there."""
    return torch.from_numpy(np.sort(y.numpy(), axis=0)) if _for_numpy(y) else y.sort(0).values


def _sorted_with_order(y: Tensor) -> tuple[Tensor, Tensor]:
    if not _for_numpy(y):
        ordered, order = y.sort(0)
        return ordered, order
    order = torch.from_numpy(np.argsort(np.ascontiguousarray(y.numpy().T), axis=1)).T
    return y.gather(0, order), order


def _for_numpy(y: Tensor) -> bool:
    return y.device.type == "cpu" and not y.requires_grad and y.dtype in (torch.float32, torch.float64)


def median_and_spread(y: Tensor, row_weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For each column of y (n, p): the median, and the interquartile range / 1.349, which is the standard deviation of normal data.
    Where that range is 0, the standard deviation; 1 where the column is constant. Rows are weighted by `row_weights`.

    >>> centre, spread = lnn.functional.median_and_spread(torch.tensor([[1.0], [2.0], [2.0], [7.0]]))
    >>> centre.tolist(), round(float(spread), 2)
    ([2.0], 0.74)
    """
    low, centre, high = quartiles(y, row_weights)
    deviation = reduce.mean_and_variance(y, row_weights)[1].sqrt().to(y)
    smallest, greatest = reduce.ends(y)
    constant = smallest == greatest
    spread = torch.where(high > low, (high - low) / NORMAL_RANGE, deviation)
    return centre, torch.where(constant | (spread == 0), torch.ones_like(spread), spread)


def root(fn: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, max_iter: int = 120) -> Tensor:
    """The root of a monotone fn in each entry of [lower, upper], to the last bits of the dtype.

    fn, lower, upper   fn maps a tensor of the shape of the bounds to one of that shape, entry by entry
    max_iter           evaluations at most

    Bisection, with an inverse quadratic step wherever Chandrupatla's criterion (1997) holds: at most a constant factor slower than
    bisection, and about ten evaluations on smooth functions.

    >>> lnn.functional.root(lambda x: x**2 - 4, torch.zeros(1), torch.full((1,), 5.0)).round(decimals=3)
    tensor([2.])
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
    """Where both ends have the same sign, because of rounding, both are set to the one with the smaller |f|."""
    lost = f1.sign() * f2.sign() > 0
    first = f1.abs() <= f2.abs()
    x, f = torch.where(first, x1, x2), torch.where(first, f1, f2)
    return torch.where(lost, x, x1), torch.where(lost, x, x2), torch.where(lost, f, f1), torch.where(lost, f, f2)


def _inverse_quadratic(x1: Tensor, x2: Tensor, x3: Tensor, f1: Tensor, f2: Tensor, f3: Tensor) -> Tensor:
    """The next point between x1 and x2, as a fraction of the interval; 1/2 where inverse interpolation is not safe."""
    xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
    safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
    t = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    return torch.where(safe & t.isfinite(), t, torch.full_like(t, 0.5))


def log_omega(x: Tensor) -> Tensor:
    """y with y + e^y = x, the logarithm of Wright's omega function.

    Newton from the right of a convex increasing function: monotone, and the start is close enough for eight steps.

    >>> lnn.functional.log_omega(torch.tensor([1 + torch.e])).round(decimals=3)
    tensor([1.])
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

    >>> lnn.functional.entropy_prox(torch.zeros(1, 2), step=1.0).round(decimals=3)
    tensor([[0.5000, 0.5000]])
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

    >>> round(float(lnn.functional.conjugate_softplus(torch.zeros(1))), 4)  # pi^2 / 12
    0.8225
    """
    y = torch.log1p((-u.abs()).exp())
    square, series = y * y, torch.zeros_like(y)
    for coefficient in reversed(_DILOGARITHM):
        series = (series + coefficient) * square
    small = y * (1 + y / 4 + series)  # -Li_2(-x)
    return torch.where(u > 0, torch.pi**2 / 6 + u * u / 2 - small, small)
