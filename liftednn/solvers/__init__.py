"""Solvers: each minimises one convex problem and can be used alone; none of them depends on networks."""

from liftednn.solvers.auto import select
from liftednn.solvers.nnls import NNLSResult, nnls
from liftednn.solvers.prox_gradient import Composite, ProxResult, gradient_scale, prox_gradient
from liftednn.solvers.ridge import Factor, ridge
from liftednn.solvers.sketch import sketch
from liftednn.solvers.splitting import Separable, SplittingResult, splitting

__all__ = [
    "Composite",
    "Factor",
    "NNLSResult",
    "ProxResult",
    "Separable",
    "SplittingResult",
    "gradient_scale",
    "nnls",
    "prox_gradient",
    "ridge",
    "select",
    "sketch",
    "splitting",
]
