"""The public checks can fail: each deliberate mistake is found, and named in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pytest
import torch
from torch import Tensor

from liftednn.activations import FenchelLeakyReLU, FenchelReLU, HardTanh, LeakyReLU, MaxPool, ReLU, Sigmoid
from liftednn.base import Activation, Affine, Box, Divergence, Grain, Loss, Operator, Penalty, Uncertainty
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.losses import CrossEntropy, SoftmaxCrossEntropy, SquaredError
from liftednn.operators import Dense
from liftednn.penalties import L1, L2, LowRank, NonNegative, Orthogonal
from liftednn.robust import BoxBall, FrobeniusBall, Noise
from liftednn.robust.box import BoxTerm
from liftednn.robust.matrix import BallTerm
from liftednn.robust.terms import NoiseTerm
from liftednn.testing import check_activation, check_loss, check_operator, check_penalty, check_uncertainty


class WrongArgmin(ReLU):
    def __call__(self, u: Tensor) -> Tensor:
        return u.relu() + 0.1


class PhiOutsideTheDomain(ReLU):
    def __call__(self, u: Tensor) -> Tensor:
        return u


class HalfGradient(ReLU):
    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return u - z


class SlightlyWrongGradient(Sigmoid):
    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 1.01 * (self(u) - z)


class SmallCurvature(Sigmoid):
    curvature = 0.1


class NotQuadratic(FenchelReLU):
    quadratic = True  # type: ignore[assignment]


class NotJoint(FenchelReLU):
    joint = True


class NotHomogeneous(HardTanh):
    homogeneous = True


class RefitsUpwards(FenchelLeakyReLU):
    def refit(
        self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Grain = "layer"
    ) -> FenchelLeakyReLU:
        return FenchelLeakyReLU(5.0)


class LearnsInSecret(FenchelReLU):
    def refit(self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Grain = "layer") -> Activation:
        return Sigmoid()


class TwoPoints(Activation):
    """phi = sign with D(u, z) = |u - z|^2 on z in {-1, 1}: a domain that is not convex."""

    curvature, quadratic, joint = 2.0, True, False

    def __call__(self, u: Tensor) -> Tensor:
        return torch.where(u < 0, -1.0, 1.0).to(u.dtype)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return torch.where((z.abs() != 1).any(-1), torch.inf, (u - z).square().sum(-1))

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z)

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return self(v + 2 * step * u)


class ConcaveInU(Activation):
    """D(u, z) = |z - u|^2 - 2 |u|^2: the right argmin, the right gradient, not convex in u."""

    curvature, joint = 2.0, False

    def __call__(self, u: Tensor) -> Tensor:
        return u

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return ((z - u).square() - 2 * u.square()).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return 2 * (u - z) - 4 * u

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return (v + 2 * step * u) / (1 + 2 * step)


class WrongProx(Sigmoid):
    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return super().prox(v, u, 1.2 * step)


class ProxOutsideTheDomain(ReLU):
    boxed = False  # type: ignore[assignment]

    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        return torch.where(v > 100, v, super().prox(v, u, step)) - (1.0 if step == 20.0 else 0.0)


class WrongProxInU(ReLU):
    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return v


class WrongBox(FenchelReLU):
    def box(self, u: Tensor) -> Box:
        return Box(0.0, torch.inf, 1.0, 1.1 * u)


class WrongFan(MaxPool):
    def fan(self, width: int) -> int:
        return 2 * width + 2


class WrongShape(MaxPool):
    def __call__(self, u: Tensor) -> Tensor:
        return u


class Float64Only(HardTanh):
    def __call__(self, u: Tensor) -> Tensor:
        return u.clamp(-1, 1).double()


class WrongCap(LeakyReLU):
    def cap(self, z: Tensor) -> Tensor:
        return z / self.alpha + 1


@pytest.mark.parametrize(
    ("activation", "sentence"),
    [
        (WrongArgmin(), "is not the argmin"),
        (PhiOutsideTheDomain(), r"D\(u, phi\(u\)\) must be finite"),
        (HalfGradient(), "grad is wrong|not convex in u with this gradient"),
        (SlightlyWrongGradient(), "grad is wrong|not convex in u with this gradient"),
        (SmallCurvature(), r"curvature 0\.1 is not an upper bound"),
        (NotQuadratic(), "declared quadratic, but D is not"),
        (NotJoint(), "declared jointly convex, but D is not"),
        (NotHomogeneous(), r"declared homogeneous, but D\(3u, 3z\)"),
        (TwoPoints(), "D is not convex in z"),
        (RefitsUpwards(), "refit raises the sum of D"),
        (LearnsInSecret(), "name what it learns in `learned`"),
        (ConcaveInU(), "not convex in u"),
        (WrongProx(), "prox is not a minimiser at step"),
        (ProxOutsideTheDomain(), "prox must land inside the domain"),
        (WrongProxInU("l1"), "prox_u is not a minimiser at step"),
        (WrongBox(), "box and value disagree"),
        (WrongFan(), "they must be inverse"),
        (WrongShape(), "phi gave shape"),
        (Float64Only(), "phi must keep float32"),
        (WrongCap(), "D must be finite in its domain"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Activation) else "",
)
def test_a_broken_activation_is_found(activation: Activation, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_activation(activation)


class HalfGradientSquaredError(SquaredError):
    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return u - z


class LossSmallCurvature(SoftmaxCrossEntropy):
    curvature = 0.05


class ConcaveSquaredError(SquaredError):
    quadratic = False

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return -(u - z).square().sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return -2 * (u - z)


class LossDecodesWrongly(SoftmaxCrossEntropy):
    def decode(self, u: Tensor) -> Tensor:
        return u.argmin(-1)


class LossScoresWrongly(SoftmaxCrossEntropy):
    def score(self, u: Tensor, y: Tensor) -> float:
        return 0.5


class CutSquaredError(SquaredError):
    def encode(self, y: Tensor, width: int) -> Tensor:
        return y[:, :2]


class LossWrongProx(CrossEntropy):
    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return v + step * z


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (HalfGradientSquaredError(), "grad is wrong|not convex in u with this gradient"),
        (LossSmallCurvature(), r"curvature 0\.05 is not an upper bound"),
        (ConcaveSquaredError(), "not convex in u"),
        (LossDecodesWrongly(), r"decode\(encode\(y\)\) must give the labels back"),
        (LossScoresWrongly(), "labels scored against themselves must give 1"),
        (CutSquaredError(), "encode gave shape"),
        (LossWrongProx(), "prox_u is not a minimiser"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Loss) else "",
)
def test_a_broken_loss_is_found(loss: Loss, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_loss(loss)


class WrongRidge(L2):
    @property
    def ridge(self) -> float:
        return 2 * self.rho


class PenaltyWrongProx(L1):
    def prox(self, w: Tensor, step: float) -> Tensor:
        return super().prox(w, 2 * step)


class PenaltyWrongBox(NonNegative):
    def prox(self, w: Tensor, step: float) -> Tensor:
        return w.clamp(min=0) / (1 + 2 * step * self.rho)

    def box(self) -> Box:
        return Box(0.0, torch.inf, self.rho, 0.0)


class NegativePenalty(L2):
    def value(self, w: Tensor) -> Tensor:
        return -super().value(w)


class NonConvexPenalty(L1):
    """rho sum sqrt|w|."""

    def value(self, w: Tensor) -> Tensor:
        return self.rho * w.double().abs().sqrt().sum()

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w


class NotNearest(Orthogonal):
    """Orthonormal rows, by Gram and Schmidt: of the set, but not the nearest."""

    def prox(self, w: Tensor, step: float) -> Tensor:
        return torch.linalg.qr(w.T)[0].T


class NotStill(LowRank):
    def prox(self, w: Tensor, step: float) -> Tensor:
        return 0.9 * super().prox(w, step)


@pytest.mark.parametrize(
    ("penalty", "sentence"),
    [
        (NotNearest(), "another point of the set is better|must leave a point of the set"),
        (NotStill(2), "prox with step 0 must leave a point of the set where it is"),
        (WrongRidge(0.5), r"ridge = rho must mean pi\(w\) = rho \|w\|\^2"),
        (PenaltyWrongProx(0.5), "prox is not a minimiser"),
        (PenaltyWrongBox(0.5), "box and prox disagree"),
        (NegativePenalty(0.5), "must be finite and non-negative"),
        (NonConvexPenalty(0.5), "pi is not convex|prox is not a minimiser"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Penalty) else "",
)
def test_a_broken_penalty_is_found(penalty: Penalty, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_penalty(penalty)


class WrongAdjoint(Dense):
    def adjoint(self, r: Tensor, weights: Affine) -> Tensor:
        return 2 * (r @ weights.w)


class WrongForward(Dense):
    def forward(self, x: Tensor, weights: Affine) -> Tensor:
        return x @ weights.w.T + 2 * weights.b


class WrongShapeForward(Dense):
    def forward(self, x: Tensor, weights: Affine) -> Tensor:
        return (x @ weights.w.T)[:, :1]


class WrongGram(Dense):
    def gram(self, weights: Affine) -> Tensor:
        return weights.w.T @ weights.w + torch.eye(self.in_features, dtype=weights.w.dtype)


class WrongNorm(Dense):
    def norm(self, weights: Affine) -> float:
        return float(weights.w.norm())


@pytest.mark.parametrize(
    ("operator", "sentence"),
    [
        (WrongAdjoint(5, 3), "adjoint fails"),
        (WrongForward(5, 3), r"forward\(x\) must be unfold\(x\) w' \+ b"),
        (WrongShapeForward(5, 3), "forward gave shape"),
        (WrongGram(5, 3), "gram must be adjoint after forward"),
        (WrongNorm(5, 3), "norm must be the spectral norm"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Operator) else "",
)
def test_a_broken_operator_is_found(operator: Operator, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_operator(operator)


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


class StaysWhereItIs(BoxBall):
    def update_weights(self, problem: WeightProblem) -> WeightStep:
        return WeightStep(problem.current, 0.0, 0, "none")


class SlopeOfOne(FrobeniusBall):
    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        return 1.0


class SlopeTooLarge(Noise):
    def slope(self, mean: Callable[[], float], curvature: float, w: Tensor) -> float:
        return 1.01


class PullsAtTheMiddle(BoxBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BoxTerm:
        class Term(BoxTerm):
            def pull(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
                lever = super().pull(w, u, z)[1]
                return self.lam * self.divergence.grad(u, z), lever

        return Term(self, divergence, lam, self.widths(w))


class PushesTwice(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        return NoiseTerm(divergence, lam, 2 * self.covariance(w.shape[1], w))


class NegativeStiffness(BoxBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BoxTerm:
        class Term(BoxTerm):
            def stiffness(self) -> Tensor:
                return -super().stiffness()

        return Term(self, divergence, lam, self.widths(w))


class ForgetsItsShare(FrobeniusBall):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> BallTerm:
        class Term(BallTerm):
            def state(self) -> dict[str, Tensor]:
                return {"hardness": self.hardness}

        return Term(self, divergence, lam, w)


class AnswersWithoutPull(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        class Term(NoiseTerm):
            def answer(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
                z = self.divergence(u)
                return z, *self.pull(w, u, z)

        return Term(divergence, lam, self.covariance(w.shape[1], w))


class AnswersWithAnotherPull(Noise):
    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        class Term(NoiseTerm):
            def answer(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, None]:
                z, pull, _ = super().answer(w, u, g)
                return z, 1.1 * pull, None

        return Term(divergence, lam, self.covariance(w.shape[1], w))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (NothingAdded(0.3), "must be larger"),
        (WrongColumns(0.3), "the same in other units"),
        (WrongTerm(0.5), "push is not the gradient"),
        (IgnoresItself(0.5), "must minimise"),
        (BallAtHalf(0.3), "must minimise"),
        (StaysWhereItIs(0.1), "must minimise"),
        (SlopeOfOne(0.3), "must not be below the term"),
        (SlopeTooLarge(0.3), "must not be below the term"),
        (PullsAtTheMiddle(0.1), "pull is not the gradient of the term in u"),
        (PushesTwice(0.3), "push is not the gradient"),
        (NegativeStiffness(0.1), "negative eigenvalue"),
        (ForgetsItsShare(0.3), "bring back what renew wrote"),
        (AnswersWithoutPull(0.3), "not the argmin over z"),
        (AnswersWithAnotherPull(0.3), "not the gradient of the minimum"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Uncertainty) else "",
)
def test_a_broken_uncertainty_is_found(kind: Uncertainty, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_uncertainty(kind)
