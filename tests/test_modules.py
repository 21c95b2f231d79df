"""Modules read as lifted networks, compared with the module's own forward. Back again, exported, and refused with the layer's name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as fn
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import liftednn as lnn
from liftednn import activations as act
from liftednn.base import Operator
from liftednn.losses import Matching, SoftmaxCrossEntropy, Split, SquaredError
from liftednn.modules import from_module, read, to_module
from liftednn.modules.layers import same_phi
from liftednn.testing import check_activation
from tests.exports import onnx_program

HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "leaky, slope 0": lambda: nn.LeakyReLU(0.0),
    "leaky, slope 2": lambda: nn.LeakyReLU(2.0),
    "prelu": nn.PReLU,
    "prelu, equal slopes": lambda: nn.PReLU(7, 0.3),
    "hardtanh": nn.Hardtanh,
    "hardtanh (0, 1)": lambda: nn.Hardtanh(0.0, 1.0),
    "hardtanh (-2, 0.5)": lambda: nn.Hardtanh(-2.0, 0.5),
    "hardtanh (0.2, 1)": lambda: nn.Hardtanh(0.2, 1.0),
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "softplus, threshold 40": lambda: nn.Softplus(threshold=40),
    "softmax": lambda: nn.Softmax(dim=1),
    "identity": nn.Identity,
    "dropout": lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Identity(), nn.Tanh()), nn.Flatten()),
}
JOINT = {
    "relu": act.ReLU(),
    "leaky": act.LeakyReLU(0.2),
    "hardtanh": act.HardTanh(),
    "hardtanh (0, 1)": act.HardSigmoid(),
    "identity": act.Identity(),
}


def rows(n: int = 50, p: int = 5, seed: int = 0) -> Tensor:
    return 3 * torch.randn(n, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chain(*middle: nn.Module, last: nn.Module | None = None, outputs: int = 3, bias: bool = True) -> nn.Sequential:
    """5 - 7 - `middle` - outputs, in float64 and in training mode, with weights large enough to reach every kink."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(5, 7, bias), *middle, nn.Linear(7, outputs), *([last] if last else [])).double()
    for part in module.parameters():
        if part.ndim == 2:
            nn.init.normal_(part)
    return module


def oracle(module: nn.Module, x: Tensor) -> Tensor:
    training = module.training
    with torch.no_grad():
        y: Tensor = module.eval()(x)
    module.train(training)
    return y


def linked(module: nn.Module, x: Tensor, **options: Any) -> Tensor:
    network, weights = from_module(module, **options)
    return network.loss(lnn.predict.feedforward(network, weights, x))


def close(a: Tensor, b: Tensor, tol: float = 1e-8) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", HIDDEN)
def test_the_feedforward_rule_is_the_modules_forward(name: str) -> None:
    module, x = chain(HIDDEN[name]()), rows()
    close(linked(module, x, loss="squared"), oracle(module, x))
    assert module.training


@pytest.mark.parametrize("name", JOINT)
def test_the_paper_s_divergences_give_the_same_forward(name: str) -> None:
    module, x = chain(HIDDEN[name]()), rows()
    network, _ = from_module(module, "squared", "euclidean")
    assert network.hidden == [JOINT[name]]
    close(linked(module, x, loss="squared", divergence="euclidean"), oracle(module, x))


@pytest.mark.parametrize("name", [name for name in HIDDEN if name not in ("identity", "softmax", "dropout")])
def test_what_a_module_ends_in_is_the_link_of_its_loss(name: str) -> None:
    last = HIDDEN[name]() if name != "prelu, equal slopes" else nn.PReLU(3, 0.3)
    module, x = chain(nn.ReLU(), last=last), rows()
    network, _ = from_module(module)
    assert isinstance(network.loss, Matching)
    close(linked(module, x), oracle(module, x))


def test_softmax_and_its_logarithm_end_in_the_softmax_loss() -> None:
    x = rows()
    for last, of in ((nn.Softmax(dim=-1), lambda p: p), (nn.LogSoftmax(dim=1), lambda p: p.log())):
        module = chain(nn.Tanh(), last=last)
        assert from_module(module)[0].loss == SoftmaxCrossEntropy()
        close(of(linked(module, x)), oracle(module, x))


