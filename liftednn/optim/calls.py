"""The last training call of a module: what a refresh reruns, and the hooks that keep it."""

from __future__ import annotations

import dataclasses
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would load the compiler
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from liftednn.optim.wrappers import Ranks

__all__ = [
    *("Call", "Hook", "attach", "copied_buffers", "empty_hook", "in_backward", "missing_call", "tensors_in"),
    *("transformed", "watched_linear"),
]


# Whether a module runs for a refresh, which no optimiser of this module or of its parts may take for a training call.
_rerunning = ContextVar("_rerunning", default=False)
_watching = threading.Lock()


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors with real entries in what a module takes or returns: in tuples, lists, mappings and dataclasses, in their order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in dataclasses.fields(value)]
    return [each for part in value for each in tensors_in(part)] if isinstance(value, list | tuple) else []


class Call:
    """The arguments of a call, with the state of the random generators and of autocast when it was made.

    copy        whether arguments are copied, since the module writes to them: it would see them changed when it is run again
    ranks       the processes that made it together
    gradients   of the outputs' tensors, by their number, as far as a backward pass has given them
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, ranks: Ranks, copy: bool = False
    ) -> None:
        # Without the graph behind an argument, which would be kept in memory with it.
        self.args, self.kwargs = tree_map(partial(_detached, copy=copy), (args, kwargs))
        self.given = [(each, each._version) for each in tree_leaves((args, kwargs)) if _counts_writes(each)]
        self.device, self.ranks, kind = device, ranks, device.type
        self.autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self.random = torch.get_rng_state(), _other_generators()
        self.device_random = torch.cuda.get_rng_state(device) if kind == "cuda" else None
        self.gradients: dict[int, Tensor] = {}
        self.written = copy

    @property
    def rows(self) -> int:
        """The length of the longest tensor among its arguments; 0 where there is none."""
        given = tree_leaves((self.args, self.kwargs))
        return max((len(each) for each in given if isinstance(each, Tensor) and each.ndim), default=0)

    def close(self) -> bool:
        """Whether the call has written to its arguments; these are kept no longer."""
        self.written |= any(each._version != version for each, version in self.given)
        self.given = []
        return self.written

    def watch(self, outputs: Any, passes: list[None], parameters: Iterable[Tensor]) -> None:
        """Keep the gradients that will arrive at the outputs on their way to the parameters; `passes` grows by one when the first of them
        does."""
        with torch.enable_grad():
            views = [p.view_as(p).grad_fn for p in parameters if p.requires_grad]
        ends = [view.next_functions[0][0] for view in views if view is not None]
        for number, output in enumerate(tensors_in(outputs)):
            if output.requires_grad:
                output.register_hook(_Keep(self.gradients, number, passes, ends))  # type: ignore[no-untyped-call]

    def rerun(self, module: nn.Module) -> Any:
        """The module's outputs for the same arguments and random numbers, with gradients; the random generators are as before."""
        devices = [self.device] if self.device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.callback(_set_other_generators, _other_generators())
            torch.set_rng_state(self.random[0])
            _set_other_generators(self.random[1])
            if self.device_random is not None:
                torch.cuda.set_rng_state(self.device_random, self.device)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            on, dtype = self.autocast
            stack.enter_context(torch.autocast(self.device.type, dtype=dtype, enabled=on))
            stack.enter_context(torch.enable_grad())
            stack.callback(_rerunning.reset, _rerunning.set(True))
            args, kwargs = tree_map(partial(_detached, copy=self.written), (self.args, self.kwargs))
            if self.written:
                args, kwargs = tree_map(_writable, (args, kwargs))
            return module(*args, **kwargs)


class _Keep:
    """A hook of a tensor that keeps its gradient, the sum of those of several backward passes.

    ends   the nodes of the graph that add to the gradients of parameters
    """

    def __init__(self, gradients: dict[int, Tensor], number: int, passes: list[None], ends: list[Any]) -> None:
        self.gradients, self.number, self.passes, self.ends = gradients, number, passes, ends

    def __call__(self, gradient: Tensor) -> None:
        if not _reached(self.ends):  # a gradient in the inputs, say, of a penalty
            return
        if not self.gradients:
            self.passes.append(None)
        before = self.gradients.get(self.number)
        self.gradients[self.number] = gradient.detach() if before is None else before + gradient.detach()


