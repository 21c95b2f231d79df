"""Lifted initialisation of a torch module (sec. 7): lifted weights as a start for ordinary training.

    liftednn.init.lifted_(module, x, y)

reads the module as layers, trains it lifted for a few passes over the data and writes the weights into its parameters, in place as the
functions of torch.nn.init do. The module itself is not run backward, and no optimiser is needed; ordinary training can continue from there.
"""

from __future__ import annotations

import logging
import operator
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftednn import reduce
from liftednn.activations import Sigmoid
from liftednn.base import Affine, Loss, Penalty, Uncertainty
from liftednn.data.arrays import as_tensor
from liftednn.data.sources import Once, rows_of, source_of
from liftednn.data.validation import check_device, inputs, responses
from liftednn.defaults import Recipe, named_loss, numbers_of
from liftednn.losses import Matching, SoftmaxCrossEntropy, SquaredError
from liftednn.losses.regression import Bounded
from liftednn.modules import Graph, from_module, network_of, precision, read, slopes, to_module, unsupported, weights_of
from liftednn.network import LiftedNetwork, Weights
from liftednn.predict import feedforward
from liftednn.robust.naming import uncertainty_of
from liftednn.runtime.precision import plain_arithmetic
from liftednn.training.result import Fit

__all__ = ["from_module", "lifted_", "to_module"]

# Rows that the loss is chosen by and the report is made from.
_ROWS = 10_000

_log = logging.getLogger(__name__)
Module = TypeVar("Module", bound=nn.Module)


@plain_arithmetic
def lifted_(
    module: Module,
    x: Any,
    y: Any = None,
    *,
    loss: str | Loss | nn.Module | None = None,
    lam: float | Sequence[float] | Tensor | NDArray[Any] | Literal["auto"] = "auto",
    penalty: str | Penalty | Sequence[str | Penalty] = "l2",
    robust: float | str | Uncertainty | None = None,
    passes: int | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
    report: bool = False,
    learn_activation: Literal["auto"] | None = "auto",
) -> Module:
    """Fill the module's Linear layers and convolutions with lifted weights, trained on rows x and responses y; returns the module.

    x, y     tensors, arrays or a numpy.memmap; or x alone, a DataLoader or another iterable of (x, y) batches that can be read several
             times. Where the module begins with a Flatten or a convolution, x has samples in their shape
    loss     "softmax", "squared", "absolute", "huber", "quantile", a Loss, or torch's MSELoss, L1Loss, HuberLoss, SmoothL1Loss,
             CrossEntropyLoss or BCEWithLogitsLoss. Kinks are smoothed over 1% of the spread of y. "huber" has its delta, 0.3, in
             units of that spread; Huber(delta) and HuberLoss in those of y, and where it is much smaller than the spread, training is slow.
             None: by y. Integers are classes: softmax for several outputs, for one output the sigmoid's
             `Matching` loss, whether or not the module ends in the sigmoid. So are real numbers that are all 0 or 1 where there is one
             output, as BCEWithLogitsLoss has them; "squared" fits those as a regression. Other real responses have the squared error.
             A module that ends in another activation has the `Matching` loss of it, one that ends in Softmax or LogSoftmax the softmax
    lam      how closely the states obey the recursion: "auto", a number, or one for each hidden layer
    penalty  on the weights: "l2", "orthogonal", "group:0.01" (see `penalties.named`) or a Penalty, one for all layers or one for each
    robust   how far true inputs may differ from the rows given, in units of x: a number is the standard deviation of noise on every entry;
             "noise:0.3", "ball:1.0" or "box:0.1"; or an uncertainty of `liftednn.robust`
    passes   over the data; "auto": 3, and more, up to 200, on at most 15,000 rows if lam is "auto" too
    device   where to train; None: where the module is
    report   print loss and score before and after, each layer's gap and the seconds; the logger "liftednn.init" gets them always
    learn_activation
             "auto": the slopes of every PReLU are learned too, one or one per unit as it has them; None: they stay. So do those with
             requires_grad=False, and those of a PReLU that the module uses twice or that max-pooling precedes or follows

    The module may add tensors, and use a weight several times (see `from_module`), but may not share a bias that is trained.

    The values of the parameters before the call do not matter, except those with requires_grad=False, which stay exactly as they are.
    torch's global generator gives the seed, so torch.manual_seed makes it reproducible, as in torch.nn.init. Training is in the widest of
    the parameters' precisions and at least in float32, or in that of a memmap. The parameters are written at the very end: after an error
    or Ctrl-C the module is unchanged.

    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
    >>> float((lnn.init.lifted_(module, x, y, passes=20)(x).argmax(1) == y).float().mean()) > 0.9
    True
    """
    started = time.perf_counter()
    graph = read(module, _in_shape(module, x, y))
    if not any(part.requires_grad for part in graph.parameters):
        warnings.warn("every weight is frozen (requires_grad=False): lifted_ leaves the module as it is", stacklevel=3)
        return module
    _check_biases(graph)
    refits = slopes.granularities(graph, learn_activation)
    device, seed = _device(graph, device), int(torch.randint(1 << 31, ()))
    x, y = _rows(graph, x, y, device)
    source = source_of(x, y)
    few = source.sample(_ROWS, seed)[:2]
    recipe = Recipe(
        lam=numbers_of(lam),
        penalty=penalty,
        uncertainty=uncertainty_of(robust),
        passes=_passes(passes),
        initial=True,
        seed=seed,
        device=str(device),
        learn_activation=refits,
    )
    at_hand = few[1] if y is None else y
    named = named_loss(loss, at_hand) if isinstance(loss, str) else loss
    network = recipe.network(network_of(graph, _loss_for(graph, at_hand, named)), source, at_hand)
    before = _Quality.at(network, weights_of(graph), *few) if report or _log.isEnabledFor(logging.INFO) else None
    fit = recipe.trainer(source.rows).run(slopes.started(network, refits), source, fixed=_frozen(graph))
    if fit.status == "stopped":
        raise KeyboardInterrupt
    _write(graph, fit.weights, slopes.found(graph, fit.network, refits))
    for sentence in fit.warnings:
        warnings.warn(f"lifted_: {sentence}", stacklevel=3)
    if before is not None:
        _report(report, fit, before, _Quality.at(fit.network, weights_of(graph), *few), time.perf_counter() - started)
    return module


