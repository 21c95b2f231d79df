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
    """How a layer's rows x may differ from what is given, and all that this changes; sizes are in the units of those rows.

    joint      the states of all layers may be updated at once
    per_unit   learned parameters of the layer's activation may differ from unit to unit
    """

    joint: bool = True
    per_unit: bool = True

    @abstractmethod
    def refusal(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        """Why a layer with weights of this shape (out, in) cannot have it; empty if it can."""

    def seen(self, divergence: Divergence, w: Tensor) -> Divergence:
        """The divergence that the rows' energies are of, at fixed weights (out, in)."""
        return divergence

    @abstractmethod
    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        """The robust energy, from the mean over rows of `seen` and the curvature of D in u; concave in the mean."""

    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        """The derivative of `term` in the mean, which is computed if asked for: an X-step is a plain one of `seen` with lam times it."""
        return 1.0

    @abstractmethod
    def update_weights(self, problem: Any) -> Any:
        """The W-step, a `blocks.WeightStep` from a `blocks.WeightProblem`, whose `solve` is the plain W-step."""

    @abstractmethod
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> Any:
        """What mini-batch steps need, for weights like w: a `blocks.RobustTerm`."""

    @abstractmethod
    def deviations(self, width: int) -> Tensor:
        """How far off each of so many inputs may be, (width,), float64."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same, so many times as large."""

    @abstractmethod
    def columns(self, factors: Tensor) -> Self:
        """The same for rows whose columns are multiplied by these, (p,)."""

    @abstractmethod
    def through(self, basis: Tensor) -> Self:
        """The same for rows x @ basis, (p, k): weights w' on those are w' basis' on x."""

    @abstractmethod
    def restrict(self, inputs: Tensor) -> Self | None:
        """The same for x[:, inputs], given by their indices; None where those are certain."""
