"""Functions of an activation's parameter: a number, or a tensor with one entry for the layer or one for each unit."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Granularity

__all__ = ["as_given", "granularity", "largest", "like", "positive", "spread", "totals", "within"]


def like(parameter: Tensor | float, other: Tensor) -> Tensor | float:
    """A parameter in the precision and on the device of `other` if it is a tensor; a number as it is.

    >>> lnn.functional.like(torch.tensor([0.5]), torch.zeros(2, dtype=torch.float64)).dtype
    torch.float64
    """
    return parameter.to(other) if isinstance(parameter, Tensor) else parameter


def granularity(parameter: Tensor | float, per: Granularity) -> Granularity:
    """ "unit" if `per` is "unit" or the parameter already has one entry per unit, otherwise "layer".

    >>> lnn.functional.granularity(torch.tensor([0.1, 0.2]), per="layer")
    'unit'
    """
    return "unit" if isinstance(parameter, Tensor) and parameter.numel() > 1 else per


def largest(parameter: Tensor | float) -> float:
    """The largest entry of a parameter.

    >>> lnn.functional.largest(torch.tensor([1.0, 3.0]))
    3.0
    """
    return float(parameter.max()) if isinstance(parameter, Tensor) else parameter


def positive(parameter: Tensor | float) -> bool:
    """Whether all entries of a parameter are above 0 and finite.

    >>> lnn.functional.positive(torch.tensor([1.0, 0.0]))
    False
    """
    return -largest(-parameter) > 0 and largest(parameter) < torch.inf


def spread(parameter: Tensor | float, sums: Tensor) -> Tensor:
    """A parameter in the shape, precision and device of `sums`, the `totals` that it is re-estimated from.

    >>> lnn.functional.spread(0.5, torch.zeros(3)).tolist()
    [0.5, 0.5, 0.5]
    """
    entries = torch.as_tensor(parameter, dtype=sums.dtype, device=sums.device).reshape(-1)
    return entries.expand(sums.numel()).reshape(sums.shape)


def within(found: Tensor, now: Tensor, limits: tuple[float, float]) -> Tensor:
    """`found`, a re-estimated parameter, clamped to its limits, extended to its present value `now` where that lies outside.

    >>> lnn.functional.within(torch.tensor(5.0), now=torch.tensor(1.0), limits=(0.0, 2.0))
    tensor(2.)
    """
    low, high = limits
    return torch.minimum(found.maximum(now.clamp(max=low)), now.clamp(min=high))


def totals(entries: Tensor, sample_weight: Tensor | None, per: Granularity) -> Tensor:
    """Sums of entries in float64: over the rows, (n, p) -> (p,), for per="unit"; over rows and units, (n, p) -> (), for per="layer".

    sample_weight (n,) is how much each row counts; None for 1.

    >>> lnn.functional.totals(torch.ones(4, 2), None, per="unit").tolist()
    [4.0, 4.0]
    """
    sums = reduce.total(entries, sample_weight)
    return sums if per == "unit" else sums.sum()


def as_given(found: Tensor, given: Tensor | float, other: Tensor) -> Tensor | float:
    """`found`, a re-estimated parameter, in the form of the given one: a number, or a tensor in the precision of `other`.

    >>> lnn.functional.as_given(torch.tensor(0.5), given=0.1, other=torch.zeros(2))
    0.5
    """
    if found.ndim == 0 and not isinstance(given, Tensor):
        return float(found)
    return found.reshape(given.shape if found.ndim == 0 and isinstance(given, Tensor) else (-1,)).to(other)
