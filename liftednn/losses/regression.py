"""Losses of real responses whose slope is bounded (sec. 3, "regression"), so that an outlier has a bounded influence.

All three are one function of the residual r = u - y, written by its slope g between -down and up and a softness s >= 0,

    L(y, u) = sum_j  max over -down <= g <= up of  g r_j - s/2 g^2,      dL/du = g* = clip(r / s, -down, up)

At s = 0 it is the pinball  up r_+ + down r_-,  which has a kink; at s > 0 it is the Moreau envelope of that, a parabola of curvature
1/s between r = -s down and r = s up, and the same line, lowered by s/2 slope^2, beyond.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.activations import Identity
from liftednn.base import Loss
from liftednn.functional import quantile, root
from liftednn.losses.squared import real_responses

__all__ = ["AbsoluteError", "Bounded", "Huber", "Quantile"]


class Bounded(Loss):
    """A loss with the slope tilt + clip(r / softness - tilt, -half, half), where up = half + tilt and down = half - tilt.

    `score` is D^2 = 1 - L / L of the best constant, that of scikit-learn's d2_absolute_error_score and d2_pinball_score: 1 at best, 0 for
    the best constant. It uses the loss without smoothing, summed over outputs before the division.
    """

    unitwise, invariant = True, True
    classes, link = False, Identity()

    @property
    @abstractmethod
    def softness(self) -> float:
        """s; 0 where there is a kink."""

    @property
    @abstractmethod
    def half(self) -> float:
        """(up + down) / 2."""

    @abstractmethod
    def tilt(self, like: Tensor) -> Tensor | float:
        """(up - down) / 2, a number or one for each output, on the device of `like`."""

    @abstractmethod
    def scaled(self, units: float) -> Self:
        """The loss of responses times `units`: scaled(units) at (units y, units u) is L(y, u) up to a factor."""

    @abstractmethod
    def smoothed(self, smoothing: float) -> Self:
        """The loss with this smoothing of its kink, if it has one; 0 for the exact loss."""

    @abstractmethod
    def constants(self, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """The constant prediction of least loss for each column of y (n, p), (p,), rows weighted by `row_weights`."""

    @property
    def curvature(self) -> float:
        return 1 / self.softness if self.softness else torch.inf

    def __call__(self, u: Tensor) -> Tensor:
        return u

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        slope = self.grad(u, z)
        return (slope * (u - z - self.softness / 2 * slope)).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        tilt, r = self.tilt(u), u - z
        return tilt + (
            (r / self.softness - tilt).clamp(-self.half, self.half) if self.softness else self.half * r.sign()
        )

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        tilt = self.tilt(v)
        lean = ((v - z) / (self.softness + step) - tilt).clamp(-self.half, self.half)
        moved = v - step * (tilt + lean)
        # At the kink the prox is exactly z; `moved` would differ from it by rounding.
        return moved if self.softness else torch.where(lean.abs() < self.half, z, moved)

    def effective_curvature(self, u: Tensor, z: Tensor, row_weights: Tensor | None = None) -> float:
        """The mean of min(1/s, half / |r - s tilt|), the curvature of the parabola that touches L at r and lies above it."""
        off = (u - z - self.softness * self.tilt(u)).abs()
        curvature = (self.half / off.clamp(min=max(self.half * self.softness, torch.finfo(u.dtype).eps))).mean(-1)
        return float(reduce.mean(curvature, row_weights))

    def encode(self, y: Tensor, width: int) -> Tensor:
        return real_responses(y, width)

    def decode(self, u: Tensor) -> Tensor:
        return u

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        u, y, loss = u.double(), y.double(), self.smoothed(0.0)
        worst = reduce.total(loss.value(loss.constants(y, row_weights).expand_as(y), y), row_weights)
        return float(1 - reduce.total(loss.value(u, y), row_weights) / worst) if worst > 0 else 0.0


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < torch.inf:
        raise ValueError(f"smoothing must be a number of at least 0, got {smoothing}")


@dataclass(frozen=True)
class AbsoluteError(Bounded):
    """L(y, u) = |u - y|_1, minimised by the median; infinite curvature. Responses are real, (n,) or (n, p).

    With a smoothing s > 0: r^2 / (2s) for |r| <= s and |r| - s/2 beyond, curvature 1/s. It is below |r| by at most s/2, so its
    minimiser's exact loss is at most s/2 per output above the minimum.

    >>> lnn.losses.AbsoluteError().value(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([3.])
    """

    smoothing: float = 0.0
    half = 1.0

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)

    @property
    def softness(self) -> float:
        return self.smoothing

    def tilt(self, like: Tensor) -> float:
        return 0.0

    def scaled(self, units: float) -> AbsoluteError:
        return replace(self, smoothing=units * self.smoothing)

    def smoothed(self, smoothing: float) -> AbsoluteError:
        return replace(self, smoothing=smoothing)

    def constants(self, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        return quantile(y, 0.5, row_weights)


@dataclass(frozen=True)
class Huber(Bounded):
    """L(y, u) = sum of r^2 for |r| <= delta and 2 delta |r| - delta^2 beyond (Huber, 1964); curvature 2.

    Equal to SquaredError() for large delta, and to twice torch's HuberLoss. Responses are real, (n,) or (n, p). A good
    delta is 1.345 standard deviations of the noise (95% efficiency for normal noise); 0.3 is that for responses of variance 1 and R^2 .95.

    >>> lnn.losses.Huber(delta=1.0).value(torch.tensor([[0.5], [3.0]]), torch.zeros(2, 1)).tolist()
    [0.25, 5.0]
    """

    delta: float = 0.3
    softness = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.delta < torch.inf:
            raise ValueError(f"delta must be positive, got {self.delta}: for delta = 0, give AbsoluteError()")

    @property
    def half(self) -> float:
        return 2 * self.delta

    def tilt(self, like: Tensor) -> float:
        return 0.0

    def effective_curvature(self, u: Tensor, z: Tensor, row_weights: Tensor | None = None) -> float:
        """Twice the curvature, which most residuals have: a loss of linear growth rises too slowly for divergence to be detected, so steps
        are half as long."""
        return 2 * self.curvature

    def scaled(self, units: float) -> Huber:
        return Huber(units * self.delta)

    def smoothed(self, smoothing: float) -> Huber:
        return self

    def constants(self, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """Where the slopes add up to 0, column by column."""
        return root(lambda c: reduce.mean(self.grad(c.expand_as(y), y), row_weights).to(y), *reduce.ends(y))


@dataclass(frozen=True)
class Quantile(Bounded):
    """L(y, u) = sum_j q_j (y_j - u_j)_+ + (1 - q_j) (u_j - y_j)_+, the pinball loss, minimised by the q-quantile (Koenker and
    Bassett, 1978); infinite curvature. Responses are real, (n,) or (n, p).

    q           the level, one for all outputs or one each; with one each, a single response, (n,) or (n, 1), is used for every output
    smoothing   s > 0 gives the Moreau envelope, curvature 1/s; below the pinball by at most s/2 max(q, 1 - q)^2 per output, so its
                minimiser's exact loss is at most that much above the minimum

    >>> lnn.losses.Quantile(0.75).value(torch.tensor([[2.0], [-2.0]]), torch.zeros(2, 1)).tolist()
    [0.5, 1.5]
    """

    q: float | tuple[float, ...] = 0.5
    smoothing: float = 0.0
    half = 0.5

    def __post_init__(self) -> None:
        _check_smoothing(self.smoothing)
        if not isinstance(self.q, (int, float)):
            object.__setattr__(self, "q", tuple(float(level) for level in self.q))
        if not self.levels or not all(0 < level < 1 for level in self.levels):
            raise ValueError(f"q must lie between 0 and 1, a number or one for each output, got {self.q}")

    @property
    def levels(self) -> tuple[float, ...]:
        return self.q if isinstance(self.q, tuple) else (float(self.q),)

    @property
    def uniform(self) -> bool:
        return not isinstance(self.q, tuple)

    @property
    def softness(self) -> float:
        return self.smoothing

    def tilt(self, like: Tensor) -> Tensor | float:
        return _tilts(self.q, like.dtype, like.device) if isinstance(self.q, tuple) else 0.5 - self.q

    def scaled(self, units: float) -> Quantile:
        return replace(self, smoothing=units * self.smoothing)

    def smoothed(self, smoothing: float) -> Quantile:
        return replace(self, smoothing=smoothing)

    def constants(self, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        return quantile(y, 0.5 - self.tilt(y), row_weights)

    def encode(self, y: Tensor, width: int) -> Tensor:
        if isinstance(self.q, tuple) and len(self.q) != width:
            raise ValueError(
                f"q has {len(self.q)} levels, but the network has {width} outputs: give one level for each column of y, or fit each "
                "column alone"
            )
        shared = isinstance(self.q, tuple) and (y.ndim == 1 or y.shape[1:] == (1,))
        return y.reshape(-1, 1).expand(-1, width) if shared else real_responses(y, width)


@lru_cache
def _tilts(q: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cached: a recorded CUDA graph cannot copy from the CPU."""
    return torch.tensor([0.5 - level for level in q], dtype=dtype, device=device)
