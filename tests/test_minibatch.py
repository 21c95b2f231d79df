"""Mini-batch training: it learns, is repeatable, resumes exactly, streams in bounded memory, and refuses what it cannot do."""

import gc
import math
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import liftednn as lnn
from liftednn import activations as act
from liftednn.data.sources import source_of
from liftednn.training import choices, monitor
from liftednn.training.result import Record
from liftednn.training.run import Run


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels(x: Tensor) -> Tensor:
    return (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()


X = draw(1200, 6)
LABELS = labels(X)
REAL = torch.stack([torch.sin(2 * X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3]], 1)
X_TEST = draw(1000, 6, seed=1)
LABELS_TEST = labels(X_TEST)


def network(sizes: list[int] | None = None, activation: str | lnn.Activation = "fenchel_relu") -> lnn.LiftedNetwork:
    return lnn.automatic(lnn.LiftedNetwork.mlp(sizes or [6, 30, 3], activation=activation), X, LABELS)


def same(a: lnn.Fit, b: lnn.Fit) -> bool:
    pairs = zip(a.weights, b.weights, strict=True)
    return all(torch.equal(p.w, q.w) and torch.equal(p.b, q.b) for p, q in pairs)


def accuracy(net: lnn.LiftedNetwork, fit: lnn.Fit) -> float:
    return float((lnn.predict.feedforward(net, fit.weights, X_TEST).argmax(1) == LABELS_TEST).double().mean())


def smooth_names() -> list[str]:
    return [name for name in act.__all__ if getattr(act, name)().curvature < torch.inf]


def test_it_learns_what_random_features_do_not() -> None:
    net = network()
    start = lnn.BCD().init(net, X, LABELS).weights
    control = float((lnn.predict.feedforward(net, start, X_TEST).argmax(1) == LABELS_TEST).double().mean())
    fit = lnn.MiniBatch(passes=20).run(net, X, LABELS)
    assert control < 0.85
    assert accuracy(net, fit) > 0.88
    assert fit.history[-1].loss < fit.history[0].loss / 2
    assert fit.status == "finished"
    assert "all 20 passes" in fit.result


def test_real_responses_are_learned() -> None:
    net = lnn.automatic(lnn.LiftedNetwork.mlp([6, 40, 2], "fenchel_relu", "squared"), X, REAL)
    fit = lnn.MiniBatch(passes=30).run(net, X, REAL)
    target = torch.stack([torch.sin(2 * X_TEST[:, 0]) + X_TEST[:, 1], X_TEST[:, 2] * X_TEST[:, 3]], 1)
    assert net.loss.score(lnn.predict.feedforward(net, fit.weights, X_TEST), target) > 0.9


@pytest.mark.parametrize("name", [n for n in smooth_names() if not getattr(act, n)().joint])
@pytest.mark.thin(4)
def test_every_fenchel_activation_trains(name: str) -> None:
    net = network([6, 20, 3], getattr(act, name)())
    fit = lnn.MiniBatch(passes=12).run(net, X, LABELS)
    assert fit.history[-1].loss < fit.history[0].loss
    assert fit.history[-1].score > 0.7


@pytest.mark.parametrize("name", [n for n in smooth_names() if getattr(act, n)().joint])
@pytest.mark.thin(2)
def test_jointly_convex_activations_run_and_stay_finite(name: str) -> None:
    """Their objective moves them towards a linear model, so no more is claimed."""
    net = lnn.LiftedNetwork.mlp([6, 20, 3], activation=getattr(act, name)())
    fit = lnn.MiniBatch(passes=3).run(net, X, LABELS)
    assert all(bool(w.isfinite().all()) for w, _ in fit.weights)
    assert np.isfinite(fit.history[-1].objective)


@pytest.mark.parametrize("depth", [1, 2, pytest.param(8, marks=pytest.mark.slow)])
def test_any_depth_trains(depth: int) -> None:
    """On enough rows and units that all seeds learn: where a deep network has few, last bits decide how far it gets."""
    x = draw(4800, 6)
    net = lnn.automatic(lnn.LiftedNetwork.mlp([6, *[32] * depth, 3], activation="fenchel_relu"), x, labels(x))
    fit = lnn.MiniBatch(passes=8).run(net, x, labels(x))
    assert accuracy(net, fit) > 0.85
    assert len(fit.history[-1].gaps) == depth


def test_without_hidden_layers_it_is_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    rho = 1e-3
    net = lnn.LiftedNetwork.mlp([6, 3], rho=rho)
    fit = lnn.MiniBatch(passes=60, batch_size=len(X), step=1.0, momentum=0.0, damping=0.0).run(net, X, LABELS)
    oracle = LogisticRegression(C=1 / (2 * rho * len(X)), tol=1e-10, max_iter=1000).fit(X.numpy(), LABELS.numpy())
    np.testing.assert_allclose(fit.weights[0].w, oracle.coef_, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_runs_with_one_seed_agree_to_the_bit(dtype: torch.dtype) -> None:
    net, x = network(), X.to(dtype)
    first, again = (lnn.MiniBatch(passes=3).run(net, x, LABELS) for _ in range(2))
    assert same(first, again)
    assert first.weights[0].w.dtype == dtype
    assert not same(first, lnn.MiniBatch(passes=3, seed=1).run(net, x, LABELS))


def test_numpy_labels_and_lists_are_taken() -> None:
    net = network()
    reverse = np.ascontiguousarray(X.numpy()[::-1])[::-1]  # negative strides
    given = ((X, LABELS), (reverse, LABELS.numpy().astype(np.uint16)), (X.numpy().astype(">f8"), LABELS.tolist()))
    tensors, arrays, lists = (lnn.MiniBatch(passes=2).run(net, x, y) for x, y in given)
    assert same(tensors, arrays)
    assert same(tensors, lists)


def test_a_loader_of_one_batch_gives_what_a_tensor_gives() -> None:
    net, trainer = network(), lnn.MiniBatch(passes=4, batch_size=len(X), damping=0.5)
    whole = trainer.run(net, X, LABELS)
    loaded = trainer.run(net, DataLoader(TensorDataset(X, LABELS), batch_size=len(X)))
    for a, b in zip(whole.weights, loaded.weights, strict=True):
        torch.testing.assert_close(a.w, b.w, rtol=1e-6, atol=1e-8)


def test_a_loader_trains() -> None:
    net = network()
    loader = DataLoader(TensorDataset(X.float(), LABELS), batch_size=64, shuffle=True, generator=torch.Generator())
    fit = lnn.MiniBatch(passes=15).run(net, loader)
    assert float((lnn.predict.feedforward(net, fit.weights, X_TEST).argmax(1) == LABELS_TEST).double().mean()) > 0.86
    assert [record.steps for record in fit.history] == [19] * 15


def test_an_iterator_is_read_in_one_pass() -> None:
    net = network()
    pairs = list(zip(torch.split(X, 40), torch.split(LABELS, 40), strict=True))
    once, again = (lnn.MiniBatch(passes=1).run(net, each) for each in (iter(pairs), iter(pairs)))
    assert once.history[0].steps == len(pairs)
    assert same(once, again)
    with pytest.raises(ValueError, match="passes=1"):
        lnn.MiniBatch(passes=2).run(net, iter(pairs))
    with pytest.raises(ValueError, match="give some rows"):
        lnn.automatic(net, iter(pairs))


def test_given_weights_are_where_it_starts() -> None:
    net = network()
    start = lnn.BCD().init(net, X, LABELS).weights
    with torch.no_grad():
        run = Run(lnn.MiniBatch(), net, source_of(X, LABELS), start)
        for ours, given in zip(run.unwhitened_weights(), start, strict=True):
            torch.testing.assert_close(ours.w, given.w, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(ours.b, given.b, rtol=1e-9, atol=1e-9)


def test_penalties_without_a_square_take_their_prox() -> None:
    layers = lnn.LiftedNetwork.mlp([6, 20, 3], activation="fenchel_relu").layers
    sparse = [lnn.Layer(each.operator, each.divergence, lnn.penalties.L1(1e-2), each.lam * 30) for each in layers[:1]]
    net = lnn.LiftedNetwork([*sparse, layers[1]])
    fit = lnn.MiniBatch(passes=20).run(net, X, LABELS)
    assert float((fit.weights[0].w == 0).double().mean()) > 0.1
    assert fit.history[-1].loss < fit.history[0].loss


def test_a_layer_without_bias_keeps_none() -> None:
    layers = lnn.LiftedNetwork.mlp([6, 20, 3], activation="fenchel_relu", lam=30.0).layers
    plain = [lnn.Layer(lnn.operators.Dense(6, 20, bias=False), layers[0].divergence, layers[0].penalty, 30.0)]
    fit = lnn.MiniBatch(passes=10).run(lnn.LiftedNetwork([*plain, layers[1]]), X, LABELS)
    assert not fit.weights[0].b.any()
    assert fit.history[-1].loss < fit.history[0].loss


class CrashError(Exception):
    """Stands for a crash in the middle of a run."""


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.thin(2)
def test_a_run_resumed_from_its_checkpoint_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    net, trainer = network(), lnn.MiniBatch(passes=4, batch_size=50)
    batches = list(zip(torch.split(X, 50), torch.split(LABELS, 50), strict=True))
    data: tuple[Any, Any] = (batches, None) if loaded else (X, LABELS)
    validation = (X_TEST, LABELS_TEST)
    whole = trainer.run(net, *data, validation=validation)
    plain, calls = Run._advance, 0

    def advance(self: Run, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 61:  # in the third pass, after a refresh
            raise CrashError
        plain(self, *args)

    monkeypatch.setattr(Run, "_advance", advance)
    checkpoint = lnn.Checkpoint(tmp_path / "run.safetensors", seconds=0.0)
    with pytest.raises(CrashError):
        trainer.run(net, *data, validation=validation, checkpoint=checkpoint)
    resumed = trainer.run(net, *data, validation=validation, checkpoint=checkpoint)
    assert same(whole, resumed)
    skipped = ("seconds",)
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert {k: v for k, v in vars(a).items() if k not in skipped} == {
            k: v for k, v in vars(b).items() if k not in skipped
        }
    calls = 0
    again = trainer.run(net, *data, validation=validation, checkpoint=checkpoint)
    assert calls == 0  # a finished run has nothing left to do
    assert same(whole, again)


def test_a_resumed_run_on_a_shuffled_loader_keeps_its_coordinates(tmp_path: Path) -> None:
    """Its sample is another one in every run, and so would be the whitening made from it."""
    net, trainer = network(), lnn.MiniBatch(passes=8)
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=50, shuffle=True)
    checkpoint, scores = lnn.Checkpoint(tmp_path / "run.safetensors"), []
    torch.manual_seed(0)
    validation = (X_TEST.float(), LABELS_TEST)  # of another precision: it is taken as x is
    trainer.run(net, loader, validation=validation, callback=lambda record: record.number == 5, checkpoint=checkpoint)
    resumed = trainer.run(net, loader, validation=validation, checkpoint=checkpoint)
    scores = [record.validation_score or 0.0 for record in resumed.history]
    assert len(scores) == 8
    assert min(scores[5:]) > scores[4] - 0.03


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.thin(2)
def test_a_run_on_a_shuffled_loader_resumes_exactly(tmp_path: Path, own: bool, within: bool) -> None:
    """Stopped after a pass or within one; the loader draws from a generator of its own, or from torch's."""
    net, trainer, rows = network(), lnn.MiniBatch(passes=4, learn_rho=True), X[:300]

    def loader(stop: float = math.inf, seed: int = 5) -> DataLoader[tuple[Tensor, ...]]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if own else None
        return DataLoader(_Stops(rows, LABELS[:300], stop), batch_size=50, shuffle=True, generator=generator)

    whole = trainer.run(net, loader())
    checkpoint = lnn.Checkpoint(tmp_path / "run.safetensors", seconds=0)
    if within:
        with pytest.raises(KeyError):
            trainer.run(net, loader(stop=3.5 * len(rows)), checkpoint=checkpoint)
    else:
        trainer.run(net, loader(), callback=lambda record: record.number == 2, checkpoint=checkpoint)
    resumed = trainer.run(net, loader(seed=6), checkpoint=checkpoint)
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        assert torch.equal(one.w, other.w)


class _Stops(TensorDataset):
    """Fails after so many rows."""

    def __init__(self, x: Tensor, y: Tensor, stop: float) -> None:
        super().__init__(x, y)
        self.stop, self.read = stop, 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        if self.read > self.stop:
            raise KeyError(index)
        return super().__getitem__(index)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    checkpoint = lnn.Checkpoint(tmp_path / "run.safetensors")
    lnn.MiniBatch(passes=1).run(network(), X, LABELS, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="other settings"):
        lnn.MiniBatch(passes=2).run(network(), X, LABELS, checkpoint=checkpoint)


@pytest.fixture
def python_s_ctrl_c() -> Iterator[None]:
    """A shell's background jobs ignore Ctrl-C, and so would these tests there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_rows_of_weight_0_do_not_look_like_divergence() -> None:
    x, y = draw(1000, 5), draw(1000, seed=1)
    y, weights = x[:, 0] + 0.1 * y, torch.ones(1000).double()
    weights[60::100] = 0
    network = lnn.LiftedNetwork.mlp([5, 20, 1], activation="fenchel_relu", loss="squared", lam=10.0, rho=1e-4)
    losses = []
    for wild in (y, torch.where(weights > 0, y, 1e4)):
        batches = list(zip(x.split(50), wild.split(50), weights.split(50), strict=True))
        fit = lnn.MiniBatch(passes=12, refresh=7).run(network, batches)
        assert fit.history[-1].halved == 0
        losses.append(fit.history[-1].loss)
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("python_s_ctrl_c")
def test_ctrl_c_keeps_whole_steps_and_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, trainer = network(), lnn.MiniBatch(passes=3, batch_size=50)
    whole = trainer.run(net, X, LABELS)
    plain, calls = Run._advance, 0

    def advance(self: Run, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 31:
            os.kill(os.getpid(), signal.SIGINT)
        plain(self, *args)

    monkeypatch.setattr(Run, "_advance", advance)
    checkpoint = lnn.Checkpoint(tmp_path / "run.safetensors")
    stopped = trainer.run(net, X, LABELS, checkpoint=checkpoint)
    assert (stopped.status, len(stopped.history), calls) == ("stopped", 1, 31)
    assert same(whole, trainer.run(net, X, LABELS, checkpoint=checkpoint))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("python_s_ctrl_c")
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_ctrl_c_in_a_callback_keeps_the_fit(stops: bool, passes: int) -> None:
    def press(record: Record) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return stops

    fit = lnn.MiniBatch(passes=passes).run(network(), X, LABELS, callback=press)
    assert (fit.status, len(fit.history)) == ("stopped", 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_best_weights_on_validation_data_are_kept() -> None:
    net = network()
    seen: list[Record] = []
    fit = lnn.MiniBatch(passes=12, step=0.4, damping=0.001).run(
        net, X[:100], LABELS[:100], validation=(X_TEST, LABELS_TEST), callback=seen.append
    )
    scores = [record.validation_score or 0.0 for record in fit.history]
    assert accuracy(net, fit) == pytest.approx(max(scores))
    assert seen == fit.history
    assert f"those of pass {1 + scores.index(max(scores))}" in fit.result


def test_early_stopping_waits_for_its_patience() -> None:
    fit = lnn.MiniBatch(passes=60, patience=3).run(network(), X[:100], LABELS[:100], validation=(X_TEST, LABELS_TEST))
    scores = [record.validation_score or 0.0 for record in fit.history]
    assert fit.status == "early"
    assert len(scores) < 60
    assert scores.index(max(scores)) == len(scores) - 4


def test_an_early_stopped_run_stays_stopped(tmp_path: Path) -> None:
    trainer, checkpoint = lnn.MiniBatch(passes=60, patience=2), lnn.Checkpoint(tmp_path / "run.safetensors")
    data = {"validation": (X_TEST, LABELS_TEST), "checkpoint": checkpoint}
    first, again = (trainer.run(network(), X[:100], LABELS[:100], **data) for _ in range(2))  # type: ignore[arg-type]
    assert (first.status, again.status) == ("early", "early")
    assert len(first.history) == len(again.history)
    assert same(first, again)


def test_a_callback_can_stop_a_run() -> None:
    fit = lnn.MiniBatch(passes=5).run(network(), X, LABELS, callback=lambda record: record.number == 2)
    assert (fit.status, len(fit.history)) == ("stopped", 2)


@pytest.mark.parametrize("validation", [None, (X_TEST, LABELS_TEST)], ids=["last pass", "best pass"])
@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.thin(2)
def test_weights_given_back_are_copies(penalty: str, validation: tuple[Tensor, Tensor] | None) -> None:
    """None is part of a larger tensor, such as the vector of all weights that the steps change."""
    fit = lnn.MiniBatch(passes=2).run(network().with_penalty(penalty), X, LABELS, validation=validation)
    parts = [part for pair in fit.weights for part in pair]
    assert [part.untyped_storage().nbytes() for part in parts] == [part.nbytes for part in parts]
    assert not any(part.is_inference() for part in parts)


def test_the_record_of_a_pass_is_the_network_s_evaluation() -> None:
    """One batch per pass: objective, gaps and loss are those of that batch at the weights before its step."""
    net = network()
    records: list[Record] = []
    with torch.no_grad():
        run = Run(lnn.MiniBatch(passes=2, batch_size=len(X), keep=1.0), net, source_of(X, LABELS))
        before = monitor.copies(run.unwhitened_weights())
        records.append(next(run.passes()))
    scores = net.scores(before, X)
    y = net.loss.encode(LABELS, 3).to(X)
    assert records[0].loss == pytest.approx(float(net.loss.value(scores, y).mean()), rel=1e-9)
    assert records[0].score == pytest.approx(net.loss.score(scores, y))
    assert records[0].gaps[0] > 0
    penalty = sum(
        float(layer.penalty.value(w.w)) for layer, w in zip(net.layers, run.unwhitened_weights(), strict=True)
    )
    assert records[0].objective > penalty + 0.5 * records[0].loss


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("kept", [1, 300, 1 << 18])
def test_loss_and_score_of_a_pass_are_means_over_all_its_batches(
    kept: int, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_KEPT", kept)  # scores that are evaluated together
    row_weights = torch.linspace(0.5, 1.5, len(X), dtype=X.dtype) if weighted else None
    seen: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        run = Run(lnn.MiniBatch(passes=1, batch_size=100), network(), source_of(X, LABELS, row_weights))
        plain = run.step

        def step(x: Tensor, y: Tensor, count: Tensor | None) -> Tensor:
            scores = run.descent.network.scores(run.descent.weights, x)
            each = run.network.loss.value(scores, y)
            right = (scores.argmax(1) == y.argmax(1)).to(each)
            seen.append(tuple((part if count is None else part * count).sum() for part in (each, right)))
            return plain(x, y, count)

        run.step = step
        record = next(run.passes())
    assert len(seen) == record.steps == 12
    losses, hits = (float(sum(part)) for part in zip(*seen, strict=True))
    assert record.loss == pytest.approx(losses / len(X), rel=1e-9)
    assert record.score == pytest.approx(hits / len(X), rel=1e-9)


def test_one_outlier_does_not_make_training_diverge() -> None:
    x = X.clone()
    x[7] *= 1e4
    net = lnn.automatic(lnn.LiftedNetwork.mlp([6, 30, 3], activation="fenchel_relu"), x, LABELS)
    fit = lnn.MiniBatch(passes=20, seed=3).run(net, x, LABELS)
    assert fit.history[-1].halved <= 2
    assert all(bool(w.isfinite().all()) for w, _ in fit.weights)


def test_divergence_is_detected_rolled_back_and_reported() -> None:
    fit = lnn.MiniBatch(passes=3, step=200.0, refresh=1).run(network(), X, LABELS)
    assert fit.history[-1].halved > 0
    assert "halved" in fit.result
    assert all(bool(w.isfinite().all()) for w, _ in fit.weights)


def test_a_run_that_diverges_at_every_step_ends_with_its_last_good_weights() -> None:
    fit = lnn.MiniBatch(passes=3, step=1e12, refresh=1).run(network(), X, LABELS)
    assert fit.status == "diverged"
    assert "last good" in fit.result
    assert "give a smaller step" in fit.warnings[0]
    start = lnn.MiniBatch(passes=1, step=1e-30).run(network(), X, LABELS)
    assert all(torch.allclose(a.w, b.w) for a, b in zip(fit.weights, start.weights, strict=True))


@pytest.mark.parametrize("loaded", [False, True])
def test_constant_inputs_train_to_the_class_frequencies(loaded: bool) -> None:
    x, y = torch.full((300, 3), 0.3), torch.arange(300) % 3
    data: tuple[Any, Any] = ([(x, y)], None) if loaded else (x, y)
    fit = lnn.MiniBatch(passes=2).run(lnn.LiftedNetwork.mlp([3, 4, 3], activation="fenchel_relu"), *data)
    assert fit.history[-1].loss == pytest.approx(np.log(3), rel=1e-2)


def test_a_run_that_ends_in_nan_is_rolled_back() -> None:
    fit = lnn.MiniBatch(passes=1, step=1e12, batch_size=48).run(network(), X, LABELS)
    assert all(bool(w.isfinite().all()) for w, _ in fit.weights)
    assert "halved" in fit.result


def test_zero_weights_can_be_left() -> None:
    net = lnn.LiftedNetwork.mlp([6, 3])
    fit = lnn.MiniBatch(passes=5).run(net, X, LABELS, weights=[(torch.zeros(3, 6), torch.zeros(3))])
    assert fit.history[-1].loss < fit.history[0].loss - 0.05


def test_passes_of_one_step_share_an_objective_and_its_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated every 60 steps, not in each of 100 passes."""
    calls, penalties = [], lnn.LiftedNetwork.penalties

    def counted(self: lnn.LiftedNetwork, weights: Any) -> Any:
        calls.append(weights)
        return penalties(self, weights)

    monkeypatch.setattr(lnn.LiftedNetwork, "penalties", counted)
    fit = lnn.MiniBatch(passes=100, batch_size=40).run(network(), X[:40], LABELS[:40])
    objectives = [record.objective for record in fit.history]
    assert len(set(objectives)) == 2
    assert len(calls) < 10
    assert objectives[60] < objectives[0]


def test_a_few_batches_of_a_loader_are_evaluated_in_every_pass() -> None:
    def batches() -> Any:
        class Endless:
            def __iter__(self) -> Any:
                return iter([(X[i : i + 40], LABELS[i : i + 40]) for i in range(0, 1200, 40)])

        return Endless()

    with torch.no_grad():
        run = Run(lnn.MiniBatch(passes=1), network(), source_of(batches()))
        next(run.passes())
    assert len(run.monitor.evaluations) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"passes": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"step": 0.0}, "step must be positive"),
        ({"step": float("nan")}, "step must be positive"),
        ({"batch_size": 50.0}, "whole number"),
        ({"patience": 0}, "at least 1"),
        ({"refresh": 0}, "at least 1"),
        ({"damping": -1.0}, "damping non-negative"),
        ({"keep": 0.0}, "keep must be in"),
    ],
)
def test_settings_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lnn.MiniBatch(**arguments)


