"""Constrained weights on handwritten digits: filters of the first layer, and how many units group sparsity leaves.

`python examples/constraints.py [--small]` prints the test accuracies of a free, a non-negative and an orthogonal first layer, and those
with the hidden units that `prune` leaves, as the weight of GroupL2 grows. Two minutes on a CPU, with --small a few seconds.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import liftednn as lnn

KINDS = {"free": "l2", "non-negative": ["nonnegative", "l2"], "orthogonal": "orthogonal"}
STRENGTHS = (0.003, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1)
PASSES, FEW = 60, 5


def digits() -> list[Any]:
    """Training rows, test rows, and the labels of both."""
    x, y = load_digits(return_X_y=True)
    parts: list[Any] = train_test_split((x / 16).astype(np.float32), y, test_size=0.25, random_state=0, stratify=y)
    return parts


def fitted(penalty: Any, passes: int, seed: int = 0) -> lnn.LiftedClassifier:
    x, _, y, _ = digits()
    return lnn.LiftedClassifier(100, penalty=penalty, max_iter=passes, random_state=seed).fit(x, y)


def constrained(kind: str, passes: int) -> tuple[float, NDArray[Any]]:
    """The test accuracy, and the sixteen filters that change their units most, (16, 8, 8): weights times the spread of their pixels."""
    x, x_test, _, y_test = digits()
    model = fitted(KINDS[kind], passes)
    w = model.coefs_[0].T * x.std(0)
    return model.score(x_test, y_test), w[np.argsort(-np.linalg.norm(w, axis=1))[:16]].reshape(16, 8, 8)


def pruned(strength: float, passes: int, seed: int = 0) -> tuple[int, float]:
    """How many units a weight of GroupL2 leaves, and the test accuracy with them."""
    _, x_test, _, y_test = digits()
    whole = fitted(f"group:{strength}", passes, seed)
    model = whole.prune()
    assert np.allclose(whole.predict_proba(x_test), model.predict_proba(x_test), atol=1e-5)
    return len(model.intercepts_[0]), model.score(x_test, y_test)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few passes, to see that all works")
    small = parser.parse_args(arguments).small
    passes = FEW if small else PASSES
    for kind in KINDS:
        print(f"{kind}: accuracy {constrained(kind, passes)[0]:.4f}")
    for strength in STRENGTHS[3::4] if small else STRENGTHS:
        units, accuracy = pruned(strength, passes)
        print(f"GroupL2({strength:g}): {units} of 100 units stay, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
