"""The arguments of bounded least squares: the box, the units they are in, and checks of the matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from liftednn.checks import check_count, check_dense, check_number

__all__ = ["Bounds", "Units", "check_options", "check_problem"]


@dataclass(frozen=True)
class Bounds:
    """The bounds: two numbers, or two tensors with p or 1 columns and n or 1 rows."""

    lower: float | Tensor
    upper: float | Tensor

    @staticmethod
    def of(lower: float | Tensor, upper: float | Tensor | None, q: Tensor) -> Bounds:
        upper = math.inf if upper is None else upper
        for name, bound in (("lower", lower), ("upper", upper)):
            if not isinstance(bound, (Tensor, Real)):
                raise ValueError(f"{name} must be a number or a tensor, got {bound!r}")
        if not isinstance(lower, Tensor) and not isinstance(upper, Tensor):
            return Bounds(_representable(lower, q), _representable(upper, q))
        return Bounds(_bound("lower", lower, q), _bound("upper", upper, q))

    def take(self, rows: slice | Tensor) -> Bounds:
        if not isinstance(self.lower, Tensor) or not isinstance(self.upper, Tensor):
            return self
        return Bounds(*(bound[rows] if len(bound) > 1 else bound for bound in (self.lower, self.upper)))

    def double(self) -> Bounds:
        return Bounds(*(bound.double() if isinstance(bound, Tensor) else bound for bound in (self.lower, self.upper)))

    def clip(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.clamp(x, self.lower, self.upper, out=out)  # type: ignore[arg-type]

    def scaled(self, factor: float, like: Tensor) -> Bounds:
        """The box of factor * x, for x as `like` in precision; factor > 0."""
        return Bounds(*(_scaled(bound, factor, like) for bound in (self.lower, self.upper)))

    def distance(self, x: Tensor, g: Tensor, curvature: float) -> Tensor:
        """max over j of curvature |x - clip(x - g / curvature)|, one number per row, for x in the box.

        As clamp(g, curvature (x - upper), curvature (x - lower)), which loses no digits where g is small against x.
        """
        if isinstance(self.lower, Tensor) or self.lower > -math.inf:
            slack = (x - self.lower).mul_(curvature)
            g = torch.minimum(g, slack, out=slack)
        if isinstance(self.upper, Tensor) or self.upper < math.inf:
            slack = (x - self.upper).mul_(curvature)
            g = torch.maximum(g, slack, out=slack)
        return g.abs().amax(1)

    def residual(self, x: Tensor, g: Tensor) -> Tensor:
        """The same for an infinite curvature: max over j of |g_j|, without entries at a bound where -g_j points out of the box."""
        return self.inward(x, g).abs_().amax(1)

    def inward(self, x: Tensor, g: Tensor) -> Tensor:
        """g, with 0 in the place of entries at a bound where -g_j points out of the box."""
        active = (x <= self.lower).logical_and_(g > 0).logical_or_((x >= self.upper).logical_and_(g < 0))
        return g.masked_fill(active, 0.0)

    def snap(self, x: Tensor, g: Tensor, curvature: float) -> Tensor:
        """In place, put entries of x that the step x - g / curvature takes to a bound on it; no rise if `curvature` is an upper bound."""
        moved = torch.add(x, g, alpha=-1 / curvature)
        torch.where(self.inside(moved), x, self.clip(moved), out=x)
        return x

    def inside(self, x: Tensor) -> Tensor:
        return (x > self.lower) & (x < self.upper)

    def check(self) -> None:
        lower, upper = torch.as_tensor(self.lower), torch.as_tensor(self.upper)
        if not bool(((lower <= upper) & (lower < math.inf) & (upper > -math.inf)).all()):
            raise ValueError(
                f"lower must not exceed upper, and neither may be NaN, got lower={self.lower} and upper={self.upper}; "
                "use lower=-inf or upper=None where there is no bound"
            )


@dataclass(frozen=True)
class Units:
    """Powers of two that h, q and z are divided by, and max |q| after that."""

    h: float
    q: float
    z: float
    scale: float

    @staticmethod
    def of(h: Tensor, size: float) -> Units:
        """For max |q| = size."""
        curvature = h.diagonal().double().abs().mean().item() or h.abs().max().item()
        unit_q, unit_h = (2.0 ** math.floor(math.log2(each)) if each else 1.0 for each in (size, curvature))
        unit_z = unit_q / unit_h
        limits = torch.finfo(h.dtype)
        if not 2**13 * limits.tiny * limits.eps <= unit_z <= limits.max:  # smaller numbers have fewer than four digits
            raise ValueError(
                f"h of about {curvature:.3g} and q of about {size:.3g} have a solution beyond the range of {h.dtype}: scale h and q, or "
                "give float64"
            )
        return Units(unit_h, unit_q, unit_z, size / unit_q or 1.0)


def _representable(bound: float | Real, like: Tensor) -> float:
    """The bound, infinite where it is beyond the range of the dtype: torch refuses such numbers."""
    return math.copysign(math.inf, float(bound)) if abs(float(bound)) > torch.finfo(like.dtype).max else float(bound)


def _scaled(bound: float | Tensor, factor: float, like: Tensor) -> float | Tensor:
    """In float64, where a large factor does not overflow: 0 times infinity would be NaN."""
    return (bound.double() * factor).to(like) if isinstance(bound, Tensor) else _representable(bound * factor, like)


def _bound(name: str, bound: float | Tensor, q: Tensor) -> Tensor:
    if not isinstance(bound, Tensor):
        return q.new_full((1, 1), _representable(bound, q))
    _check_like(name, bound, q)
    shape = (1,) * (2 - bound.dim()) + tuple(bound.shape)
    if len(shape) > 2 or shape[0] not in (1, len(q)) or shape[1] not in (1, q.shape[1]):
        raise ValueError(f"{name} must be a number or broadcast to q, {tuple(q.shape)}, got {tuple(bound.shape)}")
    return bound.reshape(shape)


def _check_like(name: str, x: Tensor, q: Tensor) -> None:
    if x.dtype != q.dtype or x.device != q.device:
        raise ValueError(
            f"{name} must have the dtype and device of q, {q.dtype} on {q.device}, got {x.dtype} on {x.device}; "
            f"use {name}.to(q)"
        )


def check_problem(h: Tensor, q: Tensor, z0: Tensor | None) -> None:
    check_dense(h=h, q=q, z0=q if z0 is None else z0)
    if q.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"q must be float32 or float64, got {q.dtype}; use q.float() or q.double()")
    if q.dim() != 2 or h.shape != (q.shape[1], q.shape[1]) or q.shape[1] == 0:
        raise ValueError(f"h must be (p, p) and q (n, p) with p >= 1, got h {tuple(h.shape)} and q {tuple(q.shape)}")
    if z0 is not None and z0.shape != q.shape:
        raise ValueError(f"z0 must have the shape of q, {tuple(q.shape)}, got {tuple(z0.shape)}")
    for name, x in (("h", h), ("q", q), ("z0", z0)):
        if x is not None:
            _check_like(name, x, q)
            _check_finite(name, x)
    gap = (h - h.T).abs().max().item()
    if gap > 1000 * torch.finfo(h.dtype).eps * h.abs().max().item():
        raise ValueError(
            f"h must be symmetric, got entries that differ from their mirror by {gap:.3g}; use (h + h.T) / 2"
        )


def _check_finite(name: str, x: Tensor) -> None:
    """Without a copy of x."""
    if x.numel() and not all(math.isfinite(end) for end in torch.aminmax(x)):
        raise ValueError(f"{name} must be finite, got NaN or infinite entries; remove or replace them first")


def check_options(tol: float, max_iter: int, block_rows: int | None, scale: float | Tensor | None, rows: int) -> None:
    check_number("tol", tol, infinite=True)
    check_count("max_iter", max_iter)
    check_count("block_rows", 1 if block_rows is None else block_rows, least=1)
    if isinstance(scale, Tensor):
        if scale.shape != (rows,) or not bool((scale > 0).all() & scale.isfinite().all()):
            raise ValueError(f"scale must be a number, or hold {rows} positive ones, one for each row, got {scale}")
        return
    check_number("scale", 1.0 if scale is None else scale, zero=True)
