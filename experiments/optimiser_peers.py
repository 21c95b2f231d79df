"""Optimisers that multiply a layer's gradient by the inverse of a curvature, as their papers describe them: K-FAC, FOOF and ISAAC.

K-FAC   Martens and Grosse, 2015, and for convolutions Grosse and Martens, 2016: a factor for inputs and one for outputs
FOOF    Benzing, 2022: the factor for inputs alone
ISAAC   Petersen et al., 2023: the inputs of the current batch alone

All take SGD's step with Nesterov's momentum along what they find, for every Linear and Conv2d; weight decay is SGD's. `measure` is called
between the forward and the backward pass. Dampings of K-FAC and FOOF are fractions of the mean diagonal of a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, unfold

__all__ = ["FOOF", "ISAAC", "KFAC", "Preconditioned", "rows_of", "sampled_loss", "terms_of"]

Layer = nn.Linear | nn.Conv2d
_EARLY = (2, 5, 10)  # steps with a refresh, besides every so many
_EVERY = 20
_KEPT = 0.9  # of a running mean, at each refresh
_LEAST_DAMPING = 1e-12
_ROWS = 20_000  # about as many of a convolution's patches, or of tokens, make a factor
_KL_CLIP = 1e-3


class Preconditioned(torch.optim.SGD):
    """SGD with Nesterov's momentum along directions that `_direction` makes of gradients; for layers that are called once a step."""

    def __init__(self, layers: Sequence[Layer], decay: float, damping: float, momentum: float = 0.9) -> None:
        self.layers, self.damping, self.steps = list(layers), damping, 0
        self.seen: dict[Layer, tuple[Tensor, Tensor]] = {}
        own = [parameter for layer in layers for parameter in layer.parameters()]
        super().__init__(own, 0.0, momentum, weight_decay=decay, nesterov=momentum > 0)
        for layer in layers:
            layer.register_forward_hook(self._keep)

    @property
    def due(self) -> bool:
        return self.steps in _EARLY or self.steps % _EVERY == 0

    def _keep(self, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        if self.due and layer.training and torch.is_grad_enabled():
            self.seen[layer] = (given[0].detach(), output)  # type: ignore[index]

    def measure(self, outputs: Tensor, criterion: nn.Module, rows: int) -> None:
        """Refresh the curvature, where it is due: from the module's outputs on a batch of so many rows."""
        if self.seen:
            self._refresh(outputs, criterion, rows)
            self.seen.clear()

    def _refresh(self, outputs: Tensor, criterion: nn.Module, rows: int) -> None:
        raise NotImplementedError

    def _direction(self, layer: Layer, gradient: Tensor) -> Tensor:
        """Of a gradient (q, p), with a last column for a bias."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        directions = {layer: self._direction(layer, _gradient(layer)) for layer in self.layers}
        self._scale(directions)
        for layer, found in directions.items():
            assert layer.weight.grad is not None
            layer.weight.grad.copy_(found[:, : layer.weight[0].numel()].reshape(layer.weight.shape))
            if layer.bias is not None and layer.bias.grad is not None:
                layer.bias.grad.copy_(found[:, -1])
        super().step()
        self.steps += 1

    def _scale(self, directions: dict[Layer, Tensor]) -> None:
        """Shorten all of them, where a method does."""


class FOOF(Preconditioned):
    """The gradient times the inverse of the mean of x x^T, x a layer's input with a 1 behind it."""

    def __init__(self, layers: Sequence[Layer], decay: float, damping: float, momentum: float = 0.9) -> None:
        super().__init__(layers, decay, damping, momentum)
        self.means: dict[Layer, Tensor] = {}
        self.inverses: dict[Layer, Tensor] = {}

    @torch.no_grad()
    def _refresh(self, outputs: Tensor, criterion: nn.Module, rows: int) -> None:
        for layer, (x, _) in self.seen.items():
            self.inverses[layer] = self._inverse(self.means, layer, _second_moment(layer, x))

    def _inverse(self, means: dict[Layer, Tensor], layer: Layer, found: Tensor) -> Tensor:
        """Of the running mean, damped."""
        means[layer] = found if layer not in means else _KEPT * means[layer] + (1 - _KEPT) * found
        return _inverse(means[layer], self.damping * means[layer].diagonal().mean())

    def _direction(self, layer: Layer, gradient: Tensor) -> Tensor:
        return gradient @ self.inverses[layer]


class KFAC(FOOF):
    """Also times the inverse of the mean of g g^T from the left, g the gradient in a layer's output at labels that the module predicts.

    Both factors have the square root of the damping; the whole step is shortened as in public implementations, by the change of a label's
    prediction that it makes, or of all pixels of an image: the criterion is a mean over these.
    """

    def __init__(self, layers: Sequence[Layer], decay: float, damping: float, momentum: float = 0.9) -> None:
        super().__init__(layers, decay, damping**0.5, momentum)
        self.output_means: dict[Layer, Tensor] = {}
        self.output_inverses: dict[Layer, Tensor] = {}
        self.generator = torch.Generator(layers[0].weight.device).manual_seed(0)

    def _refresh(self, outputs: Tensor, criterion: nn.Module, rows: int) -> None:
        self.terms = 1.0 if isinstance(criterion, nn.CrossEntropyLoss) else terms_of(outputs, criterion, rows)
        loss = sampled_loss(outputs, criterion, rows, self.generator)
        found = torch.autograd.grad(loss, [output for _, output in self.seen.values()], retain_graph=True)
        super()._refresh(outputs, criterion, rows)
        with torch.no_grad():
            for layer, gradient in zip(self.seen, found, strict=True):
                g = (gradient.movedim(1, -1) if gradient.ndim == 4 else gradient).flatten(0, -2).float()
                self.output_inverses[layer] = self._inverse(self.output_means, layer, g.T @ g / len(g))

    def _direction(self, layer: Layer, gradient: Tensor) -> Tensor:
        return self.output_inverses[layer] @ super()._direction(layer, gradient)

    def _scale(self, directions: dict[Layer, Tensor]) -> None:
        products = [(found * _gradient(layer)).sum() for layer, found in directions.items()]
        change = self.terms * torch.stack(products).sum().abs() * self.param_groups[0]["lr"] ** 2
        for found in directions.values():
            found.mul_((_KL_CLIP / change).sqrt().clamp(max=1.0))


class ISAAC(Preconditioned):
    """The gradient of a weight times d (mean of x x^T + d I)^-1, the mean over the current batch; biases as in SGD."""

    @property
    def due(self) -> bool:
        return True

    @torch.no_grad()
    def _refresh(self, outputs: Tensor, criterion: nn.Module, rows: int) -> None:
        self.rows = {layer: rows_of(layer, x, bias=False)[0] for layer, (x, _) in self.seen.items()}

    def _direction(self, layer: Layer, gradient: Tensor) -> Tensor:
        x, p = self.rows[layer], layer.weight[0].numel()
        weight, bias = gradient[:, :p], gradient[:, p:]
        if len(x) < p:  # the inverse of a matrix of the rows, by Woodbury
            found = weight - (weight @ x.T) @ _inverse(x @ x.T, self.damping * len(x)) @ x
        else:
            found = self.damping * weight @ _inverse(x.T @ x / len(x), self.damping)
        return torch.cat([found, bias], 1)


def _gradient(layer: Layer) -> Tensor:
    """(q, p) or, with that of a bias behind it, (q, p + 1)."""
    assert layer.weight.grad is not None
    matrix = layer.weight.grad.flatten(1)
    return matrix if layer.bias is None else torch.cat([matrix, layer.bias.grad[:, None]], 1)  # type: ignore[index]


def rows_of(layer: Layer, x: Tensor, bias: bool = True) -> tuple[Tensor, int]:
    """The rows that a layer multiplies by its weight, those of the first samples where there are many, and how many a sample has."""
    if isinstance(layer, nn.Conv2d):
        positions = _patches(layer, x[:1]).shape[2]
        patches = _patches(layer, x[: _ROWS // positions + 1])
        found = patches.transpose(1, 2).flatten(0, 1)
    else:
        positions = x[0].numel() // x.shape[-1]
        found = (x if positions == 1 else x[: _ROWS // positions + 1]).reshape(-1, x.shape[-1]).float()
    if bias and layer.bias is not None:
        found = torch.cat([found, torch.ones_like(found[:, :1])], 1)
    return found, positions


def _patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return unfold(x.float(), layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]


def _second_moment(layer: Layer, x: Tensor) -> Tensor:
    """The mean over samples of the sum of x x^T over the rows of a sample."""
    rows, positions = rows_of(layer, x)
    return rows.T @ rows * (positions / len(rows))


def _inverse(matrix: Tensor, damping: Tensor | float) -> Tensor:
    damping = torch.as_tensor(damping).clamp(min=_LEAST_DAMPING)  # of a layer that no gradient reaches, all is 0
    damped = matrix + damping * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.cholesky_inverse(torch.linalg.cholesky(damped))


def terms_of(outputs: Tensor, criterion: nn.Module, rows: int) -> float:
    """How many of the criterion's terms a row has: one for a label, as many as tokens for a text, or as pixels for an image."""
    return (len(outputs) if isinstance(criterion, nn.CrossEntropyLoss) else outputs.numel()) / rows


def sampled_loss(outputs: Tensor, criterion: nn.Module, rows: int, generator: torch.Generator) -> Tensor:
    """A sum over rows, at labels drawn from what the outputs predict; the mean square of its gradients is the Fisher matrix of the loss."""
    scores = outputs.float()
    drawn = torch.rand(scores.shape, generator=generator, device=scores.device)
    if isinstance(criterion, nn.CrossEntropyLoss):
        # Gumbel's trick, which a diverged run survives.
        labels = (scores.detach() - (-drawn.clamp(1e-20, 1 - 1e-7).log()).log()).argmax(1)
        loss = cross_entropy(scores, labels, reduction="sum")
    else:
        assert isinstance(criterion, nn.BCEWithLogitsLoss)
        targets = (drawn < scores.detach().sigmoid()).float()
        loss = binary_cross_entropy_with_logits(scores, targets, reduction="sum")
    found: Tensor = loss / terms_of(outputs, criterion, rows) ** 0.5
    return found
