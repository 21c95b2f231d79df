"""The layers that a forward computes, from the calls that it makes, in their order.

Every tensor of a forward is a sum of states, to which at most one Linear's output is added that no activation follows yet. An activation
makes that sum a state; without one, the next Linear that reads it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from liftednn.modules.calls import Step, unsupported
from liftednn.modules.parameters import check_parameters

__all__ = ["Builder", "Graph", "Use", "Value"]


@dataclass(frozen=True)
class Use:
    """One use of a weight in a forward, which is one layer of the lifted network.

    step            the torch layer and its path in the module
    weight          the parameter, or a buffer; it is used transposed where `transposed`
    bias            the same, or None
    enters, added   numbers of the states that enter the product, and of those that are added to it: 0 is the input, l + 1 what layer l
                    gives
    after           the activation that follows, None where none does
    """

    step: Step
    weight: Tensor
    transposed: bool
    bias: Tensor | None
    enters: tuple[int, ...]
    added: tuple[int, ...]
    after: Step | None

    @property
    def w(self) -> Tensor:
        """(out, in), as the layer has it."""
        return self.weight.detach().T if self.transposed else self.weight.detach()

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]


@dataclass(frozen=True)
class Graph:
    """flat    rows are flattened before the first layer
    uses    the layers, in an order in which each reads only what comes before it
    paths   the names of parameters and buffers in the module
    """

    flat: bool
    uses: list[Use]
    paths: Mapping[Tensor, str]

    @property
    def parameters(self) -> list[Tensor]:
        """Weights and biases, each once."""
        return list({id(part): part for use in self.uses for part in use.parameters}.values())

    def sharing(self, part: Tensor) -> list[Use]:
        """The layers that have a weight or a bias."""
        return [use for use in self.uses if any(part is own for own in use.parameters)]

    def key(self, use: Use) -> str:
        """Of the layers that share a weight: its path; empty for a weight that is used once."""
        users = self.sharing(use.weight)
        return self.paths.get(use.weight, users[0].step.path) if len(users) > 1 else ""


@dataclass(eq=False)
class _State:
    """The input, or the output of a layer; the width is 0 until it is known."""

    width: int = 0


@dataclass(eq=False)
class _Product(_State):
    """The output of a Linear, and the layer that it becomes.

    closed   whether what follows is known: the states that are added, the activation, and the number of the tensor that is the state
    plain    whether it was closed without an activation
    """

    step: Step = field(kw_only=True)
    weight: Tensor = field(kw_only=True)
    transposed: bool = field(kw_only=True)
    bias: Tensor | None = field(kw_only=True)
    enters: tuple[_State, ...] = field(kw_only=True)
    added: tuple[_State, ...] = ()
    after: Step | None = None
    tensor: int = 0
    closed: bool = False
    plain: bool = False


@dataclass(frozen=True, eq=False)
class Value:
    """The sum of some states and of a product; `tensor` numbers the tensors of a forward in their order."""

    tensor: int
    states: tuple[_State, ...]
    product: _Product | None = None

    @property
    def width(self) -> int:
        return self.product.width if self.product else self.states[0].width


class Builder:
    """Collects the calls of a forward in order; `finish` returns the layers."""

    def __init__(self) -> None:
        self._input = _State()
        self._products: list[_Product] = []
        self._numbers = itertools.count()
        self._changed: set[int] = set()
        self._seen: list[Tensor] = []
        self._flat = False
        self.input = Value(next(self._numbers), (self._input,))

    def flatten(self, value: Value) -> Value:
        self._flat = self._flat or value.states == (self._input,)
        return value

    def linear(self, step: Step, weight: Tensor, transposed: bool, bias: Tensor | None, value: Value) -> Value:
        """value w' + b; a product that is read becomes a state."""
        check_parameters(step, own := [weight] if bias is None else [weight, bias], self._seen)
        self._seen += own
        states = self.state(value).states
        outputs, inputs = reversed(weight.shape) if transposed else weight.shape
        self._input.width = self._input.width or inputs  # only the input can be read before its width is known
        if states[0].width != inputs:
            raise unsupported(step, f"takes {inputs} inputs, but the layer before it gives {states[0].width}")
        product = _Product(outputs, step=step, weight=weight, transposed=transposed, bias=bias, enters=states)
        self._products.append(product)
        return Value(next(self._numbers), (), product)

    def add(self, where: str, a: Value, b: Value, in_place: bool = False) -> Value:
        """a + b; `where` is the beginning of an error message."""
        a, b = self._resolved(a), self._resolved(b)
        if a.product and b.product:
            raise ValueError(
                f"{where}, where the outputs of two Linear layers are added: put an activation after one of them, or "
                "liftednn.modules.State() to make it a layer without one"
            )
        if set(a.states) & set(b.states):
            raise ValueError(f"{where}, where a tensor is added twice: add each once")
        if a.width != b.width:
            raise ValueError(
                f"{where}, where tensors of {a.width} and {b.width} columns are added: make them equally wide"
            )
        if in_place:
            self._changed.add(a.tensor)
        return Value(next(self._numbers), a.states + b.states, a.product or b.product)

    def add_bias(self, where: str, value: Value, bias: Tensor) -> Value:
        """value + b, where the product has no b yet."""
        value, old = self._resolved(value), value.product
        if old is None or old.closed or old.bias is not None or tuple(bias.shape) != (old.width,):
            raise ValueError(
                f"{where}, where a parameter of shape {tuple(bias.shape)} is added: add it to the output of a Linear without bias, "
                "with one entry for each of its outputs"
            )
        check_parameters(old.step, [bias], self._seen)
        self._seen.append(bias)
        self._products.remove(old)
        self._products.append(product := replace(old, bias=bias))
        old.closed = True
        return Value(next(self._numbers), value.states, product)

    def activate(self, step: Step, value: Value) -> Value:
        value, given = self._resolved(value), value
        if value.product is None:
            why = (
                "does not follow a Linear, as every activation must: put a Linear before it"
                if given.product is None
                else "follows a tensor that a Linear reads too, so that it is a state already: put a Linear before it"
            )
            raise unsupported(step, why)
        return self._closed(value, value.product, step, next(self._numbers))

    def state(self, value: Value) -> Value:
        """The same tensor as a sum of states."""
        value = self._resolved(value)
        return self._closed(value, value.product, None, value.tensor) if value.product else value

    def _closed(self, value: Value, product: _Product, after: Step | None, tensor: int) -> Value:
        product.added, product.after, product.tensor = value.states, after, tensor
        product.closed, product.plain = True, after is None
        return Value(tensor, (product,))

    def _resolved(self, value: Value) -> Value:
        """The value, with its product replaced by the state that it has become."""
        product = value.product
        if value.tensor in self._changed:
            raise ValueError(
                "module: the forward uses a tensor again that it has changed in place: write a + b instead of a += b"
            )
        if product is None or not product.closed:
            return value
        rest = tuple(state for state in value.states if state not in product.added)
        if not product.plain or len(rest) + len(product.added) != len(value.states):
            raise unsupported(
                product.step,
                "has an output that is used twice, with different sums or activations after it: call it once for each, since a layer "
                "has one",
            )
        return replace(value, states=(product, *rest), product=None)

    def finish(self, value: Value, paths: Mapping[Tensor, str]) -> Graph:
        """The layers of a forward that ends in `value`, for a module with tensors at `paths`."""
        if not self._products:
            raise ValueError("the module has no Linear layer: there is nothing to lift")
        last = self.state(value).states
        layers = sorted(self._products, key=lambda product: product.tensor)
        read = {state for layer in layers for state in (*layer.enters, *layer.added)}
        for layer in layers:
            if (not layer.closed or layer not in read) and layer not in last:
                raise unsupported(layer.step, "has an output that is not used: leave it out of the forward")
        if last != (layers[-1],):
            raise ValueError(
                "the module ends in a sum of activated tensors, or in its input: end it with a Linear, to whose output "
                "tensors may be added"
            )
        return Graph(self._flat, _numbered(self._input, layers), paths)


def _numbered(first: _State, layers: Sequence[_Product]) -> list[Use]:
    number = {state: index for index, state in enumerate([first, *layers])}
    return [
        Use(
            *(layer.step, layer.weight, layer.transposed, layer.bias),
            tuple(number[state] for state in layer.enters),
            tuple(number[state] for state in layer.added),
            layer.after,
        )
        for layer in layers
    ]