def test_a_loss_goes_with_what_its_declared_link_computes() -> None:
    module = chain(nn.Tanh(), last=nn.ReLU())
    assert from_module(module, Split(SquaredError(), act.ReLU()))[0].loss == Split(SquaredError(), act.ReLU())
    slopes = torch.full((3,), 0.3)
    assert same_phi(act.FenchelLeakyReLU(slopes), act.FenchelLeakyReLU(slopes.clone()))
    assert not same_phi(act.FenchelLeakyReLU(slopes), act.FenchelLeakyReLU(2 * slopes))
    undeclared = type("Undeclared", (Matching,), {"link": None})()
    with pytest.raises(ValueError, match="ends the module, but the link of"):
        from_module(chain(nn.Tanh(), last=nn.Sigmoid()), undeclared)


def test_the_loss_without_a_last_activation_follows_the_outputs() -> None:
    assert from_module(chain(nn.ReLU()))[0].loss == SoftmaxCrossEntropy()
    assert from_module(chain(nn.ReLU(), outputs=1))[0].loss == SquaredError()
    assert from_module(chain(nn.ReLU()), Matching())[0].loss == Matching()


def test_one_linear_layer_is_a_network_without_hidden_layers() -> None:
    module, x = nn.Linear(5, 2).double(), rows()
    network, weights = from_module(module)
    assert len(network.layers) == 1
    close(lnn.predict.feedforward(network, weights, x), oracle(module, x))


def test_a_layer_without_bias_stays_without() -> None:
    module, x = chain(nn.ReLU(), bias=False), rows()
    network, weights = from_module(module, "squared")
    assert [layer.operator.bias for layer in network.layers] == [False, True]
    assert not bool(weights[0].b.any())
    close(linked(module, x, loss="squared"), oracle(module, x))
    back = to_module(network, weights)
    assert isinstance(back, nn.Sequential)
    assert isinstance(back[0], nn.Linear)
    assert back[0].bias is None


def test_weights_are_copies_in_one_precision() -> None:
    first, last = nn.Linear(5, 4).double(), nn.Linear(4, 2).half()
    module = nn.Sequential(first, nn.ReLU(), last)
    _, weights = from_module(module)
    assert {part.dtype for pair in weights for part in pair} == {torch.float64}
    assert {part.dtype for pair in from_module(last)[1] for part in pair} == {torch.float32}
    weights[0].w.zero_()
    assert bool(first.weight.any())


@pytest.mark.parametrize(
    "clip",
    [
        act.FenchelClip(0.0, 6.0),
        act.FenchelClip(0.0, 1.0, 6.0, 3.0),
        act.FenchelClip(-2.0, 0.5),
        act.FenchelClip(0.2, 1.0),
    ],
    ids=["relu6", "hard sigmoid", "both sides of 0", "off 0"],
)
@pytest.mark.thin(2)
def test_clips_are_activations(clip: act.FenchelClip) -> None:
    for seed in range(3):
        check_activation(clip, seed=seed)


