"""Conversion of torch's convolutions and average poolings to operators, of max-poolings to activations, and of batch norms to factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from liftednn.activations import FenchelClip, Identity, MaxPoolReLU, Pooled, ReLU
from liftednn.base import Activation
from liftednn.modules.calls import Step, naming, unsupported
from liftednn.operators import AvgPool1d, AvgPool2d, Conv1d, Conv2d

__all__ = ["affine_of", "convolution_of", "max_pooled", "max_pooled_shape", "pooling_of"]


def convolution_of(step: Step, layer: nn.Conv1d | nn.Conv2d, in_shape: tuple[int, ...]) -> Conv1d | Conv2d:
    """The operator of a convolution for samples of a shape."""
    kind = Conv1d if isinstance(layer, nn.Conv1d) else Conv2d
    if in_shape[0] != layer.in_channels or len(in_shape) != len(layer.kernel_size) + 1:
        raise unsupported(step, f"takes {layer.in_channels} channels, but gets samples of {in_shape}")
    if layer.padding_mode not in ("zeros", "circular"):
        raise unsupported(step, "has a lifted form for padding_mode 'zeros' and 'circular' only")
    kernel, stride, dilation = map(_short, (layer.kernel_size, layer.stride, layer.dilation))
    padding, mode = _short(_padding(step, layer)), layer.padding_mode
    return kind(in_shape, layer.out_channels, kernel, stride, padding, dilation, layer.groups, padding_mode=mode)


def _short(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number, where all are the same."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _padding(step: Step, layer: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    """As numbers; torch also has "valid" and "same"."""
    if not isinstance(layer.padding, str):
        return layer.padding
    around = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    if layer.padding == "same" and any(each % 2 for each in around):
        raise unsupported(step, "pads one side more than the other: give it an odd kernel_size")
    return tuple(each // 2 if layer.padding == "same" else 0 for each in around)


def pooling_of(step: Step, layer: nn.AvgPool1d | nn.AvgPool2d) -> AvgPool1d | AvgPool2d:
    padded = any(layer.padding) if isinstance(layer.padding, tuple) else bool(layer.padding)
    if layer.ceil_mode or getattr(layer, "divisor_override", None) or (padded and not layer.count_include_pad):
        raise unsupported(step, "has a lifted form for ceil_mode=False, count_include_pad=True and no divisor only")
    kind = AvgPool1d if isinstance(layer, nn.AvgPool1d) else AvgPool2d
    sizes = (
        (each,) if isinstance(each, int) else tuple(each) for each in (layer.kernel_size, layer.stride, layer.padding)
    )
    kernel, stride, padding = map(_short, sizes)
    return kind(kernel, None if stride == kernel else stride, padding)


def max_pooled_shape(step: Step, layer: nn.MaxPool1d | nn.MaxPool2d, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample after max-pooling."""
    kernel, stride, padding, dilation = _window(layer)
    if len(shape) != len(kernel) + 1 or any(k > size for k, size in zip(kernel, shape[1:], strict=True)):
        raise unsupported(step, f"has windows that do not fit into samples of {shape}")
    places = [divmod(size - k, s) for size, k, s in zip(shape[1:], kernel, stride, strict=True)]
    if any(padding) or set(dilation) != {1} or layer.return_indices or (layer.ceil_mode and any(r for _, r in places)):
        raise unsupported(
            step, "has a lifted form for padding=0, dilation=1, return_indices=False and ceil_mode=False only"
        )
    return (shape[0], *(count + 1 for count, _ in places))


def _window(layer: nn.MaxPool1d | nn.MaxPool2d) -> list[tuple[int, ...]]:
    """kernel_size, stride, padding and dilation, with one number for each dimension."""
    given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    dimensions = 1 if isinstance(layer, nn.MaxPool1d) else 2
    return [(each,) * dimensions if isinstance(each, int) else tuple(each) for each in given]


def max_pooled(step: Step, activation: Activation, shape: tuple[int, ...]) -> Activation:
    """An activation with max-pooling of pre-activations of a shape; with the jointly convex divergence for a `ReLU`, which has one."""
    assert isinstance(step.layer, nn.MaxPool1d | nn.MaxPool2d)
    kernel, stride = map(_short, _window(step.layer)[:2])
    with naming(step):
        if isinstance(activation, ReLU):
            if kernel != stride:
                raise ValueError("the windows of MaxPoolReLU do not overlap: give stride=kernel_size")
            return MaxPoolReLU(shape, kernel)
        inner = FenchelClip(-math.inf, math.inf) if isinstance(activation, Identity) else activation
        return Pooled(inner, shape, kernel, None if kernel == stride else stride)


def affine_of(step: Step, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch norm in evaluation mode, in float64."""
    if layer.running_mean is None or layer.running_var is None:
        raise unsupported(step, "has no running mean, so it depends on the batch: give it track_running_stats=True")
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    scale = (variance + layer.eps).rsqrt()
    if layer.affine:
        scale = scale * layer.weight.detach().double()
    return scale, (layer.bias.detach().double() if layer.affine else torch.zeros_like(mean)) - mean * scale
