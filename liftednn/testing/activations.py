"""The check for activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from liftednn.base import Activation, Divergence, Granularity
from liftednn.functional import box_prox
from liftednn.testing.common import (
    SLACK,
    WIDTH,
    N,
    below_cap,
    check_in_u,
    check_kept,
    check_minimal,
    check_row_alone,
    check_separable,
    check_units,
    close,
    draws,
    no_better,
    rivals,
)

__all__ = ["check_activation"]


def check_activation(activation: Activation, width: int = WIDTH, seed: int = 0) -> None:
    """phi is the argmin; D is convex as declared; gradient, curvature, prox, box, homogeneity and refit agree with D's values.

    activation   an object of your class, for `width` states
    seed         of the random points

    Returns None, or raises an AssertionError that says what does not hold.

    >>> lnn.testing.check_activation(lnn.activations.ReLU())
    """
    p = activation.preactivation_width(width)
    assert activation.width(p) == width, (
        f"preactivation_width({width}) = {p}, but width({p}) = {activation.width(p)}: they must be inverse"
    )
    shape = activation.state_shape((p,))
    assert math.prod(shape) == width, f"state_shape({(p,)}) = {shape} does not have {width} entries"
    u, other = (3 * draw for draw in draws(seed, 2, p))
    check_kept("phi", activation, u)
    check_row_alone("phi", activation, u)
    z = activation(u)
    assert z.shape == (N, width), f"phi gave shape {tuple(z.shape)} for {N} rows of {p}: expected {(N, width)}"
    _check_argmin(activation, u, seed)
    reached = activation.prox(z, other, 0.7)  # a point of the domain that is not phi(u)
    inside = below_cap(activation, u, reached)
    for size in (1.0, 0.1):  # far from 0, and near 0, where a sigmoid has the most curvature
        check_in_u(
            activation,
            below_cap(activation, size * u, reached),
            below_cap(activation, size * other, reached),
            reached,
        )
    check_units(activation, inside, reached)
    check_separable(activation, inside, below_cap(activation, other, reached), reached)
    if activation.unitwise:
        _check_restrict(activation, u)
    _check_in_z(activation, inside, reached, activation.prox(reached, inside, 0.3))
    _check_prox(activation, u, other, seed)
    if activation.boxed:
        _check_box(activation, u, activation.prox(z.flip(0), u, 0.5))
    if activation.joint and not activation.why_not_trainable:
        _check_prox_joint(activation, u, reached, seed)
    if activation.capped:
        _check_cap(activation, inside, below_cap(activation, other, reached), reached)
    if activation.curvature < torch.inf and not activation.why_not_trainable:
        _check_tilted(activation, u, activation(other), seed)
    for name, call, *given in _calls(activation, inside, reached):
        check_kept(name, call, *given)
        check_row_alone(name, lambda *rows, call=call: _joined(call(*rows)), *given)
    _check_refit(activation, inside, reached)
    if activation.homogeneous:
        scaled = activation.value(3 * inside, 3 * reached)
        close(scaled, 9 * activation.value(inside, reached), "declared homogeneous, but D(3u, 3z) is not 9 D(u, z)")


def _calls(activation: Activation, u: Tensor, z: Tensor) -> Iterator[tuple[Any, ...]]:
    """The methods that this activation has, by name, and what they are given."""
    yield "value", activation.value, u, z
    yield "grad", activation.grad, u, z
    yield "prox", lambda v, u: activation.prox(v, u, 0.7), z, u
    if _has_prox_u(activation):
        yield "prox_u", lambda v, z: activation.prox_u(v, z, 0.7), u, z
    if activation.joint and not activation.why_not_trainable:
        yield "prox_joint", lambda a, b: activation.prox_joint(a, b, 0.7), u, z
    if activation.curvature < torch.inf and not activation.why_not_trainable:
        yield "argmin", activation.argmin, u, z
        yield "phi_and_x_step", lambda u, g: activation.phi_and_x_step(u)[1](g, 1.0), u, z


def _joined(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    return torch.cat(found, -1) if isinstance(found, tuple) else found


def _has_prox_u(activation: Activation) -> bool:
    own = activation.curvature == torch.inf or type(activation).prox_u is not Divergence.prox_u
    return own and not activation.why_not_exact


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
        if _has_prox_u(activation):
            moved = activation.prox_u(other, found, step)
            check_minimal(lambda a, z=found: activation.value(a, z), moved, other, step, "prox_u", seed)  # type: ignore[misc]


def _check_prox_joint(activation: Activation, a: Tensor, b: Tensor, seed: int) -> None:
    """In u and z together: no pair of rivals inside the domain does better."""
    for step in (0.05, 1.0, 20.0):
        u, z = activation.prox_joint(a, b, step)
        shapes = [u.shape[-1], z.shape[-1]]

        def energy(pair: Tensor, shapes: list[int] = shapes) -> Tensor:
            return activation.value(*torch.split(pair, shapes, -1))

        point = torch.cat([a, b], -1)
        check_minimal(energy, torch.cat([u, z], -1), point, step, "prox_joint", seed)
        other = activation.prox_joint(a.flip(0), b.flip(0), step)
        toward = torch.lerp(torch.cat([u, z], -1), torch.cat(other, -1), 1e-2)  # inside, since the domain is convex
        _check_no_better(energy, torch.cat([u, z], -1), toward, point, step)


def _check_no_better(energy: Callable[[Tensor], Tensor], found: Tensor, rival: Tensor, v: Tensor, step: float) -> None:
    least, other = (energy(point) + (point - v).square().sum(-1) / (2 * step) for point in (found, rival))
    assert bool((other >= least - SLACK * (1 + least.abs())).all()), f"prox_joint is not a minimiser at step {step}"


def _check_box(activation: Activation, u: Tensor, other: Tensor) -> None:
    z, box = activation(u), activation.box(u)

    def quadratic(a: Tensor) -> Tensor:
        return (box.weight * a * a / 2 - box.linear * a).sum(-1)

    close(
        activation.value(u, z) - activation.value(u, other),
        quadratic(z) - quadratic(other),
        "box and value disagree in z",
    )
    for step in (0.05, 1.0, 20.0):
        close(box_prox(box, other, step), activation.prox(other, u, step), "box and prox disagree")


def _check_cap(activation: Activation, u: Tensor, other: Tensor, z: Tensor) -> None:
    """|u - s(z)|^2 below the cap, so that a midpoint is lower than the mean of its ends by |u - other|^2 / 4; +inf above it."""
    ends = (activation.value(u, z) + activation.value(other, z)) / 2
    sag = ends - activation.value((u + other) / 2, z)
    close(sag, (u - other).square().sum(-1) / 4, "declared capped, but D is not |u - s(z)|^2 below the cap")
    for unit in range(u.shape[-1]):
        above = activation.cap(z).clone()
        above[:, unit] += 0.1 + 0.1 * above[:, unit].abs()
        assert bool(activation.value(above, z).isinf().all()), (
            "cap is not the largest u that z allows: D is finite above"
        )


def _check_tilted(activation: Activation, u: Tensor, other: Tensor, seed: int) -> None:
    """Against points near and far: the states of other pre-activations are of the domain, unless it depends on u."""
    for size in (0.1, 3.0):
        g = size * draws(seed + 3, 1, other.shape[-1])[0]
        found = activation.argmin(u, g)
        near = [
            point
            for each in rivals(found, seed, lambda v: activation.prox(v, u, 1e-3))
            for point in (each, each.lerp(found, 0.9))
        ]
        others = [activation(u), other, other.lerp(found, 0.9), *near]
        no_better(
            lambda z, g=g: activation.value(u, z) + (g * z).sum(-1),  # type: ignore[misc]
            found,
            others,
            "argmin(u, g) is not the argmin over z of D(u, z) + <g, z>",
            slack=1e-5,  # D may be a quadrature, and the default stops after a few proximal points
        )
        phi, x_step = activation.phi_and_x_step(u)
        z, gradient = x_step(3 * g, 3.0)
        close(phi, activation(u), "phi_and_x_step(u) must give phi(u) first")
        close(z, found, "the X-step of phi_and_x_step(u) must give argmin(u, g / lam) first")
        close(
            gradient,
            3 * activation.grad(u, found),
            "the X-step of phi_and_x_step(u) must give lam times the gradient in u next",
        )


def _check_restrict(activation: Activation, u: Tensor) -> None:
    kept, sentence = torch.arange(0, u.shape[-1], 2), "restrict(units) must give the states of those units"
    try:
        found = activation.restrict(kept)(u[:, kept])
    except RuntimeError as error:
        raise AssertionError(f"{sentence}: with every second unit it fails: {error}") from error
    close(found, activation(u)[:, kept], sentence)


def _check_refit(activation: Activation, u: Tensor, z: Tensor) -> None:
    granularities: tuple[Granularity, ...] = (
        ("layer", "unit") if activation.learned and activation.unitwise else ("layer",)
    )
    for per in granularities:
        _check_lower(activation, u, z, per)
    if activation.learned:
        _check_rows(activation, u, z)
        _check_refit_in_float32(activation, u, z)


def _parameters(activation: Activation) -> dict[str, Tensor]:
    return {name: torch.as_tensor(getattr(activation, name), dtype=torch.float64) for name in activation.learned}


def _check_rows(activation: Activation, u: Tensor, z: Tensor) -> None:
    """Rows of weight 0 have no effect and, where `summed` is declared, rows of tiny weight almost none."""
    half = len(u) // 2
    z = torch.cat([z[:half].lerp(z.mean(0), 0.5), z[half:]])  # so that the rows with weight are not the extreme ones
    weights = (torch.arange(len(u)) < half).double().clamp(min=1e-12 if activation.summed else 0.0)
    whole, few = (_parameters(activation.refit(*rows)) for rows in ((u, z, weights), (u[:half], z[:half])))
    for name in activation.learned:
        close(
            whole[name],
            few[name],
            f"refit does not weight rows by sample_weight, or is not `summed`: {name}",
            rtol=1e-6,
        )


def _check_refit_in_float32(activation: Activation, u: Tensor, z: Tensor) -> None:
    exact, single = (_parameters(activation.refit(*pair)) for pair in ((u, z), (u.float(), z.float())))
    for name in activation.learned:
        close(single[name], exact[name], f"refit gives another {name} in float32", rtol=1e-2)


def _check_lower(activation: Activation, u: Tensor, z: Tensor, per: Granularity) -> None:
    row_weights = torch.arange(len(u)) % 3 + 0.5
    found = activation.refit(u, z, row_weights, per)
    assert activation.learned or found is activation, "refit gives another activation: name what it learns in `learned`"
    before, after = (float(each.value(u, z) @ row_weights.to(u)) for each in (activation, found))
    assert after <= before + SLACK * (1 + abs(before)), f"refit raises the sum of D from {before:.6g} to {after:.6g}"
    shapes = {name: tuple(each.shape) for name, each in _parameters(found).items()}
    assert per == "layer" or set(shapes.values()) <= {u.shape[1:]}, (
        f"refit per unit must give one entry each, got {shapes}"
    )
    _check_least(activation, found, u, z, row_weights.to(u))


def _check_least(activation: Activation, found: Activation, u: Tensor, z: Tensor, row_weights: Tensor) -> None:
    """The learned parameters lie within the limits, and none close by is better."""
    least = float(found.value(u, z) @ row_weights)
    for name, now in _parameters(found).items():
        given = _parameters(activation)[name]
        lower, upper = min(activation.limits[0], float(given.min())), max(activation.limits[1], float(given.max()))
        inside = (now >= lower - SLACK) & (now <= upper + SLACK)
        assert bool(inside.all()), f"refit leaves `limits`: {name} is {now}"
        for factor in (0.9, 0.99, 1.01, 1.1):
            energy = _energy(found, name, (now * factor).clamp(lower, upper), u, z) @ row_weights
            assert bool(energy >= least - SLACK * (1 + abs(least))), (
                f"refit is not the minimiser: another {name} is better"
            )


def _energy(activation: Activation, name: str, parameter: Tensor, u: Tensor, z: Tensor) -> Tensor:
    """D with another parameter; +inf where the class refuses it, as bounds in the wrong order."""
    given = parameter if parameter.ndim else float(parameter)
    try:
        return replace(activation, **{name: given}).value(u, z)  # type: ignore[type-var]
    except ValueError:
        return torch.full_like(u[:, 0], torch.inf)
