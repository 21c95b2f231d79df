"""How parameters move: along their directions with Nesterov's momentum, by AdamW where they have none, and by weight decay. Rates may be
tensors, which a recorded step reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from liftednn.optim.layers import Regression

__all__ = ["adam_step", "averaged", "decay_step", "let_decay", "moved", "nesterov_step", "whole"]

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
    state: Any,
    weights: Iterable[Tensor],
    last: Tensor | None,
    norms: Iterable[Tensor],
    doubt: Tensor | None,
    steps: int,
) -> None:
    """Mark in the state what decays in the steps that follow, at most so many: these weights, and the parameters of norms.

    A weight does not decay below a tenth of the norm that it starts with: where a batch norm follows a layer, its steps are proportional
    to the size of its weights, which would vanish in a long run.

    last    the one of the last layer, whose state holds the doubt
    doubt   how undecided predictions are (probes.py); None for 1
    """
    for weight in weights:
        held, size = state[weight], torch.linalg.vector_norm(weight)
        start = held.setdefault("start_norm", size)
        least = (_SMALLEST * start / size.clamp(min=torch.finfo(size.dtype).tiny)).clamp(max=1) ** (1 / steps)
        _keep(held, "least", least)
        if weight is last:
            _keep(held, "doubt", torch.ones_like(size) if doubt is None else doubt.to(size))
        else:
            held.pop("doubt", None)
    for p in norms:
        if "start" not in state[p]:
            state[p]["start"] = p.detach().clone()


def _keep(held: dict[str, Tensor], name: str, value: Tensor) -> None:
    """In the memory that a recorded step reads."""
    if name in held:
        held[name].copy_(value)
    else:
        held[name] = value.clone()


def decay_step(
    state: Any,
    group: Mapping[str, Any],
    decay: float,
    last_decay: float | None,
    centres: Iterable[tuple[Regression, Tensor]],
) -> None:
    """Multiply weights by 1 - lr decay, as AdamW does, as far as `let_decay` allows. The parameters of norms return to their start at the
    same rate: while the last layer decays, they would grow without end.

    last_decay   of the last layer, times how undecided predictions are; None for that of the others
    centres      the last layers, with the means of their rows: their intercepts keep the mean of the outputs. A mean that the decay moves
                 in every step would have to be moved back by the gradients, which are less than 1 for classes, and a scarce class would be
                 lost
    """
    if not decay:
        return
    held = [(p, state[p]) for p in group["params"] if p.grad is not None]
    norms = [p for p, own in held if "start" in own]
    if norms:
        _move_back(norms, [state[p]["start"] for p in norms], group["lr"] * decay)
    weights = [(p, own) for p, own in held if "least" in own]
    inner = [pair for pair in weights if last_decay is None or "doubt" not in pair[1]]
    factors = _factors(inner, 1 - group["lr"] * decay)
    if last_decay is not None:
        for p, own in weights:
            if "doubt" in own:
                factors |= _factors([(p, own)], 1 - group["lr"] * last_decay * own["doubt"])
    for layer, centre in centres:
        if layer.bias is not None and layer.weight in factors:
            layer.bias[layer.bias_rows].add_((1 - factors[layer.weight]) * layer.mean_outputs(centre))
    if factors:
        torch._foreach_mul_(list(factors), list(factors.values()))


def _move_back(params: list[Tensor], starts: list[Tensor], rate: float | Tensor) -> None:
    """Towards their start by this fraction of the way, at most all of it."""
    if isinstance(rate, Tensor):
        torch._foreach_lerp_(params, starts, [rate.clamp(max=1.0).to(p.dtype) for p in params])
    else:
        torch._foreach_lerp_(params, starts, min(rate, 1.0))


def _factors(pairs: Sequence[tuple[Tensor, Mapping[str, Tensor]]], factor: float | Tensor) -> dict[Tensor, Tensor]:
    """What weights are multiplied by: the factor, or the least that is allowed."""
    if not pairs:
        return {}
    least = [own["least"] for _, own in pairs]
    found = torch._foreach_clamp_min(least, [factor] * len(least) if isinstance(factor, Tensor) else factor)
    return {p: each for (p, _), each in zip(pairs, found, strict=True)}


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
    own = [(p, step) for p in group["params"] if (step := directions.get(p)) is not None]
    if averages:
        ready = [(p, step) for p, step in own if p in averages]
        _subtract([p for p, _ in ready], [step for _, step in ready], rate / (1 - momentum))
        own = [(p, step) for p, step in own if p not in averages]
    if not own:
        return
    params, steps = [p for p, _ in own], [step for _, step in own]
    velocities = _velocities(state, params)
    if isinstance(rate, Tensor):
        steps, rate = list(torch._foreach_mul(steps, rate)), 1.0
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, steps, alpha=-rate)
    torch._foreach_add_(params, velocities, alpha=momentum)
    torch._foreach_add_(params, steps, alpha=-rate)


def _velocities(state: Any, params: Sequence[Tensor]) -> list[Tensor]:
    held = [state[p] for p in params]
    for p, own in zip(params, held, strict=True):
        if "velocity" not in own:
            own["velocity"] = torch.zeros_like(p)
    return [own["velocity"] for own in held]


def _subtract(params: list[Tensor], steps: list[Tensor], rate: float | Tensor) -> None:
    if not params:
        return
    if isinstance(rate, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(steps, rate))
    else:
        torch._foreach_add_(params, steps, alpha=-rate)


def adam_step(state: Any, group: Mapping[str, Any], others: Mapping[Tensor, Tensor]) -> None:
    """A step of AdamW, without weight decay, on the parameters of a group that are not among the others."""
    params = [p for p in group["params"] if p.grad is not None and p not in others]
    if not params:
        return
    held = [state[p] for p in params]
    for p, own in zip(params, held, strict=True):
        if "exp_avg" not in own:
            own |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        if own["step"].device != p.device:  # where a recorded step counts
            own["step"] = own["step"].to(p.device)
    rate = group["adam_lr"] * group["lr"] / (group["base_lr"] or 1.0)
    pairs = list(zip(params, held, strict=True))
    kinds = {p.device.type for p in params}
    cuda, alike = kinds == {"cuda"}, kinds in ({"cpu"}, {"cuda"})
    for fused in (True, False):
        some = [(p, own) for p, own in pairs if (alike and _fusible(p, own)) == fused]
        grads = [p.grad for p, _ in some]
        first, second, steps = ([own[name] for _, own in some] for name in ("exp_avg", "exp_avg_sq", "step"))
        if some:
            own_params = [p for p, _ in some]
            adamw(own_params, grads, first, second, [], steps, lr=rate, capturable=cuda, fused=fused, **_ADAM)


def _fusible(p: Tensor, held: Mapping[str, Tensor]) -> bool:
    """Whether the fused kernel can move a parameter: it takes real numbers, and reads the memory of all tensors in one order."""
    others = (p.grad, held["exp_avg"], held["exp_avg_sq"])
    return p.is_floating_point() and all(each is not None and each.stride() == p.stride() for each in others)


def whole(parts: dict[int, Tensor]) -> Tensor:
    """Rows, by the number of the first, together."""
    ordered = [parts[start] for start in sorted(parts)]
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered)


def moved(part: Tensor | list[Tensor], like: Tensor) -> Tensor | list[Tensor]:
    """A copy of a part of a metric on the device of the parameter `like`: in its precision, if that has 32 bits or more."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if isinstance(part, list):
        return [each.to(like.device, dtype, copy=True) for each in part]
    return part.to(like.device, dtype, copy=True)
