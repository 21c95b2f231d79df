"""The layers of a torch module that are linear regressions: their weights as matrices, their inputs as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.blocks.regressions import POSITIONS, SAMPLES
from liftednn.operators import Conv1d, Conv2d

__all__ = ["Regression", "norm_parameters", "regressions"]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, *_TRANSPOSED)
# The most numbers in a matrix of rows that is formed at a time.
_FORMED = 2**26
_ALL = slice(None)


@dataclass(frozen=True)
class Regression:
    """A weight, the intercepts that move with it, and the modules that have this weight.

    A transposed convolution multiplies the channels of each input position with one matrix, whose outputs, one for every output channel
    and kernel position, are added up where kernels overlap.

    rows, bias_rows   those of the weight and of the intercepts, where an attention holds the projections of queries, keys and values in
                      one parameter
    functional        whether the weight is given to torch.nn.functional.linear without a call of a module, as attention does
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    modules: tuple[nn.Module, ...]
    rows: slice
    bias_rows: slice
    functional: bool

    @property
    def name(self) -> str:
        """The name of its geometry in the state of the weight."""
        return "metric" if self.rows == _ALL else f"metric_{self.rows.start}"

    @cached_property
    def groups(self) -> int:
        return int(getattr(self.modules[0], "groups", 1))

    @cached_property
    def transposed(self) -> bool:
        return isinstance(self.modules[0], _TRANSPOSED)

    @property
    def recurrent(self) -> bool:
        """Whether it is a gate of a recurrent layer."""
        return isinstance(self.modules[0], nn.RNNBase)

    @property
    def outputs(self) -> int:
        """Output channels of all groups."""
        return self.groups * self.weight.shape[1] if self.transposed else len(self.weight[self.rows])

    @cached_property
    def columns(self) -> int:
        """Entries of a row of one group."""
        return len(self.weight) // self.groups if self.transposed else math.prod(self.weight.shape[1:])

    @property
    def overlapping(self) -> bool:
        """Whether its rows are patches that share entries."""
        convolutions = [each for each in self.modules if isinstance(each, nn.Conv1d | nn.Conv2d)]
        sizes = [size for each in convolutions for size in zip(each.kernel_size, each.stride, strict=True)]
        return any(kernel > stride for kernel, stride in sizes)

    @property
    def moving(self) -> tuple[bool, bool]:
        """Whether the weight and the intercepts have gradients."""
        return self.weight.grad is not None, self.bias is not None and self.bias.grad is not None

    @cached_property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(g, q, p)."""
        numbers = self.weight.numel() if self.rows == _ALL else self.outputs * self.columns
        return self.groups, numbers // (self.groups * self.columns), self.columns

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its moments and inverses."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    def of_tokens(self, x: Tensor) -> bool:
        """Whether inputs of a call have several rows for each sample. Those of the last projection of an attention come flattened."""
        return self.functional or self.recurrent or (self.weight.ndim == 2 and math.prod(x.shape[1:-1]) > 1)

    def gate(self, module: nn.RNNBase, x: Any, first: Any, states: Any) -> tuple[Tensor, Tensor] | None:
        """What this gate multiplies in a call of its recurrent layer, (n, t, p), and its products; None for packed sequences.

        first, states   the states that were given, if any, and those that the layer returns
        """
        if not isinstance(x, Tensor):
            return None
        rows = _batch_first(module, x)
        if self.weight is module.weight_hh_l0:
            states = _batch_first(module, states)
            first = first[0] if isinstance(first, tuple) else first
            given = torch.zeros_like(states[:, :1]) if first is None else first.reshape(len(states), 1, -1).to(states)
            rows = torch.cat([given, states[:, :-1]], 1)
        rows = rows.to(self.weight)
        bias = None if self.bias is None else self.bias[self.bias_rows]
        return rows, fn.linear(rows, self.weight[self.rows], bias)

    def matrix(self, w: Tensor) -> Tensor:
        """Its rows of a tensor like the weight as (g, q, p)."""
        w = w if self.rows == _ALL else w[self.rows]
        if self.transposed:
            return w.reshape(self.groups, len(w) // self.groups, -1).mT.contiguous().to(self.dtype)
        return w.reshape(self.matrix_shape).to(self.dtype)

    def intercepts(self, b: Tensor) -> Tensor:
        """Its rows of a tensor like the bias as (g, q)."""
        return b[self.bias_rows].reshape(self.groups, -1).to(self.dtype)

    def mean_outputs(self, centre: Tensor) -> Tensor:
        """The products of the weights with the mean of the rows, (g, p), in the order of the intercepts."""
        return torch.bmm(self.matrix(self.weight), centre[:, :, None]).reshape(-1)

    def from_matrix(self, w: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return (w.mT if self.transposed else w).reshape(-1, *self.weight.shape[1:])

    def row_blocks(self, module: nn.Module, x: Tensor) -> Iterator[Tensor]:
        """The rows (r, g, p) that one call of a module multiplies with the weight; some of the first samples' where there are many."""
        if not x.numel():
            return
        operator = None
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            x = _padded(module, x)
            operator = _operator(module, tuple(x.shape[1:]))
            positions = operator.positions
        else:
            x = _batched(module, x).flatten(2).mT if isinstance(module, _TRANSPOSED) else x
            x = x.reshape(len(x), -1, x.shape[-1]) if x.ndim > 2 else x.reshape(-1, 1, x.shape[-1])
            positions = x.shape[1]
        few = x[: max(SAMPLES, POSITIONS // positions)] if positions > 1 else x
        # At most about twice POSITIONS rows; every odd one, so that all columns of an image are met.
        every = len(few) * positions // (2 * POSITIONS) | 1 if positions > 1 else 1
        for part in torch.split(few, max(1, _FORMED // (positions * self.groups * self.columns))):
            rows = part.flatten(0, 1) if operator is None else operator.rows([part.flatten(1)])
            rows = rows[::every].to(self.dtype)
            yield rows.reshape(len(rows), self.groups, -1)

    def channel_squares(self, module: nn.Module, u: Tensor) -> Tensor:
        """The squares of a tensor like the outputs of a module, summed over rows: one number for each output."""
        convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d)
        channel = u.ndim - len(self.weight.shape) + 1 if convolution else u.ndim - 1
        others = [axis for axis in range(u.ndim) if axis != channel]
        squares = u.to(self.dtype).square()
        return squares.sum(others) if others else squares

    def overlap(self, module: nn.Module, x: Tensor, output: Tensor) -> float:
        """A bound of the square of an output, summed over positions, by those of what is added up there: the most terms of an output,
        times positions of the inputs over those of the outputs. 1 but for transposed convolutions."""
        if not isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d):
            return 1.0
        sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
        terms = math.prod(-(-k * math.gcd(stride, dilation) // stride) for k, stride, dilation in sizes)
        axes = len(module.kernel_size)
        return terms * math.prod(x.shape[-axes:]) / math.prod(output.shape[-axes:])


def _batch_first(module: nn.RNNBase, x: Tensor) -> Tensor:
    """Inputs or outputs of a recurrent layer as (n, t, columns)."""
    x = x[None] if x.ndim == 2 else x if module.batch_first else x.transpose(0, 1)
    return x.detach()


def _batched(module: nn.Module, x: Tensor) -> Tensor:
    """Inputs (n, channels, ...) of a convolution, also where one sample was given."""
    return x if x.ndim == len(module.kernel_size) + 2 else x[None]  # type: ignore[arg-type]


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """The inputs (n, channels, ...) with all padding of the module."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return fn.pad(_batched(module, x), module._reversed_padding_repeated_twice, mode=mode)


def _operator(module: nn.Conv1d | nn.Conv2d, in_shape: tuple[int, ...]) -> Conv1d | Conv2d:
    kind = Conv1d if isinstance(module, nn.Conv1d) else Conv2d
    kernel, stride, dilation = (tuple(each) for each in (module.kernel_size, module.stride, module.dilation))
    return kind(in_shape, module.out_channels, kernel, stride, 0, dilation, module.groups)


class _Projection(NamedTuple):
    """A weight and its intercepts in one module, as in `Regression`."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    rows: slice = _ALL
    bias_rows: slice = _ALL


def _projections(module: nn.Module) -> list[_Projection]:
    """The projections by the parameters that a module has itself."""
    held = module._parameters
    if isinstance(module, _TRANSPOSED) and not _pointwise(module):
        return [_Projection(held.get("weight"), None)]  # an intercept belongs to several rows of the matrix
    if isinstance(module, _KINDS):
        return [_Projection(held.get("weight"), held.get("bias"))]
    if isinstance(module, nn.RNNBase):
        return _gates(module)
    if not isinstance(module, nn.MultiheadAttention):
        return []
    thirds = [slice(at * module.embed_dim, (at + 1) * module.embed_dim) for at in range(3)]
    packed, bias = held.get("in_proj_weight"), held.get("in_proj_bias")
    if packed is not None:
        return [_Projection(packed, bias, third, third) for third in thirds]
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    return [_Projection(held.get(name), bias, bias_rows=third) for name, third in zip(names, thirds, strict=True)]


def _gates(module: nn.RNNBase) -> list[_Projection]:
    """The projections of each gate of a recurrent layer of one direction, alone, which returns all of its states."""
    if module.num_layers > 1 or module.bidirectional:
        return []
    held, h = module._parameters, module.hidden_size
    sides = [(held.get(f"weight_{side}_l0"), held.get(f"bias_{side}_l0")) for side in ("ih", "hh")]
    return [
        _Projection(weight, bias, gate, gate)
        for weight, bias in sides
        if weight is not None
        for gate in (slice(start, start + h) for start in range(0, len(weight), h))
    ]


def _pointwise(module: nn.Module) -> bool:
    """Whether a transposed convolution is a Linear at every position."""
    assert isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d)
    ones, zeros = (*module.kernel_size, *module.stride), (*module.padding, *module.output_padding)
    return set(ones) == {1} and set(zeros) == {0}


def regressions(module: nn.Module, held: set[Tensor]) -> list[Regression]:
    """The layers of a module whose weights are in `held`, the parameters of an optimiser.

    A weight that another kind of module has too, such as an embedding, is not one of a regression; nor is one that a convolution and a
    transposed one share, or one of complex numbers, or without any.
    """
    every = [(each, _projections(each)) for each in module.modules()]
    others = {id(p) for each, found in every if not found for p in each._parameters.values()}
    inside = {id(each.out_proj) for each, _ in every if isinstance(each, nn.MultiheadAttention)}
    found: dict[tuple[int, int], list[tuple[nn.Module, _Projection]]] = {}
    for each, projections in every:
        for one in projections:
            if one.weight is None or one.weight not in held or id(one.weight) in others:
                continue
            if one.weight.is_floating_point() and one.weight.numel():
                found.setdefault((id(one.weight), one.rows.start or 0), []).append((each, one))
    made = []
    for pairs in found.values():
        modules, (weight, bias, rows, bias_rows) = tuple(each for each, _ in pairs), pairs[0][1]
        bias = None if bias is None or bias not in held or id(bias) in others else bias
        functional = any(id(each) in inside or isinstance(each, nn.MultiheadAttention) for each in modules)
        if weight is not None and len({isinstance(each, _TRANSPOSED) for each in modules}) == 1:
            made.append(Regression(weight, bias, modules, rows, bias_rows, functional))
    return made


def norm_parameters(module: nn.Module, held: set[Tensor]) -> list[Tensor]:
    """The parameters of modules with a weight of one axis, such as all norms, that are in `held` and have a gradient."""
    own = [dict(each._parameters.items()) for each in module.modules()]
    norms = [named for named in own if (gain := named.get("weight")) is not None and gain.ndim == 1]
    return [p for named in norms for p in named.values() if p is not None and p.grad is not None and p in held]
