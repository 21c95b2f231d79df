"""One layer of a lifted network: an affine map, a divergence, a penalty, and the weight of their term in the objective (eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real

from torch import Tensor

from liftednn.base import Activation, Divergence, Operator, Penalty, Uncertainty
from liftednn.penalties import L2

__all__ = ["Layer"]

# What float32 holds.
_LARGEST = 1e38


@dataclass(frozen=True)
class Layer:
    """lam D(A(x; w, b), z) + pi(w): one term of the objective; with an uncertainty, what that makes of it (docs/robust.md)."""

    operator: Operator
    divergence: Divergence
    penalty: Penalty = field(default_factory=L2)
    lam: float = 1.0
    uncertainty: Uncertainty | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.lam, Real) or not 0 < self.lam < _LARGEST:
            raise ValueError(f"lam must be positive, got {self.lam}; it must also be below {_LARGEST:g}")
        shape = self.operator.weight_shape
        if not self.penalty.fits(shape):
            raise ValueError(
                f"{type(self.penalty).__name__} does not fit weights of shape {shape}: give it that shape (out, in)"
            )
        self._check_parameters()
        if self.uncertainty is None:
            return
        if not isinstance(self.uncertainty, Uncertainty):
            raise ValueError(f"uncertainty must be None or one such as robust.Noise(0.3), got {self.uncertainty!r}")
        refusal = self.uncertainty.refusal(self.divergence, self.penalty, shape)
        if refusal:
            raise ValueError(refusal)

    def _check_parameters(self) -> None:
        units = self.operator.out_width
        for name in self.divergence.learned if isinstance(self.divergence, Activation) else ():
            given = getattr(self.divergence, name)
            if isinstance(given, Tensor) and tuple(given.shape) not in ((), (1,), (units,)):
                raise ValueError(
                    f"{name} of {type(self.divergence).__name__} has shape {tuple(given.shape)} for {units} units: give a number, "
                    f"or a tensor of shape ({units},)"
                )

    @property
    def width(self) -> int:
        """Width of the state this layer gives."""
        return self.divergence.width(self.operator.out_width)

    def seen(self, w: Tensor) -> Divergence:
        """The divergence that rows are measured by, at fixed weights."""
        return self.divergence if self.uncertainty is None else self.uncertainty.seen(self.divergence, w)

    def term(self, mean: float, w: Tensor) -> float:
        """What the layer adds to the objective beside its penalty, from the mean over rows of `seen`."""
        if self.uncertainty is None:
            return self.lam * mean
        return self.lam * self.uncertainty.term(mean, self.divergence.curvature, w)
