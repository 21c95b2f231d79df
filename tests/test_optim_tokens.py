"""The steps of layers that read tokens, against singular value decompositions and matrix roots of scipy."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from liftednn.optim import Lifted, capture, stack
from liftednn.optim.layers import regressions
from liftednn.optim.metric import LayerMetric
from liftednn.optim.moments import BlockMoments
from liftednn.training.spectral import polar
from tests.test_optim import draw, take_step


def exact_polar(x: Tensor) -> Tensor:
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


class Tokens(nn.Module):
    """Rows (n, t, 5); a hidden layer, and the mean over tokens of the outputs of the last one."""

    def __init__(self, bias: bool = True, hidden: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, hidden, bias=bias), nn.Linear(hidden, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", [(3, 4, 9), (2, 9, 4), (1, 6, 6)])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_polar_factor_is_about_that_of_the_singular_vectors(shape: tuple[int, ...], scale: float) -> None:
    x = draw(*shape)
    found = polar(scale * x)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    # The same singular vectors: the factor between the two is symmetric and positive.
    turned = found.mT @ exact_polar(x) if shape[1] >= shape[2] else found @ exact_polar(x).mT
    torch.testing.assert_close(turned, turned.mT, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e20, 1e30])
def test_the_polar_factor_does_not_depend_on_the_scale_in_float32(scale: float) -> None:
    x = draw(2, 6, 4).float()
    torch.testing.assert_close(polar(scale * x), polar(x), rtol=1e-3, atol=1e-4)


def test_the_polar_factor_of_zeros_is_zero() -> None:
    assert torch.equal(polar(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def expected_step(x: Tensor, gradients: tuple[Tensor, Tensor | None], outputs: Tensor, fraction: float) -> Any:
    """polar(G A^-1/2) A^-1/2 with A the second moments of inputs and a 1, the first damped; by numpy and scipy."""
    rows, g = x.reshape(-1, x.shape[-1]).numpy(), gradients[0].numpy()
    centred = gradients[1] is not None
    mean = rows.mean(0) if centred else np.zeros(rows.shape[1])
    gram = (rows - mean).T @ (rows - mean) / len(rows)
    a = np.zeros((6, 6))
    a[:5, :5] = gram + fraction * np.trace(gram) / 5 * np.eye(5)
    a[5, 5] = 1.0
    b = np.zeros(len(g)) if gradients[1] is None else gradients[1].numpy()
    # In inputs without their mean, the intercept is that at the mean.
    whole = np.column_stack([g - np.outer(b, mean), b])
    a = a if centred else a[:5, :5]
    whole = whole if centred else whole[:, :5]
    root = np.linalg.inv(scipy.linalg.sqrtm(a).real)
    u, _, v = np.linalg.svd(whole @ root, full_matrices=False)
    size = np.sqrt(len(g) * np.mean(outputs.numpy() ** 2) / min(whole.shape))
    step = size * (u @ v) @ root
    return step[:, :5], step[:, 5] - step[:, :5] @ mean if centred else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [4, 9])
def test_a_step_is_the_steepest_that_moves_all_outputs_alike(
    bias: bool, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps, the second with the average of both gradients."""
    monkeypatch.setattr(stack, "polar", exact_polar)
    module, x, y = Tokens(bias, hidden), draw(30, 4, 5) + 1, draw(30, 2, seed=1)
    layer, kept = module.first, [torch.zeros(hidden, 5).double(), torch.zeros(hidden).double()]
    optimiser = Lifted(module, nn.MSELoss(), lr=0.1, momentum=0.8, trust=0.5, damping=0.3)
    outputs = layer(x).detach()
    for _ in range(2):
        before = copy.deepcopy(layer)
        take_step(optimiser, module, x, y, nn.MSELoss())
        own = [p.grad for p in layer.parameters() if p.grad is not None]
        kept = [0.8 * average + g for average, g in zip(kept, own, strict=False)]
        averages = [g + 0.8 * average for average, g in zip(kept, own, strict=True)]
        w, b = expected_step(x, (averages[0], averages[1] if bias else None), outputs, 0.3)
        rate = 0.1 * 0.5 / (1 - 0.8)
        np.testing.assert_allclose(before.weight.detach() - layer.weight.detach(), rate * w, rtol=1e-7, atol=1e-10)
        if bias:
            np.testing.assert_allclose(before.bias.detach() - layer.bias.detach(), rate * b, rtol=1e-7, atol=1e-10)


def spectral_layers(module: nn.Module, optimiser: Lifted) -> set[str]:
    return {
        name
        for name, p in module.named_parameters()
        if any(key.startswith("metric") and found["root"] for key, found in optimiser.state[p].items())
    }


