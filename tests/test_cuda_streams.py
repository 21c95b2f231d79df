"""Parts of a step that run at the same time on a GPU, and the products that they are made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import liftednn as lnn
from liftednn.runtime.graphs import InOrder, recorded, work_on
from liftednn.step.polar import polar
from liftednn.training import descent

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def powers(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = (x @ x) / x.norm()
    return x


@pytest.mark.parametrize("device", DEVICES)
def test_parts_give_what_each_of_them_gives_alone(device: str) -> None:
    """Chains of different length, whose temporary memory is used again by the next ones."""
    generator, where = torch.Generator().manual_seed(0), torch.device(device)
    given = [torch.randn(80, 80, generator=generator).to(device) for _ in range(5)]
    for _ in range(10):
        with work_on(where) as work:
            found = [work.run((number,), powers, x, 3 * number) for number, x in enumerate(given)]
        for number, x in enumerate(given):
            assert torch.equal(found[number], powers(x, 3 * number))
        given = [x + 0.1 * torch.eye(80, device=device) for x in found]


@pytest.mark.parametrize("device", DEVICES)
def test_a_recorded_step_keeps_its_streams(device: str) -> None:
    where = torch.device(device)
    weights = [torch.eye(100, device=device) + 0.01 * number for number in range(3)]
    alone = [w.clone() for w in weights]

    def update(w: Tensor, x: Tensor) -> None:
        w.add_(powers(x + w, 4), alpha=1e-2)

    def step(x: Tensor) -> None:
        with work_on(where) as work:
            for number, w in enumerate(weights):
                work.run((number,), update, w, x)

    run = recorded(step, where)
    for number in range(12):
        x = torch.randn(100, 100, generator=torch.Generator().manual_seed(number)).to(device)
        run(x)
        for w in alone:
            update(w, x)
    for w, other in zip(weights, alone, strict=True):
        torch.testing.assert_close(w, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_part_sees_what_was_done_before_it_begins_and_what_the_parts_before_it_did(device: str) -> None:
    """The current stream goes on after `begin`, with tensors that the parts do not read."""
    x = torch.randn(100, 100, generator=torch.Generator().manual_seed(0)).to(device)
    for _ in range(10):
        with work_on(x.device) as work:
            first = powers(x, 5)
            work.begin(0)
            powers(first, 20)
            doubled = work.run((0,), torch.mul, first, 2)
            slow = work.run((1,), powers, first, 9)
            both = work.run((0, 1), torch.add, doubled, slow)
        assert torch.equal(both, 2 * powers(x, 5) + powers(powers(x, 5), 9))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, 1), (20, 26), (51, 33), (2, 50, 501)])
def test_singular_values_become_about_1(device: str, shape: tuple[int, ...]) -> None:
    """On a GPU in bfloat16, with sides that are filled up with zeros."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)
    x = x if x.ndim == 3 else x[None]
    found = polar(x)
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    values = left.mT @ found @ right.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert bool(((diagonal > 0.6) & (diagonal < 1.3)).all())
    assert float((values - torch.diag_embed(diagonal)).abs().max()) < 0.05
    assert not bool(polar(torch.zeros_like(x)).any())


@pytest.mark.gpu
def test_runs_of_a_convolutional_network_agree_with_and_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels of cuDNN that are deterministic: others differ in the last bits from run to run."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    x = torch.randn(400, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0, :6].mean((1, 2)) > 0).long()
    shape = lnn.LiftedNetwork.cnn((1, 12, 12), [("conv", 8, 3), ("dense", 16)], 2, "fenchel_relu")
    network, trainer = lnn.automatic(shape, x, y), lnn.MiniBatch(passes=6, device="cuda")
    fits = [trainer.run(network, x, y) for _ in range(3)]
    monkeypatch.setattr(descent, "work_on", lambda _: InOrder())
    fits.append(trainer.run(network, x, y))
    for fit in fits[1:]:
        for one, other in zip(fits[0].weights, fit.weights, strict=True):
            assert torch.equal(one.w, other.w)
    assert fits[0].history[-1].score > 0.9
