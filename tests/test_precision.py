"""Autocast around a call changes nothing in it, and inference mode inside it is not seen outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    part: Any = torch.backends.cudnn
    part, name, exact = (part.conv, "fp32_precision", "ieee") if hasattr(part, "conv") else (part, "allow_tf32", False)
    torch.backends.cudnn.allow_tf32 = True
    try:
        lnn.BCD(passes=1).run(network("relu"), X, Y, callback=lambda _: seen.append(getattr(part, name)))
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert set(seen) == {exact}


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


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has no such names yet")
@pytest.mark.slow
def test_every_way_to_set_the_precision_of_products_is_kept() -> None:
    """In a process of its own, since some ways cannot be undone."""
    program = """
import torch, liftednn as lnn
parts = torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul

def unchanged():
    before = [part.fp32_precision for part in parts]
    lnn.BCD(passes=1).run(lnn.LiftedNetwork.mlp([3, 4, 1], loss="squared"), torch.eye(3), torch.ones(3))
    assert [part.fp32_precision for part in parts] == before, before

for name in ("medium", "high", "highest"):
    torch.set_float32_matmul_precision(name)
    unchanged()
    assert torch.get_float32_matmul_precision() == name
for part in parts:
    part.fp32_precision = "tf32"
    unchanged()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
