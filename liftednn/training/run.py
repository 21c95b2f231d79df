"""A run of `MiniBatch` in progress: batches, steps, refreshes, and the roll-back of a run that diverges."""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from liftednn.base import Affine
from liftednn.data.copies import distinct_columns
from liftednn.data.identity import identify
from liftednn.data.sources import Memory, Once, Source
from liftednn.data.validation import check_trainable
from liftednn.moments import Moments
from liftednn.network import Evaluation, LiftedNetwork
from liftednn.runtime.graphs import recorded
from liftednn.training import choices, plan
from liftednn.training.batch import why_not_minibatch, x_step
from liftednn.training.checkpoint import Checkpoint
from liftednn.training.constant_units import redraw_constant_units
from liftednn.training.cpu import fast_on_cpu
from liftednn.training.descent import EARLY, Descent, norm_limit_of, refresh_due
from liftednn.training.evidence import adaptable, next_change, raised, rho_factor, sample_of, with_rho_factor
from liftednn.training.feed import Feed
from liftednn.training.geometry import geometries_of
from liftednn.training.guard import DivergenceError, DivergenceGuard
from liftednn.training.initial import Features, fixed_together, given_weights, pairs_of, with_fixed
from liftednn.training.learning import Learner, as_tensors
from liftednn.training.monitor import Monitor, Tally
from liftednn.training.rate import HALVINGS, Rate
from liftednn.training.result import Record
from liftednn.training.schedule import Schedule, negligible_loss
from liftednn.training.spectral import spectral_trust
from liftednn.training.whitening import Coordinates

if TYPE_CHECKING:
    from liftednn.training.minibatch import MiniBatch

__all__ = ["Run"]

# Rows for the Gram matrix of the inputs, and for the first ones of the hidden layers.
_ROWS, _FEW = 8192, 4096
# The fraction of all steps up to which units are drawn anew.
_HALF = 0.5
# The fraction of the first rate below which weights at the end of a run are steady.
_FALLEN = 0.1
# Steps between two evaluations of the objective where passes are shorter.
_EVALUATED = 60
# The fractions of all steps after which rho is learned and constant units are drawn anew, and the rows that rho is learned from: of few
# and of many.
_UPDATES, _SAMPLES, _MANY = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7), (192, 384), 2000
# The fewest steps from one of these to the next, on average.
_APART = 10
_COUNTERS = ("taken", "per_pass", "seconds", "rho_factor", "rho_change", "updates", "refreshed")


