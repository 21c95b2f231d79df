"""Steps that move the outputs of a layer by the same amount in every direction, for networks with several rows for each sample.

Of all steps D with |D gram^(1/2)| <= 1 in the spectral norm, the one of steepest descent is

    D = polar(gradient gram^(-1/2)) gram^(-1/2),    polar(U S V') = U V'

Without gram it is the step of Muon (Jordan and others, 2024). To it is added

    f (gradient of the penalty) gram^-1,    f = <D, gradient> / <gradient gram^-1, gradient>

f times gradient gram^-1 descends as much as D, so that the whole step does not descend where the two gradients cancel. f is smaller where
the penalty would otherwise move w by more than D does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from liftednn.solvers import Factor
from liftednn.step.polar import by_matrix_units, polar
from liftednn.training.metric import Metric

__all__ = ["LEAST_SIZE", "SPECTRAL_TRUST", "SpectralMetric", "spectral_trust"]

# The fraction of their size by which a step of rate 1 moves the outputs, and the least that counts as that size, as a fraction of that of
# the inputs.
SPECTRAL_TRUST, LEAST_SIZE = 0.055, 0.1
# Of the rule that makes steps longer where they are few: the least sum of that fraction over all steps, and its square, times the number of
# steps, over the rows of a batch: motions that are noise add up in squares, and are shorter with more rows; and the largest fraction.
_IN_ALL, _NOISE, _MOST = 9.0, 0.115**2, 0.2

# The largest relative error of a step by rounding to bfloat16, and that of one number.
_ERROR, _BFLOAT16 = 0.1, 2.0**-8


def spectral_trust(steps: int | None, batch: float = 0.0) -> float:
    """The fraction of their size by which a step of rate 1 moves the outputs.

    steps   of the run; None where their number is unknown
    batch   the mean number of rows in a step
    """
    if steps is None:
        return SPECTRAL_TRUST
    steps = max(steps, 1)
    return min(_MOST, max(SPECTRAL_TRUST, _IN_ALL / steps, math.sqrt(_NOISE * batch / steps)))


class SpectralMetric:
    """The geometry of a plain w with spectral steps, which takes gradients that are averaged over steps: the noise of one batch would be as
    large in its steps as all else.

    metric    has the moments; its inverse and allowed are those named here
    root      r with r' r = (gram + d I)^-1, (p, p)
    allowed   what a step of rate 1 moves the layer's outputs by: the mean square, summed over outputs
    penalty   the gradient of the penalty is w times this, for the mean over rows: 2 rho over the rows of a sample, or 0 in the first steps
    rounds    whether products of others than the gradient with root may be taken in bfloat16
    """

    proxed, spectral = False, True

    def __init__(self, metric: Metric) -> None:
        self.metric, self.layer = metric, metric.layer
        self.root, self.allowed, self.penalty = metric.inverse, metric.allowed, torch.zeros_like(metric.shrinkage)
        # The root of gram + d I has a condition number of at most the root of (p + d) / d, d as a fraction of the mean diagonal.
        condition = math.sqrt(1 + len(self.root) / metric.damping) if metric.damping > 0 else math.inf
        self.rounds = _BFLOAT16 * condition <= _ERROR

    def add_rows(self, rows: Sequence[Tensor], row_weights: Sequence[Tensor | None]) -> None:
        self.metric.add_rows(rows, row_weights)

    def refresh(self, curvatures: Sequence[float], extra: Tensor | None = None) -> None:
        (c,), moments = curvatures, self.metric.moments
        assert moments is not None
        self.metric.curvature.fill_(c)
        self.penalty.copy_(self.metric.shrinkage)
        self.root.zero_()
        if c != torch.inf:
            gram = moments.gram
            root = Factor.of(gram, 1.0, self.metric.damped(gram), moments.eps).root()
            self.root[: len(root)] = root

    def set_rho_factor(self, factor: float) -> None:
        self.metric.set_rho_factor(factor)

    def limit(self, allowed: float) -> None:
        self.allowed.fill_(allowed)

    def shorten(self, factor: float) -> None:
        self.allowed.div_(factor**2)

    def step_length(self) -> float:
        """Steps do not depend on the length of the gradient."""
        return 0.0

    def mean_outputs(self, w: Tensor) -> list[Tensor]:
        return self.metric.mean_outputs(w)

    def direction(
        self, w: Tensor, w_gradients: Sequence[Tensor], b_gradients: Sequence[Tensor], samples: int
    ) -> tuple[list[Tensor], Tensor]:
        """As for every geometry, from averaged gradients; an intercept has inputs 1."""
        (g,), (b,), p, mean = w_gradients, b_gradients, w.shape[1], self.metric.mean
        moves_b = self.metric.free[1]
        x = torch.addr(g, b, mean, alpha=-1) if moves_b else g
        root = self.root
        if self.rounds and by_matrix_units(x):
            # Not for the gradient: polar would multiply errors in its small singular values.
            root = root.bfloat16()
            x, shrunk = x @ self.root.T, (w.bfloat16() @ root.T).to(w)
        else:
            x, shrunk = (torch.cat([x, w]) @ root.T).tensor_split(2)  # one product for both
        x = torch.cat([x, b[:, None]], 1) if moves_b else x
        steepest = polar(x[None])[0]
        whole = steepest[:, :p]
        if self.layer.penalty.ridge:
            of_penalty = (self.penalty * (samples * self.layer.operator.positions)) * shrunk
            factor = torch.minimum((steepest * x).sum() / x.square().sum(), steepest.norm() / of_penalty.norm())
            whole = whole + factor.nan_to_num(0.0, 0.0) * of_penalty
        move = (whole.to(root) @ root).to(w)
        shift = torch.addmv(steepest[:, -1], move, mean, alpha=-1) if moves_b else torch.zeros_like(b)
        return [move, shift], (self.allowed / min(x.shape)).sqrt()

    def state(self) -> dict[str, Tensor]:
        return self.metric.state() | {"penalty": self.penalty}

    def load(self, named: dict[str, Tensor]) -> None:
        self.metric.load(named)
        self.penalty.copy_(named["penalty"])
