"""Constrained weights on handwritten digits: what the first layer looks like, and how many units group sparsity leaves.

    python examples/constraints.py [--small] [--out constraints.png]

Left: filters of a free, a non-negative and an orthogonal first layer, with their test accuracies. Right: test accuracy against the
hidden units that `prune` leaves, as the weight of GroupL2 grows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import liftednn as lnn

matplotlib.use("Agg")
from matplotlib import pyplot as plt

KINDS = {"free": "l2", "non-negative": ["nonnegative", "l2"], "orthogonal": "orthogonal"}
STRENGTHS = (0.003, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1)


def digits() -> list[Any]:
    """Training rows, test rows, and the labels of both."""
    x, y = load_digits(return_X_y=True)
    parts: list[Any] = train_test_split((x / 16).astype(np.float32), y, test_size=0.25, random_state=0, stratify=y)
    return parts


def fitted(penalty: Any, data: list[Any], passes: int) -> lnn.LiftedClassifier:
    model = lnn.LiftedClassifier(100, penalty=penalty, max_iter=passes, random_state=0)
    return model.fit(data[0], data[2])


def units_left(data: list[Any], passes: int, strengths: tuple[float, ...]) -> list[tuple[int, float]]:
    """For each weight of the penalty, the units that stay and the accuracy with them."""
    points = []
    for rho in strengths:
        whole = fitted(f"group:{rho}", data, passes)
        model = whole.prune()
        assert np.allclose(whole.predict_proba(data[1]), model.predict_proba(data[1]), atol=1e-5)
        points.append((len(model.intercepts_[0]), model.score(data[1], data[3])))
        print(f"GroupL2({rho:g}): {points[-1][0]} of 100 units stay, accuracy {points[-1][1]:.4f}")
    return points


def draw_filters(axes: Any, name: str, model: lnn.LiftedClassifier, accuracy: float, spread: Any) -> None:
    """The sixteen filters that move their units most, 8 x 8 pixels each: weights times the spread of their pixels."""
    w = model.coefs_[0].T * spread
    chosen = w[np.argsort(-np.linalg.norm(w, axis=1))[:16]].reshape(4, 4, 8, 8)
    picture = np.pad(chosen, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    size = np.abs(chosen).max()
    axes.imshow(picture.transpose(0, 2, 1, 3).reshape(36, 36), cmap="RdBu_r", vmin=-size, vmax=size)
    axes.set_title(f"{name}: {accuracy:.3f}")
    axes.axis("off")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few passes, to see that all works")
    parser.add_argument("--out", type=Path, default=Path("constraints.png"))
    given = parser.parse_args(arguments)
    data, passes = digits(), 5 if given.small else 60
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), width_ratios=(1, 1, 1, 1.5), layout="constrained")
    for place, (name, penalty) in enumerate(KINDS.items()):
        model = fitted(penalty, data, passes)
        accuracy = model.score(data[1], data[3])
        print(f"{name}: accuracy {accuracy:.4f}")
        draw_filters(axes[place], name, model, accuracy, data[0].std(0))
    points = units_left(data, passes, STRENGTHS[3::4] if given.small else STRENGTHS)
    axes[3].plot(*zip(*points, strict=True), "o-")
    axes[3].set(xlabel="hidden units left of 100", ylabel="test accuracy", title="group sparsity, pruned")
    figure.savefig(given.out, dpi=110)
    plt.close(figure)
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
