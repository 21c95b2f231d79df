"""Ctrl-C in the fits of scikit-learn's networks, which swallow it, and errors in a thread of a peer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPRegressor

from experiments import default_models
from experiments.equal_time import in_deviations
from experiments.interrupts import interruptible
from experiments.methods import Task, peer

X = np.random.default_rng(0).normal(size=(40, 3))


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_fit_that_would_end_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MLPRegressor, "_update_no_improvement_count", interrupted)
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        MLPRegressor(max_iter=2).fit(X, X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyboardInterrupt), interruptible():
            MLPRegressor(max_iter=2).fit(X, X[:, 0])
    with pytest.raises(KeyboardInterrupt):
        default_models.fit("MLP", X, X[:, 0], classes=False, seed=0, quick=True)


def test_other_warnings_stay_warnings() -> None:
    with pytest.warns(UserWarning, match="something else"), interruptible():
        warnings.warn("something else", UserWarning, stacklevel=1)


def test_an_error_of_a_peer_is_raised() -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    task = Task(x, y, (4, 3, 2), 1, 0, {"method": "lpom", "unknown": 1})
    with pytest.raises(TypeError, match="unknown"):
        next(iter(peer(task)))


def test_one_seed_decides_nothing() -> None:
    assert in_deviations(0.1, 0.0) == 0.0
    assert in_deviations(-0.1, 0.05) == -2.0
