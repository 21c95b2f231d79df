"""The public checks can fail: each deliberate mistake is found, and named in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from liftednn.activations import (
    FenchelClip,
    FenchelLeakyReLU,
    FenchelReLU,
    HardTanh,
    LeakyReLU,
    MaxPool,
    MaxPoolReLU,
    Pooled,
    ReLU,
    Scaled,
    Sigmoid,
    Simplex,
    Softmax,
    Tanh,
)
from liftednn.base import Activation, Box, Granularity, Loss, Operator, Penalty, SelfAdjoint
from liftednn.functional import soft_threshold
from liftednn.losses import (
    AbsoluteError,
    CrossEntropy,
    Huber,
    Matching,
    Quantile,
    SoftmaxCrossEntropy,
    Split,
    SquaredError,
)
from liftednn.operators import Conv1d, Dense, Sum
from liftednn.penalties import L1, L2, Ball, GroupL2, LowRank, Mask, NonNegative, NoPenalty, Orthogonal
from liftednn.testing import check_activation, check_loss, check_operator, check_penalty
from tests.shaped import Halves

T = TypeVar("T")
# What is broken, its method or attribute, what stands there instead, and words of the sentence.
Fault = tuple[Any, str, Any, str]


def planted(good: T, name: str, broken: Any) -> T:
    """The same object, but for one method or attribute."""
    kind: Any = type(f"Broken{type(good).__name__}", (type(good),), {name: broken})
    found = kind.__new__(kind)
    vars(found).update(vars(good))
    return found  # type: ignore[no-any-return]


def found(check: Callable[[Any], None], fault: Fault) -> None:
    good, name, broken, words = fault
    with pytest.raises((AssertionError, TypeError), match=words):
        check(planted(good, name, broken))


def label(fault: Fault) -> str:
    return f"{type(fault[0]).__name__}.{fault[1]}"


class Unlimited(FenchelLeakyReLU):
    """`refit` ignores its own limits."""

    def refit(
        self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Granularity = "layer"
    ) -> FenchelLeakyReLU:
        return ALPHA.refit(u, z, sample_weight, per)


class PerUnit(FenchelReLU):
    """For six units alone."""

    def __call__(self, u: Tensor) -> Tensor:
        return u.relu() * torch.ones(6).to(u)


class MeanSquaredError(SquaredError):
    """Divided by the number of rows, as if a loss were their mean."""

    quadratic = homogeneous = False

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return super().value(u, z) / len(u)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return super().grad(u, z) / len(u)


class Largest(Penalty):
    """rho max |w|, whose prox divides by its step."""

    def value(self, w: Tensor) -> Tensor:
        return 0.1 * w.double().abs().max()

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w - 0.1 * step * Ball(1.0, "l1").prox(w / (0.1 * step), 1.0)


class Uncut(L2):
    """A penalty that cannot be restricted."""

    def restrict(self, outputs: Tensor, inputs: Tensor) -> Penalty:
        raise ValueError("not for a part of the weights")


ALPHA = FenchelLeakyReLU(0.3)
GRADIENT = "grad is wrong|not convex in u with this gradient"
ACTIVATIONS: list[Fault] = [
    (ReLU(), "__call__", lambda self, u: u.relu() + 0.1, "is not the argmin"),
    (ReLU(), "__call__", lambda self, u: u, r"D\(u, phi\(u\)\) must be finite"),
    (MaxPool(), "__call__", lambda self, u: u, "phi gave shape"),
    (HardTanh(), "__call__", lambda self, u: u.clamp(-1, 1).double(), "phi must keep float32"),
    (ReLU(), "value", lambda self, u, z: ReLU.value(self, u, z)[:, None], "value gave shape|is not the argmin"),
    (Sigmoid(), "value", lambda self, u, z: Sigmoid.value(self, u, z) - 2 * u.square().sum(-1), "not convex in u"),
    (ReLU(), "grad", lambda self, u, z: u - z, GRADIENT),
    (Sigmoid(), "grad", lambda self, u, z: 1.01 * (self(u) - z), GRADIENT),
    (LeakyReLU(0.2), "grad", lambda self, u, z: 1.5 * (u - z), GRADIENT),
    (
        Sigmoid(),
        "prox",
        lambda self, v, u, step: Sigmoid.prox(self, v, u, 1.2 * step),
        "prox is not a minimiser at step",
    ),
    (Simplex(), "prox", lambda self, v, u, step: v, "D must be finite|prox must land inside the domain|not the argmin"),
    (ReLU("l1"), "prox_u", lambda self, v, z, step: v, "prox_u is not a minimiser at step"),
    (FenchelReLU(), "prox_u", lambda self, v, z, step: v + step * z, "prox_u is not a minimiser at step"),
    (FenchelReLU(), "argmin", lambda self, u, g: self(u), r"argmin\(u, g\) is not the argmin"),
    (Tanh(), "argmin", lambda self, u, g: self(u - 0.9 * g), r"argmin\(u, g\) is not the argmin"),
    (Softmax(), "argmin", lambda self, u, g: self(u + g), r"argmin\(u, g\) is not the argmin"),
    (HardTanh(), "argmin", lambda self, u, g: u - g / 2, r"argmin\(u, g\) is not the argmin.*outside the domain"),
    (ReLU(), "prox_joint", lambda self, a, b, step: (a, b.relu()), "prox_joint is not a minimiser at step"),
    (LeakyReLU(), "prox_joint", Activation.prox_joint, "has no joint prox: implement it"),
    (FenchelReLU(), "box", lambda self, u: Box(0.0, torch.inf, 1.0, 1.1 * u), "box and value disagree"),
    (FenchelReLU(), "box", lambda self, u: Box(0.1, torch.inf, 1.0, u), "box and prox disagree"),
    (Sigmoid(), "boxed", True, "is not quadratic in z on a box"),
    (FenchelReLU(), "__call__", lambda self, u: u.clamp_(min=0), "phi must not write to its arguments"),
    (FenchelReLU(), "grad", lambda self, u, z: (u.relu() - z).double(), "grad must keep float32"),
    (FenchelReLU(), "prox", lambda self, v, u, step: FenchelReLU().prox(v, u, step).double(), "prox must keep float32"),
    (
        Scaled(Softmax()),
        "refit",
        lambda self, u, z, row_weights=None, per="layer": (
            self if u.dtype == torch.float32 else Scaled(Softmax()).refit(u, z, row_weights, per)
        ),
        "refit gives another scale in float32",
    ),
    (FenchelReLU(), "argmin", lambda self, u, g: (u - g).relu().double(), "argmin must keep float32"),
    (ReLU("l1"), "prox_u", lambda self, v, z, step: ReLU("l1").prox_u(v, z, step).double(), "prox_u must keep float32"),
    (FenchelReLU(), "restrict", lambda self, units: PerUnit(), "restrict.units. must give the states .* it fails"),
    (LeakyReLU(), "cap", lambda self, z: z / self.alpha + 1, "D must be finite in its domain"),
    (MaxPool(), "cap", lambda self, z: MaxPool.cap(self, z) - 1, "cap is not the largest u that z allows"),
    (LeakyReLU(), "capped", False, "D must be finite in its domain"),
    (ReLU(), "capped", True, "does not bound u by z"),
    (
        ALPHA,
        "refit",
        lambda self, u, z, row_weights=None, per="layer": FenchelLeakyReLU(5.0),
        "refit raises the sum of D",
    ),
    (
        ALPHA,
        "refit",
        lambda self, u, z, row_weights=None, per="layer": self,
        "refit is not the minimiser: another alpha",
    ),
    (
        ALPHA,
        "refit",
        lambda self, u, z, row_weights=None, per="layer": ALPHA.refit(u, z, None, per),
        "refit is not the minimiser",
    ),
    (
        ALPHA,
        "refit",
        lambda self, u, z, row_weights=None, per="layer": ALPHA.refit(u, z, row_weights),
        "refit per unit must give one entry each",
    ),
    (
        FenchelReLU(),
        "refit",
        lambda self, u, z, row_weights=None, per="layer": Sigmoid(),
        "name what it learns in `learned`",
    ),
    (ALPHA, "learned", (), "name what it learns in `learned`"),
    (Unlimited(0.3), "limits", (0.29, 0.31), "refit leaves `limits`"),
    (FenchelClip(), "summed", True, "refit does not weight rows by sample_weight, or is not `summed`"),
    (
        Scaled(),
        "restrict",
        lambda self, units: Scaled(Tanh(), 2.0),
        r"restrict\(units\) must give the states of those units",
    ),
    (MaxPool(), "width", lambda self, p: p // 3, "they must be inverse"),
    (MaxPool(), "preactivation_width", lambda self, width: 2 * width + 2, "they must be inverse"),
    (Sigmoid(), "curvature", 0.1, r"curvature 0\.1 is not an upper bound"),
    (FenchelReLU(), "quadratic", True, "declared quadratic, but D is not"),
    (FenchelReLU(), "joint", True, "declared jointly convex, but D is not"),
    (HardTanh(), "homogeneous", True, r"declared homogeneous, but D\(3u, 3z\)"),
    (Softmax(), "unitwise", True, "declared unitwise, but D is not a sum over units"),
    (MaxPool(), "unitwise", True, "declared unitwise, but there are not as many states"),
    (
        FenchelLeakyReLU(torch.linspace(0.1, 0.9, 6).double()),
        "uniform",
        True,
        "declared uniform, but D is not a sum over units",
    ),
    (Softmax(), "uniform", True, "declared uniform, but not unitwise"),
    (Softmax(), "separable", True, "does not act on every unit alone and alike"),
    (MaxPool(), "by_unit", lambda self, z: (MaxPool(1), z), "by_unit gave targets of shape"),
    (MaxPool(), "by_unit", lambda self, z: (MaxPool(1), self.cap(z) + 1), "by_unit gives another D"),
    (ReLU(), "by_unit", lambda self, z: (Softmax(), z), "by_unit gives a divergence that is not uniform"),
    (MaxPoolReLU(), "state_shape", lambda self, shape: shape, "state_shape.* does not have 6 entries"),
    (MaxPoolReLU(), "_spread", lambda self, z: z.repeat_interleave(4, -1).roll(1, -1), "D.* must be finite"),
    (Pooled(), "why_not_exact", "", "not convex in u"),
    (Pooled(), "grad", lambda self, u, z: 1.01 * Pooled.grad(self, u, z), GRADIENT),
    (Pooled(), "grad", lambda self, u, z: Pooled.grad(self, u, z).roll(1, -1), GRADIENT),
    (Pooled(), "curvature", 0.9, r"curvature 0\.9 is not an upper bound"),
    (Pooled(shape=(-1, 3, 4), stride=1), "_overlap", 1, GRADIENT),
    (Pooled(shape=(-1, 3, 4), stride=1), "curvature", 3.0, r"curvature 3\.0 is not an upper bound"),
    (Pooled(), "argmin", lambda self, u, g: self(u), r"argmin\(u, g\) is not the argmin"),
    (Pooled(), "phi_and_x_step", lambda self, u: (0 * self(u), Pooled.phi_and_x_step(self, u)[1]), "give phi"),
    (Pooled(), "phi_and_x_step", lambda self, u: (self(u), lambda g, lam: (self(u), u)), "must give argmin"),
    (
        Tanh(),
        "phi_and_x_step",
        lambda self, u: (self(u), lambda g, lam: 2 * (self.argmin(u, g / lam),)),
        "must give lam",
    ),
]


@pytest.mark.parametrize("fault", ACTIVATIONS, ids=label)
def test_a_broken_activation_is_found(fault: Fault) -> None:
    found(check_activation, fault)


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


@pytest.mark.parametrize(
    ("activation", "sentence"),
    [(TwoPoints(), "D is not convex in z"), (ConcaveInU(), "not convex in u")],
    ids=["z", "u"],
)
def test_what_is_not_convex_is_found(activation: Activation, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_activation(activation)


LOSSES: list[Fault] = [
    (SoftmaxCrossEntropy(), "__call__", lambda self, u: (-u).softmax(-1), r"loss\(u\) is not link\(u\)"),
    (SquaredError(), "__call__", lambda self, u: 2 * u, r"loss\(u\) is not link\(u\)"),
    (SoftmaxCrossEntropy(), "link", Sigmoid(), r"loss\(u\) is not link\(u\)"),
    (SquaredError(), "value", lambda self, u, z: -(u - z).square().sum(-1), "not convex in u"),
    (SquaredError(), "grad", lambda self, u, z: u - z, GRADIENT),
    (SoftmaxCrossEntropy(), "curvature", 0.05, r"curvature 0\.05 is not an upper bound"),
    (CrossEntropy(), "prox_u", lambda self, v, z, step: v + step * z, "prox_u is not a minimiser"),
    (Huber(), "prox_u", lambda self, v, z, step: v, "prox_u is not a minimiser"),
    (SquaredError(), "encode", lambda self, y, width: y[:, :2], "encode gave shape"),
    (SquaredError(), "encode", lambda self, y, width: y.clamp_(-1, 1), "encode must not write to its arguments"),
    (SquaredError(), "encode", lambda self, y, width: y.flip(0), "the response at which the loss is least"),
    (SoftmaxCrossEntropy(), "decode", lambda self, u: u.argmin(-1), r"decode\(encode\(y\)\) must give the labels back"),
    (AbsoluteError(), "decode", lambda self, u: u + 1, "the response at which the loss is least"),
    (SoftmaxCrossEntropy(), "score", lambda self, u, y: 0.5, "labels scored against themselves must give 1"),
    (SoftmaxCrossEntropy(), "score", lambda self, u, y: 1.0, "score must be higher for better scores"),
    (
        SquaredError(),
        "score",
        lambda self, u, y: -SquaredError.score(self, u, y),
        "score must be higher for better scores",
    ),
    (Matching(), "score", lambda self, u, y: SquaredError().score(u, y), "must have score 1|score must be higher"),
    (SoftmaxCrossEntropy(), "classes", False, r"classes is False, but decode gives torch\.int64"),
    (SquaredError(), "classes", True, "classes is True, but decode gives"),
    (
        SquaredError(),
        "effective_curvature",
        lambda self, u, z, row_weights=None: -2.0,
        "effective_curvature must be positive",
    ),
    (
        AbsoluteError(0.1),
        "effective_curvature",
        lambda self, u, z, row_weights=None: AbsoluteError.effective_curvature(self, u, z),
        "effective_curvature does not weight rows by row_weights",
    ),
    (
        SquaredError(),
        "effective_curvature",
        lambda self, u, z, row_weights=None: 1e-3,
        "below the mean curvature",
    ),
    (SquaredError(), "effective_curvature", lambda self, u, z, row_weights=None: 5.0, "at most twice the curvature"),
    (
        SquaredError(),
        "score",
        lambda self, u, y, row_weights=None: SquaredError.score(self, u, y),
        "score does not weight rows by row_weights",
    ),
    (SquaredError(), "grad", lambda self, u, z: 2 * (u - z).double(), "grad must keep float32"),
    (SquaredError(), "hessian_vectors", lambda self, u, z: u, "hessian_vectors gave shape"),
    (
        SoftmaxCrossEntropy(),
        "combined_hessian_vectors",
        lambda self, u, z, coefficients: coefficients[:, None] * u,
        "combined_hessian_vectors are not the sums",
    ),
    (
        SoftmaxCrossEntropy(),
        "hessian_vectors",
        lambda self, u, z: 1.1 * SoftmaxCrossEntropy.hessian_vectors(self, u, z),
        "hessian_vectors make up neither",
    ),
    (Split(), "invariant", True, "declared invariant, but L"),
    (Huber(), "quadratic", True, "declared quadratic, but D is not"),
    (Huber(), "homogeneous", True, "declared homogeneous, but D"),
    (SoftmaxCrossEntropy(), "unitwise", True, "declared unitwise, but D is not a sum over units"),
    (Quantile((0.1, 0.3, 0.5, 0.6, 0.8, 0.9)), "uniform", True, "declared uniform, but D"),
    (SoftmaxCrossEntropy(), "separable", True, "does not act on every unit alone and alike"),
    (SquaredError(), "by_unit", lambda self, z: (self, 2 * z), "by_unit gives another D"),
]


class CountError(SquaredError):
    """Of counts, with logarithms as scores: its curvature has no bound."""

    curvature, quadratic, homogeneous, invariant, uniform, unitwise, separable = 10.0, *[False] * 6

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return (u.exp() - z * u).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return u.exp() - z


def test_a_curvature_that_grows_with_the_scores_is_found() -> None:
    with pytest.raises(AssertionError, match=r"curvature 10\.0 is not an upper bound"):
        check_loss(CountError())


@pytest.mark.parametrize("fault", LOSSES, ids=label)
def test_a_broken_loss_is_found(fault: Fault) -> None:
    found(check_loss, fault)


MASK = Mask(torch.arange(24).reshape(4, 6) % 3 != 0, 0.5)
PENALTIES: list[Fault] = [
    (L2(0.5), "value", lambda self, w: -L2.value(self, w), "must be finite and non-negative"),
    (L1(0.5), "value", lambda self, w: 0.5 * w.abs().sqrt().sum(), "pi is not convex"),
    (L1(0.5), "value", lambda self, w: 0.5 * w.abs().sum(1), "value gave shape"),
    (NonNegative(0.5), "value", lambda self, w: NonNegative(0.5).value(w.clamp_(min=0)), "value must not write"),
    (L1(0.5), "prox", lambda self, w, step: L1.prox(self, w, 2 * step), "prox is not a minimiser"),
    (
        LowRank(2),
        "prox",
        lambda self, w, step: 0.9 * LowRank.prox(self, w, step),
        "must leave a point of the set where it is",
    ),
    (
        Orthogonal(),
        "prox",
        lambda self, w, step: torch.linalg.qr(w.T)[0].T,
        "prox is not a minimiser|must leave a point of the set",
    ),
    (Orthogonal(), "minimiser", lambda self, cross, ridge: self.prox(ridge(0.0), 0.0), "minimiser is not the argmin"),
    (LowRank(2), "minimiser", lambda self, cross, ridge: self.prox(ridge(0.0), 0.0), "minimiser is not the argmin"),
    (
        LowRank(2, 0.5),
        "minimiser",
        lambda self, cross, ridge: LowRank(2).minimiser(cross, ridge),
        "minimiser is not the argmin",
    ),
    (L2(0.5), "minimiser", lambda self, cross, ridge: ridge(2 * self.rho), "minimiser is not the argmin"),
    (L1(0.5), "minimiser", lambda self, cross, ridge: self.prox(ridge(0.0), self.rho), "minimiser is not the argmin"),
    (L2(0.5), "ridge", 1.0, r"ridge = rho must mean pi\(w\) = rho \|w\|\^2"),
    (NonNegative(0.5), "box", lambda self: Box(0.0, torch.inf, 2.0, 0.0), "prox is not a minimiser"),
    (L1(0.05), "prox", lambda self, w, step: soft_threshold(w, 0.4 * self.rho), "prox is not a minimiser, with step"),
    (
        L1(0.05),
        "prox",
        lambda self, w, step: soft_threshold(w.double(), step * self.rho),
        "prox must keep float32",
    ),
    (
        NoPenalty(),
        "value",
        lambda self, w: torch.where(w.max() > 4, torch.inf, w.new_zeros(())),
        r"declare `scale_sensitive`|must be finite and non-negative at prox\(w\), got inf",
    ),
    (L2(0.5), "boxed", True, "is not quadratic on a box"),
    (LowRank(1), "convex", True, "pi is not convex"),
    (MASK, "restrict", lambda self, outputs, inputs: Mask(None, 0.5), r"restrict\(outputs, inputs\) must be as if"),
    (MASK, "restrict", lambda self, outputs, inputs: self, r"restrict\(outputs, inputs\) does not fit"),
    (L2(0.5), "restrict", lambda self, outputs, inputs: L2(1.0), r"restrict\(outputs, inputs\) must be as if"),
    (MASK, "fits", lambda self, shape: True, "fits allows weights of shape"),
    (NoPenalty(), "fits", lambda self, shape: False, "fits says that no weights of shape"),
    (Ball(), "scale_sensitive", False, "leave the domain: declare `scale_sensitive`"),
]


def test_a_penalty_on_groups_of_columns_passes() -> None:
    check_penalty(GroupL2(0.1, by="input", size=2))


@pytest.mark.parametrize("fault", PENALTIES, ids=label)
def test_a_broken_penalty_is_found(fault: Fault) -> None:
    found(check_penalty, fault)


MIXED = Sum(Dense(4, 3), (True, True, False), (False, False, True))
PAIRS = Conv1d((4, 5), 6, 2, groups=2)
OPERATORS: list[Fault] = [
    (Dense(5, 3), "adjoint", lambda self, r, weights, index=0: 2 * (r @ weights.w), "adjoint fails"),
    (Dense(5, 3), "adjoint", lambda self, r, weights, index=0: (r @ weights.w)[:, :1], "adjoint gave shape"),
    (
        MIXED,
        "adjoint",
        lambda self, r, weights, index=0: r if index == 2 else r @ weights.w,
        "must return a new tensor",
    ),
    (
        Dense(5, 3),
        "adjoint",
        lambda self, r, weights, index=0: r.double() @ weights.w.double(),
        "adjoint .* keep float32",
    ),
    (
        Dense(5, 3),
        "weight_gradient",
        lambda self, xs, u: Dense(5, 3).weight_gradient([xs[0].mul_(1.5)], u),
        "weight_gradient",
    ),
    (Dense(5, 3), "forward", lambda self, xs, w: xs[0] @ w.w.T + 2 * w.b, "must be fold"),
    (Dense(5, 3), "forward", lambda self, xs, w: (xs[0] @ w.w.T)[:, :1], "forward gave shape"),
    (Dense(5, 3), "forward", lambda self, xs, w: xs[0] @ w.w.T + w.b + xs[0][:, :3], "declare `skips`"),
    (
        Halves(),
        "rows",
        lambda self, xs: xs[0].view(-1, 2, 4).transpose(0, 1).reshape(-1, 4),
        "rows of a sample must follow",
    ),
    (Dense(5, 3), "rows", lambda self, xs: xs[0][:, :4], "rows gave shape"),
    (Halves(), "targets", lambda self, u: u, "targets gave shape"),
    (Halves(), "fold", lambda self, targets: targets.view(-1, 6).flip(1), "fold must be the inverse"),
    (Dense(5, 3), "weight_gradient", lambda self, xs, g: 2 * g.T @ xs[0], "weight_gradient.* must be targets"),
    (Dense(5, 3), "weight_gradient", lambda self, xs, g: xs[0].T @ g, "weight_gradient gave shape"),
    (Dense(5, 3), "bias_gradient", lambda self, g: g.mean(0), "bias_gradient.* must be the sum"),
    (Dense(5, 3), "bias_gradient", lambda self, g: g.sum(), "bias_gradient gave shape"),
    (MIXED, "offset", lambda self, xs: 2 * xs[2], "adjoint fails"),
    (MIXED, "forward", lambda self, xs, w: (xs[0] + xs[1]) @ w.w.T + w.b, "offset must be the part of forward"),
    (MIXED, "skips", False, "adjoint fails"),
    (Dense(5, 3), "normal", lambda self, weights, index=0: SelfAdjoint(5, lambda x: x, None), "adjoint after forward"),
    (Dense(5, 3), "norm", lambda self, weights, index=0: 0.5, "norm must bound the spectral norm"),
    (Dense(5, 3), "resized", lambda self, inputs, outputs: Dense(outputs, inputs), "resized"),
    (Halves(), "plain", True, "declared plain, but it has several positions"),
    (Dense(5, 3), "weight_shape", (15,), "weight_shape must be"),
    (Dense(5, 3), "in_shapes", ((5,), (5,)), "adjoint fails .* for state 1"),
    (Dense(5, 3), "in_widths", (4,), "in_widths"),
    (Dense(5, 3), "grouped", True, "grouped is True, and weight_shape is"),
    (Halves(), "out_shape", (7,), "whole number of positions"),
    (Dense(5, 3), "out_width", 4, "out_width"),
    (Dense(5, 3), "outputs", 4, "outputs are not those"),
    (Halves(), "positions", 1, "whole number of positions"),
    (
        Dense(5, 3),
        "forward",
        lambda self, xs, w: Dense.forward(self, xs, w) if len(xs[0]) > 1 else xs[0] @ w.w.T,
        "one sample alone",
    ),
    (
        Dense(5, 3),
        "adjoint",
        lambda self, r, w, index=0: (r @ w.w) * (1 + (len(r) == 1)),
        "adjoint of one sample alone",
    ),
    (Dense(5, 3), "rows", lambda self, xs: xs[0].clamp(-9, 9), "linear|fold"),
    (Dense(5, 3), "forward", lambda self, xs, w: Dense.forward(self, xs, w).double(), "forward must keep float32"),
    (Dense(5, 3), "norm", lambda self, weights, index=0: 1e6, "within a factor"),
    (Dense(5, 3), "norm", lambda self, weights, index=0: 20.0, "norm must bound"),
    (MIXED, "bias", None, "bias must be True or False"),
    (PAIRS, "resizable", True, "declared resizable, but its weights have groups"),
    (PAIRS, "by_group", lambda self, xs: [], "by_group gave 0 operators for 2 groups"),
    (PAIRS, "by_group", lambda self, xs: Conv1d.by_group(self, xs)[::-1], "by_group must give operators with the rows"),
    (
        PAIRS,
        "by_group",
        lambda self, xs: [(self, list(xs))] * 2,
        "by_group must give operators with the weights of a group",
    ),
    (Conv1d((2, 5), 3, 2), "resized", lambda self, p, q: self, r"resized\(8, 6\) must have"),
]


@pytest.mark.parametrize("fault", OPERATORS, ids=label)
def test_a_broken_operator_is_found(fault: Fault) -> None:
    found(check_operator, fault)


@pytest.mark.parametrize(
    ("protocol", "faults", "without"),
    [
        (Activation, ACTIVATIONS, {"why_not_trainable", "ridge"}),  # a sentence, and what only a penalty has
        (
            Loss,
            LOSSES,
            {"why_not_trainable", "why_not_exact", "capped", "cap", "width", "preactivation_width", "state_shape"},
        ),  # its z does not move, and is as wide as u
        (Penalty, PENALTIES, set()),
        (Operator, OPERATORS, set()),
    ],
    ids=["activation", "loss", "penalty", "operator"],
)
def test_every_method_and_attribute_has_a_fault(protocol: type, faults: list[Fault], without: set[str]) -> None:
    names = {name for name in dir(protocol) if not name.startswith("_")} - without
    assert names <= {name for _, name, *_ in faults}


def test_what_has_no_fault_passes() -> None:
    """So that the checks above find the fault itself, not how it is inserted."""
    check_activation(planted(ALPHA, "nothing", None))
    check_loss(planted(Huber(), "nothing", None))
    check_penalty(planted(MASK, "nothing", None))
    for operator in (Dense(5, 3), Halves(), MIXED):
        check_operator(planted(operator, "nothing", None))


def test_a_loss_must_not_depend_on_the_number_of_rows() -> None:
    with pytest.raises(AssertionError, match="value of one row must not depend on the others"):
        check_loss(MeanSquaredError())


def test_a_prox_must_take_a_step_of_0() -> None:
    with pytest.raises(AssertionError, match="prox with step 0, a projection, must leave a point of the domain"):
        check_penalty(Largest())


def test_a_penalty_may_refuse_to_be_cut() -> None:
    check_penalty(Uncut(0.1))
