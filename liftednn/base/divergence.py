"""The protocols of D(u, z): divergences, activations and losses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["Activation", "Box", "Divergence", "Granularity", "LayerXStep", "Loss"]

# Whether a learned activation has one parameter for the layer, or one for each unit.
Granularity = Literal["layer", "unit"]

# The X-step of a layer on a batch: its state and lam grad_u D there, from the gradient in the state and lam.
LayerXStep = Callable[[Tensor, float], tuple[Tensor, Tensor]]

# Each proximal step divides the error by 1 + step * (modulus of strong convexity of D in z).
_PROXIMAL_STEP, _PROXIMAL_POINTS = 30.0, 4
# Gradient steps of a prox in u per square root of the condition number, enough for 12 digits; and their maximum.
_STEPS_PER_ROOT, _MOST_STEPS = 28, 1000


class Box(NamedTuple):
    """The quadratic  1/2 weight z^2 - linear z  on  lower <= z <= upper, entry by entry; tensors or numbers, which broadcast.

    lower, upper     bounds; infinite where there is none
    weight, linear   coefficients of the quadratic

    >>> box = lnn.Box(lower=0.0, upper=0.5, weight=2.0, linear=3.0)
    >>> lnn.functional.box_prox(box, torch.zeros(1, 2), step=1.0).tolist()
    [[0.5, 0.5]]
    """

    lower: Tensor | float
    upper: Tensor | float
    weight: Tensor | float
    linear: Tensor | float


class Divergence(ABC):
    """D(u, z), one energy per row; convex in u, unless `why_not_exact` says that it is not.

    curvature    Lipschitz constant of the gradient in u; inf where D is not smooth in u
    quadratic    D(u, z) = curvature / 2 |u - z|^2 + const(z)
    capped       D(u, z) = |u - s(z)|^2 on u <= cap(z): the domain couples u and z
    homogeneous  D(t u, t z) = t^2 D(u, z) for t > 0; the rescaling of sec. 3 needs it
    unitwise     D(u, z) is a sum over units k of functions of (u_k, z_k); pruning needs it
    uniform      `unitwise`, with the same function for every unit and any number of units; robust.BoxBall needs it
    separable    for fixed z, D(u, z) is a sum over units of one function of (u_k, t_k), given by `by_unit`; operators with several
                 positions or groups need it
    why_not_trainable   why no network can be trained with this divergence; empty if it can
    why_not_exact       why exact blocks (BCD, lifted prediction) cannot be minimised; empty if they can. D may then be convex in u only
                        where the order of the entries of u does not change, as under max-pooling

    u is (n, p), z is (n, width(p)); methods return one number or one row for each row.

    >>> relu = lnn.activations.ReLU()
    >>> u, z = torch.tensor([[-1.0, 2.0]]), torch.tensor([[0.0, 3.0]])
    >>> relu.value(u, z), relu.grad(u, z)
    (tensor([2.]), tensor([[-2., -2.]]))
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
    def separable(self) -> bool:
        return self.uniform

    @property
    def why_not_trainable(self) -> str:
        return ""

    @property
    def why_not_exact(self) -> str:
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
        """argmin_u D(u, z) + |u - v|^2 / (2 step). Required where the curvature is infinite.

        The default for a finite curvature is Nesterov's method, for the condition number 1 + curvature step; override it with a formula.
        """
        if self.curvature == math.inf:
            raise TypeError(
                f"{type(self).__name__} declares an infinite curvature and has no prox_u: implement it, or declare a finite curvature"
            )
        root = math.sqrt(1 + self.curvature * step)
        length, momentum = step / root**2, (root - 1) / (root + 1)
        u = at = v
        for _ in range(min(_MOST_STEPS, math.ceil(_STEPS_PER_ROOT * root))):
            after = at - length * (self.grad(at, z) + (at - v) / step)
            u, at = after, torch.lerp(u, after, 1 + momentum)
        return u

    def cap(self, z: Tensor) -> Tensor:
        """The largest u that z allows. Required where `capped` is declared."""
        raise TypeError(f"{type(self).__name__} does not bound u by z")

    def by_unit(self, z: Tensor) -> tuple[Divergence, Tensor]:
        """A `uniform` divergence E and targets t, (n, p), with E(u, t) = D(u, z) for all u. Required where `separable` is declared."""
        if not self.uniform:
            raise TypeError(f"{type(self).__name__} does not act on every unit alone and alike")
        return self, z

    def width(self, p: int) -> int:
        """The number of states (columns of z) for p pre-activations."""
        return p

    def preactivation_width(self, width: int) -> int:
        """The number of pre-activations for `width` states, the inverse of `width`."""
        return width

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's states for pre-activations of that shape; a vector where their numbers differ."""
        p = math.prod(shape)
        return shape if self.width(p) == p else (self.width(p),)


