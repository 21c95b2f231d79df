"""The check for operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from liftednn.activations import FenchelReLU, ReLU
from liftednn.base import Affine, Operator, regress
from liftednn.losses import SquaredError
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Dense
from liftednn.penalties import L2
from liftednn.testing.common import N, check_kept, check_unwritten, close
from liftednn.training.bcd import BCD
from liftednn.training.minibatch import MiniBatch

__all__ = ["check_operator"]

# Inputs and outputs of the network that is trained, and the fraction by which rounding may raise the objective of a block.
_INPUTS, _OUTPUTS, _ROUNDING = 5, 2, 1e-9
_SHIFT = 0.7
# Scales at which operators are checked, and the factor by which a bound may exceed the true value.
_SCALES, _LOOSE = (1.0, 1e-3, 1e3), 100.0


def check_operator(operator: Operator, seed: int = 0) -> None:
    """Its shapes agree; rows, targets, fold and offset make up `forward`; weight_gradient, bias_gradient, adjoint, normal and norm belong
    to it; and a small network with it is trained by one pass of `BCD` and one pass of `MiniBatch`.

    operator   an object of your class
    seed       of the random points

    Returns None, or raises an AssertionError that says what does not hold.

    >>> lnn.testing.check_operator(lnn.operators.Dense(3, 2))
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    _check_shapes(operator)
    xs = [draw(N, width) for width in operator.in_widths]
    weights = Affine(draw(*operator.weight_shape), draw(operator.outputs))
    _check_regression(operator, xs, weights)
    for index in range(len(xs)):
        _check_linear(operator, xs, weights, index, draw(N, operator.out_width))
    _check_sizes(operator, xs, weights)
    if operator.grouped:
        _check_groups(operator, xs)
    if operator.plain:
        _check_plain(operator, xs, draw(N, operator.out_width))
    if operator.resizable:
        _check_resized(operator)
    _check_training(operator, seed)


def _check_shapes(operator: Operator) -> None:
    shape = operator.weight_shape
    assert operator.bias in (True, False), f"bias must be True or False, got {operator.bias!r}"
    assert len(shape) in (2, 3), f"weight_shape must be (q, p) or (groups, q, p), got {shape}"
    assert operator.grouped == (len(shape) == 3), f"grouped is {operator.grouped}, and weight_shape is {shape}"
    widths = tuple(math.prod(each) for each in operator.in_shapes)
    assert operator.in_widths == widths, f"in_widths {operator.in_widths} are not those of in_shapes, {widths}"
    assert operator.out_width == math.prod(operator.out_shape), "out_width is not that of out_shape"
    assert operator.outputs == math.prod(shape[:-1]), "outputs are not those of weight_shape"
    whole = operator.positions * operator.outputs == operator.out_width
    assert whole, f"out_shape {operator.out_shape} is not a whole number of positions with {operator.outputs} outputs"


def _check_regression(operator: Operator, xs: list[Tensor], weights: Affine) -> None:
    t, groups = operator.positions, 1 if weights.w.ndim == 2 else len(weights.w)
    given = [x.clone() for x in (*xs, *weights)]
    rows, u = operator.rows(xs), operator.forward(xs, weights)
    assert u.shape == (N, operator.out_width), (
        f"forward gave shape {tuple(u.shape)}, expected {(N, operator.out_width)}"
    )
    expected = (N * t, groups * weights.w.shape[-1])
    assert rows.shape == expected, f"rows gave shape {tuple(rows.shape)}, expected {expected}"
    targets = operator.targets(u)
    assert targets.shape == (N * t, operator.outputs), f"targets gave shape {tuple(targets.shape)}"
    close(operator.fold(targets), u, "fold must be the inverse of targets")
    for sample in (0, N - 1):
        here, own = slice(sample, sample + 1), slice(sample * t, (sample + 1) * t)
        close(operator.rows([x[here] for x in xs]), rows[own], "the rows of a sample must follow each other")
        close(operator.targets(u[here]), targets[own], "the targets of a sample must follow each other")
    still = operator.forward(xs, Affine(*(torch.zeros_like(part) for part in weights)))
    if operator.skips:
        close(operator.offset(xs), still, "offset must be the part of forward without weights")
    else:
        close(
            still,
            torch.zeros_like(still),
            "forward has a part without weights: declare `skips` and give it as `offset`",
        )
    close(operator.fold(regress(rows, weights)) + still, u, "forward(xs) must be fold(rows(xs) w' + b) + offset(xs)")
    gradient = operator.weight_gradient(xs, u)
    assert gradient.shape == weights.w.shape, f"weight_gradient gave shape {tuple(gradient.shape)}, expected that of w"
    product = Operator.weight_gradient(operator, xs, u)
    close(gradient, product, "weight_gradient(xs, u) must be targets(u)' rows(xs), for each group")
    gradient = operator.bias_gradient(u)
    assert gradient.shape == weights.b.shape, f"bias_gradient gave shape {tuple(gradient.shape)}, expected that of b"
    close(gradient, operator.targets(u).sum(0), "bias_gradient(u) must be the sum of the rows of targets(u)")
    same = all(torch.equal(now, x) for now, x in zip((*xs, *weights), given, strict=True))
    assert same, "rows, forward and weight_gradient must not write to their arguments"
    _check_unwritten(operator, xs, weights)


