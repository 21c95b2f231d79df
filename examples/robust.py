"""Digits with noise on the test pixels: plain and robust lifted networks, accuracy against the level of the noise.

With an uncertainty, pixels are also standardised with the noise included, so that those which hardly vary are not enlarged. The dashed
line is that scaling without the robust term: the control for the gain of the term.

`python -m examples.robust [--small] [--out docs/robust.png]`; a minute on a CPU, with --small a few seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from liftednn import LiftedClassifier

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
ROBUST = {"plain": None, "noise:0.2": "noise:0.2", "ball:0.5": "ball:0.5", "box:0.01": "box:0.01"}
COLOURS = ("#777777", "#0072B2", "#009E73", "#D55E00")
Array = NDArray[Any]


class ScaledOnly(LiftedClassifier):
    """Pixels are standardised with the noise included, but there is no robust term."""

    def _uncertainty(self) -> None:
        return None


def curves(passes: int, seeds: int) -> dict[str, Array]:
    """Mean test accuracy over seeds, one for each level, by method."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split((x / 16).astype(np.float32), y, test_size=0.3, random_state=0, stratify=y)
    found = {}
    wanted = [(name, LiftedClassifier, robust) for name, robust in ROBUST.items()]
    wanted += [(f"{name}, scaled only", ScaledOnly, robust) for name, robust in ROBUST.items() if robust]
    for name, kind, robust in wanted:
        runs = []
        for seed in range(seeds):
            model = kind((50,), max_iter=passes, random_state=seed, robust=robust).fit(x, y)
            noise = np.random.default_rng(seed).normal(size=x_test.shape)
            runs.append([model.score((x_test + level * noise).astype(np.float32), y_test) for level in LEVELS])
        found[name] = np.mean(runs, axis=0)
    return found


def draw(found: dict[str, Array], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for name, scores in found.items():
        colour = COLOURS[list(ROBUST).index(name.split(",")[0])]
        axis.plot(LEVELS, scores, "--" if "scaled" in name else "o-", color=colour, label=name)
    axis.set(xlabel="standard deviation of the noise on the test pixels (0 .. 1)", ylabel="test accuracy", ylim=(0, 1))
    axis.set_title("digits, one hidden layer of 50")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(out, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Array]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="one seed and few passes")
    parser.add_argument("--out", type=Path, default=Path("docs/robust.png"))
    given = parser.parse_args(arguments)
    found = curves(*((5, 1) if given.small else (30, 3)))
    print(f"{'noise':22s} " + "  ".join(f"{level:5.1f}" for level in LEVELS))
    for name, scores in found.items():
        print(f"{name:22s} " + "  ".join(f"{score:.3f}" for score in scores))
    draw(found, given.out)
    return found


if __name__ == "__main__":
    main()
