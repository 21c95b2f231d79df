"""Modules that wrap another one, for several processes or for the compiler, and those that an optimiser cannot train."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from liftednn.checks import check_count

__all__ = ["Ranks", "Unwrapped", "check_gradients", "check_module", "check_settings", "ranks_in_call", "unwrapped"]


@dataclass(frozen=True)
class Ranks:
    """The processes that train one module: how many, and which one this is."""

    group: Any = None
    number: int = 1
    own: int = 0

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.number == 1:
            return part
        part = part.clone()
        dist.all_reduce(part, group=self.group)
        return part

    def mean(self, value: Tensor, weight: float) -> Tensor:
        """The mean of a number over all processes, each with its weight; its own value where all weights are 0."""
        sums: Tensor = self.add_up(torch.stack([value * weight, torch.full_like(value, weight)]))
        return torch.where(sums[1] > 0, sums[0] / sums[1], value)

    def sums(self, numbers: list[float], device: torch.device) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.number == 1:
            return numbers
        found: list[float] = self.add_up(torch.tensor(numbers, device=device)).tolist()
        return found


class Unwrapped(NamedTuple):
    """The plain module, the one whose calls have its arguments, and the processes."""

    inner: nn.Module
    called: nn.Module
    ranks: Ranks


def _ranks_of(wrapper: nn.parallel.DistributedDataParallel) -> Ranks:
    if wrapper._join_config.enable:
        raise RuntimeError(
            "inside DistributedDataParallel.join() a process without batches does not answer the others, and Lifted would wait: give every "
            "process the same number of batches, or use another optimiser"
        )
    group = wrapper.process_group
    return Ranks(group, dist.get_world_size(group), dist.get_rank(group))


def ranks_in_call() -> Ranks:
    """The processes of the DistributedDataParallel whose call is in progress, for a module that was wrapped after it was given."""
    wrapper = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) if dist.is_available() else None
    return Ranks() if wrapper is None else _ranks_of(wrapper)


def unwrapped(module: nn.Module) -> Unwrapped:
    """What is inside the wrappers of DistributedDataParallel and torch.compile, whose truth value may be that of a length."""
    compiled: nn.Module | None = None
    ranks = _ranks_in(module)
    while True:
        if dist.is_available() and isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        elif (inside := module._modules.get("_orig_mod")) is not None:
            # Hooks of the wrapper are not compiled.
            compiled, module = module if compiled is None else compiled, inside
        else:
            return Unwrapped(module, module if compiled is None else compiled, ranks)


def _ranks_in(module: nn.Module) -> Ranks:
    """The processes of the DistributedDataParallel around a module, or around its parts."""
    if not dist.is_available():
        return Ranks()
    found = [_ranks_of(each) for each in module.modules() if isinstance(each, nn.parallel.DistributedDataParallel)]
    if len({ranks.group for ranks in found}) > 1:
        raise ValueError(
            "parts of the module are in DistributedDataParallel with different groups of processes, and Lifted measures all layers in one: "
            "give all of them the same process_group"
        )
    return found[0] if found else Ranks()


def check_module(module: nn.Module) -> None:
    """Refuse what is not a module, and modules whose parameters are not whole."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module must be a torch.nn.Module, got {type(module).__name__}: Lifted needs the module itself, and its parameters are given "
            "as params"
        )
    kinds = {type(part).__name__ for part in (*module.modules(), *module.parameters())}
    if kinds & {"FullyShardedDataParallel", "DTensor"}:
        raise ValueError(
            "Lifted needs whole weights, and fully sharded modules have only parts of them: use DistributedDataParallel, or another "
            "optimiser"
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise ValueError(
            "the module has lazy layers without parameters: run it once on a batch before the optimiser is made"
        )


def check_settings(**given: float | None) -> None:
    """Refuse settings of an optimiser that have no meaning."""
    if isinstance(given["lr"], Tensor) and given["lr"].ndim:
        raise ValueError(f"lr must be a number, or a tensor without axes, got one of shape {tuple(given['lr'].shape)}")
    if not given["lr"] or not given["lr"] > 0:
        raise ValueError(f"lr must be positive, got {given['lr']!r}: a scheduler may change it later")
    if given["damping"] is not None and not 0 <= given["damping"] < math.inf:
        raise ValueError(f"damping must be a finite number of at least 0, or None, got {given['damping']!r}")
    check_count("refresh", given["refresh"], least=1)
    if given["trust"] is not None and not given["trust"] > 0:
        raise ValueError(f"trust must be positive, or None, got {given['trust']!r}")


def check_gradients(parameters: Iterable[Tensor]) -> None:
    """Refuse sparse gradients."""
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        raise RuntimeError(
            "Lifted takes no sparse gradients: give Embedding(sparse=False), or leave its weight to torch.optim.SparseAdam and out "
            "of params"
        )
