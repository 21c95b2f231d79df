"""The optimiser: gradients of any torch module, in the geometry of the mini-batch step (training/descent.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from liftednn.optim.calls import Call, attach, in_backward, missing_call, transformed
from liftednn.optim.capture import Capture, last_weight, measure
from liftednn.optim.layers import Regression, norm_parameters, regressions
from liftednn.optim.metric import LayerMetric, damping_fraction, refresh_all
from liftednn.optim.probes import Largest, Probes, batch_probes, check_criterion, random_probes, without_gradients
from liftednn.optim.stack import Stack, centres, stacked, steps, unlimited_step
from liftednn.optim.updates import adam_step, averaged, decay_step, let_decay, moved, nesterov_step, whole
from liftednn.optim.wrappers import Ranks, check_gradients, check_module, check_settings, ranks_in_call, unwrapped
from liftednn.runtime.precision import plain_arithmetic
from liftednn.training.descent import EARLY, ONE_BATCH, trust_of
from liftednn.training.spectral import LEAST_SIZE

__all__ = ["Lifted"]

# Of the rules for the weight decay, where a row has one term in the loss, and for that of the last layer; for the trust, at the least, and
# where a layer reads tokens.
_DECAY, _LAST_DECAY, _TRUST, _TOKEN_TRUST = 0.06, 0.6, 0.15, 0.04


class Lifted(torch.optim.Optimizer):
    """A torch optimiser: the step of `MiniBatch` for each Linear and convolution of any module, and one like it for attention and
    recurrence; AdamW moves the rest.

    A layer's gradient is multiplied by the inverse of c (gram + d I), with the Gram matrix of the layer's inputs (of the patches of a
    convolution, of the pixels of a transposed one), the curvature c of the criterion in the layer's outputs, and the damping d; then
    Nesterov's momentum. Gram matrices and curvatures are measured before the steps 0, 2, 5, 10, 20 and every `refresh` steps, by running
    the module again on the arguments of its last call in training mode. A step of rate 1 would move the outputs of a layer by about as
    much as minimises a quadratic bound of the criterion, but not by more than a fraction of their size. Layers that read tokens, such as
    those of a transformer or the gates of an LSTM, but not the last Linear, take steps that move their outputs by such a fraction in every
    direction (training/spectral.py).

    module          any module, or its DistributedDataParallel or torch.compile wrapper: what the training loop calls
    criterion       CrossEntropyLoss, MSELoss, BCEWithLogitsLoss, HuberLoss or SmoothL1Loss of torch.nn, or the function of
                    torch.nn.functional, that is applied to the module's outputs (to their `logits`, or to the first of several tensors);
                    None for any other, whose curvature is measured by the batch's own gradients and the size of the outputs
    params          the parameters to train, or dicts of them with their own `lr`, `momentum`, `weight_decay` and `adam_lr`, as for all
                    optimisers of torch; None for all parameters of the module
    lr              the rate, a fraction of the step that the curvature suggests
    momentum        Nesterov's
    weight_decay    a step multiplies the weights of these layers by 1 - lr weight_decay, as AdamW does, but not below a tenth of the norm
                    that they start with, and norms return to their start at this rate; None for .06, and up to .6 for the last layer,
                    over the terms of the criterion in a row if it is the cross-entropy of classes or of bits, otherwise 0
    damping         d, as a fraction of the mean diagonal of gram, times columns over rows where a batch has fewer rows; None for twice
                    columns over rows, from .3 to 10, and at least 1 for convolutions with overlapping patches
    refresh         the number of steps between two refreshes
    trust           the fraction of its size by which a step of rate 1 may move a layer's outputs; None for 1 over the number of layers,
                    from .15 to .3, and for .04 where a layer reads tokens
    adam_lr         the rate of AdamW for all parameters that are not those of a Linear, a convolution, a projection of
                    nn.MultiheadAttention or a recurrent module of one layer and direction that the module calls; it follows `lr`, when
                    a scheduler changes that

    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    >>> x, criterion = torch.randn(64, 5), torch.nn.MSELoss()
    >>> optimiser, losses = lnn.optim.Lifted(module, criterion), []
    >>> for _ in range(30):
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
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float | None = None,
        damping: float | None = None,
        refresh: int = 60,
        trust: float | None = None,
        adam_lr: float = 3e-3,
    ) -> None:
        check_module(module)
        check_settings(lr=lr, damping=damping, refresh=refresh, trust=trust)
        self.module, self.criterion = module, check_criterion(criterion)
        self.damping, self.refresh, self.trust = damping, refresh, trust
        own = {"weight_decay": weight_decay, "adam_lr": adam_lr, "steps": 0, "terms": 1.0, "largest": tuple(Largest())}
        defaults = {"lr": lr, "base_lr": float(lr), "momentum": momentum, "postponed": False} | own
        super().__init__(unwrapped(module).inner.parameters() if params is None else params, defaults)
        self._begin()

    def _begin(self) -> None:
        """Attach to the module, without a call of it."""
        self._call: Call | None = None
        self._open = 0  # calls of the module that have not returned: one that calls itself has several
        self._written = False  # whether the module writes to its arguments
        self._passes: list[None] = []  # one for each backward pass since the last step
        self._doubt: Tensor | None = None  # how undecided predictions were at the last refresh
        self._layers: list[tuple[Regression, LayerMetric]] | None = None
        self._stacked: tuple[list[Any], list[Stack]] | None = None
        self._refreshed = False  # whether metrics are newer than stacks
        self._detach = attach(unwrapped(self.module).called, self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to train, as in every optimiser of torch."""
        settings = self.defaults | param_group
        for name, below in (("lr", math.inf), ("momentum", 1), ("weight_decay", math.inf), ("adam_lr", math.inf)):
            if settings[name] is not None and not 0 <= settings[name] < below:
                raise ValueError(f"{name} must be at least 0 and less than {below:g}, got {settings[name]!r}")
        # A scheduler changes a tensor of rates in place.
        param_group.setdefault("base_lr", float(param_group["lr"]) if "lr" in param_group else self.defaults["base_lr"])
        super().add_param_group(param_group)
        self._layers = self._stacked = None

    def close(self) -> None:
        """Remove the hooks from the module, which also happens when the optimiser is deleted; it cannot be refreshed after that."""
        self._detach()
        self._call = None

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return int(self.param_groups[0]["steps"])

    @property
    def due(self) -> bool:
        """Whether the next step measures the geometry again. A step that does not may be recorded as a CUDA graph, if `lr` is a tensor;
        after a replay, add 1 to "steps" of every group."""
        return self.steps in EARLY or self.steps % self.refresh == 0 or self.param_groups[0]["postponed"]

    def _before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of a training call, if the next step needs them; for the hooks of the module."""
        if in_backward() and self._call is not None:
            return
        self._open += 1
        held = self.due and self._open == 1 and self._held
        if held and all(parameter.grad is None for parameter in held):  # the module's own zero_grad has cleared them
            self._passes.clear()
        if held and module.training and torch.is_grad_enabled() and not transformed((args, kwargs)):
            device, ranks = next(iter(held)).device, unwrapped(self.module).ranks
            self._call = Call(args, kwargs, device, ranks if ranks.number > 1 else ranks_in_call(), self._written)

    def _after_call(self, module: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        """Keep the gradients of the outputs of that call, where no criterion is known; for the hooks of the module."""
        outermost, self._open = self._open == 1, max(self._open - 1, 0)
        if self._call is not None and outermost and module.training and not transformed((args, outputs)):
            self._written = self._call.close()
            if self.criterion is None:
                self._call.watch(outputs, self._passes, self._held)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters along their gradients, once.

        closure   computes the loss and its gradients first, and returns the loss
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._open = 0
        self._move()
        self._passes.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, as every optimiser of torch does."""
        self._open = 0  # a call that Ctrl-C has ended does not return
        self._passes.clear()
        if self._call is not None:
            self._call.gradients.clear()
        super().zero_grad(set_to_none)

    @plain_arithmetic
    def _move(self) -> None:
        check_gradients(p for group in self.param_groups for p in group["params"])
        if self.due and self._held:
            self._measure()
        averages = self._averages(stacks := self._stacks())
        directions = self._directions(stacks, averages)
        last = centres(stacks, {weight for weight, held in self.state.items() if "doubt" in held})
        for group in self.param_groups:
            decay_step(self.state, group, *self._decays(group), last)
            nesterov_step(self.state, group, directions, averages)
            adam_step(self.state, group, directions)
            group["steps"] += 1

    @property
    def _held(self) -> set[Tensor]:
        return {parameter for group in self.param_groups for parameter in group["params"]}

    def _regressions(self) -> list[Regression]:
        return regressions(unwrapped(self.module).inner, self._held)

    def _found(self) -> list[tuple[Regression, LayerMetric]]:
        """The layers that a refresh has measured."""
        if self._layers is None:
            pairs = [(layer, self.state[layer.weight].get(layer.name)) for layer in self._regressions()]
            self._layers = [(layer, LayerMetric.from_state(named)) for layer, named in pairs if named is not None]
        return self._layers

    def _measure(self) -> None:
        """Refresh the geometry of every layer that has a gradient."""
        if self._call is None:
            raise missing_call(closed=not self._detach.alive)
        postponed = self.param_groups[0]["postponed"] = self.criterion is None and without_gradients(self._call)
        if postponed:  # until there are gradients
            self._call = None
            return
        moving, ranks = [layer for layer in self._regressions() if any(layer.moving)], self._call.ranks
        found = measure(unwrapped(self.module).inner, self._call, moving, self._probes(self._call), ranks.add_up)
        self._call = None
        last, norms = last_weight(found), norm_parameters(unwrapped(self.module).inner, self._held)
        stepping = [each.regression.weight for each in found if each.steps]
        let_decay(self.state, stepping, last, norms, self._doubt, self.refresh)
        layers = {each.regression.modules[0] if each.regression.recurrent else each for each in found}  # gates are one
        trust = max(_TRUST, trust_of(len(layers))) if self.trust is None else self.trust
        spectral = {each.regression.modules[0] for each in found if each.tokens and each.regression.weight is not last}
        metrics = [self._add_rows(capture, capture.regression.modules[0] in spectral) for capture in found]
        refresh_all(metrics, [self._settings(capture) for capture in found])
        for capture, metric in zip(found, metrics, strict=True):
            if metric.spectral:
                self._allow(capture, metric)
            else:
                self._limit(capture, metric, trust, ranks)
            self.state[capture.regression.weight][capture.regression.name] = metric.state()
        self._layers, self._refreshed = None, True

    def _probes(self, call: Call) -> Callable[[Any, int], Probes]:
        def probes(outputs: Any, numbers: int) -> Probes:
            if self.criterion is None:
                before, passes = Largest(*self.param_groups[0]["largest"]), max(len(self._passes), 1)
                found, largest = batch_probes(call, outputs, passes, numbers, before)
                for group in self.param_groups:
                    group["largest"] = tuple(largest)
                return found
            found = random_probes(self.criterion, outputs, self.steps * call.ranks.number + call.ranks.own)
            terms, rows = call.ranks.sums([found.terms, float(call.rows or found.rows)], found.outputs[0].device)
            for group in self.param_groups:
                group["terms"] = terms / max(rows, 1.0)
            self._doubt = None if found.doubt is None else call.ranks.mean(found.doubt, found.terms)
            return found

        return probes

    def _add_rows(self, capture: Capture, spectral: bool) -> LayerMetric:
        layer = capture.regression
        if (named := self.state[layer.weight].get(layer.name)) is None:
            return LayerMetric.of(capture.moments, spectral)
        metric = LayerMetric.from_state(named)
        metric.add(capture.moments)
        if metric.spectral or not spectral:
            return metric
        for p in (layer.weight, layer.bias):  # their velocities are of steps, and will be of gradients
            if p is not None:
                self.state[p].pop("velocity", None)
        return LayerMetric.of(metric.moments, spectral)

    def _settings(self, capture: Capture) -> tuple[float, float, bool]:
        """What a layer's refresh takes: its curvature and damping, and whether its intercepts move."""
        layer = capture.regression
        fraction = damping_fraction(self.damping, layer.columns, capture.rows, layer.overlapping)
        return capture.curvature, fraction, layer.moving[1]

    def _limit(self, capture: Capture, metric: LayerMetric, trust: float, ranks: Ranks) -> None:
        """Shorten the steps of a layer where one of rate 1 would move the outputs by more than `trust`."""
        layer = capture.regression
        move, shift = unlimited_step(layer, metric)
        # All calls of one module move at once.
        excess = (capture.motion(move, shift, ranks.add_up) * max(len(capture.calls), 1)).sqrt() / trust
        metric.shorten(excess.clamp(min=1).where(excess.isfinite(), 1.0))  # infinite where the outputs are all 0
        allowed = layer.outputs * (ONE_BATCH * trust) ** 2 * capture.mean_square / capture.overlap
        metric.limit(allowed.where(allowed > 0, torch.inf))

    def _allow(self, capture: Capture, metric: LayerMetric) -> None:
        """Let every step of rate 1 move the outputs of a spectral layer by the trust; also where its weights start at 0."""
        trust = _TOKEN_TRUST if self.trust is None else self.trust
        size = torch.maximum(capture.mean_square, LEAST_SIZE**2 * capture.input_square)
        allowed = capture.regression.outputs * trust**2 * size / max(len(capture.calls), 1)
        metric.limit(allowed.clamp(min=torch.finfo(size.dtype).tiny))  # it waits while inputs and outputs are all 0

    def _decays(self, group: dict[str, Any]) -> tuple[float, float | None]:
        """The weight decay of inner layers and of the last: as given, or by the rule; it would bias responses without noise."""
        if group["weight_decay"] is not None:
            return float(group["weight_decay"]), None
        by_rule = isinstance(self.criterion, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss)
        terms = max(float(group["terms"]), 1.0) if by_rule else math.inf
        return _DECAY / terms, _LAST_DECAY / terms

    def _stacks(self) -> list[Stack]:
        """The measured layers that have a gradient, as they were at the last step if that had the same gradients."""
        pairs = [pair for pair in self._found() if any(pair[0].moving)]
        key = [(id(layer.weight), metric.spectral, *layer.moving) for layer, metric in pairs]
        same = self._stacked is not None and self._stacked[0] == key
        if self._stacked is None or self._refreshed or not same:
            self._stacked = key, stacked(pairs, self._stacked[1] if self._stacked and same else None)
            self._refreshed = False
            for layer, metric in pairs:
                self.state[layer.weight][layer.name] = metric.state()
        return self._stacked[1]

    def _averages(self, stacks: Sequence[Stack]) -> dict[Tensor, Tensor]:
        """Averages of the gradients of spectral layers over steps: the noise of one batch would be as large in a step as all else."""
        spectral = {p for stack in stacks if stack.root for p in stack.parameters}
        found = [averaged(self.state, group, spectral) for group in self.param_groups]
        return {p: average for each in found for p, average in each.items()}

    def _directions(self, stacks: Sequence[Stack], averages: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """What a step of rate 1 subtracts from all parameters of the measured layers that have a gradient; not from those of which only
        some rows were measured, such as the bias of an attention whose keys are not trained here."""
        parts: dict[Tensor, dict[int, Tensor]] = {}
        for stack, (move, shift) in zip(stacks, steps(stacks, averages), strict=True):
            for layer, step in stack.by_layer(move) if move is not None else ():
                parts.setdefault(layer.weight, {})[layer.rows.start or 0] = layer.from_matrix(step)
            for layer, step in stack.by_layer(shift) if shift is not None else ():
                if layer.bias is not None:
                    parts.setdefault(layer.bias, {})[layer.bias_rows.start or 0] = step.reshape(-1)
        every = [(parameter, whole(found)) for parameter, found in parts.items()]
        return {p: step if step.dtype == p.dtype else step.to(p) for p, step in every if step.shape == p.shape}

    def __getstate__(self) -> dict[str, Any]:
        own = ("module", "criterion", "damping", "refresh", "trust")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layers = self._stacked = None
        if "_detach" not in self.__dict__:
            self._begin()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, also on another device; training then continues as it would have there."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, held, strict=True):
            for key, metric in state_dict["state"].get(number, {}).items():
                if key.startswith("metric"):  # torch rounds it to the precision of a 16-bit parameter
                    self.state[parameter][key] = {name: moved(part, parameter) for name, part in metric.items()}
