"""The check for penalties."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from liftednn.base import Penalty
from liftednn.functional import box_prox
from liftednn.testing.common import SLACK, WIDTH, check_kept, check_unwritten, close, no_better

__all__ = ["check_penalty"]

# The steps that prox is tried with.
_STEPS = (0.05, 0.4, 5.0)
# The sizes of weights that it is tried at: a bound may be far from 1.
_SIZES = (1.0, 0.1, 10.0, 100.0)


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
    for size in _SIZES:
        _check_at(penalty, size * w, seed)
    check_kept("prox", lambda each: penalty.prox(each, 0.4), w)
    check_unwritten("value", penalty.value, w.clone())
    for each in (shape, shape[::-1]):
        if penalty.fits(each):
            _check_minimiser(penalty, each, seed)
    _check_restrict(penalty, w)


def _check_at(penalty: Penalty, w: Tensor, seed: int) -> None:
    """Convexity, prox and attributes near these weights."""
    inside, value = penalty.prox(w, 0.4), penalty.value
    assert 0 <= value(inside) < torch.inf, f"pi must be finite and non-negative at prox(w), got {value(inside)}"
    if penalty.convex:
        _check_convex(penalty, w, inside, seed)
    else:
        close(penalty.prox(inside, 0.0), inside, "prox with step 0 must leave a point of the set where it is")
    centres = [inside] if penalty.convex else [inside, w]
    others = [each for centre in centres for each in _rivals(penalty, centre, seed)]
    for step in _STEPS:
        moved = penalty.prox(w, step)
        energy = partial(_prox_energy, penalty, w, step)
        no_better(
            energy, moved, [*others, *_rivals(penalty, moved, seed)], f"prox is not a minimiser, with step {step:g}"
        )
        if penalty.boxed:
            close(box_prox(penalty.box(), w, step), moved, "box and prox disagree")
    if penalty.convex:
        sentence = "prox with step 0, a projection, must leave a point of the domain where it is"
        close(penalty.prox(inside, 0.0), inside, sentence)
    if penalty.ridge is not None:
        close(value(inside), penalty.ridge * inside.square().sum(), "ridge = rho must mean pi(w) = rho |w|^2")
    rows, columns = (torch.linspace(0.5, 3, count, dtype=w.dtype) for count in w.shape)
    rescaled = rows[:, None] * inside * columns
    assert penalty.scale_sensitive or bool(value(rescaled).isfinite()), (
        "rows and columns in other units leave the domain: declare `scale_sensitive`"
    )


def _prox_energy(penalty: Penalty, w: Tensor, step: float, v: Tensor) -> Tensor:
    return (penalty.value(v) + (v - w).square().sum() / (2 * step))[None]


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
    """Up to a constant, the restricted penalty is that of weights which are 0 elsewhere, where the penalty allows zeros. Every second row
    and column is left, or the first columns, as many as fit, for a penalty on groups of columns."""
    outputs, inputs = (torch.arange(0, count, 2) for count in w.shape)
    try:
        few = penalty.restrict(outputs, inputs)
    except ValueError:  # which is how a penalty refuses to be cut
        counts = [count for count in range(1, w.shape[1]) if penalty.fits((len(outputs), count))]
        inputs = torch.arange(max(counts, default=w.shape[1]))
        try:
            few = penalty.restrict(outputs, inputs)
        except ValueError:
            return
    assert few.fits((len(outputs), len(inputs))), "restrict(outputs, inputs) does not fit the weights that are left"
    part, seen = w[outputs][:, inputs], []
    for each in (part, few.prox(part, 0.4), few.prox(-2 * part, 0.4)):
        whole = penalty.value(torch.zeros_like(w).index_put((outputs[:, None], inputs), each))
        if each is part:
            same = bool(whole.isfinite()) == bool(few.value(each).isfinite())
            assert same, "restrict(outputs, inputs) must be as if other weights were 0: it allows others"
        if bool(whole.isfinite()):
            seen.append(few.value(each) - whole)
    for constant in seen[1:]:
        close(constant, seen[0], "restrict(outputs, inputs) must be as if other weights were 0, up to a constant")
