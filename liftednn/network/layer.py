"""One layer of a lifted network: an affine map, a divergence, a penalty, and the weight of their term in the objective (eq. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real

import torch
from torch import Tensor

from liftednn.base import Activation, Divergence, Operator, Penalty, Uncertainty
from liftednn.penalties import L2

__all__ = ["Layer"]

# About the largest number in float32.
_LARGEST = 1e38


@dataclass(frozen=True)
class Layer:
    """lam D(A(x; w, b), z) + pi(w): one term of the objective; with an uncertainty, the robust form of it (docs/robust.md).

    operator     A, such as Dense(inputs, outputs)
    divergence   D: an Activation, or a Loss for the last layer
    penalty      pi, on w
    lam          the weight of D in the objective, positive
    uncertainty  how the true states x may differ from the given ones, such as robust.Noise(0.3); None if they are exact
    name         name of the state z that the layer gives; empty for "x1", "x2", ... in the order of layers; "x0" is the data
    reads        names of the states that the operator reads; empty for the previous state
    key          layers with the same key share w, and each has its own b; empty for an own w
    transposed   the layer uses the transpose of the shared w

    >>> layer = lnn.Layer(lnn.operators.Dense(3, 4), lnn.activations.ReLU(), lam=0.5)
    >>> layer.width, layer.penalty
    (4, L2(rho=0.001))
    """

    operator: Operator
    divergence: Divergence
    penalty: Penalty = field(default_factory=L2)
    lam: float = 1.0
    uncertainty: Uncertainty | None = None
    name: str = ""
    reads: tuple[str, ...] = ()
    key: str = ""
    transposed: bool = False

    def __post_init__(self) -> None:
        given = (self.reads,) if isinstance(self.reads, str) else self.reads
        if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"reads must be names of states, such as ('x1', 'x0'), got {self.reads!r}")
        object.__setattr__(self, "reads", tuple(given))
        if not isinstance(self.lam, Real) or not 0 < self.lam < _LARGEST:
            raise ValueError(f"lam must be positive, got {self.lam}; it must also be below {_LARGEST:g}")
        shape = self.operator.weight_shape
        if not self.penalty.fits(shape[:-3:-1] if self.transposed else shape[-2:]):
            raise ValueError(
                f"{type(self.penalty).__name__} does not fit weights of shape {shape}: give it that shape (out, in)"
            )
        self._check_parameters()
        self._check_positions()
        if self.transposed and (not self.key or self.operator.grouped):
            raise ValueError(
                f"transposed=True needs a key and weights without groups, got key={self.key!r} and {shape}"
            )
        if self.uncertainty is not None:
            self._check_uncertainty(self.uncertainty, shape)

    def _check_uncertainty(self, kind: Uncertainty, shape: tuple[int, ...]) -> None:
        if not isinstance(kind, Uncertainty):
            raise ValueError(f"uncertainty must be None or an Uncertainty such as robust.Noise(0.3), got {kind!r}")
        if self.key:
            raise ValueError(
                f"an uncertainty needs a layer that shares its w with no other, got key={self.key!r}: leave uncertainty=None"
            )
        if reason := kind.why_not_operator(self.operator):
            raise ValueError(f"{reason}: leave uncertainty=None")
        if self.divergence.why_not_exact:
            raise ValueError(f"an uncertainty needs exact blocks: {self.divergence.why_not_exact}")
        if reason := kind.why_not(self.divergence, self.penalty, (shape[-2], self.operator.in_widths[0])):
            raise ValueError(reason)

    def _check_parameters(self) -> None:
        units = self.operator.out_width
        for name in self.divergence.learned if isinstance(self.divergence, Activation) else ():
            given = getattr(self.divergence, name)
            if isinstance(given, Tensor) and tuple(given.shape) not in ((), (1,), (units,)):
                raise ValueError(
                    f"{name} of {type(self.divergence).__name__} has shape {tuple(given.shape)} for {units} units: give a number, "
                    f"or a tensor of shape ({units},)"
                )

    def _check_positions(self) -> None:
        """The W-step treats positions and groups separately, so the divergence must be a sum over units; for mini-batches any will do."""
        apart = self.operator.positions > 1 or self.operator.grouped
        if apart and not self.divergence.separable and not self.divergence.why_not_exact:
            raise ValueError(
                f"{self.divergence!r} does not act on every unit alone and alike, which {self.operator!r} needs, since it has several "
                "positions or groups: use another activation, or a Dense layer"
            )

    @property
    def width(self) -> int:
        """Width of the state that this layer gives."""
        return self.divergence.width(self.operator.out_width)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample of that state."""
        return self.divergence.state_shape(self.operator.out_shape)

    @cached_property
    def row_uncertainty(self) -> Uncertainty | None:
        """The uncertainty of the rows of the regression, added up over positions: that of the states where these are the rows."""
        kind = self.uncertainty
        return kind if kind is None or self.operator.plain else kind.of_rows(self.operator)

    def robust_divergence(self, w: Tensor) -> Divergence:
        """The divergence of the objective at fixed weights w: D itself, or its robust form if there is an uncertainty."""
        return self.divergence if self.uncertainty is None else self.uncertainty.robust_divergence(self.divergence, w)

    def term(self, mean: float, w: Tensor) -> float:
        """The layer's term of the objective without its penalty, from the mean over rows of `robust_divergence`."""
        if self.row_uncertainty is None:
            return self.lam * mean
        return self.lam * self.row_uncertainty.term(mean, self.divergence.curvature, w)

    def penalty_value(self, w: Tensor) -> Tensor:
        """pi(w); the sum over groups if w has groups."""
        return self.penalty.value(w) if w.ndim == 2 else torch.stack([self.penalty.value(group) for group in w]).sum()

    def penalty_prox(self, w: Tensor, step: float) -> Tensor:
        """The prox of pi, for each group separately if w has groups."""
        return self.penalty.prox(w, step) if w.ndim == 2 else torch.stack([self.penalty.prox(g, step) for g in w])
