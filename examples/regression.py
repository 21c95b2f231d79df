"""Quantiles and outliers: a prediction band, and a fit that outliers do not change.

`python examples/regression.py [--small]` prints what it measured, on Friedman's function of five out of ten inputs. Quantiles: the noise
grows with the first input; one network gives the 5%, 50% and 95% quantiles of the response, and the band contains about 90% of new
responses, narrow or wide. Outliers: a tenth of the training responses are moved far away; the squared error follows them, the absolute
error and Huber's do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_friedman1

from liftednn import LiftedRegressor
from liftednn.losses import Quantile

Array = NDArray[np.float64]
Passes = int | Literal["auto"]
LEVELS, LOSSES = (0.05, 0.5, 0.95), ("squared", "absolute", "huber")
ROWS, FEW = 6000, 1500


def noisy(rows: int, seed: int) -> tuple[Array, Array]:
    """Noise of standard deviation 0.5 + 4 x_1, for x_1 between 0 and 1."""
    x, truth = make_friedman1(rows, random_state=seed)
    return x, truth + (0.5 + 4 * x[:, 0]) * np.random.default_rng(seed).standard_normal(rows)


def with_outliers(rows: int, seed: int) -> tuple[Array, Array]:
    """Noise of standard deviation 1; a tenth of the responses is moved up by 50 to 150."""
    draws = np.random.default_rng(seed)
    x, truth = make_friedman1(rows, random_state=seed)
    moved = np.where(draws.random(rows) < 0.1, draws.uniform(50, 150, rows), 0.0)
    return x, truth + draws.standard_normal(rows) + moved


def band(rows: int, passes: Passes = "auto") -> tuple[Array, Array, Array]:
    """The first input of new rows, (n,), their responses, (n,), and their predicted quantiles, (n, 3)."""
    model = LiftedRegressor((50,), loss=Quantile(LEVELS), max_iter=passes, random_state=0).fit(*noisy(rows, seed=0))
    x, y = noisy(5000, seed=1)
    return x[:, 0], y, model.predict(x)


def coverage(first: Array, y: Array, quantiles: Array) -> dict[str, float]:
    """The share of responses between the outer two quantiles; also where noise is smallest and largest."""
    inside = (quantiles[:, 0] <= y) & (y <= quantiles[:, -1])
    calm = first < np.median(first)
    return {
        "coverage of the 90% band": float(inside.mean()),
        "coverage where noise is small": float(inside[calm].mean()),
        "coverage where noise is large": float(inside[~calm].mean()),
    }


def predictions(loss: str, rows: int, passes: Passes = "auto") -> tuple[Array, Array]:
    """The responses of new rows without noise, and those predicted by a network that was trained with outliers."""
    new, truth = make_friedman1(500, random_state=1)
    model = LiftedRegressor((50,), loss=loss, max_iter=passes, random_state=0).fit(*with_outliers(rows, seed=0))
    return truth, model.predict(new)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rows, a few seconds")
    rows = FEW if parser.parse_args(arguments).small else ROWS
    found = coverage(*band(rows))
    for loss in LOSSES:
        truth, predicted = predictions(loss, rows)
        found[f"mean error, {loss}"] = float(np.abs(predicted - truth).mean())
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    return found


if __name__ == "__main__":
    main()
