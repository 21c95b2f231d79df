"""Checks of arguments: numbers in their range, whole numbers, tensors of real numbers. All raise ValueError."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "check_callable",
    "check_count",
    "check_dense",
    "check_finite",
    "check_kind",
    "check_number",
    "check_pair",
    "check_real",
    "check_seed",
    "check_strengths",
    "check_tensors",
]


def check_number(name: str, given: Any, *, zero: bool = False, infinite: bool = False) -> None:
    """`given` must be a positive number; `zero` and `infinite` allow these too."""
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


def check_count(name: str, given: Any, least: int = 0) -> int:
    """`given` as an int; it must be a whole number of at least `least`, of Python, numpy or torch."""
    try:
        found = operator.index(given)
    except TypeError:
        found = least - 1
    if found < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {given!r}")
    return found


def check_seed(given: Any) -> None:
    """`given` must be a seed that torch's generators accept."""
    try:
        right = -(2**63) <= operator.index(given) < 2**64
    except TypeError:
        right = False
    if not right:
        raise ValueError(f"seed must be a whole number below 2^64, got {given!r}")


def check_callable(name: str, given: Any) -> None:
    if given is not None and not callable(given):
        raise ValueError(f"{name} must be None or a function, got {given!r}")


def check_kind(name: str, given: Any, kind: type, words: str) -> None:
    """`given` must be None or an instance of `kind`, which the error describes by `words`."""
    if given is not None and not isinstance(given, kind):
        raise ValueError(f"{name} must be None or {words}, got {given!r}")


def check_real(name: str, given: Any, *, none: bool = False) -> None:
    """`given` must be a number, NaN included, or None if `none`."""
    if not isinstance(given, Real) and not (none and given is None):
        raise ValueError(f"{name} must be a number{', or None' if none else ''}, got {given!r}")


def check_pair(name: str, given: Any) -> None:
    """`given` must be None or a pair of rows and responses, or these and the weights of the rows."""
    if given is not None and (not isinstance(given, (tuple, list)) or len(given) not in (2, 3)):
        what = f"{len(given)} parts" if isinstance(given, (tuple, list)) else type(given).__name__
        raise ValueError(f"{name} must be None, (x, y) or (x, y, weights), got {what}: give rows and responses")


def check_dense(**tensors: Any) -> None:
    """All arguments must be dense tensors with values (not on the meta device)."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}: use torch.as_tensor({name})")
        if x.layout != torch.strided or x.is_meta:
            raise ValueError(f"{name} must be dense and have values, got {x.layout} on {x.device}: convert it first")


def check_tensors(**given: Any) -> None:
    """All arguments must be dense tensors of real floating-point numbers, in one precision and on one device."""
    check_dense(**given)
    for name, x in given.items():
        if not x.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {x.dtype}: use {name}.float() or .double()")
    if len({(x.dtype, x.device) for x in given.values()}) > 1:
        found = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in given.items())
        raise ValueError(f"{' and '.join(given)} must have one precision and be on one device, got {found}: use .to()")


def check_finite(name: str, x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got NaN or infinity, or numbers whose squares overflow: remove or scale those first"
        )
