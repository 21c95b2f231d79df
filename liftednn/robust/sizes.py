"""The sizes of an uncertainty: how they are read, checked and rescaled."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from liftednn.base import Divergence
from liftednn.losses import AbsoluteError, Quantile

__all__ = [
    "Sizes",
    "as_sizes",
    "check_covariance",
    "check_sizes",
    "misfit",
    "one_each",
    "per_column",
    "quadratic_form",
    "read",
    "why_not_smooth",
]

Sizes = float | Tensor


def read(name: str, given: Any) -> Any:
    """Numbers of any kind become a float; arrays and lists become a new tensor in their own precision."""
    if isinstance(given, Real) or (isinstance(given, Tensor) and not given.ndim):
        return float(given)
    if isinstance(given, Tensor):
        return given
    try:
        return torch.tensor(given, dtype=torch.float64 if isinstance(given, list | tuple) else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a number, a tensor or an array, got {given!r}") from error


def check_sizes(name: str, sizes: Sizes, dims: tuple[int, ...]) -> None:
    """Refuse sizes that are not finite, all 0, or of a dimension not in `dims`; a matrix may be 0."""
    given = torch.as_tensor(sizes)
    none = given.ndim < 2 and not bool((given != 0).any())
    if given.ndim not in dims or not given.numel() or not bool(given.isfinite().all()) or none:
        kinds = {0: "a positive number", 1: "one for each input", 2: "a covariance matrix"}
        allowed = ", or ".join(kinds[each] for each in dims)
        raise ValueError(f"{name} must be {allowed}, got {sizes!r}; for no uncertainty, leave it out")
    if given.ndim < 2 and bool((given < 0).any()):
        raise ValueError(f"{name} must not be negative, got {sizes!r}")


def check_covariance(what: str, given: Tensor) -> None:
    """Finite, symmetric and without negative eigenvalues, up to rounding."""
    matrix, size = given.double(), 1e-6 * float(given.abs().max()) if given.numel() else 0.0
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not bool(matrix.isfinite().all()) or not torch.allclose(matrix, matrix.T, atol=size):
        raise ValueError(f"{what} must be square, symmetric and finite, got shape {tuple(matrix.shape)}")
    lowest = float(torch.linalg.eigvalsh(matrix)[0])
    if lowest < -len(matrix) * size:
        raise ValueError(f"{what} must have no negative eigenvalues, got {lowest:g}: give a positive semi-definite one")


def why_not_smooth(what: str, divergence: Divergence) -> str:
    """Why the curvature of a divergence gives no useful bound on the energy that noise adds; empty if it does."""
    if isinstance(divergence, AbsoluteError | Quantile):
        return (
            f"{divergence!r} has curvature only in its smoothed kink, so that a bound on {what} by curvature would be far too large: "
            "use BoxBall, or Huber"
        )
    if divergence.curvature == torch.inf:
        return (
            f"{divergence!r} has no finite curvature, so {what} has no finite bound: use an activation's Fenchel form, or the "
            "softmax's cross-entropy"
        )
    return ""


def quadratic_form(w: Tensor, matrix: Tensor | None) -> float:
    """tr(w matrix w') in float64; None for the identity."""
    precise = w.double()
    if matrix is None:
        return float(precise.square().sum())
    return float(((precise @ matrix.to(precise)) * precise).sum())


def misfit(name: str, sizes: float | Tensor, shape: tuple[int, int]) -> str:
    """An error message where `sizes` has one entry for each input but the layer another number of inputs; otherwise empty."""
    given = torch.as_tensor(sizes)
    if given.ndim and len(given) != shape[1]:
        return (
            f"{name} is for {len(given)} inputs, and the layer has {shape[1]}: give one for each, or a number for all"
        )
    return ""


def as_sizes(sizes: Sizes, like: Tensor) -> Tensor:
    """In the precision and on the device of another tensor."""
    return torch.as_tensor(sizes, dtype=like.dtype, device=like.device)


def one_each(name: str, sizes: Sizes, count: int, like: Tensor) -> Tensor:
    """As many sizes as there are inputs, (count,)."""
    reason = misfit(name, sizes, (0, count))
    if reason:
        raise ValueError(reason)
    return as_sizes(sizes, like).expand(count)


def per_column(name: str, sizes: Sizes, factors: Tensor) -> Sizes:
    """sizes * factors, a covariance on both sides; still one number where that is the same for all columns."""
    reason = misfit(name, sizes, (0, len(factors)))
    if reason:
        raise ValueError(reason)
    if not isinstance(sizes, Tensor) and bool((factors == factors[0]).all()):
        return sizes * float(factors[0])
    matrix = isinstance(sizes, Tensor) and sizes.ndim == 2
    return as_sizes(sizes, factors) * factors * (factors[:, None] if matrix else 1)
