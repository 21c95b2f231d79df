"""The geometry in which a mini-batch step on a layer's weights is taken (see training/descent.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from liftednn.moments import Moments
from liftednn.network import Layer
from liftednn.solvers import Factor

__all__ = ["Metric", "damping_of"]

_STATE = ("mean", "inverse", "curvature", "allowed")


def damping_of(diagonal: Tensor, mean: Tensor, fraction: float, eps: float) -> Tensor:
    """The damping d of Gram matrices with diagonals (..., p), of rows with means (..., p): a fraction of the mean diagonal."""
    # For inputs that do not vary, the gradient g' x - b mean is rounding error, about eps times the mean: no large step may follow
    floor = eps ** (2 / 3) * mean.square().mean(-1)
    return torch.maximum(fraction * diagonal.mean(-1), floor) if fraction else torch.zeros_like(floor)


@dataclass
class Metric:
    """The geometry of one layer's W-step: the moments of its inputs, and (c (gram + d I) + 2 rho I)^-1, refreshed every few steps.

    damping     d as a fraction of the mean diagonal of gram
    forget      the factor on the weight of older rows at each refresh
    shrinkage   2 rho, or 2 rho diag(scale)^2 as a row in whitened coordinates, where gram + d I = I; divided by the t rows of a
                sample, since means here are over all rows
    unscaled    `shrinkage` for the penalty's own rho
    free        whether w and b may move
    allowed     the most that one batch may move the layer's outputs by, at rate 1: the mean square, summed over outputs, times c
    """

    layer: Layer
    damping: float
    mean: Tensor
    inverse: Tensor
    curvature: Tensor
    shrinkage: Tensor
    white: bool = False
    free: tuple[bool, bool] = (True, True)
    moments: Moments | None = None
    forget: float = 0.8
    allowed: Tensor = field(default_factory=lambda: torch.tensor(torch.inf))
    unscaled: Tensor = field(default_factory=lambda: torch.zeros(1))
    spectral: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        layer: Layer,
        x: Tensor,
        damping: float,
        scale: Tensor | None = None,
        row_weights: Tensor | None = None,
        free: tuple[bool, bool] = (True, True),
    ) -> Metric:
        """From rows x (n, p); with `scale`, of whitened rows, whose Gram matrix is not updated."""
        p = x.shape[1]
        rho = 2 * (layer.penalty.ridge or 0.0) / layer.operator.positions
        shrinkage = x.new_full((1,), rho) if scale is None else rho * scale.square()
        # A prox needs a multiple of the identity; for a non-convex set it is a projection, which may follow any short step.
        full = layer.penalty.ridge is not None or not layer.penalty.convex
        shape = (p,) if scale is not None else (p, p) if full else ()
        shape = (p, p) if shape and layer.uncertainty is not None else shape
        white, free = scale is not None, (free[0], free[1] and layer.operator.bias)
        metric = cls(layer, damping, x.new_zeros(p), x.new_zeros(shape), x.new_ones(()), shrinkage, white, free)
        metric.allowed, metric.unscaled = x.new_full((), torch.inf), shrinkage.clone()
        metric.add_rows([x], [row_weights])
        return metric

    def add_rows(self, rows: Sequence[Tensor], row_weights: Sequence[Tensor | None]) -> None:
        """Add rows to the running moments, and reduce the weight of older rows."""
        if self.white:
            return
        (x,), (weights,) = rows, row_weights
        fresh = Moments.of(x, x[:, :0], weights)
        fresh = fresh if self.free[1] else fresh.about_zero()
        self.moments = fresh if self.moments is None else self.forget * self.moments + fresh
        self.mean.copy_(self.moments.mean_x)

    def refresh(self, curvatures: Sequence[float], extra: Tensor | None = None) -> None:
        """Factor again, for this curvature and what an uncertainty adds to it (p, p); in place, so that a recorded step uses it."""
        (c,) = curvatures
        extra = None if extra is None else extra / self.layer.operator.positions  # like `shrinkage`
        self.curvature.fill_(c)
        if c == torch.inf:
            self.inverse.zero_()
            return
        if self.moments is None:
            diagonal = self.curvature + self.shrinkage
            if extra is None:
                self.inverse.copy_(diagonal.reciprocal())
            else:
                whole = torch.diag(diagonal.expand(len(extra))).double() + extra.double()
                self.inverse.copy_(Factor.of(whole, 1.0, 0.0, 0.0).inverse())
            return
        gram = self.moments.gram
        gram = gram if extra is None else gram + extra.double() / c
        damping = self.damped(gram)
        if self.inverse.ndim < 2:
            largest = float(torch.linalg.eigvalsh(gram)[-1])
            self.inverse.fill_(1 / (c * max(largest + damping, 1e-12)))
        else:
            rho = c * damping + float(self.shrinkage)
            self.inverse.copy_(Factor.of(gram, c, rho, self.moments.eps).inverse())

    def damped(self, gram: Tensor) -> float:
        """The damping d of a Gram matrix."""
        assert self.moments is not None
        return float(damping_of(gram.diagonal(), self.moments.mean_x, self.damping, self.moments.eps))

    def set_rho_factor(self, factor: float) -> None:
        """Multiply the penalty's rho by this factor, from the next refresh on."""
        self.shrinkage.copy_(factor * self.unscaled)

    def limit(self, allowed: float) -> None:
        """Let one batch move the outputs by no more than this: the mean square, summed over outputs."""
        self.allowed.fill_(allowed).mul_(self.curvature)

    def shorten(self, factor: float) -> None:
        """Make every step shorter by this factor, until the next refresh."""
        self.inverse.div_(factor)
        self.curvature.mul_(factor)

    def state(self) -> dict[str, Tensor]:
        parts = {name: getattr(self, name) for name in _STATE}
        if self.moments is not None:
            parts |= {"weight": self.moments.weight, "mean_x": self.moments.mean_x, "xx": self.moments.xx}
        return parts

    def load(self, named: dict[str, Tensor]) -> None:
        for name in _STATE:
            getattr(self, name).copy_(named[name])
        if self.moments is not None:
            weight, mean, xx = (named[name].to(self.moments.xx) for name in ("weight", "mean_x", "xx"))
            self.moments = replace(self.moments, weight=weight, mean_x=mean, xx=xx)

    @property
    def proxed(self) -> bool:
        """Whether a step on w ends with the penalty's prox."""
        return self.layer.penalty.ridge is None and self.free[0]

    def step_length(self) -> float:
        """The mean length of a step of rate 1 along the gradient of the mean over samples."""
        mean = self.inverse.diagonal().mean() if self.inverse.ndim == 2 else self.inverse
        return float(mean) / self.layer.operator.positions

    def mean_outputs(self, w: Tensor) -> list[Tensor]:
        """The mean over rows of what w (q, p) gives, in a list of one; 0 where the intercept is fixed. The mean of white rows is 0."""
        return [w @ self.mean if self.free[1] else w.new_zeros(len(w))]

    def direction(
        self, w: Tensor, w_gradients: Sequence[Tensor], b_gradients: Sequence[Tensor], samples: int
    ) -> tuple[list[Tensor], Tensor | float]:
        """A direction in (w, b) and a length: their product is what a step of rate 1 subtracts.

        w_gradients, b_gradients   summed over the rows of that many samples; the first are overwritten
        """
        (g,), (b,), rows = w_gradients, b_gradients, samples * self.layer.operator.positions
        b = b if self.free[1] else torch.zeros_like(b)
        shift = b / self.curvature
        if not self.free[0]:
            return [torch.zeros_like(w), shift], 1 / rows
        g.addcmul_(self.shrinkage, w, value=rows)
        if not self.white:
            g.addr_(b, self.mean, alpha=-1)
        move = g.mm(self.inverse) if self.inverse.ndim == 2 else g * self.inverse
        # The square of the motion of the outputs is that of the move in gram, where move = gradient (c gram)^-1.
        length = _length(self.allowed, torch.dot(move.reshape(-1), g.reshape(-1)), torch.dot(shift, b), 1 / rows)
        return [move, shift if self.white or not self.free[1] else shift.addmv_(move, self.mean, alpha=-1)], length


def _length(allowed: Tensor, of_w: Tensor, of_b: Tensor, most: float) -> Tensor | float:
    """The largest factor, at most `most`, whose square times `of_w + of_b` is no more than `allowed`; 0-dim. On a CPU a number, which takes
    a fraction of the time; a recorded step on a GPU must not wait for one."""
    if of_w.is_cuda:
        return (allowed / (of_w + of_b)).sqrt_().clamp_(max=most)
    product = float(of_w) + float(of_b)
    return min(most, math.sqrt(float(allowed) / product)) if product > 0 else most