class Plain(nn.Module):
    """A forward of its own that is a chain."""

    def __init__(self, call: Callable[[Plain, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.body = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
        self.conv = nn.Conv2d(1, 1, 1)
        self.drop, self.flat = nn.Dropout(0.5), nn.Flatten()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


FORWARDS: dict[str, Callable[[Plain, Tensor], Tensor]] = {
    "F.relu": lambda m, x: m.second(fn.relu(m.first(x))),
    "torch.relu": lambda m, x: m.second(torch.relu(m.first(x))),
    "x.relu()": lambda m, x: m.second(m.first(x).relu()),
    "x.relu_()": lambda m, x: m.second(m.first(x).relu_()),
    "F.relu6": lambda m, x: m.second(fn.relu6(m.first(x))),
    "F.leaky_relu": lambda m, x: m.second(fn.leaky_relu(m.first(x), 0.3)),
    "F.softplus": lambda m, x: m.second(fn.softplus(m.first(x))),
    "F.softmax": lambda m, x: m.second(fn.softmax(m.first(x), dim=1)),
    "x.softmax": lambda m, x: m.second(m.first(x).softmax(-1)),
    "F.hardtanh": lambda m, x: m.second(fn.hardtanh(m.first(x), -2.0, 1.0)),
    "F.hardsigmoid": lambda m, x: m.second(fn.hardsigmoid(m.first(x))),
    "torch.clamp": lambda m, x: m.second(torch.clamp(m.first(x), -1, 2)),
    "x.clamp(min=0)": lambda m, x: m.second(m.first(x).clamp(min=0)),
    "x.clip": lambda m, x: m.second(m.first(x).clip(min=0, max=1)),
    "torch.tanh": lambda m, x: m.second(torch.tanh(m.first(x))),
    "torch.sigmoid": lambda m, x: m.second(torch.sigmoid(m.first(x))),
    "F.dropout": lambda m, x: m.second(fn.dropout(m.first(x).tanh(), 0.5, m.training)),
    "training flag": lambda m, x: m.second(fn.dropout(m.first(x).tanh()) if m.training else m.first(x).tanh()),
    "sequential": lambda m, x: m.body(m.drop(m.first(x).relu())),
}
FLATTENED: dict[str, Callable[[Plain, Tensor], Tensor]] = {
    "torch.flatten": lambda m, x: m.second(m.first(torch.flatten(x, 1)).relu()),
    "x.flatten": lambda m, x: m.second(m.first(x.flatten(start_dim=1)).relu()),
    "x.view(n, -1)": lambda m, x: m.second(m.first(x.view(x.size(0), -1)).relu()),
    "x.size()[0]": lambda m, x: m.second(m.first(x.view(x.size()[0], -1)).relu()),
    "x.size(dim=0)": lambda m, x: m.second(m.first(x.view(x.size(dim=0), -1)).relu()),
    "x.reshape": lambda m, x: m.second(m.first(x.reshape(x.shape[0], -1)).relu()),
    "x.view(-1, 5)": lambda m, x: m.second(m.first(x.view(-1, 5)).relu()),
    "x.reshape((-1, 5))": lambda m, x: m.second(m.first(x.reshape((-1, 5))).relu()),
    "nn.Flatten": lambda m, x: m.second(m.first(m.flat(x)).relu()),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_that_is_a_chain_is_read(name: str) -> None:
    module, x = Plain(FORWARDS[name]).double(), rows()
    close(linked(module, x, loss="squared"), oracle(module, x))
    assert all(part.training for part in module.modules())


def test_a_forward_may_end_in_log_softmax() -> None:
    module, x = Plain(lambda m, x: fn.log_softmax(m.second(m.first(x).relu()), dim=1)).double(), rows()
    close(linked(module, x).log(), oracle(module, x))


@pytest.mark.parametrize("name", FLATTENED)
def test_a_forward_may_flatten_its_rows(name: str) -> None:
    module, x = Plain(FLATTENED[name]).double(), rows().reshape(-1, 1, 5, 1)
    assert read(module).flat
    close(linked(module, x.flatten(1), loss="squared"), oracle(module, x))


def test_modules_within_modules_are_read() -> None:
    inner = Plain(FORWARDS["F.relu"])
    module, x = nn.Sequential(inner, nn.Tanh(), nn.Linear(3, 2)).double(), rows()
    close(linked(module, x, loss="squared"), oracle(module, x))


def test_sequentials_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.fx.Tracer.trace", lambda *_: pytest.fail("traced"))
    read(nn.Sequential(nn.Flatten(), chain(nn.ReLU()), nn.Sigmoid()))


def branch(m: Plain, x: Tensor) -> Tensor:
    return m.second(m.first(x)) if x.sum() > 0 else m.second(-m.first(x))


def both(m: Plain, x: Tensor) -> Any:
    return m.second(m.first(x)), 1


def hooked() -> nn.Module:
    module = chain(nn.ReLU())
    module.get_submodule("2").register_forward_hook(lambda *_: None)
    return module


def named() -> nn.Module:
    return nn.Sequential(OrderedDict(body=nn.Sequential(nn.Linear(5, 7), nn.GELU()), head=nn.Linear(7, 2)))


def slopes() -> nn.Module:
    leaky = nn.PReLU(7)
    leaky.weight.data[2] = -0.5
    return chain(leaky)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv3d(1, 2, 3)), r"module\.0: Conv3d\(1, 2.* has no lifted form"),
    "deep inside": (named, r"module\.body\.1: GELU\(.*has no lifted form"),
    "layer norm": (lambda: chain(nn.LayerNorm(7)), r"module\.1: LayerNorm"),
    "list": (lambda: nn.ModuleList([nn.Linear(2, 2)]), r"module: ModuleList.*has no lifted form"),
    "no linear": (lambda: nn.Sequential(nn.Flatten()), "no Linear layer"),
    "activation first": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, 2)), r"module\.0: ReLU\(\) does not follow"),
    "two activations": (lambda: chain(nn.ReLU(), nn.Tanh()), r"module\.2: Tanh\(\) does not follow a Linear"),
    "widths": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(6, 2)), r"module\.1: .*takes 6 inputs, .* gives 7"),
    "partial flatten": (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(5, 2)), r"module\.0: .*all but the first"),
    "negative slope": (lambda: chain(nn.LeakyReLU(-0.1)), "slope -0.1 below 0: only increasing"),
    "a slope below 0": (slopes, r"module\.1: PReLU.*slopes from -0.5 to 0.25: only slopes above 0"),
    "softplus beta": (lambda: chain(nn.Softplus(beta=2)), "for beta=1 and a threshold of at least 20"),
    "softplus threshold": (lambda: chain(nn.Softplus(threshold=5)), "for beta=1 and a threshold of at least 20"),
    "softmax over rows": (lambda: chain(nn.Softmax(dim=0)), "give dim=1"),
    "hidden log-softmax": (lambda: chain(nn.LogSoftmax(dim=1)), r"module\.1: .*at the end of a module only"),
    "hook": (hooked, r"module\.2: Linear.* has forward hooks"),
    "weight norm": (lambda: chain(parametrizations.weight_norm(nn.Linear(7, 7))), r"module\.1: .*is parametrized"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), r"module\.0: .*has no weights yet"),
    "residual": (
        lambda: Plain(lambda m, x: m.second(m.first(x) + x)),
        "no lifted form at 'add', where tensors of 7 and 5 columns",
    ),
    "skip": (
        lambda: Plain(lambda m, x: m.second(m.first(x).relu()) + x),
        "no lifted form at 'add', where tensors of 3 and 5 columns",
    ),
    "two branches": (
        lambda: Plain(lambda m, x: m.second(m.first(x)) * m.first(x)),
        "no lifted form at 'mul': a call must take one tensor",
    ),
    "doubled": (
        lambda: Plain(lambda m, x: m.second(m.first(x)) * 2),
        r"module: mul\(2\) in the forward of Plain has no",
    ),
    "two outputs": (lambda: Plain(both), "no lifted form at 'output'"),
    "control flow": (lambda: Plain(branch), "module: the forward of Plain cannot be read as layers and sums"),
    "conv inside": (lambda: Plain(lambda m, x: m.second(m.conv(x))), r"module\.conv: Conv2d"),
    "called twice": (lambda: Plain(lambda m, x: m.first(m.first(x))), r"module\.first: .*takes 5 inputs, .* gives 7"),
    "half a clamp": (lambda: Plain(lambda m, x: m.second(m.first(x).clamp(max=1))), r"clamp\(max=1\)"),
    "other view": (lambda: Plain(lambda m, x: m.second(m.first(x).view(-1, 7, 1))), r"view\(-1, 7, 1\)"),
    "columns for rows": (lambda: Plain(lambda m, x: m.first(x.view(x.size(1), -1))), r"view\(size, -1\)"),
    "no rows in a view": (lambda: Plain(lambda m, x: m.second(m.first(x).view(-1, -1))), r"view\(-1, -1\)"),
    "other precision": (
        lambda: Plain(lambda m, x: m.first(x).softmax(1, torch.float64)),
        r"softmax\(1, torch.float64\)",
    ),
    "flat batch": (lambda: Plain(lambda m, x: m.first(x.flatten())), r"forward\.flatten: Flatten\(start_dim=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_lifted_form_is_refused_by_name_and_place(name: str) -> None:
    build, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        from_module(build())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.slow
def test_a_compiled_module_is_refused() -> None:
    compiled: Any = torch.compile(chain(nn.ReLU()))
    with pytest.raises(ValueError, match=r"give the module before torch\.compile: module\._orig_mod"):
        from_module(compiled)
    with pytest.raises(ValueError, match=r"give the module before torch\.compile: module\.0\._orig_mod"):
        from_module(nn.Sequential(compiled))


def test_two_inputs_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: float = 1.0) -> Tensor:
            return x * mask

    for module in (Two(), Masked()):
        with pytest.raises(ValueError, match=f"the forward of {type(module).__name__} has no lifted form at 'mask'"):
            from_module(module)


