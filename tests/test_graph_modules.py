"""Modules with residual sums, skips and tied weights: read, written, exported and filled; compared with the module's own forward."""

from __future__ import annotations

import copy
import io
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn

import liftednn as lnn
from liftednn import activations as act
from liftednn.init import lifted_
from liftednn.losses import SquaredError
from liftednn.modules import FeedForward, State, from_module, read, to_module
from liftednn.operators import Dense, Residual, Sum
from tests.exports import onnx_program
from tests.test_connections import CASES, residual

# Few passes on few rows end worse than a linear model, and lifted_ says so.
pytestmark = pytest.mark.filterwarnings("ignore:lifted_")

WIDTH = 6


def rows(n: int = 200, seed: int = 0) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = rows()
LABELS = ((X[:, 0] * X[:, 1] + X[:, 2].abs()) > 0.8).long()


class Net(nn.Module):
    """Three Linear layers of equal widths and a head, called as `call` has it."""

    def __init__(self, call: Callable[[Net, Tensor], Any], bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH, bias) for _ in range(3))
        self.narrow, self.head = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 2)
        self.shift, self.scale = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.drop, self.norm, self.state = nn.Dropout(), nn.Identity(), State()
        self.kept = nn.Buffer(torch.randn(WIDTH, WIDTH))
        self.call = call
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


