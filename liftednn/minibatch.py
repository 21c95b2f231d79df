"""Mini-batch lifted training: the blocks of section 6, one step of each per batch.

Each batch starts from the states of its own forward pass, so nothing is kept per sample and memory does not grow with their number.
What is given up: the X-step lowers its block only where lam is large enough (see blocks/descent.py), and from one batch to the next
nothing is guaranteed, as for any stochastic method. What is kept: every batch costs a forward and a backward product per layer; a run
that would diverge, or lose what it knew, is noticed, taken back and goes on with half the step, or ends there with a warning.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from liftednn import choices, reduce
from liftednn.base import Affine
from liftednn.blocks import Descent, Grains, answer, descent_refusal, geometries_of, reach_of
from liftednn.checkpoint import Checkpoint
from liftednn.checks import check_callable, check_kind, check_pair, check_real, check_seed
from liftednn.feed import Feed
from liftednn.graphs import recorded
from liftednn.identity import identify
from liftednn.interrupt import Interruption, between_steps
from liftednn.learning import Learner, as_tensors, settled
from liftednn.moments import Moments
from liftednn.monitor import Fit, Monitor, Pass, Status, Tally
from liftednn.network import LiftedNetwork
from liftednn.precision import plain_arithmetic
from liftednn.shortcomings import shortcomings
from liftednn.sources import Memory, Once, Source, source_of
from liftednn.start import check_device, check_network, check_trainable, given_weights, pairs_of, with_fixed
from liftednn.threads import one_thread
from liftednn.watch import DivergenceError, Watch
from liftednn.whitening import Coordinates

__all__ = ["Fit", "MiniBatch", "Pass", "Run"]

# Rows for the Gram matrix of the inputs.
_ROWS = 8192
# Rows that the hidden layers' first Gram matrices are from.
_FEW = 4096
_HALVINGS = 8
_EARLY = (2, 5, 10, 20)
_COUNTERS = ("taken", "per_pass", "halved", "seconds")


@dataclass(frozen=True)
class MiniBatch:
    """Mini-batch descent. What is None is chosen from the data; `automatic` chooses the network's lam and rho.

    max_iter     passes over the data
    batch_size   rows per step; an iterable of batches brings its own
    step         the first rate, decayed to 0 along a cosine over all passes
    momentum     Nesterov's
    damping      of the Gram matrices, as a share of their mean diagonal
    keep         share of the inputs' variance that training sees; the directions that hold the rest get no weight
    refresh      steps between two refreshes of the Gram matrices' factors
    patience     stop after this many passes without a better validation score; None: never
    seed         of the initial weights and the order of rows
    device       where to train; None: where x is
    refit        learn the activations' own parameters, one for a "layer" or one for each "unit"; a sequence: one each
    """

    max_iter: int = 17
    batch_size: int | None = None
    step: float = 0.05
    momentum: float = 0.9
    damping: float | None = None
    keep: float = 0.95
    refresh: int = 60
    patience: int | None = None
    seed: int = 0
    device: str | None = None
    refit: Grains = None

    def __post_init__(self) -> None:
        check_device(self.device)
        for name in ("max_iter", "batch_size", "refresh", "patience"):
            given = getattr(self, name)
            if (given is not None or name in ("max_iter", "refresh")) and not (isinstance(given, int) and given >= 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {given}")
        for name in ("step", "momentum", "keep", "damping"):
            check_real(name, getattr(self, name), none=name == "damping")
        check_seed(self.seed)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not (0 < self.step < math.inf and 0 <= (self.damping or 0.0) < math.inf and 0 < self.keep <= 1):
            raise ValueError(
                "step must be positive, damping non-negative and keep in (0, 1], "
                f"got step={self.step}, damping={self.damping} and keep={self.keep}"
            )

    @plain_arithmetic
    def run(
        self,
        network: LiftedNetwork,
        x: Any,
        y: Any = None,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        validation: tuple[Any, Any] | None = None,
        callback: Callable[[Pass], object] | None = None,
        checkpoint: Checkpoint | None = None,
        sample_weight: Any = None,
        fixed: Sequence[tuple[Tensor | None, Tensor | None]] | None = None,
        moments: Moments | None = None,
    ) -> Fit:
        """Train on rows x and responses y (tensors, arrays, numpy.memmap), or on x alone, an iterable of batches (x, y) or
        (x, y, sample_weight); an iterator for a single pass.

        weights         where to start; None for random features with a head fitted to a sample
        validation      rows and responses that are never trained on: scored after each pass, and the best weights are kept
        callback        called with each pass's record; a true answer stops the run. Ctrl-C stops it too and keeps what it has
        checkpoint      a file to write to and to go on from, if all else that is given here is the same
        sample_weight   (n,), how much each row counts; those in an iterable's batches should be 1 on average
        fixed           for every layer, w and b that must stay as they are, None for what is trained
        moments         of the inputs, where more is known of them than these rows tell
        """
        check_network(network)
        if self.patience and validation is None:
            raise ValueError("patience needs validation data: give validation=(x, y)")
        check_callable("callback", callback)
        check_pair("validation", validation)
        check_kind("checkpoint", checkpoint, Checkpoint, "a Checkpoint")
        check_kind("moments", moments, Moments, "Moments of the inputs")
        source = source_of(x, y, sample_weight)
        with one_thread(choices.small(network, self.batch_size or choices.batch_size(source.rows))):
            return self._finish(Run(self, network, source, weights, validation, checkpoint, fixed, moments), callback)

    def _finish(self, run: Run, callback: Callable[[Pass], object] | None) -> Fit:
        stopped, interrupted, diverged = False, False, ()
        with between_steps() as asked:
            try:
                for record in run.passes(asked):
                    if stopped := callback is not None and bool(callback(record)):
                        break
                else:
                    asked()  # after the last step too
            except DivergenceError as error:
                diverged = error.args
            except KeyboardInterrupt as pressed:
                stopped = interrupted = True
                run.settle()
                if isinstance(pressed, Interruption):
                    run.save()
        ended: Status = "early" if run.out_of_patience else "max_iter"
        status: Status = "stopped" if stopped else "diverged" if diverged else ended
        weights, final = run.monitor.best or run.outward(), run.monitor.best_network or settled(run.network)
        result = run.monitor.sentence(status, run.halved, self.patience)
        wrong = () if interrupted else shortcomings(final, weights, *run.judged, 0 if diverged else run.halved)
        return Fit(weights, run.monitor.history, status, result, final, diverged + wrong)


class Run:
    """A run in progress. The learned parameters of its `network` change in place; those given and handed out are copies."""

    def __init__(
        self,
        settings: MiniBatch,
        network: LiftedNetwork,
        source: Source,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        validation: tuple[Any, Any] | None = None,
        checkpoint: Checkpoint | None = None,
        fixed: Sequence[tuple[Tensor | None, Tensor | None]] | None = None,
        moments: Moments | None = None,
    ) -> None:
        started = time.perf_counter()
        check_trainable(network)
        if refusal := descent_refusal(network):
            raise ValueError(refusal)
        self.settings, self.network, self.checkpoint = settings, network, checkpoint
        self.feed = Feed(network, source, settings.device)
        if isinstance(source, Once) and settings.max_iter > 1:
            raise ValueError(
                f"an iterator can be read only once, and max_iter is {settings.max_iter}: give max_iter=1, or an iterable that "
                "starts anew each time, such as a DataLoader or a list"
            )
        self.size = settings.batch_size or choices.batch_size(source.rows)
        self.per_pass, self.damping = source.steps(self.size), self._damping(source.rows)
        count = max(_ROWS, 8 * network.in_width)
        x, y, counts = self.feed.sample(count, settings.seed)
        self.fixed = [(None, None)] * len(network.layers) if fixed is None else pairs_of(fixed, "fixed")
        if checkpoint is not None:
            known = f"{settings!r} in {x.dtype}"
            self.identity = identify(known, network, source, validation, self.fixed, weights, moments)
        self.network = as_tensors(network, settings.refit, x)
        stored = checkpoint.load(self.identity) if checkpoint is not None else None
        self._prepare(x, y, counts, weights, moments, stored[0] if stored else {})
        held = None if validation is None else self.feed.checked(*validation, like=x)[:2]
        self.monitor = Monitor(self.network, held, Tally(self.network.loss))
        self.feed.enter(self.coordinates)
        if isinstance(self.feed.source, Memory):
            self.descent.let_go(self.feed.source.x)
        self.taken, self.halved, self.watch = 0, 0, Watch(self.descent.network)
        self.seconds = time.perf_counter() - started
        if checkpoint is not None and stored:
            with checkpoint.rebuilding():
                self._resume(*stored)

    def _damping(self, rows: int | None) -> float:
        width, given = self.network.in_width, self.settings.damping
        return choices.damping(rows, width) if given is None else given

    def _prepare(
        self,
        x: Tensor,
        y: Tensor,
        counts: Tensor | None,
        given: Sequence[tuple[Tensor, Tensor]] | None,
        moments: Moments | None,
        stored: dict[str, Tensor],
    ) -> None:
        """Weights to start from, whitened inputs, and the geometry of every layer, from a sample; coordinates as they are stored."""
        few = None if counts is None else counts[:_FEW]
        if given is None:
            weights = choices.random_features(self.network, self.settings.seed, x, y, counts, self.fixed)
        else:
            weights = given_weights(self.network, with_fixed(given_weights(self.network, given, x), self.fixed), x)
        free = [(w is None, b is None) for w, b in self.fixed]
        keep = self.settings.keep if given is None and all(free[0]) else 1.0
        seen = Moments.of(x, x[:, :0], counts) if moments is None else moments
        damping = self.damping if moments is None else self._damping(int(moments.weight))
        self.coordinates = there = Coordinates.of(self.network, x, seen, damping, keep, free[0], stored)
        inner, start, rows = there.network, there.start(weights), there.inward(x[:_FEW])
        self.judged = x[:_FEW].clone(), rows, y[:_FEW].clone(), few
        scale = there.whitening.scale if there.whitening else None
        states = inner.propagate(start, rows)
        geometries = geometries_of(inner, self.network.layers, states, self.damping, scale, few, free)
        reach = None if scale is None else reach_of(rows, few)
        self.descent = Descent(inner, start, geometries, self.settings.momentum, reach)
        plain, self.learner = self.descent.step, Learner(self.descent, self.settings.refit)
        self.step = plain if self.descent.proxed else recorded(plain, x.device)
        self.good = self.descent.values.clone()

    @property
    def out_of_patience(self) -> bool:
        patience, history = self.settings.patience, self.monitor.history
        return patience is not None and len(history) - self.monitor.best_pass >= patience

    def passes(self, asked: Callable[[], None] = lambda: None) -> Iterator[Pass]:
        """One pass after another; `asked` is called after every step and may raise."""
        started = time.perf_counter() - self.seconds
        while len(self.monitor.history) < self.settings.max_iter and not self.out_of_patience:
            before = self.monitor.steps
            batches = self.feed.batches(self.size, self.settings.seed, len(self.monitor.history))
            for batch in itertools.islice(batches, self.taken - before, None):
                self._advance(*batch, self.taken - before)
                self.seconds = time.perf_counter() - started
                asked()
                if self.checkpoint is not None and self.checkpoint.due:
                    self.save()
            yield self._close(self.taken - before, started)
            started = time.perf_counter() - self.seconds  # what the caller does in between is not ours

    def _close(self, steps: int, started: float) -> Pass:
        """The end of a pass."""
        if not steps:
            raise ValueError(
                f"pass {len(self.monitor.history) + 1} gave no batches: the iterable must start anew each time"
            )
        if not bool(self.descent.values.square().sum().isfinite()):
            self._go_back(math.nan)
        self.per_pass, rate = steps, float(self.descent.rate)
        self.seconds = time.perf_counter() - started
        record = self.monitor.record(self.outward(), steps, rate, self.halved, self.seconds)
        self.save()
        return record

    def _advance(self, x: Tensor, y: Tensor, counts: Tensor | None, within: int) -> None:
        """One batch, number `within` of its pass: a refresh where it is due, then a step."""
        if self.taken % self.settings.refresh == 0 or self.taken in _EARLY:
            self._refresh(x, y, counts)
        looks, expected = 1 + min(3, (self.per_pass or 0) // 200), self.per_pass or math.inf
        if within == 0 or within * looks >= len(self.monitor.looks) * expected:
            self._look(x, y, counts)
        progress = (len(self.monitor.history) + within / (self.per_pass or math.inf)) / self.settings.max_iter
        self.descent.rate.fill_(
            self.settings.step * 0.5**self.halved * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
        )
        self.learner.step(x, y, counts, self.taken)
        self.monitor.tally.add(self.step(x, y, counts), y, counts)
        self.taken += 1

    def _look(self, x: Tensor, y: Tensor, counts: Tensor | None) -> None:
        """Evaluate a batch for the objective and the gaps of its pass."""
        inner, weights = self.descent.network, self.descent.weights
        states = answer(inner, weights, x, y, None, self.descent.terms).states
        self.monitor.looks.append(inner.evaluate(weights, [x, *states, y], counts))

    def _refresh(self, x: Tensor, y: Tensor, counts: Tensor | None) -> None:
        """Go back to the last good weights and activations if the run goes astray, and renew the geometry."""
        inner, weights = self.descent.network, self.descent.weights
        scores = inner.scores(weights, x)
        if self.taken == 0:
            self.watch.begin(scores, y)
        verdict = self.watch.judge(scores, y)
        if verdict == "away" or (verdict == "lost" and self.halved < _HALVINGS):
            self._go_back(float(reduce.mean(inner.loss.value(scores, y))))
        elif verdict == "good":
            self.good = self.descent.values.clone()
            self.learner.keep()
        self.descent.refresh(x, y, choices.probes(y, self.taken), counts)

    def _go_back(self, loss: float) -> None:
        self._restore()
        self.halved += 1
        if self.halved > _HALVINGS:
            raise DivergenceError(
                f"training diverged: the loss was {loss:g} after {self.taken} steps, and halving the step {_HALVINGS} times did not help; "
                "the weights are the last good ones: standardise the inputs, or give a smaller step or a larger damping"
            )

    def _restore(self) -> None:
        self.descent.restore(self.good)
        self.learner.restore()

    def settle(self) -> None:
        """Back to the last good weights and activations, should the present ones have run away."""
        if not bool(self.descent.values.square().sum().isfinite()):
            self._restore()

    def outward(self) -> list[Affine]:
        """The present weights, on the inputs as they are given."""
        return with_fixed(self.coordinates.outward(self.descent.weights), self.fixed)

    def save(self) -> None:
        if self.checkpoint is None:
            return
        tensors = self.descent.state() | {"good": self.good} | self.learner.state() | self.monitor.state()
        tensors |= self.coordinates.state()
        facts = {name: getattr(self, name) for name in _COUNTERS}
        facts |= self.watch.facts() | self.monitor.facts()
        self.checkpoint.save(tensors, facts | {"identity": self.identity})

    def _resume(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.descent.load(tensors)
        self.learner.load(tensors)
        self.good.copy_(tensors["good"])
        self.monitor.load(facts, tensors, self.good)
        self.watch.load(facts)
        for name in _COUNTERS:
            setattr(self, name, facts[name])
