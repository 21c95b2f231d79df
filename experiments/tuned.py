"""A tuned standard network for regression: Adam, its rate and number of steps chosen on rows that are held back.

All candidates of a set, both starts and every rate, are trained together as one batch of small networks on the same rows in the
same order. Starts are Xavier's weights, and those of `liftednn.init.lifted_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import liftednn as lnn

STARTS = ("Xavier", "lifted")
RATES = (1e-3, 3e-3, 1e-2)
STEPS = (500, 1000, 2000, 4000, 8000)
# The share of training rows that choices are made by.
HELD = 0.1


def module(x: Tensor, y: Tensor, hidden: int, start: str, seed: int) -> nn.Sequential:
    """The initial weights of a network with one hidden layer of ReLUs; `lifted_` reads the rows."""
    torch.manual_seed(seed)
    layers = nn.Linear(x.shape[1], hidden), nn.Linear(hidden, 1)
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    return net if start == "Xavier" else lnn.init.lifted_(net, x, y)


def together(nets: Sequence[nn.Sequential]) -> list[Tensor]:
    """Parameters stacked, weights (k, in, out) and biases (k, 1, out)."""
    found = []
    for same in zip(*(net.parameters() for net in nets), strict=True):
        whole = torch.stack([part.detach() for part in same])
        found.append((whole.mT if whole.ndim == 3 else whole[:, None]).clone().requires_grad_())
    return found


def scores(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """(k, n) from rows (n, inputs)."""
    w, b, v, c = parameters
    return ((x @ w + b).relu() @ v + c)[..., 0]


def adam(parameters: list[Tensor], rates: Tensor, x: Tensor, y: Tensor, seed: int) -> Iterator[int]:
    """Steps of Adam, each network at its own rate, on batches of a hundredth of the rows, from 32 to 100; yields their number."""
    first, second = ([torch.zeros_like(part) for part in parameters] for _ in range(2))
    size, step, generator = max(32, min(100, len(x) // 100)), 0, torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.split(torch.randperm(len(x), generator=generator), size):
            loss = (scores(parameters, x[rows]) - y[rows]).square().mean(1).sum()
            gradients = torch.autograd.grad(loss, parameters)
            step += 1
            with torch.no_grad():
                for part, g, m, v in zip(parameters, gradients, first, second, strict=True):
                    m.lerp_(g, 0.1)
                    v.lerp_(g * g, 0.001)
                    part -= rates[:, None, None] * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
            yield step


def choose(
    x: Tensor, y: Tensor, hidden: int, seed: int, lengths: Sequence[int] = STEPS
) -> dict[str, tuple[float, int]]:
    """For each start, the rate and the number of steps of least squared error on the rows held back."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    back, kept = order[: max(1, int(HELD * len(x)))], order[max(1, int(HELD * len(x))) :]
    nets = [module(x[kept], y[kept], hidden, start, seed) for start in STARTS for _ in RATES]
    parameters, errors = together(nets), {}
    for step in adam(parameters, torch.tensor(RATES * len(STARTS)), x[kept], y[kept], seed):
        if step in lengths:
            with torch.no_grad():
                errors[step] = (scores(parameters, x[back]) - y[back]).square().mean(1).view(len(STARTS), len(RATES))
        if step == lengths[-1]:
            break
    found = {}
    for place, start in enumerate(STARTS):
        steps, rate = min(((s, r) for s in lengths for r in range(len(RATES))), key=lambda a: errors[a[0]][place, a[1]])
        found[start] = (RATES[rate], steps)
    return found


def predictions(
    x: Tensor, y: Tensor, x_test: Tensor, hidden: int, seed: int, lengths: Sequence[int] = STEPS
) -> dict[str, tuple[Tensor, tuple[float, int]]]:
    """Of each start, those of the network trained on all rows as chosen, and what was chosen."""
    chosen = choose(x, y, hidden, seed, lengths)
    parameters = together([module(x, y, hidden, start, seed) for start in STARTS])
    rates, found = torch.tensor([chosen[start][0] for start in STARTS]), {}
    for step in adam(parameters, rates, x, y, seed):
        for place, start in enumerate(STARTS):
            if chosen[start][1] == step:
                with torch.no_grad():
                    found[start] = (scores(parameters, x_test)[place], chosen[start])
        if len(found) == len(STARTS):
            return found
    raise AssertionError("steps end only by returning")
