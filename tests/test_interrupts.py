"""What interrupts an experiment: Ctrl-C in fits that swallow it, errors of peers, and data that are not there."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPRegressor

from experiments import default_models
from experiments.equal_time import in_deviations
from experiments.estimators import some
from experiments.interrupts import interruptible
from experiments.methods import Task, peer
from experiments.optimiser_peers import _inverse

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


def test_data_that_is_not_there_is_said_in_a_sentence() -> None:
    with pytest.raises(FileNotFoundError, match="none of the sets asked for is at hand: set LIFTEDNN_DATA"):
        some(iter(()))


def test_a_layer_that_no_gradient_reaches_has_an_inverse() -> None:
    """K-FAC's factor of its outputs is 0 then, and so is a damping relative to it."""
    assert bool(_inverse(torch.zeros(3, 3), torch.zeros(())).isfinite().all())