def _check_unwritten(operator: Operator, xs: list[Tensor], weights: Affine) -> None:
    """No method writes to what it is given, and all keep float32."""
    u, targets = operator.forward(xs, weights), operator.targets(operator.forward(xs, weights))
    calls: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
        "forward": (lambda *x: operator.forward(list(x[:-2]), Affine(*x[-2:])), [*xs, *weights]),
        "rows": (lambda *x: operator.rows(list(x)), xs),
        "targets": (operator.targets, [u]),
        "fold": (operator.fold, [targets]),
        "weight_gradient": (lambda *x: operator.weight_gradient(list(x[:-1]), x[-1]), [*xs, u]),
        "bias_gradient": (operator.bias_gradient, [u]),
    }
    if operator.skips:
        calls["offset"] = (lambda *x: operator.offset(list(x)), xs)
    for index in range(len(xs)):
        calls[f"adjoint for state {index}"] = (
            lambda r, w, b, index=index: operator.adjoint(r, Affine(w, b), index),
            [u, *weights],
        )
    for name, (call, given) in calls.items():
        check_kept(name, call, *given)
        check_unwritten(name, call, *(each.clone() for each in given))


def _check_linear(operator: Operator, xs: list[Tensor], weights: Affine, index: int, r: Tensor) -> None:
    """Check the operator as a linear function of one state."""
    without = [torch.zeros_like(x) if state == index else x for state, x in enumerate(xs)]
    image, x = operator.forward(xs, weights) - operator.forward(without, weights), xs[index]
    given = r.clone()
    back = operator.adjoint(r, weights, index)
    assert back.shape == x.shape, f"adjoint gave shape {tuple(back.shape)}, expected {tuple(x.shape)}"
    close((image * r).sum(), (x * back).sum(), f"adjoint fails <A x, r> = <x, A' r> for state {index}")
    back.zero_()
    close(r, given, "adjoint must return a new tensor, since it is written to")
    normal = operator.normal(weights, index)
    after = operator.adjoint(image, weights, index)
    close(normal.apply(x), after, "normal must be adjoint after forward")
    if normal.small:
        close(x @ normal.matrix(), after, "the matrix of normal must be that of adjoint after forward")
    solved = normal.solve(_SHIFT, x)
    close(normal.apply(solved) + _SHIFT * solved, x, "normal.solve(shift, x) must invert A'A + shift I", rtol=1e-7)
    ratio, bound = float((image.square().sum(1) / x.square().sum(1)).max().sqrt()), operator.norm(weights, index)
    assert bound >= ratio * (1 - 1e-6), (
        f"norm must bound the spectral norm, at least {ratio:.6g} for state {index}, got {bound:.6g}"
    )


def _check_sizes(operator: Operator, xs: list[Tensor], weights: Affine) -> None:
    """One sample alone, and other scales."""
    one, whole = [x[:1] for x in xs], operator.forward(xs, weights)
    u, rows = operator.forward(one, weights), operator.rows(one)
    assert (u.shape, rows.ndim) == ((1, operator.out_width), 2), f"for one sample forward gave shape {tuple(u.shape)}"
    close(u, whole[:1], "forward of one sample alone must be as among others")
    for index in range(len(xs)):
        back = operator.adjoint(whole, weights, index)[:1]
        close(operator.adjoint(u, weights, index), back, "adjoint of one sample alone must be as among others")
    for size in _SCALES:
        larger, intercept = [size * x for x in xs], Affine(weights.w, size * weights.b)
        close(
            operator.rows(larger) / size,
            operator.rows(xs),
            f"rows must be linear, and are not at {size:g} times the size",
        )
        scaled = operator.forward(larger, intercept)
        close(scaled / size, whole, f"forward must be linear in (xs, b), and is not at {size:g} times their size")
        _check_norm(operator, Affine(size * weights.w, weights.b))


