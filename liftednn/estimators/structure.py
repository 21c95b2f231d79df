"""How the estimators handle activations, penalties and uncertain inputs: learned activations under warm_start, a penalty for each layer,
the scaling of inputs, and pruning."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from liftednn import activations, penalties, predict
from liftednn.base import Activation, Affine, Penalty, Uncertainty
from liftednn.defaults import numbers_of
from liftednn.estimators.first_rows import FirstRows
from liftednn.estimators.linear import Learned, as_good, nearly_exact
from liftednn.estimators.reduction import WIDE
from liftednn.estimators.rescaling import rescaled, shrunk
from liftednn.estimators.rows import Rows, needs_float64
from liftednn.estimators.scaling import Array, ColumnStatistics, Scaling
from liftednn.estimators.tails import Tails, helps
from liftednn.estimators.work import Work
from liftednn.losses import SquaredError
from liftednn.moments import Moments
from liftednn.network import LiftedNetwork
from liftednn.penalties import L2
from liftednn.robust.naming import uncertainty_of
from liftednn.training.choices import with_input_uncertainty
from liftednn.training.cross_validation import BestRidge
from liftednn.training.result import Fit

__all__ = ["Structured"]

# The most rows for which a network is compared with a linear regression: among more, it fits little of the noise. And the most numbers in
# these rows and their responses.
_FEW, _NUMBERS = 8192, 1 << 22
# Rows from which on training is in float32, and the largest response there.
_SINGLE, _LARGE = 1000, 1e15
# The parameters that a network is built from.
_BUILT_FROM = (
    "hidden_layer_sizes",
    "activation",
    "divergence",
    "learn_activation",
    "loss",
    "lam",
    "alpha",
    "penalty",
)


class Structured:
    """The part of `Lifted` for activations, penalties and uncertainty."""

    hidden_layer_sizes: int | Sequence[int] | Literal["auto"]
    alpha: float | Literal["auto"]
    activation: str | Activation
    learn_activation: Literal["layer", "unit"] | None
    penalty: str | Penalty | Sequence[str | Penalty]
    dtype: str | None
    divergence: str
    lam: float | Sequence[float] | Literal["auto"]
    robust: float | str | Uncertainty | None
    compress_tails: bool | Literal["auto"]
    warm_start: bool
    network_: LiftedNetwork
    coefs_: list[Array]
    intercepts_: list[Array]
    _given_activation: Activation
    _inputs: Scaling
    _moments: Moments | None

    def _activations(self, widths: list[int], resumes: bool) -> list[Activation]:
        """One for each hidden layer: that of the parameters, or where this fit resumes, those of the last fit. Changed widths are refused
        later, with the weights."""
        given = self._parameter_activation()
        resumes = resumes and self._last_widths == widths
        chosen = self._last_activations(given) if resumes else [given] * len(widths)
        self._given_activation = given
        return [activations.learnable(each) for each in chosen] if self.learn_activation else chosen

    def _parameter_activation(self) -> Activation:
        """That of the parameter `activation`."""
        name = "sigmoid" if self.activation == "logistic" else self.activation
        return activations.named(name, self.divergence) if isinstance(name, str) else name

    def _last_activations(self, given: Activation) -> list[Activation]:
        """The activations of the last fit, if the parameters are the same; otherwise new ones, if nothing was learned."""
        before = self.network_.hidden
        if given == self._given_activation:
            return before
        if any(each != self._given_activation for each in before):
            raise ValueError(
                f"the last fit had the activation {self._given_activation!r} and learned {before}, which warm_start would keep, but now "
                f"{given!r} is given: give activation and divergence as they were, or fit again with warm_start=False"
            )
        return [given] * len(before)

    def _penalties(self) -> list[Penalty]:
        """One for each layer; where widths are "auto", and several may be hidden, for one of them."""
        hidden = self._given_widths()
        return penalties.one_each(self.penalty, 2 if hidden is None else len(hidden) + 1)

    def _given_widths(self) -> list[int] | None:
        """Of the hidden layers; None where they are "auto"."""
        given = self.hidden_layer_sizes
        return None if isinstance(given, str) else [int(width) for width in np.atleast_1d(given)]

    @property
    def _last_widths(self) -> list[int]:
        """Of the hidden layers of the network."""
        return [layer.width for layer in self.network_.layers[:-1]]

    def _remember_parameters(self) -> None:
        """Those that the network is built from now."""
        self._built_from = {name: repr(getattr(self, name)) for name in _BUILT_FROM}

    def _check_parameters_unchanged(self) -> None:
        """Refuse to go on with a network that was built from other parameters."""
        before: dict[str, str] = getattr(self, "_built_from", {})
        changed = [name for name, value in before.items() if repr(getattr(self, name)) != value]
        if changed:
            raise ValueError(
                f"partial_fit goes on with the network of the calls before, but changed since then: {', '.join(changed)}; give what they "
                "were, or begin anew with fit or another estimator"
            )

    def _may_be_linear(self, network: LiftedNetwork, x: Rows, y: Tensor) -> bool:
        """Whether neither widths nor alpha were given, a linear regression has the same loss and penalty, and rows are few. An alpha that
        suits a network shrinks one layer of large weights far more than two of smaller ones."""
        ridges = all(type(layer.penalty) is L2 for layer in network.layers) and type(network.loss) is SquaredError
        plain = self.robust is None and self.learn_activation is None and np.ndim(self.lam) == 0
        small = len(x) <= _FEW and len(x) * (x.shape[1] + y.shape[-1]) <= _NUMBERS
        return isinstance(self.hidden_layer_sizes, str) and isinstance(self.alpha, str) and small and ridges and plain

    def _linear(
        self, fit: Fit, x: Rows, y: Tensor, row_weights: Array | None, seed: int, learned: Learned
    ) -> BestRidge | None:
        """The linear regression that is as good as the trained network; None where there is none."""
        if not self._may_be_linear(fit.network, x, y):
            return None
        counts, rows = None if row_weights is None else torch.as_tensor(row_weights).double(), x.tensor()
        trained = predict.feedforward(fit.network, fit.weights, rows).cpu()
        return as_good(rows.double(), y.double(), trained.double(), seed, counts, learned)

    def _exactly_linear(self, x: Rows, y: Tensor, row_weights: Array | None, seed: int) -> BestRidge | None:
        """The linear regression, where it leaves next to nothing of the responses, and ReLU can go on from it."""
        network = self.network_
        goes_on = bool(network.hidden) and all(type(each) is activations.FenchelReLU for each in network.hidden)
        goes_on = goes_on and all(2 * y.shape[-1] <= width for width in self._last_widths)
        if not goes_on or x.basis is not None or not self._may_be_linear(network, x, y):
            return None
        counts = None if row_weights is None else torch.as_tensor(row_weights).double()
        return nearly_exact(x.tensor().double(), y.double(), seed, counts)

    def _restore_units(self) -> None:
        """The network with hidden units that a linear regression has replaced, for training to go on from."""
        if kept := getattr(self, "_with_units", None):
            self.network_, self.coefs_, self.intercepts_ = kept
        self._with_units: tuple[LiftedNetwork, list[Array], list[Array]] | None = None

    def _checked_weights(self, sample_weight: ArrayLike | None, x: Array) -> Array | None:
        """The checked sample weights."""
        if sample_weight is None:
            return None
        row_weights: Array = _check_sample_weight(sample_weight, x, ensure_non_negative=True)
        if not row_weights.any():
            raise ValueError("sample_weight is 0 for every row: some must be positive")
        return row_weights if row_weights.flags.writeable else row_weights.copy()  # torch warns of others

    def _resumes(self, whole: bool) -> bool:
        """Whether there are weights to go on from, for a `fit`, which has the whole data, or a `partial_fit`."""
        return hasattr(self, "coefs_") and (self.warm_start or not whole)

    def _rows_of_call(
        self, x: Any, y: Array, row_weights: Array | None, whole: bool
    ) -> tuple[Any, Array, Array | None, bool]:
        """The rows to train on, and whether that resumes from the present weights. A stream begins anew, with all rows so far, until it
        has shown enough of them."""
        before: FirstRows | None = getattr(self, "_first_rows", None)
        self._first_rows: FirstRows | None = None
        resumes = self._resumes(whole)
        if whole or self.divergence == "euclidean" or (resumes and before is None):
            return x, y, row_weights, resumes
        given = FirstRows.of(x, y, row_weights)
        rows = given if before is None else before + given
        self._first_rows = None if rows.enough else rows.kept()
        return rows.x, rows.y, rows.row_weights, False

    def _scaling(self, x: Rows, row_weights: Array | None) -> Scaling:
        """To mean 0 and variance 1, that of the uncertainty included: a column that is mostly noise must not be scaled up. Under a penalty
        on the size of weights, columns are only shifted, so that `coefs_`, for X as it is given, obeys the constraint too."""
        return x.scaling if self.divergence == "euclidean" else self._adjusted(Scaling.of(x, row_weights))

    def _adjusted(self, scaling: Scaling) -> Scaling:
        noise = uncertainty_of(self.robust)
        if self._penalties()[0].scale_sensitive:
            return scaling.shift
        if noise is None:
            return scaling
        return replace(scaling, scale=np.hypot(scaling.scale, noise.deviations(scaling.width).numpy()))

    def _update_scaling(self, rows: Rows, row_weights: Array | None, stream: bool, resumes: bool) -> None:
        """Where all calls were of `partial_fit`, the scaling of the inputs is that of all rows so far; moments are converted to it."""
        before: ColumnStatistics | None = getattr(self, "_statistics", None) if resumes else None
        self._statistics: ColumnStatistics | None = None
        if not stream or self.divergence == "euclidean" or (resumes and before is None):
            return
        fresh = ColumnStatistics.of(rows, row_weights)
        self._statistics = fresh if before is None else before + fresh
        if before is not None:
            self._rescale(self._adjusted(self._statistics.scaling(rows.dtype)))

    def _rescale(self, after: Scaling) -> None:
        """Change the scaling of the inputs, and what is in its units; `coefs_` are not."""
        first = Affine(torch.from_numpy(self.coefs_[0].T), torch.from_numpy(self.intercepts_[0]))
        first = shrunk(first, self._inputs, after)
        self.coefs_, self.intercepts_ = [first.w.T.numpy(), *self.coefs_[1:]], [first.b.numpy(), *self.intercepts_[1:]]
        self._moments = self._moments and rescaled(self._moments, self._inputs, after)
        self._inputs = after
        automatic = numbers_of(self.lam) is None
        self.network_ = with_input_uncertainty(self.network_, self._uncertainty(), automatic)

    def _in_float32(self, work: Work) -> bool:
        """Whether rows in float64 are trained on in float32, which takes less time where there are many and predicts as well. Not where
        weights must obey a constraint, which they would do to fewer digits, where a response is so far that its square overflows, or where
        the responses depend on how columns differ that are alike but for so little that rounding hides it."""
        free = all(penalty.ridge is not None for penalty in self._penalties()) and self.learn_activation is None
        if self.dtype is not None or work.passes is not None or not free or len(work.x) < _SINGLE:
            return False
        if float(work.y.abs().max()) >= _LARGE or work.x.like.dtype != torch.float64:
            return False
        return not needs_float64(work.x, work.y, work.row_weights)

    def _moments_so_far(self, work: Work) -> Moments | None:
        """The moments of all rows of a stream, whose weight is their number, as the trainer takes it."""
        if not work.passes or work.x.basis is not None:
            self._moments = None
            return None
        self._moment_rows: int = len(work.x) + (0 if self._moments is None else self._moment_rows)
        self._moments = work.x.moments(work.row_weights, before=self._moments)
        return self._moment_rows / float(self._moments.weight) * self._moments

    def _found_tails(self, rows: Rows, y: Array, row_weights: Array | None, seed: int, stream: bool) -> Tails:
        """The columns whose tails are compressed. Uncertain inputs are in the units of X, and a stream may have other tails later."""
        other = {"a stream of partial_fit": stream, "robust": self.robust is not None}
        other["divergence='euclidean'"] = self.divergence != "fenchel"
        names = [name for name, found in other.items() if found]
        if names and self.compress_tails != "auto" and self.compress_tails:
            raise ValueError(f"compress_tails=True is not possible with {names[0]}: give 'auto' or False")
        tails = Tails.of(rows, row_weights) if self.compress_tails and not names else Tails.none()
        if not tails or self.compress_tails != "auto":
            return tails
        return tails if helps(tails, rows, torch.from_numpy(y), row_weights, seed) else Tails.none()

    def _reduces(self, width: int) -> bool:
        """Whether inputs of that many columns are trained on in fewer coordinates: the squared norm of the weights is the same there."""
        plain = self._penalties()[0].ridge is not None and self.robust is None
        return width > WIDE and plain and self.divergence == "fenchel"

    def _uncertainty(self) -> Uncertainty | None:
        """The uncertainty of the inputs, in the units of the scaled inputs."""
        given = uncertainty_of(self.robust)
        return None if given is None else given.columns(torch.from_numpy(1 / self._inputs.scale))

    def _check_resumable(self, penalty: Penalty, scaling: Scaling, what: str) -> None:
        """Refuse to resume with scaled data under a penalty on the size of weights."""
        if penalty.scale_sensitive and bool((scaling.scale != 1).any()):
            raise ValueError(
                f"warm_start and partial_fit keep {what} as the last fit scaled them, so coefs_ would not obey {penalty!r}: fit "
                "again with warm_start=False, or keep the penalty of the last fit"
            )

    def prune(self) -> Self:
        """A fitted copy without the hidden units that do not matter, such as penalty="group" leaves; it gives the same feed-forward scores.

        Those of the lifted rule may differ, since it also minimises over the states of constant units."""
        check_is_fitted(self)
        smaller = copy.copy(self)
        smaller._first_rows = smaller._with_units = None  # training goes on from the smaller network
        pairs = zip(self.coefs_, self.intercepts_, strict=True)
        weights = [Affine(torch.from_numpy(w.T), torch.from_numpy(b)) for w, b in pairs]
        smaller.network_, found = self.network_.prune(weights)
        smaller.coefs_, smaller.intercepts_ = [w.T.numpy() for w, _ in found], [b.numpy() for _, b in found]
        smaller.hidden_layer_sizes = tuple(len(b) for b in smaller.intercepts_[:-1])
        cut = zip(self.network_.layers, smaller.network_.layers, strict=True)
        given = isinstance(self.penalty, str | Penalty) or len(self.penalty) == len(smaller.intercepts_)
        if not given or any(before.penalty is not after.penalty for before, after in cut):
            smaller.penalty = [layer.penalty for layer in smaller.network_.layers]
        smaller._remember_parameters()
        return smaller
