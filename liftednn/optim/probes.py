"""The curvature of a criterion in a module's outputs, and what is sent backward from these to measure that of the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.optim.calls import Call, tensors_in
from liftednn.optim.wrappers import Ranks

__all__ = ["Largest", "Probes", "batch_probes", "check_criterion", "random_probes", "without_gradients"]

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

    unit    for gradients of the batch, the root mean square that they had before; otherwise 0
    terms   of the loss: one for a label, as many as outputs for responses, or as tokens for a text
    rows    of the scores
    doubt   how undecided the predicted probabilities are, from 0, all certain, to 1, all alike; None where there are none
    """

    outputs: list[Tensor]
    sent: list[list[Tensor]]
    curvature: float
    unit: float = 0.0
    terms: float = 1.0
    rows: int = 1
    doubt: Tensor | None = None


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
        return 0.5 * _largest(criterion.weight) / (_mean(criterion.weight) if criterion.reduction == "mean" else 1.0)
    if isinstance(criterion, nn.HuberLoss):
        return 1.0
    if isinstance(criterion, nn.SmoothL1Loss):
        return 1 / criterion.beta if criterion.beta else math.inf
    if isinstance(criterion, nn.MSELoss):
        return 2.0
    return (
        0.25 * _largest(getattr(criterion, "weight", None)) * max(1.0, _largest(getattr(criterion, "pos_weight", None)))
    )


def _largest(weights: Tensor | None) -> float:
    """The largest of the weights of classes or bits; 1 where there are none."""
    return 1.0 if weights is None else float(weights.max())


def _mean(weights: Tensor | None) -> float:
    """The mean of these, by which torch divides the mean loss where classes are equally frequent."""
    return 1.0 if weights is None else float(weights.mean()) or 1.0


def random_probes(criterion: nn.Module, outputs: Any, seed: int) -> Probes:
    """Random signs, and the curvature of a known criterion in each entry of the scores."""
    scores, classes_last = _scores(outputs)
    terms, rows = scores.numel(), len(scores) if scores.ndim > 1 else 1
    axis = -1 if classes_last or scores.ndim == 1 else 1
    if isinstance(criterion, nn.CrossEntropyLoss):  # one term for all classes
        terms //= max(scores.shape[axis], 1)
    curvature = _curvature(criterion) / (max(terms, 1) if criterion.reduction == "mean" else 1)
    sent = [[each] for each in _signs(scores.detach(), seed)]
    return Probes([scores], sent, curvature, terms=terms, rows=rows, doubt=_doubt(criterion, scores.detach(), axis))


def _doubt(criterion: nn.Module, scores: Tensor, axis: int) -> Tensor | None:
    """The mean of 1 - sum p^2 over classes, divided by its largest value; of 4 p (1 - p) for bits. 1 where there is no row."""
    if isinstance(criterion, nn.CrossEntropyLoss):
        classes = max(scores.shape[axis], 2)
        found = (1 - scores.float().softmax(axis).square().sum(axis)).mean() / (1 - 1 / classes)
    elif isinstance(criterion, nn.BCEWithLogitsLoss):
        p = scores.float().sigmoid()
        found = 4 * (p * (1 - p)).mean()
    else:
        return None
    return found.nan_to_num(1.0).clamp(0, 1)


def _scores(outputs: Any) -> tuple[Tensor, bool]:
    """The outputs that a criterion is for: the `logits`, otherwise the first tensor that is not a loss; and whether classes are in their
    last axis, as where a module names them or returns its loss too, and not in axis 1, as the criterion has them."""
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(named, Tensor):
        return named, True
    found = [each for each in tensors_in(outputs) if each.requires_grad]
    losses = [each for each in found if not each.ndim]
    found = [each for each in found if each.ndim] or found
    if not found:
        raise RuntimeError(
            "the module's outputs hold no tensor with a gradient, and the curvature is measured from there: let forward return "
            "a tensor, or a tuple, list or dict of tensors"
        )
    return found[0], isinstance(outputs, Mapping) or bool(losses and found[0].ndim)


