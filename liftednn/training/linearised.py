"""A network that is linear in its weights near the present ones.

With Jacobian J (n, weights) and loss Hessians C it has

    dof = trace K (K + n I)^-1,      K = C^1/2 J diag(1 / 2 rho) J' C^1/2

effective parameters. dof counts parameters of the linearised network. Hidden weights have been chosen among many that fit, which costs
more than one parameter each (as in MARS, Friedman 1991): each counts as one and a half parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss, Operator
from liftednn.blocks.regressions import repeated
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2
from liftednn.training.batch import probe_gradients, recursion
from liftednn.training.cross_validation import CLEARLY, left_out

__all__ = ["MOST", "Linearised", "Sample", "rho_of"]

# For every layer, the gradients in its u (n, width) of each of m vectors.
Gradients = list[list[Tensor]]

# What one effective parameter counts for.
_COUNTED = 1.5
# With more effective parameters than this fraction of the responses, nothing is left to tell noise from signal by.
MOST = 0.95
# Rows up to which float64 takes hardly more time; beyond, float32 takes half of it.
_FEW = 128
# The trace of K / n up to which float32 is exact enough: eigenvalues of I then change by no more than a tenth, those of K by less.
_LARGE = 1e6
# Rows times outputs of the kernel in which outputs are together.
_TOGETHER = 256
# The most vectors of the loss's Hessian that are sent backward; random combinations of them if there are more.
_VECTORS = 16


def rho_of(network: LiftedNetwork, number: int) -> float:
    """rho of a layer that owns its w, 0 where it has another penalty or none."""
    penalty = network.layers[number].penalty
    return penalty.rho if isinstance(penalty, L2) and network.connections.owners[number] == number else 0.0


class Sample(NamedTuple):
    """Some rows x (n, p) of a training set of `rows` rows, and their responses.

    row_weights   how often each counts in a mean over the training set (n,)
    importance    how often the loss of a row counts (n,), 1 on average over the training set, where that is not how often it was seen: its
                  noise counts as often too, so that its leverage counts by that
    """

    x: Tensor
    y: Tensor
    rows: int
    row_weights: Tensor | None = None
    importance: Tensor | None = None


@dataclass(frozen=True)
class Linearised:
    """A network near its present weights, on a sample.

    kernel       K of one output (n, n), a mean over outputs
    curvatures   the mean curvature of the loss in a row's free outputs (n,)
    degrees      outputs that are free
    shared       the parameters of all outputs together, as a fraction of their sum
    most         the weights of one output under a penalty
    """

    sample: Sample
    scores: Tensor
    kernel: Tensor
    curvatures: Tensor
    degrees: int
    shared: float
    most: float

    @classmethod
    @torch.no_grad()
    def of(cls, network: LiftedNetwork, weights: list[Affine], sample: Sample) -> Linearised:
        x, y, _, row_weights, _ = sample
        states, preactivations = recursion(network, weights, x)
        u, loss, lam = preactivations[-1], network.loss, network.layers[-1].lam
        count = len(loss.hessian_vectors(u[:1], y[:1]))
        vectors = lam**0.5 * _vectors(loss, u, y, count)
        # Adding a number to all scores of a softmax changes nothing: it has one degree of freedom fewer.
        shifts = float(vectors.sum(-1).abs().max()) > 1e-6 * float(vectors.abs().max())
        degrees = max(1, u.shape[1] - (0 if shifts else 1))
        gradients = _gradients(network, weights, preactivations, vectors)
        kernel = _kernel(network, states, gradients, row_weights).mul_(1 / degrees)
        most = sum(weights[n].w.numel() for n in range(len(weights)) if rho_of(network, n)) / degrees
        shared = _shared_fraction(network, weights, x, y, gradients, count, degrees, row_weights) if degrees > 1 else 1
        curvatures = vectors.double().square().sum((0, 2)) / degrees
        return cls(sample, u, kernel, curvatures, degrees, shared, most)

    @property
    def responses(self) -> int:
        """How many numbers there are to fit."""
        return self.sample.rows * self.degrees

    @cached_property
    def dof(self) -> float:
        """The effective parameters, each counted one and a half times."""
        return self.dof_with(1.0)

    def dof_with(self, factor: float) -> float:
        """The same with every rho times a factor."""
        kernel = self.kernel if factor == 1 else self.kernel / factor
        each = self.shared * _effective_parameters(kernel, self.sample.rows, self.sample.importance)
        return _COUNTED * min(each, self.most) * self.degrees

    @property
    def fits_all(self) -> bool:
        """Whether there are as many effective parameters as responses, so that nothing is left to tell noise from signal by."""
        return self.dof >= MOST * self.responses

    @property
    def needed(self) -> bool:
        """Whether the best linear regression has as many effective parameters too, and is clearly better than a constant."""
        return _needed(self.dof / (_COUNTED * self.responses), *self.sample[:4])

    @property
    def sensitivities(self) -> Tensor:
        """By how much the scores of every row (n,), as it is left out, change for a unit of its loss's gradient: h / (1 - h) over the
        curvature. The leverages h, which add up to the effective parameters, by importance, are bounded by .95."""
        shown = 1 - _not_fitted(self.kernel, len(self.kernel))
        importance = self.sample.importance
        counted = shown if importance is None else importance.to(shown) * shown
        leverages = (shown * (self.dof / self.responses / counted.mean())).clamp(max=MOST)
        of_gradients: Tensor = leverages / (1 - leverages) / self.curvatures.clamp(min=torch.finfo(torch.float32).tiny)
        return of_gradients


def _needed(used: float, x: Tensor, y: Tensor, rows: int, row_weights: Tensor | None) -> bool:
    """Whether the best linear regression of y on x, some of so many rows, has as many effective parameters as this fraction of the rows,
    and is clearly better than a constant."""
    if x.shape[1] < used * rows:
        return False
    every = left_out(x.double(), y.double(), None if row_weights is None else row_weights.double())
    best, constant = min(every), every[-1]
    return best.used >= used and best.error < CLEARLY * constant.error


def _effective_parameters(kernel: Tensor, rows: int, importance: Tensor | None = None) -> float:
    """dof of a training set of `rows` rows, from the kernel of some. Few rows show no more parameters than rows; the numbers that they and
    half of them show are continued by d n / (n + a)."""
    shown, half = len(kernel), len(kernel) // 2
    dof = _trace(kernel, None, importance)
    if rows <= shown or half < 2:
        return dof
    smaller = min(_trace(kernel[:half, :half], None, None if importance is None else importance[:half]), dof)
    slope = (1 / max(smaller, 1e-12) - 1 / max(dof, 1e-12)) / (1 / half - 1 / shown)
    limit = 1 / max(dof, 1e-12) - slope * (1 / shown - 1 / rows)
    return 1 / limit if limit > 0 else math.inf


def _trace(kernel: Tensor, rows: int | None = None, importance: Tensor | None = None) -> float:
    """trace K (K + n I)^-1, n = `rows`, or as many as K has, or the sum of its diagonal by importance; in float32 with many rows,
    unless K / n is so large that rounding it would change I."""
    n = rows or len(kernel)
    exact = len(kernel) <= _FEW or float(kernel.trace()) >= _LARGE * n
    rest = _not_fitted(kernel if exact else kernel.float(), n)
    return len(kernel) - float(rest.sum()) if importance is None else float(importance.to(rest) @ (1 - rest))


def _not_fitted(kernel: Tensor, rows: int) -> Tensor:
    """1 - h for every row, h the diagonal of K (K + n I)^-1."""
    shifted = kernel * (1 / rows)
    shifted.diagonal().add_(1)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    rest = torch.cholesky_inverse(factor).diagonal()
    return torch.full_like(rest, math.nan) if int(failed) else rest


def _vectors(loss: Loss, u: Tensor, y: Tensor, count: int) -> Tensor:
    """The vectors of the loss's Hessian, or a few random combinations of so many, with the same sum of outer products on average."""
    if count <= _VECTORS:
        return loss.hessian_vectors(u, y)
    drawn = torch.randint(0, 2, (_VECTORS, count), generator=torch.Generator().manual_seed(0))
    return loss.combined_hessian_vectors(u, y, (2 * drawn - 1).to(u) / math.sqrt(_VECTORS))


