"""The curvature of a criterion in a module's outputs, and what is sent backward from these to measure that of the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.optim.calls import Call, tensors_in

__all__ = ["Probes", "batch_probes", "check_criterion", "random_probes"]

_FUNCTIONS = {
    fn.cross_entropy: nn.CrossEntropyLoss,
    fn.mse_loss: nn.MSELoss,
    fn.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    fn.huber_loss: nn.HuberLoss,
    fn.smooth_l1_loss: nn.SmoothL1Loss,
}
_KNOWN = (nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.SmoothL1Loss)
# Up to this many scores, each output has a probe of its own: one random probe would be noisy.
_EXACT = 256
# Up to this many random signs are drawn on the CPU, so that all devices agree.
_ON_CPU = 2**22


class Probes(NamedTuple):
    """Gradients to be sent backward from some outputs, of mean square 1, and the curvature that belongs to mean square 1.

    unit   for gradients of the batch, the root mean square that they had before; otherwise 0
    """

    outputs: list[Tensor]
    sent: list[list[Tensor]]
    curvature: float
    unit: float = 0.0


def check_criterion(criterion: Any) -> nn.Module | None:
    """A criterion whose curvature is known, or None."""
    if criterion is None:
        return None
    found = _FUNCTIONS[criterion]() if criterion in _FUNCTIONS else criterion
    known = ", ".join(kind.__name__ for kind in _KNOWN)
    if not isinstance(found, _KNOWN) or found.reduction == "none" or _curvature(found) == math.inf:
        raise ValueError(
            f"criterion must be one of {known} with reduction 'mean' or 'sum' and a finite curvature, got {criterion!r}: give "
            "criterion=None to measure the curvature by the gradients of the batch"
        )
    return found


def _curvature(criterion: nn.Module) -> float:
    """The largest second derivative in one output, of the terms that the criterion adds up or takes the mean of."""
    if isinstance(criterion, nn.CrossEntropyLoss):
        return 0.5
    if isinstance(criterion, nn.HuberLoss):
        return 1.0
    if isinstance(criterion, nn.SmoothL1Loss):
        return 1 / criterion.beta if criterion.beta else math.inf
    return 2.0 if isinstance(criterion, nn.MSELoss) else 0.25


def random_probes(criterion: nn.Module, outputs: Any, seed: int) -> Probes:
    """Random signs, and the curvature of a known criterion in each entry of the scores."""
    scores = _scores(outputs)
    terms = scores.numel() if criterion.reduction == "mean" else 1
    if isinstance(criterion, nn.CrossEntropyLoss) and criterion.reduction == "mean":
        terms //= scores.shape[1 if scores.ndim > 1 else 0]  # one term for all classes
    return Probes([scores], [[each] for each in _signs(scores.detach(), seed)], _curvature(criterion) / max(terms, 1))


def _scores(outputs: Any) -> Tensor:
    """The outputs that a criterion is for: `logits` of a mapping, otherwise the first tensor."""
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        return outputs["logits"]  # type: ignore[no-any-return]
    found = [each for each in tensors_in(outputs) if each.requires_grad]
    if not found:
        raise RuntimeError(
            "the module's outputs hold no tensor with a gradient, and the curvature is measured from there: let forward return "
            "a tensor, or a tuple, list or dict of tensors"
        )
    return found[0]


def _signs(like: Tensor, seed: int) -> list[Tensor]:
    """One probe of random signs; where scores (n, p) are few, p of them, one for each output and sqrt(p) times as large."""
    where = torch.device("cpu") if like.numel() <= _ON_CPU else like.device
    drawn = torch.randint(0, 2, like.shape, generator=torch.Generator(where).manual_seed(seed), device=where)
    signs = (2 * drawn - 1).to(like)
    if like.ndim != 2 or like.numel() > _EXACT:
        return [signs]
    p = like.shape[1]
    return [math.sqrt(p) * signs * unit for unit in torch.eye(p).to(like)]


def batch_probes(call: Call, outputs: Any, backward: int, numbers: int) -> Probes:
    """The gradients that the batch itself sent backward.

    The mean square of the gradients of independent terms is the diagonal of the empirical Fisher matrix, the curvature where a criterion
    is a negative log-likelihood. A gradient here is that of its term over the number of terms. For a term with several outputs, such as
    a cross-entropy, the squares are added up: their sum, not their mean, is of the size of the known bound.

    backward   the passes whose gradients were added up, each of a loss that was divided by their number
    numbers    entries in the outputs of the last layer: terms times the outputs of each
    """
    tensors = tensors_in(outputs)
    reached = sorted(number for number in call.gradients if number < len(tensors))
    size = _root_mean_square([call.gradients[number] for number in reached])
    if not reached or not size > 0:
        raise RuntimeError(
            "no gradient has reached the outputs of the module's last training call: call loss.backward() on a loss of these outputs "
            "before step(), or give Lifted a criterion"
        )
    sent = [(call.gradients[number] / size).to(tensors[number]) for number in reached]
    return Probes([tensors[number] for number in reached], [sent], numbers * (backward * size) ** 2, size)


def _root_mean_square(parts: Sequence[Tensor]) -> float:
    numbers = sum(part.numel() for part in parts)
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts) / max(numbers, 1))
