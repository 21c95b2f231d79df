"""A module with the X-step of the lifted model in place of the derivatives of its activations."""

from __future__ import annotations

import copy
import math
from numbers import Real
from typing import TypeVar

from torch import nn

from liftednn.modules.calls import Step, unsupported
from liftednn.modules.layers import fenchel
from liftednn.nn.activations import LIFTED, LiftedActivation

__all__ = ["lift"]

Module = TypeVar("Module", bound=nn.Module)
_PLAIN = {lifted: kind for kind, lifted in LIFTED.items()}


def lift(module: Module, lam: float = math.inf) -> Module:
    """A deep copy of the module that computes the same, with another backward pass of its activations: the X-step of the lifted model.

    With pre-activations u, states z = phi(u), the divergence D of the activation and a gradient g in z, the gradient in u is
    L grad_u D(u, z+), where z+ = argmin_z <g, z> + L D(u, z) and L = lam rms(g) / rms(u), rms over the batch.

    module   any torch module with activations as layers: ReLU, LeakyReLU, PReLU with slopes above 0, ReLU6, Hardtanh, Hardsigmoid,
             Sigmoid, Tanh, Softplus and Softmax. Other layers, and functions such as F.relu, keep back-propagation
    lam      above 0; inf is back-propagation, by torch's own layers. Finite values have gained nothing in what was measured so far;
             a residual network with convolutions lost accuracy at 100 and below. In float32 rounding errors grow with lam: use inf
             in place of values above 1e4

    Parameters keep their names, so a `state_dict` can be loaded from either module into the other. Lifting a lifted module changes lam.

    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> lifted, x = lnn.nn.lift(module, lam=100.0), torch.ones(4, 2)
    >>> torch.equal(lifted(x), module(x)), lifted[1]
    (True, LiftedReLU(lam=100))
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if not isinstance(lam, Real) or not lam > 0:
        raise ValueError(f"lam must be a number above 0, or math.inf for back-propagation, got {lam!r}")
    found = copy.deepcopy(module)
    named = [Step(f"module.{name}".rstrip("."), part) for name, part in found.named_modules()]
    activations = [step for step in named if type(step.layer) in LIFTED | _PLAIN]
    if not activations:
        raise ValueError(
            f"{type(module).__name__} has no activation layer that can be lifted: write activations as layers such as nn.ReLU() instead of "
            f"functions, as one of {', '.join(kind.__name__ for kind in LIFTED)}"
        )
    for step in activations:
        _convert(step, lam)
    return found


def _convert(step: Step, lam: float) -> None:
    """Change the class of a layer, so that its parameters, hooks and every reference to it stay."""
    layer = step.layer
    kind = _PLAIN.get(type(layer), type(layer))
    if isinstance(layer, LiftedActivation):
        del layer.lam
    layer.__class__ = kind
    if lam < math.inf:
        _check(step)
        layer.__class__ = LIFTED[kind]
        layer.lam = lam  # type: ignore[assignment]


def _check(step: Step) -> None:
    """Refuse options of a layer that have no divergence."""
    fenchel(step)
    if isinstance(step.layer, nn.Softmax) and step.layer.dim is None:
        raise unsupported(step, "takes a dimension that depends on its input: give dim=1 or dim=-1")
    if isinstance(step.layer, nn.PReLU) and not bool((step.layer.weight > 0).all()):
        raise unsupported(
            step, "has slopes that are not above 0, which have no divergence: give larger ones, or lam=math.inf"
        )
