"""Cross-entropies: of the softmax (eq. 11), which is the Fenchel divergence of softmax at Y, and of probabilities (eq. 15)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.activations import Identity, Softmax
from liftednn.base import Loss
from liftednn.functional import barrier, entropy_prox, log_partition, softmax

__all__ = ["CrossEntropy", "SoftmaxCrossEntropy"]


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """L(y, u) = logsumexp(u) - <u, y> + <y, log y>; curvature 1/2. The last term is 0 for one-hot y and makes L >= 0 for every y.

    Responses are labels 0 .. p-1, (n,), or rows of probabilities, (n, p).

    >>> loss, u = lnn.losses.SoftmaxCrossEntropy(), torch.tensor([[200.0, 0.0], [0.0, 0.0]])
    >>> loss(u).tolist(), loss.decode(u).tolist()
    ([[1.0, 0.0], [0.5, 0.5]], [0, 0])
    """

    curvature, classes, link = 0.5, True, Softmax()

    def __call__(self, u: Tensor) -> Tensor:
        return softmax(u)

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        return log_partition(u) + (torch.xlogy(z, z) - u * z).sum(-1)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return softmax(u).sub_(z)

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        shifted = v + step * z
        return shifted - step * entropy_prox(
            shifted / step, 1 / step
        )  # Moreau's identity with the entropy of the simplex

    def hessian_vectors(self, u: Tensor, z: Tensor) -> Tensor:
        """sqrt(p_k) (e_k - p) for every class k, p the probabilities: their outer products add up to the Hessian diag(p) - p p'. Of two
        classes, for which they are parallel, one with the same outer product."""
        if u.shape[1] == 2:
            root = softmax(u).prod(1, keepdim=True).sqrt()
            return torch.cat([root, -root], 1)[None]
        p, identity = softmax(u), torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
        return p.T.sqrt()[:, :, None] * (identity[:, None] - p)

    def combined_hessian_vectors(self, u: Tensor, z: Tensor, coefficients: Tensor) -> Tensor:
        if u.shape[1] == 2:
            return super().combined_hessian_vectors(u, z, coefficients)
        p = softmax(u)
        own = coefficients[:, None] * p.sqrt()
        return own - own.sum(-1, keepdim=True) * p

    def constants(self, y: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """The constant scores of least loss for responses y (n, p), (p,), in float64, rows weighted by `row_weights`."""
        return reduce.mean(y, row_weights).clamp(min=torch.finfo(torch.float32).tiny).log()

    def encode(self, y: Tensor, width: int) -> Tensor:
        return class_responses(y, width)

    def decode(self, u: Tensor) -> Tensor:
        return u.argmax(-1)

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return accuracy(u, y, row_weights)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """L(y, u) = -<y, log u> on probabilities u > 0; not smooth at 0, so its curvature is infinite.

    Responses as for SoftmaxCrossEntropy. It cannot be the loss of a network by itself, since it is unbounded below over affine scores;
    eq. 15 puts a projection on the simplex before it, `Split(CrossEntropy(), Simplex())`.

    >>> loss = lnn.losses.Split(lnn.losses.CrossEntropy(), lnn.activations.Simplex())
    >>> loss(torch.tensor([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """

    curvature, classes, link = torch.inf, True, Identity()
    why_not_trainable = (
        "CrossEntropy takes probabilities, and over affine scores it has no lower bound: use Split(CrossEntropy(), Simplex()) "
        "or SoftmaxCrossEntropy()"
    )

    def __call__(self, u: Tensor) -> Tensor:
        return u

    def value(self, u: Tensor, z: Tensor) -> Tensor:
        outside = torch.where(z > 0, u <= 0, False).to(u.dtype)
        return -torch.xlogy(z, u.clamp(min=torch.finfo(u.dtype).tiny)).sum(-1) + barrier(outside)

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        return torch.where(z > 0, -z / u, torch.zeros_like(u))

    def prox_u(self, v: Tensor, z: Tensor, step: float) -> Tensor:
        """The positive root of u^2 - vu - step z = 0; v itself where z = 0 and D does not depend on u."""
        return torch.where(z > 0, positive_root(v / 2, step * z), v)

    def encode(self, y: Tensor, width: int) -> Tensor:
        return class_responses(y, width)

    def decode(self, u: Tensor) -> Tensor:
        return u.argmax(-1)

    def score(self, u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
        return accuracy(u, y, row_weights)


def positive_root(t: Tensor, c: Tensor) -> Tensor:
    """t + sqrt(t^2 + c) for c >= 0, without cancellation for t < 0; 2 max(t, 0) where c = 0."""
    radius = torch.hypot(t, c.sqrt())
    return torch.where(t > 0, t + radius, c / (radius - t).clamp(min=torch.finfo(t.dtype).tiny))


def class_responses(y: Tensor, width: int) -> Tensor:
    """Labels (n,) or probabilities (n, width) -> probabilities (n, width)."""
    if y.ndim == 2:
        if y.shape[1] != width:
            raise ValueError(f"y has {y.shape[1]} columns, but the network has {width} outputs: they must agree")
        if bool((y < 0).any()) or bool(((y.double().sum(-1) - 1).abs() > 1e-4).any()):
            raise ValueError("each row of y must be a probability distribution: non-negative, adding up to 1")
        return y
    if y.ndim != 1:
        raise ValueError(f"y has shape {tuple(y.shape)}: give labels (n,) or probabilities (n, {width})")
    labels = y.long()
    if y.is_floating_point() and not bool((labels == y).all()):
        raise ValueError("labels must be integers: encode other labels as 0, 1, 2, ... first")
    low, high = torch.stack(torch.aminmax(labels)).tolist() if len(y) else (0, 0)  # a GPU is waited for once
    if low < 0 or high >= width:
        raise ValueError(f"labels must lie in 0 .. {width - 1}, the network's {width} outputs, got {low} .. {high}")
    return torch.nn.functional.one_hot(labels, width)


def accuracy(u: Tensor, y: Tensor, row_weights: Tensor | None = None) -> float:
    """Fraction of rows whose largest score and largest response are in the same column."""
    return float(reduce.mean((u.argmax(-1) == y.argmax(-1)).double(), row_weights))
