"""Sketched ridge regression, as remarked at the end of sec. 6.1 (Woodruff 2014; Pilanci and Wainwright 2016).

A count sketch sums n rows with random signs into `size` rows, in one pass over the data; the small problem has the same expected Gram
matrix. Each refinement is one step of conjugate gradients on the whole problem, preconditioned by the sketched Hessian: the error falls
at every step, and goes to 0 at a linear rate where the sketched Hessian has full rank.
"""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.checks import check_count, check_finite, check_strengths, check_tensors
from liftednn.solvers.ridge import Factor

__all__ = ["sketch"]


def sketch(x: Tensor, z: Tensor, lam: float, rho: float, size: int, refine: int = 0, seed: int = 0) -> Affine:
    """Approximate argmin_{w, b} lam mean |x w' + b - z|^2 + rho |w|^2 from `size` sketched rows: w (q, p) and b (q,), float64.

    x, z       rows (n, p) and targets (n, q)
    lam, rho   the weights of the mean square, positive, and of the squared norm, not negative
    size       rows of the sketch, at most n
    refine     steps of conjugate gradients, preconditioned by the sketch; 0 is sketch-and-solve. With rho = 0 and fewer sketched rows
               than columns they stay in the space of the sketched rows
    seed       of the sketch

    >>> x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    >>> w, b = lnn.solvers.sketch(x, x.sum(1, keepdim=True), lam=1.0, rho=0.0, size=20)
    >>> w.round(decimals=3).tolist()
    [[1.0, 1.0]]
    """
    check_strengths(lam, rho)
    for name, count in (("refine", refine), ("seed", seed)):
        check_count(name, count)
    check_tensors(x=x, z=z)
    if x.ndim != 2 or z.ndim != 2 or len(x) != len(z) or not x.numel():
        raise ValueError(
            f"x and z must be matrices with the same rows, at least one, got {tuple(x.shape)} and {tuple(z.shape)}"
        )
    check_finite("x", x)
    check_finite("z", z)
    if not isinstance(size, Integral) or not 0 < size <= len(x):
        raise ValueError(f"size must lie in 1 .. {len(x)}, the number of rows, got {size}")
    centre_x, centre_z = reduce.mean(x), reduce.mean(z)
    xc, zc = x.double() - centre_x, z.double() - centre_z
    bucket, sign = _hash(len(x), size, seed, x.device)

    def fold(a: Tensor) -> Tensor:
        return a.new_zeros(size, a.shape[1]).index_add_(0, bucket, sign[:, None] * a) / math.sqrt(len(x))

    sx, sz = fold(xc), fold(zc)
    factor = Factor.of(sx.T @ sx, lam, rho, torch.finfo(x.dtype).eps)
    w = factor.solve(lam * sx.T @ sz)
    if refine:
        w = _refined(w, xc, zc, lam / len(x), rho, factor, refine)
    return Affine(w.T, centre_z - w.T @ centre_x)


def _refined(w: Tensor, x: Tensor, z: Tensor, lam: float, rho: float, factor: Factor, steps: int) -> Tensor:
    """Conjugate gradients for each column of w (p, q), on  (lam x'x + rho I) w = lam x'z."""
    rest = lam * x.T @ (z - x @ w) - rho * w
    direction = moved = factor.solve(rest)
    size = (rest * moved).sum(0)
    for _ in range(steps):
        applied = lam * x.T @ (x @ direction) + rho * direction
        length = _quotient(size, (direction * applied).sum(0))
        w, rest = w + length * direction, rest - length * applied
        moved, before = factor.solve(rest), size
        size = (rest * moved).sum(0)
        direction = moved + _quotient(size, before) * direction
    return w


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is: that column is solved."""
    return torch.where(b > 0, a / b, 0.0)


def _hash(rows: int, size: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A bucket and a sign for each row, drawn on the CPU so that every device has the same sketch."""
    generator = torch.Generator().manual_seed(seed)
    bucket = torch.randint(size, (rows,), generator=generator)
    sign = torch.randint(2, (rows,), generator=generator, dtype=torch.float64) * 2 - 1
    return bucket.to(device), sign.to(device)
