"""The batches, the passes and the rate of a run, from its number of rows."""

from __future__ import annotations

import math

__all__ = ["MANY", "batch_size", "initialisation_passes", "larger_batch_size", "larger_step", "passes"]

# The number of rows that is assumed where it is unknown.
MANY = 50_000
# The most passes, and the number of rows that all passes together should read at least; those of an initialisation are cheap beside the
# training that follows.
_MOST, _ROWS_IN_ALL = 100, 25_000
_MOST_INITIAL, _ROWS_INITIAL = 200, 60_000
# The most rows of the larger batches for classes, and for real responses where there are several hidden layers.
_CLASSES, _REAL = 150, 100
# The steps of a run of several hidden layers up to which they may be longer.
_FEW_STEPS = 600


def batch_size(rows: int | None) -> int:
    """A hundredth of the rows, from 50 to 500."""
    return max(50, min(500, (rows or MANY) // 100))


def larger_batch_size(rows: int, classes: int = 1, hidden: int = 1) -> int:
    """For classes about a third of the rows, up to 150, or `batch_size`, if that is more. There are fewer steps then, and where their
    rate is in proportion to the rows of a batch, the result is as good. Real responses may be fitted closely, and need the steps: one
    hidden layer takes `batch_size`, several take a fifth of the rows, up to 100, since they learn more from each step.
    Batches are of nearly equal sizes: among few, a last one of a few rows would be a step as long as the others."""
    larger = min(-(-rows // 3), _CLASSES) if classes > 1 else min(-(-rows // 5), _REAL) if hidden > 1 else 0
    return -(-rows // -(-rows // max(batch_size(rows), larger)))


def larger_step(rows: int, size: int, passes: int, hidden: int = 1) -> float:
    """The rate for batches of that size, over that of batches of `batch_size`: in proportion to the size where they are larger. Several
    hidden layers all move at once, and their training becomes unstable after many steps of such a rate, so they take it only as far as
    there are few steps."""
    larger = max(1.0, size / batch_size(rows))
    return larger if hidden < 2 else min(larger, max(1.0, _FEW_STEPS / (passes * -(-rows // size))))


def passes(rows: int | None, classes: int = 1) -> int:
    """The number of passes over the data: more where there are fewer rows, or more than ten classes, each of which has few of them."""
    least = round(30 * min(2.0, max(1.0, math.sqrt(classes / 10))))
    return max(least, min(_MOST, _ROWS_IN_ALL // (rows or MANY)))


def initialisation_passes(rows: int | None) -> int:
    """The number of initialisation passes, for a network that is then trained otherwise: three, more where there are few rows."""
    return max(3, min(_MOST_INITIAL, _ROWS_INITIAL // (rows or MANY)))