def _in_shape(module: nn.Module, x: Any, y: Any) -> tuple[int, ...] | None:
    """The shape of one sample where it is not one row, or where the module has convolutions or poolings, whose outputs depend on it;
    otherwise None."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.AvgPool1d, nn.AvgPool2d)
    needed = isinstance(module, nn.Module) and any(isinstance(part, kinds) for part in module.modules())
    if y is None and not needed:  # an iterator can be read only once
        return None
    first: Any = x if y is not None else next((batch[0] for batch in x), None)
    shape = tuple(first.shape if hasattr(first, "shape") else as_tensor(first, "x").shape)
    return shape[1:] if needed or len(shape) > 2 else None


def _check_biases(graph: Graph) -> None:
    """Layers may share a weight, but not a bias; a batch norm would change with the weights."""
    for use in graph.uses:
        if use.folded is not None:
            raise unsupported(use.step, "is followed by a batch norm, which lifted_ cannot train: remove it first")
        if use.bias is not None and use.bias.requires_grad and len(graph.sharing(use.bias)) > 1:
            raise unsupported(
                use.step,
                "has a bias that the module uses several times, and lifted layers have one each: give it bias=False, or a bias for each "
                "use by torch.nn.functional.linear",
            )


def _device(graph: Graph, device: str | torch.device | None) -> torch.device:
    found = sorted({str(part.device) for part in graph.parameters})
    if len(found) > 1:
        raise ValueError(f"the module's layers are on several devices, {' and '.join(found)}: move it to one of them")
    if found == ["meta"]:
        raise ValueError(
            "the module is on the meta device, where weights have no values: give module.to_empty(device=...)"
        )
    try:
        chosen = torch.device(found[0] if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"there is no device {device!r}: give 'cpu' or 'cuda'") from error
    check_device(chosen)
    return chosen


def _passes(given: Any) -> int | None:
    """An int of Python, numpy or torch; None for "auto"."""
    if isinstance(given, str) and given == "auto":
        return None
    try:
        passes = operator.index(given)
    except TypeError:
        passes = 0
    if passes < 1:
        raise ValueError(f"passes must be 'auto' or a whole number of at least 1, got {given}")
    return passes


@dataclass(frozen=True)
class _Batches:
    """An iterable of batches with rows converted for the module; `dataset` has the number of rows."""

    batches: Iterable[Any]
    flat: bool
    device: torch.device
    dtype: torch.dtype
    dataset: Any

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                # A third part may be anything, such as an index, and the trainer would read it as sample weights.
                what = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else type(batch).__name__
                raise ValueError(
                    f"a batch must be a pair (x, y), got {what}: give an iterable that yields x and y alone"
                )
            yield self.ready(batch[0]), batch[1]

    def __len__(self) -> int:
        """Raises TypeError where the iterable has no length."""
        return len(self.batches)  # type: ignore[arg-type]

    def ready(self, x: Any) -> Tensor:
        rows = as_tensor(x, "x").to(self.device, self.dtype)
        return rows.flatten(1) if self.flat and rows.ndim > 2 else rows


def _rows(graph: Graph, x: Any, y: Any, device: torch.device) -> tuple[Any, Any]:
    """The data as the trainer takes it: rows flat where the module flattens them, in the parameters' precision and device."""
    ready = _Batches(x, graph.flat, device, precision(graph), None if (number := rows_of(x)) is None else range(number))
    if y is None:
        if isinstance(source_of(x), Once):
            raise ValueError(
                "x is an iterator, which can be read only once, and lifted_ reads its data several times: give a DataLoader or "
                "a list of batches, or x and y"
            )
        return ready, None
    if isinstance(x, np.memmap):
        return x.reshape(len(x), -1) if graph.flat else x, y
    rows, given = ready.ready(x), as_tensor(y, "y")
    if not rows.ndim or not given.ndim:
        raise ValueError(f"x has shape {tuple(rows.shape)} and y {tuple(given.shape)}: give as many responses as rows")
    return rows, given


