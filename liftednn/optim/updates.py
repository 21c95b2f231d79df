"""How parameters move: along their directions with Nesterov's momentum, by AdamW where they have none, and by weight decay. Rates may be
tensors, which a recorded step reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from liftednn.optim.layers import Regression

__all__ = ["adam_step", "averaged", "decay_step", "let_decay", "nesterov_step"]

# The fraction of its first norm below which a weight does not decay.
_SMALLEST = 0.1
_ADAM: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
}


def let_decay(
    state: Any, weights: Iterable[Tensor], last: Tensor | None, norms: Iterable[Tensor], doubt: Tensor | None
) -> None:
    """Mark in the state what decays: these weights, and the parameters of norms.

    last    the one of the last layer, whose state holds the doubt
    doubt   how undecided predictions are (probes.py); None for 1
    """
    for weight in weights:
        start = state[weight].setdefault("start_norm", torch.linalg.vector_norm(weight))
        if weight is last:
            held = state[weight].setdefault("doubt", torch.ones_like(start))
            held.copy_(torch.ones_like(held) if doubt is None else doubt)  # in the memory that a recorded step reads
        else:
            state[weight].pop("doubt", None)
    for p in norms:
        state[p].setdefault("start", p.detach().clone())


def decay_step(
    state: Any,
    group: Mapping[str, Any],
    decay: float,
    last_decay: float | None,
    centres: Iterable[tuple[Regression, Tensor]],
) -> None:
    """Multiply weights by 1 - lr decay, as AdamW does, but not below a tenth of the norm that they start with: where a batch norm follows a
    layer, its steps are proportional to the size of its weights, which would vanish in a long run. The parameters of norms return to their
    start at the same rate: while the last layer decays, they would grow without end.

    last_decay   of the last layer, times how undecided predictions are; None for that of the others
    centres      the last layers, with the means of their rows: their intercepts keep the mean of the outputs. A mean that the decay moves
                 in every step would have to be moved back by the gradients, which are less than 1 for classes, and a scarce class would be
                 lost
    """
    if not decay:
        return
    held = [p for p in group["params"] if p.grad is not None]
    norms = [p for p in held if "start" in state[p]]
    if norms:
        gaps = list(torch._foreach_sub(norms, [state[p]["start"] for p in norms]))
        rate = group["lr"] * decay
        _subtract(norms, gaps, rate.clamp(max=1.0) if isinstance(rate, Tensor) else min(rate, 1.0))
    weights = [p for p in held if "start_norm" in state[p]]
    inner = [p for p in weights if last_decay is None or "doubt" not in state[p]]
    factors = _factors(state, inner, 1 - group["lr"] * decay)
    for p in weights:
        if last_decay is not None and "doubt" in state[p]:
            factors |= _factors(state, [p], 1 - group["lr"] * last_decay * state[p]["doubt"])
    for layer, centre in centres:
        if layer.bias is not None and layer.weight in factors:
            layer.bias[layer.bias_rows].add_((1 - factors[layer.weight]) * layer.mean_outputs(centre))
    if factors:
        torch._foreach_mul_(list(factors), list(factors.values()))


def _factors(state: Any, params: list[Tensor], factor: float | Tensor) -> dict[Tensor, Tensor]:
    """What weights are multiplied by: the factor, but nothing that would make them smaller than they may become."""
    if not params:
        return {}
    sizes = torch._foreach_norm(params)
    torch._foreach_clamp_min_(sizes, max(torch.finfo(p.dtype).tiny for p in params))
    found = torch._foreach_div(torch._foreach_mul([state[p]["start_norm"] for p in params], _SMALLEST), sizes)
    torch._foreach_clamp_max_(found, 1.0)
    torch._foreach_clamp_min_(found, [factor] * len(found) if isinstance(factor, Tensor) else factor)
    return dict(zip(params, found, strict=True))


def averaged(state: Any, group: Mapping[str, Any], params: Set[Tensor]) -> dict[Tensor, Tensor]:
    """Nesterov's momentum on the gradients of those of these parameters that are in a group."""
    own = [p for p in group["params"] if p in params and p.grad is not None]
    if not own:
        return {}
    velocities, gradients = _velocities(state, own), [p.grad for p in own if p.grad is not None]
    torch._foreach_mul_(velocities, float(group["momentum"]))
    torch._foreach_add_(velocities, gradients)
    return dict(zip(own, torch._foreach_add(gradients, velocities, alpha=float(group["momentum"])), strict=True))


def nesterov_step(
    state: Any, group: Mapping[str, Any], directions: Mapping[Tensor, Tensor], averages: Mapping[Tensor, Tensor]
) -> None:
    """Nesterov's momentum on the directions of the parameters of a group; the gradients of those with averages have it already."""
    rate, momentum = group["lr"], float(group["momentum"])
    params = [p for p in group["params"] if p in directions and p in averages]
    if params:
        _subtract(params, [directions[p] for p in params], rate / (1 - momentum))
    params = [p for p in group["params"] if p in directions and p not in averages]
    if not params:
        return
    velocities, steps = _velocities(state, params), [directions[p] for p in params]
    if isinstance(rate, Tensor):
        steps, rate = list(torch._foreach_mul(steps, rate)), 1.0
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, steps, alpha=-rate)
    torch._foreach_add_(params, velocities, alpha=momentum)
    torch._foreach_add_(params, steps, alpha=-rate)


def _velocities(state: Any, params: Sequence[Tensor]) -> list[Tensor]:
    for p in params:
        if "velocity" not in state[p]:
            state[p]["velocity"] = torch.zeros_like(p)
    return [state[p]["velocity"] for p in params]


def _subtract(params: list[Tensor], steps: list[Tensor], rate: float | Tensor) -> None:
    if isinstance(rate, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(steps, rate))
    else:
        torch._foreach_add_(params, steps, alpha=-rate)


def adam_step(state: Any, group: Mapping[str, Any], others: Mapping[Tensor, Tensor]) -> None:
    """A step of AdamW, without weight decay, on the parameters of a group that are not among the others."""
    params = [p for p in group["params"] if p.grad is not None and p not in others]
    if not params:
        return
    for p in params:
        if "exp_avg" not in state[p]:
            state[p] |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        # On its device, where a recorded step counts.
        state[p]["step"] = state[p]["step"].to(p.device)
    rate = group["adam_lr"] * group["lr"] / (group["base_lr"] or 1.0)
    first, second, steps = ([state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq", "step"))
    grads = [p.grad for p in params]
    cuda = all(p.is_cuda for p in params)
    adamw(params, grads, first, second, [], steps, lr=rate, capturable=cuda, fused=cuda, **_ADAM)
