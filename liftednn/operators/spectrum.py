"""An upper bound on the spectral norm of a convolution, from the transform of its kernel.

With stride 1, a convolution of samples that lie on a torus, padding included, multiplies each frequency v by the matrix

    K(v) = sum over taps t of  K_t exp(i <v, t>),    (out, in),  so that its norm is the largest |K(v)| over the frequencies of the torus.

An output without wrap-around is part of it. With stride s, s^d entries of a sample become channels of one position, and the taps of the
kernel are sorted likewise. For large tori a coarser grid of n frequencies is used: entries of K are trigonometric polynomials of degree m,
whose maximum is at most 1 / cos(pi m / n) times that on the grid, in each dimension (Ehlich and Zeller 1964).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["convolution_bound", "largest_eigenvalue"]

# Frequencies of a coarse grid for each degree of the transform, and squarings of a matrix for a bound on its largest eigenvalue.
_FREQUENCIES, _SQUARINGS = 16, 8


def convolution_bound(kernels: Tensor, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> float:
    """For kernels (out, in, *kernel_size), float64, on a torus of `sizes`."""
    transform, factor = kernels, 1.0
    for axis, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True), start=2):
        transform, looser = _transformed(transform, axis, -(-size // stride), stride, dilation)
        factor *= looser
    half = transform[..., : transform.shape[-1] // 2 + 1]  # the other frequencies have the conjugate matrices
    matrices = half.flatten(2).permute(2, 0, 1)
    gram = matrices @ matrices.mH if matrices.shape[1] < matrices.shape[2] else matrices.mH @ matrices
    return factor * math.sqrt(largest_eigenvalue(gram))


def _transformed(kernels: Tensor, axis: int, size: int, stride: int, dilation: int) -> tuple[Tensor, float]:
    """The transform along one axis of (out, in, ...), the phases of the stride joined with the inputs, and the factor by which its largest
    entry on a coarse grid may be exceeded."""
    taps = dilation * torch.arange(kernels.shape[axis], device=kernels.device)
    degree = -(-int(taps[-1] // stride) // 2)
    count = min(size, _FREQUENCIES * degree) if degree else 1
    exact = count == size or not degree
    frequencies = 2 * torch.pi / count * torch.arange(count, dtype=torch.float64, device=kernels.device)
    waves = torch.exp(1j * torch.outer(taps // stride, frequencies))
    phases = (
        torch.nn.functional.one_hot(taps % stride, stride)[:, :, None] * waves[:, None]
    )  # (taps, stride, frequencies)
    found = torch.tensordot(kernels.movedim(axis, -1).to(waves), phases, 1)  # (out, in, ..., stride, frequencies)
    found = found.movedim(-2, 2).flatten(1, 2).movedim(-1, axis)
    return found, 1.0 if exact else 1 / math.cos(math.pi * degree / count)


def largest_eigenvalue(gram: Tensor) -> float:
    """An upper bound on the largest eigenvalue of positive semi-definite matrices (k, m, m), by the trace of a high power: too large by at
    most a factor m^(1 / 256). Products alone, which are fast for many matrices at once."""
    bound, power = gram.new_zeros(len(gram), dtype=torch.float64), 1
    for _ in range(_SQUARINGS):
        size = gram.diagonal(dim1=1, dim2=2).real.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        bound, gram = bound + size.log() / power, gram / size[:, None, None]
        gram, power = gram @ gram, 2 * power
    last = gram.diagonal(dim1=1, dim2=2).real.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    return float((bound + last.log() / power).exp().max())