def _loss_for(graph: Graph, y: Any, loss: str | Loss | nn.Module | None) -> str | Loss | nn.Module | None:
    """The given loss, or else one chosen by the responses; None for that of the activation that the module ends in."""
    given, outputs = as_tensor(y, "y"), graph.uses[-1].operator.out_width
    if outputs > 1 and not given.is_floating_point() and given.ndim == 2 and given.shape[1] == 1:
        raise ValueError(
            f"y has shape {tuple(given.shape)}, and the module has {outputs} outputs: for classes, give y.squeeze(1)"
        )
    if loss is not None or graph.uses[-1].after is not None:
        return loss
    if outputs > 1:
        return SquaredError() if given.is_floating_point() else _classes(given)
    if _hard(given):
        return Matching(Sigmoid())
    if not given.is_floating_point():
        raise ValueError(
            f"y holds the integers {int(given.min())} .. {int(given.max())}, which are classes, and the module has one output: give "
            "0 and 1, or a module with an output for each class, or real numbers, y.float(), to be fitted by the squared error"
        )
    return SquaredError()


def _hard(y: Tensor) -> bool:
    """Whether every response is 0 or 1."""
    return bool(((y == 0) | (y == 1)).all())


def _classes(y: Tensor) -> Loss:
    """The loss for integers and several outputs: labels, or one-hot rows."""
    if y.ndim == 2 and not (_hard(y) and bool((y.sum(1) == 1).all())):
        raise ValueError(
            f"y holds integers in {y.shape[1]} columns, which are not classes: give real numbers, y.float(), to be fitted by the squared "
            "error; or, where each column is 0 or 1 by itself, loss=Matching()"
        )
    return SoftmaxCrossEntropy()


def _frozen(graph: Graph) -> list[tuple[Tensor | None, Tensor | None]] | None:
    """For every layer the weights that must stay; None if there are none."""
    fixed = [
        (None if use.weight.requires_grad else w, None if use.bias is None or use.bias.requires_grad else b)
        for use, (w, b) in zip(graph.uses, weights_of(graph), strict=True)
    ]
    return fixed if any(part is not None for pair in fixed for part in pair) else None


def _write(graph: Graph, weights: list[Affine], learned: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Write all parameters or none: every new value is converted and checked before the first is written."""
    fresh = [
        (part, new.to(part))
        for use, (w, b) in zip(graph.uses, weights, strict=True)
        for part, new in ((use.weight, w.T if use.transposed else w.reshape(use.weight.shape)), (use.bias, b))
        if part is not None and part.requires_grad
    ]
    fresh += [(part, new.to(part)) for part, new in learned]
    for part, new in fresh:
        if not bool(new.isfinite().all()):
            raise ValueError(
                f"the lifted weights go beyond what {part.dtype} holds: scale or standardise the inputs, or initialise the module "
                "in float32 and convert it then"
            )
    for part, new in fresh:
        part.copy_(new)


class _Quality(NamedTuple):
    """Loss and score of the feed-forward rule, the name of the score, and the number of rows."""

    loss: float
    score: float
    name: str
    rows: int

    @classmethod
    def at(cls, network: LiftedNetwork, weights: Weights, x: Any, y: Any) -> _Quality:
        rows, loss = inputs(network, x), network.loss
        z = responses(network, y, rows)
        u = feedforward(network, [Affine(w.to(rows), b.to(rows)) for w, b in weights], rows)
        value = float(reduce.mean(loss.value(u, z)))
        integers = not as_tensor(y, "y").is_floating_point()
        if isinstance(loss, Matching) and (integers or (isinstance(loss.activation, Sigmoid) and _hard(z))):
            return cls(
                value, float(reduce.mean(((loss.decode(u) > 0.5) == (z > 0.5)).double()).mean()), "accuracy", len(rows)
            )
        real = "D^2" if isinstance(loss, Bounded) else "R^2"
        return cls(value, loss.score(u, z), "accuracy" if loss.classes else real, len(rows))


def _report(show: bool, fit: Fit, before: _Quality, after: _Quality, seconds: float) -> None:
    gaps = ", ".join(f"{gap:.3g}" for gap in fit.history[-1].gaps) or "no hidden layer"
    lines = [
        f"lifted_: {seconds:.2f} s, passes over the data: {len(fit.history)}",
        f"before: loss {before.loss:.4g}, {before.name} {before.score:.4f}, on {before.rows} rows",
        f"after: loss {after.loss:.4g}, {after.name} {after.score:.4f}",
        f"gaps of the last pass: {gaps}",
    ]
    for line in lines:
        _log.info(line)
        if show:
            print(line)
