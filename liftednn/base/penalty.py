"""The protocol of pi(w): penalties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from liftednn.base.divergence import Box

__all__ = ["Penalty"]


class Penalty(ABC):
    """pi(w), a number, on a weight matrix w (out, in); the bias is never penalised.

    ridge            rho where pi(w) = rho |w|^2, otherwise None
    boxed            pi is quadratic on a box, given by `box()`
    convex           pi is convex; otherwise it is the indicator of a set such as the orthogonal matrices, and `prox` a nearest point of it
    scale_sensitive  rescaling rows or columns of w may leave the domain of pi: weights fitted on standardised data may violate the
                     constraint once they are converted to the original units

    >>> w, penalty = torch.tensor([[3.0, -0.5]]), lnn.penalties.L1(rho=1.0)
    >>> float(penalty.value(w)), penalty.prox(w, step=1.0).tolist()
    (3.5, [[2.0, 0.0]])
    """

    boxed: bool = False
    convex: bool = True
    scale_sensitive: bool = False

    @property
    def ridge(self) -> float | None:
        return None

    @abstractmethod
    def value(self, w: Tensor) -> Tensor:
        """pi(w), a scalar; +inf outside the constraint set."""

    @abstractmethod
    def prox(self, w: Tensor, step: float) -> Tensor:
        """argmin_v pi(v) + |v - w|^2 / (2 step); with step 0, the nearest point of the domain. Weights start there."""

    def box(self) -> Box:
        """pi(w) = 1/2 weight w^2 - linear w on the box. Required where `boxed` is declared."""
        raise TypeError(f"{type(self).__name__} is not quadratic on a box: use prox")

    def minimiser(self, cross: Tensor, ridge: Callable[[float], Tensor]) -> Tensor | None:
        """argmin_w  a (tr(w G w') - 2 tr(w cross)) + pi(w), where a formula is known; otherwise None.

        cross   (in, out)
        ridge   rho -> the minimiser for pi(w) = rho |w|^2, (out, in)
        """
        return None

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether weights of this shape (out, in) can have this penalty; called when a layer is built."""
        return True

    def restrict(self, outputs: Tensor, inputs: Tensor) -> Penalty:
        """The same penalty for w[outputs][:, inputs], both index tensors; a ValueError where it cannot be cut so."""
        return self
