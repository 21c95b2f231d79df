"""The layers that a module is read as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from liftednn.base import Operator
from liftednn.modules.calls import Step

__all__ = ["Graph", "Use"]


@dataclass(frozen=True)
class Use:
    """One use of a weight in a forward, which is one layer of the lifted network.

    step            the torch layer and its path in the module
    operator        the lifted one, without the sum over states
    weight          the parameter, or a buffer; it is used transposed where `transposed`
    bias            the same, or None
    folded          scale and shift of the outputs, of a batch norm that follows; None where none does
    enters, added   numbers of the states that enter the product, and of those that are added to it: 0 is the input, l + 1 what layer l
                    gives
    after           the activation that follows, None where none does
    pooled          the max-pooling that follows, before or after the activation; None where none does
    """

    step: Step
    operator: Operator
    weight: Tensor
    transposed: bool
    bias: Tensor | None
    enters: tuple[int, ...]
    added: tuple[int, ...]
    after: Step | None
    folded: tuple[Tensor, Tensor] | None = None
    pooled: Step | None = None

    @property
    def w(self) -> Tensor:
        """(out, in), or with groups, as the layer has it."""
        w = self.weight.detach()
        return w.T if self.transposed else w.reshape(self.operator.weight_shape)

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
        """The path of a weight that several layers share; empty for one that is used once."""
        users = self.sharing(use.weight)
        return self.paths.get(use.weight, users[0].step.path) if len(users) > 1 else ""
