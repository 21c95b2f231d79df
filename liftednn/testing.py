"""Conformance checks for your own activations, losses, penalties and operators: `check_activation(MyActivation())`.

Each asserts mathematics on random points in float64 and fails with a sentence. They are the checks that this package's own classes pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Affine, Divergence, Operator
from liftednn.conformance import check_activation, check_loss, check_penalty
from liftednn.conformance.common import SLACK as _SLACK
from liftednn.conformance.common import WIDTH as _WIDTH
from liftednn.conformance.common import N as _N
from liftednn.conformance.common import close as _close
from liftednn.conformance.common import draws as _draws
from liftednn.losses import SquaredError
from liftednn.penalties import NoPenalty
from liftednn.robust.uncertainty import Uncertainty

__all__ = ["check_activation", "check_loss", "check_operator", "check_penalty", "check_uncertainty"]


def check_operator(operator: Operator, seed: int = 0) -> None:
    """Affine in x with the declared adjoint, Gram matrix and norm; linear in (w, b) through `unfold`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, r = draw(_N, operator.in_width), draw(_N, operator.out_width)
    weights = Affine(draw(*operator.weight_shape), draw(operator.weight_shape[0]))
    u, at_zero = operator.forward(x, weights), operator.forward(torch.zeros_like(x), weights)
    assert u.shape == r.shape, f"forward gave shape {tuple(u.shape)}, expected {tuple(r.shape)}"
    back = operator.adjoint(r, weights)
    _close(((u - at_zero) * r).sum(), (x * back).sum(), "adjoint fails <A x, r> = <x, A' r>")
    regression = operator.unfold(x) @ weights.w.T + weights.b
    _close(regression.reshape(u.shape), u, "forward(x) must be unfold(x) w' + b")
    _close(x @ operator.gram(weights), operator.adjoint(u - at_zero, weights), "gram must be adjoint after forward")
    largest = float(torch.linalg.eigvalsh(operator.gram(weights))[-1])
    _close(
        torch.tensor(operator.norm(weights) ** 2), torch.tensor(largest), "norm must be the spectral norm", share=1e-5
    )


def check_uncertainty(
    kind: Uncertainty, divergence: Divergence | None = None, width: int = _WIDTH, seed: int = 0
) -> None:
    """A term that is convex in the weights, above the one without uncertainty, larger where that is, the same in other coordinates."""
    divergence = SquaredError() if divergence is None else divergence
    x, z = _draws(seed, 2, width)
    z = divergence(z[:, :3])
    w, other = (draw[:3] for draw in _draws(seed + 1, 2, width))
    refusal = kind.refusal(divergence, NoPenalty(), (3, width))
    assert not refusal, f"a layer refuses it: {refusal}"

    def term(kind: Uncertainty, x: Tensor, w: Tensor) -> float:
        return kind.term(float(kind.seen(divergence, w).value(x @ w.T, z).mean()), divergence.curvature, w)

    plain, robust = float(divergence.value(x @ w.T, z).mean()), term(kind, x, w)
    assert robust > plain, f"the term is {robust:.6g}, and without uncertainty {plain:.6g}: it must be larger"
    assert term(kind.scaled(2.0), x, w) > robust, "twice the uncertainty must give a larger term"
    middle, ends = term(kind, x, (w + other) / 2), (robust + term(kind, x, other)) / 2
    assert middle <= ends + _SLACK * (1 + ends), "the term is not convex in the weights"
    factors, basis = torch.linspace(0.5, 2, width, dtype=torch.float64), _draws(seed + 2, 1, width)[0][:width]
    same = torch.tensor([term(kind.columns(factors), x * factors, w / factors)])
    _close(same, torch.tensor([robust]), "columns(factors) must be the same in other units")
    same = torch.tensor([term(kind.through(basis), x @ basis, torch.linalg.solve(basis, w.T).T)])
    _close(same, torch.tensor([robust]), "through(basis) must be the same in other coordinates", share=1e-6)
    kept = torch.arange(0, width, 2)
    some, unused = kind.restrict(kept), torch.zeros_like(w).index_copy(1, kept, w[:, kept])
    if some is not None:
        same = torch.tensor([term(some, x[:, kept], w[:, kept])])
        _close(same, torch.tensor([term(kind, x, unused)]), "restrict(inputs) must be as if others had no weight")
