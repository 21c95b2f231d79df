"""A torch module as layers: Linear maps and convolutions of states, with the states that are added to them and the activations that follow.

Nested Sequentials are read directly, a module with its own `forward` by tracing.py. Nothing is run and nothing in the module changes.
What has no lifted form raises an error with its name and path.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from liftednn.modules.building import Builder, Value
from liftednn.modules.calls import Step, known, unsupported
from liftednn.modules.convolutions import affine_of, convolution_of, max_pooled_shape, pooling_of
from liftednn.modules.feedforward import State
from liftednn.modules.graph import Graph
from liftednn.modules.tracing import traced

__all__ = ["read"]


def read(module: nn.Module, in_shape: tuple[int, ...] | None = None) -> Graph:
    """The module as layers; an error says which part has no lifted form. Convolutions and poolings need the shape of one sample."""
    if not isinstance(module, nn.Module):
        what = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise ValueError(f"module must be a torch.nn.Module such as a Sequential, got {what}")
    _check_plain(module)
    builder = Builder(in_shape)
    last = _run(builder, Step("module", module), builder.input)
    return builder.finish(last, {part: name for name, part in (*module.named_buffers(), *module.named_parameters())})


def _run(builder: Builder, step: Step, value: Value) -> Value:
    """The output of a layer, or of a module of layers, for a value."""
    layer = step.layer
    if isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward:
        for name, part in layer._modules.items():  # named_children would leave out a layer that is used a second time
            if part is None:
                raise ValueError(f"{step.path}.{name} is None: put a layer there, or remove it")
            value = _run(builder, Step(f"{step.path}.{name}", part), value)
        return value
    if known(layer):
        return _applied(builder, step, value)
    if type(layer).__module__.startswith("torch."):
        raise unsupported(
            step,
            "has no lifted form: a module is made of Linear, Conv1d, Conv2d, poolings, batch norm, Flatten, Dropout, "
            "activations and sums",
        )
    return traced(step, value, builder, partial(_run, builder))


def _applied(builder: Builder, step: Step, value: Value) -> Value:
    layer = step.layer
    if isinstance(layer, nn.Linear):
        if layer.weight is None or layer.weight.shape != (layer.out_features, layer.in_features):
            raise unsupported(step, "has a weight of another shape, or none")
        return builder.linear(step, layer.weight, False, layer.bias, value)
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return builder.convolution(step, partial(convolution_of, step, layer), layer.weight, layer.bias, value)
    if isinstance(layer, nn.AvgPool1d | nn.AvgPool2d):
        return builder.pool(step, pooling_of(step, layer), value)
    if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d):
        return builder.max_pool(step, partial(max_pooled_shape, step, layer), value)
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return builder.fold(step, *affine_of(step, layer), value)
    if isinstance(layer, nn.Flatten):
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise unsupported(step, "must flatten all but the first dimension: use Flatten()")
        return builder.flatten(value)
    if isinstance(layer, (nn.Identity, nn.Dropout)):
        return builder.state(value) if isinstance(layer, State) else value
    return builder.activate(step, value)


def _check_plain(module: nn.Module) -> None:
    for name, part in module.named_modules():
        step = Step(f"module.{name}".rstrip("."), part)
        if "_orig_mod" in part._modules:  # so that torch's compiler need not be imported
            raise unsupported(step, f"is compiled: give the module before torch.compile: {step.path}._orig_mod")
        if any(isinstance(each, nn.UninitializedParameter) for each in part.parameters(recurse=False)):
            raise unsupported(step, "has no weights yet: run the module on a batch first")
        if is_parametrized(part):
            raise unsupported(step, "is parametrized, so its weights are computed: remove the parametrization first")
        if part._forward_hooks or part._forward_pre_hooks:
            raise unsupported(step, "has forward hooks, which may change what it computes: remove them first")
