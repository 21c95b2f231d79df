"""Conversion between torch's activation layers and the activations of sec. 4."""

from __future__ import annotations

import math

from torch import Tensor, nn

from liftednn import activations as act
from liftednn.base import Activation
from liftednn.functional import largest
from liftednn.modules.calls import Step, unsupported

__all__ = ["fenchel", "joint", "layer_of", "same_phi"]

# torch's softplus is the identity above its threshold; from this threshold on, the difference is below the precision of float32.
_THRESHOLD = 20


def fenchel(step: Step) -> Activation:
    """The activation of a torch layer, with its Fenchel divergence."""
    match step.layer:
        case nn.ReLU():
            return act.FenchelReLU()
        case nn.LeakyReLU(negative_slope=slope):
            return _leaky(step, slope)
        case nn.PReLU(weight=slopes):
            return _learned(step, slopes.detach())
        case nn.Hardtanh(min_val=lower, max_val=upper):
            named = {(-1.0, 1.0): act.FenchelHardTanh(), (0.0, 1.0): act.FenchelHardSigmoid()}
            return named.get((lower, upper)) or act.FenchelClip(lower, upper)
        case nn.Hardsigmoid():
            return act.FenchelClip(0.0, 1.0, 6.0, 3.0)
        case nn.Sigmoid():
            return act.Sigmoid()
        case nn.Tanh():
            return act.Tanh()
    return _smooth(step)


def _leaky(step: Step, slope: float) -> Activation:
    if not 0 <= slope < float("inf"):
        raise unsupported(step, f"has the slope {slope:g} below 0: only increasing activations have a lifted form")
    return act.FenchelLeakyReLU(slope) if slope else act.FenchelReLU()


def _learned(step: Step, slopes: Tensor) -> Activation:
    """Slopes stay a tensor, one entry for all units or one each, so that they are written as a PReLU again."""
    if bool((slopes == 0).all()):
        return act.FenchelReLU()
    if not bool(((slopes > 0) & slopes.isfinite()).all()):
        raise unsupported(
            step,
            f"has slopes from {float(slopes.min()):g} to {float(slopes.max()):g}: only slopes above 0, or all 0, have a lifted form",
        )
    return act.FenchelLeakyReLU(slopes.clone())


def _smooth(step: Step) -> Activation:
    match step.layer:
        case nn.Softplus(beta=beta, threshold=threshold):
            if beta != 1 or threshold < _THRESHOLD:
                raise unsupported(step, f"has a lifted form for beta=1 and a threshold of at least {_THRESHOLD} only")
            return act.Softplus()
        case nn.Softmax(dim=dim) | nn.LogSoftmax(dim=dim):
            if dim not in (None, 1, -1):
                raise unsupported(step, "must be taken over each row: give dim=1")
            return act.Softmax()
    raise AssertionError(f"no activation for {step.layer!r}")


def joint(step: Step) -> Activation:
    """The activation of a torch layer, with its jointly convex divergence."""
    match fenchel(step):
        case act.FenchelReLU():
            return act.ReLU()
        case act.FenchelLeakyReLU(alpha=alpha) if _one_slope(alpha) and largest(alpha) <= 1:
            return act.LeakyReLU(largest(alpha))
        case act.FenchelHardTanh():
            return act.HardTanh()
        case act.FenchelHardSigmoid():
            return act.HardSigmoid()
    raise unsupported(step, "has no jointly convex divergence: give divergence='fenchel'")


def _one_slope(alpha: Tensor | float) -> bool:
    return not isinstance(alpha, Tensor) or bool((alpha == alpha[0]).all())


def layer_of(activation: Activation) -> nn.Module | None:
    """The torch layer that computes phi; None where there is none. A subclass has none, since it may compute anything."""
    match activation:
        case act.Pooled(activation=inner) if type(activation) is act.Pooled:
            return _pooling(activation, layer_of(inner), activation.stride)
        case act.MaxPoolReLU() if type(activation) is act.MaxPoolReLU:
            return _pooling(activation, nn.ReLU(), None)
        case act.LeakyReLU(alpha=alpha) if alpha <= 1 and type(activation) is act.LeakyReLU:
            return nn.LeakyReLU(alpha)
        case act.FenchelLeakyReLU(alpha=alpha) if type(activation) is act.FenchelLeakyReLU:
            return _prelu(alpha) if isinstance(alpha, Tensor) else nn.LeakyReLU(alpha)
        case act.FenchelClip(lower=lower, upper=upper) if isinstance(lower, Tensor) or isinstance(upper, Tensor):
            return None
        case act.FenchelClip(lower=lower, upper=math.inf, weight=1.0, shift=0.0) if lower == -math.inf:
            return nn.Identity()
        case act.FenchelClip(lower=0.0, upper=1.0, weight=6.0, shift=3.0):
            return nn.Hardsigmoid()
        case act.FenchelClip(lower=0.0, upper=6.0, weight=1.0, shift=0.0):
            return nn.ReLU6()
        case act.FenchelClip(lower=lower, upper=upper, weight=1.0, shift=0.0):
            return nn.Hardtanh(float(lower), float(upper))
    plain: dict[type[Activation], nn.Module] = {
        act.Identity: nn.Identity(),
        act.ReLU: nn.ReLU(),
        act.FenchelReLU: nn.ReLU(),
        act.HardTanh: nn.Hardtanh(),
        act.FenchelHardTanh: nn.Hardtanh(),
        act.HardSigmoid: nn.Hardtanh(0.0, 1.0),
        act.FenchelHardSigmoid: nn.Hardtanh(0.0, 1.0),
        act.Sigmoid: nn.Sigmoid(),
        act.Tanh: nn.Tanh(),
        act.Softplus: nn.Softplus(threshold=50),
        act.Softmax: nn.Softmax(-1),
    }
    return plain.get(type(activation))


def same_phi(a: Activation, b: Activation) -> bool:
    """Whether two activations are equal, or the same torch layer computes both: ReLU() and FenchelReLU(), say."""
    one, other = layer_of(a), layer_of(b)
    if one is None or isinstance(one, nn.PReLU):
        return a == b
    return repr(one) == repr(other)


def _prelu(slopes: Tensor) -> nn.PReLU:
    layer = nn.PReLU(slopes.numel())
    layer.weight = nn.Parameter(slopes.detach().clone())
    return layer


def _pooling(
    pooled: act.Pooled | act.MaxPoolReLU, inner: nn.Module | None, stride: int | tuple[int, ...] | None
) -> nn.Module | None:
    """An activation, then torch's max-pooling, from images to images."""
    if inner is None:
        return None
    windows = {2: nn.MaxPool1d, 3: nn.MaxPool2d}[len(pooled.shape)]
    pool = windows(pooled.kernel_size, stride)
    return nn.Sequential(*([] if isinstance(inner, nn.Identity) else [inner]), pool)
