"""Autocast around a call changes nothing in it, and inference mode inside it is not seen outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import liftednn as lnn

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def initialised() -> list[Tensor]:
    torch.manual_seed(0)
    return list(lnn.init.lifted_(module(), X, Y, passes=3).parameters())


def network(activation: str = "fenchel_relu") -> lnn.LiftedNetwork:
    return lnn.LiftedNetwork.mlp([5, 8, 2], activation=activation)


def predicted(rule: Callable[..., Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    net, weights = lnn.init.from_module(module())
    return [rule(net, weights, X)]


CALLS: dict[str, Callable[[], list[Tensor]]] = {
    "lifted_": initialised,
    "MiniBatch": lambda: [part for pair in lnn.MiniBatch(passes=2).run(network(), X, Y).weights for part in pair],
    "BCD": lambda: [part for pair in lnn.BCD(passes=1).run(network("relu"), X, Y).weights for part in pair],
    "automatic": lambda: [torch.tensor([layer.lam for layer in lnn.automatic(network(), X, Y).layers])],
    "feedforward": lambda: predicted(lnn.predict.feedforward),
    "lifted": lambda: predicted(lnn.predict.lifted),
}


@pytest.mark.parametrize("call", CALLS)
def test_autocast_changes_nothing(call: str) -> None:
    plain = CALLS[call]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = CALLS[call]()
        assert torch.is_autocast_enabled("cpu")
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


def test_results_have_no_gradient() -> None:
    assert not any(part.requires_grad for part in predicted(lnn.predict.feedforward))


def test_exact_blocks_have_products_in_full_precision_and_leave_the_setting() -> None:
    before, seen = torch.backends.cudnn.allow_tf32, []
    torch.backends.cudnn.allow_tf32 = True
    try:
        lnn.BCD(passes=1).run(network("relu"), X, Y, callback=lambda _: seen.append(torch.backends.cudnn.allow_tf32))
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert seen
    assert not any(seen)


@dataclass(frozen=True)
class ByAutograd(lnn.activations.FenchelReLU):
    """A user's activation, with the gradient from autograd."""

    def grad(self, u: Tensor, z: Tensor) -> Tensor:
        with torch.enable_grad():
            free = u.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.value(free, z).sum(), free)
        return found


def test_a_users_own_activation_may_use_autograd() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    fits = []
    for activation in (lnn.activations.FenchelReLU(), ByAutograd()):
        network = lnn.LiftedNetwork.mlp([3, 5, 1], activation=activation, loss="squared")
        fits.append(lnn.MiniBatch(passes=2).run(network, x, x[:, :1]))
    for (w, _), (own, _) in zip(*(fit.weights for fit in fits), strict=True):
        torch.testing.assert_close(w, own)


def test_trained_weights_can_be_trained_further_by_autograd() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    fit = lnn.MiniBatch(passes=2).run(lnn.LiftedNetwork.mlp([3, 5, 1], loss="squared"), x, x[:, :1])
    assert not any(part.is_inference() for pair in fit.weights for part in pair)