class Run:
    """A run in progress. The learned parameters of its `network` change in place; the caller's are never changed."""

    def __init__(
        self,
        settings: MiniBatch,
        network: LiftedNetwork,
        source: Source,
        weights: Sequence[tuple[Tensor, Tensor]] | None = None,
        validation: tuple[Any, ...] | None = None,
        checkpoint: Checkpoint | None = None,
        fixed: Sequence[tuple[Tensor | None, Tensor | None]] | None = None,
        moments: Moments | None = None,
    ) -> None:
        started = time.perf_counter()
        check_trainable(network)
        if reason := why_not_minibatch(network):
            raise ValueError(reason)
        self.settings, self.network, self.checkpoint = settings, network, checkpoint
        self.feed = Feed(network, source, settings.device)
        if isinstance(source, Once) and settings.passes > 1:
            raise ValueError(
                f"an iterator can be read only once, and passes is {settings.passes}: give passes=1, or an iterable that "
                "can be read again, such as a DataLoader or a list"
            )
        self.rows = source.rows  # before whitening, after which copies of rows may differ by rounding
        self.size = settings.batch_size or plan.batch_size(self.rows)
        self.per_pass = source.steps(self.size)
        self.feed.begin(checkpoint)
        x, y, row_weights = self.feed.sample(self._sample_rows(), settings.seed)
        self.positions = any(layer.operator.positions > 1 for layer in network.layers)
        self.width = network.layers[0].operator.weight_shape[-1] if self.positions else distinct_columns(x)
        self.damping = self._damping(self.rows)
        self.free = fixed is None  # all weights may move
        self.fixed = (
            [(None, None)] * len(network.layers) if fixed is None else fixed_together(network, pairs_of(fixed, "fixed"))
        )
        if checkpoint is not None:
            given = (network, source, validation, self.fixed, weights, moments)
            self.identity = identify(f"{settings!r} in {x.dtype}", *given)
        self.network = self.given = as_tensors(network, settings.learn_activation, x)
        self.learns_rho = settings.learn_rho and self.rows is not None and adaptable(self.network)
        stored = checkpoint.load(self.identity) if checkpoint is not None else None
        self._prepare(x, y, row_weights, weights, moments, stored[0] if stored else {})
        held = None if validation is None else self.feed.checked(*(*validation, None)[:3], like=x)  # type: ignore[misc]
        self.monitor = Monitor(self.network, held, Tally(self.network.loss))
        self.feed.enter(self.coordinates)
        if isinstance(self.feed.source, Memory):
            self.descent.drop_outlier_weights(self.feed.source.x)
        self.guard = DivergenceGuard(self.descent.network)
        self.rate = Rate(settings.step)
        self.taken, self.updates, self.refreshed = 0, 0, 0
        self.rho_change = 0.0  # of log rho, in the last update
        self._set_rho_factor(self.rho_factor)
        negligible = negligible_loss(network, y, row_weights, self.rows) if settings.shorten else 0.0
        self.schedule, self.planned = Schedule(settings.passes, negligible), settings.passes
        self.seconds = time.perf_counter() - started
        if checkpoint is not None and stored:
            with checkpoint.rebuilding():
                self._resume(*stored)

    def _sample_rows(self) -> int:
        """Rows to prepare from: enough for the Gram matrix of the inputs where a dense layer reads them."""
        if self.network.layers[0].operator.plain:
            return max(_ROWS, 8 * self.network.in_width)
        return choices.sample_rows(self.network, _ROWS)

    def _damping(self, rows: int | None) -> float:
        given = self.settings.damping
        return choices.damping(rows, self.width, self.positions) if given is None else given

    def _prepare(
        self,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None,
        given: Sequence[tuple[Tensor, Tensor]] | None,
        moments: Moments | None,
        stored: dict[str, Tensor],
    ) -> None:
        """Initial weights, whitened inputs, and the geometry of every layer, from a sample; coordinates from a checkpoint, if stored."""
        count = choices.sample_rows(self.network, _FEW, choices.LITTLE_WORK)
        few = None if row_weights is None else row_weights[:count]
        most = _SAMPLES[(self.rows or 0) > _MANY]
        self.rho_rows = sample_of(self.network.loss, x[:count], y[:count], few, self.rows, most)
        self.rho_factor = 1.0
        drawn, given = (given, None) if isinstance(given, Features) and self.free else (None, given)
        if given is None:
            known = x, y, row_weights, self.fixed, self.rows
            weights = drawn.to(x) if drawn else choices.random_features(self.network, self.settings.seed, *known)
            if self.learns_rho and self.free and not self.positions:
                head = partial(choices.fitted_head, x=x[:count], y=y[:count], row_weights=few)
                self.rho_factor, weights = raised(self.network, weights, head, self.rho_rows)
        else:
            weights = given_weights(self.network, with_fixed(given_weights(self.network, given, x), self.fixed), x)
        free = [(w is None, b is None) for w, b in self.fixed]
        keep = self.settings.keep if given is None and all(free[0]) else 1.0
        damping = self.damping if moments is None else self._damping(int(moments.weight))
        there = Coordinates.of(self.network, x, y, moments, damping, keep, free[0], stored, row_weights)
        self.coordinates = there = there if given is None else there.keeping(weights[0])
        inner, start, rows = there.network, there.to_whitened(weights), there.whiten(x[:count])
        self.check_rows = x[:count].clone(), rows, y[:count].clone(), few
        scale = there.whitening.scale if there.whitening else None
        states = inner.propagate(start, rows)
        geometries = geometries_of(inner, self.network.layers, states, damping, scale, few, free, self.positions)
        norm_limit = None if scale is None else norm_limit_of(rows, few)
        steps = self.per_pass and self.per_pass * self.settings.passes
        trust = spectral_trust(steps, (self.rows or 0) / (self.per_pass or math.inf))
        self.descent = Descent(inner, start, geometries, self.settings.momentum, norm_limit, spectral_trust=trust)
        plain, self.learner = self.descent.step, Learner(self.descent, self.settings.learn_activation)
        self.step = plain if self.descent.proxed else recorded(plain, x.device)
        self.good = self.descent.values.clone()

    @property
    def out_of_patience(self) -> bool:
        patience, history = self.settings.patience, self.monitor.history
        return patience is not None and len(history) - self.monitor.best_pass >= patience

    def passes(self, check_interrupt: Callable[[], None] = lambda: None) -> Iterator[Record]:
        """Train, and yield the record of every pass; `check_interrupt` is called after every step and may raise."""
        started = time.perf_counter() - self.seconds
        train = self._train
        if self.descent.values.device.type == "cpu":
            in_memory = isinstance(self.feed.source, Memory)
            train = fast_on_cpu(train, self.network, self.descent.network, in_memory)
        while len(self.monitor.history) < self.planned and not self.out_of_patience:
            yield train(check_interrupt, started)
            started = time.perf_counter() - self.seconds  # the caller's own time does not count

    def _train(self, check_interrupt: Callable[[], None], started: float) -> Record:
        """One pass, or the rest of it."""
        before = self.monitor.steps
        batches = self.feed.batches(self.size, self.settings.seed, len(self.monitor.history))
        for batch in itertools.islice(batches, self.taken - before, None):
            self._advance(*batch, self.taken - before)
            self.seconds = time.perf_counter() - started
            check_interrupt()
            if self.checkpoint is not None and self.checkpoint.due:
                self.save()
        return self._close(self.taken - before, started)

    def _close(self, steps: int, started: float) -> Record:
        """End a pass: check that the weights are finite, record it and save."""
        if not steps:
            raise ValueError(
                f"pass {len(self.monitor.history) + 1} gave no batches: give an iterable that can be read again"
            )
        if not self.descent.finite:
            self._roll_back(math.nan)
        self.per_pass, rate = steps, float(self.descent.rate)
        if len(self.monitor.history) + 1 == self.planned and rate < _FALLEN * self.rate.largest:
            self.descent.forget()
        self.seconds = time.perf_counter() - started
        record = self.monitor.record(self.unwhitened_weights, steps, rate, self.rate.halved, self.seconds)
        self.rate.compare(self.monitor.history, self.guard.constant.whole)
        self._plan()
        self.save()
        return record

    def _plan(self) -> None:
        """The number of passes, from the records so far; where there are fewer now, updates of the model that lie behind are left out."""
        before, history = self.planned, self.monitor.history
        self.planned = self.schedule.planned(history)
        if self.planned < before:
            self.updates = max(self.updates, bisect_left(_UPDATES, len(history) / self.planned))

    def _advance(self, x: Tensor, y: Tensor, row_weights: Tensor | None, within: int) -> None:
        """One batch, number `within` of its pass: a refresh where it is due, then a step."""
        progress = (len(self.monitor.history) + within / (self.per_pass or math.inf)) / self.planned
        due = self.updates < len(_UPDATES) and progress >= _UPDATES[self.updates]
        due = due and self.taken >= _APART * (self.updates + 1)
        updated = due and self._update_model(progress)
        known = self.settings.refresh, self.descent.spectral, self.learns_rho
        if updated or refresh_due(self.taken, self.refreshed, *known):
            self._refresh(x, y, row_weights)
        number, expected = 1 + min(3, (self.per_pass or 0) // 200), self.per_pass or math.inf
        first = within == 0 and -self.taken % _EVALUATED < expected
        if first or within * number >= len(self.monitor.evaluations) * expected:
            self.monitor.add_evaluation(self._evaluation(x, y, row_weights), first)
        self.descent.begin_step(self.rate.at(progress), self.taken)
        self.learner.step(x, y, row_weights, self.taken)
        self.monitor.tally.add(self.step(x, y, row_weights), y, row_weights)
        self.taken += 1

    def _evaluation(self, x: Tensor, y: Tensor, row_weights: Tensor | None) -> Evaluation:
        """The objective and the gaps of a batch."""
        inner, weights = self.descent.network, self.descent.weights
        states = x_step(inner, weights, x, y, None, self.descent.terms).states
        return inner.evaluate(weights, [x, *states, y], row_weights)

    def _refresh(self, x: Tensor, y: Tensor, row_weights: Tensor | None) -> None:
        """Roll back to the last good weights and activations if the run diverges, and update the geometry."""
        batch = self.descent.gradients(x, y, row_weights)
        if self.taken == 0:
            self.guard.begin(batch.scores, y, row_weights, self.check_rows[2:])
        verdict = self.guard.judge(batch.scores, y, row_weights)
        if verdict == "exploded" or (verdict == "collapsed" and self.rate.halved < HALVINGS):
            self._roll_back(self.guard.loss(batch.scores, y, row_weights))
            batch = self.descent.gradients(x, y, row_weights)
        elif verdict == "good":
            self.good = self.descent.values.clone()
            self.learner.keep()
            self.rate.take_back(self.taken)
        self.descent.refresh(batch, y, choices.probes(y, self.taken), row_weights, early=self.taken <= EARLY[-1])
        self.refreshed = self.taken

    def _update_model(self, progress: float) -> bool:
        """Learn rho, where it is learned, and draw constant units anew while there is time to train them; whether anything changed."""
        self.updates += 1
        if self.learns_rho:
            asked = rho_factor(self.network, self.unwhitened_weights(), self.rho_rows)
            self.rho_change = next_change(asked, self.rho_change)
            self._set_rho_factor(self.rho_factor * math.exp(self.rho_change))
        if progress > _HALF:
            return self.learns_rho
        velocity, rows = self.descent.views(self.descent.velocity), self.check_rows
        free = [(w is None, b is None) for w, b in self.fixed]
        seed, inner, weights = self.settings.seed + self.taken, self.descent.network, self.descent.weights
        drawn = redraw_constant_units(inner, weights, velocity, rows[1], seed, rows[3], free)
        return self.learns_rho or drawn > 0

    def _set_rho_factor(self, factor: float) -> None:
        """Multiply every rho that the run started with by this factor."""
        self.rho_factor = factor
        self.network = self.monitor.network = with_rho_factor(self.given, factor)
        for geometry in self.descent.geometries:
            geometry.set_rho_factor(factor)

    def _roll_back(self, loss: float) -> None:
        self._restore()
        self.rate.roll_back(self.taken)
        if self.rate.halved > HALVINGS:
            raise DivergenceError(
                f"training diverged: the loss was {loss:g} after {self.taken} steps, and halving the step {HALVINGS} times did not help; "
                "the weights are the last good ones: standardise the inputs, or give a smaller step or a larger damping"
            )

    def _restore(self) -> None:
        self.descent.restore(self.good)
        self.learner.restore()

    def roll_back_if_diverged(self) -> None:
        """Restore the last good weights and activations if the present weights are not finite."""
        if not self.descent.finite:
            self._restore()

    def unwhitened_weights(self) -> list[Affine]:
        """The present weights, or their averages, for the inputs as given, not whitened; the next step changes them."""
        weights = self.coordinates.from_whitened(self.descent.averages)
        return weights if self.free else with_fixed(weights, self.fixed)

    def save(self) -> None:
        if self.checkpoint is None:
            return
        tensors = self.descent.state() | {"good": self.good} | self.learner.state() | self.monitor.state()
        tensors |= self.coordinates.state() | self.feed.state()
        metadata = {name: getattr(self, name) for name in _COUNTERS}
        metadata |= self.rate.metadata() | self.guard.metadata() | self.monitor.metadata()
        self.checkpoint.save(tensors, metadata | {"identity": self.identity})

    def _resume(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        for part in (self.descent, self.learner, self.feed):
            part.load(tensors)
        self._set_rho_factor(metadata["rho_factor"])
        self.good.copy_(tensors["good"])
        self.monitor.load(metadata, tensors, self.good)
        self.rate.load(metadata)
        self.guard.load(metadata)
        for name in _COUNTERS:
            setattr(self, name, metadata[name])
        self.planned = self.schedule.planned(self.monitor.history)
