"""Convolutional networks without normalisation as torch modules, and initial weights for them.

All end in a dense layer, the head. `divide` makes every layer narrower by that factor, for quick runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import liftednn as lnn

__all__ = [
    "NETWORKS",
    "STARTS",
    "Residual",
    "fit_head_",
    "he_",
    "hidden_weights",
    "layers_of",
    "lenet",
    "lifted_start_",
    "lsuv_",
    "residual",
    "six_convolutions",
]

_RHO = 1e-3  # of the fitted head, as in the paper's experiments
_ROWS = 2000  # evaluated at a time, and looked at by LSUV


def lenet(divide: int = 1) -> nn.Sequential:
    """Images (1, 28, 28); convolutions 5 x 5 of 20 and 50 filters, a dense layer of 500."""
    a, b, c = (width // divide for width in (20, 50, 500))
    convolutions = [nn.Conv2d(1, a, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * b, c), nn.ReLU(), nn.Linear(c, 10))


def six_convolutions(divide: int = 1) -> nn.Sequential:
    """Images (3, 32, 32); pairs of convolutions 3 x 3 of 64, 128 and 256 filters, pooled after each pair, a dense layer of 256."""
    layers: list[nn.Module] = []
    before = 3
    for width in (64 // divide, 128 // divide, 256 // divide):
        layers += [*_convolution(before, width), *_convolution(width, width), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * before, before), nn.ReLU(), nn.Linear(before, 10))


def residual(divide: int = 1) -> nn.Sequential:
    """Images (3, 32, 32); eight convolutions 3 x 3, two pairs of them beside a skip connection, and the maximum over positions."""
    a, b, c = (width // divide for width in (64, 128, 256))
    return nn.Sequential(
        *_convolution(3, a),
        *_convolution(a, b),
        nn.MaxPool2d(2),
        Residual(b),
        *_convolution(b, c),
        nn.MaxPool2d(2),
        *_convolution(c, c),
        nn.MaxPool2d(2),
        Residual(c),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(c, 10),
    )


class Residual(nn.Module):
    """relu(x + f(x)), f two convolutions 3 x 3 with a ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_convolution(width, width), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return (x + branch).relu()


def _convolution(p: int, q: int) -> list[nn.Module]:
    return [nn.Conv2d(p, q, 3, padding=1), nn.ReLU()]


NETWORKS: dict[str, Callable[[int], nn.Sequential]] = {
    "LeNet": lenet,
    "six convolutions": six_convolutions,
    "residual": residual,
}


def layers_of(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """The layers that have weights, in their order."""
    return [each for each in module.modules() if isinstance(each, nn.Conv2d | nn.Linear)]


def hidden_weights(module: nn.Module) -> list[nn.Parameter]:
    """The matrices and kernels between the first layer and the head, those of an LSTM among them: what Muon moves."""
    layers = layers_of(module)[:-1]
    embedded = any(isinstance(each, nn.Embedding) for each in module.modules())
    recurrent = [each for each in module.modules() if isinstance(each, nn.LSTM)]
    found: list[nn.Parameter] = [layer.weight for layer in (layers if embedded else layers[1:])]  # type: ignore[misc]
    return found + [weight for each in recurrent for weight in each.parameters() if weight.ndim == 2]


def he_(module: nn.Module, seed: int) -> None:
    """He's weights, variance 2 / inputs of a unit, and zero biases."""
    generator = _generator(module, seed)
    for layer in layers_of(module):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        _zero(layer)


def fit_head_(module: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """The head fitted by logistic regression on the features of all rows: the control that every lifted start has to beat."""
    head = module[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        features = torch.cat([module[:-1](part) for part in torch.split(x, _ROWS)])
        network = lnn.LiftedNetwork.mlp([head.in_features, head.out_features], loss="softmax", rho=_RHO)
        (fitted,) = lnn.BCD().init(network, features, y).weights
        head.weight.copy_(fitted.w)
        _bias(head).copy_(fitted.b)


def lsuv_(module: nn.Module, x: Tensor, seed: int) -> None:
    """Mishkin and Matas: orthogonal, then each layer scaled to pre-activations of variance 1 on the data."""
    generator = _generator(module, seed)
    with torch.no_grad():
        for layer in layers_of(module):
            drawn = torch.empty_like(layer.weight, memory_format=torch.contiguous_format)  # torch takes no other here
            layer.weight.copy_(nn.init.orthogonal_(drawn, generator=generator))
            _zero(layer)
            layer.weight.div_(_output(module, layer, x[:_ROWS]).std())


def lifted_start_(module: nn.Module, x: Tensor, y: Tensor, seed: int) -> None:
    """`liftednn.init.lifted_` as a user calls it, nothing chosen; its seed is that of torch's generator, which is then as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lnn.init.lifted_(module, x, y)


def _output(module: nn.Module, layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer of a module gives."""
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _layer, _given, output: seen.append(output))
    try:
        module(x)
    finally:
        hook.remove()
    return seen[0]


def _generator(module: nn.Module, seed: int) -> torch.Generator:
    return torch.Generator(next(module.parameters()).device).manual_seed(seed)


def _bias(layer: nn.Conv2d | nn.Linear) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _zero(layer: nn.Conv2d | nn.Linear) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


# Change a module that has He's weights, from all rows and labels and a seed.
STARTS: dict[str, Callable[[nn.Sequential, Tensor, Tensor, int], None]] = {
    "He": lambda module, x, y, seed: None,
    "He + fitted head": lambda module, x, y, seed: fit_head_(module, x, y),
    "LSUV": lambda module, x, y, seed: lsuv_(module, x, seed),
    "lifted_": lambda module, x, y, seed: lifted_start_(module, x, y, seed),
}
