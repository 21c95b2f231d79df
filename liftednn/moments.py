"""Additive second moments of a regression: all data that the W-step with a quadratic divergence needs (sec. 6.1).

    weight, mean_x, mean_z,  xx = sum (x - mean_x)'(x - mean_x),  xz = sum (x - mean_x)'(z - mean_z),  zz = sum |z - mean_z|^2

stored centred and in float64, so that `a + b` (the moments of both sets of rows) loses no digits to large means, however the rows
were split. `forget * a` discounts old rows. Sums of products of rows are computed here, other sums over rows in reduce.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.checks import check_tensors

__all__ = ["Moments"]

# Products over this many rows are computed in the data's own precision, then summed in float64.
_ROWS = 8192


@dataclass(frozen=True)
class Moments:
    """Centred moments of rows x (n, p) and z (n, q), float64, from `Moments.of(x, z)`.

    weight           the number of rows, or the sum of their weights
    mean_x, mean_z   (p,) and (q,)
    xx, xz, zz       sums over rows of products of centred entries, (p, p), (p, q) and ()
    eps              the precision of the data: smaller relative eigenvalues are taken as 0

    >>> x = torch.tensor([[0.0], [2.0]])
    >>> moments = lnn.Moments.of(x, 3 * x) + lnn.Moments.of(x, 3 * x)
    >>> float(moments.weight), moments.gram.tolist(), moments.cross.tolist()
    (4.0, [[1.0]], [[3.0]])
    """

    weight: Tensor
    mean_x: Tensor
    mean_z: Tensor
    xx: Tensor
    xz: Tensor
    zz: Tensor
    eps: float

    @classmethod
    def of(cls, x: Tensor, z: Tensor, sample_weight: Tensor | None = None) -> Moments:
        """The moments of rows x (n, p) and z (n, q); sample_weight (n,) is how much each row counts."""
        check_tensors(x=x, z=z)
        if x.ndim != 2 or z.ndim != 2 or len(x) != len(z) or not x.numel():
            raise ValueError(
                "x and z must be matrices with the same rows, at least one, and x with a column, got "
                f"{tuple(x.shape)} and {tuple(z.shape)}"
            )
        _check_weights(x, sample_weight)
        weight, mean = reduce.count(x, sample_weight), reduce.mean(x, sample_weight)
        shift, rest = _rounded(mean, x)
        xx = mean.new_zeros(()) if x.dtype == mean.dtype else -weight * torch.outer(rest, rest)
        for rows, w in _blocks(x, sample_weight):
            centred = rows - shift
            xx = xx + _weighted(centred, w).T @ centred
        empty = cls(weight, mean, mean[:0], xx, xx[:, :0], xx.new_zeros(()), torch.finfo(x.dtype).eps)
        return empty.retarget(x, z, sample_weight) if z.shape[1] else empty

    def retarget(self, x: Tensor, z: Tensor, sample_weight: Tensor | None = None) -> Moments:
        """The same rows x with other targets z: keeps the Gram matrix and computes only the cross moments."""
        return self.retarget_blocks(torch.split(x, _ROWS), z, sample_weight)

    def retarget_blocks(self, blocks: Iterable[Tensor], z: Tensor, sample_weight: Tensor | None = None) -> Moments:
        """The same where the rows come in blocks, in their order: only one block needs to be in memory."""
        mean_z = reduce.mean(z, sample_weight)
        shift_x, rest_x = _rounded(self.mean_x, z)
        shift_z, rest_z = _rounded(mean_z, z)
        xz, zz, start = -self.weight * torch.outer(rest_x, rest_z), -self.weight * rest_z.square().sum(), 0
        for rows in blocks:
            here, start = slice(start, start + len(rows)), start + len(rows)
            centred = z[here] - shift_z
            weighted = _weighted(centred, None if sample_weight is None else sample_weight[here])
            xz += (rows - shift_x).T @ weighted
            zz += (centred * weighted).sum(dtype=torch.float64)
        return replace(self, mean_z=mean_z, xz=xz, zz=zz)

    def __add__(self, other: Moments) -> Moments:
        """The moments of the rows of both (Chan, Golub and LeVeque)."""
        weight = self.weight + other.weight
        fraction = other.weight / weight
        dx, dz = other.mean_x - self.mean_x, other.mean_z - self.mean_z
        mixed = self.weight * fraction
        mean_x, xx = self.mean_x + fraction * dx, torch.addr(self.xx + other.xx, mixed * dx, dx)
        of_x = replace(self, weight=weight, mean_x=mean_x, xx=xx, eps=max(self.eps, other.eps))
        if not dz.numel():
            return of_x
        return replace(
            of_x,
            mean_z=self.mean_z + fraction * dz,
            xz=torch.addr(self.xz + other.xz, mixed * dx, dz),
            zz=self.zz + other.zz + mixed * dz.square().sum(),
        )

    def __rmul__(self, forget: float) -> Moments:
        """The same rows, each with `forget` times the weight."""
        scaled = {name: forget * getattr(self, name) for name in ("weight", "xx", "xz", "zz")}
        return replace(self, **scaled)

    def about_zero(self) -> Moments:
        """The moments about 0 in place of the mean: those of a regression without intercept."""
        n, mx, mz = self.weight, self.mean_x, self.mean_z
        return Moments(
            n,
            torch.zeros_like(mx),
            torch.zeros_like(mz),
            self.xx + n * torch.outer(mx, mx),
            self.xz + n * torch.outer(mx, mz),
            self.zz + n * mz.square().sum(),
            self.eps,
        )

    @property
    def gram(self) -> Tensor:
        """Covariance of x, (p, p)."""
        return self.xx / self.weight

    @property
    def cross(self) -> Tensor:
        """Covariance of x and z, (p, q)."""
        return self.xz / self.weight

    def bias(self, w: Tensor) -> Tensor:
        """The intercept that is optimal with w (q, p): mean_z - w mean_x."""
        return self.mean_z - w @ self.mean_x

    def residual(self, w: Tensor) -> Tensor:
        """mean |x w' + b - z|^2 with the optimal intercept, from the moments alone."""
        quadratic = (w @ self.gram * w).sum() - 2 * (w.T * self.cross).sum() + self.zz / self.weight
        return quadratic.clamp(min=0)


def _rounded(mean: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean rounded to the precision of the data, in which it is subtracted, and the rounding error, which is subtracted later."""
    shift = mean.to(x.dtype)
    return shift, mean - shift.double()


def _blocks(x: Tensor, sample_weight: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    for start in range(0, len(x), _ROWS):
        rows = slice(start, start + _ROWS)
        yield x[rows], None if sample_weight is None else sample_weight[rows]


def _weighted(x: Tensor, w: Tensor | None) -> Tensor:
    return x if w is None else x * w[:, None].to(x.dtype)


def _check_weights(x: Tensor, sample_weight: Tensor | None) -> None:
    if sample_weight is None:
        return
    if sample_weight.shape != (len(x),):
        raise ValueError(f"sample_weight has shape {tuple(sample_weight.shape)}, but x has {len(x)} rows")
    total = sample_weight.double().sum()
    if not bool(total.isfinite() & (total > 0) & (sample_weight >= 0).all()):
        raise ValueError("sample_weight must hold finite numbers, none negative and not all 0")
