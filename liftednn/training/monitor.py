"""What a mini-batch run reports: a record per pass, and the best weights on validation data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from liftednn import reduce
from liftednn.base import Affine, Loss
from liftednn.network import Evaluation, Layer, LiftedNetwork
from liftednn.penalties import L2
from liftednn.predict import feedforward
from liftednn.training.learning import named_parameters, snapshot, with_parameters
from liftednn.training.result import Record, Status, copies

__all__ = ["Monitor", "Tally"]

# How many scores are collected before they are evaluated.
_KEPT = 1 << 18


@dataclass
class Tally:
    """Loss and score over all batches of a pass. Scores are collected and evaluated many at a time, so that a step costs no more.

    sums   of the losses, of the rows' weights, and of the scores of what was evaluated together times its weights
    kept   scores, responses and row weights of the batches that are not in `sums` yet; `size` is how many scores
    """

    loss: Loss
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    kept: list[tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=list)
    size: int = 0

    def add(self, scores: Tensor, y: Tensor, row_weights: Tensor | None) -> None:
        self.kept.append((scores, y, row_weights))
        self.size += scores.numel()
        if self.size >= _KEPT:
            self._evaluate()

    def close(self) -> tuple[float, float]:
        """Mean loss and mean score of the pass that ends."""
        self._evaluate()
        (loss, weight, score), self.sums = self.sums, (0.0, 0.0, 0.0)
        return (loss / weight, score / weight) if weight else (math.nan, math.nan)

    def _evaluate(self) -> None:
        if not self.kept:
            return
        scores, y, row_weights = self._together()
        total = float(reduce.total(self.loss.value(scores, y), row_weights))
        weight = float(len(scores) if row_weights is None else reduce.count(scores, row_weights))
        score = self.loss.score(scores, y, row_weights) if weight else 0.0
        loss, weights, scored = self.sums
        self.sums, self.kept, self.size = (loss + total, weights + weight, scored + score * weight), [], 0

    def _together(self) -> tuple[Tensor, Tensor, Tensor | None]:
        scores, y, row_weights = zip(*self.kept, strict=True)
        return torch.cat(scores), torch.cat(y), None if row_weights[0] is None else torch.cat(row_weights)

    def state(self) -> dict[str, Tensor]:
        """The batches not evaluated yet, by name."""
        if not self.kept:
            return {}
        named = zip(("scores", "y", "counts"), self._together(), strict=True)
        return {f"pass.{name}": part for name, part in named if part is not None}

    def load(self, sums: Sequence[float], tensors: dict[str, Tensor], like: Tensor) -> None:
        loss, weight, score = sums
        scores, y, row_weights = (tensors.get(f"pass.{name}") for name in ("scores", "y", "counts"))
        self.sums = loss, weight, score
        if scores is not None and y is not None:
            self.size = scores.numel()
            self.kept = [(scores.to(like), y.to(like), None if row_weights is None else row_weights.to(like))]


@dataclass
class Monitor:
    """What a run reports.

    evaluations          of some batches of the present pass, or of the last one that has any: for its objective and gaps
    penalty              of the weights at the end of that pass; None before
    best, best_network   the weights and the network of the pass with the best validation score
    """

    network: LiftedNetwork
    validation: tuple[Tensor, Tensor, Tensor | None] | None
    tally: Tally
    history: list[Record] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    penalty: float | None = None
    best: list[Affine] | None = None
    best_pass: int = 0
    best_network: LiftedNetwork | None = None

    def __post_init__(self) -> None:
        weighted = self.validation is not None and self.validation[2] is not None
        if weighted and len(signature(self.network.loss.score).parameters) < 3:
            raise ValueError(
                f"score of {self.network.loss!r} takes no row_weights, and validation has weights: let it take them, or give (x, y)"
            )

    @property
    def steps(self) -> int:
        """Steps in the passes that are complete."""
        return sum(record.steps for record in self.history)

    def add_evaluation(self, evaluation: Evaluation, first: bool) -> None:
        """Add the evaluation of a batch, the first of its pass or one more."""
        self.evaluations = [evaluation] if first else [*self.evaluations, evaluation]
        self.penalty = None

    def record(
        self, weights_now: Callable[[], list[Affine]], steps: int, rate: float, halved: int, seconds: float
    ) -> Record:
        """The record of a pass; `weights_now` gives the weights that it ends at, where they are needed."""
        evaluations, weights = self.evaluations, []
        if self.penalty is None or self.validation is not None:
            weights = weights_now()
        if self.penalty is None:
            self.penalty = float(sum(self.network.penalties(weights)))
        gaps = tuple(_mean(gap) for gap in zip(*(each.gaps for each in evaluations), strict=True))
        loss, score = self.tally.close()
        validation_loss, validation_score = self._validate(weights)
        closed = Record(
            number=len(self.history) + 1,
            objective=_mean([sum(each.terms) for each in evaluations]) + self.penalty,
            gaps=gaps,
            loss=loss,
            score=score,
            seconds=seconds,
            steps=steps,
            rate=rate,
            halved=halved,
            validation_loss=validation_loss,
            validation_score=validation_score,
        )
        self.history.append(closed)
        return closed

    def _validate(self, weights: list[Affine]) -> tuple[float | None, float | None]:
        if self.validation is None:
            return None, None
        (x, y, row_weights), own = self.validation, self.network.loss
        scores = feedforward(self.network, weights, x)
        loss = float(reduce.mean(own.value(scores, y), row_weights))
        score = own.score(scores, y, row_weights)
        earlier = [record.validation_score for record in self.history if record.validation_score is not None]
        if score > max((each for each in earlier if not math.isnan(each)), default=-math.inf):
            self.best, self.best_pass = copies(weights), len(self.history) + 1
            self.best_network = snapshot(self.network)
        return loss, score

    def sentence(self, status: Status, halved: int, patience: int | None, shortened: bool) -> str:
        """How the run ended, as a sentence."""
        done, best = len(self.history), self.best_pass
        all_done = (
            f"{done} passes done, then stopped since the loss is negligible" if shortened else f"all {done} passes done"
        )
        kept = f"; the weights are those of pass {best}, the best on the validation data" if best else ""
        shorter = f"; the rate was halved {halved} times" if halved else ""
        sentence = {
            "finished": f"finished: {all_done}",
            "stopped": f"stopped: interrupted after {done} complete passes",
            "diverged": f"diverged: after {done} complete passes; the weights are the last good ones",
            "early": f"early: no better validation score in {patience} passes",
        }[status]
        return sentence + kept + shorter

    def metadata(self) -> dict[str, Any]:
        """What a checkpoint stores as JSON; `state` gives the tensors."""
        return {
            "history": [asdict(record) for record in self.history],
            "evaluations": self.evaluations,
            "penalty": self.penalty,
            "pass": self.tally.sums,
            "best_pass": self.best_pass,
            "best_rho": [] if self.best_network is None else [_rho(layer) for layer in self.best_network.layers],
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint stores: the best weights and activations, and those of the present pass."""
        parts = dict(enumerate(part for weights in self.best or [] for part in weights))
        learned = {} if self.best_network is None else named_parameters(self.best_network, self.network)
        return {f"best.{name}": part for name, part in (parts | learned).items()} | self.tally.state()

    def load(self, metadata: dict[str, Any], tensors: dict[str, Tensor], like: Tensor) -> None:
        """Load what `metadata` and `state` returned, with the dtype and device of `like`."""
        names = [f"best.{number}" for number in range(2 * len(self.network.layers))]
        best = [tensors[name].to(like) for name in names if name in tensors]
        self.history = [_record(each) for each in metadata["history"]]
        self.evaluations = [
            Evaluation(tuple(a), tuple(b), tuple(c), loss, score) for a, b, c, loss, score in metadata["evaluations"]
        ]
        self.penalty = metadata.get("penalty")
        self.tally.load(metadata["pass"], tensors, like)
        self.best = [Affine(w, b) for w, b in zip(best[::2], best[1::2], strict=True)] or None
        self.best_pass = metadata["best_pass"]
        self.best_network = None
        if best:
            learned = zip(self.network.layers, metadata["best_rho"], strict=True)
            penalties = [layer.penalty if rho is None else L2(rho) for layer, rho in learned]
            self.best_network = with_parameters(self.network, tensors, "best.").with_penalty(penalties)


def _rho(layer: Layer) -> float | None:
    """The rho of a layer whose penalty is a squared norm."""
    return layer.penalty.rho if isinstance(layer.penalty, L2) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _record(fields: dict[str, Any]) -> Record:
    """From JSON, which has no tuples."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Record(**values)
