"""A module with its own `forward`, read by torch.fx: which layers it calls, on what, and which tensors it adds.

The forward is traced symbolically, never run on numbers. Calls such as `F.relu` are read as the layers that compute the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from liftednn.modules.building import Builder, Value
from liftednn.modules.calls import Step, called, is_size, known, name_of, no_form

__all__ = ["traced"]


class _Weight(NamedTuple):
    """A tensor that belongs to the module, or its transpose."""

    part: Tensor | None
    transposed: bool = False


def traced(step: Step, value: Value, builder: Builder, run: Callable[[Step, Value], Value]) -> Value:
    """The output of the forward of `step` for `value`; `run` gives that of the layers it calls."""
    forward = _Forward(step, builder, run)
    for node in _graph(step).nodes:
        if node.op == "output":
            return forward.value(node, node.args[0])
        if node.op == "placeholder" and not forward.found:
            forward.found[node] = value
        elif not (is_size(node) or _is_idle(node)):
            forward.found[node] = forward.result(node)
    raise AssertionError("a traced forward has an output")


class _Symbol(fx.Proxy):
    """Records a += b, which torch.fx itself would record as a + b."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Known layers are leaves, even where a user's class inherits from one."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Symbol(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return known(m) or super().is_leaf_module(m, module_qualified_name)


def _graph(step: Step) -> fx.Graph:
    """The trace in evaluation mode; the training flags are restored, and constants that torch.fx adds to the module are removed."""
    training, names = [part for part in step.layer.modules() if part.training], set(vars(step.layer))
    try:
        for part in training:
            part.training = False
        return _Tracer().trace(step.layer)
    except Exception as error:  # a forward may raise anything when it is traced
        raise ValueError(
            f"{step.path}: the forward of {type(step.layer).__name__} cannot be read as layers and sums ({error}): "
            "write it without control flow, or as a Sequential"
        ) from error
    finally:
        for part in training:
            part.training = True
        for name in set(vars(step.layer)) - names:
            delattr(step.layer, name)


def _is_idle(node: fx.Node) -> bool:
    """Whether a node is an argument that has a default and is never used, such as an optional mask."""
    return node.op == "placeholder" and bool(node.args) and not node.users


class _Forward:
    """The nodes of one traced forward; `found` has the result of each."""

    def __init__(self, step: Step, builder: Builder, run: Callable[[Step, Value], Value]) -> None:
        self.step, self.builder, self.run = step, builder, run
        self.found: dict[fx.Node, Value | _Weight] = {}

    def result(self, node: fx.Node) -> Value | _Weight:
        name = name_of(node)
        if node.op == "get_attr":
            return _Weight(_attribute(self.step.layer, str(node.target)))
        if node.op in ("call_function", "call_method"):
            if name in ("add", "iadd"):
                return self._sum(node)
            if name == "linear":
                return self._linear(node)
            if name in ("matmul", "mm"):
                return self._product(node)
            if node.args and isinstance(weight := self._found(node.args[0]), _Weight):
                return self._transposed(node, weight)
        taken = [each for each in node.all_input_nodes if not is_size(each)]
        if len(taken) != 1 or node.args[:1] != (taken[0],):
            raise self._refused(node)
        return self.run(called(self.step, node), self.value(node, taken[0]))

    def value(self, node: fx.Node, argument: Any) -> Value:
        """The tensor that an argument of a node is."""
        if not isinstance(found := self._found(argument), Value):
            raise self._refused(node)
        return found

    def _found(self, argument: Any) -> Value | _Weight | None:
        return self.found.get(argument) if isinstance(argument, fx.Node) else None

    def _where(self, node: fx.Node) -> str:
        return f"{self.step.path}: the forward of {type(self.step.layer).__name__} has no lifted form at {node.name!r}"

    def _refused(self, node: fx.Node) -> ValueError:
        return ValueError(
            f"{self._where(node)}: a call must take one tensor that depends on the input, or add two; several inputs and outputs, "
            "products and concatenations have no lifted form"
        )

    def _sum(self, node: fx.Node) -> Value:
        """A sum of two tensors, or of a tensor and a bias; `sum` of Python begins with 0."""
        options = dict(node.kwargs)
        operands = [*node.args, *(options.pop(name) for name in ("input", "other") if name in options)]
        in_place = name_of(node) == "iadd" or str(node.target).endswith("_")
        if len(operands) != 2 or options.pop("alpha", 1) != 1 or options:
            raise no_form(self.step, node)
        if any(isinstance(each, int) and each == 0 for each in operands):
            return self.value(node, next(each for each in operands if isinstance(each, fx.Node)))
        first, second = (self._found(each) for each in operands)
        if isinstance(first, Value) and isinstance(second, Value):
            return self.builder.add(self._where(node), first, second, in_place)
        if isinstance(first, _Weight) and not in_place:
            first, second = second, first
        if not isinstance(first, Value) or not isinstance(second, _Weight):
            raise self._refused(node)
        return self.builder.add_bias(self._where(node), first, self._parameter(node, second, 1))

    def _linear(self, node: fx.Node) -> Value:
        given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
        bias = given.get("bias")
        b = None if bias is None else self._parameter(node, self._found(bias), 1)
        return self._used(node, self.value(node, given["input"]), self._found(given["weight"]), b, False)

    def _product(self, node: fx.Node) -> Value:
        """x @ w, which is a Linear with the transpose."""
        if len(node.args) != 2:
            raise self._refused(node)
        return self._used(node, self.value(node, node.args[0]), self._found(node.args[1]), None, True)

    def _used(
        self, node: fx.Node, value: Value, weight: Value | _Weight | None, bias: Tensor | None, flip: bool
    ) -> Value:
        w = self._parameter(node, weight, 2)
        assert isinstance(weight, _Weight)
        transposed = weight.transposed != flip
        outputs, inputs = reversed(w.shape) if transposed else w.shape
        # A Linear without values, for error messages.
        step = Step(f"{self.step.path}.forward.{node.name}", nn.Linear(inputs, outputs, bias is not None, "meta"))
        if bias is not None and tuple(bias.shape) != (outputs,):
            raise ValueError(
                f"{self._where(node)}, where a bias of {len(bias)} entries is added to {outputs} outputs: give one for each"
            )
        return self.builder.linear(step, w, transposed, bias, value)

    def _parameter(self, node: fx.Node, given: Value | _Weight | None, ndim: int) -> Tensor:
        if not isinstance(given, _Weight):
            raise self._refused(node)
        if given.part is None or given.part.ndim != ndim:
            raise ValueError(
                f"{self._where(node)}, where a tensor is used that is not a parameter or buffer with {ndim} dimension{'s' * (ndim > 1)}: "
                "make it one"
            )
        return given.part

    def _transposed(self, node: fx.Node, weight: _Weight) -> _Weight:
        name, part = name_of(node), weight.part
        dims = [*node.args[1:], *node.kwargs.values()]
        swapped = name == "transpose" and dims in ([0, 1], [1, 0], [-2, -1], [-1, -2])
        if (
            part is None
            or part.ndim != 2
            or not (swapped or name == "t" or (name == "getattr" and dims[0] in ("T", "mT")))
        ):
            raise self._refused(node)
        return weight._replace(transposed=not weight.transposed)


def _attribute(module: nn.Module, path: str) -> Tensor | None:
    """The tensor at a path; None for a constant that torch.fx added."""
    *owners, name = path.split(".")
    found = getattr(module.get_submodule(".".join(owners)), name, None)
    return found if isinstance(found, Tensor) else None
