"""What the checks share: random points, and the properties of every divergence as a function of u."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from liftednn.base import Divergence

__all__ = [
    "SLACK",
    "WIDTH",
    "N",
    "below_cap",
    "check_in_u",
    "check_kept",
    "check_minimal",
    "check_row_alone",
    "check_separable",
    "check_units",
    "check_unwritten",
    "close",
    "draws",
    "no_better",
    "rivals",
]

N, WIDTH, SLACK = 64, 6, 1e-7

Found = TypeVar("Found")


def draws(seed: int, count: int, p: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, p, generator=generator, dtype=torch.float64) for _ in range(count)]


def close(a: Tensor, b: Tensor, sentence: str, rtol: float = 1e-9) -> None:
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    size = 1 + torch.where(b.isfinite(), b.abs(), 0.0).max()
    off = torch.where(a == b, 0.0, (a - b).abs()).max()  # two infinities agree
    assert bool(off <= rtol * size), f"{sentence}: they differ by {float(off):.3g}"


def no_better(
    energy: Callable[[Tensor], Tensor], found: Tensor, others: Iterable[Tensor], sentence: str, slack: float = SLACK
) -> None:
    """`found` has the least energy, row by row."""
    least = energy(found)
    assert bool(least.isfinite().all()), f"{sentence}: it lies outside the domain"
    for other in others:
        assert bool((energy(other) >= least - slack * (1 + least.abs())).all()), f"{sentence}: another point has less"


def check_kept(name: str, call: Callable[..., Tensor | tuple[Tensor, ...]], *given: Tensor) -> None:
    """A call keeps float32, and writes to nothing that it is given."""
    single = [each.float() for each in given]
    found = check_unwritten(name, call, *single)
    for part in found if isinstance(found, tuple) else (found,):
        assert part.dtype == torch.float32, f"{name} must keep float32, got {part.dtype}"


def check_unwritten(name: str, call: Callable[..., Found], *given: Tensor) -> Found:
    """What a call returns, which writes to nothing that it is given."""
    before = [each.clone() for each in given]
    found = call(*given)
    same = all(torch.equal(now, each) for now, each in zip(given, before, strict=True))
    assert same, f"{name} must not write to its arguments"
    return found


def check_row_alone(name: str, call: Callable[..., Tensor], *given: Tensor) -> None:
    """A call gives a row alone what it gives it among others."""
    close(call(*(each[:1] for each in given)), call(*given)[:1], f"{name} of one row must not depend on the others")


def below_cap(divergence: Divergence, u: Tensor, z: Tensor) -> Tensor:
    """u moved into the domain that z allows."""
    return torch.minimum(u, divergence.cap(z)) if divergence.capped else u


def rivals(z: Tensor, seed: int, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Points near and far from z, unchanged and projected into the domain."""
    generator = torch.Generator().manual_seed(seed + 17)
    rivals = []
    for size in (1e-3, 1e-2, 0.1, 1.0, 5.0):
        moved = z + size * torch.randn(*z.shape, generator=generator, dtype=z.dtype)
        rivals += [moved, project(moved)]
    return rivals


def check_in_u(divergence: Divergence, u: Tensor, other: Tensor, z: Tensor) -> None:
    """Convexity, gradient and curvature in u, along segments inside the domain; on them the order of the entries of u stays the same where
    no more is declared."""
    raised: list[Tensor] = []
    if divergence.why_not_exact:
        other, raised = _in_order_of(u, other), [u + (u == u.amax(-1, keepdim=True)).to(u)]
    near = torch.lerp(u, other, 1e-5)
    value, gradient = divergence.value(u, z), divergence.grad(u, z)
    assert value.shape == u.shape[:1], (
        f"value gave shape {tuple(value.shape)}, expected one energy per row, {(len(u),)}"
    )
    assert gradient.shape == u.shape, f"grad gave shape {tuple(gradient.shape)}, expected {tuple(u.shape)}"
    assert bool(value.isfinite().all()), "D must be finite in its domain"
    for point in (other, torch.lerp(u, other, 0.5), near, *raised):
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


def _in_order_of(u: Tensor, other: Tensor) -> Tensor:
    """The entries of each row of `other`, permuted so that they have the order of those of u."""
    return torch.empty_like(other).scatter_(-1, u.argsort(-1), other.sort(-1).values)


def check_minimal(
    energy: Callable[[Tensor], Tensor], found: Tensor, v: Tensor, step: float, name: str, seed: int
) -> None:
    """`found` minimises energy + |. - v|^2 / (2 step), compared with points near and far."""

    def objective(point: Tensor) -> Tensor:
        return energy(point) + (point - v).square().sum(-1) / (2 * step)

    least = objective(found)
    assert bool(least.isfinite().all()), f"{name} must land inside the domain"
    for rival in rivals(found, seed, lambda moved: torch.lerp(found, moved, 0.5)):
        assert bool((objective(rival) >= least - SLACK * (1 + least.abs())).all()), (
            f"{name} is not a minimiser at step {step}"
        )


def check_units(divergence: Divergence, u: Tensor, z: Tensor) -> None:
    """`unitwise`: D is a sum over units, so mixing the units of two rows keeps their total. `uniform`: all units have the same D."""
    assert divergence.unitwise or not divergence.uniform, "declared uniform, but not unitwise"
    if not divergence.unitwise:
        return
    assert u.shape == z.shape, "declared unitwise, but there are not as many states as pre-activations"
    even = torch.arange(u.shape[-1]) % 2 == 0
    mixed = [torch.where(even, part, part.flip(0)) for part in (u, z)]
    total, whole = (divergence.value(*pair) for pair in (mixed, (u, z)))
    close(total + total.flip(0), whole + whole.flip(0), "declared unitwise, but D is not a sum over units")
    if divergence.uniform:
        parts = divergence.value(u[..., None], z[..., None])
        assert parts.shape == u.shape, (
            "declared uniform, but D of single units, (n, p, 1), does not have one energy each"
        )
        close(parts.sum(-1), whole, "declared uniform, but D is not a sum over units, the same for each")


def check_separable(divergence: Divergence, u: Tensor, other: Tensor, z: Tensor) -> None:
    """`separable`: `by_unit(z)` gives a uniform divergence and targets with the same values and gradients."""
    if not divergence.separable:
        return
    each, targets = divergence.by_unit(z)
    assert targets.shape == u.shape, (
        f"by_unit gave targets of shape {tuple(targets.shape)}, expected one for each of {tuple(u.shape)}"
    )
    assert each.uniform, "declared separable, but by_unit gives a divergence that is not uniform"
    for point in (u, other):
        close(each.value(point, targets), divergence.value(point, z), "by_unit gives another D")
        close(each.grad(point, targets), divergence.grad(point, z), "by_unit gives another gradient")
