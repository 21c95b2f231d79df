"""Lifted networks (sec. 3 and 5.1, eq. 2 and 10): the layers, the objective, the recursion, and the distance of the states from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Activation, Affine, Divergence, Loss, Penalty
from liftednn.network.building import cnn_layers, mlp_layers, one_per_layer
from liftednn.network.connections import Connections
from liftednn.network.layer import Layer
from liftednn.network.pruning import pruned
from liftednn.penalties import L2, one_each

__all__ = ["Evaluation", "Layer", "LiftedNetwork"]

# Rows evaluated at a time: the float64 energies stay in a CPU's cache; a GPU needs few large launches.
_CPU_ROWS, _GPU_ROWS = 4096, 1 << 16

Weights = Sequence[Affine]
States = Sequence[Tensor]


class Evaluation(NamedTuple):
    """The objective and related quantities, all computed in float64.

    terms       lam_l mean D_l of each layer, or its robust form
    penalties   pi_l(w_l) of each layer
    gaps        mean D_l(u, z) - min_z D_l(u, z) of each hidden layer: 0 exactly when the states satisfy the recursion
    loss        mean loss of the feed-forward scores
    score       accuracy or R^2 of the feed-forward scores
    """

    terms: tuple[float, ...]
    penalties: tuple[float, ...]
    gaps: tuple[float, ...]
    loss: float
    score: float

    @property
    def objective(self) -> float:
        return sum(self.terms) + sum(self.penalties)


@dataclass(frozen=True)
class LiftedNetwork:
    """L hidden layers, each with an activation, and an output layer with the loss.

    `states` is always (X_0, X_1, ..., X_L, X_{L+1}): the data, the hidden states, the encoded responses, each (n, width). Layer l gives
    X_{l+1} and reads X_l, or the states in its `reads`. `weights` has one `Affine` for each layer; layers with the same key share w.

    layers   the layers, the last of which has the loss

    In methods `number` is the index of a layer, x is (n, inputs), and sample_weight (n,) is how much each row counts.

    >>> network = lnn.LiftedNetwork.mlp([3, 5, 2], activation="relu", loss="softmax")
    >>> weights = [lnn.Affine(torch.ones(5, 3), torch.zeros(5)), lnn.Affine(torch.ones(2, 5), torch.zeros(2))]
    >>> network.scores(weights, torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    layers: tuple[Layer, ...]

    def __init__(self, layers: Sequence[Layer]) -> None:
        object.__setattr__(self, "layers", tuple(layers))
        if not self.layers or not isinstance(self.layers[-1].divergence, Loss):
            raise ValueError("a network needs at least one layer, and its last divergence must be a Loss")
        for number, layer in enumerate(self.layers[:-1]):
            if not isinstance(layer.divergence, Activation):
                raise ValueError(
                    f"layer {number} is hidden, so its divergence must be an Activation, got {layer.divergence!r}"
                )
        self.connections  # noqa: B018, raises if the layers do not fit together

    @cached_property
    def connections(self) -> Connections:
        """Which states the layers read, and which layers share their w."""
        return Connections.of(self.layers)

    @classmethod
    def mlp(
        cls,
        sizes: Sequence[int],
        activation: str | Activation | Sequence[str | Activation] = "relu",
        loss: str | Loss = "softmax",
        lam: float | Sequence[float] = 1.0,
        rho: float = 1e-3,
    ) -> LiftedNetwork:
        """Dense layers of the given widths: sizes = [inputs, hidden ..., outputs].

        activation   one for all hidden layers, or one each: a name such as "relu" or "fenchel_relu", or an Activation
        loss         "softmax", "squared", "absolute", "huber", "quantile", or a Loss
        lam          the weight of the hidden divergences, one for all or one each; the loss has weight 1
        rho          the weight of |w|^2 in every layer

        >>> [layer.width for layer in lnn.LiftedNetwork.mlp([3, 5, 2]).layers]
        [5, 2]
        """
        return cls(mlp_layers(sizes, activation, loss, lam, rho))

    @classmethod
    def cnn(
        cls,
        in_shape: tuple[int, ...],
        layers: Sequence[int | str | tuple[str, int] | tuple[str, int, int]],
        outputs: int,
        activation: str | Activation | Sequence[str | Activation] = "relu",
        loss: str | Loss = "softmax",
        lam: float | Sequence[float] = 1.0,
        rho: float = 1e-3,
    ) -> LiftedNetwork:
        """Convolutions, poolings and dense layers.

        in_shape     shape of one sample, (channels, height, width) or (channels, length)
        layers       in order: a number is a convolution with that many output channels, a kernel of size 3 and a padding of 1; ("conv",
                     channels, size) one with a kernel of that size and no padding; "avgpool" and "maxpool" halve the size by the mean
                     or the largest of 2 entries in each dimension; ("dense", width) is a dense layer
        outputs      of the last dense layer, which is added
        activation, loss, lam, rho
                     as in `mlp`; each number and each dense layer is one hidden layer

        >>> network = lnn.LiftedNetwork.cnn((1, 28, 28), [16, "avgpool", 32, "avgpool", ("dense", 64)], outputs=10)
        >>> [layer.shape for layer in network.layers]
        [(16, 28, 28), (32, 14, 14), (64,), (10,)]
        """
        return cls(cnn_layers(in_shape, layers, outputs, activation, loss, lam, rho))

    def with_lam(self, lam: float | Sequence[float]) -> LiftedNetwork:
        """The same network with another lam for its hidden layers, one for all or one each."""
        lams = [*one_per_layer(lam, len(self.layers) - 1, "lam"), self.layers[-1].lam]
        return LiftedNetwork([replace(layer, lam=float(x)) for layer, x in zip(self.layers, lams, strict=True)])

    def with_penalty(self, penalty: str | Penalty | Sequence[str | Penalty], rho: float | None = None) -> LiftedNetwork:
        """The same network with another `penalty`, one for all or one for each layer; names and `rho` are those of `penalties.named`."""
        chosen = one_each(penalty, len(self.layers), rho)
        return LiftedNetwork([replace(layer, penalty=each) for layer, each in zip(self.layers, chosen, strict=True)])

    def prune(self, weights: Weights) -> tuple[LiftedNetwork, list[Affine]]:
        """The network and its weights without unused hidden units, such as those that `GroupL2` sets to 0; same feed-forward predictions.

        A unit whose weights are 0 is constant, and is added to the bias of the next layer; a unit whose weights in the next layer are 0
        is removed. The units of a convolution are its channels; they are refused where a padding or a sum makes their removal inexact.
        Needs activations that act unit by unit, or channel by channel, as those with max-pooling do.

        >>> network = lnn.LiftedNetwork.mlp([3, 2, 1], loss="squared")
        >>> w = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
        >>> smaller, _ = network.prune([lnn.Affine(w, torch.zeros(2)), lnn.Affine(torch.ones(1, 2), torch.zeros(1))])
        >>> smaller.layers[0].operator
        Dense(in_features=3, out_features=1, bias=True)
        """
        layers, smaller = pruned(self.layers, self.connections, weights)
        return LiftedNetwork(layers), smaller

    @property
    def loss(self) -> Loss:
        """The last layer's divergence."""
        divergence = self.layers[-1].divergence
        assert isinstance(divergence, Loss)
        return divergence

    @property
    def hidden(self) -> list[Activation]:
        """The activations of the hidden layers."""
        return [layer.divergence for layer in self.layers[:-1] if isinstance(layer.divergence, Activation)]

    @property
    def in_width(self) -> int:
        """The number of entries in one row of the data."""
        layer, index = self.connections.readers[0][0]
        return self.layers[layer].operator.in_widths[index]

    def check_rows(self, x: Tensor, finite: bool = True) -> Tensor:
        """x as rows (n, inputs); an error if it has neither that shape nor (n, *shape) of a layer's input, or holds NaN or infinity; the
        latter is looked for with `finite` alone."""
        width = self.in_width
        shapes = {self.layers[layer].operator.in_shapes[index] for layer, index in self.connections.readers[0]}
        x = x.flatten(1) if x.ndim > 2 and tuple(x.shape[1:]) in shapes else x
        if x.ndim != 2 or x.shape[1] != width or not len(x):
            images = "".join(f", or (n, {', '.join(map(str, shape))})" for shape in sorted(shapes) if len(shape) > 1)
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but the network takes rows of {width}: give (n, {width}){images} with n >= 1"
            )
        # A NaN or infinity makes the sum NaN or infinite; entries are checked only then, since a sum may also overflow.
        if finite and not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):
            raise ValueError(f"x holds NaN or infinity in {x.dtype}: remove or impute those entries first")
        return x

    def read(self, number: int, states: States) -> list[Tensor]:
        """The states that layer `number` reads."""
        return [states[state] for state in self.connections.reads[number]]

    def preactivation(self, number: int, weights: Weights, states: States) -> Tensor:
        """A_l(x; w_l, b_l) for layer l = `number`; `states` needs those up to X_l."""
        return self.layers[number].operator.forward(self.read(number, states), weights[number])

    def propagate(self, weights: Weights, x: Tensor) -> list[Tensor]:
        """X_0, ..., X_L, each (n, width), from x (n, inputs) and weights by the recursion X_{l+1} = phi_l(A_l(X_l)) (eq. 2)."""
        states = [x]
        for number, activation in enumerate(self.hidden):
            states.append(activation(self.preactivation(number, weights, states)))
        return states

    def scores(self, weights: Weights, x: Tensor) -> Tensor:
        """The feed-forward rule, up to the loss: A_L(X_L), (n, outputs), from x (n, inputs) and weights."""
        return self.preactivation(len(self.layers) - 1, weights, self.propagate(weights, x))

    def shared(self, number: int, weights: Weights) -> Tensor:
        """The w of a layer, from the layer that owns its key and transposed if needed; its own w if it has no key."""
        w = weights[self.connections.owners[number]].w
        return w.T if self.layers[number].transposed else w

    def check_shared(self, weights: Weights) -> None:
        """Raise an error if layers that share their w have different ones."""
        for number, owner in enumerate(self.connections.owners):
            if owner < number and not torch.equal(weights[number].w, self.shared(number, weights)):
                raise ValueError(
                    f"layers {owner} and {number} share the key {self.layers[number].key!r}, but their weights differ: give both the same "
                    "w, or its transpose where one is transposed"
                )

    def penalties(self, weights: Weights) -> tuple[float, ...]:
        """pi_l(w_l) of each layer; a shared w is penalised once, with the first of its layers."""
        owned = [owner == number for number, owner in enumerate(self.connections.owners)]
        layers = zip(self.layers, weights, owned, strict=True)
        return tuple(float(layer.penalty_value(pair.w)) if own else 0.0 for layer, pair, own in layers)

    def evaluate(self, weights: Weights, states: States, sample_weight: Tensor | None = None) -> Evaluation:
        """Objective, gaps and feed-forward score of weights and states, rows weighted by sample_weight (n,)."""
        robust = [layer.robust_divergence(pair.w) for layer, pair in zip(self.layers, weights, strict=True)]
        parts = [self._energies(weights, rows, robust) for rows in _blocks(states)]
        energies, scores = (torch.cat(each) for each in zip(*parts, strict=True))
        *means, loss = reduce.mean(energies, sample_weight).tolist()
        terms, lowest = means[: len(self.layers)], means[len(self.layers) :]
        return Evaluation(
            tuple(layer.term(term, w.w) for layer, term, w in zip(self.layers, terms, weights, strict=True)),
            self.penalties(weights),
            tuple(max(term - least, 0.0) for term, least in zip(terms[:-1], lowest, strict=True)),
            loss,
            self.loss.score(scores, states[-1], sample_weight),
        )

    def _energies(self, weights: Weights, rows: States, robust: Sequence[Divergence]) -> tuple[Tensor, Tensor]:
        """For a block of rows, one column each: the energy of every layer, min_z of the energy of every hidden layer, and the loss of the
        feed-forward scores; and these scores."""
        energies, lowest, forward = [], [], list(rows[:1])
        for number, layer in enumerate(self.layers):
            of_data = not any(self.connections.reads[number])
            u = self.preactivation(number, weights, rows)
            v = u if of_data else self.preactivation(number, weights, forward)
            energies.append(robust[number].value(u, rows[number + 1]))
            if number < len(self.layers) - 1:
                forward.append(layer.divergence(v))
                lowest.append(layer.divergence.value(u, forward[-1] if of_data else layer.divergence(u)))
                if robust[number] is not layer.divergence:  # a gap is about D itself, not its robust form
                    lowest[-1] = lowest[-1] + energies[-1] - layer.divergence.value(u, rows[number + 1])
        return torch.stack([*energies, *lowest, self.loss.value(v, rows[-1])], 1), v

    def objective(self, weights: Weights, states: States, sample_weight: Tensor | None = None) -> float:
        """F(W, b, X) (eq. 10) of weights and states, a number summed in float64; sample_weight (n,) weights the mean over rows."""
        return self.evaluate(weights, states, sample_weight).objective

    def gaps(self, weights: Weights, states: States) -> tuple[float, ...]:
        """For each hidden layer, how far its states are from the recursion; see `Evaluation`."""
        return self.evaluate(weights, states).gaps

    def equalised(
        self, weights: Weights, states: States, lam: float = 1.0
    ) -> tuple[LiftedNetwork, list[Affine], list[Tensor]]:
        """The same model with every hidden layer's lam equal to `lam` (the rescaling of sec. 3), objective and scores unchanged.

        X_l -> s_l X_l with s_l = sqrt(lam_l / lam), w_l -> (s_{l+1} / s_l) w_l, b_l -> s_{l+1} b_l, rho_l -> (s_l / s_{l+1})^2 rho_l.
        Needs divergences that are homogeneous of degree 2 and squared-norm penalties.
        """
        if not self.connections.chain or not all(layer.operator.plain for layer in self.layers):
            raise ValueError(
                "only a chain of layers u = x w' + b, each with a w of its own, can be rescaled, got another network"
            )
        for number, layer in enumerate(self.layers):
            if number < len(self.layers) - 1 and not layer.divergence.homogeneous:
                raise ValueError(
                    f"layer {number}: {layer.divergence!r} is not homogeneous of degree 2, so its lam cannot be scaled away"
                )
            if layer.penalty.ridge is None:
                raise ValueError(
                    f"layer {number}: {layer.penalty!r} is not a squared norm, so rescaling would change the model"
                )
            if layer.uncertainty is not None:
                raise ValueError(
                    f"layer {number}: the size of {layer.uncertainty!r} would have to be rescaled: leave uncertainty=None"
                )
        scales = [1.0, *[(layer.lam / lam) ** 0.5 for layer in self.layers[:-1]], 1.0]
        network = LiftedNetwork(
            [
                replace(
                    layer,
                    penalty=L2((layer.penalty.ridge or 0.0) * (a / b) ** 2),
                    lam=lam if number < len(self.layers) - 1 else layer.lam,
                )
                for number, (layer, a, b) in enumerate(zip(self.layers, scales, scales[1:], strict=False))
            ]
        )
        scaled = [Affine(w.w * (b / a), w.b * b) for w, a, b in zip(weights, scales, scales[1:], strict=False)]
        return network, scaled, [s * x for s, x in zip(scales, states, strict=True)]


def _blocks(states: States) -> Iterator[list[Tensor]]:
    size = _CPU_ROWS if states[0].device.type == "cpu" else _GPU_ROWS
    for start in range(0, len(states[0]), size):
        yield [state[start : start + size] for state in states]