def test_arguments_with_a_default_that_are_never_used_are_no_hindrance() -> None:
    class Masked(Plain):
        def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 2.0) -> Tensor:
            return self.call(self, x)

    module, x = Masked(FORWARDS["F.relu"]).double(), rows()
    close(linked(module, x, loss="squared"), oracle(module, x))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"divergence": "euclidean"}, r"module\.1: Sigmoid\(\) has no jointly convex divergence"),
        ({"divergence": "bregman"}, "must be 'fenchel' or 'euclidean', got 'bregman'"),
        ({"loss": "squared"}, r"module\.3: Tanh\(\) ends the module, but the link of SquaredError\(\) is another"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        (
            {"loss": nn.NLLLoss()},
            "loss cannot be NLLLoss: give 'softmax', 'squared', 'absolute', 'huber', 'quantile', a Loss",
        ),
        (
            {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
            "loss=CrossEntropyLoss with label_smoothing has no lifted form",
        ),
        ({"loss": nn.CrossEntropyLoss(ignore_index=0)}, "loss=CrossEntropyLoss with ignore_index has no lifted form"),
        ({"loss": nn.BCEWithLogitsLoss(torch.ones(2))}, "loss=BCEWithLogitsLoss with weight has no lifted form"),
        ({"loss": SquaredError}, "loss cannot be the class SquaredError: give 'softmax', 'squared'"),
        ({"loss": fn.mse_loss}, "loss cannot be function: give 'softmax', 'squared'"),
    ],
    ids=[
        "no joint form",
        "divergence",
        "link",
        "loss",
        "torch",
        "smoothed",
        "ignoring",
        "weighted",
        "class",
        "function",
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_module(chain(nn.Sigmoid(), last=nn.Tanh()), **options)


def test_a_split_loss_may_end_a_module_that_ends_in_its_activation() -> None:
    loss = Split(SquaredError(), act.ReLU())
    assert from_module(chain(nn.ReLU(), last=nn.ReLU()), loss)[0].loss == loss


BACK = {
    name: make() for name, make in HIDDEN.items() if name not in ("prelu", "prelu, equal slopes", "dropout", "identity")
}


@pytest.mark.parametrize("name", BACK)
def test_there_and_back_gives_the_same_module(name: str) -> None:
    module, x = chain(BACK[name], last=nn.Sigmoid()), rows()
    network, weights = from_module(module)
    back = to_module(network, weights)
    close(oracle(back, x), oracle(module, x))
    again, same = from_module(back)
    assert again == network
    assert all(torch.equal(a, b) for p, q in zip(weights, same, strict=True) for a, b in zip(p, q, strict=True))


def test_back_from_the_paper_s_divergences_and_two_linears_in_a_row() -> None:
    network = lnn.LiftedNetwork.mlp([5, 7, 7, 7, 2], ["relu", "identity", act.LeakyReLU(0.3)])
    weights = lnn.BCD().init(network, rows(), torch.arange(50) % 2).weights
    module, x = to_module(network, weights), rows()
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.Linear, nn.LeakyReLU, nn.Linear]
    assert [type(layer) for layer in module] == kinds
    close(oracle(module, x), lnn.predict.feedforward(network, weights, x))
    assert {part.dtype for part in module.parameters()} == {torch.float64}


def test_back_leaves_the_global_generator_alone() -> None:
    network, weights = from_module(chain(nn.ReLU()))
    before = torch.get_rng_state()
    to_module(network, weights)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (lnn.LiftedNetwork.mlp([5, 4, 2], act.Sin()), r"layer 0: .*Sin\(\)"),
        (lnn.LiftedNetwork.mlp([5, 4, 2], act.Sign()), r"layer 0: .*Sign\("),
        (lnn.LiftedNetwork.mlp([5, 4, 2], act.Monotone()), "layer 0: .*Monotone"),
        (lnn.LiftedNetwork.mlp([5, 4, 2], act.MaxPool()), "layer 0: .*MaxPool"),
        (lnn.LiftedNetwork.mlp([5, 4, 2], act.LeakyReLU(3.0)), r"layer 0: .*LeakyReLU\(alpha=3"),
        (lnn.LiftedNetwork.mlp([5, 4, 2], loss=Split(SquaredError(), act.Simplex())), r"layer 1: .*Simplex\(\)"),
    ],
    ids=["sin", "sign", "monotone", "pooling", "steep leaky", "simplex"],
)
def test_what_torch_has_no_layer_for_is_refused(network: lnn.LiftedNetwork, what: str) -> None:
    shapes = [layer.operator.weight_shape for layer in network.layers]
    weights = [lnn.Affine(torch.zeros(shape), torch.zeros(shape[0])) for shape in shapes]
    with pytest.raises(ValueError, match=what):
        to_module(network, weights)


