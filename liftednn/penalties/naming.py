"""Penalties by name, for the command line, estimators and initialisers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from liftednn.base import Penalty
from liftednn.penalties.balls import Ball
from liftednn.penalties.constraints import NonNegative
from liftednn.penalties.manifolds import LowRank, Orthogonal
from liftednn.penalties.norms import L1, L2, ElasticNet, GroupL2, NoPenalty

__all__ = ["named", "one_each"]

_NAMES: dict[str, type[Penalty]] = {
    "l2": L2,
    "l1": L1,
    "elastic_net": ElasticNet,
    "none": NoPenalty,
    "nonnegative": NonNegative,
    "group": GroupL2,
    "orthogonal": Orthogonal,
    "low_rank": LowRank,
    "ball": Ball,
}
# Penalties for hidden layers: given by one name for a whole network, the last layer, whose rows are the outputs, gets L2 instead.
_HIDDEN = (GroupL2, Orthogonal, LowRank, Ball)


def named(name: str, rho: float | None = None) -> Penalty:
    """The penalty of that name, such as "group"; its first parameter may follow a colon: "group:0.01", "low_rank:5", "ball:2".

    rho   its strength, for penalties that have one; a number in the name has priority
    """
    word, _, number = name.partition(":")
    kind = _NAMES.get(word.strip().lower().replace("-", "_"))
    if kind is None:
        raise ValueError(f"unknown penalty {name!r}: give one of {', '.join(_NAMES)}, or a Penalty")
    fields = {field.name: field.type for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {"rho": rho} if rho is not None and "rho" in fields else {}
    if number:
        if not fields:
            raise ValueError(f"penalty {name!r}: {word} has no parameter, got {number!r}: leave it out")
        first = next(iter(fields))
        given[first] = _number(name, number, whole=first == "rank")
    return kind(**given)


def _number(name: str, text: str, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError as error:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"penalty {name!r}: after the colon comes {kind}, got {text!r}") from error


def one_each(given: str | Penalty | Sequence[str | Penalty], layers: int, rho: float | None = None) -> list[Penalty]:
    """One penalty for each layer, from one for all or a sequence with one for each; the last is that of the output layer.

    One name for all: "group", "orthogonal", "low_rank" and "ball" apply to the hidden layers, if any, and the output layer gets "l2".
    """
    if isinstance(given, Penalty):
        return [given] * layers
    if isinstance(given, str):
        one = named(given, rho)
        head = named("l2", rho) if isinstance(one, _HIDDEN) and layers > 1 else one
        return [*[one] * (layers - 1), head]
    if not isinstance(given, Sequence):
        raise ValueError(
            f"penalty must be a name ({', '.join(_NAMES)}), a Penalty, or a sequence of these, got {given!r}"
        )
    if len(given) != layers:
        raise ValueError(f"penalty has {len(given)} entries for {layers} layers: give one for all or one each")
    return [each if isinstance(each, Penalty) else one_each(each, 1, rho)[0] for each in given]
