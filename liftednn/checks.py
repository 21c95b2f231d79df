"""Arguments of the solvers, checked: numbers that are in their range, counts that are whole, tensors of real numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_count", "check_dense", "check_finite", "check_number", "check_strengths", "check_tensors"]


def check_number(name: str, given: Any, *, zero: bool = False, infinite: bool = False) -> None:
    """Refuse what is no positive number; 0 and infinity are allowed where the names say so."""
    try:
        number = float(given)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    inside = number >= 0 if zero else number > 0
    if isinstance(given, str) or not inside or (number == math.inf and not infinite):
        range_ = ("non-negative" if zero else "positive") + ("" if infinite else " and finite")
        raise ValueError(f"{name} must be {range_}, got {given!r}")


def check_strengths(lam: Any, rho: Any) -> None:
    try:
        check_number("lam", lam)
        check_number("rho", rho, zero=True)
    except ValueError as error:
        raise ValueError(
            f"lam must be positive and rho non-negative, got lam={lam} and rho={rho}; both must be finite numbers"
        ) from error


def check_count(name: str, given: Any, least: int = 0) -> None:
    """Refuse what is no whole number of at least `least`."""
    try:
        right = operator.index(given) >= least
    except TypeError:
        right = False
    if not right:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {given!r}")


def check_dense(**tensors: Any) -> None:
    """Refuse what are no tensors with all their values in memory."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}: use torch.as_tensor({name})")
        if x.layout != torch.strided or x.is_meta:
            raise ValueError(f"{name} must be dense and have values, got {x.layout} on {x.device}: convert it first")


def check_tensors(**given: Any) -> None:
    """Refuse what are no dense tensors of real floating-point numbers, all of one precision and on one device."""
    check_dense(**given)
    for name, x in given.items():
        if not x.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {x.dtype}: use {name}.float() or .double()")
    if len({(x.dtype, x.device) for x in given.values()}) > 1:
        found = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in given.items())
        raise ValueError(f"{' and '.join(given)} must have one precision and be on one device, got {found}")


def check_finite(name: str, x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got NaN or infinity, or numbers whose squares are: remove or scale those first"
        )
