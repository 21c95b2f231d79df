"""Layers of the optimiser beyond Linear and convolutions: transposed convolutions and attention."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from liftednn.optim import Lifted
from liftednn.optim.layers import regressions
from tests.test_optim import draw, take_step

EXACT = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "damping": 0.0, "trust": 1e6}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_pointwise_transposed_convolution_is_a_convolution(groups: int, bias: bool) -> None:
    """Of size 1 and stride 1 both are a Linear on pixels; with a refresh before the third step."""
    module: Any = nn.Sequential(
        nn.ConvTranspose2d(4, 6, 1, groups=groups, bias=bias), nn.Tanh(), nn.ConvTranspose2d(6, 2, 1)
    )
    other: Any = nn.Sequential(nn.Conv2d(4, 6, 1, groups=groups, bias=bias), nn.Tanh(), nn.Conv2d(6, 2, 1))
    module, other = module.double(), other.double()
    for transposed, plain in ((module[0], other[0]), (module[2], other[2])):
        parts = [part.transpose(0, 1) for part in transposed.weight.detach().chunk(transposed.groups)]
        plain.weight.data = torch.cat(parts)
        if plain.bias is not None:
            plain.bias.data = transposed.bias.detach().clone()
    x, y = draw(5, 4, 3, 3), draw(5, 2, 3, 3, seed=1)
    pair = [(each, Lifted(each, nn.MSELoss())) for each in (module, other)]
    for _ in range(4):
        losses = [take_step(optimiser, each, x, y, nn.MSELoss()) for each, optimiser in pair]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    torch.testing.assert_close(module(x), other(x))


def hessian_of(module: Any, x: Tensor) -> Tensor:
    """The Hessian of half the summed squares of the outputs in the weight, a matrix."""

    def half_square(w: Tensor) -> Tensor:
        return 0.5 * torch.func.functional_call(module, {"weight": w}, x).square().sum()

    size = module.weight.numel()
    return torch.autograd.functional.hessian(half_square, module.weight.detach()).reshape(size, size)


def metric_of(module: Any, x: Tensor) -> Tensor:
    """c gram as the quadratic form of the weight, measured for half the summed squares."""
    optimiser = Lifted(module, nn.HuberLoss(reduction="sum", delta=1e6), **EXACT)
    y = module(x).detach() + 1e-6
    take_step(optimiser, module, x, y, nn.HuberLoss(reduction="sum", delta=1e6))
    metric = optimiser.state[module.weight]["metric"]
    (layer,), (count, mean) = regressions(module, {module.weight}), (metric["count"], metric["mean"])
    gram = metric["xx"][0] / count + mean[:, :, None] * mean[:, None]
    basis = torch.eye(module.weight.numel()).double().reshape(-1, *module.weight.shape)
    images = [layer.from_matrix(metric["curvature"] * layer.matrix(w) @ gram).flatten() for w in basis]
    return torch.stack(images)


DISJOINT: dict[str, Any] = {
    "1d": (nn.ConvTranspose1d(3, 2, 3, stride=3, bias=False), (6, 3, 4)),
    "2d": (nn.ConvTranspose2d(3, 2, 2, stride=2, bias=False), (4, 3, 3, 2)),
    "grouped": (nn.ConvTranspose2d(4, 6, (2, 1), stride=(2, 1), groups=2, bias=False), (4, 4, 3, 2)),
}


@pytest.mark.parametrize("name", DISJOINT)
def test_the_metric_of_a_transposed_convolution_without_overlap_is_the_hessian(name: str) -> None:
    module, shape = DISJOINT[name]
    module, x = copy.deepcopy(module).double(), draw(*shape)
    truth = hessian_of(module, x)
    torch.testing.assert_close(metric_of(module, x), truth)
    y = module(x).detach() + draw(*module(x).shape, seed=1)
    take_step(Lifted(module, nn.MSELoss(), **EXACT), module, x, y, nn.MSELoss())
    module.zero_grad()
    nn.functional.mse_loss(module(x), y).backward()
    assert float(module.weight.grad.abs().max()) < 1e-9  # solved in one step


OVERLAPPING: dict[str, Any] = {
    "1d": (nn.ConvTranspose1d(2, 2, 3, bias=False), (4, 2, 5)),
    "2d": (nn.ConvTranspose2d(2, 1, 3, stride=2, bias=False), (3, 2, 3, 3)),
    "dilated": (nn.ConvTranspose1d(2, 2, 4, stride=2, dilation=2, bias=False), (4, 2, 5)),
    "coprime": (nn.ConvTranspose1d(2, 2, 4, stride=2, dilation=3, bias=False), (4, 2, 5)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_the_metric_of_an_overlapping_transposed_convolution_bounds_the_hessian(name: str) -> None:
    module, shape = OVERLAPPING[name]
    module, x = copy.deepcopy(module).double(), draw(*shape).abs()  # of one sign, so that overlapping terms add up
    truth = hessian_of(module, x)
    bound = metric_of(module, x)
    assert float(torch.linalg.eigvalsh(bound - truth).min()) > -1e-9 * float(truth.diagonal().max())
    assert float(torch.linalg.eigvalsh(bound).max()) < 3 * float(torch.linalg.eigvalsh(truth).max())  # and not by far


def test_transposed_convolutions_learn() -> None:
    """With padding, output_padding, output_size, one sample, a bias, and a weight that a convolution shares."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.down, self.tied = nn.Conv2d(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 1, 3, padding=1)
            self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1)
            self.last = nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1)
            self.tied.weight = self.down.weight

        def forward(self, x: Tensor) -> Tensor:
            h = fn.avg_pool2d(self.down(x).tanh(), 4)
            h = self.last(self.up(h).tanh(), output_size=x.shape[-2:])
            one: Tensor = self.last(self.up(x.new_ones(4, 2, 2)), output_size=x.shape[-2:])
            return self.tied(self.down(x)) + h + 0 * one

    module, x = Model(), draw(12, 1, 8, 8).float()
    optimiser, y = Lifted(module, nn.MSELoss(), adam_lr=1e-2), fn.avg_pool2d(x, 3, 1, 1)
    losses = [take_step(optimiser, module, x, y, nn.MSELoss()) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    measured = {name for name, p in module.named_parameters() if "metric" in optimiser.state[p]}
    assert measured == {"up.weight", "last.weight"}
    assert "exp_avg" in optimiser.state[dict(module.named_parameters())["last.bias"]]


class Attention(nn.Module):
    """The attention of torch, written with Linear."""

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads, e = of.num_heads, of.embed_dim
        packed = of.in_proj_weight
        weights = (of.q_proj_weight, of.k_proj_weight, of.v_proj_weight) if packed is None else packed.chunk(3)
        biases = (None,) * 3 if of.in_proj_bias is None else of.in_proj_bias.chunk(3)
        for name, w, b in zip("qkvo", (*weights, of.out_proj.weight), (*biases, of.out_proj.bias), strict=True):
            layer = nn.Linear(w.shape[1], e, bias=b is not None).double()
            layer.weight.data = w.detach().clone()
            if b is not None:
                layer.bias.data = b.detach().clone()
            self.add_module(name, layer)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        pairs = zip("qkv", (query, key, value), strict=True)
        q, k, v = (self.get_submodule(name)(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name, x in pairs)
        mixed = fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        found: Tensor = self.get_submodule("o")(mixed)
        return found, None


class Block(nn.Module):
    """An attention, to inputs that `kind` says, and a head."""

    def __init__(self, kind: str, attention: nn.Module) -> None:
        super().__init__()
        self.kind, self.attention = kind, attention
        torch.manual_seed(1)
        self.first, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        query = self.first(x)
        key = query if self.kind == "self" else x[:, :3].tanh()
        value = key if self.kind in ("self", "memory") else x[:, :3, :1] * x[:, :3]
        if self.kind == "widths":
            key, value = key[..., :2], value[..., :3]
        y: Tensor = self.attention(query, key, value)[0]
        return self.head((query + y).tanh())


@pytest.mark.parametrize("kind", ["self", "memory", "three", "widths"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.thin(2)
def test_attention_takes_the_steps_of_the_same_attention_with_linear(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    widths = {"kdim": 2, "vdim": 3} if kind == "widths" else {}
    attention = nn.MultiheadAttention(4, 2, bias=bias, batch_first=True, **widths).double()
    module, other = Block(kind, attention), Block(kind, Attention(attention))
    x, y = draw(7, 5, 4), draw(7, 5, 3, seed=1)
    pair = [(each, Lifted(each, nn.MSELoss())) for each in (module, other)]
    for _ in range(7):  # with refreshes before the third and the sixth
        for each, optimiser in pair:
            take_step(optimiser, each, x, y, nn.MSELoss())
    found: Any = other.attention
    truth = Attention(attention)
    for layer, expected in ((getattr(truth, name), getattr(found, name)) for name in "qkvo"):
        torch.testing.assert_close(layer.weight, expected.weight, rtol=1e-7, atol=1e-9)
        if bias:
            torch.testing.assert_close(layer.bias, expected.bias, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(module(x), other(x), rtol=1e-7, atol=1e-9)


def encoder(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)


def test_a_transformer_layer_learns_and_continues_from_its_state() -> None:
    """The geometries of queries, keys and values are saved with their common weight, and torch's linear is as before."""
    plain, (x, y) = fn.linear, (draw(8, 5, 4).float(), draw(8, 5, 4, seed=1).float())
    module, again = encoder(), encoder(seed=1)
    optimiser, second = Lifted(module, nn.MSELoss()), Lifted(again, nn.MSELoss(), lr=1.0)
    losses = [take_step(optimiser, module, x, y, nn.MSELoss()) for _ in range(8)]
    assert losses[-1] < losses[0]
    attention: Any = module.self_attn
    assert {name for name in optimiser.state[attention.in_proj_weight] if "metric" in name} == {
        "metric_0",
        "metric_4",
        "metric_8",
    }
    again.load_state_dict(module.state_dict())
    second.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for _ in range(4):
        found = []
        for each, one in ((module, optimiser), (again, second)):
            torch.manual_seed(0)
            found.append(take_step(one, each, x, y, nn.MSELoss()))
        assert found[0] == found[1]
    assert fn.linear is plain


def test_a_bias_of_which_only_some_rows_are_measured_is_left_to_adam() -> None:
    """Queries, keys and values have weights of their own, and one bias."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(4, 2, kdim=3, vdim=2).double()
    keys = module.k_proj_weight
    assert keys is not None
    before = keys.detach().clone()
    optimiser = Lifted(module, params=[p for p in module.parameters() if p is not keys])
    inputs = draw(5, 6, 4), draw(7, 6, 3), draw(7, 6, 2)
    for _ in range(3):
        optimiser.zero_grad()
        module(*inputs)[0].square().mean().backward()
        optimiser.step()
    assert "exp_avg" in optimiser.state[module.in_proj_bias]
    assert "metric" in optimiser.state[module.q_proj_weight]
    assert torch.equal(keys, before)


def test_an_error_in_a_refresh_leaves_the_linear_of_torch_as_it_was() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.calls = nn.MultiheadAttention(4, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.attention(x, x, x)[0]
            if self.calls > 1:
                raise ValueError("in the second call")
            return y

    plain, module, x = fn.linear, Fails(), torch.ones(3, 2, 4)
    optimiser = Lifted(module)
    module(x).square().sum().backward()
    with pytest.raises(ValueError, match="in the second call"):
        optimiser.step()
    assert fn.linear is plain


class Operations(TorchDispatchMode):
    """The number of calls of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_step(layers: int) -> Counter[str]:
    """Of one without a refresh."""
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    optimiser, (x, y) = Lifted(module, nn.MSELoss()), (draw(9, 4).float(), draw(9, 4).float())
    take_step(optimiser, module, x, y, nn.MSELoss())
    nn.functional.mse_loss(module(x), y).backward()
    with Operations() as found:
        optimiser.step()
    return found.counts


def test_a_step_on_layers_of_one_shape_has_as_many_operations_as_one_on_two_of_them() -> None:
    """But for views; and none waits for a device."""
    views = {"view", "alias", "detach", "slice"}
    two, six = ({k: n for k, n in operations_of_a_step(each).items() if k not in views} for each in (2, 6))
    assert two == six
    assert "_local_scalar_dense" not in six
    assert sum(n for k, n in six.items() if k not in ("t", "unsqueeze", "select", "expand")) < 35


def test_the_matrices_of_layers_of_one_shape_are_held_once() -> None:
    module: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimiser = Lifted(module, nn.MSELoss())
    take_step(optimiser, module, draw(9, 4).float(), draw(9, 4).float(), nn.MSELoss())
    held = [optimiser.state[layer.weight]["metric"]["inverse"][0] for layer in module]
    assert held[0].untyped_storage().data_ptr() == held[1].untyped_storage().data_ptr()
    assert optimiser._stacked is not None
    assert optimiser._stacked[1][0].inverse[0].data_ptr() == held[0].data_ptr()
