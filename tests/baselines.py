"""Stored results of short seeded runs through every part of the package, to compare a refactoring with.

    python -m tests.baselines                     run all and compare with tests/files/baselines.json
    python -m tests.baselines bcd/relu cli/       only the runs whose names begin with one of these
    python -m tests.baselines --write             store what the runs give now; with names, only those

The runs are in tests/baseline_runs.py. Of every array the shape, the norm and three projections are stored, of every number the number.
Store new results only where a change of results is intended, and say so in the commit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from tests.baseline_runs import RUNS, TOLERANCES

__all__ = ["Difference", "Digest", "compare", "digest", "main", "measure"]

STORED = Path(__file__).parent / "files" / "baselines.json"
RELATIVE, ABSOLUTE = 1e-6, 1e-9
PARTS = ("norm", "projection 1", "projection 2", "projection 3")

# The shape and the numbers of every value of a run.
Digest = dict[str, tuple[list[int], list[float]]]


class Difference(NamedTuple):
    """The largest relative difference between two digests, and a sentence for each value that differs by more than the tolerance."""

    largest: float
    complaints: list[str]


def digest(value: Any) -> tuple[list[int], list[float]]:
    """The shape, and the norm and the projections on unit vectors; of up to as many entries, the entries."""
    array: NDArray[np.float64] = np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, dtype=float)
    flat, index = array.reshape(-1), np.arange(1, array.size + 1)
    if array.size <= len(PARTS):
        return list(array.shape), flat.tolist()
    directions = [np.cos(index * frequency) for frequency in range(1, len(PARTS))]
    projections = [float(flat @ direction / np.linalg.norm(direction)) for direction in directions]
    return list(array.shape), [float(np.linalg.norm(flat)), *projections]


def measure(name: str) -> Digest:
    """What the run of that name gives."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # runs are short on purpose
        return {key: digest(value) for key, value in RUNS[name]().items()}


def compare(found: Digest, stored: Mapping[str, Sequence[Any]], tolerance: float = RELATIVE) -> Difference:
    """How far what a run gives is from what is stored."""
    complaints = [f"{key} is missing" for key in stored if key not in found]
    complaints += [f"{key} is not stored: run with --write" for key in found if key not in stored]
    largest = 0.0
    for key, (old_shape, old_numbers) in stored.items():
        shape, numbers = found.get(key, (old_shape, old_numbers))
        if shape != old_shape:
            complaints.append(f"{key} has shape {shape}, was {old_shape}")
            continue
        # Projections may be small by cancellation, so all numbers of an array are compared relative to its norm.
        scale = max((abs(old) for old in old_numbers if math.isfinite(old)), default=0.0) + ABSOLUTE / RELATIVE
        for entry, (new, old) in enumerate(zip(numbers, old_numbers, strict=True)):
            difference = _difference(new, old) / scale
            largest = max(largest, difference)
            if difference > tolerance:
                complaints.append(f"{_label(key, shape, entry)} is {new!r}, was {old!r}: differs by {difference:.1e}")
    return Difference(largest, complaints)


def _label(key: str, shape: Sequence[int], entry: int) -> str:
    if not shape:
        return key
    return f"{key}, {PARTS[entry] if math.prod(shape) > len(PARTS) else f'entry {entry}'},"


def _difference(new: float, old: float) -> float:
    """Infinite where they are not the same and not both finite."""
    if new == old or (math.isnan(new) and math.isnan(old)):
        return 0.0
    return abs(new - old) if math.isfinite(new) and math.isfinite(old) else math.inf


def _check(name: str, stored: Mapping[str, Mapping[str, Sequence[Any]]]) -> tuple[bool, str]:
    """Whether a run agrees with what is stored, and the sentence that says so."""
    if name not in stored:
        return False, "is not stored: run with --write"
    try:
        largest, complaints = compare(measure(name), stored[name], TOLERANCES.get(name, RELATIVE))
    except Exception as error:  # one run that fails must not hide the others
        return False, f"fails: {type(error).__name__}: {error}"
    if complaints:
        return False, "differs: " + "\n    ".join(["", *complaints]).lstrip("\n")
    return True, f"agrees to {largest:.0e}" if largest else "agrees exactly"


def _read() -> dict[str, dict[str, Sequence[Any]]]:
    stored: dict[str, dict[str, Sequence[Any]]] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return stored


def _write(names: Sequence[str], every: bool) -> None:
    """One line a run, so that a diff names the runs that changed."""
    kept = {} if every else _read()
    for place, name in enumerate(names, 1):
        kept[name] = dict(measure(name))
        print(f"[{place}/{len(names)}] {name}: stored", flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name], separators=(',', ':'))}" for name in RUNS if name in kept]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _compare(names: Sequence[str], every: bool) -> int:
    """The number of runs that do not agree."""
    stored, wrong = _read(), 0
    for place, name in enumerate(names, 1):
        agrees, sentence = _check(name, stored)
        wrong += not agrees
        print(f"[{place}/{len(names)}] {name}: {sentence}", flush=True)
    for name in stored if every else ():
        if name not in RUNS:
            wrong += 1
            print(f"{name}: is stored, but there is no such run: run with --write")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a run differs, is missing or is not stored."""
    parser = argparse.ArgumentParser(prog="python -m tests.baselines", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="runs, or what their names begin with; by default all")
    parser.add_argument("--write", action="store_true", help="store what the runs give now, instead of comparing")
    given = parser.parse_args(arguments)
    unknown = [begin for begin in given.names if not any(name.startswith(begin) for name in RUNS)]
    if unknown:
        parser.error(f"no run's name begins with {unknown[0]!r}: the runs are {', '.join(RUNS)}")
    names = [name for name in RUNS if not given.names or name.startswith(tuple(given.names))]
    started = time.process_time()
    if given.write:
        _write(names, not given.names)
        wrong = 0
    else:
        wrong = _compare(names, not given.names)
        print(f"{len(names)} runs, {f'{wrong} differ' if wrong else 'all agree'}", end=", ")
    print(f"{time.process_time() - started:.0f} s of CPU time")
    return int(wrong > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