class Mixed(nn.Module):
    """A convolution, attention, a layer on tokens, one on samples, one called for several tokens, which is last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.attention = nn.Conv2d(1, 4, 2, 2), nn.MultiheadAttention(4, 2, batch_first=True)
        self.tokens, self.samples, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).mT
        z = z + self.attention(z, z, z, need_weights=False)[0]
        z = z + self.tokens(z).relu() + self.samples(z.mean(1)).relu()[:, None]
        return self.last(z).mean(1)  # type: ignore[no-any-return]


def test_attention_and_layers_on_tokens_take_such_steps_and_all_others_do_not() -> None:
    module, x = Mixed(), draw(12, 1, 4, 4)
    optimiser = Lifted(module, nn.CrossEntropyLoss())
    take_step(optimiser, module, x, torch.arange(12) % 3, nn.CrossEntropyLoss())
    wanted = {"attention.in_proj_weight", "attention.out_proj.weight", "tokens.weight"}
    assert spectral_layers(module, optimiser) == wanted


def test_training_goes_on_from_a_saved_state() -> None:
    module, x, y = Mixed(), draw(12, 1, 4, 4), torch.arange(12) % 3
    optimiser, criterion = Lifted(module, nn.CrossEntropyLoss()), nn.CrossEntropyLoss()
    for _ in range(4):
        take_step(optimiser, module, x, y, criterion)
    again = copy.deepcopy(module)
    second, file = Lifted(again, criterion), io.BytesIO()
    torch.save(optimiser.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file))
    for _ in range(4):  # with a refresh before the first and the second
        for each, one in ((module, optimiser), (again, second)):
            take_step(one, each, x, y, criterion)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_a_layer_that_reads_one_token_at_first_takes_such_steps_once_it_reads_several() -> None:
    """Also one from a state that was saved before there were any, without the names of their matrices."""
    module, x, y = Tokens(), draw(30, 4, 5), draw(30, 2, seed=1)
    optimiser, criterion = Lifted(module, nn.MSELoss(), refresh=2), nn.MSELoss()
    for _ in range(2):
        take_step(optimiser, module, x[:, :1], y, criterion)
    assert not spectral_layers(module, optimiser)
    saved, again = copy.deepcopy(optimiser.state_dict()), copy.deepcopy(module)
    for state in saved["state"].values():
        state.get("metric", {}).pop("root", None)
    second = Lifted(again, criterion, refresh=2)
    second.load_state_dict(saved)
    for each, one in ((module, optimiser), (again, second)):
        losses = [take_step(one, each, x, y, criterion) for _ in range(20)]
        assert spectral_layers(each, one) == {"first.weight"}
        assert losses[-1] < losses[0]
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))


def test_a_layer_reads_tokens_where_it_does_so_in_any_process() -> None:
    """Processes that took different steps would wait for each other."""
    module, x = nn.Linear(5, 3).double(), draw(6, 4, 5)
    (layer,) = regressions(module, set(module.parameters()))
    own, other = capture.Capture(layer), capture.Capture(layer)
    own.add(module, x[:, :1], module(x[:, :1]))
    other.add(module, x, module(x))
    own.summed(lambda part: part + other.size if part.shape == other.size.shape else part)
    capture._read_numbers([own])
    assert own.tokens


@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_call_different_heads_agree_on_the_last_layer(process: int) -> None:
    """Of two heads, each called by one process, after a body that both call: weights of different decay would drift apart."""
    module = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)]).double()
    numbers = [(0, 0), (1, -1), (-1, 2)]  # of the last calls in both processes
    found = [capture.Capture(layer) for layer in regressions(module, set(module.parameters()))]
    for each, both in zip(found, numbers, strict=True):
        each.add(each.regression.modules[0], draw(6, 5), draw(6, 3))
        each.number, other = both[process], draw(2).new_tensor([both[1 - process] + 1, both[1 - process] >= 0])

        def add_up(part: Tensor, other: Tensor = other) -> Tensor:
            return part + other if part.shape == other.shape else part

        each.summed(add_up)
    capture._read_numbers(found)
    for each in found:
        each.curvature = 1.0
    assert capture.last_weight(found) is module[2].weight


def test_outputs_that_are_not_finite_are_left_out_with_a_warning() -> None:
    module, x, y = Tokens(), draw(30, 4, 5), draw(30, 2, seed=1)
    nn.init.constant_(module.first.weight, 1e200)
    optimiser = Lifted(module, nn.MSELoss(), weight_decay=0.0)
    with pytest.warns(UserWarning, match="not finite"):
        take_step(optimiser, module, x, y, nn.MSELoss())
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_a_layer_that_starts_at_zero_moves() -> None:
    module, x, y = Tokens(), draw(30, 4, 5), draw(30, 2, seed=1)
    nn.init.zeros_(module.first.weight)
    nn.init.zeros_(module.first.bias)
    optimiser = Lifted(module, nn.MSELoss(), trust=0.5)
    take_step(optimiser, module, x, y, nn.MSELoss())
    # A tenth of the inputs' size, times the trust and the rate over 1 - momentum.
    moved = module.first(x).detach().square().mean().sqrt() / x.square().mean().sqrt()
    assert 0.2 < float(moved) / (0.1 * 0.5 * 0.05 / (1 - 0.9)) < 1.3


def test_a_layer_whose_inputs_and_outputs_are_all_0_waits_until_they_are_not() -> None:
    module, x, y = Tokens(bias=False), draw(30, 4, 5), draw(30, 2, seed=1)
    optimiser, before = Lifted(module, nn.MSELoss(), weight_decay=0.0), module.first.weight.detach().clone()
    for _ in range(2):
        take_step(optimiser, module, 0 * x, y, nn.MSELoss())
    assert torch.equal(module.first.weight, before)
    losses = [take_step(optimiser, module, x, y, nn.MSELoss()) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert not torch.equal(module.first.weight, before)


@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_a_bias_alone_moves_the_outputs_by_the_trust(unit: float) -> None:
    """In the units of the outputs, whatever those of the responses are."""
    module, x, y = Tokens(), draw(30, 4, 5), unit * draw(30, 2, seed=1)
    module.first.weight.requires_grad_(False)
    optimiser, before = Lifted(module, nn.MSELoss(), lr=1.0, momentum=0.0, trust=0.5), module.first(x).detach()
    take_step(optimiser, module, x, y, nn.MSELoss())
    moved = (module.first(x).detach() - before).square().mean().sqrt() / before.square().mean().sqrt()
    assert 0.6 < float(moved) / 0.5 < 1.3


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_whose_gradient_is_0_does_not_move(bias: bool) -> None:
    """In a batch without rows. The average of gradients does not become 0, and its polar factor is as large as before."""
    module, x, y = Tokens(bias), draw(30, 4, 5), draw(30, 2, seed=1)
    optimiser = Lifted(module, nn.MSELoss())
    take_step(optimiser, module, x, y, nn.MSELoss())
    before = copy.deepcopy(module.first)
    optimiser.zero_grad()
    module(x[:0]).sum().backward()
    optimiser.step()
    assert all(torch.equal(p, q) for p, q in zip(module.first.parameters(), before.parameters(), strict=True))
    take_step(optimiser, module, x, y, nn.MSELoss())
    assert not torch.equal(module.first.weight, before.weight)


def test_a_singular_matrix_has_a_root() -> None:
    """A copy of a column and a column of zeros, without damping."""
    x = draw(20, 1, 3)
    x = torch.cat([x, x[..., :1], 0 * x[..., :1]], -1)
    metric = LayerMetric.of(BlockMoments.of(x), spectral=True)
    (matrix,) = metric.refresh(3.0, 0.0, centred=True)
    metric.invert([matrix], iter([True]))
    gram = np.cov(x[:, 0].T.numpy(), bias=True)
    root = metric.root[0][0].numpy()
    np.testing.assert_allclose(root.T @ root, np.linalg.pinv(gram, 1e-9, hermitian=True), rtol=1e-6, atol=1e-9)


def test_a_transformer_learns_to_copy() -> None:
    """The first token to all: attention has to find it."""
    torch.manual_seed(0)
    letters = nn.Embedding(8, 16)
    places = nn.Parameter(0.1 * torch.randn(6, 16))
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    class Copy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places, self.block, self.head = letters, places, block, nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.letters(x) + self.places)).transpose(1, 2)  # type: ignore[no-any-return]

    module, steps = Copy(), 150
    optimiser = Lifted(module, nn.CrossEntropyLoss())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for number in range(steps):
        x = torch.randint(8, (32, 6), generator=torch.Generator().manual_seed(number))
        take_step(optimiser, module, x, x[:, :1].expand(-1, 6), nn.CrossEntropyLoss())
        scheduler.step()
    x = torch.randint(8, (64, 6), generator=torch.Generator().manual_seed(999))
    assert float(fn.cross_entropy(module(x).detach(), x[:, :1].expand(-1, 6))) < 0.5  # log 8 = 2.08 by chance
