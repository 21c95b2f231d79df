"""The steps of all layers at once: those with matrices of one shape are stacked, so that a GPU computes them in a few operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from liftednn.optim.layers import Regression
from liftednn.optim.metric import LayerMetric
from liftednn.optim.moments import column_blocks
from liftednn.training.spectral import polar

__all__ = ["Stack", "centres", "stacked", "steps", "unlimited_step"]

# Pairs of tensors (g, ...) whose products, summed, are the mean square of the motion of the outputs, times the curvature.
Motion = Sequence[tuple[Tensor, Tensor]]


@dataclass
class Stack:
    """Layers with matrices of one shape; their groups are in the first axis of all tensors.

    inverse     as in `LayerMetric`, (g, block, block), and so is root
    curvature   (g, 1)
    centre      (g, p)
    allowed     the most that one batch may move the outputs by at rate 1, times the curvature, (g,)
    """

    layers: list[Regression]
    inverse: list[Tensor]
    root: list[Tensor]
    curvature: Tensor
    centre: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[Regression, LayerMetric]]) -> Stack:
        metrics = [metric for _, metric in pairs]
        inverse, root = (
            [_joined(blocks) for blocks in zip(*matrices, strict=True)]
            for matrices in ([metric.inverse for metric in metrics], [metric.root for metric in metrics])
        )
        curvature = _joined([metric.curvature.repeat(len(metric.centre)) for metric in metrics])
        allowed = _joined([metric.allowed.repeat(len(metric.centre)) for metric in metrics])
        centre = _joined([metric.centre for metric in metrics])
        layers = [layer for layer, _ in pairs]
        return cls(layers, inverse, root, curvature[:, None], centre, allowed * curvature)

    def keep(self, metrics: Sequence[LayerMetric], before: Stack | None) -> Stack:
        """This stack, in the memory of the one before it, which a recorded step reads. The metrics have its matrices, so that each is
        kept once."""
        if before is not None:
            for old, new in zip(before._tensors(), self._tensors(), strict=True):
                old.copy_(new)
        kept = before or self
        for metric, *own in zip(metrics, *(_parts(each, metrics) for each in (kept.inverse or kept.root)), strict=True):
            metric.replace(own)
        return kept

    def _tensors(self) -> list[Tensor]:
        return [*self.inverse, *self.root, self.curvature, self.centre, self.allowed]

    def gradients(self, averages: Mapping[Tensor, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """The gradients in the weights (g, q, p) and in the intercepts (g, q); averages over steps, for parameters that have them."""
        weights = [_gradient(layer.weight, averages) for layer in self.layers]
        biases = [_gradient(layer.bias, averages) for layer in self.layers]
        g = b = None
        if weights[0] is not None:
            pairs = zip(self.layers, weights, strict=True)
            g = _joined([layer.matrix(gradient) for layer, gradient in pairs if gradient is not None])
        if biases[0] is not None:
            pairs = zip(self.layers, biases, strict=True)
            b = _joined([layer.intercepts(gradient) for layer, gradient in pairs if gradient is not None])
        return g, b

    @cached_property
    def groups(self) -> list[int]:
        """The number of groups of each layer."""
        return [layer.groups for layer in self.layers]

    @property
    def parameters(self) -> set[Tensor]:
        """The parameters that its steps move."""
        pairs = [zip((layer.weight, layer.bias), layer.moving, strict=True) for layer in self.layers]
        return {p for pair in pairs for p, moves in pair if moves and p is not None}

    def step(self, averages: Mapping[Tensor, Tensor]) -> tuple[Tensor | None, Tensor | None, Motion]:
        """What a step of rate 1 subtracts from the weights, without the limit for one batch; b / c of the intercepts; and what gives the
        motion of the outputs."""
        g, b = self.gradients(averages)
        if g is not None and b is not None:
            g = torch.baddbmm(g, b[:, :, None], self.centre[:, None], alpha=-1)
        if self.root:
            return *self._spectral_step(g, b), ()
        shift = None if b is None else b / self.curvature
        move = None if g is None else _by_blocks(g, self.inverse)
        # The square of the motion of the outputs is that of the move in gram, where move = gradient (c gram)^-1.
        pairs = () if move is None or g is None else ((move, g),)
        return move, shift, pairs if move is None or shift is None or b is None else (*pairs, (shift, b))

    def _spectral_step(self, g: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The steepest of the steps that move the outputs by `allowed` and by as much in every direction; an intercept has inputs 1."""
        parts = [] if g is None else [_by_blocks(g, [root.mT for root in self.root])]
        parts += [] if b is None else [b[:, :, None]]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        x = polar(x) * (self.allowed * self._reached() / min(x.shape[1:])).sqrt()[:, None, None]
        move = None if g is None else _by_blocks(x[..., : g.shape[-1]], self.root)
        return move, None if b is None else x[..., -1]

    def _reached(self) -> Tensor:
        """Which layers have a gradient in this batch that is not all 0, (g,). The others would move by old averages, which never end: a
        polar factor is as large however small they become."""
        weights = [layer.weight.grad[layer.rows] for layer in self.layers if layer.weight.grad is not None]
        pairs = [(layer.bias, layer.bias_rows) for layer in self.layers]
        biases = [bias.grad[rows] for bias, rows in pairs if bias is not None and bias.grad is not None]
        norms = [torch.stack(torch._foreach_norm(each, torch.inf)) for each in (weights, biases) if each]
        return torch.stack(norms).amax(0) > 0

    def by_layer(self, step: Tensor) -> Iterator[tuple[Regression, Tensor]]:
        """A tensor (g, ...) with the part of each layer."""
        return zip(self.layers, torch.split(step, self.groups) if len(self.layers) > 1 else [step], strict=True)