def test_data_are_refused_at_the_door() -> None:
    net = network()
    broken = X.clone()
    broken[5, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        lnn.MiniBatch().run(net, broken, LABELS)
    with pytest.raises(ValueError, match="NaN"):
        lnn.MiniBatch(passes=1).run(net, [(X, LABELS), (broken, LABELS)])
    with pytest.raises(ValueError, match="rows of 6"):
        lnn.MiniBatch().run(net, X[:, :4], LABELS)
    with pytest.raises(ValueError, match="must agree"):
        lnn.MiniBatch().run(net, X, LABELS[:10])
    with pytest.raises(ValueError, match="patience needs validation"):
        lnn.MiniBatch(patience=2).run(net, X, LABELS)
    with pytest.raises(ValueError, match="labels as integers"):
        lnn.MiniBatch().run(net, X, ["a"] * len(X))
    with pytest.raises(ValueError, match=r"pair \(x, y\)"):
        lnn.MiniBatch().run(net, [X])
    with pytest.raises(ValueError, match="no finite curvature"):
        lnn.MiniBatch().run(lnn.LiftedNetwork.mlp([6, 5, 3], activation="leaky_relu"), X, LABELS)


@pytest.mark.slow
def test_a_memory_map_larger_than_the_memory_allowed_trains(tmp_path: Path) -> None:
    """256 MiB of rows, with less than half of that to allocate; the peak does not grow with the rows."""
    script = textwrap.dedent("""
        import resource, sys
        import numpy as np, torch
        import liftednn as lnn
        from liftednn.training.run import Run
        torch.set_num_threads(1)
        rows, path = int(sys.argv[1]), sys.argv[2]
        x = np.memmap(path, np.float32, "r", shape=(rows, 256))
        y = (np.arange(rows) // 7) % 2
        def held(field):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) // 1024
        net = lnn.LiftedNetwork.mlp([256, 8, 2], activation="fenchel_relu")
        lnn.MiniBatch(passes=1).run(lnn.automatic(net, x[:2000], y[:2000]), x[:2000], y[:2000])
        before = held("VmData")
        resource.setrlimit(resource.RLIMIT_DATA, ((before + 120) << 20,) * 2)
        peak, advance = [0], Run._advance
        def watched(self, *args):
            advance(self, *args)
            peak[0] = max(peak[0], held("RssAnon"))
        start = held("RssAnon")
        Run._advance = watched
        fit = lnn.MiniBatch(passes=1, batch_size=500).run(lnn.automatic(net, x, y), x, y)
        print(peak[0] - start, fit.history[-1].steps)
    """)
    path, peaks = tmp_path / "rows.f32", []
    given_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # as it is freed: what is kept varies from run to run
    np.random.default_rng(0).standard_normal((1 << 26), dtype=np.float32).tofile(path)
    for rows in (1 << 16, 1 << 18):
        command = [sys.executable, "-c", script, str(rows), str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, env=given_back)
        assert ran.returncode == 0, ran.stderr
        peak, steps = map(int, ran.stdout.split())
        print(f"{rows} rows, {rows >> 10} MiB: peak {peak} MiB beyond the start")
        peaks.append(peak)
        assert steps == pytest.approx(rows / 500, abs=20)
    assert peaks[1] < 120
    assert peaks[1] < peaks[0] + 30


@pytest.mark.gpu
def test_recorded_steps_on_a_gpu_are_plain_steps() -> None:
    net = network()
    x, y = X.float(), LABELS
    there = lnn.MiniBatch(passes=3).run(net, x.cuda(), y.cuda())
    here = lnn.MiniBatch(passes=3).run(net, x, y)
    for a, b in zip(there.weights, here.weights, strict=True):
        torch.testing.assert_close(a.w.cpu(), b.w, rtol=1e-2, atol=1e-2)
    moved = lnn.MiniBatch(passes=3, device="cuda").run(net, x, y)
    assert moved.weights[0].w.is_cuda
    assert same(moved, there)


@pytest.mark.gpu
@pytest.mark.parametrize("there", [True, False], ids=["gpu", "cpu"])
def test_batches_that_are_read_beside_the_steps_are_the_same(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (X.float().cuda(), LABELS.cuda()) if there else (X.float(), LABELS)
    batches = [(x[start : start + 100].clone(), y[start : start + 100]) for start in range(0, len(x), 100)]
    trainer = lnn.MiniBatch(passes=20, batch_size=100, device="cuda")
    found = trainer.run(network(), batches)
    monkeypatch.setattr("liftednn.training.feed.beside", lambda batches, device: batches)
    assert same(trainer.run(network(), batches), found)
    batches[5][0][3, 0] = math.nan
    with pytest.raises(ValueError, match="x holds NaN or infinity"):
        trainer.run(network(), batches)


def test_ctrl_c_in_a_diverging_pass_gives_the_last_good_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = Run._advance, 0

    def advance(self: Run, *args: Any) -> None:
        nonlocal calls
        calls += 1
        plain(self, *args)
        if calls == 31:
            self.descent.values.fill_(math.nan)
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_advance", advance)
    fit = lnn.MiniBatch(passes=3, batch_size=50).run(network(), X, LABELS)
    assert fit.status == "stopped"
    assert all(bool(part.isfinite().all()) for pair in fit.weights for part in pair)


def test_a_gpu_that_is_not_there_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda:0' needs a GPU"):
        lnn.MiniBatch(device="cuda:0")


def test_the_damping_of_all_layers_is_that_of_the_rows_of_the_moments() -> None:
    """Moments of ten times as many rows: those of a stream, of which this run has a part."""
    moments = 10 * lnn.Moments.of(X, X[:, :0])
    found: list[Any] = [Run(lnn.MiniBatch(), network(), source_of(X, LABELS), moments=each) for each in (None, moments)]
    few, many = ([metric.damping for metric in each.descent.geometries] for each in found)
    assert many == [choices.damping(10 * len(X), X.shape[1])] * len(many)
    assert few == [choices.damping(len(X), X.shape[1])] * len(few)
    assert few != many


def test_a_run_is_freed_without_the_garbage_collector() -> None:
    """It may hold the memory of a CUDA graph, which the next run needs."""
    run = Run(lnn.MiniBatch(passes=2), network(), source_of(X, LABELS))
    assert len(list(run.passes())) == 2
    alive = weakref.ref(run)
    gc.disable()
    try:
        del run
        assert alive() is None
    finally:
        gc.enable()
