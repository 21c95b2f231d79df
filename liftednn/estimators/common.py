"""What the classifier and the regressor share: parameters, and how `fit` calls a trainer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from liftednn import losses, predict
from liftednn.base import Activation, Affine, Loss, Penalty, Uncertainty
from liftednn.data.columns import Columns
from liftednn.defaults import Recipe, numbers_of
from liftednn.estimators import linear
from liftednn.estimators.columns import (
    Known,
    categorical_mask,
    check_categorical,
    encoding_of,
    known_categories,
    read,
    that_count,
)
from liftednn.estimators.parameters import check_parameters
from liftednn.estimators.predicting import Predicting
from liftednn.estimators.reduction import main_directions, narrowed, widened, with_inputs
from liftednn.estimators.rows import Rows, is_sparse
from liftednn.estimators.scaling import Array
from liftednn.estimators.stopping import EarlyStopping, hold_back
from liftednn.estimators.structure import Structured
from liftednn.estimators.tails import Tails
from liftednn.estimators.work import Work
from liftednn.network import LiftedNetwork
from liftednn.training import plan
from liftednn.training.bcd import BCD
from liftednn.training.evidence import with_rho_factor
from liftednn.training.initial import Features
from liftednn.training.learning import snapshot
from liftednn.training.minibatch import MiniBatch
from liftednn.training.result import Fit

__all__ = ["Lifted"]

# Passes of the paper's model where max_iter is "auto".
_PASSES = 10
# Rows of a stream after which its step decays, unless a call has more: as 1 / sqrt(rows so far), or each call would undo the last.
_DECAYS = 2000


class Lifted(Structured, Predicting, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share; a subclass encodes responses as numbers, and names their loss, `task_loss`."""

    task_loss: str
    network_: LiftedNetwork
    _known: Known | None
    _columns: Columns
    _tails: Tails

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | Literal["auto"] = "auto",
        activation: str | Activation = "relu",
        *,
        divergence: Literal["fenchel", "euclidean"] = "fenchel",
        loss: str | Loss = "auto",
        lam: float | Sequence[float] | Literal["auto"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        penalty: str | Penalty | Sequence[str | Penalty] = "l2",
        robust: float | str | Uncertainty | None = None,
        max_iter: int | Literal["auto"] = "auto",
        tol: float = 1e-4,
        batch_size: int | Literal["auto"] = "auto",
        prediction: Literal["feedforward", "lifted"] = "feedforward",
        random_state: int | np.random.RandomState | None = None,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        verbose: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        learn_activation: Literal["layer", "unit"] | None = None,
        categorical_features: Any = "from_dtype",
        compress_tails: bool | Literal["auto"] = "auto",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.divergence = divergence
        self.loss = loss
        self.lam = lam
        self.alpha = alpha
        self.penalty = penalty
        self.robust = robust
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.prediction = prediction
        self.random_state = random_state
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.verbose = verbose
        self.device = device
        self.dtype = dtype
        self.learn_activation = learn_activation
        self.categorical_features = categorical_features
        self.compress_tails = compress_tails

    def _fit(self, x: Array, y: Array, row_weights: Array | None, passes: int | None, resumes: bool) -> None:
        """Train on encoded responses, from the present weights if it `resumes`; with `passes`, for that many."""
        self._restore_units()
        chosen = None if row_weights is None or row_weights.all() else np.flatnonzero(row_weights)
        if chosen is not None and row_weights is not None:
            y, row_weights = y[chosen], row_weights[chosen]
        if not resumes:
            self._columns = encoding_of(x if chosen is None else x[chosen], self._known, row_weights)
        rows = Rows.of(x, self.dtype, self._columns)
        rows = rows if chosen is None else rows.take(chosen)
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        seen = self._rows_seen if resumes and passes else 0
        self._rows_seen: int = len(rows) + seen
        work, held = Work(rows, torch.from_numpy(y), row_weights, seed, None, passes, self.device), None
        if self.early_stopping and passes is None:
            work, held = self._hold_back(work)  # before anything is chosen but medians, categories and the units of y
        work = self._prepared(work, resumes)
        work = replace(work, single=self._in_float32(work))
        validation = None if held is None else held.validation(work.x)
        if passes is None or not resumes:
            self.network_, drawn = self._network(self._widths(resumes, work), resumes, work)
            work = work.starting_from(drawn)
            self._remember_parameters()
        else:
            self._check_parameters_unchanged()
            if isinstance(self.alpha, str) and self.divergence == "fenchel":  # that for the rows seen so far
                self.network_ = with_rho_factor(self.network_, math.sqrt(seen / self._rows_seen))
        asked = passes is None and not resumes and validation is None
        exact = self._exactly_linear(work.x, work.y, work.row_weights, work.seed) if asked else None
        if self.divergence == "euclidean":
            self._descend(work)
        elif exact is not None:
            self._keep_linear(work, self.network_, exact.rho, [])
        else:
            self._fit_network(work, validation)

    def _prepared(self, work: Work, resumes: bool) -> Work:
        """The rows with their tails compressed, scaled, and in fewer coordinates where they are many; and the weights to go on from."""
        rows, y, row_weights, stream = work.x, work.y.numpy(), work.row_weights, work.passes is not None
        if not resumes:
            self._tails = self._found_tails(rows, y, row_weights, work.seed, stream)
        rows = replace(rows, tails=self._tails)
        if not resumes:
            self._inputs, self._moments = self._scaling(rows, row_weights), None
        self._update_scaling(rows, row_weights, stream, resumes)
        rows = replace(rows, scaling=self._inputs)
        start = self._start(rows.like) if resumes else None
        if self._reduces(rows.shape[1]):
            rows = replace(rows, basis=main_directions(rows, y, row_weights, work.seed))
        return replace(work, x=rows, start=start)

    def _fit_network(self, work: Work, validation: tuple[Tensor, ...] | None) -> None:
        """Train by mini-batches; a linear regression that is as good replaces what was trained."""
        trainer = self._trainer(work)
        fit, best = self._train(trainer, work, validation), None
        if work.passes is None:
            learned = partial(self._learned, trainer, work)
            best = self._linear(fit, work.x, work.y, work.row_weights, work.seed, learned)
        if best is not None:
            self._keep_linear(work, fit.network, best.rho, fit.history)
        # After partial_fit, training is not finished.
        warns = best is None and (work.passes is None or fit.status == "diverged")
        for sentence in fit.warnings if warns else ():
            warnings.warn(sentence, ConvergenceWarning, stacklevel=5)

    def _read(self, x: Any, y: Any, sample_weight: Any, whole: bool, **options: Any) -> tuple[Any, Array]:
        """X and y checked, with categories as their indices, which are found here, in rows that count, unless training goes on."""
        if not self._resumes(whole):
            mask = categorical_mask(x, self.categorical_features)
            self._known = known_categories(x if mask is None else that_count(x, sample_weight), mask, whole)
        reset = not self._resumes(whole)
        rows, responses = read(self, x, y, self._known, reset, multi_output=True, **options)
        return rows, responses.toarray() if is_sparse(responses) else responses

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A fit that fails leaves the estimator as it was."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _check_parameters(self) -> None:
        check_parameters(self)
        check_categorical(self.categorical_features)

    def _network(self, hidden: list[int], resumes: bool, work: Work) -> tuple[LiftedNetwork, Features | None]:
        """The network with hidden layers of these widths and all settings chosen, and with the activations of the last fit where this one
        resumes from it; and the weights that it was chosen at."""
        sizes = [work.x.shape[1], *hidden, self.n_outputs_]
        network = LiftedNetwork.mlp(sizes, self._activations(hidden, resumes), self._loss())
        if self.divergence == "euclidean":
            return self._recipe(work).unchosen(network), None
        chosen, drawn = self._recipe(work).start(network, work.source, work.y, work.row_weights)
        return with_inputs(chosen, work.x.scaling.width), drawn

    def _widths(self, resumes: bool, work: Work) -> list[int]:
        """Of the hidden layers, as given; where that is "auto", those of the last fit if this one resumes, or those for the rows."""
        if (given := self._given_widths()) is not None:
            return given
        if resumes:
            return self._last_widths
        unknown = work.passes is not None or self.divergence == "euclidean" or self._loss().classes
        rows = None if unknown else work.source.rows
        return self._recipe(work).widths(rows, self._parameter_activation(), self.n_outputs_)

    def _recipe(self, work: Work) -> Recipe:
        """The parameters as a `Recipe`."""
        given = None if self.max_iter == "auto" else int(self.max_iter)
        return Recipe(
            lam=numbers_of(self.lam),
            rho=None if isinstance(self.alpha, str) else float(self.alpha),
            penalty=self.penalty,
            uncertainty=self._uncertainty(),
            passes=work.passes or given,
            seed=work.seed,
            device=self.device,
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            learn_activation=self.learn_activation,
        )

    def _loss(self) -> Loss:
        given = self.task_loss if isinstance(self.loss, str) and self.loss == "auto" else self.loss
        return losses.named(given) if isinstance(given, str) else given

    def _train(self, trainer: MiniBatch, work: Work, validation: tuple[Tensor, ...] | None) -> Fit:
        """Train by mini-batches."""
        if work.passes:
            decay = math.sqrt(max(_DECAYS, len(work.x)) / self._rows_seen)
            # Going on from weights, the step is in proportion to the rows, where they are fewer than a batch.
            part = 1.0 if work.start is None else len(work.x) / plan.batch_size(len(work.x))
            trainer = replace(trainer, step=trainer.step * min(1.0, decay) * min(1.0, part))
        stopping = EarlyStopping(self.tol, self.n_iter_no_change, self.verbose, trainer.passes // 2)
        options = {"validation": validation, "callback": stopping, "moments": self._moments_so_far(work)}
        fit = self._run(trainer, self.network_, work, **options)
        if fit.status == "stopped" and not stopping.out_of_patience:
            raise KeyboardInterrupt  # so that no partly trained model is used
        self.network_ = with_inputs(snapshot(fit.network, "cpu"), work.x.scaling.width)
        self._keep(widened(fit.weights, work.x.basis, work.start), fit.history, len(fit.history))
        self.validation_scores_ = [each.validation_score for each in fit.history] if validation else None
        return fit

    def _trainer(self, work: Work) -> MiniBatch:
        classes = self.n_outputs_ if self.network_.loss.classes else 1
        rows = None if work.passes else len(work.x)
        return self._recipe(work).trainer(rows, classes, len(self.network_.hidden))

    def _run(self, trainer: MiniBatch, network: LiftedNetwork, work: Work, **options: Any) -> Fit:
        start = work.drawn if work.start is None else narrowed(work.start, work.x.basis)
        fit = trainer.run(with_inputs(network, work.x.shape[1]), work.source, weights=start, **options)
        return replace(fit, weights=[Affine(*(part.to(work.x.like.dtype) for part in pair)) for pair in fit.weights])

    def _learned(self, trainer: MiniBatch, work: Work, chosen: Array, others: Array) -> Tensor:
        """What a network that is trained on the chosen rows gives on others, in as many passes."""
        part = replace(work.take(chosen), start=None)
        network, drawn = self._network(self._widths(True, part), False, part)
        fit = self._run(trainer, network, part.starting_from(drawn))
        if fit.status == "stopped":
            raise KeyboardInterrupt
        return predict.feedforward(fit.network, fit.weights, work.x.take(others).tensor(self.device)).cpu()

    def _keep_linear(self, work: Work, network: LiftedNetwork, rho: float, history: list[Any]) -> None:
        """A ridge regression in place of a network, which stays for training to go on from; where none was trained, one that computes the
        same does."""
        found = linear.fitted(work.x, work.y, work.row_weights, rho)
        if not history:
            history, self.validation_scores_ = [linear.record(found, rho, work.x, work.y, work.row_weights)], None
            self._keep(linear.with_units(found, self._last_widths, work.seed), history, 1)
        self._with_units = self.network_, self.coefs_, self.intercepts_
        self.network_ = LiftedNetwork.mlp([found.w.shape[1], self.n_outputs_], [], self._loss(), rho=rho)
        self._keep([found], history, len(history))

    def _descend(self, work: Work) -> None:
        """Train by full passes."""
        passes = work.passes or (_PASSES if self.max_iter == "auto" else int(self.max_iter))
        bcd, rows = BCD(passes=passes, tol=self.tol, seed=work.seed), work.x.tensor(self.device)
        stopping = EarlyStopping(self.tol, self.n_iter_no_change, self.verbose)
        solution = bcd.run(self.network_, rows, work.y, work.start, stopping, work.row_weights)
        if solution.status == "stopped":
            raise KeyboardInterrupt
        self._keep(solution.weights, solution.history, len(solution.history) - 1)
        self.validation_scores_ = None

    def _stratifies(self) -> bool:
        """Whether responses are labels, and all classes should be among the rows held back."""
        return False

    def _hold_back(self, work: Work) -> tuple[Work, Work]:
        """Rows to train on, and rows for validation."""
        labels = work.y.numpy() if self._stratifies() else None
        kept, back = hold_back(labels, len(work.x), self.validation_fraction, work.seed, work.groups())
        return work.take(kept), work.take(back)

    def _keep(self, weights: list[Affine], history: list[Any], n_iter: int) -> None:
        weights = [self._inputs.from_scaled_inputs(weights[0]), *weights[1:]]
        if not all(bool(part.isfinite().all()) for pair in weights for part in pair):
            raise ValueError(
                f"the weights for X and y as they are given overflow in {weights[0].w.dtype}: scale the columns of X, or y, or give "
                "dtype='float64'"
            )
        self.coefs_ = [w.T.numpy(force=True) for w, _ in weights]
        self.intercepts_ = [b.numpy(force=True) for _, b in weights]
        self.history_, self.n_iter_ = history, n_iter
        self.loss_curve_ = [record.loss for record in history]

    def _start(self, like: Tensor) -> list[Affine]:
        """The fitted weights, for scaled inputs."""
        self._check_resumable(self._penalties()[0], self._inputs, "the columns of X")
        first, *others = self._weights(like)
        return [self._inputs.to_scaled_inputs(first), *others]

    def transform(self, X: ArrayLike) -> Array:  # noqa: N803
        """The states of the last hidden layer for rows X (n, features), an array of shape (n, units): features for another model.
        Without hidden layers, the inputs."""
        check_is_fitted(self)
        network, weights = self.network_, self._weights()
        parts = (network.propagate(weights, network.check_rows(rows))[-1] for rows in self._blocks(X))
        return np.concatenate([part.numpy(force=True) for part in parts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [self.dtype] if self.dtype else ["float64", "float32"]
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags
