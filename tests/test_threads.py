"""How many threads there are changes nothing in small runs."""

import math
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import Any, cast

import pytest
import torch

import liftednn as lnn
from liftednn.runtime import threads
from liftednn.runtime.process import Setting
from liftednn.runtime.threads import one_thread
from liftednn.training import choices
from liftednn.training.descent import Descent


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_runs_agree_bit_by_bit_with_any_number_of_threads(dtype: torch.dtype) -> None:
    x = torch.randn(3000, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        network = lnn.automatic(lnn.LiftedNetwork.mlp([60, 100, 2], "fenchel_relu", "softmax"), x, y)
        found.append(lnn.MiniBatch(passes=1).run(network, x, y).weights)
        assert torch.get_num_threads() == count
    for other in found[1:]:
        assert all(
            torch.equal(a, b)
            for pair, like in zip(found[0], other, strict=True)
            for a, b in zip(pair, like, strict=True)
        )


def test_large_runs_keep_their_threads() -> None:
    network = lnn.LiftedNetwork.mlp([784, 300, 10])
    assert not choices.small(network, 500)
    assert choices.small(lnn.LiftedNetwork.mlp([50, 100, 2]), 500)


@pytest.mark.parametrize("arm", [False, True])
def test_steps_of_dense_networks_do_without_onednn_on_arm(arm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_ARM", arm)
    library: Any = torch.backends.mkldnn
    before = library.enabled
    assert threads.without_onednn(lambda: library.enabled)() == (before and not arm)
    assert library.enabled == before


@pytest.mark.parametrize(
    ("shape", "layers", "more", "without"),
    [
        ((1, 6, 6), [3, "avgpool", ("dense", 4)], {}, True),
        ((1, 6, 6), [3], {"stride": 2}, False),
        ((2, 6, 6), [4], {"groups": 2}, False),
        ((1, 6, 6), [3], {"dilation": 2}, False),
        ((1, 36), [3], {}, False),
    ],
)
def test_on_arm_only_plain_convolutions_of_images_do_without_onednn(
    shape: tuple[int, ...], layers: list[Any], more: dict[str, int], without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_ARM", True)
    library, seen = cast(Any, torch.backends.mkldnn), []
    net = lnn.LiftedNetwork.cnn(shape, layers, 2, "softplus")
    if more:
        first: Any = replace(cast(Any, net.layers[0].operator), **more)
        head = lnn.operators.Dense(first.out_width, 2)
        net = lnn.LiftedNetwork([replace(net.layers[0], operator=first), replace(net.layers[-1], operator=head)])
    before, step = library.enabled, Descent.step

    def watched(*args: Any) -> Any:
        seen.append(library.enabled)
        return step(*args)

    monkeypatch.setattr(choices, "small", lambda *_: False)
    monkeypatch.setattr(Descent, "step", watched)
    lnn.MiniBatch(passes=1, batch_size=10).run(net, torch.randn(20, math.prod(shape)), torch.arange(20) % 2)
    assert seen == [before and not without] * 2
    assert library.enabled == before


@pytest.mark.parametrize("arm", [False, True])
def test_on_arm_small_runs_do_without_onednn(arm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_ARM", arm)
    library: Any = torch.backends.mkldnn
    before = library.enabled
    with one_thread(small=True):
        assert library.enabled == (before and not arm)
    assert library.enabled == before


def test_threads_come_back_after_an_error() -> None:
    torch.set_num_threads(2)

    def fail() -> None:
        with one_thread(small=True):
            assert torch.get_num_threads() == 1
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert torch.get_num_threads() == 2


def test_runs_at_the_same_time_leave_the_settings_of_torch_as_they_were() -> None:
    x, y = torch.randn(200, 5), torch.randint(3, (200,))
    network, library = lnn.LiftedNetwork.mlp([5, 20, 3], activation="fenchel_relu"), torch.backends.mkldnn
    before, used = torch.get_num_threads(), library.enabled  # type: ignore[attr-defined]
    torch.set_num_threads(2)
    try:
        for _ in range(3):
            runs = [Thread(target=lnn.MiniBatch(passes=2 + k).run, args=(network, x, y)) for k in range(3)]
            for run in runs:
                run.start()
            for run in runs:
                run.join()
            assert torch.get_num_threads() == 2
            assert library.enabled == used  # type: ignore[attr-defined]
    finally:
        torch.set_num_threads(before)


def test_the_first_to_begin_keeps_a_setting_and_the_last_to_end_restores_it() -> None:
    held = {"value": "own"}
    setting = Setting(lambda: held["value"], lambda value: held.update(value=value), "needed")
    with setting.changed():
        first = setting.changed()
        first.__enter__()
        assert held["value"] == "needed"
    assert held["value"] == "needed"  # somebody is still inside
    first.__exit__(None, None, None)
    assert held["value"] == "own"


def test_one_thread_within_one_thread_ends_with_the_outer_one() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread(small=True):
            with one_thread(small=True):
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
