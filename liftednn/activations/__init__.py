"""Activations as argmin maps (sec. 4): each is a divergence D(u, z) with argmin_z D(u, z) = phi(u).

An activation is called on pre-activations (n, p) and returns states (n, p), those that pool one for each group; `value` returns (n,).
"""

from __future__ import annotations

from liftednn.activations.clips import FenchelClip, FenchelHardSigmoid, FenchelHardTanh, FenchelReLU, Sign
from liftednn.activations.euclidean import HardSigmoid, HardTanh, Identity, LeakyReLU, ReLU, Simplex
from liftednn.activations.fenchel import Fenchel, FenchelLeakyReLU, Sigmoid, Sin, Softmax, Softplus, Tanh
from liftednn.activations.monotone import Monotone
from liftednn.activations.pooled import Pooled
from liftednn.activations.pooling import MaxPool, MaxPoolReLU
from liftednn.activations.scaled import Scaled
from liftednn.base import Activation

__all__ = [
    "FenchelClip",
    "FenchelHardSigmoid",
    "FenchelHardTanh",
    "FenchelLeakyReLU",
    "FenchelReLU",
    "HardSigmoid",
    "HardTanh",
    "Identity",
    "LeakyReLU",
    "MaxPool",
    "MaxPoolReLU",
    "Monotone",
    "Pooled",
    "ReLU",
    "Scaled",
    "Sigmoid",
    "Sign",
    "Simplex",
    "Sin",
    "Softmax",
    "Softplus",
    "Tanh",
]


def named(name: str, divergence: str | None = None) -> Activation:
    """The activation with that class name, in any case and with underscores ignored: named("fenchel_relu") is FenchelReLU().

    divergence   "fenchel": prefer the Fenchel form, "fenchel_relu" for "relu"; "euclidean": refuse what is not jointly convex
    """
    classes = {exported.lower(): exported for exported in __all__}
    key = name.replace("_", "").lower()
    key = f"fenchel{key}" if divergence == "fenchel" and f"fenchel{key}" in classes else key
    if key not in classes:
        plain = ", ".join(sorted(each for each in classes if not each.startswith("fenchel")))
        raise ValueError(
            f"unknown activation {name!r}: give one of {plain}, a Fenchel form such as fenchel_relu, or an Activation"
        )
    activation = globals()[classes[key]]()
    assert isinstance(activation, Activation)
    if divergence == "euclidean" and not activation.joint:
        raise ValueError(f"{name!r} has no jointly convex divergence: use divergence='fenchel'")
    return activation


def learnable(activation: Activation) -> Activation:
    """The activation itself if it has a parameter that batches can learn, otherwise `Scaled(activation)`."""
    if activation.learned and activation.summed:
        return activation
    if activation.homogeneous:
        raise ValueError(
            f"{activation!r} has nothing to learn, since a scale would only rescale the weights: use 'leaky_relu', or leave "
            "learn_activation=None"
        )
    if not isinstance(activation, Fenchel):
        raise ValueError(f"{activation!r} has nothing to learn: use its Fenchel form, or leave learn_activation=None")
    return Scaled(activation)
