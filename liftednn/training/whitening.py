"""Inputs in coordinates in which their Gram matrix, damped, is the identity (sec. 6.1, the W-step of the first layer).

    x' = (x - mean) V diag(s + d)^-1/2,      gram = V diag(s) V',      d = damping * mean diagonal of the Gram matrix

The Gram matrix of the data never changes, so this is done once, and a gradient step in these coordinates is a step of the ridge
regression preconditioned by (gram + d I)^-1. Directions of almost no variance are left out, which makes every step cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork
from liftednn.penalties import NoPenalty

__all__ = ["Coordinates", "Whitening"]

_FEWEST = 128
# Rows centred at a time.
_ROWS = 4096


@dataclass(frozen=True)
class Whitening:
    """mean (p,), basis (p, k) with orthonormal columns, scale (k,) = (s + d)^-1/2.

    far   the mean is large compared with the spread: it must be subtracted before the product, not after, or digits are lost
    """

    mean: Tensor
    basis: Tensor
    scale: Tensor
    far: bool = True

    @classmethod
    def of(cls, moments: Moments, damping: float, keep: float, like: Tensor) -> Whitening:
        """From the moments of the inputs; `keep` is the fraction of their variance that the kept directions hold together.

        At least 128 directions are kept, where there are so many: a few decisive ones may vary little. Those without variance, to the
        precision of the data, are never kept. `like` gives device and precision.
        """
        if len(moments.mean_x) != like.shape[1]:
            raise ValueError(f"moments are of {len(moments.mean_x)} inputs, and the network takes {like.shape[1]}")
        values, vectors = torch.linalg.eigh(moments.gram)
        return cls._from(moments.mean_x, values.clamp(min=0).flip(0), vectors.flip(1), moments.eps, damping, keep, like)

    @classmethod
    def of_rows(cls, x: Tensor, row_weights: Tensor | None, damping: float, keep: float) -> Whitening:
        """The same from rows x (n, p), rows weighted by `row_weights`, for n < p: the singular values of an (n, p) matrix take n^2 p
        operations, the eigenvalues of the (p, p) Gram matrix p^3."""
        mean = reduce.mean(x, row_weights)
        weights = x.new_ones(len(x)).double() if row_weights is None else row_weights.double()
        centred = (x.double() - mean) * (weights / weights.sum()).sqrt()[:, None]
        _, singular, vectors = torch.linalg.svd(centred, full_matrices=False)
        return cls._from(mean, singular.square(), vectors.T, torch.finfo(x.dtype).eps, damping, keep, x)

    @classmethod
    def _from(
        cls, mean: Tensor, values: Tensor, vectors: Tensor, eps: float, damping: float, keep: float, like: Tensor
    ) -> Whitening:
        """From the largest eigenvalues of the Gram matrix, in descending order, and their eigenvectors (p, k); the others are 0."""
        if damping < 0 or not 0 < keep <= 1:
            raise ValueError(f"damping must be non-negative and keep in (0, 1], got {damping} and {keep}")
        width, total = len(mean), values.sum().clamp(min=torch.finfo(values.dtype).tiny)
        enough = int((values.cumsum(0) < keep * total * (1 - 1e-12)).sum()) + 1
        varying = int((values > width * eps * values[0]).sum())
        kept = max(1, min(max(enough, _FEWEST), varying))
        damped = values[:kept] + damping * values.sum() / width
        scale = torch.where(damped > 0, damped, 1.0).rsqrt()  # constant inputs are not scaled
        basis = vectors[:, :kept].contiguous()
        far = bool(mean.abs().max() > values[0].sqrt())
        return cls(mean.to(like), basis.to(like), scale.to(like), far)

    @property
    def width(self) -> int:
        return len(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """x' (n, k)."""
        basis = self.basis * self.scale
        if not self.far:
            return torch.addmm(-(self.mean @ basis), x, basis)
        return torch.cat([(rows - self.mean) @ basis for rows in torch.split(x, _ROWS)])

    def to_whitened(self, weights: Affine) -> Affine:
        """The weights on x' that give what `weights` gives on x, up to what lies outside the kept directions."""
        return Affine(weights.w @ self.basis / self.scale, weights.b + weights.w @ self.mean)

    def from_whitened(self, weights: Affine) -> Affine:
        """The weights on x that give what `weights` gives on x'."""
        w = (weights.w * self.scale) @ self.basis.T
        return Affine(w, weights.b - w @ self.mean)


@dataclass(frozen=True)
class Coordinates:
    """A network whose inputs are whitened, with the conversions in both directions; `whitening` is None where it is not possible."""

    network: LiftedNetwork
    whitening: Whitening | None

    @classmethod
    def of(
        cls,
        network: LiftedNetwork,
        x: Tensor,
        moments: Moments | None,
        damping: float,
        keep: float,
        free: tuple[bool, bool] = (True, True),
        stored: dict[str, Tensor] | None = None,
        row_weights: Tensor | None = None,
    ) -> Coordinates:
        """From the moments of the inputs where they are given, otherwise from rows x, rows weighted by `row_weights`; or from the
        `state()` of earlier coordinates.

        Only a first layer u = x w' + b under a squared norm, that alone reads the inputs and has its w alone, is the same problem in
        other coordinates; those mix w and b, so that both must be free to move, or neither (`free`).
        """
        first, connections = network.layers[0], network.connections
        alone = connections.readers[0] == ((0, 0),) and connections.alone(0)
        if not alone or not first.operator.plain or not first.operator.bias or first.penalty.ridge is None:
            return cls(network, None)
        if free[0] != free[1]:
            return cls(network, None)
        if stored and "white.mean" in stored:
            mean, basis, scale = (stored[f"white.{name}"].to(x) for name in ("mean", "basis", "scale"))
            whitening = Whitening(mean, basis, scale, bool(stored["white.far"]))
        else:
            whitening = _whitening(x, row_weights, moments, damping, keep)
        operator = first.operator.resized(whitening.width, first.operator.outputs)
        carried = first.uncertainty and first.uncertainty.through(whitening.basis * whitening.scale)
        inner = replace(first, operator=operator, penalty=NoPenalty(), uncertainty=carried)
        return cls(LiftedNetwork([inner, *network.layers[1:]]), whitening)

    def state(self) -> dict[str, Tensor]:
        """What `of` takes as `stored`, by name."""
        if self.whitening is None:
            return {}
        parts = {"mean": self.whitening.mean, "basis": self.whitening.basis, "scale": self.whitening.scale}
        return {f"white.{name}": part for name, part in (parts | {"far": torch.tensor(self.whitening.far)}).items()}

    def whiten(self, x: Tensor) -> Tensor:
        return x if self.whitening is None else self.whitening(x)

    def to_whitened(self, weights: Sequence[Affine]) -> list[Affine]:
        """The weights, for whitened inputs."""
        first = weights[0] if self.whitening is None else self.whitening.to_whitened(weights[0])
        return [first, *weights[1:]]

    def from_whitened(self, weights: Sequence[Affine]) -> list[Affine]:
        """The weights, for the inputs as they are given; some may share memory with those given."""
        first = weights[0] if self.whitening is None else self.whitening.from_whitened(weights[0])
        return [first, *weights[1:]]


def _whitening(
    x: Tensor, row_weights: Tensor | None, moments: Moments | None, damping: float, keep: float
) -> Whitening:
    """From the moments that are given, or from those of rows x."""
    if moments is None and len(x) < x.shape[1]:
        return Whitening.of_rows(x, row_weights, damping, keep)
    return Whitening.of(Moments.of(x, x[:, :0], row_weights) if moments is None else moments, damping, keep, x)
