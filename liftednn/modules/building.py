"""The layers that a forward computes, from the calls that it makes, in their order.

Every tensor of a forward is a sum of states, to which at most one Linear's or convolution's output is added that no activation follows
yet. An activation makes that sum a state; without one, the next layer that reads it does. Max-pooling belongs to the layer before it,
as an activation does. A sum of states may be averaged over windows and flattened before a layer reads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from liftednn.base import Operator
from liftednn.modules.calls import Step, naming, unsupported
from liftednn.modules.graph import Graph, Use
from liftednn.modules.parameters import check_parameters
from liftednn.operators import Composed, Conv1d, Conv2d, Dense
from liftednn.operators.pooling import Pooling

__all__ = ["Builder", "Value"]

Shape = tuple[int, ...]
Inner = Dense | Conv1d | Conv2d
Pool = tuple[Pooling, Shape]


@dataclass(eq=False)
class _State:
    """The input, or the output of a layer; the shape of one sample is () until it is known."""

    shape: Shape = ()


@dataclass(eq=False)
class _Product(_State):
    """The output of a Linear or a convolution, and the layer that it becomes.

    inner    the lifted operator, without the poolings before it
    pools    these poolings, each with the shape before it
    pooled   the max-pooling after it, before or after its activation; `shape` is the one after both
    closed   whether what follows is known: the states that are added, the activation, and the number of the tensor that is the state
    plain    whether it was closed without an activation
    """

    step: Step = field(kw_only=True)
    inner: Inner = field(kw_only=True)
    pools: tuple[Pool, ...] = ()
    weight: Tensor = field(kw_only=True)
    transposed: bool = field(kw_only=True)
    bias: Tensor | None = field(kw_only=True)
    enters: tuple[_State, ...] = field(kw_only=True)
    added: tuple[_State, ...] = ()
    after: Step | None = None
    folded: tuple[Tensor, Tensor] | None = None
    pooled: Step | None = None
    tensor: int = 0
    closed: bool = False
    plain: bool = False


@dataclass(frozen=True, eq=False)
class Value:
    """The sum of some states and of a product; `tensor` numbers the tensors of a forward in their order.

    pools   the poolings of that sum, each with the shape before it
    view    the shape of one sample after these, or flattened; None where it is that of the sum
    """

    tensor: int
    states: tuple[_State, ...]
    product: _Product | None = None
    pools: tuple[Pool, ...] = ()
    view: Shape | None = None

    @property
    def shape(self) -> Shape:
        """The shape of one sample."""
        return self.view or (self.product.shape if self.product else self.states[0].shape)


class Builder:
    """Collects the calls of a forward in order; `finish` returns the layers."""

    def __init__(self, in_shape: Shape | None = None) -> None:
        self._input = _State(in_shape or ())
        self._products: list[_Product] = []
        self._numbers = itertools.count()
        self._changed: set[int] = set()
        self._parameters: list[Tensor] = []
        self._flat = False
        self.input = Value(next(self._numbers), (self._input,))

    def flatten(self, value: Value) -> Value:
        self._flat = self._flat or value.states == (self._input,)
        return replace(value, view=(math.prod(value.shape),)) if value.shape else value

    def linear(self, step: Step, weight: Tensor, transposed: bool, bias: Tensor | None, value: Value) -> Value:
        """value w' + b; a product that is read becomes a state."""
        outputs, inputs = reversed(weight.shape) if transposed else weight.shape
        if value.states == (self._input,):
            self._input.shape = self._input.shape or (inputs,)  # only the input can be read before its shape is known
        if value.shape != (inputs,):
            given = value.shape[0] if len(value.shape) == 1 else f"samples of {value.shape}, put a Flatten before it"
            raise unsupported(step, f"takes {inputs} inputs, but the layer before it gives {given}")
        return self.product(step, Dense(inputs, outputs), weight, transposed, bias, value)

    def convolution(
        self, step: Step, inner: Callable[[Shape], Inner], weight: Tensor, bias: Tensor | None, value: Value
    ) -> Value:
        """A convolution; `inner` makes the operator for samples of a shape."""
        self._flat = self._flat or value.states == (self._input,)  # rows are flat, and the operator has the shape
        with naming(step):
            operator = inner(self.known_shape(step, value))
        return self.product(step, operator, weight, False, bias, value)

    def known_shape(self, step: Step, value: Value) -> Shape:
        """The shape of one sample, which layers that depend on it need."""
        if not value.shape:
            raise unsupported(step, "needs the shape of its samples: give in_shape, such as (3, 32, 32)")
        return value.shape

    def product(
        self, step: Step, inner: Inner, weight: Tensor, transposed: bool, bias: Tensor | None, value: Value
    ) -> Value:
        check_parameters(step, own := [weight] if bias is None else [weight, bias], self._parameters)
        self._parameters += own
        states = self.state(value).states
        product = _Product(
            inner.out_shape,
            step=step,
            inner=inner,
            pools=value.pools,
            weight=weight,
            transposed=transposed,
            bias=bias,
            enters=states,
        )
        self._products.append(product)
        return Value(next(self._numbers), (), product)

    def pool(self, step: Step, pool: Pooling, value: Value) -> Value:
        """A value that is pooled becomes a sum of states."""
        shape = self.known_shape(step, value)
        self._flat = self._flat or value.states == (self._input,)
        found = self.state(value)
        with naming(step):
            return replace(found, pools=(*found.pools, (pool, shape)), view=pool.out_shape(shape))

    def max_pool(self, step: Step, out_shape: Callable[[Shape], Shape], value: Value) -> Value:
        """Max-pooling of a layer's output, before or after its activation; `out_shape` gives the shape after it."""
        value = self._resolved(value)
        old = value.product or value.states[0]
        alone = value.product is not None or len(value.states) == 1
        if (
            not (alone and isinstance(old, _Product) and old in self._products)
            or old.pooled
            or value.pools
            or value.view
        ):
            raise unsupported(step, "must follow a convolution directly, or the activation of one, and only once")
        new = replace(old, shape=out_shape(old.shape), pooled=step, tensor=next(self._numbers))
        return self._replaced(value, old, new)

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
        if a.pools or b.pools or any(each.product and each.product.pooled for each in (a, b)):
            raise ValueError(
                f"{where}, where a pooled tensor is added: put a Linear or a convolution after the pooling"
            )
        if a.shape != b.shape:
            have = [each.shape[0] if len(each.shape) == 1 else each.shape for each in (a, b)]
            raise ValueError(
                f"{where}, where tensors of {have[0]} and {have[1]} columns are added: make them equally wide"
            )
        if in_place:
            self._changed.add(a.tensor)
        view = a.shape if a.view or b.view else None
        return Value(next(self._numbers), a.states + b.states, a.product or b.product, view=view)

    def add_bias(self, where: str, value: Value, bias: Tensor) -> Value:
        """value + b, where the product has no b yet."""
        value, old = self._resolved(value), value.product
        if old is None or old.closed or old.bias is not None or (*bias.shape,) != old.shape:
            raise ValueError(
                f"{where}, where a parameter of shape {tuple(bias.shape)} is added: add it to the output of a Linear without bias, "
                "with one entry for each of its outputs"
            )
        check_parameters(old.step, [bias], self._parameters)
        self._parameters.append(bias)
        if old.folded is None:
            return self._replaced(value, old, replace(old, bias=bias))
        scale, shift = old.folded
        return self._replaced(value, old, replace(old, folded=(scale, shift + bias.detach().to(shift))))

    def fold(self, step: Step, scale: Tensor, shift: Tensor, value: Value) -> Value:
        """scale * value + shift, for each output of the Linear or the convolution that value is."""
        value, old = self._resolved(value), value.product
        taken = old is None or old.closed or old.folded or old.pooled
        if old is None or taken or value.states or value.view or len(scale) != old.shape[0]:
            raise unsupported(step, "must follow a Linear or a convolution with as many outputs directly")
        return self._replaced(value, old, replace(old, folded=(scale, shift)))

    def _replaced(self, value: Value, old: _Product, new: _Product) -> Value:
        self._products.remove(old)
        self._products.append(new)
        old.closed = True
        return Value(next(self._numbers), (new,)) if new.closed else Value(next(self._numbers), value.states, new)

    def activate(self, step: Step, value: Value) -> Value:
        value, given = self._resolved(value), value
        if value.product is None or value.pools:
            why = (
                "does not follow a Linear, as every activation must: put a Linear before it"
                if given.product is None
                else "follows a tensor that a Linear reads too, so that it is a state already: put a Linear before it"
            )
            raise unsupported(step, why)
        if len(value.shape) > 1 and getattr(step.layer, "dim", 1) != 1:
            raise unsupported(step, "must be taken over the channels: give dim=1")
        return replace(self._closed(value, value.product, step, next(self._numbers)), view=value.view)

    def state(self, value: Value) -> Value:
        """The same tensor as a sum of states."""
        value = self._resolved(value)
        if value.product is None:
            return value
        return replace(self._closed(value, value.product, None, value.tensor), pools=value.pools, view=value.view)

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
        if value.pools or any(isinstance(state, _Product) and state.pooled for state in last):
            raise ValueError("the module ends in a pooling: end it with a Linear or a convolution")
        layers = sorted(self._products, key=lambda product: product.tensor)
        read = {state for layer in layers for state in (*layer.enters, *layer.added)}
        for state in (*read, *last):
            if isinstance(state, _Product) and state not in layers:
                raise unsupported(
                    state.step,
                    "has an output that is used before its max-pooling too: call it once for each, since a layer has one",
                )
        for layer in layers:
            if layer.folded and sum(other.weight is layer.weight for other in layers) > 1:
                raise unsupported(
                    layer.step, "is followed by a batch norm, so no other layer can use its weight: copy it"
                )
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
            *(layer.step, _operator(layer), layer.weight, layer.transposed, layer.bias),
            tuple(number[state] for state in layer.enters),
            tuple(number[state] for state in layer.added),
            layer.after,
            layer.folded,
            layer.pooled,
        )
        for layer in layers
    ]


def _operator(layer: _Product) -> Operator:
    operator: Operator = replace(layer.inner, bias=layer.bias is not None or layer.folded is not None)
    for pool, shape in reversed(layer.pools):
        operator = Composed(operator, pool, shape)
    return operator
