"""Mini-batch lifted training: the blocks of section 6, one step of each per batch.

Each batch starts from the states of its own forward pass, so nothing is kept per sample and memory does not grow with their number.
What is given up: the X-step lowers its block only where lam is large enough (see training/batch.py), and from one batch to the next
nothing is guaranteed, as for any stochastic method. What is kept: every batch costs a forward and a backward product per layer; a run
that diverges, or whose scores collapse, is rolled back to its last good weights and continues with half the step, or stops with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from liftednn.blocks import Granularities
from liftednn.checks import check_callable, check_count, check_kind, check_pair, check_real, check_seed
from liftednn.data.sources import source_of
from liftednn.data.validation import check_device, check_network
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork
from liftednn.runtime.interrupt import Interruption, between_steps
from liftednn.runtime.precision import plain_arithmetic
from liftednn.runtime.threads import one_thread
from liftednn.training import choices, plan
from liftednn.training.calibration import calibrated
from liftednn.training.checkpoint import Checkpoint
from liftednn.training.diagnostics import problems_of
from liftednn.training.guard import DivergenceError
from liftednn.training.learning import snapshot
from liftednn.training.result import Fit, Record, Status, copies
from liftednn.training.run import Run

__all__ = ["MiniBatch"]


@dataclass(frozen=True)
class MiniBatch:
    """Mini-batch descent. What is None is chosen from the data; `automatic` chooses the network's lam and rho.

    passes             passes over the data
    batch_size         rows per step; ignored for an iterable of batches
    step               the initial rate, decayed to 0 along a cosine over all passes
    momentum           Nesterov's
    damping            of the Gram matrices, as a fraction of their mean diagonal
    keep               fraction of the inputs' variance to keep; the directions that hold the rest get zero weights. None for .95, and for
                       all of it where a linear regression of the responses needs the rest (training/whitening.py)
    refresh            steps from one refresh of the Gram matrices' factors to the next. None for 60, and for up to 240 later in a run that
                       learns rho, or whose hidden layers all take the steps of training/spectral.py
    patience           stop after this many passes without a better validation score; None: never
    seed               of the initial weights and the order of rows
    device             where to train; None: where x is
    learn_activation   learn the activations' own parameters, one for a "layer" or one for each "unit"; a sequence has one for each layer
    learn_rho          multiply rho of all `L2` penalties by one factor, updated up to seven times in a run, so that it fits the noise
                       in the data (training/evidence.py), and at its end the scores of classes where they are too small for few rows
                       (training/calibration.py); needs a known number of rows
    shorten            do fewer passes where classes are so easy to tell apart that the loss falls below 0.001 of a constant's in the first
                       tenth of them: as many passes again follow (training/schedule.py)

    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> network = lnn.automatic(lnn.LiftedNetwork.mlp([3, 10, 2], activation="fenchel_relu"), x, y)
    >>> fit = lnn.MiniBatch(passes=3).run(network, x, y)
    >>> fit.status, fit.history[-1].score > 0.9
    ('finished', True)
    """

    passes: int = 17
    batch_size: int | None = None
    step: float = 0.05
    momentum: float = 0.9
    damping: float | None = None
    keep: float | None = None
    refresh: int | None = None
    patience: int | None = None
    seed: int = 0
    device: str | None = None
    learn_activation: Granularities = None
    learn_rho: bool = False
    shorten: bool = False

    def __post_init__(self) -> None:
        check_device(self.device)
        for name in ("passes", "batch_size", "refresh", "patience"):
            given = getattr(self, name)
            if given is not None or name == "passes":
                object.__setattr__(self, name, check_count(name, given, least=1))
        for name in ("step", "momentum", "keep", "damping"):
            check_real(name, getattr(self, name), none=name in ("keep", "damping"))
        check_seed(self.seed)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not (0 < self.step < math.inf and 0 <= (self.damping or 0.0) < math.inf):
            raise ValueError(
                f"step must be positive and damping non-negative, got step={self.step} and damping={self.damping}"
            )
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"keep must be in (0, 1], or None, got {self.keep}")

    @plain_arithmetic
    def run(
        self,
        network: LiftedNetwork,
        x: Any,
        y: Any = None,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        validation: tuple[Any, ...] | None = None,
        callback: Callable[[Record], object] | None = None,
        checkpoint: Checkpoint | None = None,
        sample_weight: Any = None,
        fixed: Sequence[tuple[Tensor | None, Tensor | None]] | None = None,
        moments: Moments | None = None,
    ) -> Fit:
        """Train the network on rows x and responses y (tensors, arrays, numpy.memmap), or on x alone, an iterable of batches (x, y) or
        (x, y, sample_weight); an iterator for a single pass. Returns a `Fit`.

        network         a `LiftedNetwork`
        x, y            (n, inputs), and what the loss takes: labels are integers, (n,), real responses (n,) or (n, outputs)
        weights         where to start; None for random features with a head fitted to a sample
        validation      rows and responses that are never trained on, and weights of these rows if wanted: scored after each pass, and the
                        best weights are kept
        callback        called with each pass's record; a true result stops the run. Ctrl-C stops it too and keeps what it has
        checkpoint      a file to write to, and to resume from if all other arguments are the same
        sample_weight   (n,), the weight of each row; those in an iterable's batches should be 1 on average
        fixed           for every layer, w and b that must stay as they are, None for what is trained
        moments         of the inputs, where they are known from more rows than these
        """
        check_network(network)
        if self.patience and validation is None:
            raise ValueError("patience needs validation data: give validation=(x, y)")
        check_callable("callback", callback)
        check_pair("validation", validation)
        check_kind("checkpoint", checkpoint, Checkpoint, "a Checkpoint")
        check_kind("moments", moments, Moments, "Moments of the inputs")
        source = source_of(x, y, sample_weight)
        with one_thread(choices.small(network, self.batch_size or plan.batch_size(source.rows))):
            return self._finish(Run(self, network, source, weights, validation, checkpoint, fixed, moments), callback)

    def _finish(self, run: Run, callback: Callable[[Record], object] | None) -> Fit:
        stopped, interrupted, diverged = False, False, ()
        with between_steps() as check_interrupt:
            try:
                for record in run.passes(check_interrupt):
                    stopped = callback is not None and bool(callback(record))
                    check_interrupt()  # a callback may take long
                    if stopped:
                        break
                check_interrupt()
            except DivergenceError as error:
                diverged = error.args
                with suppress(Interruption):  # it ends anyway
                    check_interrupt()
            except KeyboardInterrupt as pressed:
                stopped = interrupted = True
                run.roll_back_if_diverged()
                if isinstance(pressed, Interruption):
                    run.save()
        ended: Status = "early" if run.out_of_patience else "finished"
        status: Status = "stopped" if stopped else "diverged" if diverged else ended
        weights = copies(run.monitor.best or run.unwhitened_weights())
        final = snapshot(run.monitor.best_network or run.network)
        if run.learns_rho and run.free and not (run.positions or interrupted or diverged):
            weights = calibrated(final, weights, run.rho_rows)
        result = run.monitor.sentence(status, run.rate.halved, self.patience, run.planned < self.passes)
        wrong = () if interrupted else problems_of(final, weights, *run.check_rows, 0 if diverged else run.rate.halved)
        return Fit(weights, run.monitor.history, status, result, final, warnings=diverged + wrong)
