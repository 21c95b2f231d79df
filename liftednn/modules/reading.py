"""A torch module as a chain of Linear layers, each with the activation that follows it.

Nested Sequentials are read as they stand, a module with a `forward` of its own by tracing.py. Nothing is run and nothing in the module
changes. What has no lifted form is refused by its name and its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from liftednn.modules.tracing import Step, known, refusal, traced

__all__ = ["Chain", "read"]

_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Chain:
    """flat      rows are flattened before the first layer
    linears   every Linear, in order
    after     the activation that follows each, None where none does
    """

    flat: bool
    linears: list[nn.Linear]
    after: list[Step | None]


def read(module: nn.Module) -> Chain:
    """The module as a chain; refused in words if it is not one."""
    if not isinstance(module, nn.Module):
        what = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise ValueError(f"module must be a torch.nn.Module such as a Sequential, got {what}")
    _check_plain(module)
    linears: list[tuple[Step, nn.Linear]] = []
    after: list[Step | None] = []
    flat = False
    for step in _steps(Step("module", module)):
        if isinstance(step.layer, nn.Linear):
            linears.append((step, step.layer))
            after.append(None)
        elif isinstance(step.layer, nn.Flatten):
            flat = flat or not linears
        elif not linears or after[-1] is not None:
            raise refusal(step, "does not follow a Linear, as every activation must: put a Linear before it")
        else:
            after[-1] = step
    _check_linears(linears)
    return Chain(flat, [linear for _, linear in linears], after)


def _steps(step: Step) -> Iterator[Step]:
    """Linear layers, activations and Flatten, in order."""
    layer = step.layer
    if isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward:
        for name, part in layer._modules.items():  # named_children would leave out a layer that comes a second time
            if part is None:
                raise ValueError(f"{step.path}.{name} is None: put a layer there, or remove it")
            yield from _steps(Step(f"{step.path}.{name}", part))
    elif not known(layer):
        if type(layer).__module__.startswith("torch."):
            raise refusal(step, "has no lifted form: a chain is made of Linear, Flatten, Dropout and activations")
        for inner in traced(step):
            yield from _steps(inner)
    elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
        raise refusal(step, "must flatten all but the first dimension: use Flatten()")
    elif not isinstance(layer, (nn.Identity, nn.Dropout)):
        yield step


def _check_plain(module: nn.Module) -> None:
    for name, part in module.named_modules():
        step = Step(f"module.{name}".rstrip("."), part)
        if "_orig_mod" in part._modules:  # so that torch's compiler need not be imported to know its class
            raise refusal(step, f"is compiled: give the module before torch.compile: {step.path}._orig_mod")
        if any(isinstance(each, nn.UninitializedParameter) for each in part.parameters(recurse=False)):
            raise refusal(step, "has no weights yet: run the module on a batch first")
        if is_parametrized(part):
            raise refusal(step, "is parametrized, so its weights are not its own: remove the parametrization first")
        if part._forward_hooks or part._forward_pre_hooks:
            raise refusal(step, "has forward hooks, which may change what it computes: remove them first")


def _check_linears(linears: list[tuple[Step, nn.Linear]]) -> None:
    if not linears:
        raise ValueError("the module has no Linear layer: there is nothing to lift")
    seen: list[Tensor] = []
    given = linears[0][1].in_features
    for step, linear in linears:
        own = list(linear.parameters())
        if linear.weight is None or linear.weight.shape != (linear.out_features, linear.in_features):
            raise refusal(step, "has a weight of another shape, or none")
        _check_numbers(step, own)
        if any(_share(a, b) for a in own for b in seen):
            raise refusal(
                step, "has weights that another place of the chain has too: a lifted layer has its own, so untie them"
            )
        if linear.in_features != given:
            raise refusal(step, f"takes {linear.in_features} inputs, but the layer before it gives {given}")
        seen, given = [*seen, *own], linear.out_features


def _check_numbers(step: Step, parts: list[nn.Parameter]) -> None:
    for part in parts:
        if part.dtype not in _REAL:
            raise refusal(step, f"has weights of {part.dtype}: convert it to float32 or float64, or to a 16-bit float")
        if part.layout != torch.strided or any(
            n > 1 and not stride for n, stride in zip(part.shape, part.stride(), strict=True)
        ):
            raise refusal(
                step, "has weights that are sparse or expanded, so that not each has memory of its own: copy them"
            )


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two parameters are one, or lie in the same memory, as a transposed view does; neighbours in one vector do not."""
    if a is b or a.is_meta or b.is_meta or a.device != b.device or not a.numel() or not b.numel():
        return a is b
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(x: Tensor) -> int:
    """The address after the last entry."""
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.element_size()
