"""Activations as argmin maps (sec. 4): each is a divergence D(u, z) with argmin_z D(u, z) = phi(u)."""

from __future__ import annotations

from liftednn.activations.euclidean import HardSigmoid, HardTanh, Identity, LeakyReLU, ReLU, Simplex
from liftednn.activations.fenchel import (
    FenchelHardSigmoid,
    FenchelHardTanh,
    FenchelLeakyReLU,
    FenchelReLU,
    Monotone,
    Sigmoid,
    Sign,
    Sin,
    Softmax,
    Softplus,
    Tanh,
)
from liftednn.activations.pooling import MaxPool
from liftednn.base import Activation

__all__ = [
    "FenchelHardSigmoid",
    "FenchelHardTanh",
    "FenchelLeakyReLU",
    "FenchelReLU",
    "HardSigmoid",
    "HardTanh",
    "Identity",
    "LeakyReLU",
    "MaxPool",
    "Monotone",
    "ReLU",
    "Sigmoid",
    "Sign",
    "Simplex",
    "Sin",
    "Softmax",
    "Softplus",
    "Tanh",
]


def named(name: str) -> Activation:
    """The activation of that name: a class of this room in lower case, underscores ignored, "fenchel_relu" say."""
    classes = {exported.lower(): exported for exported in __all__}
    key = name.replace("_", "").lower()
    if key not in classes:
        raise ValueError(f"unknown activation {name!r}: give one of {', '.join(sorted(classes))}, or an Activation")
    activation = globals()[classes[key]]()
    assert isinstance(activation, Activation)
    return activation