def stacked(pairs: Sequence[tuple[Regression, LayerMetric]], before: Sequence[Stack] | None) -> list[Stack]:
    """Layers with one shape and device, and with gradients of the same parameters, together.

    before   those of an earlier refresh, if all of this was the same
    """
    found: dict[tuple[object, ...], list[tuple[Regression, LayerMetric]]] = {}
    for layer, metric in pairs:
        mean = metric.centre
        key = (layer.matrix_shape[1:], mean.dtype, mean.device, metric.spectral, *layer.moving)
        found.setdefault(key, []).append((layer, metric))
    made = [Stack.of(each) for each in found.values()]
    earlier: Sequence[Stack | None] = before or [None] * len(made)
    return [
        stack.keep([metric for _, metric in each], old)
        for stack, each, old in zip(made, found.values(), earlier, strict=True)
    ]


def centres(stacks: Sequence[Stack], weights: Set[Tensor]) -> list[tuple[Regression, Tensor]]:
    """The layers that have one of these weights and move with their intercepts, and the means of their rows (g, p)."""
    chosen = [stack for stack in stacks if not weights.isdisjoint(layer.weight for layer in stack.layers)]
    pairs = [pair for stack in chosen for pair in stack.by_layer(stack.centre)]
    return [(layer, centre) for layer, centre in pairs if layer.weight in weights and all(layer.moving)]


def steps(stacks: Sequence[Stack], averages: Mapping[Tensor, Tensor]) -> list[tuple[Tensor | None, Tensor | None]]:
    """What a step of rate 1 subtracts from the weights (g, q, p) and from the intercepts (g, q) of each stack; None where they do not move.
    No operation waits for a device.

    averages   of gradients, for the parameters of spectral layers
    """
    found = [stack.step(averages) for stack in stacks]
    devices: dict[object, list[int]] = {}
    for at, stack in enumerate(stacks):
        devices.setdefault((stack.allowed.device, stack.allowed.dtype), []).append(at)
    within: dict[int, Tensor] = {}
    for together in devices.values():
        motion = _joined(_motions([(found[at][2], stacks[at]) for at in together]))
        lengths = (motion / _joined([stacks[at].allowed for at in together])).clamp_(min=1).rsqrt_().view(-1, 1, 1)
        within |= zip(together, torch.split(lengths, [sum(stacks[at].groups) for at in together]), strict=True)
    moves = [(move, within[at]) for at, (move, _, _) in enumerate(found) if move is not None]
    if moves:
        torch._foreach_mul_(*map(list, zip(*moves, strict=True)))
    return [_limited(stacks[at], move, shift, within[at]) for at, (move, shift, _) in enumerate(found)]


def _motions(pairs: Sequence[tuple[Motion, Stack]]) -> list[Tensor]:
    """The sums of the products, (g,), of stacks on one device; 0 where there are none. All products are one operation."""
    every = [pair for motion, _ in pairs for pair in motion]
    products = iter(torch._foreach_mul(*map(list, zip(*every, strict=True))) if every else ())
    found = []
    for motion, stack in pairs:
        sums = [product.sum(tuple(range(1, product.ndim))) for product in itertools.islice(products, len(motion))]
        found.append(sum(sums[1:], sums[0]) if sums else torch.zeros_like(stack.allowed))
    return found


def unlimited_step(layer: Regression, metric: LayerMetric) -> tuple[Tensor | None, Tensor | None]:
    """What a step of rate 1 of one layer would subtract, without the limit for one batch."""
    stack = Stack.of([(layer, metric)])
    move, shift, _ = stack.step({})
    return _with_centre(stack, move, shift)


def _limited(
    stack: Stack, move: Tensor | None, shift: Tensor | None, length: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Intercepts times a length (g, 1, 1) of each group, for moves that have it already."""
    if move is None:
        return None, shift
    return _with_centre(stack, move, None if shift is None else shift * length[:, :, 0])


def _with_centre(stack: Stack, move: Tensor | None, shift: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Steps whose intercepts are those of rows about 0."""
    if move is not None and shift is not None:
        shift = torch.baddbmm(shift[:, :, None], move, stack.centre[:, :, None], alpha=-1)[:, :, 0]
    return move, shift


def _gradient(parameter: Tensor | None, averages: Mapping[Tensor, Tensor]) -> Tensor | None:
    if parameter is None or not averages:
        return None if parameter is None else parameter.grad
    return averages.get(parameter, parameter.grad)


def _by_blocks(x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """x (g, q, p) times the block-diagonal matrix of these."""
    if len(matrices) == 1:
        return torch.bmm(x, matrices[0])
    return torch.cat(
        [torch.bmm(x[..., at], each) for each, at in zip(matrices, column_blocks(x.shape[-1]), strict=True)], -1
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _parts(joined: Tensor, metrics: Sequence[LayerMetric]) -> tuple[Tensor, ...]:
    return torch.split(joined, [len(metric.centre) for metric in metrics])
