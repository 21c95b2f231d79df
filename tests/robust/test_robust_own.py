"""A kind of uncertainty of a user's own, which no part of the package knows, trains by both trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.base import Affine, Divergence, Penalty, Uncertainty
from liftednn.blocks import WeightProblem, WeightStep
from liftednn.network import LiftedNetwork
from liftednn.robust import Noise
from liftednn.robust.terms import NoiseTerm
from liftednn.testing import check_uncertainty


@dataclass(frozen=True, eq=False)
class ColumnNoise(Uncertainty):
    """Independent noise with the covariance root root', root (p, k)."""

    root: Tensor

    def why_not(self, divergence: Divergence, penalty: Penalty, shape: tuple[int, int]) -> str:
        return "" if len(self.root) == shape[1] else f"root is for {len(self.root)} inputs"

    def term(self, mean: float, curvature: float, w: Tensor) -> float:
        return mean + curvature / 2 * float((w.double() @ self.root).square().sum())

    def update_weights(self, problem: WeightProblem) -> WeightStep:
        return problem.solve(noise=self.root @ self.root.T)

    def batch_term(self, divergence: Divergence, lam: float, w: Tensor) -> NoiseTerm:
        return NoiseTerm(divergence, lam, (self.root @ self.root.T).to(w))

    def deviations(self, width: int) -> Tensor:
        return self.root.square().sum(1).sqrt()

    def scaled(self, factor: float) -> ColumnNoise:
        return replace(self, root=factor * self.root)

    def columns(self, factors: Tensor) -> ColumnNoise:
        return replace(self, root=factors[:, None] * self.root)

    def through(self, basis: Tensor) -> ColumnNoise:
        return replace(self, root=basis.T.to(self.root) @ self.root)

    def restrict(self, inputs: Tensor) -> ColumnNoise:
        return replace(self, root=self.root[inputs])


SIZES = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)


def pair(number: int) -> list[LiftedNetwork]:
    """The same network twice: with the kind of this file, and with the package's own of the same size."""
    layers = LiftedNetwork.mlp([6, 6, 2], "fenchel_relu", loss="squared").layers
    given = [ColumnNoise(torch.diag(SIZES)), Noise(SIZES)]
    return [
        LiftedNetwork([replace(layer, uncertainty=kind if own == number else None) for own, layer in enumerate(layers)])
        for kind in given
    ]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator, dtype=torch.float64)
    return x, x[:, :2].abs() - x[:, 2:4]


def same(found: list[Affine], expected: list[Affine]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.w, b.w, rtol=1e-8, atol=1e-8)


def test_it_passes_the_public_check() -> None:
    check_uncertainty(ColumnNoise(torch.diag(SIZES)))


@pytest.mark.parametrize("number", [0, 1])
def test_it_trains_by_both_trainers(number: int) -> None:
    x, y = data()
    own, known = (lnn.BCD(passes=3).run(network, x, y) for network in pair(number))
    same(own.weights, known.weights)
    assert own.history[-1].objective < own.history[0].objective
    fits = [lnn.MiniBatch(passes=3, batch_size=20).run(network, x, y) for network in pair(number)]
    same(fits[0].weights, fits[1].weights)


def test_what_it_declares_is_obeyed() -> None:
    class LayerByLayer(ColumnNoise):
        joint, per_unit = False, False

    x, y = data()
    first, last = LiftedNetwork.mlp([6, 6, 2], "relu", loss="squared").layers
    network = LiftedNetwork([replace(first, uncertainty=LayerByLayer(torch.diag(SIZES))), last])
    with pytest.raises(ValueError, match="with a LayerByLayer the states must be updated layer by layer"):
        lnn.BCD(joint=True).run(network, x, y)
    learned = replace(network.layers[0], divergence=lnn.activations.FenchelLeakyReLU(0.1))
    with pytest.raises(ValueError, match="with a LayerByLayer all units share one parameter"):
        lnn.BCD(learn_activation="unit").run(LiftedNetwork([learned, last]), x, y)
