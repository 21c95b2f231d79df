"""One recipe for the estimators, `init.lifted_` and the command line: what a user does not give of the following is chosen here.

    loss       by name, Huber's has its delta in units of the responses' spread; for mini-batches a kink is smoothed over 1% of it
    penalty    as given, with `rho` where the name has no number
    lam, rho   if not given, those of `choices.automatic`; if given, exactly those, and nothing else changes
    inputs     uncertain as given; if lam is not given, scaled to the weight that the uncertainty would have at the loss
    widths     of hidden layers, if not given: by the number of rows and the kind of response
    passes     if not given, by the number of rows; fewer for initial weights
    batches    if not given, larger ones than those of `MiniBatch` where there are few rows, with a rate in proportion

All units are those of the rows that the trainer sees. Spreads are of all given responses, with the row weights: that of a sample would
depend on the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from liftednn import losses
from liftednn.base import Activation, Loss, Penalty, Uncertainty
from liftednn.blocks import Granularities
from liftednn.data.arrays import as_tensor
from liftednn.data.sources import Source
from liftednn.functional import median_and_spread
from liftednn.losses import Huber
from liftednn.losses.regression import Bounded
from liftednn.network import LiftedNetwork
from liftednn.training import choices, plan
from liftednn.training.initial import Features
from liftednn.training.minibatch import MiniBatch

__all__ = ["Recipe", "named_loss", "numbers_of", "spread"]

# Hidden layers, and those for at least so many rows of real responses, of up to so many outputs or of more.
_WIDTHS, _DEEPER, _WIDER, _ENOUGH, _FEW = (100,), (50, 50), (100, 100), 500, 10


@dataclass(frozen=True)
class Recipe:
    """How a network is prepared and trained by mini-batches; what is None is chosen from the data.

    lam           how closely the states obey the recursion, one number or one for each hidden layer
    rho           of the penalties given by name without a number; None: chosen for `L2`, others have their defaults
    penalty       on the weights, one for all layers or one for each
    uncertainty   of the inputs; None: there is none
    passes        over the data
    initial       for the initial weights of a network that is then trained otherwise, not for a model: fewer passes
    seed          of the choices, the random weights and the order of rows
    device, batch_size, learn_activation   as `MiniBatch` has them
    """

    lam: float | list[float] | None = None
    rho: float | None = None
    penalty: str | Penalty | Sequence[str | Penalty] = "l2"
    uncertainty: Uncertainty | None = None
    passes: int | None = None
    initial: bool = False
    seed: int = 0
    device: str | None = None
    batch_size: int | None = None
    learn_activation: Granularities = None

    def widths(self, rows: int | None, activation: Activation, outputs: int = 1) -> list[int]:
        """Of the hidden layers, for so many rows of real responses; None for classes, and where the number is unknown.

        Two layers predict real responses better than one, and narrow ones in about the same time; many outputs need wider ones. Classes
        gain little, few rows are fitted too closely, and with activations that saturate two are worse; in other settings they were not
        tried.
        """
        tried = (
            activation.homogeneous and self.penalty == "l2" and self.uncertainty is None and np.ndim(self.lam or 0) == 0
        )
        if not tried or rows is None or rows < _ENOUGH:
            return list(_WIDTHS)
        return list(_DEEPER if outputs <= _FEW else _WIDER)

    def network(self, given: LiftedNetwork, source: Source, y: Any, row_weights: Any = None) -> LiftedNetwork:
        """The network that is trained, with lam, rho and the smoothing of the loss chosen where they are not given.

        y, row_weights   responses that the smoothing is chosen from, and their weights: all where they are in memory, or a sample
        """
        return self.start(given, source, y, row_weights)[0]

    def start(
        self, given: LiftedNetwork, source: Source, y: Any, row_weights: Any = None
    ) -> tuple[LiftedNetwork, Features | None]:
        """`network`, and weights that a run starts from, where they were drawn for the choices: it draws the same otherwise."""
        network, weights = _rounded(given, y, row_weights).with_penalty(self.penalty, self.rho), None
        if self.lam is None or self.rho is None:
            network, weights = choices.automatic_start(network, source, self.seed)
        # The choice of lam replaces rho of L2, so that lam does not depend on it: it is set again.
        if self.rho is not None:
            network, weights = network.with_penalty(self.penalty, self.rho), None  # another head has this penalty
        return self._with_lam_and_uncertainty(network, automatic=self.lam is None), weights

    def unchosen(self, given: LiftedNetwork) -> LiftedNetwork:
        """For full passes: what is not given stays as in the network and the penalties, and a kink of the loss stays."""
        return self._with_lam_and_uncertainty(given.with_penalty(self.penalty, self.rho), automatic=False)

    def _with_lam_and_uncertainty(self, network: LiftedNetwork, automatic: bool) -> LiftedNetwork:
        network = network if self.lam is None else network.with_lam(self.lam)
        return choices.with_input_uncertainty(network, self.uncertainty, automatic_lam=automatic)

    def trainer(self, rows: int | None, classes: int = 1, hidden: int = 1) -> MiniBatch:
        """The trainer for that many rows, classes and hidden layers. The number of rows may be None, unknown, as of a stream: rho then
        stays."""
        trainer = MiniBatch(
            passes=self._passes(rows, classes) if self.passes is None else self.passes,
            batch_size=self.batch_size,
            seed=self.seed,
            device=self.device,
            learn_activation=self.learn_activation,
            learn_rho=self.rho is None and rows is not None and not self.initial,
            shorten=self.passes is None and not self.initial,
        )
        if self.batch_size is not None or rows is None or self.initial:
            return trainer
        size = plan.larger_batch_size(rows, classes, hidden)
        return replace(
            trainer, batch_size=size, step=trainer.step * plan.larger_step(rows, size, trainer.passes, hidden)
        )

    def _passes(self, rows: int | None, classes: int) -> int:
        if not self.initial:
            return plan.passes(rows, classes)
        # With a given lam, which may be too small, many passes could make the weights worse.
        return plan.initialisation_passes(rows if self.lam is None else None)


def named_loss(name: str, y: Any, row_weights: Any = None) -> Loss:
    """The loss of that name for responses y, (n,) or (n, outputs); Huber's has its delta in units of their spread."""
    loss = losses.named(name)
    return loss.scaled(spread(y, row_weights)) if isinstance(loss, Huber) else loss


