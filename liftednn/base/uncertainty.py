"""The protocol of uncertain rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from liftednn.base.divergence import Divergence
from liftednn.base.operator import Operator
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

    def why_not_operator(self, operator: Operator) -> str:
        """Why the states that an operator reads cannot have this uncertainty; empty if they can. By default it must be u = x w' + b."""
        return "" if operator.plain else f"{type(self).__name__} needs an operator u = x w' + b, got {operator!r}"

    def of_rows(self, operator: Operator) -> Uncertainty:
        """For states with this uncertainty, that of the operator's rows, added up over positions. Required where `why_not_operator` allows
        other operators than u = x w' + b."""
        return self

    def robust_divergence(self, divergence: Divergence, w: Tensor) -> Divergence:
        """The divergence that replaces D at fixed weights (out, in)."""
        return divergence

    @abstractmethod
    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        """The robust energy, from the mean over rows of `robust_divergence` and the curvature of D in u; concave in the mean."""

    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        """The derivative of `term` in the mean; `mean()` is called only if needed. The X-step has `robust_divergence` and lam times it."""
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
