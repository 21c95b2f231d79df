"""Inputs in coordinates in which their Gram matrix, damped, is the identity (sec. 6.1, the W-step of the first layer).

    x' = (x - mean) V diag(s + d)^-1/2,      gram = V diag(s) V',      d = damping * mean diagonal of the Gram matrix

The Gram matrix of the data never changes, so this is done once, and a gradient step in these coordinates is a step of the ridge
regression preconditioned by (gram + d I)^-1. Directions of little variance are left out, which makes every step cheaper, unless they lower
the cross-validated error of a linear regression of the responses: those of single categories, among many, vary little and may decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine
from liftednn.data.copies import independent_rows
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork
from liftednn.penalties import NoPenalty
from liftednn.training.cross_validation import CLEARLY, error_of

__all__ = ["Coordinates", "Spectrum", "Whitening"]

# The fraction of the variance that is kept where the rest is not needed, and the fewest directions.
_KEEP, _FEWEST = 0.95, 128
# Rows centred at a time.
_ROWS = 4096


class Spectrum(NamedTuple):
    """The mean of the inputs (p,), the largest eigenvalues of their Gram matrix in descending order (k,), and their eigenvectors (p, k);
    the other eigenvalues are 0. `eps` is the precision of the data."""

    mean: Tensor
    values: Tensor
    vectors: Tensor
    eps: float

    @classmethod
    def of(cls, moments: Moments) -> Spectrum:
        values, vectors = torch.linalg.eigh(moments.gram)
        return cls(moments.mean_x, values.clamp(min=0).flip(0), _signed(vectors.flip(1)), moments.eps)

    @classmethod
    def of_rows(cls, x: Tensor, row_weights: Tensor | None) -> Spectrum:
        """The same from rows x (n, p), rows weighted by `row_weights`. For n < p, the singular values of an (n, p) matrix take n^2 p
        operations, the eigenvalues of the (p, p) Gram matrix p^3."""
        if len(x) >= x.shape[1]:
            return cls.of(Moments.of(x, x[:, :0], row_weights))
        mean = reduce.mean(x, row_weights)
        weights = x.new_ones(len(x)).double() if row_weights is None else row_weights.double()
        centred = (x.double() - mean) * (weights / weights.sum()).sqrt()[:, None]
        _, singular, vectors = torch.linalg.svd(centred, full_matrices=False)
        return cls(mean, singular.square(), _signed(vectors.T), torch.finfo(x.dtype).eps)

    @property
    def varying(self) -> int:
        """How many directions have variance, to the precision of the data."""
        return self.varying_to(self.eps)

    def varying_to(self, eps: float) -> int:
        """How many have variance to another precision."""
        return int((self.values > len(self.mean) * eps * self.values[0]).sum())

    def number(self, keep: float) -> int:
        """How many directions hold this fraction of the variance, but at least 128, where there are so many: a few decisive ones may vary
        little; at least 1."""
        total = self.values.sum().clamp(min=torch.finfo(self.values.dtype).tiny)
        enough = int((self.values.cumsum(0) < keep * total * (1 - 1e-12)).sum()) + 1
        return max(1, min(max(enough, _FEWEST), self.varying))

    def fraction_needed(self, x: Tensor, y: Tensor, row_weights: Tensor | None) -> float:
        """The fraction of the variance to keep."""
        return 1.0 if self.all_needed(self.number(_KEEP), x, y, row_weights) else _KEEP

    def all_needed(self, few: int, x: Tensor, y: Tensor, row_weights: Tensor | None, negligible: float = 0.0) -> bool:
        """Whether a linear regression of responses y (n, q) on rows x, those that this is the spectrum of or some of them, needs more than
        the first few directions; not where these leave no more than a negligible fraction of the variance."""
        every = self.varying
        if few >= every:
            return False
        mean_y, spread = reduce.mean_and_variance(y, row_weights)
        weights = y.new_ones(len(y)).double() if row_weights is None else row_weights.double()
        centred = ((y.double() - mean_y) * (weights / weights.sum())[:, None]).to(x)
        blocks = zip(torch.split(x, _ROWS), torch.split(centred, _ROWS), strict=True)
        parts = [((rows - self.mean.to(x)).T @ part).double() for rows, part in blocks]
        covariance = torch.stack(parts).sum(0)
        inner, unit = (self.vectors.T @ covariance).square().sum(1), float(self.values.sum()) / len(self.mean)
        different = independent_rows(lambda: [(x, y)], len(x))

        def error(number: int) -> float:
            return error_of(self.values[:number], inner[:number], unit, float(spread.sum()), different)

        least = negligible * float(spread.sum())
        return max(error(every), least) < CLEARLY * error(few)


def _signed(vectors: Tensor) -> Tensor:
    """Eigenvectors (p, k), which may have either sign, with the one that makes their products with a fixed vector positive. Weights that
    are drawn for coordinates along them then depend neither on rounding nor on the order of rows."""
    fixed = torch.randn(len(vectors), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(vectors)
    return torch.where(fixed @ vectors < 0, -vectors, vectors)


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
    def of(cls, spectrum: Spectrum, damping: float, keep: float, like: Tensor) -> Whitening:
        """`keep` is the fraction of the variance that the kept directions hold together; those without variance, to the precision of the
        data, are never kept. `like` gives device and precision."""
        if damping < 0 or not 0 < keep <= 1:
            raise ValueError(f"damping must be non-negative and keep in (0, 1], got {damping} and {keep}")
        mean, values, vectors, _ = spectrum
        if len(mean) != like.shape[1]:
            raise ValueError(f"moments are of {len(mean)} inputs, and the network takes {like.shape[1]}")
        kept = spectrum.number(keep)
        damped = values[:kept] + damping * values.sum() / len(mean)
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
    """A network whose inputs are whitened, with the conversions in both directions; `whitening` is None where it is not possible.

    outside   what the first layer's weights have in directions that are not kept, (q, p); None for 0
    """

    network: LiftedNetwork
    whitening: Whitening | None
    outside: Tensor | None = None

    @classmethod
    def of(
        cls,
        network: LiftedNetwork,
        x: Tensor,
        y: Tensor,
        moments: Moments | None,
        damping: float,
        keep: float | None,
        free: tuple[bool, bool] = (True, True),
        stored: dict[str, Tensor] | None = None,
        row_weights: Tensor | None = None,
    ) -> Coordinates:
        """From the moments of the inputs where they are given, otherwise from rows x, rows weighted by `row_weights`; or from the
        `state()` of earlier coordinates. What is kept is chosen by responses y (n, q) where `keep` is None.

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
            spectrum = Spectrum.of_rows(x, row_weights) if moments is None else Spectrum.of(moments)
            keep = spectrum.fraction_needed(x, y.to(x), row_weights) if keep is None else keep
            whitening = Whitening.of(spectrum, damping, keep, x)
        operator = first.operator.resized(whitening.width, first.operator.outputs)
        carried = first.uncertainty and first.uncertainty.through(whitening.basis * whitening.scale)
        inner = replace(first, operator=operator, penalty=NoPenalty(), uncertainty=carried)
        return cls(LiftedNetwork([inner, *network.layers[1:]]), whitening)

    def keeping(self, first: Affine) -> Coordinates:
        """The same for weights that are given: what they have in other directions, in which these rows do not vary, stays."""
        if self.whitening is None or self.whitening.width == first.w.shape[1]:
            return self
        basis = self.whitening.basis
        return replace(self, outside=first.w - (first.w @ basis) @ basis.T)

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
        if self.whitening is None:
            return list(weights)
        w, b = self.whitening.from_whitened(weights[0])
        if self.outside is not None:
            w, b = w + self.outside, b - self.outside @ self.whitening.mean
        return [Affine(w, b), *weights[1:]]
