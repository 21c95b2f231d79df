"""The steps of all layers at once: those with matrices of one shape are stacked, so that a GPU computes them in a few operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn.optim.layers import Regression
from liftednn.optim.metric import LayerMetric
from liftednn.optim.moments import column_blocks

__all__ = ["Stack", "stacked", "steps"]


@dataclass
class Stack:
    """Layers with matrices of one shape; their groups are in the first axis of all tensors.

    inverse     as in `LayerMetric`, (g, block, block)
    curvature   (g, 1)
    centre      (g, p)
    allowed     the most that one batch may move the outputs by at rate 1, times the curvature, (g,)
    """

    layers: list[Regression]
    inverse: list[Tensor]
    curvature: Tensor
    centre: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, pairs: Sequence[tuple[Regression, LayerMetric]]) -> Stack:
        metrics = [metric for _, metric in pairs]
        inverse = [_joined(blocks) for blocks in zip(*(metric.inverse for metric in metrics), strict=True)]
        curvature = torch.cat([metric.curvature.repeat(len(metric.centre)) for metric in metrics])
        allowed = torch.cat([metric.allowed.repeat(len(metric.centre)) for metric in metrics])
        centre = torch.cat([metric.centre for metric in metrics])
        layers = [layer for layer, _ in pairs]
        return cls(layers, inverse, curvature[:, None], centre, allowed * curvature)

    def keep(self, metrics: Sequence[LayerMetric], before: Stack | None) -> Stack:
        """This stack, in the memory of the one before it, which a recorded step reads. The metrics have its matrices, so that each is
        kept once."""
        if before is not None:
            for old, new in zip(before._tensors(), self._tensors(), strict=True):
                old.copy_(new)
        kept = before or self
        for metric, *own in zip(metrics, *(_parts(each, metrics) for each in kept.inverse), strict=True):
            metric.inverse = own
        return kept

    def _tensors(self) -> list[Tensor]:
        return [*self.inverse, self.curvature, self.centre, self.allowed]

    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Those in the weights (g, q, p) and in the intercepts (g, q)."""
        weights, biases = [layer.weight for layer in self.layers], [layer.bias for layer in self.layers]
        g = b = None
        if weights[0].grad is not None:
            pairs = zip(self.layers, weights, strict=True)
            g = _joined([layer.matrix(w.grad) for layer, w in pairs if w.grad is not None])
        given = [(layer, bias.grad) for layer, bias in zip(self.layers, biases, strict=True) if bias is not None]
        if given and given[0][1] is not None:
            b = _joined([layer.intercepts(gradient) for layer, gradient in given if gradient is not None])
        return g, b

    def step(self) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """What a step of rate 1 subtracts from the weights, without the limit for one batch; b / c of the intercepts; and the mean square
        of the motion of the outputs, times the curvature, (g,)."""
        g, b = self.gradients()
        shift = None if b is None else b / self.curvature
        if g is None:
            return None, shift, torch.zeros_like(self.allowed)
        if b is not None:
            g = torch.baddbmm(g, b[:, :, None], self.centre[:, None], alpha=-1)
        moves = [g[..., at] @ inverse for inverse, at in zip(self.inverse, column_blocks(g.shape[-1]), strict=True)]
        move = moves[0] if len(moves) == 1 else torch.cat(moves, -1)
        # The square of the motion of the outputs is that of the move in gram, where move = gradient (c gram)^-1.
        motion = torch.linalg.vecdot(move.flatten(1), g.flatten(1))
        if shift is not None and b is not None:
            motion = motion + torch.linalg.vecdot(shift, b)
        return move, shift, motion

    def by_layer(self, step: Tensor) -> Iterator[tuple[Regression, Tensor]]:
        """A tensor (g, ...) with the part of each layer."""
        return zip(self.layers, torch.split(step, [layer.groups for layer in self.layers]), strict=True)


def stacked(pairs: Sequence[tuple[Regression, LayerMetric]], before: Sequence[Stack] | None) -> list[Stack]:
    """Layers with one shape and device, and with gradients of the same parameters, together.

    before   those of an earlier refresh, if all of this was the same
    """
    found: dict[tuple[object, ...], list[tuple[Regression, LayerMetric]]] = {}
    for layer, metric in pairs:
        mean = metric.centre
        key = (layer.matrix_shape[1:], mean.dtype, mean.device, *layer.moving)
        found.setdefault(key, []).append((layer, metric))
    made = [Stack.of(each) for each in found.values()]
    earlier: Sequence[Stack | None] = before or [None] * len(made)
    return [
        stack.keep([metric for _, metric in each], old)
        for stack, each, old in zip(made, found.values(), earlier, strict=True)
    ]


def steps(stacks: Sequence[Stack]) -> list[tuple[Tensor | None, Tensor | None]]:
    """What a step of rate 1 subtracts from the weights (g, q, p) and from the intercepts (g, q) of each stack; None where they do not move.
    No operation waits for a device."""
    found = [stack.step() for stack in stacks]
    devices: dict[object, list[int]] = {}
    for at, stack in enumerate(stacks):
        devices.setdefault((stack.allowed.device, stack.allowed.dtype), []).append(at)
    within: dict[int, Tensor] = {}
    for together in devices.values():
        motion, allowed = _joined([found[at][2] for at in together]), _joined([stacks[at].allowed for at in together])
        lengths = (motion / allowed).clamp_(min=1).rsqrt_()
        within |= zip(together, torch.split(lengths, [len(stacks[at].allowed) for at in together]), strict=True)
    return [_limited(stacks[at], move, shift, within[at][:, None]) for at, (move, shift, _) in enumerate(found)]


def _limited(
    stack: Stack, move: Tensor | None, shift: Tensor | None, length: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    if move is None:
        return None, shift
    move = move.mul_(length[:, :, None])
    if shift is not None:
        shift = torch.baddbmm((shift * length)[:, :, None], move, stack.centre[:, :, None], alpha=-1)[:, :, 0]
    return move, shift


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _parts(joined: Tensor, metrics: Sequence[LayerMetric]) -> tuple[Tensor, ...]:
    return torch.split(joined, [len(metric.centre) for metric in metrics])