def _signs(like: Tensor, seed: int) -> list[Tensor]:
    """One probe of random signs; where scores (n, p) are few, p of them, one for each output and sqrt(p) times as large."""
    where = torch.device("cpu") if like.numel() <= _ON_CPU else like.device
    drawn = torch.randint(0, 2, like.shape, generator=torch.Generator(where).manual_seed(seed), device=where)
    signs = (2 * drawn - 1).to(like)
    if like.ndim != 2 or like.numel() > _EXACT:
        return [signs]
    p = like.shape[1]
    return [math.sqrt(p) * signs * unit for unit in torch.eye(p).to(like)]


class Largest(NamedTuple):
    """Of the gradients that have arrived at the outputs at refreshes so far: the largest deviation and root mean square, and the curvature
    when they had fallen to half of the latter for the first time; 0 before."""

    deviation: float = 0.0
    size: float = 0.0
    curvature: float = 0.0


def without_gradients(call: Call) -> bool:
    """Whether all gradients that have arrived at the outputs of a call, in all processes, are 0."""
    some = any(bool(gradient.any()) for gradient in call.gradients.values())
    (number,) = call.ranks.sums([float(some)], call.device)
    return bool(call.gradients) and not number


def batch_probes(call: Call, outputs: Any, backward: int, numbers: int, largest: Largest) -> tuple[Probes, Largest]:
    """The gradients that the batch itself sent backward, and the largest so far.

    backward   the passes whose gradients were added up, each of a loss that was divided by their number
    numbers    entries in the outputs of the last layer: terms times the outputs of each
    """
    tensors = tensors_in(outputs)
    reached = sorted(number for number in call.gradients if number < len(tensors))
    # A loss among the outputs has sent its gradient through the others.
    reached = [number for number in reached if tensors[number].ndim] or reached
    found, gradients = [tensors[number] for number in reached], [call.gradients[number] for number in reached]
    if not gradients:
        raise RuntimeError(
            "no gradient has reached the outputs of the module's last training call: call loss.backward() on a loss of these outputs "
            "before step(), or give Lifted a criterion"
        )
    size, curvature, largest = _curvature_of_batch(gradients, found, call.ranks, backward, numbers, largest)
    sent = [(gradient / size).to(output) for gradient, output in zip(gradients, found, strict=True)]
    return Probes(found, [sent], curvature, size), largest


def _curvature_of_batch(
    gradients: Sequence[Tensor], outputs: Sequence[Tensor], ranks: Ranks, backward: int, numbers: int, largest: Largest
) -> tuple[float, float, Largest]:
    """The root mean square of the gradients, the curvature in each output, in the units of a gradient over an output, and the largest
    gradients.

    The largest gradients so far vanish when the outputs have moved by their own size: the curvature is the larger ratio of the gradients'
    deviation to that of the outputs and of the two root mean squares. Outputs may grow on when gradients have fallen, as those of a
    cross-entropy do: from then on the curvature stays. Where outputs do not vary, it is the mean square of the gradients of the terms,
    which is that of a negative log-likelihood; where the outputs are the loss itself, that over twice the loss, which is exact for a
    squared error.
    """
    pairs = [(g.double().flatten(), u.detach().double().flatten()) for g, u in zip(gradients, outputs, strict=True)]
    g, u = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    sums = [torch.ones_like(g).sum(), g.sum(), g.square().sum(), u.sum(), u.square().sum(), (g * u).sum()]
    count, *found = ranks.add_up(torch.stack(sums)).tolist()
    mean_g, gg, mean_u, uu, gu = (each / count for each in found)
    size, of_terms = math.sqrt(gg), numbers * backward**2 * gg
    if not any(output.ndim for output in outputs):
        loss = backward * gu * len(g)
        return size, of_terms / (2 * loss) if loss > 0 else of_terms, largest
    whole = backward * size
    deviation, most = max(largest.deviation, backward * _deviation(mean_g, gg)), max(largest.size, whole)
    ratio = max(_ratio(deviation, _deviation(mean_u, uu)), _ratio(most, math.sqrt(uu)))
    if not 0 < ratio < math.inf:
        return size, of_terms, Largest(deviation, most, largest.curvature)
    kept = largest.curvature or (ratio if whole <= most / 2 else 0.0)
    return size, max(ratio, kept), Largest(deviation, most, kept)


def _deviation(mean: float, mean_square: float) -> float:
    """The standard deviation; 0 where it is rounding error."""
    variance = mean_square - mean**2
    return math.sqrt(variance) if variance > 1e-12 * mean_square else 0.0


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf if a else 0.0
