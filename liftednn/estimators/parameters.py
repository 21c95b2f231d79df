"""What the estimators' parameters may be; networks and trainers check the rest."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from liftednn.base import Loss
from liftednn.data.validation import check_device
from liftednn.defaults import numbers_of
from liftednn.robust.naming import uncertainty_of

__all__ = ["check_parameters"]


def check_parameters(model: Any) -> None:
    """Refuse wrong numbers and names among the parameters of an estimator."""
    for name, allowed in {"divergence": ("fenchel", "euclidean"), "prediction": ("feedforward", "lifted")}.items():
        if getattr(model, name) not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {getattr(model, name)!r}")
    for name, open_ in {"max_iter": True, "batch_size": True, "n_iter_no_change": False}.items():
        given = getattr(model, name)
        chosen = open_ and _is_auto(given)
        if not chosen and not (isinstance(given, Integral) and int(given) >= 1):
            raise ValueError(f"{name} must be a whole number of at least 1{' or auto' * open_}, got {given!r}")
    for name, open_ in {"alpha": True, "tol": False}.items():
        given = getattr(model, name)
        chosen = open_ and _is_auto(given)
        if not chosen and not (isinstance(given, Real) and 0 <= float(given) < math.inf):
            raise ValueError(f"{name} must be a number of at least 0{' or auto' * open_}, got {given!r}")
    if not isinstance(model.validation_fraction, Real) or not 0 < float(model.validation_fraction) < 1:
        raise ValueError(f"validation_fraction must lie between 0 and 1, got {model.validation_fraction!r}")
    numbers_of(model.lam)
    widths = np.atleast_1d(np.asarray([] if _is_auto(model.hidden_layer_sizes) else model.hidden_layer_sizes))
    if widths.ndim != 1 or (widths.size and (widths.dtype.kind not in "iu" or widths.min() < 1)):
        raise ValueError(
            f"hidden_layer_sizes must be 'auto' or hold widths of at least 1, got {model.hidden_layer_sizes!r}"
        )
    if not isinstance(model.loss, (str, Loss)):
        raise ValueError(f"loss must be a name or an object of liftednn.losses, got {model.loss!r}")
    check_device(model.device)
    uncertainty_of(model.robust)
    if model.divergence == "euclidean" and (model.early_stopping or model.batch_size != "auto"):
        raise ValueError(
            "early_stopping and batch_size belong to mini-batches, and divergence='euclidean' takes full passes: "
            "leave them at their defaults, or give divergence='fenchel'"
        )
    if model.learn_activation not in (None, "layer", "unit"):
        raise ValueError(f"learn_activation must be None, 'layer' or 'unit', got {model.learn_activation!r}")
    if model.learn_activation and model.divergence == "euclidean":
        raise ValueError(
            "learn_activation is for Fenchel divergences: give divergence='fenchel', or learn_activation=None"
        )
    for name in ("early_stopping", "warm_start", "verbose"):
        given = getattr(model, name)
        other = name == "verbose" and isinstance(given, Integral)
        if not isinstance(given, (bool, np.bool_)) and not other:
            raise ValueError(f"{name} must be True or False, got {given!r}")
    if not isinstance(given := model.compress_tails, (bool, np.bool_)) and given != "auto":
        raise ValueError(f"compress_tails must be True, False or 'auto', got {given!r}")
    if model.dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype must be None, 'float32' or 'float64', got {model.dtype!r}")


def _is_auto(given: object) -> bool:
    return isinstance(given, str) and given == "auto"
