"""Mathematical functions of tensors, without state. All act row by row or entry by entry, except quantiles and sums over rows."""

from liftednn.functional.matrices import polar, resolved, spectrum
from liftednn.functional.parameters import as_given, granularity, largest, like, positive, spread, totals, within
from liftednn.functional.tensors import (
    barrier,
    box_barrier,
    box_prox,
    clip,
    conjugate_softplus,
    entropy_prox,
    log_omega,
    log_partition,
    median_and_spread,
    quantile,
    root,
    simplex_projection,
    soft_threshold,
    softmax,
)

__all__ = [
    "as_given",
    "barrier",
    "box_barrier",
    "box_prox",
    "clip",
    "conjugate_softplus",
    "entropy_prox",
    "granularity",
    "largest",
    "like",
    "log_omega",
    "log_partition",
    "median_and_spread",
    "polar",
    "positive",
    "quantile",
    "resolved",
    "root",
    "simplex_projection",
    "soft_threshold",
    "softmax",
    "spectrum",
    "spread",
    "totals",
    "within",
]