def _check_norm(operator: Operator, weights: Affine) -> None:
    """An upper bound that is not too loose."""
    for index in range(len(operator.in_shapes)):
        normal, bound = operator.normal(weights, index), operator.norm(weights, index)
        if normal.small:
            largest = float(torch.linalg.eigvalsh(normal.matrix())[-1].clamp(min=0).sqrt())
            assert largest * (1 - 1e-6) <= bound <= _LOOSE * (largest + 1), (
                f"norm must bound the spectral norm {largest:.6g} of state {index} within a factor {_LOOSE:g}, got {bound:.6g}"
            )


def _check_plain(operator: Operator, xs: list[Tensor], u: Tensor) -> None:
    assert len(xs) == 1, "declared plain, but it reads several states"
    assert operator.positions == 1, "declared plain, but it has several positions"
    assert not operator.skips, "declared plain, but it has a part without weights"
    assert not operator.grouped, "declared plain, but its weights have groups"
    close(operator.rows(xs), xs[0], "declared plain, but rows(x) is not x")
    close(operator.targets(u), u, "declared plain, but targets(u) is not u")
    other = operator.resized(3, 2)
    found = (other.weight_shape, other.in_shapes, other.out_shape, other.bias)
    expected = ((2, 3), ((3,),), (2,), operator.bias)
    assert found == expected, (
        f"resized(3, 2) must have (weight_shape, in_shapes, out_shape, bias) {expected}, got {found}"
    )


def _check_groups(operator: Operator, xs: list[Tensor]) -> None:
    """The operators of the groups, where there are any."""
    parts, columns = operator.by_group(xs), torch.split(operator.rows(xs), operator.weight_shape[-1], 1)
    if parts is None:
        return
    assert len(parts) == len(columns), f"by_group gave {len(parts)} operators for {len(columns)} groups"
    for (part, read), rows in zip(parts, columns, strict=True):
        assert part.weight_shape == operator.weight_shape[1:], (
            "by_group must give operators with the weights of a group"
        )
        close(part.rows(read), rows, "by_group must give operators with the rows of a group")


def _check_resized(operator: Operator) -> None:
    """With twice as many channels before and after."""
    assert len(operator.in_shapes) == 1, "declared resizable, but it reads several states"
    assert not operator.grouped, "declared resizable, but its weights have groups"
    (q, p), (before, *sizes), (after, *positions) = operator.weight_shape, operator.in_shapes[0], operator.out_shape
    other = operator.resized(2 * p, 2 * q)
    found = (other.weight_shape, other.in_shapes, other.out_shape)
    expected = ((2 * q, 2 * p), ((2 * before, *sizes),), (2 * after, *positions))
    assert found == expected, (
        f"resized({2 * p}, {2 * q}) must have (weight_shape, in_shapes, out_shape) {expected}, got {found}"
    )


def _network(operator: Operator, activation: ReLU | FenchelReLU) -> LiftedNetwork:
    """A layer for each state that is read, the operator, and a last layer."""
    first = [
        Layer(Dense(_INPUTS, width), activation, name=f"read {number}", reads=("x0",))
        for number, width in enumerate(operator.in_widths)
    ]
    reads = tuple(layer.name for layer in first)
    middle = Layer(operator, activation, name="checked", reads=reads)
    return LiftedNetwork([*first, middle, Layer(Dense(middle.width, _OUTPUTS), SquaredError(), L2(1e-2))])


def _check_training(operator: Operator, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, _INPUTS, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0].abs(), x[:, 1] * x[:, 2]], 1)
    network, bcd = _network(operator, ReLU()), BCD(passes=1, seed=seed, block_tol=1e-6, block_iter=2000)
    state = bcd.init(network, x, y)
    before = network.objective(state.weights, state.states)
    for block in bcd.blocks(network, state):
        after = network.objective(state.weights, state.states)
        assert after <= before + _ROUNDING * abs(before), f"the block {block.name} of BCD raised the objective"
        assert block.kkt <= 1e-3, f"the block {block.name} of BCD ended with a residual of {block.kkt:.3g}"
        before = after
    fit = MiniBatch(passes=1, batch_size=N // 4, seed=seed).run(_network(operator, FenchelReLU()), x, y)
    assert fit.status == "finished", f"a pass of MiniBatch ended as {fit.status!r}"
    assert math.isfinite(fit.history[-1].loss), "a pass of MiniBatch gave a loss that is not finite"
