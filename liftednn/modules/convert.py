"""From a torch module to a lifted network with its weights, and back (eq. 1 and 2)."""

from __future__ import annotations

from functools import reduce
from typing import Literal

import torch
from torch import nn

from liftednn import losses
from liftednn.activations import Identity, Scaled
from liftednn.base import Activation, Affine, Loss
from liftednn.losses import Matching, SoftmaxCrossEntropy, Split, SquaredError
from liftednn.modules.criteria import CRITERIA, loss_of
from liftednn.modules.layers import fenchel, joint, layer_of, same_phi
from liftednn.modules.reading import Chain, read
from liftednn.modules.tracing import Step, refusal
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.operators import Dense

__all__ = ["from_module", "network_of", "precision", "to_module", "weights_of"]


def from_module(
    module: nn.Module,
    loss: str | Loss | nn.Module | None = None,
    divergence: Literal["fenchel", "euclidean"] = "fenchel",
) -> tuple[LiftedNetwork, list[Affine]]:
    """The lifted network whose feed-forward rule is the module's forward in evaluation mode, and the module's weights.

    loss         "softmax", "squared", "absolute", "huber", "quantile", a Loss, or torch's MSELoss, L1Loss, HuberLoss, SmoothL1Loss,
                 CrossEntropyLoss or BCEWithLogitsLoss; "huber" has delta = 0.3 in the units of y. None: softmax where the module ends in
                 Softmax or LogSoftmax, `Matching` where it ends in another activation, otherwise softmax for several outputs and squared
                 for one
    divergence   of the hidden layers: "fenchel" for the bi-convex ones, "euclidean" for the paper's jointly convex ones

    What the module ends in is the loss's link, `network.loss(scores)`; a LogSoftmax is its logarithm. The weights are copies, all in the
    widest of the module's precisions and at least in float32; lam and rho are the defaults of `Layer`.
    """
    chain = read(module)
    return network_of(chain, loss, divergence), weights_of(chain)


def network_of(chain: Chain, loss: str | Loss | nn.Module | None = None, divergence: str = "fenchel") -> LiftedNetwork:
    """The network of a chain; two Linear layers in a row have the identity between them."""
    if divergence not in ("fenchel", "euclidean"):
        raise ValueError(f"divergence must be 'fenchel' or 'euclidean', got {divergence!r}")
    for step in chain.after[:-1]:
        if step is not None and isinstance(step.layer, nn.LogSoftmax):
            raise refusal(step, "has a lifted form at the end of a module only")
    meaning = fenchel if divergence == "fenchel" else joint
    hidden = [Identity() if step is None else meaning(step) for step in chain.after[:-1]]
    operators = [Dense(layer.in_features, layer.out_features, layer.bias is not None) for layer in chain.linears]
    divergences = [*hidden, _loss(chain, loss)]
    return LiftedNetwork([Layer(operator, d) for operator, d in zip(operators, divergences, strict=True)])


def _loss(chain: Chain, given: str | Loss | nn.Module | None) -> Loss:
    step, outputs = chain.after[-1], chain.linears[-1].out_features
    if given is not None:
        loss = losses.named(given) if isinstance(given, str) else loss_of(given) or given
        if not isinstance(loss, Loss):
            what = type(loss).__name__ if not isinstance(loss, type) else f"the class {loss.__name__}"
            names = "'softmax', 'squared', 'absolute', 'huber', 'quantile'"
            raise ValueError(f"loss cannot be {what}: give {names}, a Loss of liftednn.losses, or torch's {CRITERIA}")
        _check_link(step, loss)
        return loss
    if step is None:
        return SoftmaxCrossEntropy() if outputs > 1 else SquaredError()
    return SoftmaxCrossEntropy() if isinstance(step.layer, (nn.Softmax, nn.LogSoftmax)) else Matching(fenchel(step))


def _check_link(step: Step | None, loss: Loss) -> None:
    """What the module ends in must be the link of its loss, or nothing."""
    if step is not None and not (loss.link and same_phi(loss.link, fenchel(step))):
        raise refusal(
            step, f"ends the module, but the link of {loss!r} is another: leave loss=None, or remove that layer"
        )


def precision(chain: Chain) -> torch.dtype:
    """The widest of a chain's precisions, at least float32."""
    found = [part.dtype for linear in chain.linears for part in linear.parameters()]
    return reduce(torch.promote_types, found, torch.float32)


def weights_of(chain: Chain) -> list[Affine]:
    """Copies of a chain's weights in one precision; zeros for a bias that is not there."""
    dtype = precision(chain)
    pairs = []
    for linear in chain.linears:
        w = linear.weight.detach().to(dtype, copy=True)
        b = w.new_zeros(len(w)) if linear.bias is None else linear.bias.detach().to(dtype, copy=True)
        pairs.append(Affine(w, b))
    return pairs


def to_module(network: LiftedNetwork, weights: Weights) -> nn.Sequential:
    """The network's feed-forward rule as Linear layers and activations of torch, in the weights' own precision and place.

    The last Linear gives the scores: logits, for a softmax. After it comes the activation of a `Matching` or `Split` loss. The scale of
    a `Scaled` activation goes into the weights before it.
    """
    layers: list[nn.Module] = []
    for place, (layer, weight) in enumerate(zip(network.layers, weights, strict=True)):
        if not isinstance(layer.operator, Dense):
            raise ValueError(
                f"layer {place}: torch has no standard layer for {layer.operator!r}, only Dense becomes one"
            )
        phi, weight = _unscaled(_follows(layer), weight)
        follows = layer_of(phi)
        if follows is None:
            raise ValueError(
                f"layer {place}: torch has no standard layer for {phi!r}: write a module of your own for it"
            )
        layers += [_linear(layer.operator, weight), follows.to(weight.w)]
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


def _follows(layer: Layer) -> Activation:
    """What follows the affine map of a layer: its activation, or that of its loss."""
    if isinstance(layer.divergence, Activation):
        return layer.divergence
    return layer.divergence.activation if isinstance(layer.divergence, (Matching, Split)) else Identity()


def _unscaled(phi: Activation, weight: Affine) -> tuple[Activation, Affine]:
    """phi(s u) is phi on weights s times as large."""
    while isinstance(phi, Scaled):
        scale = torch.as_tensor(phi.scale).to(weight.w).reshape(-1)
        phi, weight = phi.activation, Affine(scale[:, None] * weight.w, scale * weight.b)
    return phi, weight


def _linear(operator: Dense, weights: Affine) -> nn.Linear:
    """On the meta device nothing is drawn, so that the global generator stays where it is."""
    linear = nn.Linear(operator.in_features, operator.out_features, operator.bias, device="meta")
    linear.weight = nn.Parameter(weights.w.detach().clone())
    if operator.bias:
        linear.bias = nn.Parameter(weights.b.detach().clone())
    return linear
