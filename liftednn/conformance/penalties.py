"""`check_penalty`."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.conformance.common import SLACK, WIDTH, check_minimal, close, rivals
from liftednn.functional import box_prox

__all__ = ["check_penalty"]


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
    check_minimal(lambda v: value(v)[None], inside, w, 0.4, "prox", seed, whole=True)
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
