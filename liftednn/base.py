"""The protocols. Read this first.

Everything in the package is a statement about one function, the lifted objective (eq. 2 and 10 of the paper),

    F(W, b, X) = mean over rows of sum_l lam_{l+1} D_l(A_l(X_l; W_l, b_l), X_{l+1}) + sum_l pi_l(W_l),

with X_0 the data and X_{L+1} the encoded responses. Rows are samples. `u` is always a pre-activation, `z` always a state, and a
divergence is always written D(u, z). The loss is the last divergence, so there is no first-layer or last-layer case anywhere.

A `Divergence` is D, seen as a function of u. An `Activation` is a divergence whose z is a variable too. A `Loss` is a divergence
whose z is clamped to the responses. A `Penalty` is pi, an `Operator` is A, an `Uncertainty` how rows may differ from what is given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

__all__ = ["Activation", "Affine", "Box", "Divergence", "Grain", "Loss", "Operator", "Penalty", "Uncertainty"]

# How many parameters of its own a learned activation has: one for the layer, or one for each unit.
Grain = Literal["layer", "unit"]

# Each proximal point shrinks the error by 1 + step times the modulus of strong convexity of D in z.
_PROXIMAL_STEP, _PROXIMAL_POINTS = 30.0, 4


class Affine(NamedTuple):
    """The weights of one layer: `w` of shape (out, in), as in torch.nn.Linear, and `b` of shape (out,)."""

    w: Tensor
    b: Tensor


class Box(NamedTuple):
    """The quadratic  1/2 weight z^2 - pull z  on  lower <= z <= upper, entry by entry; tensors or numbers that broadcast."""

    lower: Tensor | float
    upper: Tensor | float
    weight: Tensor | float
    pull: Tensor | float


class Divergence(ABC):
    """D(u, z), one energy per row; convex in u.

    curvature    Lipschitz constant of the gradient in u; inf where D is not smooth in u
    quadratic    D(u, z) = curvature / 2 |u - z|^2 + const(z)
    capped       D(u, z) = |u - s(z)|^2 on u <= cap(z): the domain couples u and z
    homogeneous  D(t u, t z) = t^2 D(u, z) for t > 0: what the rescaling of sec. 3 needs
    unitwise     D(u, z) is a sum over units k of functions of (u_k, z_k): what pruning needs
    uniform      `unitwise`, with the same function for every unit, of any number of them: what robust.BoxBall needs
    refusal      why no network can be trained with this divergence; empty if it can
    """

    quadratic: bool = False
    capped: bool = False
    homogeneous: bool = False
    unitwise: bool = False

    @property
    def uniform(self) -> bool:
        return self.unitwise

    @property
    @abstractmethod
    def curvature(self) -> float: ...

    @property
    def refusal(self) -> str:
        return ""

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """phi(u) = argmin_z D(u, z), (n, p) -> (n, width(p))."""

    @abstractmethod
    def value(self, u: Tensor, z: Tensor) -> Tensor:
        """The energy of each row, (n,); +inf outside the domain."""

    @abstractmethod
    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        """Gradient in u, (n, p); a subgradient where D is not smooth."""

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        """argmin_u D(u, z) + |u - v|^2 / (2 step). Required where the curvature is infinite."""
        raise TypeError(
            f"{type(self).__name__} declares curvature {self.curvature} and has no prox_u: only a divergence of infinite "
            "curvature is asked for it, so either declare a finite curvature or implement prox_u"
        )

    def cap(self, z: Tensor) -> Tensor:
        """The largest u that z allows. Required where `capped` is declared."""
        raise TypeError(f"{type(self).__name__} does not bound u by z")

    def width(self, p: int) -> int:
        """The number of states that p pre-activations give."""
        return p

    def fan(self, width: int) -> int:
        """The number of pre-activations that `width` states need, the inverse of `width`."""
        return width


class Activation(Divergence):
    """A divergence whose z is a state.

    joint   D is jointly convex in (u, z) (the paper's JCR condition), otherwise convex in each (BCR)
    boxed   D is quadratic in z on a box, given by `box(u)`: its X-step can be a bounded least-squares problem
    learned names of the fields that `refit` re-estimates: numbers, or tensors with one entry or one per unit
    summed  `refit` sees the rows through sums over them, so that batches can stand for all rows
    limits  what is learned stays between these, or between the given value and these where it lies beyond
    """

    ridge: None = None
    boxed: bool = False
    learned: tuple[str, ...] = ()
    summed: bool = True
    limits: tuple[float, float] = (-math.inf, math.inf)

    @property
    @abstractmethod
    def joint(self) -> bool: ...

    @property
    def uniform(self) -> bool:
        return self.unitwise and not self._of_units()

    def _of_units(self) -> dict[str, Tensor]:
        """The learned fields that have one entry per unit."""
        given = {name: getattr(self, name) for name in self.learned}
        return {name: field for name, field in given.items() if isinstance(field, Tensor) and field.numel() > 1}

    @abstractmethod
    def prox(self, v: Tensor, u: Tensor, step: float) -> Tensor:
        """argmin_z D(u, z) + |z - v|^2 / (2 step)."""

    def tilted(self, u: Tensor, g: Tensor) -> Tensor:
        """argmin_z D(u, z) + <g, z>: how the state that obeys u answers a pull g.

        Where D is quadratic in u it is known. Otherwise by proximal points; override it where a formula exists.
        """
        if self.quadratic:
            return self(u - g / self.curvature)
        z = self(u)
        for _ in range(_PROXIMAL_POINTS):
            z = self.prox(z - _PROXIMAL_STEP * g, u, _PROXIMAL_STEP)
        return z

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """argmin_{u, z} D(u, z) + (|u - a|^2 + |z - b|^2) / (2 step), for a jointly convex D.

        Where D is quadratic in u it is known: phi projects on the domain. Required where the curvature is infinite.
        """
        if not (self.joint and self.quadratic):
            raise TypeError(f"{type(self).__name__} has no joint prox: implement it if D is jointly convex")
        t = self.curvature * step
        z = self((t * a + (1 + t) * b) / (1 + 2 * t))
        return (a + t * z) / (1 + t), z

    def box(self, u: Tensor) -> Box:
        """D(u, z) = 1/2 weight z^2 - pull z + const(u) on the box. Required where `boxed` is declared."""
        raise TypeError(f"{type(self).__name__} is not quadratic in z on a box: use prox")

    def refit(self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Grain = "layer") -> Activation:
        """This activation with the `learned` fields that minimise the sum over rows of D(u, z), one each or one per unit.

        u, z           pre-activations and states, (n, p)
        sample_weight  (n,), how much each row counts
        per            "unit" for fields of shape (p,); what already has one entry per unit keeps them

        Nothing is learned unless a class says how.
        """
        return self

    def restrict(self, units: Tensor) -> Self:
        """The same activation for u[:, units], for a `unitwise` one: `learned` fields keep the entries of those units."""
        own = {name: field[units.to(field.device)] for name, field in self._of_units().items()}
        return replace(self, **own) if own else self  # type: ignore[type-var]


class Loss(Divergence):
    """A divergence whose z is clamped to the encoded responses: L(y, u) = D(u, encode(y)).

    classes     responses are labels, which `decode` gives as integers; otherwise they are real
    invariant   L(y + c, u + c) = L(y, u): responses may be centred, and measured in units of their own spread
    link        the activation that `loss(u)` is, such as Softmax(); None where it is not one of liftednn.activations
    """

    invariant: bool = False
    link: Activation | None = None

    @property
    @abstractmethod
    def classes(self) -> bool: ...

    def curvature_met(self, u: Tensor, z: Tensor, counts: Tensor | None = None) -> float:
        """What mini-batch steps are scaled by, row i counting `counts[i]` times: the curvature, unless few scores ever meet it."""
        return self.curvature

    @abstractmethod
    def encode(self, y: Tensor, width: int) -> Tensor:
        """Responses as users have them -> (n, width), the last state."""

    @abstractmethod
    def decode(self, u: Tensor) -> Tensor:
        """Scores (n, width) -> responses as users have them."""

    @abstractmethod
    def score(self, u: Tensor, y: Tensor) -> float:
        """Quality of the scores u against encoded responses, higher is better: accuracy, or R^2."""


class Penalty(ABC):
    """pi(w) on a weight matrix; the bias is never penalised.

    ridge    rho where pi(w) = rho |w|^2, otherwise None
    boxed    pi is quadratic on a box, given by `box()`
    convex   pi is; otherwise a set such as the orthogonal matrices, and `prox` a nearest point of it
    metric   rows or columns of w in other units may leave the domain of pi: what is standardised would not obey it on the way back
    """

    boxed: bool = False
    convex: bool = True
    metric: bool = False

    @property
    def ridge(self) -> float | None:
        return None

    @abstractmethod
    def value(self, w: Tensor) -> Tensor:
        """pi(w), a scalar; +inf outside the constraint set."""

    @abstractmethod
    def prox(self, w: Tensor, step: float) -> Tensor:
        """argmin_v pi(v) + |v - w|^2 / (2 step)."""

    def box(self) -> Box:
        """pi(w) = 1/2 weight w^2 - pull w on the box. Required where `boxed` is declared."""
        raise TypeError(f"{type(self).__name__} is not quadratic on a box: use prox")

    def minimiser(self, cross: Tensor, ridge: Callable[[float], Tensor]) -> Tensor | None:
        """argmin_w  a (tr(w G w') - 2 tr(w cross)) + pi(w), where a formula is known; otherwise None.

        cross   (in, out)
        ridge   rho -> the minimiser for pi(w) = rho |w|^2, (out, in)
        """
        return None

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether weights of this shape (out, in) can have this penalty; asked before there are any."""
        return True

    def restrict(self, outputs: Tensor, inputs: Tensor) -> Penalty:
        """The same penalty for w[outputs][:, inputs], both given by their places."""
        return self


class Operator(ABC):
    """A(x; w, b): affine in x for fixed weights, linear in (w, b) for fixed x; `in_width` and `out_width` are those of x and of A(x)."""

    in_width: int
    out_width: int
    bias: bool

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, int]:
        """Shape of w: (outputs, inputs) of the regression that `unfold` poses."""

    @abstractmethod
    def forward(self, x: Tensor, weights: Affine) -> Tensor:
        """Pre-activations (n, out_width)."""

    @abstractmethod
    def adjoint(self, r: Tensor, weights: Affine) -> Tensor:
        """The adjoint in x of the linear part: <A x, r> = <x, adjoint(r)>, (n, in_width)."""

    @abstractmethod
    def unfold(self, x: Tensor) -> Tensor:
        """The rows on which A is a regression: forward(x, (w, b)) = unfold(x) w' + b up to shape."""

    @abstractmethod
    def gram(self, weights: Affine) -> Tensor:
        """The matrix of adjoint(forward(.)), (in_width, in_width): the one all samples share in the X-step."""

    @abstractmethod
    def norm(self, weights: Affine) -> float:
        """Spectral norm of the linear map x -> A x."""


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
