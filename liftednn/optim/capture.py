"""What a refresh measures: a rerun of the module, with the moments of every layer's rows and the curvature in its outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from liftednn.optim.calls import Call, copied_buffers, watched_linear
from liftednn.optim.layers import Regression
from liftednn.optim.moments import BlockMoments
from liftednn.optim.probes import Probes

__all__ = ["Capture", "last_weight", "measure"]

# Rows on which the motion of a layer's outputs is measured.
_MEASURED = 1024
# Curvature below this fraction of the largest layer's is taken as 0 for a layer, and of the largest output's for an output.
_NEGLIGIBLE = 1e-10
# A scaler multiplies the loss by some 10,000; gradients are rarely clipped by so much.
_SCALED = 1000

AddUp = Callable[[Tensor], Tensor]


class Capture:
    """What is measured of one layer in a rerun.

    moments     of its rows
    sample      some of the rows, (r, g, p)
    squares     of the gradients that the probes cause in its outputs, summed over rows, one for each output: the curvature of each
    size        the squares of its outputs, summed, the number of them, that times `Regression.overlap`, and how many calls read tokens
    calls       the module, the layer's columns of its output, and where the gradient of that output arrives
    number      that of its last call among those of all layers, a mean over the processes that call it; -1 where none does
    rows        how many there are
    curvature   in its outputs, summed over rows; infinite where no probe arrives
    finite      whether all of these are
    tokens      whether it is called with several rows of each sample, and no convolution
    """

    def __init__(self, regression: Regression) -> None:
        self.regression = regression
        like = regression.weight.detach().new_zeros((), dtype=regression.dtype)
        self.moments = BlockMoments.zeros(regression.groups, regression.columns, like)
        self.sample: list[Tensor] = []
        self.squares = like.new_zeros(regression.outputs)
        self.size = like.new_zeros(4)
        self.calls: list[tuple[nn.Module, slice, Any]] = []
        self.order = like.new_zeros(2)
        self.numbers, self.number, self.without_graph = 0, -1.0, False
        self.rows, self.curvature, self.finite, self.tokens = 0.0, math.inf, True, False

    def add(self, module: nn.Module, x: Tensor, output: Tensor) -> None:
        """Add the rows and the outputs of a call."""
        for rows in self.regression.row_blocks(module, x.detach()):
            if len(rows):
                self.moments = self.moments + BlockMoments.of(rows)
                self.sample.append(rows[:: -(-len(rows) // _MEASURED)].clone())
        squares = self.regression.channel_squares(module, output.detach())
        number, overlap = output.numel(), self.regression.overlap(module, x, output)
        counts = [squares.new_full((), each) for each in (number, overlap * number, self.regression.of_tokens(x))]
        self.size = self.size + torch.stack([squares.sum(), *counts])
        self.numbers += output.numel()

    def summed(self, add_up: AddUp) -> None:
        """Add what the other processes have captured; curvatures are those of a mean over them."""
        self.moments, self.size = self.moments.summed(add_up), add_up(self.size)
        self.squares = add_up(self.squares) / add_up(torch.ones_like(self.size[0]))
        # Filled, not copied: a copy from the host would wait for the device.
        self.order = add_up(torch.stack([self.size.new_full((), each) for each in (self.number + 1, self.number >= 0)]))

    @property
    def mean_square(self) -> Tensor:
        """The mean square of its outputs."""
        return self.size[0] / self.size[1]

    @property
    def input_square(self) -> Tensor:
        """The mean square of its inputs."""
        return torch.cat([gram.diagonal(dim1=1, dim2=2) for gram in self.moments.grams(centred=False)], 1).mean()

    @property
    def overlap(self) -> Tensor:
        """The mean over outputs of `Regression.overlap`."""
        return self.size[2] / self.size[1]

    @property
    def mean_number(self) -> Tensor:
        """`number`, of all processes together: they must agree on which layer is the last."""
        return self.order[0] / self.order[1].clamp(min=1) - 1

    @property
    def steps(self) -> bool:
        """Whether it takes steps: where no probe arrives, only those of layers on tokens, which need no curvature."""
        return self.curvature < math.inf or self.tokens

    def mean_curvature(self) -> Tensor:
        """The mean over outputs that receive a gradient. Outputs without must not lower it: a smaller curvature gives longer steps, which
        give more outputs without a gradient. Of a transposed convolution, it is that of what is added up in the outputs."""
        active = (self.squares > _NEGLIGIBLE * self.squares.max()).to(self.squares).mean()
        return self.overlap * self.squares.mean() / active.clamp(min=1 / len(self.squares))

    def motion(self, move: Tensor | None, shift: Tensor | None, add_up: AddUp) -> Tensor:
        """The mean square by which a step moves the outputs, over the mean square of these."""
        move = self.squares.new_zeros(self.regression.matrix_shape) if move is None else move
        rows = torch.cat(self.sample) if self.sample else move.new_zeros(0, *move.shape[::2])
        moved = torch.bmm(rows.transpose(0, 1), move.mT)
        moved = moved if shift is None else moved + shift[:, None]
        number = moved.new_full((), len(rows) * self.regression.outputs)
        squares, number = add_up(torch.stack([self.overlap * moved.square().sum(), number]))
        relative: Tensor = squares / number / self.mean_square
        return relative


def measure(
    module: nn.Module,
    call: Call,
    layers: Sequence[Regression],
    probes: Callable[[Any, int], Probes],
    add_up: AddUp,
) -> list[Capture]:
    """The layers that are called when a module is rerun.

    probes   gives what is sent backward, from the module's outputs and the number of entries in the outputs of the last layer
    add_up   the sum of a tensor over all processes
    """
    captures = [Capture(layer) for layer in layers]
    with copied_buffers(module):
        outputs = _rerun(module, call, captures)
        _check_graphs(captures)
        last = max(captures, key=lambda each: each.number, default=None)
        if last is not None:
            given = probes(outputs, last.numbers)  # also where this process calls no layer: it adds up with the others
            if last.number >= 0:
                _send(captures, given, last.regression)
    for capture in captures:
        capture.summed(add_up)
    _read_numbers(captures)
    called = [capture for capture in captures if capture.rows and capture.finite]
    if not all(capture.finite for capture in captures):
        warnings.warn(
            "inputs or outputs of some layers are not finite in the batch that Lifted measures: these layers keep what was measured "
            "before",
            stacklevel=4,
        )
    _warn_of_unreached([each.regression for each in called if not each.curvature and not each.tokens])
    largest = max((each.curvature for each in called), default=0.0)
    for capture in called:
        capture.curvature = capture.curvature if capture.curvature > _NEGLIGIBLE * largest else math.inf
    return called


def _warn_of_unreached(layers: Sequence[Regression]) -> None:
    """Layers that no probe has reached take no steps; those with a gradient lead to another part of the loss."""
    names = [
        str(each.modules[0]) for each in layers if each.weight.grad is not None and bool((each.weight.grad != 0).any())
    ]
    if names:
        warnings.warn(
            f"{', '.join(names)} does not lead to the scores that the criterion is for, which are the module's first output or its logits, "
            "and takes no steps: give Lifted criterion=None, or one tensor with all scores",
            stacklevel=5,
        )


def last_weight(found: Sequence[Capture]) -> Tensor | None:
    """The weight of the layer that is called last of those that lead to the criterion; gates of recurrent layers have no number."""
    called = [capture for capture in found if capture.number >= 0 and capture.curvature < math.inf]
    return max(called, key=lambda capture: capture.number).regression.weight if called else None


def _read_numbers(captures: Sequence[Capture]) -> None:
    """Rows and curvatures as numbers. Reading them waits for the device: once for all layers."""
    if captures:
        like = captures[0].size
        found = [
            (
                each.moments.count,
                each.mean_curvature(),
                each.moments.total() + each.size[0],
                each.size[3],
                each.mean_number,
            )
            for each in captures
        ]
        numbers = torch.stack([torch.stack(each).to(like) for each in found]).tolist()
        for capture, (rows, curvature, total, tokens, number) in zip(captures, numbers, strict=True):
            capture.rows, capture.curvature, capture.tokens, capture.number = rows, curvature, tokens > 0, number
            capture.finite = math.isfinite(total) and (not rows or math.isfinite(curvature))


def _rerun(module: nn.Module, call: Call, captures: Sequence[Capture]) -> Any:
    numbers = iter(range(2**62))
    by_weight: dict[int, list[Capture]] = {}
    for capture in captures:
        if capture.regression.functional:
            by_weight.setdefault(id(capture.regression.weight), []).append(capture)
    hooked = [
        (each, capture)
        for capture in captures
        if not capture.regression.functional
        for each in capture.regression.modules
    ]
    handles = [
        each.register_forward_hook(_forward_hook(capture, numbers), prepend=True, with_kwargs=True)
        for each, capture in hooked
    ]
    try:
        with watched_linear(partial(_watch_linear, by_weight, numbers)) if by_weight else nullcontext():
            return call.rerun(module)
    finally:
        for handle in handles:
            handle.remove()


def _forward_hook(capture: Capture, numbers: Iterator[int]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()))
        if isinstance(module, nn.RNNBase):
            return _watch_gate(capture, module, x, args[1] if len(args) > 1 else kwargs.get("hx"), output)
        if not isinstance(x, Tensor) or not isinstance(output, Tensor) or _unlike(module, x):
            return output  # a kind of its own: AdamW moves it
        return _watched([(capture, slice(None))], next(numbers), module, x, output)

    return hook


def _unlike(module: nn.Module, x: Tensor) -> bool:
    """Whether a Linear of a class of its own multiplies with something else than its weight, such as its transpose."""
    return isinstance(module, nn.Linear) and x.shape[-1:] != module.weight.shape[1:]


def _watch_gate(capture: Capture, module: nn.RNNBase, x: Any, first: Any, output: Any) -> Any:
    """Add a call to the capture of a gate, without a graph: its steps need no curvature."""
    with torch.no_grad(), torch.autocast(capture.regression.weight.device.type, enabled=False):
        found = capture.regression.gate(module, x, first, output[0])
        if found is not None:
            capture.add(module, *found)
    return output


def _watch_linear(
    by_weight: Mapping[int, Sequence[Capture]], numbers: Iterator[int], x: Tensor, weight: Tensor, output: Tensor
) -> Tensor:
    """For a call of torch.nn.functional.linear with one of these weights, or with some of its rows."""
    whole = weight if id(weight) in by_weight or weight._base is None else weight._base
    start = (weight.storage_offset() - whole.storage_offset()) // max(weight.stride(0), 1)
    found = []
    for capture in by_weight.get(id(whole), ()):
        first, last, _ = capture.regression.rows.indices(len(whole))
        if start <= first and last <= start + len(weight):
            found.append((capture, slice(first - start, last - start)))
    if not found:
        return output
    # Attention has its inputs as (tokens, samples, columns).
    x = x.transpose(0, 1) if x.ndim == 3 else x
    return _watched(found, next(numbers), found[0][0].regression.modules[0], x, output)


def _watched(
    captures: Sequence[tuple[Capture, slice]], number: int, module: nn.Module, x: Tensor, output: Tensor
) -> Tensor:
    """Add a call to the captures, each with its columns of the output. Returns what the module shall give in place of the output."""
    for capture, columns in captures:
        capture.number = number
        with torch.no_grad(), torch.autocast(output.device.type, enabled=False):
            capture.add(module, x, output[..., columns])
        capture.without_graph |= not output.requires_grad
    if not output.requires_grad:
        return output
    # An activation may write to its input, and a copy can be written to without another graph for its source.
    copy = output.clone()
    for capture, columns in captures:
        capture.calls.append((module, columns, get_gradient_edge(copy)))
    return copy


def _check_graphs(captures: Sequence[Capture]) -> None:
    """A layer with a gradient, other than 0, must be part of the graph of the outputs."""
    found = [capture.regression.weight.grad for capture in captures if capture.without_graph and not capture.calls]
    if any(gradient is not None and bool(gradient.any()) for gradient in found):
        raise RuntimeError(
            "a layer whose parameters have gradients was run without a graph, so that its curvature cannot be measured: if it is under "
            "torch.utils.checkpoint, give that use_reentrant=False"
        )


def _check_scale(gradient: Tensor | None, given: Tensor, unit: float) -> None:
    """Warn of gradients of the outputs that do not belong to those of the parameters."""
    if gradient is not None and float(gradient.norm()) * unit > _SCALED * float(given.norm()) > 0:
        warnings.warn(
            f"the gradients of the parameters are more than {_SCALED} times smaller than those of the module's outputs imply, and steps "
            "are as much shorter: if a GradScaler scales the loss, give Lifted the criterion; if gradients are clipped, clip them less",
            stacklevel=6,
        )


def _send(captures: Sequence[Capture], probes: Probes, last: Regression) -> None:
    pairs = [(capture, *call) for capture in captures for call in capture.calls]
    if not pairs:
        return
    edges = [edge for *_, edge in pairs]
    for number, sent in enumerate(probes.sent, start=1):
        keep = number < len(probes.sent) or bool(probes.unit)
        received = torch.autograd.grad(probes.outputs, edges, sent, retain_graph=keep, allow_unused=True)
        if probes.unit and last.weight.grad is not None:
            (gradient,) = torch.autograd.grad(probes.outputs, [last.weight], sent, allow_unused=True)
            _check_scale(gradient, last.weight.grad, probes.unit)
        for (capture, module, columns, _), gradient in zip(pairs, received, strict=True):
            if gradient is not None:
                squares = capture.regression.channel_squares(module, gradient[..., columns])
                capture.squares = capture.squares + squares * (probes.curvature / len(probes.sent))
