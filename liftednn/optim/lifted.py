"""The optimiser: polar steps (step/polar.py) on the weights of any torch module, AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.optim.adamw import adamw

from liftednn.optim.maps import linear_maps
from liftednn.runtime.precision import plain_arithmetic
from liftednn.step.polar import polar

__all__ = ["Lifted"]

# The weight decay, and that for a cross-entropy, which goes on to fall while its scores grow.
_DECAY, _CROSS_ENTROPY_DECAY = 0.05, 0.15
_CROSS_ENTROPIES = (fn.cross_entropy, fn.binary_cross_entropy_with_logits)
# The least norm that counts as a weight's first one, over the root of its rows: outputs a tenth as large as its inputs.
_LEAST = 0.1
# Small, so that a loss in small units is no obstacle.
_ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-15, "weight_decay": 0.0}
_ADAM |= {"amsgrad": False, "maximize": False}


class Lifted(torch.optim.Optimizer):
    """A torch optimiser for any module and any loss: a step turns each weight by a fraction of the norm that it had at first.

    With M the average of a weight's gradients by Nesterov's momentum, a step is

        W <- (1 - lr weight_decay) W - lr |W_0| polar(M) / sqrt(min(q, p)),    polar(U S V') = U V'

    for the weights W (q, p) of Linear and of convolutions, for each projection of attention and each gate of a recurrent layer. Its length
    does not depend on the units of the loss or of the inputs, nor on what one batch contains, and does not grow with the weights. AdamW
    moves everything else: the last of these weights in the order in which the module holds them, biases, norms and embeddings.

    module          any module, or its DistributedDataParallel or torch.compile wrapper
    criterion       the loss, if it is a cross-entropy of classes or bits: for the weight decay alone. Any loss can be trained without it
    params          the parameters to train, or dicts of them with their own `lr`, `momentum`, `weight_decay` and `adam_lr`, as for all
                    optimisers of torch; None for all parameters of the module
    lr              the length of a step over the norm of the weight at the first step
    momentum        Nesterov's
    weight_decay    a step multiplies these weights, the last one too, by 1 - lr weight_decay; None for .15 if the criterion is a
                    cross-entropy, and .05 otherwise
    adam_lr         the rate of AdamW; it follows `lr`, when a scheduler changes that

    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    >>> x, criterion = torch.randn(64, 5), torch.nn.MSELoss()
    >>> optimiser, losses = lnn.optim.Lifted(module), []
    >>> for _ in range(60):
    ...     loss = criterion(module(x), x[:, :1] * x[:, 1:2])
    ...     optimiser.zero_grad()
    ...     loss.backward()
    ...     optimiser.step()
    ...     losses.append(loss.item())
    >>> losses[-1] < 0.5 * losses[0]
    True
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: Any = None,
        params: Iterable[Any] | None = None,
        lr: float | Tensor = 0.02,
        momentum: float = 0.9,
        weight_decay: float | None = None,
        adam_lr: float = 3e-3,
    ) -> None:
        _check_module(module)
        if isinstance(criterion, float | int):
            raise TypeError(
                f"criterion must be a loss, or None, got {criterion!r}: a rate is given by its name, lr={criterion!r}"
            )
        if isinstance(lr, Tensor) and lr.ndim:
            raise ValueError(f"lr must be a number, or a tensor without axes, got one of shape {tuple(lr.shape)}")
        if not lr > 0:
            raise ValueError(f"lr must be positive, got {lr!r}: a scheduler may change it later")
        self._matrices = linear_maps(module)
        self._by_adamw = {*list(self._matrices)[-1:]}  # the last one
        if weight_decay is None:
            crossed = isinstance(criterion, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss) or criterion in _CROSS_ENTROPIES
            weight_decay = _CROSS_ENTROPY_DECAY if crossed else _DECAY
        own = {"momentum": momentum, "weight_decay": weight_decay, "adam_lr": adam_lr}
        super().__init__(module.parameters() if params is None else params, {"lr": lr, "base_lr": float(lr)} | own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to train, as in every optimiser of torch."""
        settings = self.defaults | param_group
        for name, below in (("lr", math.inf), ("momentum", 1), ("weight_decay", math.inf), ("adam_lr", math.inf)):
            if settings[name] is not None and not 0 <= settings[name] < below:
                raise ValueError(f"{name} must be at least 0 and less than {below:g}, got {settings[name]!r}")
        # A scheduler changes a tensor of rates in place.
        param_group.setdefault("base_lr", float(param_group["lr"]) if "lr" in param_group else self.defaults["base_lr"])
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters along their gradients, once.

        closure   computes the loss and its gradients first, and returns the loss
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._move()
        return loss

    @plain_arithmetic
    def _move(self) -> None:
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            _check_gradients(moving)
            weights = [p for p in moving if p in self._matrices]
            inner = [p for p in weights if p not in self._by_adamw]
            for p in inner:
                _begin(self.state[p], p, self._matrices[p])
            if weights and group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            for alike in _stacked(inner, self._matrices):
                self._polar_step(alike, group)
            stepped = set(inner)
            _adam_step(self.state, [p for p in moving if p not in stepped], group)

    def _polar_step(self, params: list[Tensor], group: Mapping[str, Any]) -> None:
        """For weights of one shape. One whose gradient is all 0 stays: a polar factor is as large however small an average becomes."""
        number, momentum = self._matrices[params[0]], float(group["momentum"])
        gradients, velocities = [_gradient(p) for p in params], [self.state[p]["velocity"] for p in params]
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, gradients)
        averages = torch._foreach_add(gradients, velocities, alpha=momentum)
        rows = len(params[0]) // number
        steps = polar(torch.cat([each.reshape(number, rows, -1) for each in averages]))
        reached = torch.stack(torch._foreach_norm(gradients, torch.inf)) > 0
        lengths = torch.stack([self.state[p]["length"] for p in params]) * reached[:, None]
        steps.mul_((lengths.flatten() * (group["lr"] / math.sqrt(min(steps.shape[1:]))))[:, None, None])
        torch._foreach_sub_(
            params, [each.reshape(p.shape) for each, p in zip(torch.split(steps, number), params, strict=True)]
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, also on another device; training then continues as it would have there."""
        if any("metric" in name for held in state_dict["state"].values() for name in held):
            raise ValueError(
                "this state has the Gram matrices of an earlier Lifted: load the weights alone, and begin with a new optimiser"
            )
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        places = {p: place for place, p in enumerate(self._parameters())}
        kept = {places[p]: number for p, number in self._matrices.items() if p in places}
        by_adamw = {places[p] for p in self._by_adamw if p in places}
        return super().__getstate__() | {"_matrices": kept, "_by_adamw": by_adamw}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_matrices" in state:  # of a copy
            held = self._parameters()
            self._matrices = {held[place]: number for place, number in state["_matrices"].items()}
            self._by_adamw = {held[place] for place in state["_by_adamw"]}

    def _parameters(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"]]


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _begin(held: dict[str, Tensor], p: Tensor, number: int) -> None:
    """The state of a weight: the average of its gradients, and the first norm of each of its matrices."""
    if not held:
        matrices = p.detach().reshape(number, len(p) // number, -1)
        least = _LEAST * math.sqrt(matrices.shape[1])
        held |= {"velocity": torch.zeros_like(p), "length": torch.linalg.matrix_norm(matrices).clamp(min=least)}


def _stacked(params: Sequence[Tensor], matrices: Mapping[Any, int]) -> list[list[Tensor]]:
    """Weights of one shape together: a GPU moves them in a few operations."""
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for p in params:
        found.setdefault((p.shape, matrices[p], p.dtype, p.device), []).append(p)
    return list(found.values())


def _adam_step(state: Any, params: Sequence[Tensor], group: Mapping[str, Any]) -> None:
    """A step of AdamW, without weight decay."""
    for p in params:
        if not (held := state[p]):
            held |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        if held["step"].device != p.device:  # where a recorded step counts
            held["step"] = held["step"].to(p.device)
    rate = group["adam_lr"] * group["lr"] / (group["base_lr"] or 1.0)
    alike = {p.device.type for p in params} in ({"cpu"}, {"cuda"})
    for fused in (True, False):
        some = [p for p in params if (alike and _fusible(p, state[p])) == fused]
        if some:
            first, second, steps = ([state[p][name] for p in some] for name in ("exp_avg", "exp_avg_sq", "step"))
            settings = _ADAM | {"capturable": some[0].is_cuda, "fused": fused, "lr": rate}
            adamw(some, [_gradient(p) for p in some], first, second, [], steps, **settings)


def _fusible(p: Tensor, held: Mapping[str, Tensor]) -> bool:
    """Whether the fused kernel can move a parameter: it takes real numbers, and reads the memory of all tensors in one order."""
    others = (p.grad, held["exp_avg"], held["exp_avg_sq"])
    return p.is_floating_point() and all(each is not None and each.stride() == p.stride() for each in others)


def _check_module(module: nn.Module) -> None:
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


def _check_gradients(parameters: Iterable[Tensor]) -> None:
    if any(_gradient(p).is_sparse for p in parameters):
        raise RuntimeError(
            "Lifted takes no sparse gradients: give Embedding(sparse=False), or leave its weight to torch.optim.SparseAdam and out "
            "of params"
        )
