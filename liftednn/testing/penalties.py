"""The check for penalties."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.functional import box_prox
from liftednn.testing.common import SLACK, WIDTH, close, no_better

__all__ = ["check_penalty"]


def check_penalty(penalty: Penalty, shape: tuple[int, int] = (4, WIDTH), seed: int = 0) -> None:
    """Non-negative; convex, or declared not to be; prox and minimiser minimise; every attribute agrees with the value.

    penalty   an object of your class, for weights of `shape` (out, in)
    seed      of the random points

    Returns None, or raises an AssertionError that says what does not hold.

    >>> lnn.testing.check_penalty(lnn.penalties.L1(rho=0.1))
    """
    _check_fits(penalty, shape)
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(*shape, generator=generator, dtype=torch.float64)
    inside, value = penalty.prox(w, 0.4), penalty.value
    assert 0 <= value(inside) < torch.inf, f"pi must be finite and non-negative at prox(w), got {value(inside)}"
    if penalty.convex:
        _check_convex(penalty, w, inside, seed)
    else:
        close(penalty.prox(inside, 0.0), inside, "prox with step 0 must leave a point of the set where it is")
    centres = [inside] if penalty.convex else [inside, w]
    others = [each for centre in centres for each in _rivals(penalty, centre, seed)]
    no_better(lambda v: (value(v) + (v - w).square().sum() / 0.8)[None], inside, others, "prox is not a minimiser")
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
    assert penalty.scale_sensitive or bool(value(rescaled).isfinite()), (
        "rows and columns in other units leave the domain: declare `scale_sensitive`"
    )


def _rivals(penalty: Penalty, w: Tensor, seed: int) -> list[Tensor]:
    """Weights near and far: all entries moved, those that are not 0, and few. A non-convex set accepts points close to it, so they are
    projected onto it."""
    generator = torch.Generator().manual_seed(seed + 17)
    found = []
    for size in (1e-3, 1e-2, 0.1, 1.0, 5.0):
        noise, few = torch.randn(2, *w.shape, generator=generator, dtype=w.dtype)
        found += [w + size * move for move in (noise, -noise, noise * w, -noise * w, noise * (few > 1.3), w, -w)]
    on_set = [penalty.prox(each, 1e-9) for each in found]
    return [*on_set, *found] if penalty.convex else on_set


def _check_convex(penalty: Penalty, w: Tensor, inside: Tensor, seed: int) -> None:
    """At midpoints between points of the domain, large and small."""
    turned = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed + 5), dtype=w.dtype)
    for other in (turned, w.flip(0), 3 * w, 0.01 * w):
        end = penalty.prox(other, 0.4)
        middle, ends = penalty.value((inside + end) / 2), (penalty.value(inside) + penalty.value(end)) / 2
        assert bool(middle <= ends + SLACK * (1 + ends)), "pi is not convex"


def _check_fits(penalty: Penalty, shape: tuple[int, int]) -> None:
    """`fits` is right: for the shapes it allows, the penalty can be computed."""
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
    gram, cross, scale = x.T @ x / 40, x.T @ y / 40, 0.7
    eye = torch.eye(shape[1], dtype=torch.float64)

    def energy(w: Tensor) -> Tensor:
        return (scale * ((w @ gram * w).sum() - 2 * (w.T * cross).sum()) + penalty.value(w))[None]

    found = penalty.minimiser(cross, lambda rho: torch.linalg.solve(scale * gram + rho * eye, scale * cross).T)
    if found is not None:
        sentence = "minimiser is not the argmin over w of a (tr(w G w') - 2 tr(w cross)) + pi(w)"
        no_better(energy, found, _rivals(penalty, found, seed), sentence)


def _check_restrict(penalty: Penalty, w: Tensor) -> None:
    """The restricted penalty is that of weights which are 0 elsewhere, where the penalty allows zeros."""
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