def _shared_fraction(
    network: LiftedNetwork,
    weights: list[Affine],
    x: Tensor,
    y: Tensor,
    gradients: Gradients,
    m: int,
    degrees: int,
    row_weights: Tensor | None,
) -> float:
    """Outputs share the hidden weights, and the kernel, which is their mean, counts these once for every output: dof of the outputs
    together, as a fraction of that. From a few rows, since it takes a kernel of rows times outputs."""
    few = max(2, min(len(x), _TOGETHER // m))
    states, preactivations = recursion(network, weights, x[:few])
    counts = None if row_weights is None else row_weights[:few]
    if m <= _VECTORS:
        gradients = [[g[:few] for g in of_layer] for of_layer in gradients]
    else:  # the others are of combinations of outputs
        vectors = network.layers[-1].lam ** 0.5 * network.loss.hessian_vectors(preactivations[-1], y[:few])
        gradients = _gradients(network, weights, preactivations, vectors)
    together = _kernel(network, states, gradients, counts, joint=True)
    each = together.view(m, few, m, few).diagonal(dim1=0, dim2=2).sum(-1)  # products of a vector with itself
    apart = degrees * _trace(each / degrees)
    return min(1.0, _trace(together, few) / apart) if apart > 0 else 1.0


def _gradients(
    network: LiftedNetwork, weights: list[Affine], preactivations: list[Tensor], vectors: Tensor
) -> Gradients:
    return [list(parts) for parts in zip(*probe_gradients(network, weights, preactivations, vectors), strict=True)]


def _kernel(
    network: LiftedNetwork,
    states: list[Tensor],
    u_gradients: Gradients,
    row_weights: Tensor | None,
    joint: bool = False,
) -> Tensor:
    """The sum over layers and m vectors of g g', g (n, weights) the gradients of a row divided by sqrt(2 rho); in float64. `joint`: not
    added up over vectors but (m n, m n), with the products of different ones."""
    m, n, owners = len(u_gradients[-1]), len(states[0]), network.connections.owners
    kernel = states[0].new_zeros(m * n if joint else n, m * n if joint else n, dtype=torch.float64)
    for number, layer in enumerate(network.layers):
        if rho := rho_of(network, owners[number]):
            t = layer.operator.positions
            rows = layer.operator.rows(network.read(number, states))
            rows = rows - reduce.mean(rows, repeated(row_weights, t)).to(rows) if layer.operator.bias else rows
            targets = torch.cat([layer.operator.targets(g) for g in u_gradients[number]], 0 if joint else 1)
            kernel.add_(_products(rows, targets, layer.operator, m if joint else 1), alpha=1 / (2 * rho))
    if row_weights is None:
        return kernel
    root = (row_weights / row_weights.mean()).sqrt().to(kernel).repeat(m if joint else 1)
    return root[:, None] * kernel * root


def _products(rows: Tensor, targets: Tensor, operator: Operator, copies: int) -> Tensor:
    """The inner products (n, n) of the samples' gradients in w, the sums over positions of g x' for rows x and gradients g in the output;
    added up over the m gradients of each, which lie side by side in targets (n t, m q). The samples are those of `rows` so many times."""
    q, p = operator.weight_shape[-2:]
    if operator.grouped:  # each group has its own columns of rows and targets
        per = targets.reshape(len(targets), -1, operator.weight_shape[0], q)
        parts = zip(torch.split(rows, p, 1), per.unbind(2), strict=True)
        return torch.stack([_of_one_matrix(x, g.flatten(1), q, operator.positions, copies) for x, g in parts]).sum(0)
    return _of_one_matrix(rows, targets, q, operator.positions, copies)


def _of_one_matrix(rows: Tensor, targets: Tensor, q: int, positions: int, copies: int) -> Tensor:
    if positions == 1:
        (of_targets, first), (of_rows, second) = _inner_products(targets), _inner_products(rows)
        return of_targets.mul_(of_rows if copies == 1 else of_rows.repeat(copies, copies)).double().mul_(first * second)
    x = rows.reshape(-1, positions, rows.shape[1]).repeat(copies, 1, 1)
    total = rows.new_zeros(len(x), len(x), dtype=torch.float64)
    for each in torch.split(targets, q, 1):
        gradients = torch.einsum("ntq,ntp->nqp", each.reshape(len(x), positions, q), x).flatten(1)
        products, unit = _inner_products(gradients)
        total.add_(products, alpha=unit)
    return total


def _inner_products(a: Tensor) -> tuple[Tensor, float]:
    """a a', with many rows in float32, which is exact enough, and the unit that it is in: the square of the largest entry, so that none
    overflows."""
    unit = max(float(a.abs().max()), torch.finfo(a.dtype).tiny)
    scaled = (a * (1 / unit)).to(torch.float64 if len(a) <= _FEW else torch.float32)
    return scaled @ scaled.T, unit**2
