"""The interface of a model to the mini-batch step: inputs and gradients of every layer, and its curvatures."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from liftednn import reduce
from liftednn.base import Operator
from liftednn.blocks.robust_term import RobustTerm
from liftednn.network import Layer, LiftedNetwork, Weights
from liftednn.runtime.graphs import InOrder
from liftednn.training.batch import XStep, curvatures, top_curvature, x_step

__all__ = ["BatchGradients", "LiftedModel", "Model"]


class BatchGradients(NamedTuple):
    """Inputs and gradients of every layer on a batch.

    inputs           the states that it reads
    w_gradients      the gradient in its w, summed over the rows of its regression, and `b_gradients` that in its b
    preactivations   of every layer, (n, width)
    scores           of the batch, (n, outputs)
    x_step           the states, for a model that has states
    """

    inputs: list[list[Tensor]]
    w_gradients: list[Tensor]
    b_gradients: list[Tensor]
    preactivations: list[Tensor]
    scores: Tensor
    x_step: XStep | None = None


class Model(Protocol):
    """A model made of linear regressions, which a mini-batch step can train."""

    def gradients(
        self,
        weights: Weights,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None,
        outlier_weights: Tensor | None,
        work: InOrder,
    ) -> BatchGradients:
        """Inputs and gradients for a batch. `outlier_weights` (n,) multiply each sample's loss, `row_weights` its gradients. Gradients in
        the weights of a layer run as the part of `work` that has its number."""

    def probe(
        self, weights: Weights, batch: BatchGradients, y: Tensor, probes: Tensor | None, row_weights: Tensor | None
    ) -> tuple[list[float], list[Tensor | None]]:
        """The curvature, in each pre-activation, of all that comes after it, from probes (m, n, outputs) that are sent backward from the
        scores; without probes 1, but for the scores. And what must be added to its curvature in w, (p, p) or None. Called at every refresh:
        values that depend on the current weights may be updated."""

    def state(self) -> dict[str, Tensor]:
        """The tensors that a refresh writes, by name."""

    def load(self, named: dict[str, Tensor]) -> None:
        """Load what `state` returned, in place."""


class LiftedModel:
    """A lifted network as a `Model`, by a forward and a backward pass over its layers."""

    def __init__(self, network: LiftedNetwork, weights: Weights) -> None:
        self.network = network
        self.terms = [_term_of(layer, w) for layer, (w, _) in zip(network.layers, weights, strict=True)]
        self.certain = all(term is None for term in self.terms)

    def gradients(
        self,
        weights: Weights,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None,
        outlier_weights: Tensor | None,
        work: InOrder,
    ) -> BatchGradients:
        """The states of a sample do not depend on its weight; its gradients are multiplied by it."""
        complete = row_weights is None and self.certain  # no gradient is changed later
        found = x_step(self.network, weights, x, y, outlier_weights, self.terms, work.begin if complete else None)
        if row_weights is not None:
            radius_gradients = [
                None if each is None else each * row_weights[:, None] for each in found.radius_gradients
            ]
            found = found._replace(
                u_gradients=[g * row_weights[:, None] for g in found.u_gradients], radius_gradients=radius_gradients
            )
        w_gradients, b_gradients = [], []
        for number, layer in enumerate(self.network.layers):
            w, b = work.run((number,), _sums, layer.operator, found.inputs[number], found.u_gradients[number])
            w_gradients.append(w)
            b_gradients.append(b)
        if not self.certain:
            for number, term in enumerate(self.terms):
                if term is not None:  # w has a part in the objective besides the pre-activations
                    of_layer = w_gradients[number], weights[number].w, found.radius_gradients[number]
                    work.run((number,), _add_gradient, term, *of_layer, len(x))
        scores = found.preactivations[-1]
        return BatchGradients(found.inputs, w_gradients, b_gradients, found.preactivations, scores, found)

    def probe(
        self,
        weights: Weights,
        batch: BatchGradients,
        y: Tensor,
        probes: Tensor | None,
        row_weights: Tensor | None = None,
    ) -> tuple[list[float], list[Tensor | None]]:
        if probes is None:
            top = top_curvature(self.network, batch.scores, y, row_weights)
            found = [*[1.0] * (len(self.network.layers) - 1), top]
        else:
            found = curvatures(self.network, weights, batch.preactivations, probes, row_weights, y)
        for number, term in enumerate(self.terms):
            if term is not None and batch.x_step is not None:
                z, radius_gradient = [*batch.x_step.states, y][number], batch.x_step.radius_gradients[number]
                term.update(weights[number].w, batch.preactivations[number], z, radius_gradient, row_weights)
        if self.terms[-1] is not None:
            found = [
                c / float(self.terms[-1].fraction) for c in found
            ]  # the loss has the factor 1 / fraction, for all layers
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


def _sums(operator: Operator, xs: list[Tensor], u_gradient: Tensor) -> list[Tensor]:
    """The gradients in w and b of a layer."""
    return reduce.sums([operator.weight_gradient(xs, u_gradient), operator.bias_gradient(u_gradient)])


def _add_gradient(term: RobustTerm, total: Tensor, w: Tensor, radius_gradient: Tensor | None, samples: int) -> None:
    """Add a robust term's own gradient in w to a sum over samples."""
    total.add_(term.w_gradient(w, radius_gradient), alpha=samples)


def _term_of(layer: Layer, w: Tensor) -> RobustTerm | None:
    """The robust term of a layer with weights like w; None where the layer has no uncertainty."""
    kind = layer.row_uncertainty
    return None if kind is None else kind.batch_term(layer.divergence, layer.lam, w)
