"""From a torch module to a lifted network with its weights (eq. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from liftednn import losses
from liftednn.activations import Identity, ReLU
from liftednn.base import Activation, Affine, Divergence, Loss
from liftednn.losses import Matching, SoftmaxCrossEntropy, SquaredError
from liftednn.modules.calls import Step, naming, unsupported
from liftednn.modules.convolutions import max_pooled
from liftednn.modules.criteria import CRITERIA, loss_of
from liftednn.modules.graph import Graph, Use
from liftednn.modules.layers import fenchel, joint, same_phi
from liftednn.modules.reading import read
from liftednn.network import Layer, LiftedNetwork
from liftednn.operators import Sum

__all__ = ["from_module", "network_of", "precision", "weights_of"]


def from_module(
    module: nn.Module,
    loss: str | Loss | nn.Module | None = None,
    divergence: Literal["fenchel", "euclidean"] = "fenchel",
    in_shape: Sequence[int] | None = None,
) -> tuple[LiftedNetwork, list[Affine]]:
    """The lifted network whose feed-forward rule is the module's forward in evaluation mode, and the module's weights.

    loss         "softmax", "squared", "absolute", "huber", "quantile", a Loss, or torch's MSELoss, L1Loss, HuberLoss, SmoothL1Loss,
                 CrossEntropyLoss or BCEWithLogitsLoss; "huber" has delta = 0.3 in the units of y. None: softmax where the module ends in
                 Softmax or LogSoftmax, `Matching` where it ends in another activation, otherwise softmax for several outputs and squared
                 for one
    divergence   of the hidden layers: "fenchel" for the bi-convex ones, "euclidean" for the paper's jointly convex ones

    in_shape     shape of one sample, such as (3, 32, 32): convolutions and poolings need it

    Max-pooling before or after an activation becomes one activation with it: `Pooled`, or `MaxPoolReLU` for "euclidean".
    A batch norm after a Linear or a convolution is multiplied into the weights, as it is in evaluation mode.

    Tensors that are added before a Linear are inputs of its layer, those added after it are added to its pre-activation. Layers that use
    one weight share a key, the path of that parameter; each has its own bias, a copy where the module uses one several times.

    The activation that the module ends in is the loss's link, `network.loss(scores)`; a LogSoftmax is its logarithm. The weights are
    copies, all in the widest of the module's precisions and at least in float32; lam and rho are the defaults of `Layer`.

    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    >>> network, weights = lnn.init.from_module(module)
    >>> network.hidden, network.loss, [tuple(w.shape) for w, b in weights]
    ([Tanh()], SquaredError(), [(5, 3), (1, 5)])
    """
    graph = read(module, None if in_shape is None else tuple(in_shape))
    return network_of(graph, loss, divergence), weights_of(graph)


def network_of(graph: Graph, loss: str | Loss | nn.Module | None = None, divergence: str = "fenchel") -> LiftedNetwork:
    """The network of a module; a Linear that no activation follows has the identity."""
    if divergence not in ("fenchel", "euclidean"):
        raise ValueError(f"divergence must be 'fenchel' or 'euclidean', got {divergence!r}")
    after = [use.after for use in graph.uses]
    for step in after[:-1]:
        if step is not None and isinstance(step.layer, nn.LogSoftmax):
            raise unsupported(step, "has a lifted form at the end of a module only")
    divergences = [*(_activation(use, divergence) for use in graph.uses[:-1]), _loss(graph, loss)]
    return LiftedNetwork([_layer(graph, number, d) for number, d in enumerate(divergences)])


def _activation(use: Use, divergence: str) -> Activation:
    """The activation of a hidden layer, with the max-pooling that follows."""
    meaning = fenchel if divergence == "fenchel" else joint
    activation = Identity() if use.after is None else meaning(use.after)
    if use.pooled is None:
        return activation
    if divergence == "euclidean" and not isinstance(activation, ReLU):
        raise unsupported(use.pooled, "has a jointly convex divergence with a ReLU only: give divergence='fenchel'")
    return max_pooled(use.pooled, activation, use.operator.out_shape)


def _layer(graph: Graph, number: int, divergence: Divergence) -> Layer:
    """The lifted layer of one use. Its `reads` names states only where it reads others than the one before."""
    use = graph.uses[number]
    reads = tuple(dict.fromkeys(use.enters + use.added))
    plain = len(reads) == 1 and not use.added
    operator = (
        use.operator
        if plain
        else Sum(use.operator, tuple(s in use.enters for s in reads), tuple(s in use.added for s in reads))
    )
    names = () if reads == (number,) else tuple(f"x{state}" for state in reads)
    key = graph.key(use)
    first = (
        next(other for other in graph.uses if graph.key(other) == key) if key else use
    )  # the one that is not transposed
    with naming(use.step if use.after is None else use.after):
        return Layer(operator, divergence, reads=names, key=key, transposed=use.transposed != first.transposed)


def _loss(graph: Graph, given: str | Loss | nn.Module | None) -> Loss:
    step, outputs = graph.uses[-1].after, graph.uses[-1].operator.out_width
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
    activation = fenchel(step)
    return SoftmaxCrossEntropy() if isinstance(step.layer, (nn.Softmax, nn.LogSoftmax)) else Matching(activation)


def _check_link(step: Step | None, loss: Loss) -> None:
    """The activation that the module ends in, if any, must be the link of its loss."""
    if step is not None and not (loss.link and same_phi(loss.link, fenchel(step))):
        raise unsupported(
            step, f"ends the module, but the link of {loss!r} is another: leave loss=None, or remove that layer"
        )


def precision(graph: Graph) -> torch.dtype:
    """The widest of a module's precisions, at least float32."""
    return reduce(torch.promote_types, [part.dtype for part in graph.parameters], torch.float32)


def weights_of(graph: Graph) -> list[Affine]:
    """Copies of a module's weights in one precision; zeros for a missing bias."""
    dtype = precision(graph)
    pairs = []
    for use in graph.uses:
        w = use.w.to(dtype, copy=True).contiguous()
        b = w.new_zeros(use.operator.outputs) if use.bias is None else use.bias.detach().to(dtype, copy=True)
        pairs.append(Affine(w, b) if use.folded is None else _folded(w, b, *use.folded))
    return pairs


def _folded(w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Affine:
    """The weights of scale * u + shift, from those of u."""
    factors = scale.view(*w.shape[:-1], 1)
    return Affine((w.double() * factors).to(w), (b.double() * scale + shift).to(b))
