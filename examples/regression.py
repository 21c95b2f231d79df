"""Quantiles and outliers: a prediction band, and a fit that outliers do not change.

`python examples/regression.py [--small] [--out regression.png]` draws two panels and prints what it measured, on Friedman's function of
five out of ten inputs. Left: the noise grows with the first input; one network gives the 5%, 50% and 95% quantiles of the response, and the
band contains about 90% of new responses, narrow or wide. Right: a tenth of the training responses are outliers; the squared error
follows them, the absolute error and Huber's do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_friedman1

from liftednn import LiftedRegressor
from liftednn.losses import Quantile

Array = NDArray[np.float64]
LEVELS = (0.05, 0.5, 0.95)


def noisy(rows: int, seed: int) -> tuple[Array, Array]:
    """Noise of standard deviation 0.5 + 4 x_1, for x_1 between 0 and 1."""
    x, truth = make_friedman1(rows, random_state=seed)
    return x, truth + (0.5 + 4 * x[:, 0]) * np.random.default_rng(seed).standard_normal(rows)


def wild(rows: int, seed: int) -> tuple[Array, Array]:
    """Noise of standard deviation 1; a tenth of the responses is moved up by 50 to 150."""
    draws = np.random.default_rng(seed)
    x, truth = make_friedman1(rows, random_state=seed)
    moved = np.where(draws.random(rows) < 0.1, draws.uniform(50, 150, rows), 0.0)
    return x, truth + draws.standard_normal(rows) + moved


def band(axes: Any, rows: int) -> dict[str, float]:
    """Draw the quantiles of new rows against x_1; the share of responses between the outer two, where noise is least and most too."""
    model = LiftedRegressor((50,), loss=Quantile(LEVELS), random_state=0).fit(*noisy(rows, seed=0))
    x, y = noisy(5000, seed=1)
    low, middle, high = model.predict(x).T
    inside = (low <= y) & (y <= high)
    some = np.argsort(x[:200, 0])
    place = x[some, 0]
    axes.vlines(place, (low - middle)[some], (high - middle)[some], alpha=0.4, label="5% to 95%")
    axes.plot(place, (y - middle)[some], ".", color="0.2", markersize=3, label="responses")
    axes.set(title="three quantiles from one network", xlabel="first input", ylabel="less the predicted median")
    calm = x[:, 0] < np.median(x[:, 0])
    return {
        "coverage of the 90% band": float(inside.mean()),
        "coverage where noise is small": float(inside[calm].mean()),
        "coverage where noise is large": float(inside[~calm].mean()),
    }


def robust(axes: Any, rows: int) -> dict[str, float]:
    """Draw predictions against the truth; the mean distance between them for each loss."""
    x, y = wild(rows, seed=0)
    new, truth = make_friedman1(500, random_state=1)
    errors = {}
    for loss in ("squared", "absolute", "huber"):
        found = LiftedRegressor((50,), loss=loss, random_state=0).fit(x, y).predict(new)
        axes.plot(truth, found, ".", markersize=3, label=loss)
        errors[f"mean error, {loss}"] = float(np.abs(found - truth).mean())
    axes.axline((10, 10), slope=1, color="0.2", linewidth=1)
    axes.set(title="a tenth of the training responses is wild", xlabel="truth", ylabel="prediction")
    return errors


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rows, a few seconds")
    parser.add_argument("--out", type=Path, default=Path("regression.png"), help="where to draw")
    given = parser.parse_args(arguments)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    rows = 1500 if given.small else 6000
    found = band(left, rows) | robust(right, rows)
    for axes in (left, right):
        axes.legend(loc="upper left", fontsize="small")
    figure.savefig(given.out, dpi=120)
    plt.close(figure)
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    return found


if __name__ == "__main__":
    main()
