"""The matching loss (sec. 4 and 5.1): for a network that ends in an activation, the loss is that activation's divergence.

    L(y, u) = D(u, y) = Phi(y) + Phi*(u) - <u, y> >= 0,    0 exactly at y = phi(u)

It is convex in the scores u whatever phi is, which the squared error of phi(u) is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from liftednn.activations import Sigmoid
from liftednn.activations.fenchel import Fenchel
from liftednn.base import Activation, Loss
from liftednn.losses.squared import r_squared, real_responses

__all__ = ["Matching"]


@dataclass(frozen=True)
class Matching(Loss):
    """L(y, u) = D(u, y) for a Fenchel divergence D of finite curvature; L has the same curvature.

    activation   an activation with such a divergence, such as Sigmoid()

    With Sigmoid it is the binary cross-entropy of each output minus the entropy of its response; with Softmax, SoftmaxCrossEntropy
    on rows of probabilities. Responses are real, (n,) or (n, p), in the range of phi or at its ends.

    >>> loss = lnn.losses.Matching(lnn.activations.Sigmoid())
    >>> loss.decode(torch.zeros(1, 2)).tolist()
    [[0.5, 0.5]]
    """

    activation: Activation = field(default_factory=Sigmoid)
    classes = False

    link = property(lambda self: self.activation)
    unitwise = property(lambda self: self.activation.unitwise)
    uniform = property(lambda self: self.activation.uniform)

    def __post_init__(self) -> None:
        if not isinstance(self.activation, Fenchel) or self.activation.curvature == torch.inf:
            raise ValueError(
                f"Matching takes an activation with a Fenchel divergence of finite curvature, got {self.activation!r}: "
                "use its Fenchel form, or Split for a jointly convex one"
            )

    @property
    def curvature(self) -> float:
        return self.activation.curvature

    @property
    def why_not_trainable(self) -> str:
        return self.activation.why_not_trainable

    def __call__(self, u: Tensor) -> Tensor:
        return self.activation(u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return self.activation.value(u, z)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return self.activation.grad(u, z)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        return self.activation.prox_u(v, z, step)

    def encode(self, y: Tensor, width: int) -> Tensor:
        z = real_responses(y, width)
        z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
        if not bool(self.activation.value(torch.zeros_like(z), z).isfinite().all()):
            raise ValueError(
                f"y goes from {float(z.min()):g} to {float(z.max()):g}, but the responses of {self!r} must lie "
                f"{self._range()}: rescale them, or take another loss"
            )
        return z

    def _range(self) -> str:
        ends = self.activation(torch.tensor([[-torch.inf], [torch.inf]]))
        if bool(ends.isnan().any()):
            return f"in the range of {self.activation!r}, row by row"
        return f"from {float(ends[0]):g} to {float(ends[1]):g}"

    def decode(self, u: Tensor) -> Tensor:
        return self.activation(u)

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return r_squared(self.activation(u), y, row_weights)
