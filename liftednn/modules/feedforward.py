"""The feed-forward rule of a network that is not a chain, as a torch module: layers that read or add several states, or share weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FeedForward", "Rule", "State"]


class State(nn.Identity):
    """Marks the output of a Linear without activation as the state of a layer; it computes the identity."""


class Rule(NamedTuple):
    """How one layer is computed: activation(w (sum of the states that enter) + b + sum of the states that are added).

    enters, added   numbers of states: 0 is the input, l + 1 the output of layer l
    owner           number of the layer whose w this layer uses: its own, or that of an earlier one
    transposed      the layer has the transpose of that w
    """

    enters: tuple[int, ...]
    added: tuple[int, ...] = ()
    owner: int = 0
    transposed: bool = False

    def __str__(self) -> str:
        entering, added = (" + ".join(f"x{state}" for state in states) for states in (self.enters, self.added))
        weight = f"linears.{self.owner}{' transposed' if self.transposed else ''}"
        return f"{weight} on {entering}{f', plus {added}' if added else ''}"


class FeedForward(nn.Module):
    """Layers that are computed one after another, each from the input and the layers before it; it returns the output of the last.

    linears       by the layer's number, for every layer that has a weight of its own: layers that end in a Linear or a convolution
    biases        by the layer's number, for layers that have the weight of another one; none where a layer has no bias
    activations   one for each layer
    rules         one for each layer
    views         layers that give a state another shape where it is added to others: samples of one may be flattened, and those of another
                  images. By the numbers of the layer and of the state, as "2 0", or "2 in 0" for one that enters

    A weight that several layers have is one parameter, and has one entry in the `state_dict`.
    """

    def __init__(
        self,
        linears: Mapping[int, nn.Module],
        biases: Mapping[int, nn.Parameter],
        activations: Sequence[nn.Module],
        rules: Sequence[Rule],
        views: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.views = nn.ModuleDict(views)
        self.linears = nn.ModuleDict({str(number): linear for number, linear in linears.items()})
        self.biases = nn.ParameterDict({str(number): bias for number, bias in biases.items()})
        self.activations = nn.ModuleList(activations)
        self.rules = tuple(rules)

    def forward(self, x: Tensor) -> Tensor:
        states = [x]
        for number, (rule, activation) in enumerate(zip(self.rules, self.activations, strict=True)):
            entering, added = (
                self._read(states, rule.enters, f"{number} in"),
                self._read(states, rule.added, f"{number}"),
            )
            states.append(
                activation(reduce(torch.add, [self._linear(number, rule, reduce(torch.add, entering)), *added]))
            )
        return states[-1]

    def _read(self, states: Sequence[Tensor], numbers: Sequence[int], where: str) -> list[Tensor]:
        """Some states, each in the shape of the others."""
        named = {at: f"{where} {at}" for at in numbers}
        return [self.views[name](states[at]) if name in self.views else states[at] for at, name in named.items()]

    def _linear(self, number: int, rule: Rule, x: Tensor) -> Tensor:
        linear = self.linears[str(rule.owner)]
        if rule.owner == number:
            u: Tensor = linear(x)
            return u
        assert isinstance(linear, nn.Linear)
        bias = self.biases.get(str(number), None)
        return functional.linear(x, linear.weight.t() if rule.transposed else linear.weight, bias)

    def extra_repr(self) -> str:
        return "\n".join(f"x{number + 1}: {rule}" for number, rule in enumerate(self.rules))
