"""The interface of a model to the mini-batch step: rows and gradients of every regression, and its curvatures."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.training.batch import XStep, curvatures, x_step

__all__ = ["BatchGradients", "LiftedModel", "Model"]


class BatchGradients(NamedTuple):
    """Rows and gradients of every layer on a batch.

    rows             of its regression, (n t, p)
    u_gradients      the gradient in the output of the regression, (n t, q), times the sample's weight
    preactivations   of every layer, in any layout
    scores           of the batch, (n, outputs)
    x_step           the states, for a model that has states
    """

    rows: list[Tensor]
    u_gradients: list[Tensor]
    preactivations: list[Tensor]
    scores: Tensor
    x_step: XStep | None = None


class Model(Protocol):
    """A model made of linear regressions, which a mini-batch step can train."""

    def gradients(
        self, weights: Weights, x: Tensor, y: Tensor, row_weights: Tensor | None, outlier_weights: Tensor | None
    ) -> BatchGradients:
        """Rows and gradients for a batch. `outlier_weights` (n,) multiply each sample's loss, `row_weights` its gradients."""

    def w_gradient(self, number: int, weights: Weights, batch: BatchGradients) -> Tensor | None:
        """The gradient in the w of a layer at fixed pre-activations; None where it is 0."""

    def probe(
        self, weights: Weights, batch: BatchGradients, y: Tensor, probes: Tensor, row_weights: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The curvature, in the output of each regression, of all that comes after it, from probes (m, n, outputs) that are sent backward
        from the scores; and what must be added to its curvature in w, (p, p) or None. Called at every refresh: values that depend on the
        current weights may be updated."""

    def state(self) -> dict[str, Tensor]:
        """The tensors that a refresh writes, by name."""

    def load(self, named: dict[str, Tensor]) -> None:
        """Load what `state` returned, in place."""


class LiftedModel:
    """A lifted network as a `Model`, by a forward and a backward pass over its layers."""

    def __init__(self, network: LiftedNetwork, weights: Weights) -> None:
        self.network = network
        self.terms = [_term_of(layer, w) for layer, (w, _) in zip(network.layers, weights, strict=True)]

    def gradients(
        self,
        weights: Weights,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None = None,
        outlier_weights: Tensor | None = None,
    ) -> BatchGradients:
        """The states of a sample do not depend on its weight; its gradients are multiplied by it."""
        found = x_step(self.network, weights, x, y, outlier_weights, self.terms)
        if row_weights is not None:
            radius_gradients = [
                None if each is None else each * row_weights[:, None] for each in found.radius_gradients
            ]
            found = found._replace(
                u_gradients=[g * row_weights[:, None] for g in found.u_gradients], radius_gradients=radius_gradients
            )
        operators = [layer.operator for layer in self.network.layers]
        rows = [each.rows(self.network.read(number, found.forward)) for number, each in enumerate(operators)]
        u_gradients = [each.targets(g) for each, g in zip(operators, found.u_gradients, strict=True)]
        return BatchGradients(rows, u_gradients, found.preactivations, found.preactivations[-1], found)

    def w_gradient(self, number: int, weights: Weights, batch: BatchGradients) -> Tensor | None:
        term = self.terms[number]
        if term is None or batch.x_step is None:
            return None
        return term.w_gradient(weights[number].w, batch.x_step.radius_gradients[number])

    def probe(
        self, weights: Weights, batch: BatchGradients, y: Tensor, probes: Tensor, row_weights: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        found = curvatures(self.network, weights, batch.preactivations, probes, row_weights, y)
        for number, term in enumerate(self.terms):
            if term is not None and batch.x_step is not None:
                z, radius_gradient = [*batch.x_step.states, y][number], batch.x_step.radius_gradients[number]
                term.renew(weights[number].w, batch.preactivations[number], z, radius_gradient, row_weights)
        if self.terms[-1] is not None:
            found = [c / self.terms[-1].share for c in found]  # the loss has the factor 1 / share, for all layers
        return found, [None if term is None else term.added_curvature() for term in self.terms]

    def state(self) -> dict[str, Tensor]:
        """The tensors that a refresh writes, by name."""
        named = [(number, term) for number, term in enumerate(self.terms) if term is not None]
        return {f"{number}.{name}": part for number, term in named for name, part in term.state().items()}

    def load(self, named: dict[str, Tensor]) -> None:
        """Load what `state` returned, in place."""
        for number, term in enumerate(self.terms):
            if term is not None:
                term.load({name: named[f"{number}.{name}"] for name in term.state()})


def _term_of(layer: Layer, w: Tensor) -> RobustTerm | None:
    """The robust term of a layer with weights like w; None where the layer has no uncertainty."""
    kind = layer.uncertainty
    return None if kind is None else kind.batch_term(layer.divergence, layer.lam, w)
