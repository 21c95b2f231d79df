"""Checks of activations, losses, penalties and operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.base import Activation, Affine, Divergence, Loss, Operator, Penalty
from liftednn.functional import box_prox

__all__ = [
    "SLACK",
    "WIDTH",
    "check_activation",
    "check_loss",
    "check_operator",
    "check_penalty",
    "close",
    "draws",
    "rivals",
]

_N, WIDTH, SLACK = 64, 6, 1e-7


def check_activation(activation: Activation, width: int = WIDTH, seed: int = 0) -> None:
    """phi is the argmin; D is convex as declared; gradient, curvature, prox, box, homogeneity and refit agree with D's values."""
    p = activation.fan(width)
    assert activation.width(p) == width, (
        f"fan({width}) = {p}, but width({p}) = {activation.width(p)}: they must be inverse"
    )
    u, other = (3 * draw for draw in draws(seed, 2, p))
    z = activation(u)
    assert z.shape == (_N, width), f"phi gave shape {tuple(z.shape)} for {_N} rows of {p}: expected {(_N, width)}"
    assert activation(u.float()).dtype == torch.float32, "phi must keep float32"
    _check_argmin(activation, u, seed)
    reached = activation.prox(z, other, 0.7)  # a point of the domain that is not phi(u)
    inside = _below_cap(activation, u, reached)
    for size in (1.0, 0.1):  # far out, and near 0, where a sigmoid bends most
        _check_in_u(
            activation,
            _below_cap(activation, size * u, reached),
            _below_cap(activation, size * other, reached),
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


def check_loss(loss: Loss, width: int = WIDTH, seed: int = 0) -> None:
    """Convex in u with the declared gradient and curvature; encode and decode are inverse."""
    u, other = draws(seed, 2, width)
    classes = not loss.decode(u).is_floating_point()
    y = torch.arange(_N) % width if classes else loss.decode(u.flip(0))
    encoded = loss.encode(y, width).double()
    assert encoded.shape == (_N, width), f"encode gave shape {tuple(encoded.shape)}, expected {(_N, width)}"
    if classes:
        assert torch.equal(loss.decode(encoded), y), "decode(encode(y)) must give the labels back"
        assert loss.score(encoded, encoded) == 1.0, "labels scored against themselves must give 1"
    if not bool(loss.value(u, encoded).isfinite().all()):
        u, other = u.softmax(-1), other.softmax(-1)
    _check_in_u(loss, u, other, encoded)
    if loss.curvature == torch.inf:
        _check_minimal(lambda v: loss.value(v, encoded), loss.prox_u(u, encoded, 0.7), u, 0.7, "prox_u", seed)


def check_penalty(penalty: Penalty, shape: tuple[int, int] = (4, WIDTH), seed: int = 0) -> None:
    """Non-negative; convex, or declared not to be; prox minimises; `ridge` and `box` agree with the value."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, generator=generator, dtype=torch.float64)
    inside, other = penalty.prox(w, 0.4), penalty.prox(w.flip(0), 0.4)
    value = penalty.value
    assert 0 <= value(inside) < torch.inf, f"pi must be finite and non-negative at prox(w), got {value(inside)}"
    if penalty.convex:
        assert value((inside + other) / 2) <= (value(inside) + value(other)) / 2 + SLACK, "pi is not convex"
    else:
        _check_projection(penalty, w, inside, seed)
    _check_minimal(lambda v: value(v)[None], inside, w, 0.4, "prox", seed, whole=True)
    if penalty.ridge is not None:
        close(value(inside), penalty.ridge * inside.square().sum(), "ridge = rho must mean pi(w) = rho |w|^2")
    if penalty.boxed:
        close(box_prox(penalty.box(), w, 0.4), inside, "box and prox disagree")


def _check_projection(penalty: Penalty, w: Tensor, found: Tensor, seed: int) -> None:
    """On a set without convexity: points of the set stay, and none of many others is better than prox(w)."""
    close(penalty.prox(found, 0.0), found, "prox with step 0 must leave a point of the set where it is")
    near = [point for centre in (found, w) for point in rivals(centre, seed, lambda moved: moved)]
    pulled = [penalty.prox(point, 0.0) for point in near]
    least = penalty.value(found) + (found - w).square().sum() / 0.8
    for rival in pulled:
        reached = penalty.value(rival) + (rival - w).square().sum() / 0.8
        assert bool(reached >= least - SLACK * (1 + least.abs())), (
            "prox is not a minimiser: another point of the set is better"
        )


def check_operator(operator: Operator, seed: int = 0) -> None:
    """Affine in x with the declared adjoint, Gram matrix and norm; linear in (w, b) through `unfold`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, r = draw(_N, operator.in_width), draw(_N, operator.out_width)
    weights = Affine(draw(*operator.weight_shape), draw(operator.weight_shape[0]))
    u, at_zero = operator.forward(x, weights), operator.forward(torch.zeros_like(x), weights)
    assert u.shape == r.shape, f"forward gave shape {tuple(u.shape)}, expected {tuple(r.shape)}"
    back = operator.adjoint(r, weights)
    close(((u - at_zero) * r).sum(), (x * back).sum(), "adjoint fails <A x, r> = <x, A' r>")
    regression = operator.unfold(x) @ weights.w.T + weights.b
    close(regression.reshape(u.shape), u, "forward(x) must be unfold(x) w' + b")
    close(x @ operator.gram(weights), operator.adjoint(u - at_zero, weights), "gram must be adjoint after forward")
    largest = float(torch.linalg.eigvalsh(operator.gram(weights))[-1])
    close(
        torch.tensor(operator.norm(weights) ** 2), torch.tensor(largest), "norm must be the spectral norm", share=1e-5
    )


def draws(seed: int, count: int, p: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(_N, p, generator=generator, dtype=torch.float64) for _ in range(count)]


def close(a: Tensor, b: Tensor, sentence: str, share: float = 1e-9) -> None:
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    size = 1 + b.abs().max()
    assert bool((a - b).abs().max() <= share * size), f"{sentence}: they differ by {float((a - b).abs().max()):.3g}"


def _below_cap(divergence: Divergence, u: Tensor, z: Tensor) -> Tensor:
    """u moved into the domain that z leaves it."""
    return torch.minimum(u, divergence.cap(z)) if divergence.capped else u


def _check_argmin(activation: Activation, u: Tensor, seed: int) -> None:
    z = activation(u)
    least = activation.value(u, z)
    assert bool(least.isfinite().all()), "D(u, phi(u)) must be finite"
    for rival in rivals(z, seed, lambda v: activation.prox(v, u, 1e-3)):
        energy = activation.value(u, rival)
        assert bool((energy >= least - SLACK * (1 + least.abs())).all()), "phi(u) is not the argmin over z of D(u, z)"


def rivals(z: Tensor, seed: int, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Points near and far, as they are and pulled into the domain."""
    generator = torch.Generator().manual_seed(seed + 17)
    rivals = []
    for size in (1e-3, 1e-2, 0.1, 1.0, 5.0):
        moved = z + size * torch.randn(*z.shape, generator=generator, dtype=z.dtype)
        rivals += [moved, project(moved)]
    return rivals


def _check_in_u(divergence: Divergence, u: Tensor, other: Tensor, z: Tensor) -> None:
    """Convexity, gradient and curvature in u, along segments inside the domain."""
    near = torch.lerp(u, other, 1e-5)
    value, gradient = divergence.value(u, z), divergence.grad(u, z)
    assert bool(value.isfinite().all()), "D must be finite in its domain"
    for point in (other, torch.lerp(u, other, 0.5), near):
        move = point - u
        linear, size = value + (gradient * move).sum(-1), 1 + value.abs() + divergence.value(point, z).abs()
        rise = divergence.value(point, z) - linear
        assert bool((rise >= -SLACK * size).all()), "D is not convex in u with this gradient: a tangent lies above it"
        if divergence.curvature < torch.inf:
            bound = divergence.curvature / 2 * move.square().sum(-1)
            assert bool((rise <= bound + SLACK * size).all()), (
                f"curvature {divergence.curvature} is not an upper bound, or grad is wrong"
            )
    if divergence.quadratic:
        spread = divergence.value(other, z) - value
        expected = divergence.curvature / 2 * ((other - z).square() - (u - z).square()).sum(-1)
        close(spread, expected, "declared quadratic, but D is not curvature / 2 |u - z|^2 + const(z)")


def _check_in_z(activation: Activation, u: Tensor, z: Tensor, other: Tensor) -> None:
    """Convexity in z at midpoints, and in (u, z) where it is declared."""
    ends = (activation.value(u, z) + activation.value(u, other)) / 2
    middle = activation.value(u, (z + other) / 2)
    assert bool((middle <= ends + SLACK * (1 + ends.abs())).all()), "D is not convex in z"
    if activation.joint:
        flipped, moved = u.flip(0), other.flip(0)
        flipped = _below_cap(activation, flipped, moved)
        ends = (activation.value(u, z) + activation.value(flipped, moved)) / 2
        middle = activation.value((u + flipped) / 2, (z + moved) / 2)
        assert bool((middle <= ends + SLACK * (1 + ends.abs())).all()), (
            "declared jointly convex, but D is not at a midpoint"
        )


def _check_prox(activation: Activation, u: Tensor, other: Tensor, seed: int) -> None:
    v = activation(other) + 0.5 * activation(u).flip(0)
    for step in (0.05, 1.0, 20.0):
        found = activation.prox(v, u, step)
        _check_minimal(lambda z: activation.value(u, z), found, v, step, "prox", seed)
        if activation.curvature == torch.inf:
            moved = activation.prox_u(other, found, step)
            _check_minimal(lambda a, z=found: activation.value(a, z), moved, other, step, "prox_u", seed)  # type: ignore[misc]


def _check_prox_joint(activation: Activation, a: Tensor, b: Tensor, seed: int) -> None:
    """In u and z together: no pair of rivals inside the domain does better."""
    for step in (0.05, 1.0, 20.0):
        u, z = activation.prox_joint(a, b, step)
        shapes = [u.shape[-1], z.shape[-1]]

        def energy(pair: Tensor, shapes: list[int] = shapes) -> Tensor:
            return activation.value(*torch.split(pair, shapes, -1))

        pulled = torch.cat([a, b], -1)
        _check_minimal(energy, torch.cat([u, z], -1), pulled, step, "prox_joint", seed)
        other = activation.prox_joint(a.flip(0), b.flip(0), step)
        toward = torch.lerp(torch.cat([u, z], -1), torch.cat(other, -1), 1e-2)  # inside, since the domain is convex
        _check_no_better(energy, torch.cat([u, z], -1), toward, pulled, step)


def _check_no_better(energy: Callable[[Tensor], Tensor], found: Tensor, rival: Tensor, v: Tensor, step: float) -> None:
    least, other = (energy(point) + (point - v).square().sum(-1) / (2 * step) for point in (found, rival))
    assert bool((other >= least - SLACK * (1 + least.abs())).all()), f"prox_joint is not a minimiser at step {step}"


def _check_minimal(
    energy: Callable[[Tensor], Tensor], found: Tensor, v: Tensor, step: float, name: str, seed: int, whole: bool = False
) -> None:
    """`found` minimises energy + |. - v|^2 / (2 step) among points near and far."""

    def objective(point: Tensor) -> Tensor:
        distance = (point - v).square() / (2 * step)
        return energy(point) + (distance.sum() if whole else distance.sum(-1))

    least = objective(found)
    assert bool(least.isfinite().all()), f"{name} must land inside the domain"
    for rival in rivals(found, seed, lambda moved: torch.lerp(found, moved, 0.5)):
        assert bool((objective(rival) >= least - SLACK * (1 + least.abs())).all()), (
            f"{name} is not a minimiser at step {step}"
        )


def _check_refit(activation: Activation, u: Tensor, z: Tensor) -> None:
    counts = torch.arange(len(u)) % 3 + 0.5
    found = activation.refit(u, z, counts)
    assert activation.learned or found is activation, "refit gives another activation: name what it learns in `learned`"
    before, after = (float(each.value(u, z) @ counts.to(u)) for each in (activation, found))
    assert after <= before + SLACK * (1 + abs(before)), f"refit raises the sum of D from {before:.6g} to {after:.6g}"


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
