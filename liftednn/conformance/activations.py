"""`check_activation`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.base import Activation
from liftednn.conformance.common import SLACK, WIDTH, N, below_cap, check_in_u, check_minimal, close, draws, rivals
from liftednn.functional import box_prox

__all__ = ["check_activation"]


def check_activation(activation: Activation, width: int = WIDTH, seed: int = 0) -> None:
    """phi is the argmin; D is convex as declared; gradient, curvature, prox, box, homogeneity and refit agree with D's values."""
    p = activation.fan(width)
    assert activation.width(p) == width, (
        f"fan({width}) = {p}, but width({p}) = {activation.width(p)}: they must be inverse"
    )
    u, other = (3 * draw for draw in draws(seed, 2, p))
    z = activation(u)
    assert z.shape == (N, width), f"phi gave shape {tuple(z.shape)} for {N} rows of {p}: expected {(N, width)}"
    assert activation(u.float()).dtype == torch.float32, "phi must keep float32"
    _check_argmin(activation, u, seed)
    reached = activation.prox(z, other, 0.7)  # a point of the domain that is not phi(u)
    inside = below_cap(activation, u, reached)
    for size in (1.0, 0.1):  # far out, and near 0, where a sigmoid bends most
        check_in_u(
            activation,
            below_cap(activation, size * u, reached),
            below_cap(activation, size * other, reached),
            reached,
        )
    _check_in_z(activation, inside, reached, activation.prox(reached, inside, 0.3))
    _check_prox(activation, u, other, seed)
    if activation.boxed:
        _check_box(activation, u, activation.prox(z.flip(0), u, 0.5))
    if activation.joint and not activation.refusal:
        _check_prox_joint(activation, u, reached, seed)
    _check_refit(activation, inside, reached)
    if activation.homogeneous:
        scaled = activation.value(3 * inside, 3 * reached)
        close(scaled, 9 * activation.value(inside, reached), "declared homogeneous, but D(3u, 3z) is not 9 D(u, z)")


def _check_argmin(activation: Activation, u: Tensor, seed: int) -> None:
    z = activation(u)
    least = activation.value(u, z)
    assert bool(least.isfinite().all()), "D(u, phi(u)) must be finite"
    for rival in rivals(z, seed, lambda v: activation.prox(v, u, 1e-3)):
        energy = activation.value(u, rival)
        assert bool((energy >= least - SLACK * (1 + least.abs())).all()), "phi(u) is not the argmin over z of D(u, z)"


def _check_in_z(activation: Activation, u: Tensor, z: Tensor, other: Tensor) -> None:
    """Convexity in z at midpoints, and in (u, z) where it is declared."""
    ends = (activation.value(u, z) + activation.value(u, other)) / 2
    middle = activation.value(u, (z + other) / 2)
    assert bool((middle <= ends + SLACK * (1 + ends.abs())).all()), "D is not convex in z"
    if activation.joint:
        flipped, moved = u.flip(0), other.flip(0)
        flipped = below_cap(activation, flipped, moved)
        ends = (activation.value(u, z) + activation.value(flipped, moved)) / 2
        middle = activation.value((u + flipped) / 2, (z + moved) / 2)
        assert bool((middle <= ends + SLACK * (1 + ends.abs())).all()), (
            "declared jointly convex, but D is not at a midpoint"
        )


def _check_prox(activation: Activation, u: Tensor, other: Tensor, seed: int) -> None:
    v = activation(other) + 0.5 * activation(u).flip(0)
    for step in (0.05, 1.0, 20.0):
        found = activation.prox(v, u, step)
        check_minimal(lambda z: activation.value(u, z), found, v, step, "prox", seed)
        if activation.curvature == torch.inf:
            moved = activation.prox_u(other, found, step)
            check_minimal(lambda a, z=found: activation.value(a, z), moved, other, step, "prox_u", seed)  # type: ignore[misc]


def _check_prox_joint(activation: Activation, a: Tensor, b: Tensor, seed: int) -> None:
    """In u and z together: no pair of rivals inside the domain does better."""
    for step in (0.05, 1.0, 20.0):
        u, z = activation.prox_joint(a, b, step)
        shapes = [u.shape[-1], z.shape[-1]]

        def energy(pair: Tensor, shapes: list[int] = shapes) -> Tensor:
            return activation.value(*torch.split(pair, shapes, -1))

        pulled = torch.cat([a, b], -1)
        check_minimal(energy, torch.cat([u, z], -1), pulled, step, "prox_joint", seed)
        other = activation.prox_joint(a.flip(0), b.flip(0), step)
        toward = torch.lerp(torch.cat([u, z], -1), torch.cat(other, -1), 1e-2)  # inside, since the domain is convex
        _check_no_better(energy, torch.cat([u, z], -1), toward, pulled, step)


def _check_no_better(energy: Callable[[Tensor], Tensor], found: Tensor, rival: Tensor, v: Tensor, step: float) -> None:
    least, other = (energy(point) + (point - v).square().sum(-1) / (2 * step) for point in (found, rival))
    assert bool((other >= least - SLACK * (1 + least.abs())).all()), f"prox_joint is not a minimiser at step {step}"


def _check_box(activation: Activation, u: Tensor, other: Tensor) -> None:
    z, box = activation(u), activation.box(u)

    def quadratic(a: Tensor) -> Tensor:
        return (box.weight * a * a / 2 - box.pull * a).sum(-1)

    close(
        activation.value(u, z) - activation.value(u, other),
        quadratic(z) - quadratic(other),
        "box and value disagree in z",
    )
    for step in (0.05, 1.0, 20.0):
        close(box_prox(box, other, step), activation.prox(other, u, step), "box and prox disagree")


def _check_refit(activation: Activation, u: Tensor, z: Tensor) -> None:
    counts = torch.arange(len(u)) % 3 + 0.5
    found = activation.refit(u, z, counts)
    assert activation.learned or found is activation, "refit gives another activation: name what it learns in `learned`"
    before, after = (float(each.value(u, z) @ counts.to(u)) for each in (activation, found))
    assert after <= before + SLACK * (1 + abs(before)), f"refit raises the sum of D from {before:.6g} to {after:.6g}"
