"""`check_penalty`."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.functional import box_prox
from liftednn.testing.common import SLACK, WIDTH, check_minimal, close, no_better, rivals

__all__ = ["check_penalty"]


def check_penalty(penalty: Penalty, shape: tuple[int, int] = (4, WIDTH), seed: int = 0) -> None:
    """Non-negative; convex, or declared not to be; prox and minimiser minimise; every attribute agrees with the value."""
    _check_fits(penalty, shape)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, generator=generator, dtype=torch.float64)
    inside, other = penalty.prox(w, 0.4), penalty.prox(w.flip(0), 0.4)
    value = penalty.value
    assert 0 <= value(inside) < torch.inf, f"pi must be finite and non-negative at prox(w), got {value(inside)}"
    if penalty.convex:
        assert value((inside + other) / 2) <= (value(inside) + value(other)) / 2 + SLACK, "pi is not convex"
    else:
        _check_projection(penalty, w, inside, seed)
    check_minimal(lambda v: value(v)[None], inside, w, 0.4, "prox", seed, whole=True)
    if penalty.ridge is not None:
        close(value(inside), penalty.ridge * inside.square().sum(), "ridge = rho must mean pi(w) = rho |w|^2")
    if penalty.boxed:
        close(box_prox(penalty.box(), w, 0.4), inside, "box and prox disagree")
    for each in (shape, shape[::-1]):
        if penalty.fits(each):
            _check_minimiser(penalty, each, seed)
    _check_restrict(penalty, w)
    rows, columns = (torch.linspace(0.5, 3, count, dtype=w.dtype) for count in shape)
    rescaled = rows[:, None] * inside * columns
    assert penalty.metric or bool(value(rescaled).isfinite()), (
        "rows and columns in other units leave the domain: declare `metric`"
    )


def _check_fits(penalty: Penalty, shape: tuple[int, int]) -> None:
    """What it says of a shape is so: there, the penalty can be computed."""
    assert penalty.fits(shape), f"fits says that no weights of shape {shape} can have it: give the shape that can"
    for each in (shape, (shape[0] + 1, shape[1] + 2)):
        if penalty.fits(each):
            w = torch.ones(each, dtype=torch.float64)
            try:
                value, moved = penalty.value(w), penalty.prox(w, 0.4)
            except RuntimeError as error:
                raise AssertionError(
                    f"fits allows weights of shape {each}, but value or prox fails: {error}"
                ) from error
            assert value.shape == (), f"value gave shape {tuple(value.shape)}, expected a scalar"
            assert moved.shape == w.shape, f"prox gave shape {tuple(moved.shape)}, expected {each}"


def _check_minimiser(penalty: Penalty, shape: tuple[int, int], seed: int) -> None:
    """Where a formula is given, no other weights are better, near, far or on the set."""
    generator = torch.Generator().manual_seed(seed + 1)
    x, y = (torch.randn(40, count, generator=generator, dtype=torch.float64) for count in shape[::-1])
    gram, cross, share = x.T @ x / 40, x.T @ y / 40, 0.7
    eye = torch.eye(shape[1], dtype=torch.float64)

    def energy(w: Tensor) -> Tensor:
        return (share * ((w @ gram * w).sum() - 2 * (w.T * cross).sum()) + penalty.value(w))[None]

    found = penalty.minimiser(cross, lambda rho: torch.linalg.solve(share * gram + rho * eye, share * cross).T)
    if found is not None:
        near = rivals(found, seed, lambda w: found.lerp(w, 0.1))
        on_set = [
            penalty.prox(each, 1e-9) for each in near
        ]  # without convexity, a value forgives what lies close to the set
        sentence = "minimiser is not the argmin over w of a (tr(w G w') - 2 tr(w cross)) + pi(w)"
        no_better(energy, found, [*on_set, *(near if penalty.convex else [])], sentence)


def _check_restrict(penalty: Penalty, w: Tensor) -> None:
    """As if the weights that are left out were 0, where those may be."""
    outputs, inputs = (torch.arange(0, count, 2) for count in w.shape)
    part = w[outputs][:, inputs]
    few = penalty.restrict(outputs, inputs)
    assert few.fits((len(outputs), len(inputs))), "restrict(outputs, inputs) does not fit the weights that are left"
    for each in (part, few.prox(part, 0.4)):
        padded = torch.zeros_like(w).index_put((outputs[:, None], inputs), each)
        if each is part or bool(penalty.value(padded).isfinite()):
            close(
                few.value(each), penalty.value(padded), "restrict(outputs, inputs) must be as if other weights were 0"
            )


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
