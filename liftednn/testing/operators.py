"""The check for operators."""

from __future__ import annotations

import torch
from torch import Tensor

from liftednn.base import Affine, Operator
from liftednn.testing.common import N, close

__all__ = ["check_operator"]


def check_operator(operator: Operator, seed: int = 0) -> None:
    """Affine in x with the declared adjoint, Gram matrix and norm; linear in (w, b) through `unfold`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, r = draw(N, operator.in_width), draw(N, operator.out_width)
    weights = Affine(draw(*operator.weight_shape), draw(operator.weight_shape[0]))
    u, at_zero = operator.forward(x, weights), operator.forward(torch.zeros_like(x), weights)
    assert u.shape == r.shape, f"forward gave shape {tuple(u.shape)}, expected {tuple(r.shape)}"
    back = operator.adjoint(r, weights)
    close(((u - at_zero) * r).sum(), (x * back).sum(), "adjoint fails <A x, r> = <x, A' r>")
    regression = operator.unfold(x) @ weights.w.T + weights.b
    close(regression.reshape(u.shape), u, "forward(x) must be unfold(x) w' + b")
    close(x @ operator.gram(weights), operator.adjoint(u - at_zero, weights), "gram must be adjoint after forward")
    largest = float(torch.linalg.eigvalsh(operator.gram(weights))[-1])
    close(
        torch.tensor(operator.norm(weights) ** 2), torch.tensor(largest), "norm must be the spectral norm", share=1e-5
    )
