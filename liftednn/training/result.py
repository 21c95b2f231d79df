"""What a trainer returns, and its record of every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from liftednn.base import Affine
from liftednn.network import LiftedNetwork

__all__ = ["Fit", "Record", "Status", "copies"]

# converged: a pass lowered the objective by less than tol; finished: all passes done; early: the validation score stopped improving
Status = Literal["converged", "finished", "stopped", "early", "diverged"]


@dataclass(frozen=True)
class Record:
    """One pass over the data.

    `BCD` evaluates all rows after the pass, and its record 0 is the start. `MiniBatch` has means over the batches of the pass, each before
    its own step: loss and score over all of them, objective and gaps over a few; where a pass has fewer than 60
    steps, over those of an earlier pass.

    number                              of the pass
    objective                           F, and of full passes its `terms` and `penalties`, one for each layer
    gaps                                for each hidden layer, the distance of its states from the recursion
    loss, score                         of the feed-forward predictions
    seconds                             of training so far, preparation included and validation not
    kkt                                 of full passes, the residual of each block
    steps, rate, halved                 of mini-batches: steps in the pass, the rate at its end, how often it was halved (those of the
                                        first steps are taken back)
    validation_loss, validation_score   None without validation data

    >>> network = lnn.LiftedNetwork.mlp([3, 4, 1], loss="squared")
    >>> fit = lnn.BCD(passes=1).run(network, torch.eye(3), torch.ones(3))
    >>> [(record.number, len(record.gaps)) for record in fit.history]
    [(0, 1), (1, 1)]
    """

    number: int
    objective: float
    gaps: tuple[float, ...]
    loss: float
    score: float
    seconds: float
    terms: tuple[float, ...] = ()
    penalties: tuple[float, ...] = ()
    kkt: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    rate: float = 0.0
    halved: int = 0
    validation_loss: float | None = None
    validation_score: float | None = None


@dataclass(frozen=True)
class Fit:
    """What a run returns.

    weights    those of the last pass, or with validation data of the best, with the head scaled where `MiniBatch(learn_rho=True)` does so;
               of a run with convolutions that is stopped, averages over steps
    history    a record of every pass
    status     how the run ended in a word, `result` in a sentence
    network    with the learned activations
    states     (X_0, ..., X_{L+1}) of full passes; None for mini-batches, which keep none
    warnings   sentences that say what is wrong with the result, and what to try

    >>> network = lnn.LiftedNetwork.mlp([3, 4, 1], loss="squared")
    >>> fit = lnn.BCD(passes=1).run(network, torch.eye(3), torch.ones(3))
    >>> [tuple(w.shape) for w, b in fit.weights], [tuple(state.shape) for state in fit.states]
    ([(4, 3), (1, 4)], [(3, 3), (3, 4), (3, 1)])
    """

    weights: list[Affine]
    history: list[Record]
    status: Status
    result: str
    network: LiftedNetwork
    states: list[Tensor] | None = None
    warnings: tuple[str, ...] = ()


def copies(weights: Sequence[Affine]) -> list[Affine]:
    """Copies of the weights, that training does not change; contiguous, as those of a file are, so that both give the same predictions to
    the bit."""
    return [Affine(*(part.clone(memory_format=torch.contiguous_format) for part in pair)) for pair in weights]
