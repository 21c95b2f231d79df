"""The gradients that a mini-batch step needs from a layer with uncertain rows (docs/robust.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["RobustTerm"]


class RobustTerm(ABC):
    """The robust term of one layer, lam term(mean over rows of robust D(u, z)), as tensors beside its weights w (out, in).

    A recorded CUDA graph calls `gradients`, `x_step` and `w_gradient`: they must stay on the weights' device and copy nothing from it.

    fraction   0-dim: the derivative of the term in the mean over rows is lam / fraction; `update` updates it
    """

    fraction: Tensor

    @abstractmethod
    def gradients(self, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient of the term in u at fixed z and w, (n, out), without the division by n; and the radius gradient.

        Where the term also depends on w through the radius r(w), (out,), by which uncertain inputs can move u, the radius gradient is each
        row's gradient in r, (n, out). None where it does not.
        """

    @abstractmethod
    def x_step(self, w: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The state z = argmin_z robust D(u, z) / fraction + <g, z>, where lam g is the gradient of later layers in z; and the gradients
        of `gradients`, here of the minimum over z."""

    @abstractmethod
    def w_gradient(self, w: Tensor, radius_gradient: Tensor | None) -> Tensor:
        """The gradient of the term in w at fixed u, (out, in), from the mean over rows of the radius gradient."""

    @abstractmethod
    def added_curvature(self) -> Tensor:
        """A bound (in, in) on the curvature in w that `w_gradient` adds to the plain step."""

    @abstractmethod
    def update(
        self, w: Tensor, u: Tensor, z: Tensor, radius_gradient: Tensor | None, row_weights: Tensor | None
    ) -> None:
        """Update what depends on the present point, in place. With radius_gradient=None, `w_gradient` stays exact, without smoothing."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors that `update` writes, by name."""

    def load(self, named: dict[str, Tensor]) -> None:
        """Restore a saved state, in place."""
        for name, part in self.state().items():
            part.copy_(named[name])
