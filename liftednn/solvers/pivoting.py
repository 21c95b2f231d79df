"""Block principal pivoting (Kim and Park 2011) for the rows of box-constrained least squares that nnls.py does not solve by splitting.

Each entry is at its lower bound, at its upper one, or free, and the free ones F are those of least squares given the others:

    z_F h_FF = q_F - z_A h_AF,    g = z h - q

A free entry beyond a bound goes to that bound, and one at a bound that g would move into the box becomes free; where no entry is wrong,
z is the solution. All wrong entries change at once while their number falls, or for a few more steps; after that only the last of them
does, which never comes back to an earlier choice where h is positive definite (Murty 1974). Every row has a matrix of its own to
factor: this takes longer than the splitting where that is fast, but does not depend on the spectrum of h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.solvers.bounds import Bounds

__all__ = ["pivoting"]

# Entries of the matrices that are factored at a time.
_ENTRIES = 2**22
# Steps with all wrong entries, after the one with the fewest.
_TRIES = 3
# Solutions of the same least squares, the second for the residual of the first.
_REFINED = 2


def pivoting(h: Tensor, q: Tensor, box: Bounds, z: Tensor, goal: Tensor, max_iter: int) -> tuple[Tensor, int]:
    """Solutions (n, p) with a residual of about `goal` (n,), and the number of steps; rows that so many steps do not solve are those of z,
    from whose entries at bounds they start. All in float64, h (p, p) without negative eigenvalues.

    >>> h, q = torch.tensor([[1.0, 0.9], [0.9, 1.0]]).double(), torch.tensor([[1.0, -1.0]]).double()
    >>> z, steps = pivoting(h, q, Bounds(0.0, torch.inf), torch.zeros_like(q), torch.full((1,), 1e-9).double(), 10)
    >>> z.tolist(), steps
    ([[1.0, 0.0]], 2)
    """
    found, steps = z.clone(), 0
    for rows in torch.split(torch.arange(len(q), device=q.device), max(1, _ENTRIES // h.numel())):
        part = _Rows(h, q[rows], box.take(rows), z[rows], goal[rows])
        steps = max(steps, part.solve(max_iter))
        found[rows] = part.found
    return found, steps


class _Rows:
    """Rows whose matrices fit into memory together.

    found   the solutions of the rows that are solved, and the start of the others
    left    the numbers of the rows that are not solved
    side    of every entry of these: -1 at the lower bound, 1 at the upper one, 0 if free
    """

    def __init__(self, h: Tensor, q: Tensor, box: Bounds, z: Tensor, goal: Tensor) -> None:
        self.h, self.q, self.found, self.goal = h, q, z, goal
        self.lower, self.upper = (torch.as_tensor(bound).to(q).expand_as(q) for bound in (box.lower, box.upper))
        self.norm, self.left = h.abs().sum(1).max(), torch.arange(len(q), device=q.device)
        self.side = (z >= self.upper).to(h) - (z <= self.lower).to(h)
        self.fewest = torch.full_like(self.left, q.shape[1] + 1)
        self.tries = torch.full_like(self.left, _TRIES)

    def solve(self, max_iter: int) -> int:
        for step in range(max_iter):
            if not len(self.left):
                return step
            self._step()
        return max_iter

    def _step(self) -> None:
        lower, upper, goal, side = self.lower[self.left], self.upper[self.left], self.goal[self.left, None], self.side
        z, g = self._solved(torch.where(side < 0, lower, torch.where(side > 0, upper, 0.0)), side == 0)
        slack = goal / self.norm / 2  # moves the gradient by no more than half of the goal
        below, above = (side == 0) & (z < lower - slack), (side == 0) & (z > upper + slack)
        inward = ((side < 0) & (g < -goal)) | ((side > 0) & (g > goal))
        wrong = below | above | inward
        count = wrong.sum(1)
        finite = z.isfinite().all(1)
        done = (count == 0) & finite
        self.found[self.left[done]] = z[done].clamp(lower[done], upper[done])
        fewer = count < self.fewest
        self.fewest = torch.where(fewer, count, self.fewest)
        self.tries = torch.where(fewer, _TRIES, self.tries - 1)
        places = torch.arange(z.shape[1], device=z.device)
        last = torch.where(wrong, places, -1).amax(1, keepdim=True)
        changed = wrong & ((self.tries >= 0)[:, None] | (places == last))
        side = torch.where(changed, above.to(side) - below.to(side), side)
        keep = ~done & finite
        self.side, self.left, self.fewest, self.tries = side[keep], self.left[keep], self.fewest[keep], self.tries[keep]

    def _solved(self, fixed: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Least squares of the free entries, and the gradient."""
        right, mask = self.q[self.left], free.to(self.h)
        matrices = self.h * mask[:, :, None] * mask[:, None, :]
        matrices.diagonal(dim1=1, dim2=2).add_(1 - mask)
        factor, failed = torch.linalg.cholesky_ex(matrices)
        singular = torch.nonzero(failed).flatten()
        if len(singular):
            tiny = 100 * torch.finfo(self.h.dtype).eps * self.norm
            matrices.diagonal(dim1=1, dim2=2).add_(tiny)
            factor[singular] = torch.linalg.cholesky_ex(matrices[singular])[0]
        z = fixed
        for _ in range(_REFINED):
            g = torch.addmm(right, z, self.h, beta=-1)
            z = z - torch.cholesky_solve((mask * g)[:, :, None], factor)[:, :, 0]
        return z, torch.addmm(right, z, self.h, beta=-1)
