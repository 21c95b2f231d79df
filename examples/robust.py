"""Digits with noise on the test pixels: plain and robust lifted networks, accuracy against the level of the noise.

With an uncertainty, pixels are also standardised with the noise included, so that those which hardly vary are not enlarged. "Scaled only"
is that scaling without the robust term: the control for the gain of the term.

`python examples/robust.py [--small]`; a minute on a CPU, with --small a few seconds.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from liftednn import LiftedClassifier

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
ROBUST, CONTROL = ("noise:0.2", "ball:0.5", "box:0.01"), ", scaled only"
METHODS = ("plain", *ROBUST, *(name + CONTROL for name in ROBUST))
SEEDS, PASSES = 3, 30


class ScaledOnly(LiftedClassifier):
    """Pixels are standardised with the noise included, but there is no robust term."""

    def _uncertainty(self) -> None:
        return None


def accuracies(method: str, seed: int, passes: int) -> list[float]:
    """Test accuracy at each of the levels."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((x / 16).astype(np.float32), y, test_size=0.3, random_state=0, stratify=y)
    kind = ScaledOnly if method.endswith(CONTROL) else LiftedClassifier
    robust = None if method == "plain" else method.removesuffix(CONTROL)
    model = kind((50,), max_iter=passes, random_state=seed, robust=robust).fit(x, y)
    noise = np.random.default_rng(seed).normal(size=x_test.shape)
    return [model.score((x_test + level * noise).astype(np.float32), y_test) for level in LEVELS]


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Medians over seeds, by method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one seed and few passes")
    passes, seeds = (8, 1) if parser.parse_args(arguments).small else (PASSES, SEEDS)
    print(f"{'noise':22s} " + "  ".join(f"{level:5.1f}" for level in LEVELS))
    found = {}
    for name in METHODS:
        runs = [accuracies(name, seed, passes) for seed in range(seeds)]
        found[name] = np.median(runs, axis=0).tolist()
        print(f"{name:22s} " + "  ".join(f"{score:.3f}" for score in found[name]))
    return found


if __name__ == "__main__":
    main()
