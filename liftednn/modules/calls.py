"""Torch layers that have a lifted form, and the functions and methods that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import fx, nn

__all__ = ["KNOWN", "Step", "called", "is_size", "known", "name_of", "naming", "no_form", "unsupported"]

KNOWN: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d),
    *(nn.Flatten, nn.Identity, nn.Dropout),
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardsigmoid),
    *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.LogSoftmax),
)


class Step(NamedTuple):
    """A layer and its path in the module."""

    path: str
    layer: nn.Module


def unsupported(step: Step, why: str) -> ValueError:
    """The error for a layer, in one line: its path, its repr (or class, if it contains layers) and why."""
    what = type(step.layer).__name__ if any(step.layer.children()) else repr(step.layer)
    return ValueError(f"{step.path}: {what} {why}")


@contextmanager
def naming(step: Step) -> Iterator[None]:
    """Errors in it begin with the path of a layer."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(step.path):
            raise
        raise unsupported(step, f"has no lifted form here: {error}") from error


def known(module: nn.Module) -> bool:
    """Whether its forward is that of a layer listed above, own or inherited."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in KNOWN)


def called(step: Step, node: fx.Node) -> Step:
    """The layer that is called in the forward of `step`, or one that computes the same as the call."""
    if node.op == "call_module":
        return Step(f"{step.path}.{node.target}", step.layer.get_submodule(str(node.target)))
    try:
        return Step(f"{step.path}.forward.{node.name}", _FUNCTIONS[name_of(node)](*node.args[1:], **node.kwargs))
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise no_form(step, node) from error


def no_form(step: Step, node: fx.Node) -> ValueError:
    """The error for a function or method in the forward of `step` that has no lifted form."""
    arguments = ", ".join([*map(str, node.args[1:]), *(f"{key}={value}" for key, value in node.kwargs.items())])
    return ValueError(
        f"{step.path}: {name_of(node)}({arguments}) in the forward of {type(step.layer).__name__} has no lifted form: "
        "a forward is made of Linear, convolutions, poolings, sums, flatten, dropout and activations"
    )


def name_of(node: fx.Node) -> str:
    """The name of a function or method, without the _ of those that work in place."""
    return str(getattr(node.target, "__name__", node.target)).rstrip("_")


def is_size(node: Any) -> bool:
    """Whether a node is the shape of a tensor, or an entry of it."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    shape = name_of(node) == "getattr" and node.args[1] == "shape"
    return shape or name_of(node) == "size" or (name_of(node) == "getitem" and is_size(node.args[0]))


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
    counted = is_size(rows) and (*rows.args[1:], *rows.kwargs.values()) == (0,)  # x.size(0), x.shape[0]
    if not (rows == -1 or counted) or not isinstance(width, int) or rows == width:
        raise TypeError("only rows of vectors have a lifted form")
    return nn.Flatten()


def _softmax(dim: int | None = None, dtype: None = None, _stacklevel: int = 3) -> nn.Module:
    if dtype is not None:
        raise TypeError("a change of precision has no lifted form")
    return nn.Softmax(dim)


def _log_softmax(dim: int | None = None, dtype: None = None, _stacklevel: int = 3) -> nn.Module:
    return nn.LogSoftmax(_softmax(dim, dtype).dim)  # type: ignore[arg-type]


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if p and training:
        raise TypeError("it drops in evaluation mode too: give training=self.training")
    return nn.Identity()


def _max_pool(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The layer of a function, which has its last two arguments in another order."""

    def layer(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> nn.Module:
        return kind(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    return layer


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
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
    "max_pool1d": _max_pool(nn.MaxPool1d),
    "max_pool2d": _max_pool(nn.MaxPool2d),
    "dropout": _dropout,
    "flatten": _flatten,
    "view": _view,
    "reshape": _view,
}
