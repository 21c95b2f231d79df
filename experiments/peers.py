"""Two peers of the descent, each written from its paper, for ReLU networks with the squared error on one-hot labels.

lpom              J. Li, C. Fang and Z. Lin, Lifted proximal operator machines, AAAI 2019
three_splitting   J. Zeng, T. Lau, S. Lin and Y. Yao, Global convergence of block coordinate descent in deep learning, ICML 2019

The papers leave out biases or count them as weights. Here the input of every layer carries a column of ones, so a weight matrix is
(out, in + 1) and its last column is the bias. phi is the ReLU, rows are samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from liftednn.base import Affine

Callback = Callable[[list[Affine]], None]


def extend(x: Tensor) -> Tensor:
    """(n, p) -> (n, p + 1), with a column of ones for the bias."""
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def affine(weights: list[Tensor]) -> list[Affine]:
    return [Affine(w[:, :-1], w[:, -1]) for w in weights]


def one_hot(y: Tensor, width: int, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(y.long(), width).to(like)


@torch.no_grad()
def lpom(
    x: Tensor,
    y: Tensor,
    sizes: list[int],
    passes: int,
    seed: int,
    batch: int = 100,
    mu: float = 20.0,
    x_iter: int = 5,
    w_iter: int = 5,
    inverse: bool = True,
    callback: Callback | None = None,
) -> list[Affine]:
    """Lifted proximal operator machines: block-coordinate descent on each mini-batch for

        1/2 |X_n - Y|^2 + mu sum_i 1' (f(X_i) + g(U_i) + 1/2 (X_i - U_i)^2) 1,    U_i = W_i X_{i-1},

    f' = phi^{-1} - 1 and g' = phi - 1, with phi on the last layer too. Weights start from Glorot's uniform, states from the recursion.

    x_iter, w_iter   fixed-point iterations of the states and accelerated iterations of the weights per mini-batch
    inverse          precondition the weights' steps by the pseudo-inverse, as the paper does, or else by the norm of X_{i-1}
    callback         called with the weights after every pass over the data
    """
    generator = torch.Generator().manual_seed(seed)
    weights = [glorot(p, q, generator).to(x) for p, q in pairwise(sizes)]
    targets = one_hot(y, sizes[-1], x)
    for _ in range(passes):
        for rows in torch.split(torch.randperm(len(x), generator=generator).to(x.device), batch):
            states = lpom_states(weights, recursion(weights, x[rows]), targets[rows], mu, x_iter)
            ends = zip(weights, states, states[1:], strict=False)
            weights = [lpom_weights(w, before, after, w_iter, inverse) for w, before, after in ends]
        if callback is not None:
            callback(affine(weights))
    return affine(weights)


def glorot(p: int, q: int, generator: torch.Generator) -> Tensor:
    bound = math.sqrt(6 / (p + q))
    w = torch.empty(q, p + 1, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
    w[:, -1] = 0
    return w


def recursion(weights: list[Tensor], x: Tensor) -> list[Tensor]:
    states = [x]
    for w in weights:
        states.append(torch.relu(extend(states[-1]) @ w.T))
    return states


def lpom_objective(weights: list[Tensor], states: list[Tensor], targets: Tensor, mu: float) -> Tensor:
    """1/2 |X_n - Y|^2 + mu sum_i 1/2 |phi(U_i)|^2 + 1/2 |X_i|^2 - <X_i, U_i>  for non-negative X_i, i > 0."""
    total = (states[-1] - targets).square().sum() / 2
    for w, before, after in zip(weights, states, states[1:], strict=False):
        u = extend(before) @ w.T
        total = total + mu * ((torch.relu(u).square() + after.square()) / 2 - u * after).sum()
    return total


def lpom_states(weights: list[Tensor], states: list[Tensor], targets: Tensor, mu: float, n_iter: int) -> list[Tensor]:
    """From the first layer to the last, n_iter times over, with one mu for all layers:

    X_i <- phi(U_i - W_{i+1}' (phi(W_{i+1} X_i) - X_{i+1})),    X_n <- phi(U_n - (X_n - Y) / mu).
    """
    states, first = list(states), extend(states[0]) @ weights[0].T
    for _ in range(n_iter):
        for i, w in enumerate(weights, 1):
            u = first if i == 1 else extend(states[i - 1]) @ w.T
            if i < len(weights):
                ahead = weights[i]
                pull = (torch.relu(extend(states[i]) @ ahead.T) - states[i + 1]) @ ahead[:, :-1]
            else:
                pull = (states[i] - targets) / mu
            states[i] = torch.relu(u - pull)
    return states


def lpom_weights(w: Tensor, before: Tensor, after: Tensor, n_iter: int, inverse: bool) -> Tensor:
    """Accelerated iterations on 1' g(W X) 1 + 1/2 |W X - Z|^2, whose gradient is (phi(W X) - Z) X':

        W <- V - (phi(V X) - Z) P,    P = X^+ or X' / |X|_2^2,    V extrapolated by Nesterov's rule.

    All iterates are W_0 - C' P, so the iterations run on C, (rows, out), through the matrix X P of the rows.
    """
    x = extend(before)
    gram = x @ x.T
    if inverse:
        scale: Tensor = torch.linalg.pinv(gram, hermitian=True, rtol=1e-5)
        p, project = scale @ x, scale @ gram
    else:
        top: Tensor = torch.linalg.matrix_norm(gram, 2)
        p, project = x / top, gram / top
    u, c, v, t = x @ w.T, torch.zeros_like(after), torch.zeros_like(after), 1.0
    for _ in range(n_iter):
        step = v + torch.relu(u - project @ v) - after
        t, last = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        v, c = step + (last - 1) / t * (step - c), step
    return w - c.T @ p


@dataclass
class Split:
    """Where the three-splitting descent stands: W_i, and U_i, V_i with V_0 the data; u[0] is not used.

    `data` is V_0 with its ones and `factor` Cholesky's of gamma V_0'V_0 + alpha I, which never change.
    """

    weights: list[Tensor]
    u: list[Tensor]
    v: list[Tensor]
    targets: Tensor
    gamma: float
    alpha: float
    data: Tensor
    factor: Tensor

    def objective(self) -> Tensor:
        """1/2 |V_N - Y|^2 + gamma/2 sum_i |V_i - phi_i(U_i)|^2 + |U_i - W_i V_{i-1}|^2, with phi_N the identity."""
        total = (self.v[-1] - self.targets).square().sum() / 2
        for i, w in enumerate(self.weights, 1):
            out = torch.relu(self.u[i]) if i < len(self.weights) else self.u[i]
            gap = (self.v[i] - out).square().sum() + (self.u[i] - extend(self.v[i - 1]) @ w.T).square().sum()
            total = total + self.gamma / 2 * gap
        return total


@torch.no_grad()
def three_splitting(
    x: Tensor,
    y: Tensor,
    sizes: list[int],
    passes: int,
    seed: int,
    gamma: float = 1.0,
    alpha: float = 5.0,
    callback: Callback | None = None,
) -> list[Affine]:
    """Block-coordinate descent on the three-splitting objective of `Split`, full batch.

    Weights start normal with deviation 0.01 and biases at 0.1, U and V from the recursion. alpha weighs the proximal terms.
    `callback` is called with the weights after every pass over the blocks.
    """
    split = split_start(x, y, sizes, seed, gamma, alpha)
    for _ in range(passes):
        for _ in split_blocks(split):
            pass
        if callback is not None:
            callback(affine(split.weights))
    return affine(split.weights)


def split_start(x: Tensor, y: Tensor, sizes: list[int], seed: int, gamma: float, alpha: float) -> Split:
    generator = torch.Generator().manual_seed(seed)
    weights, u, v = [], [x], [x]
    for p, q in pairwise(sizes):
        w = 0.01 * torch.randn(q, p + 1, generator=generator, dtype=torch.float64)
        w[:, -1] = 0.1
        weights.append(w.to(x))
        u.append(extend(v[-1]) @ weights[-1].T)
        v.append(torch.relu(u[-1]))
    v[-1] = u[-1].clone()
    data = extend(x)
    return Split(weights, u, v, one_hot(y, sizes[-1], x), gamma, alpha, data, factorise(data, gamma, alpha))


def split_blocks(split: Split) -> Iterator[str]:
    """One pass, from the last layer to the first; `split` is up to date at every yield. The last layer's first two blocks are

    V_N = (Y + gamma U_N + alpha V_N) / (1 + gamma + alpha),    U_N = (V_N + W_N V_{N-1}) / 2.
    """
    gamma, alpha, u, v = split.gamma, split.alpha, split.u, split.v
    for i in range(len(split.weights), 0, -1):
        hidden = i < len(split.weights)
        if hidden:
            v[i] = split_v(u[i], u[i + 1], split.weights[i])
        else:
            v[i] = (split.targets + gamma * u[i] + alpha * v[i]) / (1 + gamma + alpha)
        yield f"v{i}"
        x = split.data if i == 1 else extend(v[i - 1])
        pre = x @ split.weights[i - 1].T
        u[i] = split_u(v[i], pre, u[i], gamma, alpha) if hidden else (v[i] + pre) / 2
        yield f"u{i}"
        factor = split.factor if i == 1 else factorise(x, gamma, alpha)
        split.weights[i - 1] = split.weights[i - 1] + split_w(x, u[i] - pre, factor, gamma)
        yield f"w{i}"


def split_v(u: Tensor, ahead: Tensor, w: Tensor) -> Tensor:
    """argmin_V |V - phi(U)|^2 + |A - V W' - b|^2, with A the next layer's U:

    V (I + W'W) = phi(U) + (A - b) W,  that is  V = phi(U) + (A - b - phi(U) W') (I + W W')^{-1} W.
    """
    w, b, out = w[:, :-1], w[:, -1], torch.relu(u)
    step: Tensor = torch.linalg.solve(torch.eye(len(w)).to(w) + w @ w.T, w)
    return out + (ahead - b - out @ w.T) @ step


def split_u(v: Tensor, pre: Tensor, old: Tensor, gamma: float, alpha: float) -> Tensor:
    """argmin_u gamma/2 (v - phi(u))^2 + gamma/2 (u - pre)^2 + alpha/2 (u - old)^2, the better of its branches' minima:

    u = max(0, (gamma v + gamma pre + alpha old) / (2 gamma + alpha))  or  min(0, (gamma pre + alpha old) / (gamma + alpha)).
    """
    pull = gamma * pre + alpha * old
    right = ((gamma * v + pull) / (2 * gamma + alpha)).clamp(min=0)
    left = (pull / (gamma + alpha)).clamp(max=0)

    def energy(u: Tensor) -> Tensor:
        return gamma * ((v - torch.relu(u)).square() + (u - pre).square()) + alpha * (u - old).square()

    return torch.where(energy(right) < energy(left), right, left)


def factorise(x: Tensor, gamma: float, alpha: float) -> Tensor:
    """Cholesky's factor of gamma X'X + alpha I, in double precision: X'X of the data can be singular."""
    gram = (x.T @ x).double()
    factor: Tensor = torch.linalg.cholesky(gamma * gram + alpha * torch.eye(len(gram), device=x.device))
    return factor


def split_w(x: Tensor, residual: Tensor, factor: Tensor, gamma: float) -> Tensor:
    """The step D of argmin_D gamma/2 |R - X D'|^2 + alpha/2 |D|^2, that is (gamma X'X + alpha I) D' = gamma X'R."""
    return torch.cholesky_solve(gamma * (x.T @ residual).double(), factor).T.to(x)