class Activation(Divergence):
    """A divergence whose z is a state.

    joint   D is jointly convex in (u, z) (the paper's JCR condition), otherwise convex in each (BCR)
    boxed   D is quadratic in z on a box, given by `box(u)`: its X-step can be a bounded least-squares problem
    learned names of the fields that `refit` re-estimates: numbers, or tensors with one entry or one per unit
    summed  `refit` uses the rows only through sums over them, so that a batch estimates what all rows give
    limits  the range of the learned fields, extended to the given value where that lies outside

    >>> hardtanh = lnn.activations.HardTanh()
    >>> hardtanh(torch.tensor([[-3.0, 0.5]])).tolist(), hardtanh.joint
    ([[-1.0, 0.5]], True)
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

    def argmin(self, u: Tensor, g: Tensor) -> Tensor:
        """argmin_z D(u, z) + <g, z>: the state for pre-activations u under a gradient g in z, both (n, p).

        A formula where D is quadratic in u, otherwise a few proximal steps; override it where a formula exists.
        """
        if self.quadratic:
            return self(u - g / self.curvature)
        z = self(u)
        for _ in range(_PROXIMAL_POINTS):
            z = self.prox(z - _PROXIMAL_STEP * g, u, _PROXIMAL_STEP)
        return z

    def phi_and_x_step(self, u: Tensor) -> tuple[Tensor, LayerXStep]:
        """phi(u), and the function of g and lam > 0 that gives  z = argmin <g, z> + lam D(u, z)  and  lam grad_u D(u, z), the
        X-step of training/batch.py. Override it where all of these together take less time."""

        def x_step(g: Tensor, lam: float) -> tuple[Tensor, Tensor]:
            z = self.argmin(u, g * (1 / lam))  # a division takes several times as long
            return z, self.grad(u, z) * lam  # not in place: a gradient may be z itself, or a view

        return self(u), x_step

    def prox_joint(self, a: Tensor, b: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """argmin_{u, z} D(u, z) + (|u - a|^2 + |z - b|^2) / (2 step), for a jointly convex D.

        A formula where D is quadratic in u, since phi is then the projection on the domain. Required where the curvature is infinite.
        """
        if not (self.joint and self.quadratic):
            raise TypeError(f"{type(self).__name__} has no joint prox: implement it if D is jointly convex")
        t = self.curvature * step
        z = self((t * a + (1 + t) * b) / (1 + 2 * t))
        return (a + t * z) / (1 + t), z

    def box(self, u: Tensor) -> Box:
        """D(u, z) = 1/2 weight z^2 - linear z + const(u) on the box. Required where `boxed` is declared."""
        raise TypeError(f"{type(self).__name__} is not quadratic in z on a box: use prox")

    def refit(
        self, u: Tensor, z: Tensor, sample_weight: Tensor | None = None, per: Granularity = "layer"
    ) -> Activation:
        """This activation with the `learned` fields that minimise the sum over rows of D(u, z).

        u, z           pre-activations and states, (n, p)
        sample_weight  (n,), the weight of each row
        per            "layer" for one number per field, "unit" for fields of shape (p,); a field that has shape (p,) keeps it

        The default learns nothing.
        """
        return self

    def restrict(self, units: Tensor) -> Self:
        """The same activation for u[:, units], units an index tensor; for `unitwise` activations."""
        own = {name: field[units.to(field.device)] for name, field in self._of_units().items()}
        return replace(self, **own) if own else self  # type: ignore[type-var]


class Loss(Divergence):
    """A divergence whose z is fixed at the encoded responses: L(y, u) = D(u, encode(y)).

    classes     responses are class labels, and `decode` returns integers; otherwise they are real
    invariant   L(y + c, u + c) = L(y, u): responses may be centred and scaled
    link        the activation that maps scores to `loss(u)`, such as Softmax(); None where liftednn.activations has none

    >>> loss = lnn.losses.SoftmaxCrossEntropy()
    >>> y = loss.encode(torch.tensor([2, 0]), width=3)
    >>> y.tolist(), loss.decode(y).tolist()
    ([[0, 0, 1], [1, 0, 0]], [2, 0])
    """

    invariant: bool = False
    link: Activation | None = None

    @property
    @abstractmethod
    def classes(self) -> bool: ...

    def effective_curvature(self, u: Tensor, z: Tensor, row_weights: Tensor | None = None) -> float:
        """The curvature that sets mini-batch step sizes, rows weighted by `row_weights`: at least the mean curvature of the rows,
        and at most twice `curvature`."""
        return self.curvature

    def hessian_vectors(self, u: Tensor, z: Tensor) -> Tensor:
        """Vectors v_1 .. v_m (m, n, p) for scores u and responses z (n, p): on each row, the sum of v v' is the Hessian in u, or a multiple
        of the identity, the effective curvature."""
        n, p = u.shape
        identity = torch.eye(p, dtype=u.dtype, device=u.device)
        return (math.sqrt(self.effective_curvature(u, z)) * identity)[:, None].expand(p, n, p)

    def combined_hessian_vectors(self, u: Tensor, z: Tensor, coefficients: Tensor) -> Tensor:
        """The sums (k, n, p) of `hessian_vectors` times coefficients (k, m); override it where all of these take too much memory."""
        if type(self).hessian_vectors is Loss.hessian_vectors:
            root = math.sqrt(self.effective_curvature(u, z))
            return (root * coefficients)[:, None].expand(len(coefficients), *u.shape)
        return torch.einsum("km,mnp->knp", coefficients, self.hessian_vectors(u, z))

    @abstractmethod
    def encode(self, y: Tensor, width: int) -> Tensor:
        """Responses as the user gives them -> (n, width), the last state."""

    @abstractmethod
    def decode(self, u: Tensor) -> Tensor:
        """Scores (n, width) -> responses in the user's form."""

    @abstractmethod
    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        """Quality of the scores u against encoded responses, higher is better: accuracy, or R^2. Rows count by `row_weights` (n,)."""
