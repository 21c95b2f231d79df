"""The weights of a module that are linear maps, each as a stack of matrices."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

__all__ = ["linear_maps"]


def linear_maps(module: nn.Module) -> dict[Tensor, int]:
    """The weights that modules of torch multiply with, in the order in which the module holds them, and the number of matrices in each.

    The rows of these lie one behind the other. A convolution has one for each group; a packed attention those of queries, keys and values;
    a recurrent layer one for each gate. A weight that another kind of module has too, such as an embedding, is left out; so is one without
    numbers, or of complex ones.
    """
    found: dict[Tensor, int] = {}
    others: set[Tensor] = set()
    for each in module.modules():
        named: dict[str, Tensor] = {name: p for name, p in each._parameters.items() if p is not None}
        own = {p: count for name, count in _counts(each) if (p := named.get(name)) is not None}
        others |= {p for p in named.values() if p not in own} | {p for p in own if found.get(p, own[p]) != own[p]}
        found = {**found, **own}
    return {p: count for p, count in found.items() if p not in others and p.is_floating_point() and p.numel()}


def _counts(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The names of the weights that a module itself multiplies with, and the matrices in each."""
    if isinstance(module, nn.Linear):
        yield "weight", 1
    elif isinstance(module, _ConvNd):
        yield "weight", module.groups
    elif isinstance(module, nn.MultiheadAttention):
        yield "in_proj_weight", 3
        yield from ((f"{part}_proj_weight", 1) for part in "qkv")
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        for name, p in module._parameters.items():
            if p is not None and name.startswith("weight_"):
                yield name, 1 if "weight_hr" in name else len(p) // module.hidden_size
