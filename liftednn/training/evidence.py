"""rho from the data: the strength of the squared norms at which the penalty explains the weights (MacKay 1992, "evidence").

Take loss / t as minus a log-likelihood, t a temperature, and the penalty as minus a log-prior. They fit together where

    t dof = 2 n sum_l rho_l |W_l|^2,

dof the effective parameters of the network near its present weights (linearised.py), so all rho are multiplied by one factor until this
holds. Only the product of two layers' rho matters where the activation between them is homogeneous, which is why there is one factor and
not one for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss
from liftednn.data.copies import different_rows
from liftednn.losses.regression import Bounded
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2
from liftednn.training.linearised import MOST, Linearised, Sample, rho_of

__all__ = ["adaptable", "next_change", "raised", "rho_factor", "sample_of", "with_rho_factor"]

# The factor by which rho rises where there are as many effective parameters as responses, unless the best linear regression has as many.
_RISE = 3.0
# With fewer rows than this rho rises before the first step, up to so often at once, and the head is fitted again so often.
_FEW_ROWS, _RISES, _FITS = 200, 12, 2
# The most that one evaluation changes rho by.
_CHANGE = 10.0
# The loss of one row, over the median, that counts under a loss of bounded slope.
_TYPICAL = 10.0
# The factor on a change of log rho in the direction of the last one, and the factor on rho up to which it counts.
_ONWARD, _SMALL = 1.5, 2.0


def adaptable(network: LiftedNetwork) -> bool:
    """Whether some rho can be adapted: there is an `L2` with rho > 0, and no uncertain inputs, which have a penalty of their own."""
    return any(rho_of(network, number) for number in range(len(network.layers))) and all(
        layer.uncertainty is None for layer in network.layers
    )


def with_rho_factor(network: LiftedNetwork, factor: float) -> LiftedNetwork:
    """The network with every rho of an `L2` multiplied by `factor`."""
    penalties = [L2(factor * p.rho) if isinstance(p := layer.penalty, L2) else p for layer in network.layers]
    return network.with_penalty(penalties)


def sample_of(loss: Loss, x: Tensor, y: Tensor, row_weights: Tensor | None, rows: int | None, most: int) -> Sample:
    """At most so many rows that are no copies, in the order given: the first ones; or, where classes have weights, each with a chance in
    proportion to that of its class, which is its importance, so that rare classes are among them. Other weights are taken for how often
    rows were seen."""
    different, counts = different_rows(x, y, row_weights, rows)
    importance = None if counts is None or row_weights is None or loss.invariant else _of_classes(row_weights, y)
    if counts is None or importance is None:
        some = different[:most]
        return Sample(x[some], y[some], rows or 0, None if counts is None else counts[:most])
    importance = importance[different] / importance[different].mean()
    chance = _chances(importance, most)
    chosen = ((chance.cumsum(0) + 0.5).floor().diff(prepend=chance.new_zeros(1)) > 0).nonzero().flatten()
    some = different[chosen]
    return Sample(x[some], y[some], rows or 0, (counts / chance)[chosen].to(x), importance[chosen])


def _of_classes(weights: Tensor, y: Tensor) -> Tensor | None:
    """Weights that are the same for all rows of a class (n, q), and not for all rows, in float64; None if they are not."""
    if bool((weights == weights[0]).all()):
        return None
    classes, group = torch.unique(y, dim=0, return_inverse=True)
    one = weights.new_empty(len(classes)).index_copy(0, group, weights)
    return weights.double() if 2 * len(classes) <= len(y) and torch.equal(one[group], weights) else None


def _chances(weights: Tensor, number: int) -> Tensor:
    """Chances min(1, c w) that add up to a number, or 1 for all if there are no more."""
    if len(weights) <= number:
        return torch.ones_like(weights)
    chance, sure = weights * (number / weights.sum()), weights < 0
    while bool((chance > 1).any()):
        sure |= chance >= 1
        rest = torch.where(sure, 0, weights)
        chance = torch.where(sure, 1, rest * ((number - int(sure.sum())) / rest.sum()))
    return chance


def raised(
    network: LiftedNetwork,
    weights: list[Affine],
    fit_head: Callable[[LiftedNetwork, list[Affine]], list[Affine]],
    sample: Sample,
) -> tuple[float, list[Affine]]:
    """The factor on every rho for which initial weights, with the head fitted again, have fewer effective parameters than rows, and these
    weights. From a smaller rho a network fits the noise of few rows first, and most of the run goes by before its weights have shrunk; with
    more rows there are more steps, and it makes no clear difference."""
    factor = 1.0
    for _ in range(_FITS if sample.rows < _FEW_ROWS else 0):
        near = Linearised.of(with_rho_factor(network, factor), weights, sample)
        if not near.fits_all or near.needed:
            break
        rises = (_RISE**number for number in range(1, _RISES))
        factor *= next((rise for rise in rises if near.dof_with(rise) < MOST * near.responses), _RISE**_RISES)
        weights = fit_head(with_rho_factor(network, factor), weights)
    return factor, weights


def rho_factor(network: LiftedNetwork, weights: list[Affine], sample: Sample) -> float:
    """The factor on every rho, at most 10 and at least 1/10."""
    penalty = sum(rho_of(network, n) * float(weights[n].w.square().sum()) for n in range(len(weights)))
    if not 0 < penalty < math.inf:
        return 1.0 if penalty else _CHANGE
    near = Linearised.of(network, weights, sample)
    if near.fits_all:
        return 1.0 if near.needed else _RISE
    lam, dof = network.layers[-1].lam, near.dof
    temperature = _temperature(network.loss, near.scores, sample.y, sample.row_weights, dof / near.responses)
    found = lam * temperature * dof / (2 * sample.rows * penalty)
    return min(max(found, 1 / _CHANGE), _CHANGE) if math.isfinite(found) else 1.0


def next_change(factor: float, last: float) -> float:
    """The change of log rho where the evidence asks for a factor after a change `last`: in the same direction, a small one is made longer,
    since weights follow rho slowly, and the evidence at the present weights asks for a part of the way only."""
    asked, small = math.log(factor), math.log(_SMALL)
    if asked * last <= 0 or abs(asked) >= small:
        return asked
    return math.copysign(min(_ONWARD * abs(asked), small), asked)


def _temperature(loss: Loss, u: Tensor, y: Tensor, row_weights: Tensor | None, used: float) -> float:
    """t, where loss / t is minus a log-likelihood: 1 for the cross-entropies, 2 variances for the squared error, estimated from residuals
    of which a fraction `used` has been fitted away; with a loss of bounded slope no row counts as more than ten typical ones."""
    if not loss.invariant:
        return 1.0
    losses, degree = loss.value(u, y), 2.0  # the loss as a power of the residual
    if isinstance(loss, Bounded):
        losses, degree = losses.clamp(max=_TYPICAL * float(losses.median())), 1.0
    return degree * float(reduce.mean(losses, row_weights)) / u.shape[1] / (1 - used)