def test_an_operator_that_is_not_dense_is_refused() -> None:
    class Doubled(Operator):
        in_shapes, out_shape, weight_shape, bias = ((2,),), (2,), (2, 2), True
        rows = adjoint = lambda *_: None  # type: ignore[assignment]

    network = lnn.LiftedNetwork([lnn.Layer(Doubled(), SquaredError())])
    with pytest.raises(ValueError, match=r"layer 0: torch has no standard layer for .*Doubled.*only Dense"):
        to_module(network, [lnn.Affine(torch.eye(2), torch.zeros(2))])


def exported() -> tuple[nn.Module, Tensor]:
    module = chain(nn.ReLU(), nn.Linear(7, 7), nn.Hardsigmoid(), nn.Linear(7, 7), nn.LeakyReLU(0.1), last=nn.Sigmoid())
    network, weights = from_module(module.float())
    return to_module(network, weights).eval(), rows().float()


def test_torch_export_gives_the_same_numbers_for_any_batch() -> None:
    module, x = exported()
    program = torch.export.export(module, (x[:4],), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    for n in (2, 4, 50):
        close(program.module()(x[:n]), module(x[:n]), 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
def test_onnx_gives_the_same_numbers_for_any_batch() -> None:
    module, x = exported()
    program = onnx_program(module, x)
    for n in (2, 50):
        close(program(x[:n]), module(x[:n]).detach(), 1e-5)


MATCHED = [Matching(), Matching(act.Tanh()), Matching(act.FenchelReLU()), Matching(act.FenchelLeakyReLU(0.2))]
MATCHED += [
    Matching(act.Softplus()),
    Matching(act.Softmax()),
    Matching(act.Sin()),
    Matching(act.FenchelClip(-1.0, 3.0)),
]


@pytest.mark.parametrize("loss", MATCHED, ids=lambda loss: type(loss.activation).__name__)
def test_the_matching_loss_is_a_convex_divergence_that_vanishes_at_its_own_response(loss: Matching) -> None:
    u, other, y = rows(200), rows(200, seed=1), loss(rows(200, seed=2))
    assert torch.equal(loss.encode(y, 5), y)
    assert torch.equal(loss.decode(u), loss.activation(u))
    value = loss.value(u, y)
    assert bool((value >= -1e-9).all())
    assert float(loss.value(u, loss(u)).abs().max()) < 1e-6
    leaf = u.clone().requires_grad_()
    if not isinstance(loss.activation, act.Softplus):  # its conjugate is a series that torch does not differentiate
        (slope,) = torch.autograd.grad(loss.value(leaf, y).sum(), leaf)
        close(loss.grad(u, y), slope, 1e-6)
    rise = loss.value(other, y) - value - (loss.grad(u, y) * (other - u)).sum(-1)
    assert bool((rise >= -1e-7).all())
    assert bool((rise <= loss.curvature / 2 * (other - u).square().sum(-1) + 1e-7).all())
    moved = loss.prox_u(u, y, 0.7)
    close(loss.grad(moved, y) + (moved - u) / 0.7, torch.zeros_like(u), 1e-6)


def test_the_matching_loss_of_the_sigmoid_is_the_binary_cross_entropy_less_the_entropy() -> None:
    u, y = rows(60), rows(60, seed=1).sigmoid()
    entropy = fn.binary_cross_entropy(y, y, reduction="none")
    expected = fn.binary_cross_entropy_with_logits(u, y, reduction="none") - entropy
    close(Matching().value(u, y), expected.sum(-1))
    hard = (y > 0.5).double()
    close(Matching().value(u, hard), fn.binary_cross_entropy_with_logits(u, hard, reduction="none").sum(-1))
    close(Matching(act.Softmax()).value(u, y.softmax(-1)), SoftmaxCrossEntropy().value(u, y.softmax(-1)))


def test_the_matching_score_is_that_of_the_activated_scores() -> None:
    u, y = rows(60), rows(60, seed=1).sigmoid()
    assert Matching().score(u, y) == SquaredError().score(u.sigmoid(), y)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Matching().encode(torch.tensor([0.0, 1.5]), 1), r"from 0 to 1\.5, .* must lie from 0 to 1: rescale"),
        (lambda: Matching(act.Tanh()).encode(torch.tensor([-2.0]), 1), "must lie from -1 to 1"),
        (lambda: Matching(act.FenchelReLU()).encode(torch.tensor([-1.0]), 1), "must lie from 0 to inf"),
        (lambda: Matching(act.Softmax()).encode(torch.ones(2, 3), 3), r"in the range of Softmax\(\), row by row"),
        (lambda: Matching().encode(torch.tensor([float("nan")]), 1), "must lie from 0 to 1"),
        (lambda: Matching().encode(torch.ones(4), 2), r"y has shape \(4,\), but the network has 2 outputs"),
        (lambda: Matching(act.ReLU()), r"Fenchel divergence of finite curvature, got ReLU\(.*Split"),
        (lambda: Matching(act.Sign(0.0)), r"finite curvature, got Sign\(eps=0"),
    ],
    ids=["sigmoid", "tanh", "relu", "softmax", "nan", "shape", "jointly convex", "curvature"],
)
def test_matching_refuses_in_words(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_labels_are_responses_of_the_sigmoid() -> None:
    assert Matching().encode(torch.tensor([0, 1, 1]), 1).tolist() == [[0.0], [1.0], [1.0]]
    assert Matching().encode(torch.tensor([True, False]), 1).tolist() == [[1.0], [0.0]]


def test_the_error_for_an_unknown_activation_lists_the_names() -> None:
    with pytest.raises(ValueError, match="unknown activation 'logistic': give one of") as caught:
        act.named("logistic")
    names = str(caught.value).partition("give one of ")[2].partition(", a Fenchel form")[0].split(", ")
    assert {"relu", "tanh", "sigmoid", "softplus"} <= set(names)
    assert all(isinstance(act.named(name), act.Activation) for name in names)
    assert not any("fenchel" in name or "logistic" in name for name in names)


@pytest.mark.parametrize("last", [nn.Softmax(0), nn.LogSoftmax(-2)])
def test_a_last_softmax_over_rows_of_others_is_refused(last: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), last)
    with pytest.raises(ValueError, match="must be taken over each row: give dim=1"):
        lnn.init.from_module(module)


def test_an_argument_by_keyword_is_refused_in_words() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(input=self.first(x))

    with pytest.raises(ValueError, match="has no lifted form at 'relu'"):
        lnn.init.from_module(Keyword())
