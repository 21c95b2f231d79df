"""What a mini-batch step asks of a layer with uncertain rows (docs/robust.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["RobustTerm"]


class RobustTerm(ABC):
    """The robust term of one layer, lam term(mean over rows of seen(u, z)), as tensors beside its weights w (out, in).

    A recorded step calls `pull`, `answer` and `push`: they must keep to the weights' device and read no number from it.

    share   0-dim: the term's slope in the mean over rows is lam / share; renewed with the geometry
    """

    share: Tensor

    @abstractmethod
    def pull(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient of the term in u (n, out) at fixed z and w, the mean over rows left out; and where the term also depends on w
        through something that each row has its own gradient in, that gradient (n, out), the lever."""

    @abstractmethod
    def answer(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The state z = argmin_z seen(u, z) / share + <g, z>, g / lam the gradient of the layers after it; and then as `pull`, of the
        minimum over z."""

    @abstractmethod
    def push(self, w: Tensor, lever: Tensor | None) -> Tensor:
        """The gradient of the term in w at fixed u, (out, in), from the mean over rows of the lever."""

    @abstractmethod
    def stiffness(self) -> Tensor:
        """The curvature in w that `push` has, (in, in)."""

    @abstractmethod
    def renew(self, w: Tensor, u: Tensor, z: Tensor, lever: Tensor | None, counts: Tensor | None) -> None:
        """Renew what depends on the present point, in place. Without a lever, `push` stays the gradient itself, nothing rounded off."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors that `renew` writes, by name."""

    def load(self, named: dict[str, Tensor]) -> None:
        """Take up a state that was saved; in place."""
        for name, part in self.state().items():
            part.copy_(named[name])
