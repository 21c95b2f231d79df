"""What a mini-batch step asks of the model that it trains: rows and pulls of every regression, and what arrives of probes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.training.batch import Answer, answer, curvatures

__all__ = ["LiftedModel", "Model", "Seen"]


class Seen(NamedTuple):
    """What a batch says of every layer.

    rows     of its regression, (n t, p)
    pulls    the gradient in what the regression gives, (n t, q), each row counting as often as its sample does
    images   its pre-activations, in any layout
    scores   of the batch, (n, outputs)
    answer   the states behind them, for a model that has states
    """

    rows: list[Tensor]
    pulls: list[Tensor]
    images: list[Tensor]
    scores: Tensor
    answer: Answer | None = None


class Model(Protocol):
    """A model with linear regressions inside, which a mini-batch step can train."""

    def see(self, weights: Weights, x: Tensor, y: Tensor, counts: Tensor | None, row_weights: Tensor | None) -> Seen:
        """Rows and pulls for a batch; sample i counts `counts[i]` times, and its loss `row_weights[i]` times as much."""

    def push(self, number: int, weights: Weights, seen: Seen) -> Tensor | None:
        """The gradient in the w of a layer beside what its pulls say; None where there is none."""

    def probe(
        self, weights: Weights, seen: Seen, y: Tensor, probes: Tensor, counts: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The curvature, in what each regression gives, of all that comes after it, from probes (m, n, outputs) that are sent backward
        from the scores; and what must be added to its curvature in w, (p, p) or None. Called at every refresh: what depends on the present
        point may be renewed."""

    def state(self) -> dict[str, Tensor]:
        """The tensors that a refresh writes, by name."""

    def load(self, named: dict[str, Tensor]) -> None:
        """Take up a state that was saved; in place."""


class LiftedModel:
    """A lifted network as a `Model`: it answers by its own forward and backward sweep."""

    def __init__(self, network: LiftedNetwork, weights: Weights) -> None:
        self.network = network
        self.terms = [_term_of(layer, w) for layer, (w, _) in zip(network.layers, weights, strict=True)]

    def see(
        self, weights: Weights, x: Tensor, y: Tensor, counts: Tensor | None = None, row_weights: Tensor | None = None
    ) -> Seen:
        """Each sample's states are its own affair, and its pulls then count as often as it does."""
        found = answer(self.network, weights, x, y, row_weights, self.terms)
        if counts is not None:
            reach_gradients = [None if each is None else each * counts[:, None] for each in found.reach_gradients]
            found = found._replace(
                pulls=[pull * counts[:, None] for pull in found.pulls], reach_gradients=reach_gradients
            )
        operators = [layer.operator for layer in self.network.layers]
        rows = [each.rows(self.network.read(number, found.forward)) for number, each in enumerate(operators)]
        pulls = [each.targets(pull) for each, pull in zip(operators, found.pulls, strict=True)]
        return Seen(rows, pulls, found.preactivations, found.preactivations[-1], found)

    def push(self, number: int, weights: Weights, seen: Seen) -> Tensor | None:
        term = self.terms[number]
        return (
            None
            if term is None or seen.answer is None
            else term.push(weights[number].w, seen.answer.reach_gradients[number])
        )

    def probe(
        self, weights: Weights, seen: Seen, y: Tensor, probes: Tensor, counts: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        found = curvatures(self.network, weights, seen.images, probes, counts, y)
        for number, term in enumerate(self.terms):
            if term is not None and seen.answer is not None:
                z, reach_gradient = [*seen.answer.states, y][number], seen.answer.reach_gradients[number]
                term.renew(weights[number].w, seen.images[number], z, reach_gradient, counts)
        if self.terms[-1] is not None:
            found = [c / self.terms[-1].share for c in found]  # to all layers the loss counts 1 / share times
        return found, [None if term is None else term.added_curvature() for term in self.terms]

    def state(self) -> dict[str, Tensor]:
        """The tensors that a refresh writes, by name."""
        named = [(number, term) for number, term in enumerate(self.terms) if term is not None]
        return {f"{number}.{name}": part for number, term in named for name, part in term.state().items()}

    def load(self, named: dict[str, Tensor]) -> None:
        """Take up a state that was saved; in place."""
        for number, term in enumerate(self.terms):
            if term is not None:
                term.load({name: named[f"{number}.{name}"] for name in term.state()})


def _term_of(layer: Layer, w: Tensor) -> RobustTerm | None:
    """For weights like w; None where the layer has no uncertainty."""
    kind = layer.uncertainty
    return None if kind is None else kind.batch_term(layer.divergence, layer.lam, w)
