"""check_uncertainty finds a fault in every step that an uncertainty owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pytest
from torch import Tensor

from liftednn.base import Divergence, Uncertainty
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.box import BoxTerm
from liftednn.robust.matrix import BallTerm
from liftednn.robust.terms import NoiseTerm
from liftednn.testing import check_uncertainty


class WrongTerm(Noise):
    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean + 0.9 * (super().term(mean, curvature, w) - mean)


class NothingAdded(Noise):
    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean


class WrongColumns(Noise):
    def columns(self, factors: Tensor) -> Self:
        return self


class IgnoresItself(Noise):
    def update_weights(self, problem: WeightProblem) -> WeightStep:
        return problem.solve()


class BallAtHalf(FrobeniusBall):
    def update_weights(self, problem: WeightProblem) -> WeightStep:
        return problem.solve(self.covariance(0.5, problem.width, problem.gram), 2 * problem.layer.lam)


class DoesNotMove(BoxBall):
    def update_weights(self, problem: WeightProblem) -> WeightStep:
        return WeightStep(problem.current, 0.0, 0, "none")


class SlopeOfOne(FrobeniusBall):
    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        return 1.0


class SlopeTooLarge(Noise):
    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        return 1.01


class GradientAtTheMiddle(BoxBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BoxTerm:
        class Term(BoxTerm):
            def gradients(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
                radius_gradient = super().gradients(w, u, z)[1]
                return self.lam * self.divergence.grad(u, z), radius_gradient

        return Term(self, divergence, lam, self.widths(w))


class GradientOfTwiceTheNoise(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        return NoiseTerm(divergence, lam, 2 * self.covariance(w.shape[1], w))


class NegativeCurvature(BoxBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BoxTerm:
        class Term(BoxTerm):
            def added_curvature(self) -> Tensor:
                return -super().added_curvature()

        return Term(self, divergence, lam, self.widths(w))


class StateWithoutItsFraction(FrobeniusBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BallTerm:
        class Term(BallTerm):
            def state(self) -> dict[str, Tensor]:
                return {"divergence_curvature": self.curvature}

        return Term(self, divergence, lam, w)


class StepIgnoresTheGradient(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        class Term(NoiseTerm):
            def x_step(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
                z = self.divergence(u)
                return z, *self.gradients(w, u, z)

        return Term(divergence, lam, self.covariance(w.shape[1], w))


class StepWithAnotherGradient(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        class Term(NoiseTerm):
            def x_step(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
                z, u_gradient, _ = super().x_step(w, u, g)
                return z, 1.1 * u_gradient, None

        return Term(divergence, lam, self.covariance(w.shape[1], w))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (NothingAdded(0.3), "must be larger"),
        (WrongColumns(0.3), "the same in other units"),
        (WrongTerm(0.5), "w_gradient is not the gradient"),
        (IgnoresItself(0.5), "must minimise"),
        (BallAtHalf(0.3), "must minimise"),
        (DoesNotMove(0.1), "must minimise"),
        (SlopeOfOne(0.3), "must not be below the term"),
        (SlopeTooLarge(0.3), "must not be below the term"),
        (GradientAtTheMiddle(0.1), r"gradients\[0\] is not the gradient of the term in u"),
        (GradientOfTwiceTheNoise(0.3), "w_gradient is not the gradient"),
        (NegativeCurvature(0.1), "negative eigenvalue"),
        (StateWithoutItsFraction(0.3), "bring back what update wrote"),
        (StepIgnoresTheGradient(0.3), "does not return the argmin over z"),
        (StepWithAnotherGradient(0.3), "not that of the minimum in u"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Uncertainty) else "",
)
def test_a_broken_uncertainty_is_found(kind: Uncertainty, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_uncertainty(kind)
