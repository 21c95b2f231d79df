"""The layers of a module that has a `forward` of its own, read by torch.fx: a chain in which every call takes what the one before gave.

The forward is run on symbols, never on numbers. Calls such as `F.relu` become the layers that compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import fx, nn

__all__ = ["KNOWN", "Step", "known", "refusal", "traced"]

KNOWN: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Flatten, nn.Identity, nn.Dropout),
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardsigmoid),
    *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.LogSoftmax),
)


class Step(NamedTuple):
    """A layer and where it stands in the module."""

    path: str
    layer: nn.Module


def refusal(step: Step, why: str) -> ValueError:
    """In one line: of a layer with layers inside, the name alone."""
    what = type(step.layer).__name__ if any(step.layer.children()) else repr(step.layer)
    return ValueError(f"{step.path}: {what} {why}")


def known(module: nn.Module) -> bool:
    """Whether its forward is that of a layer listed above, own or inherited."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in KNOWN)


def traced(step: Step) -> Iterator[Step]:
    """Its layers in the order of the calls; refused where they are no chain."""
    at: fx.Node | None = None
    for node in _graph(step).nodes:
        if node.op == "placeholder" and at is None:
            at = node
        elif not (_is_size(node) or _is_idle(node)):
            taken = [each for each in node.all_input_nodes if not _is_size(each)]
            if taken != [at] or node.args[:1] != (at,):
                raise ValueError(
                    f"{step.path}: the forward of {type(step.layer).__name__} is no chain at {node.name!r}: every call must take "
                    "what the call before it gave, and nothing else; branches, sums and several inputs have no lifted form"
                )
            if node.op != "output":
                yield _called(step, node)
            at = node


class _Tracer(fx.Tracer):
    """Known layers are leaves, even where a user's class inherits from one."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return known(m) or super().is_leaf_module(m, module_qualified_name)


def _graph(step: Step) -> fx.Graph:
    """As the module is in evaluation mode; its flags are put back."""
    training = [part for part in step.layer.modules() if part.training]
    try:
        for part in training:
            part.training = False
        return _Tracer().trace(step.layer)
    except Exception as error:  # whatever a forward raises when it is run on symbols
        raise ValueError(
            f"{step.path}: the forward of {type(step.layer).__name__} cannot be read as a chain of layers ({error}): "
            "write it as a Sequential"
        ) from error
    finally:
        for part in training:
            part.training = True


def _called(step: Step, node: fx.Node) -> Step:
    if node.op == "call_module":
        return Step(f"{step.path}.{node.target}", step.layer.get_submodule(str(node.target)))
    name = _name(node)
    try:
        return Step(f"{step.path}.forward.{node.name}", _FUNCTIONS[name](*node.args[1:], **node.kwargs))
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        arguments = ", ".join([*map(str, node.args[1:]), *(f"{key}={value}" for key, value in node.kwargs.items())])
        raise ValueError(
            f"{step.path}: {name}({arguments}) in the forward of {type(step.layer).__name__} has no lifted form: "
            "a chain is made of Linear, flatten, dropout and activations"
        ) from error


def _name(node: fx.Node) -> str:
    """Of a function or method; those that work in place are named after what they do."""
    return str(getattr(node.target, "__name__", node.target)).rstrip("_")


def _is_idle(node: fx.Node) -> bool:
    """Whether a node is an argument that has a default and is never used, as a mask that other modules take."""
    return node.op == "placeholder" and bool(node.args) and not node.users


def _is_size(node: Any) -> bool:
    """Whether a node is the shape of a tensor, or an entry of it."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    shape = _name(node) == "getattr" and node.args[1] == "shape"
    return shape or _name(node) == "size" or (_name(node) == "getitem" and _is_size(node.args[0]))


def _clamp(min: float | None = None, max: float | None = None) -> nn.Module:  # noqa: A002
    if max is None and min == 0:
        return nn.ReLU()
    if min is None or max is None:
        raise TypeError("an activation between two bounds, or above 0, has a lifted form")
    return nn.Hardtanh(min, max)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _view(*shape: Any) -> nn.Module:
    """(n, -1), (n, width) or (-1, width): each row one vector."""
    rows, width = shape[0] if len(shape) == 1 else shape
    counted = _is_size(rows) and (*rows.args[1:], *rows.kwargs.values()) == (0,)  # x.size(0), x.shape[0]
    if not (rows == -1 or counted) or not isinstance(width, int) or rows == width:
        raise TypeError("only rows of vectors have a lifted form")
    return nn.Flatten()


def _softmax(dim: int | None = None, dtype: None = None, _stacklevel: int = 3) -> nn.Module:
    if dtype is not None:
        raise TypeError("a change of precision has no lifted form")
    return nn.Softmax(dim)


def _log_softmax(dim: int | None = None, dtype: None = None, _stacklevel: int = 3) -> nn.Module:
    return nn.LogSoftmax(_softmax(dim, dtype).dim)  # type: ignore[arg-type]


_FUNCTIONS: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "hardtanh": nn.Hardtanh,
    "hardsigmoid": nn.Hardsigmoid,
    "clamp": _clamp,
    "clip": _clamp,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "dropout": nn.Identity,
    "flatten": _flatten,
    "view": _view,
    "reshape": _view,
}
