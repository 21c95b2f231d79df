"""The networks of the experiment `optimisers`: with batch norms, residual sums, attention or recurrence, and plain chains.

`divide` makes every layer narrower by that factor, for quick runs. All give one row of scores for each label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from experiments.image_models import he_, layers_of, six_convolutions

__all__ = ["CONTEXT", "LETTERS", "NETWORKS", "CharacterLSTM", "Transformer", "VisionTransformer", "built"]

LETTERS = 128  # the characters of ASCII
CONTEXT = 128  # of a window of text
_HEADS = 4


def built(name: str, seed: int, divide: int = 1) -> nn.Module:
    """A network of `NETWORKS` on the CPU, with initial weights of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](divide)


def _convolution(p: int, q: int) -> list[nn.Module]:
    return [nn.Conv2d(p, q, 3, padding=1, bias=False), nn.BatchNorm2d(q), nn.ReLU()]


class _Residual(nn.Module):
    """x + f(x), f two convolutions with batch norms and ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_convolution(width, width), *_convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return x + branch


def _he(module: nn.Module) -> nn.Module:
    he_(module, int(torch.randint(2**31, ())))
    return module


def _resnet9(divide: int, last: int = 256) -> nn.Module:
    """Images (3, 32, 32); convolutions of 64, 128, 256 and `last` filters, two residual pairs, the maximum over positions."""
    a, b, c, d = (width // divide for width in (64, 128, 256, last))
    return _he(
        nn.Sequential(
            *_convolution(3, a),
            *_convolution(a, b),
            nn.MaxPool2d(2),
            _Residual(b),
            *_convolution(b, c),
            nn.MaxPool2d(2),
            *_convolution(c, d),
            nn.MaxPool2d(2),
            _Residual(d),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(d, 10),
        )
    )


def _vgg(divide: int) -> nn.Module:
    """Images (3, 32, 32); pairs of convolutions of 64, 128 and 256 filters with batch norms, a dense layer of 256."""
    layers: list[nn.Module] = []
    before = 3
    for width in (64 // divide, 128 // divide, 256 // divide):
        layers += [*_convolution(before, width), *_convolution(width, width), nn.MaxPool2d(2)]
        before = width
    return _he(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * before, before), nn.ReLU(), nn.Linear(before, 10)))


def _chain(widths: Sequence[int], ends: tuple[int, int], divide: int) -> nn.Module:
    """Dense layers with ReLU between them."""
    sizes = [ends[0], *(width // divide for width in widths), ends[1]]
    layers = [part for p, q in pairwise(sizes) for part in (nn.Linear(p, q), nn.ReLU())]
    return _he(nn.Sequential(*layers[:-1]))


class _Block(nn.Module):
    """Attention and two dense layers, each behind a layer norm and beside a skip connection."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        y = self.norms[0](x)
        query, key, value = (
            each(y).view(n, tokens, _HEADS, -1).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(n, tokens, width))
        changed: Tensor = self.narrow(gelu(self.wide(self.norms[1](x))))
        return x + changed


class _Attention(nn.Module):
    """Positions, blocks and a layer norm, on tokens (n, t, width)."""

    def __init__(self, tokens: int, width: int, blocks: int, causal: bool) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.blocks = nn.Sequential(*(_Block(width, causal) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.norm(self.blocks(tokens + self.positions[:, : tokens.shape[1]]))
        return found


class VisionTransformer(nn.Module):
    """Images (3, 32, 32); patches of 4, a width of 128, four blocks, the mean over tokens."""

    def __init__(self, divide: int) -> None:
        super().__init__()
        width = 128 // divide
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.body = _Attention(64, width, 4, causal=False)
        self.head = nn.Linear(width, 10)
        _xavier_(self)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return scores


class Transformer(nn.Module):
    """Characters (n, t); a width of 128, four blocks; scores (n t, characters) of the next ones."""

    def __init__(self, divide: int) -> None:
        super().__init__()
        width = 128 // divide
        self.letters = nn.Embedding(LETTERS, width)
        self.body = _Attention(CONTEXT, width, 4, causal=True)
        self.head = nn.Linear(width, LETTERS)
        _xavier_(self)
        nn.init.normal_(self.letters.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.letters(x))).flatten(0, 1)  # type: ignore[no-any-return]


class CharacterLSTM(nn.Module):
    """Characters (n, t); one nn.LSTM of 256 units; scores (n t, characters) of the next ones."""

    def __init__(self, divide: int) -> None:
        super().__init__()
        width = 256 // divide
        self.letters = nn.Embedding(LETTERS, width // 2)
        self.recurrence = nn.LSTM(width // 2, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrence(self.letters(x))[0]).flatten(0, 1)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Images (1, 28, 28) to images; three levels of two convolutions with batch norms, of 32, 64 and 128 filters."""

    def __init__(self, divide: int) -> None:
        super().__init__()
        a, b, c = (width // divide for width in (32, 64, 128))
        self.down = nn.ModuleList(
            nn.Sequential(*_convolution(p, q), *_convolution(q, q)) for p, q in ((1, a), (a, b), (b, c))
        )
        self.pool = nn.MaxPool2d(2)
        self.wider = nn.ModuleList([nn.ConvTranspose2d(c, b, 2, 2), nn.ConvTranspose2d(b, a, 2, 2)])
        self.up = nn.ModuleList(nn.Sequential(*_convolution(2 * q, q), *_convolution(q, q)) for q in (b, a))
        self.last = nn.Conv2d(a, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](self.pool(first))
        y = self.down[2](self.pool(second))
        for wider, up, beside in zip(self.wider, self.up, (second, first), strict=True):
            y = up(torch.cat([wider(y), beside], 1))
        return self.last(y)  # type: ignore[no-any-return]


def _xavier_(module: nn.Module) -> None:
    for layer in layers_of(module):
        nn.init.xavier_normal_(layer.weight.view(len(layer.weight), -1))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


_DENSE, _CODE = (500, 200, 100), (1000, 500, 250, 30, 250, 500, 1000)
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-9": _resnet9,
    "ResNet-9, 512 wide at its end": partial(_resnet9, last=512),
    "784-500-200-100-10": partial(_chain, _DENSE, (784, 10)),
    "3072-500-200-100-10": partial(_chain, _DENSE, (3072, 10)),
    "six convolutions, batch norm": _vgg,
    "vision transformer": VisionTransformer,
    "transformer": Transformer,
    "LSTM": CharacterLSTM,
    "six convolutions": lambda divide: _he(six_convolutions(divide)),
    "U-Net": UNet,
    "784-1000-500-250-30-250-500-1000-784": partial(_chain, _CODE, (784, 784)),
}
