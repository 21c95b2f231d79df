"""Functions of whole matrices: singular values and the polar factor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["polar", "resolved", "spectrum"]

# Up to this Frobenius norm of w w' - I the polar factor comes from Newton's iteration, which then converges quadratically and without
# loss of digits; and the most iterations.
_NEAR, _NEWTON = 0.5, 8
# Below this fraction of the largest, the eigenvalues of w w' have lost too many digits.
_CONDITION = 1e-6


def spectrum(w: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values of w (m, n), m <= n, ascending, and its left singular vectors, from w w'.

    >>> lnn.functional.spectrum(torch.tensor([[3.0, 0.0], [0.0, 2.0]]))[0].round(decimals=3)
    tensor([4., 9.])
    """
    values, vectors = torch.linalg.eigh(w @ w.T)
    return values.clamp(min=0), vectors


def resolved(squares: Tensor, least: float) -> bool:
    """Whether squared singular values as small as `least` are right to seven digits in `spectrum`, and their vectors.

    squares   the first result of `spectrum`, ascending
    least     the smallest that matters

    >>> lnn.functional.resolved(torch.tensor([1.0, 4.0], dtype=torch.float64), 1.0)
    True
    """
    return float(squares[-1]) * torch.finfo(squares.dtype).eps <= 1e-7 * least


def polar(w: Tensor) -> Tensor:
    """The matrix nearest to w with orthonormal rows, or columns where it has more rows than columns: U V' of w = U S V'.

    (w w')^-1/2 w, in the precision of w; by matrix products alone where w is nearly orthonormal, as after a short step. A w that is
    not finite is returned unchanged, and callers check for that.

    >>> w = lnn.functional.polar(torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]]))
    >>> torch.allclose(w @ w.T, torch.eye(2), atol=1e-5)
    True
    """
    if w.shape[0] > w.shape[1]:
        return polar(w.T).T
    gram = w @ w.T
    distance = float((gram - torch.eye(len(gram), dtype=w.dtype, device=w.device)).norm())
    if not math.isfinite(distance):
        return w
    if not bool(w.any()):  # every orthonormal matrix is equally near: take one without a decomposition
        return torch.eye(*w.shape, dtype=w.dtype, device=w.device)
    if distance <= _NEAR:
        return _inverse_root(gram, distance) @ w
    values, vectors = torch.linalg.eigh(gram)
    if float(values[0]) > _CONDITION * float(values[-1]):
        nearest: Tensor = (vectors / values.sqrt()) @ vectors.T @ w
    else:
        left, _, right = torch.linalg.svd(w, full_matrices=False)
        nearest = left @ right
    return nearest


def _inverse_root(gram: Tensor, distance: float) -> Tensor:
    """gram^-1/2 by z <- z (3 - gram z z) / 2, for |gram - I|_F = `distance`, which becomes 3/4 distance^2 after a step."""
    inverse = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(_NEWTON):
        inverse = 1.5 * inverse - 0.5 * inverse @ (gram @ (inverse @ inverse))
        distance = distance**2
        if distance <= torch.finfo(gram.dtype).eps:
            break
    return inverse
