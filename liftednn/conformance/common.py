"""What the checks share: points, rivals, and what holds for every divergence as a function of u."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.base import Divergence

__all__ = ["SLACK", "WIDTH", "N", "below_cap", "check_in_u", "check_minimal", "close", "draws", "rivals"]

N, WIDTH, SLACK = 64, 6, 1e-7


def draws(seed: int, count: int, p: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, p, generator=generator, dtype=torch.float64) for _ in range(count)]


def close(a: Tensor, b: Tensor, sentence: str, share: float = 1e-9) -> None:
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    size = 1 + b.abs().max()
    assert bool((a - b).abs().max() <= share * size), f"{sentence}: they differ by {float((a - b).abs().max()):.3g}"


def below_cap(divergence: Divergence, u: Tensor, z: Tensor) -> Tensor:
    """u moved into the domain that z leaves it."""
    return torch.minimum(u, divergence.cap(z)) if divergence.capped else u


def rivals(z: Tensor, seed: int, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Points near and far, as they are and pulled into the domain."""
    generator = torch.Generator().manual_seed(seed + 17)
    rivals = []
    for size in (1e-3, 1e-2, 0.1, 1.0, 5.0):
        moved = z + size * torch.randn(*z.shape, generator=generator, dtype=z.dtype)
        rivals += [moved, project(moved)]
    return rivals


def check_in_u(divergence: Divergence, u: Tensor, other: Tensor, z: Tensor) -> None:
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


def check_minimal(
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