def _reached(ends: list[Any]) -> bool:
    """Whether the backward pass that runs goes to one of these ends."""
    if torch.autograd._is_checkpoint_valid():  # type: ignore[no-untyped-call]
        return True  # backward() goes to all of them, torch.autograd.grad to those that it was asked for
    try:
        return any(torch._C._will_engine_execute_node(each) for each in ends)
    except RuntimeError:  # torch.autograd.grad was asked for a parameter
        return True


def _detached(value: Any, copy: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    found = value.detach().clone() if copy else value.detach()
    return found.requires_grad_(value.requires_grad)  # a module may differentiate by its arguments


def _other_generators() -> tuple[Any, Any]:
    """The states of the global generators of Python and numpy."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_other_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def _writable(value: Any) -> Any:
    """A copy of a tensor with a gradient, which a module may not write to while it is a leaf of the graph."""
    return value.clone() if isinstance(value, Tensor) and value.requires_grad else value


def missing_call(closed: bool) -> RuntimeError:
    """The error for a step that needs a call of the module, and has none."""
    return RuntimeError(
        "the optimiser was closed: make another one"
        if closed
        else "step() needs a call of the module in training mode, with gradients, since the last step: call module.train(), and train by "
        "calling the module that was given to Lifted, not a copy, a part, or what torch.compile returned: give Lifted that instead"
    )


def in_backward() -> bool:
    """Whether a backward pass runs, in which a checkpoint may call the module again."""
    return torch._C._current_graph_task_id() != -1


def _counts_writes(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_inference()


def transformed(value: Any) -> bool:
    """Whether what a module takes or returns is that of a function under torch.func, and lives only as long as this runs, or has no
    numbers, as under torch.export."""
    given = [each for each in tree_leaves(value) if isinstance(each, Tensor)]
    return any(isinstance(each, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(each) for each in given)


@contextmanager
def copied_buffers(module: nn.Module) -> Iterator[None]:
    """The module has copies of its buffers, such as the running means of a batch norm, so that a call does not change them."""
    kept = [(each, dict(each._buffers)) for each in module.modules()]
    copies: dict[int, Tensor] = {}
    try:
        for each, buffers in kept:
            for name, buffer in buffers.items():
                if buffer is not None:
                    each._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
        yield
    finally:
        for each, buffers in kept:
            for name, buffer in buffers.items():  # those of a ScriptModule have no update()
                each._buffers[name] = buffer


@contextmanager
def watched_linear(watch: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Replace the output of torch.nn.functional.linear in a rerun by `watch(x, weight, output)`: nn.MultiheadAttention calls it with its
    weights, and no hook sees that."""

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        output = plain(input, weight, bias)
        return watch(input, weight, output) if _rerunning.get() else output

    with _watching:
        plain = fn.linear
        fn.linear = linear
        try:
            yield
        finally:
            fn.linear = plain


def empty_hook(module: nn.Module, *given: Any) -> None:
    """What a hook becomes in a copy of the module: it does nothing."""


def _empty_hook() -> Callable[..., None]:
    return empty_hook


class Hook:
    """A forward hook that calls a method of an optimiser while that exists."""

    def __init__(self, optimiser: Any, method: str) -> None:
        self.optimiser, self.method = weakref.ref(optimiser), method

    @_disable_dynamo
    def __call__(self, module: nn.Module, *given: Any) -> None:
        optimiser = self.optimiser()
        if optimiser is not None and not _rerunning.get():
            getattr(optimiser, self.method)(module, *given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return empty_hook

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _empty_hook, ()


def attach(module: nn.Module, optimiser: Any) -> weakref.finalize[..., Any]:
    """Let a module report its calls to `optimiser._before_call` and `optimiser._after_call`. Returns what removes the hooks, which also
    happens when the optimiser is collected. Hooks that came with a copy of the module are removed."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [number for number, hook in hooks.items() if hook is empty_hook]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)
    before = module.register_forward_pre_hook(Hook(optimiser, "_before_call"), with_kwargs=True)
    after = module.register_forward_hook(Hook(optimiser, "_after_call"), always_call=True)

    def remove() -> None:
        before.remove()
        after.remove()

    finalizer = weakref.finalize(optimiser, remove)
    finalizer.atexit = False
    return finalizer
