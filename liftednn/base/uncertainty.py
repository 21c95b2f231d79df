"""The protocol of uncertain rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from liftednn.base.divergence import Divergence
from liftednn.base.penalty import Penalty

__all__ = ["Uncertainty"]


class Uncertainty(ABC):
    """How the true rows x of a layer may differ from the given ones, and the robust term that follows; sizes are in the units of x.

    joint      the states of all layers may be updated at once
    per_unit   learned parameters of the layer's activation may differ from unit to unit
    """

    joint: bool = True
    per_unit: bool = True

    @abstractmethod
    def why_not(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        """Why a layer with weights of this shape (out, in) cannot have this uncertainty; empty if it can."""

    def seen(self, divergence: Divergence, w: Tensor) -> Divergence:
        """The divergence that replaces D at fixed weights (out, in)."""
        return divergence

    @abstractmethod
    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        """The robust energy, from the mean over rows of `seen` and the curvature of D in u; concave in the mean."""

    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        """The derivative of `term` in the mean; `mean()` is called only if needed. The X-step is that of `seen` with lam times it."""
        return 1.0

    @abstractmethod
    def update_weights(self, problem: Any) -> Any:
        """The W-step: a `blocks.WeightProblem` -> a `blocks.WeightStep`. `problem.solve` is the plain W-step."""

    @abstractmethod
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> Any:
        """The `blocks.RobustTerm` that mini-batch steps use, in the shape, precision and device of the weights w."""

    @abstractmethod
    def deviations(self, width: int) -> Tensor:
        """The size of the uncertainty of each input, (width,), float64."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same uncertainty, `factor` times as large."""

    @abstractmethod
    def columns(self, factors: Tensor) -> Self:
        """The same uncertainty for rows whose columns are multiplied by `factors`, (p,)."""

    @abstractmethod
    def through(self, basis: Tensor) -> Self:
        """The same uncertainty for rows x @ basis, basis (p, k): weights w on them are weights w basis' on x."""

    @abstractmethod
    def restrict(self, inputs: Tensor) -> Self | None:
        """The same uncertainty for x[:, inputs], an index tensor; None where these inputs have none."""