def spread(y: Any, row_weights: Any = None) -> float:
    """The unit of a loss: the least spread of a response by its quartiles (`median_and_spread`). 1 for responses that are not finite,
    which the trainer refuses."""
    found = float(median_and_spread(_columns(y).double(), _weights(row_weights))[1].min())
    return found if math.isfinite(found) else 1.0


def numbers_of(lam: Any) -> float | list[float] | None:
    """lam as users give it: None for "auto", a number, or one for each hidden layer, of Python, numpy or torch."""
    if isinstance(lam, str) and lam == "auto":
        return None
    plain = lam.tolist() if isinstance(lam, (Tensor, np.ndarray, np.generic)) else lam
    try:
        if isinstance(plain, str):
            raise TypeError("it is text")
        return float(plain) if isinstance(plain, Real) else [float(each) for each in plain]
    except (TypeError, ValueError) as error:
        raise ValueError(f"lam must be 'auto', a number, or one for each hidden layer, got {lam!r}") from error


def _rounded(network: LiftedNetwork, y: Any, row_weights: Any) -> LiftedNetwork:
    """The network with the kink of its loss, if it has one, smoothed as mini-batches need it."""
    if not isinstance(network.loss, Bounded):
        return network
    responses = _columns(y)
    if not bool(responses.isfinite().all()):
        return network  # the trainer refuses them
    return choices.with_loss(network, choices.smoothed(network.loss, responses, _weights(row_weights)))


def _columns(y: Any) -> Tensor:
    """The responses as (n, outputs), in float64 unless they are float32."""
    given = as_tensor(y, "y")
    given = given if given.dtype in (torch.float32, torch.float64) else given.double()
    return given.reshape(len(given), -1)


def _weights(row_weights: Any) -> Tensor | None:
    return None if row_weights is None else torch.as_tensor(row_weights)