class Block(nn.Module):
    """A residual block with a forward of its own."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), last

    def forward(self, x: Tensor) -> Tensor:
        sum_ = x + self.second(torch.relu(self.first(x)))
        return torch.relu(sum_) if self.last else sum_


def blocks(last: bool) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), *(Block(last) for _ in range(3)), nn.Linear(WIDTH, 2)
    ).double()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.encoder, self.bias = nn.Linear(WIDTH, 4), nn.Parameter(torch.zeros(WIDTH))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return fn.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.bias)


def long_skip(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).relu()
    return m.head((m.c(m.b(h).tanh() + h) + x).relu())


def thrice(m: Net, x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.relu(m.a(x) + x)
    return m.head(x)


def tied_parameter() -> nn.Module:
    module = Net(lambda m, x: m.head(m.b(m.a(x).relu()).relu()))
    module.b.weight = module.a.weight
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "residual blocks": (lambda: blocks(True), LABELS),
    "pre-activation blocks": (lambda: blocks(False), LABELS),
    "long skip": (lambda: Net(long_skip), LABELS),
    "autoencoder": (Autoencoder, torch.tanh(X)),
    "one weight three times": (lambda: Net(thrice, bias=False), LABELS),
    "one parameter in two layers": (tied_parameter, LABELS),
}


def scores(module: nn.Module, x: Tensor = X) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(module).eval()(x)


def close(a: Tensor, b: Tensor, tol: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def without_keys(network: lnn.LiftedNetwork) -> list[lnn.Layer]:
    """Layers up to the names that states and keys have."""
    return [replace(layer, name="", reads=(), key="", transposed=False) for layer in network.layers]


@pytest.mark.parametrize("name", MODULES)
def test_the_feedforward_rule_is_the_modules_forward_and_back(name: str) -> None:
    module = MODULES[name][0]()
    network, weights = from_module(module, "squared")
    close(network.scores(weights, X), scores(module))
    back = to_module(network, weights)
    assert isinstance(back, FeedForward)
    close(scores(back), scores(module))
    again, same = from_module(back, "squared")
    assert again.connections == network.connections
    assert without_keys(again) == without_keys(network)
    close(again.scores(same, X), scores(module))
    assert from_module(to_module(again, same), "squared")[0] == again


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.thin(2)
def test_lifted_weights_lower_the_loss(name: str) -> None:
    make, y = MODULES[name]
    module = make()
    cost: Any = fn.mse_loss if y.is_floating_point() else fn.cross_entropy
    before, held = float(cost(scores(module), y)), list(module.parameters())
    torch.manual_seed(0)
    assert lifted_(module, X, y, passes=10) is module
    assert float(cost(scores(module), y)) < 0.8 * before
    assert all(now is then for now, then in zip(module.parameters(), held, strict=True))


def layers(call: Callable[[Net, Tensor], Tensor]) -> tuple[lnn.Layer, ...]:
    module = Net(call, bias=False)
    network, weights = from_module(module, "squared")
    close(network.scores(weights, X), scores(module))
    return network.layers


def test_what_is_added_and_what_enters() -> None:
    """Sums before a Linear enter it, sums behind it are added, and a state may do both."""
    _, post, _ = layers(lambda m, x: m.head(torch.relu(m.b(h := m.a(x).relu()) + h)))
    assert (post.operator, post.reads, post.divergence) == (Residual(Dense(6, 6, False)), (), act.FenchelReLU())
    _, _, pre, _ = layers(lambda m, x: m.head(x + m.b(m.c(m.a(x).relu()).relu())))
    assert (pre.operator, pre.reads, pre.divergence) == (Sum(Dense(6, 6, False)), ("x2", "x0"), act.Identity())
    _, both, last = layers(lambda m, x: m.head((m.b((h := m.a(x).relu()) + x) + h).relu() + x))
    assert (both.operator, both.reads) == (Sum(Dense(6, 6, False), (True, True), (True, False)), ("x1", "x0"))
    assert (last.operator, last.reads) == (Sum(Dense(6, 2), (True, True), (False, False)), ("x2", "x0"))


def test_keys_are_the_paths_of_parameters() -> None:
    linear = nn.Linear(WIDTH, WIDTH)
    twice = nn.Sequential(linear, nn.ReLU(), linear)
    assert [layer.key for layer in from_module(twice)[0].layers] == ["0.weight"] * 2
    found = [(layer.key, layer.transposed) for layer in from_module(Autoencoder())[0].layers]
    assert found == [("encoder.weight", False), ("encoder.weight", True)]
    assert [layer.key for layer in from_module(nn.Sequential(Net(thrice)))[0].layers] == ["0.a.weight"] * 3 + [""]
    assert [layer.key for layer in from_module(Net(long_skip))[0].layers] == [""] * 4


def in_place(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).relu()
    h += x
    return m.head(m.b(h).relu())


FORWARDS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "a + b": lambda m, x: m.head(torch.relu(m.a(x) + x)),
    "b + a": lambda m, x: m.head(torch.relu(x + m.a(x))),
    "torch.add": lambda m, x: m.head(torch.relu(torch.add(m.a(x), x, alpha=1))),
    "torch.add, by name": lambda m, x: m.head(torch.relu(torch.add(m.a(x), other=x))),
    "operator.add": lambda m, x: m.head(torch.relu(operator.add(m.a(x), x))),
    "a.add(b)": lambda m, x: m.head(m.a(x).add(x).relu()),
    "a.add_(b)": lambda m, x: m.head(m.a(x).add_(x).relu_()),
    "+=": in_place,
    "sum": lambda m, x: m.head(sum([m.a(x).relu(), x])),  # type: ignore[arg-type]
    "dropout and identity": lambda m, x: m.head(m.norm(m.drop(m.a(x)) + x).relu()),
    "flatten": lambda m, x: m.head((m.a(x.flatten(1)) + x.flatten(1)).relu()),
    "F.linear": lambda m, x: m.head(fn.linear(x, m.a.weight, m.shift).relu()),
    "F.linear, by name": lambda m, x: m.head(fn.linear(x, weight=m.a.weight, bias=None).relu()),
    "w.T": lambda m, x: m.head(fn.linear(x, m.a.weight.T, m.shift).relu()),
    "w.mT": lambda m, x: m.head(fn.linear(x, m.a.weight.mT).relu()),
    "w.transpose(0, 1)": lambda m, x: m.head(fn.linear(x, m.a.weight.transpose(0, 1)).relu()),
    "torch.t(w).t()": lambda m, x: m.head(fn.linear(x, torch.t(m.a.weight).t()).relu()),
    "x @ w": lambda m, x: m.head((x @ m.a.weight).relu()),
    "x @ w + b": lambda m, x: m.head((x @ m.a.weight + m.shift + x).relu()),
    "b + x.mm(w.t())": lambda m, x: m.head((m.shift + x.mm(m.a.weight.t())).relu()),
    "buffer": lambda m, x: m.head(((x @ m.kept).relu() @ m.kept).relu()),
    "matmul": lambda m, x: m.head(torch.matmul(x, m.narrow.weight.t()).relu().matmul(m.narrow.weight).relu()),
    "a bias of its own": lambda m, x: m.head(m.a(fn.linear(x, m.a.weight, m.shift).relu()).relu()),
    "state without activation": lambda m, x: m.head(torch.relu(m.state(m.a(x)) + m.b(x))),
    "linear twice in a row": lambda m, x: m.head(m.b(m.a(x)) + m.c(m.a(x)).relu()),
    "read and added": lambda m, x: m.head((h := m.a(x)) + m.c(m.b(h).relu())),
    "read, then a sum of it": lambda m, x: m.head(((h := m.a(x)) + x) + m.c(m.b(h).relu())),
    "the input enters the head": lambda m, x: m.head(m.c(m.b(h := m.a(x).relu()).tanh() + h).relu() + x),
    "softmax at the end": lambda m, x: fn.softmax(m.head(m.a(x).relu() + x), 1),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_sums_and_products_may_be_written_in_many_ways(name: str) -> None:
    module = Net(FORWARDS[name])
    attributes = set(vars(module))
    network, weights = from_module(module, None if "softmax" in name else "squared")
    close(network.loss(network.scores(weights, X)), scores(module))
    assert set(vars(module)) == attributes


def changed(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).relu()
    g = h
    h += x
    return m.head(m.b(h).relu() + g)


def twice_before(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(h.relu() + (h + x).tanh())


def skipping(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(h + m.b(h.relu()))


def read_before(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.head(m.b(h).relu() + h.relu())


def nowhere(m: Net, x: Tensor) -> Tensor:
    m.b(x).relu()
    return m.head(m.a(x).relu())


def no_activation(m: Net, x: Tensor) -> Tensor:
    m.b(x)
    return m.head(m.a(x).relu())


REFUSED: dict[str, tuple[Callable[[Net, Tensor], Any], str]] = {
    "two Linears": (lambda m, x: m.head(torch.relu(m.a(x) + m.b(x))), "outputs of two Linear layers are added: put an"),
    "itself": (lambda m, x: m.head(x + x), "at 'add', where a tensor is added twice"),
    "widths": (lambda m, x: m.head(m.narrow(x) + x), "tensors of 4 and 6 columns are added"),
    "alpha": (lambda m, x: m.head(torch.add(m.a(x), x, alpha=2)), r"module: add\(.*alpha=2\) in the forward of Net"),
    "a number": (lambda m, x: m.head(m.a(x) + 1), "no lifted form at 'add': a call must take one tensor"),
    "product": (lambda m, x: m.head(m.a(x).relu() * x), "no lifted form at 'mul': a call must take one tensor"),
    "concatenation": (lambda m, x: m.head(torch.cat([m.a(x), x], 1)), "no lifted form at 'cat'"),
    "two outputs": (lambda m, x: (m.a(x), m.b(x)), "no lifted form at 'output'"),
    "unused state": (nowhere, r"module\.b: Linear.* has an output that is not used"),
    "unused Linear": (no_activation, r"module\.b: Linear.* has an output that is not used"),
    "sum at the end": (lambda m, x: m.a(x).relu() + x, "ends in a sum of activated tensors"),
    "activation of a sum": (lambda m, x: m.head(torch.relu(m.a(x).relu() + x)), r"relu_1: ReLU\(\) does not follow"),
    "changed in place": (changed, r"changed in place: write a \+ b"),
    "two activations": (twice_before, r"module\.a: .*used twice, with different sums or activations"),
    "full pre-activation": (skipping, r"module\.a: .*used twice, with different sums or activations"),
    "read first": (read_before, r"relu_1: ReLU\(\) follows a tensor that a Linear reads too"),
    "scaled": (lambda m, x: m.head(m.a(x) * m.scale), "no lifted form at 'mul'"),
    "second bias": (lambda m, x: m.head(m.a(x) + m.shift), r"parameter of shape \(6,\) is added: add it to the output"),
    "bias of a state": (lambda m, x: m.head(m.a(x).relu() + m.shift), r"parameter of shape \(6,\) is added"),
    "wide bias": (
        lambda m, x: m.head(fn.linear(x, m.narrow.weight, m.shift)),
        "bias of 6 entries is added to 4 outputs",
    ),
    "constant": (lambda m, x: m.head(x @ torch.eye(WIDTH).double()), "not a parameter or buffer with 2 dimensions"),
    "changed weight": (lambda m, x: m.head(x @ m.a.weight.abs()), "no lifted form at 'abs_1'"),
    "product of states": (lambda m, x: m.head(m.a(x) @ x.t()), r"module: t\(\) in the forward of Net"),
    "weight in front": (lambda m, x: m.head(m.a.weight @ x), "no lifted form at 'matmul'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_lifted_form_is_refused_by_name_and_place(name: str) -> None:
    call, sentence = REFUSED[name]
    module = Net(call)
    attributes = set(vars(module))
    with pytest.raises(ValueError, match=sentence):
        from_module(module)
    assert set(vars(module)) == attributes


def test_a_bias_that_is_used_twice_is_read_but_not_filled() -> None:
    module = Net(thrice)
    network, weights = from_module(module, "squared")
    close(network.scores(weights, X), scores(module))
    kept = copy.deepcopy(module.state_dict())
    with pytest.raises(
        ValueError, match=r"module\.a: Linear.* has a bias that the module uses several times.*bias=False"
    ):
        lifted_(module, X, LABELS, passes=1)
    assert all(torch.equal(kept[name], part) for name, part in module.state_dict().items())
    module.a.bias.requires_grad_(False)
    lifted_(module, X, LABELS, passes=1)
    assert torch.equal(module.a.bias, kept["a.bias"])
    assert not torch.equal(module.a.weight, kept["a.weight"])


@pytest.mark.parametrize("frozen", ["encoder.weight", "encoder.bias", "bias"])
def test_frozen_parts_stay_where_weights_are_tied(frozen: str) -> None:
    module, y = Autoencoder(), torch.tanh(X)
    module.get_parameter(frozen).requires_grad_(False)
    kept = copy.deepcopy(module)
    lifted_(module, X, y, passes=5)
    for name, part in module.named_parameters():
        assert torch.equal(part, kept.get_parameter(name)) == (name == frozen), name


def test_rows_are_flattened_and_a_weight_used_once_may_be_transposed() -> None:
    module = Net(lambda m, x: m.head((x.flatten(1) @ m.a.weight + m.shift).relu()))
    assert read(module).flat
    with torch.no_grad():
        before = module.a.weight.clone()
    images = X.reshape(-1, 2, 3)
    lifted_(module, images, LABELS, passes=10)
    assert not torch.equal(module.a.weight, before)
    assert float(fn.cross_entropy(scores(module, images), LABELS)) < 0.6


NETWORKS = {"residual": residual, "autoencoder": CASES["autoencoder"][0], "recurrent": CASES["recurrent"][0]}


def linear_states(phi: lnn.Activation) -> lnn.LiftedNetwork:
    """States without an activation that are only added, or enter together."""
    identity = act.Identity()
    return lnn.LiftedNetwork(
        [
            lnn.Layer(Dense(6, 5), identity, name="a"),
            lnn.Layer(Dense(6, 5), phi, reads=("x0",)),
            lnn.Layer(Sum(Dense(5, 5)), identity, name="b", reads=("x2", "a"), key="w"),
            lnn.Layer(
                Sum(Dense(5, 5), (True, True), (False, False)), identity, reads=("a", "b"), key="w", transposed=True
            ),
            lnn.Layer(Residual(Dense(5, 5)), SquaredError(), key="w"),
        ]
    )


@pytest.mark.parametrize("name", [*NETWORKS, "linear states"])
def test_networks_become_modules_and_come_back(name: str) -> None:
    network = {**NETWORKS, "linear states": linear_states}[name](act.FenchelReLU())
    weights = [
        lnn.Affine(torch.randn(layer.operator.weight_shape).double() / 3, torch.randn(layer.operator.outputs).double())
        for layer in network.layers
    ]
    weights = [
        lnn.Affine(network.shared(number, weights), pair.b if layer.operator.bias else torch.zeros_like(pair.b))
        for number, (layer, pair) in enumerate(zip(network.layers, weights, strict=True))
    ]
    module = to_module(network, weights)
    close(scores(module), network.scores(weights, X))
    assert len(module.state_dict()) == len({part.data_ptr() for part in module.state_dict().values()})
    again, same = from_module(module, network.loss)
    assert again.connections == network.connections
    assert [layer.operator for layer in again.layers] == [layer.operator for layer in network.layers]
    assert again.hidden == network.hidden
    close(again.scores(same, X), network.scores(weights, X))


def written() -> FeedForward:
    network, weights = from_module(
        Net(lambda m, x: m.head(fn.linear(m.a(x).relu() + x, m.a.weight.t(), m.shift).tanh() + x))
    )
    module = to_module(network, weights)
    assert isinstance(module, FeedForward)
    return module


def test_a_written_module_is_copied_saved_and_printed() -> None:
    module = written()
    assert list(module.state_dict()) == [
        "linears.0.weight",
        "linears.0.bias",
        "linears.2.weight",
        "linears.2.bias",
        "biases.1",
    ]
    close(copy.deepcopy(module)(X), module(X), 0)
    memory = io.BytesIO()
    torch.save(module, memory)
    memory.seek(0)
    close(torch.load(memory, weights_only=False)(X), module(X), 0)
    assert "x2: linears.0 transposed on x1 + x0" in repr(module)
    half = copy.deepcopy(module).float()
    assert half(X.float()).dtype == torch.float32
    module(X).sum().backward()
    assert all(part.grad is not None for part in module.parameters())


def test_a_written_module_is_filled_and_may_be_part_of_another() -> None:
    module = nn.Sequential(written(), nn.ReLU(), nn.Linear(2, 2)).double()
    before = float(fn.cross_entropy(scores(module), LABELS))
    lifted_(module, X, LABELS, passes=10)
    assert float(fn.cross_entropy(scores(module), LABELS)) < 0.9 * before
    network, weights = from_module(module)
    close(network.scores(weights, X), scores(module))
    assert [layer.key for layer in network.layers] == ["0.linears.0.weight"] * 2 + [""] * 2


def test_torch_export_gives_the_same_numbers_for_any_batch() -> None:
    module = written().float().eval()
    x = X.float()
    program = torch.export.export(module, (x[:4],), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    for n in (2, 4, 50):
        close(program.module()(x[:n]), module(x[:n]), 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
def test_onnx_gives_the_same_numbers_for_any_batch() -> None:
    module, x = written().float().eval(), X.float()
    program = onnx_program(module, x)
    for n in (2, 50):
        close(program(x[:n]), module(x[:n]).detach(), 1e-5)


def test_writing_refuses_in_words() -> None:
    scaled = act.Scaled(act.Tanh(), 2.0)
    network = residual(scaled, 3)
    weights = from_module(to_module(residual(act.Tanh(), 3), zeros(network)))[1]
    with pytest.raises(ValueError, match=r"layer 1: the scale of Scaled.* into states that are added"):
        to_module(network, weights)
    tied = CASES["autoencoder"][0](act.Tanh())
    with pytest.raises(ValueError, match="layers 0 and 1 share the key 'w', but their weights differ"):
        to_module(tied, [lnn.Affine(torch.ones(4, 6), torch.ones(4)), lnn.Affine(torch.zeros(6, 4), torch.ones(6))])
    shaped = CASES["shaped"][0](act.Tanh())
    with pytest.raises(ValueError, match=r"layer 1: torch has no standard layer for Pointwise.*only Dense"):
        to_module(shaped, zeros(shaped))


def zeros(network: lnn.LiftedNetwork) -> list[lnn.Affine]:
    operators = [layer.operator for layer in network.layers]
    return [lnn.Affine(torch.zeros(each.weight_shape), torch.zeros(each.outputs)) for each in operators]
