"""What a refresh measures: a rerun of the module, with the moments of every layer's rows and the curvature in its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from liftednn.optim.calls import Call, copied_buffers
from liftednn.optim.layers import Regression
from liftednn.optim.moments import BlockMoments
from liftednn.optim.probes import Probes

__all__ = ["Capture", "measure"]

# Rows on which the motion of a layer's outputs is measured.
_MEASURED = 1024
# Curvature below this fraction of the largest layer's is taken as 0 for a layer, and of the largest output's for an output.
_NEGLIGIBLE = 1e-10
# A scaler multiplies the loss by some 10,000; gradients are rarely clipped by so much.
_SCALED = 1000

AddUp = Callable[[Tensor], Tensor]


class Capture:
    """What one layer shows in a rerun.

    moments   of its rows
    sample    some of the rows, (r, g, p)
    squares   of the gradients that the probes cause in its outputs, summed over rows, one for each output: the curvature of each
    size      the squares of its outputs, summed, and the number of them
    """

    def __init__(self, regression: Regression) -> None:
        self.regression, weight = regression, regression.weight
        like = weight.detach().new_zeros((), dtype=regression.dtype)
        self.moments = BlockMoments.zeros(regression.groups, math.prod(weight.shape[1:]), like)
        self.sample: list[Tensor] = []
        self.squares = like.new_zeros(len(weight))
        self.size = like.new_zeros(2)
        self.calls: list[tuple[nn.Module, Any]] = []
        self.numbers, self.number, self.without_graph = 0, -1, False

    def forward_hook(self, number: Callable[[], int]) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
            self.number = number()
            with torch.no_grad(), torch.autocast(output.device.type, enabled=False):
                self._add(module, args[0] if args else kwargs["input"], output)
            if not output.requires_grad:
                self.without_graph = True
                return output
            # An activation may write to its input, and a copy can be written to without another graph for its source.
            copy = output.clone()
            self.calls.append((module, get_gradient_edge(copy)))
            return copy

        return hook

    def _add(self, module: nn.Module, x: Tensor, output: Tensor) -> None:
        for rows in self.regression.row_blocks(module, x.detach()):
            if len(rows):
                self.moments = self.moments + BlockMoments.of(rows)
                self.sample.append(rows[:: -(-len(rows) // _MEASURED)].clone())
        squares = self.regression.channel_squares(module, output.detach())
        self.size = self.size + torch.stack([squares.sum(), squares.new_tensor(float(output.numel()))])
        self.numbers += output.numel()

    def summed(self, add_up: AddUp) -> None:
        """Add what the other processes have captured; curvatures are those of a mean over them."""
        self.moments, self.size = self.moments.summed(add_up), add_up(self.size)
        self.squares = add_up(self.squares) / add_up(torch.ones_like(self.size[0]))

    @property
    def called(self) -> bool:
        return float(self.moments.count) > 0

    def curvature(self) -> Tensor:
        """The mean over outputs that receive a gradient. Outputs without must not lower it: a smaller curvature gives longer steps, which
        give more outputs without a gradient."""
        active = (self.squares > _NEGLIGIBLE * self.squares.max()).to(self.squares).mean()
        return self.squares.mean() / active.clamp(min=1 / len(self.squares))

    def motion(self, move: Tensor, shift: Tensor | None, add_up: AddUp) -> float:
        """The mean square by which a step moves the outputs, over the mean square of these."""
        rows = torch.cat(self.sample) if self.sample else move.new_zeros(0, *move.shape[::2])
        moved = torch.einsum("rgp,gqp->rgq", rows, move)
        moved = moved if shift is None else moved + shift
        squares, number = add_up(torch.stack([moved.square().sum(), moved.new_tensor(float(moved.numel()))]))
        return float(squares / number / (self.size[0] / self.size[1]))


def measure(
    module: nn.Module,
    call: Call,
    layers: Sequence[Regression],
    probes: Callable[[Any, int], Probes],
    add_up: AddUp,
) -> list[tuple[Capture, Tensor]]:
    """The layers that are called when a module is rerun, and the curvature in the outputs of each, summed over rows; infinite where no
    probe arrives.

    probes   gives what is sent backward, from the module's outputs and the number of entries in the outputs of the last layer
    add_up   the sum of a tensor over all processes
    """
    captures = [Capture(layer) for layer in layers]
    with copied_buffers(module):
        outputs = _rerun(module, call, captures)
        _check_graphs(captures)
        last = max(captures, key=lambda each: each.number, default=None)
        if last is not None and last.number >= 0:
            _send(captures, probes(outputs, last.numbers), last.regression)
    for capture in captures:
        capture.summed(add_up)
    called = [capture for capture in captures if capture.called]
    curvatures = [capture.curvature() for capture in called]
    largest = max((float(c) for c in curvatures), default=0.0)
    return [
        (capture, torch.where(c > _NEGLIGIBLE * largest, c, torch.inf))
        for capture, c in zip(called, curvatures, strict=True)
    ]


def _rerun(module: nn.Module, call: Call, captures: Sequence[Capture]) -> Any:
    numbers = iter(range(2**62))
    hooks = [
        (each, capture.forward_hook(numbers.__next__)) for capture in captures for each in capture.regression.modules
    ]
    handles = [each.register_forward_hook(hook, prepend=True, with_kwargs=True) for each, hook in hooks]
    try:
        return call.rerun(module)
    finally:
        for handle in handles:
            handle.remove()


def _check_graphs(captures: Sequence[Capture]) -> None:
    """A layer with a gradient must be part of the graph of the outputs."""
    if any(capture.without_graph and not capture.calls for capture in captures):
        raise RuntimeError(
            "a layer whose parameters have gradients was run without a graph, so that its curvature cannot be measured: if it is under "
            "torch.utils.checkpoint, give that use_reentrant=False"
        )


def _check_scale(gradient: Tensor | None, given: Tensor, unit: float) -> None:
    """Refuse gradients of the outputs that do not belong to those of the parameters."""
    if gradient is not None and float(gradient.norm()) * unit > _SCALED * float(given.norm()) > 0:
        raise RuntimeError(
            f"the gradients of the module's outputs are more than {_SCALED} times those of its parameters, so that they do not show the "
            "curvature: if a GradScaler scales the loss, give Lifted the criterion"
        )


def _send(captures: Sequence[Capture], probes: Probes, last: Regression) -> None:
    pairs = [(capture, module, edge) for capture in captures for module, edge in capture.calls]
    if not pairs:
        return
    edges = [edge for _, _, edge in pairs]
    for number, sent in enumerate(probes.sent, start=1):
        keep = number < len(probes.sent) or bool(probes.unit)
        received = torch.autograd.grad(probes.outputs, edges, sent, retain_graph=keep, allow_unused=True)
        if probes.unit and last.weight.grad is not None:
            (gradient,) = torch.autograd.grad(probes.outputs, [last.weight], sent, allow_unused=True)
            _check_scale(gradient, last.weight.grad, probes.unit)
        for (capture, module, _), gradient in zip(pairs, received, strict=True):
            if gradient is not None:
                squares = capture.regression.channel_squares(module, gradient)
                capture.squares = capture.squares + squares * (probes.curvature / len(probes.sent))
