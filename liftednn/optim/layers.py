"""The layers of a torch module that are linear regressions: their weights as matrices, their inputs as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.blocks.regressions import POSITIONS, SAMPLES
from liftednn.operators import Conv1d, Conv2d

__all__ = ["Regression", "regressions"]

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)
# The most numbers in a matrix of rows that is formed at a time.
_FORMED = 2**26


@dataclass(frozen=True)
class Regression:
    """A weight, the intercepts that move with it, and the modules that have this weight."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    modules: tuple[nn.Module, ...]

    @property
    def groups(self) -> int:
        return int(getattr(self.modules[0], "groups", 1))

    @property
    def has_gradient(self) -> bool:
        return self.weight.grad is not None or (self.bias is not None and self.bias.grad is not None)

    @property
    def dtype(self) -> torch.dtype:
        """That of its moments and inverses."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    def matrix(self, w: Tensor) -> Tensor:
        """A tensor like the weight as (g, q, p)."""
        return w.reshape(self.groups, w.shape[0] // self.groups, -1).to(self.dtype)

    def row_blocks(self, module: nn.Module, x: Tensor) -> Iterator[Tensor]:
        """The rows (r, g, p) that one call of a module multiplies with the weight; some of the first samples' where there are many."""
        if isinstance(module, nn.Linear):
            x = x.reshape(len(x), -1, x.shape[-1]) if x.ndim > 2 else x.reshape(-1, 1, x.shape[-1])
            positions = x.shape[1]
        else:
            assert isinstance(module, nn.Conv1d | nn.Conv2d)
            x = _padded(module, x)
            operator = _operator(module, tuple(x.shape[1:]))
            positions = operator.positions
        few = x[: max(SAMPLES, POSITIONS // positions)] if positions > 1 else x
        # At most about twice POSITIONS rows; every odd one, so that all columns of an image are met.
        every = len(few) * positions // (2 * POSITIONS) | 1 if positions > 1 else 1
        width = self.groups * math.prod(self.weight.shape[1:])
        for part in torch.split(few, max(1, _FORMED // (positions * width))):
            rows = part.flatten(0, 1) if isinstance(module, nn.Linear) else operator.rows([part.flatten(1)])
            rows = rows[::every].to(self.dtype)
            yield rows.reshape(len(rows), self.groups, -1)

    def channel_squares(self, module: nn.Module, u: Tensor) -> Tensor:
        """The squares of a tensor like the outputs of a module, summed over rows: one number for each output."""
        channel = u.ndim - 1 if isinstance(module, nn.Linear) else u.ndim - len(self.weight.shape) + 1
        others = [axis for axis in range(u.ndim) if axis != channel]
        squares = u.to(self.dtype).square()
        return squares.sum(others) if others else squares


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """The inputs (n, channels, ...) with all padding of the module."""
    x = x if x.ndim == len(module.kernel_size) + 2 else x[None]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return fn.pad(x, module._reversed_padding_repeated_twice, mode=mode)


def _operator(module: nn.Conv1d | nn.Conv2d, in_shape: tuple[int, ...]) -> Conv1d | Conv2d:
    kind = Conv1d if isinstance(module, nn.Conv1d) else Conv2d
    kernel, stride, dilation = (tuple(each) for each in (module.kernel_size, module.stride, module.dilation))
    return kind(in_shape, module.out_channels, kernel, stride, 0, dilation, module.groups)


def regressions(module: nn.Module, held: set[Tensor]) -> list[Regression]:
    """The layers of a module whose weights are in `held`, the parameters of an optimiser.

    A weight that another kind of module has too, such as an embedding, is not one of a regression.
    """
    others = {id(p) for each in module.modules() if not isinstance(each, _KINDS) for p in each._parameters.values()}
    found: dict[int, list[nn.Module]] = {}
    for each in module.modules():
        weight = each._parameters.get("weight") if isinstance(each, _KINDS) else None
        if weight is not None and weight in held and id(weight) not in others:
            found.setdefault(id(weight), []).append(each)
    made = []
    for modules in found.values():
        bias = modules[0]._parameters["bias"]
        bias = None if bias is None or bias not in held or id(bias) in others else bias
        made.append(Regression(modules[0]._parameters["weight"], bias, tuple(modules)))  # type: ignore[arg-type]
    return made
