"""The check for losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.base import Divergence, Loss
from liftednn.testing.common import (
    WIDTH,
    N,
    check_in_u,
    check_kept,
    check_minimal,
    check_row_alone,
    check_separable,
    check_units,
    check_unwritten,
    close,
    draws,
    no_better,
)

__all__ = ["check_loss"]


def check_loss(loss: Loss, width: int = WIDTH, seed: int = 0) -> None:
    """Convex in u with the declared gradient and curvature; encode, decode and score agree with L; every attribute holds.

    loss   an object of your class, for `width` outputs
    seed   of the random points

    Returns None, or raises an AssertionError that says what does not hold.

    >>> lnn.testing.check_loss(lnn.losses.Huber(delta=0.5))
    """
    u, other = draws(seed, 2, width)
    integers = not check_unwritten("decode", loss.decode, u).is_floating_point()
    assert loss.classes == integers, f"classes is {loss.classes}, but decode gives {loss.decode(u).dtype}"
    y = torch.arange(N) % width if loss.classes else loss.decode(u.flip(0))
    encoded = check_unwritten("encode", lambda given: loss.encode(given, width), y).double()
    assert encoded.shape == (N, width), f"encode gave shape {tuple(encoded.shape)}, expected {(N, width)}"
    if loss.classes:
        assert torch.equal(loss.decode(encoded), y), "decode(encode(y)) must give the labels back"
        assert loss.score(encoded, encoded) == 1.0, "labels scored against themselves must give 1"
    bounded = not bool(loss.value(u, encoded).isfinite().all())
    if bounded:
        u, other = u.softmax(-1), other.softmax(-1)
    for size in (1.0,) if bounded else (1.0, 0.1, 10.0):
        check_in_u(loss, size * u, size * other, encoded)
    has_prox = loss.curvature == torch.inf or type(loss).prox_u is not Divergence.prox_u
    calls: dict[str, Callable[..., Tensor]] = {"value": loss.value, "grad": loss.grad}
    if has_prox:
        calls["prox_u"] = lambda v, z: loss.prox_u(v, z, 0.7)
    check_kept("phi", loss, u)
    check_row_alone("phi", loss, u)
    for name, call in calls.items():
        check_kept(name, call, u, encoded)
        check_row_alone(name, call, u, encoded)
    check_unwritten("score", loss.score, u, encoded)
    for step in (0.05, 0.7, 20.0) if has_prox else ():
        _check_prox(loss, u, encoded, step, seed)
    _check_responses(loss, u, width)
    _check_link(loss, u)
    _check_weights(loss, u, encoded)
    _check_hessian_vectors(loss, u, encoded)
    check_units(loss, u, encoded)
    check_separable(loss, u, u.flip(0), encoded)
    if loss.invariant:
        shifted = loss.value(u + 0.7, loss.encode(y + 0.7, width))
        close(shifted, loss.value(u, encoded), "declared invariant, but L(y + c, u + c) is not L(y, u)")
    if loss.homogeneous:
        close(
            loss.value(3 * u, 3 * encoded),
            9 * loss.value(u, encoded),
            "declared homogeneous, but D(3u, 3z) is not 9 D(u, z)",
        )


def _check_prox(loss: Loss, u: Tensor, encoded: Tensor, step: float, seed: int) -> None:
    check_minimal(lambda v: loss.value(v, encoded), loss.prox_u(u, encoded, step), u, step, "prox_u", seed)


def _check_responses(loss: Loss, u: Tensor, width: int) -> None:
    """decode(u) is the response at which the loss is least, and the one of the best score."""
    own = loss.encode(loss.decode(u), width).double()
    labels = [torch.full((N,), label) for label in range(width)]
    others = labels if loss.classes else [loss.decode(u.roll(turn, 0)) for turn in (1, 7)]
    rivals = [loss.encode(each, width).double() for each in others]
    no_better(lambda z: loss.value(u, z), own, rivals, "decode(u) is not the response at which the loss is least")
    best, worse = (
        loss.score(u, own),
        max(loss.score(u, loss.encode(loss.decode(u.roll(turn, 0)), width).double()) for turn in (1, 7)),
    )
    assert best > worse, (
        f"score must be higher for better scores: {best:.4g} for those of the responses, {worse:.4g} for others"
    )
    assert abs(best - 1) < 1e-9, f"scores whose responses are all right must have score 1, got {best:.6g}"


def _check_link(loss: Loss, u: Tensor) -> None:
    phi = loss(u)
    assert phi.shape == u.shape, f"phi gave shape {tuple(phi.shape)}, expected {tuple(u.shape)}"
    if loss.link is not None:
        close(phi, loss.link(u), "loss(u) is not link(u)")
    if loss.classes:
        assert torch.equal(phi.argmax(-1), loss.decode(u)), "phi(u) is largest at another label than decode(u)"
    else:
        close(phi, loss.decode(u), "loss(u) is not decode(u)")


def _check_weights(loss: Loss, u: Tensor, encoded: Tensor) -> None:
    """A row of weight 3 is the same as three rows, here and in the score."""
    row_weights = torch.arange(N) % 3 + 1
    curvature = loss.effective_curvature(u, encoded, row_weights.to(u))
    assert curvature > 0, f"effective_curvature must be positive, got {curvature}"
    many = loss.effective_curvature(*(part.repeat_interleave(row_weights, 0) for part in (u, encoded)))
    close(torch.tensor(curvature), torch.tensor(many), "effective_curvature does not weight rows by row_weights")
    assert curvature <= 2 * loss.curvature, (
        f"effective_curvature must be at most twice the curvature, {loss.curvature}, got {curvature}"
    )
    score = loss.score(u, encoded, row_weights.to(u))
    repeated = loss.score(*(part.repeat_interleave(row_weights, 0) for part in (u, encoded)))
    close(torch.tensor(score), torch.tensor(repeated), "score does not weight rows by row_weights")


def _check_hessian_vectors(loss: Loss, u: Tensor, encoded: Tensor) -> None:
    """Their outer products add up to the Hessian, found from differences of the gradient, or to the effective curvature times I."""
    if loss.curvature == torch.inf:
        return
    vectors, (n, p), step = loss.hessian_vectors(u, encoded), u.shape, 1e-5
    assert vectors.shape[1:] == (n, p), f"hessian_vectors gave shape {tuple(vectors.shape)}, expected (m, {n}, {p})"
    found, shifts = torch.einsum("mni,mnj->nij", vectors, vectors), step * torch.eye(p, dtype=u.dtype)
    ends = [torch.stack([loss.grad(u + sign * shift, encoded) for shift in shifts], 1) for sign in (1, -1)]
    exact, effective = (ends[0] - ends[1]) / (2 * step), loss.effective_curvature(u, encoded)
    mean, bound = float(exact.diagonal(dim1=1, dim2=2).mean()), effective * torch.eye(p, dtype=u.dtype)
    assert effective >= (1 - 1e-3) * mean, (
        f"effective_curvature is {effective:.4g}, below the mean curvature, {mean:.4g}"
    )
    agrees = any(bool((found - each).abs().max() <= 1e-4 * (1 + each.abs().max())) for each in (exact, bound))
    assert agrees, "hessian_vectors make up neither the Hessian nor the effective curvature times I"
    coefficients = torch.linspace(-1, 2, 3 * len(vectors), dtype=u.dtype).view(3, -1)
    combined = loss.combined_hessian_vectors(u, encoded, coefficients)
    expected = torch.einsum("km,mnp->knp", coefficients, vectors)
    close(combined, expected, "combined_hessian_vectors are not the sums of hessian_vectors times the coefficients")
