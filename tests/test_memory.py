"""What cannot fit in memory is refused by an estimate, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import liftednn as lnn
from liftednn.runtime import memory
from liftednn.runtime.memory import check_memory, needed, total

X, Y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
HUGE = [3, 1_000_000, 1_000_000, 2]


def test_a_network_is_described_without_memory_for_its_weights() -> None:
    network = lnn.LiftedNetwork.mlp(HUGE)
    assert network.layers[1].operator.weight_shape == (1_000_000, 1_000_000)


@pytest.mark.parametrize(
    "run",
    [
        lambda network: lnn.MiniBatch().run(network, X, Y),
        lambda network: lnn.BCD().run(network, X, Y),
        lambda network: lnn.automatic(network, X, Y),
    ],
    ids=["MiniBatch", "BCD", "automatic"],
)
def test_what_is_much_too_large_is_refused(run: Callable[[lnn.LiftedNetwork], object]) -> None:
    network = lnn.LiftedNetwork.mlp(HUGE, activation="fenchel_relu")
    with pytest.raises(
        ValueError, match=r"layers of 3-1000000-1000000-2 would need about [\d,]+ GB of memory, and cpu has"
    ):
        run(network)


def test_a_module_of_many_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda device: 10**6)
    module = nn.Sequential(nn.Linear(1000, 2))
    with pytest.raises(
        ValueError, match=r"layers of 1000-2 would need about 0\.04\d* GB of memory, and cpu has 0\.001 GB"
    ):
        lnn.init.lifted_(module, torch.randn(8, 1000), torch.arange(8) % 2)


def test_the_estimate_includes_weights_squares_of_inputs_and_states() -> None:
    assert needed([(2, 9), (5, 2)], 4) == 4 * 6 * (2 * 10 + 5 * 3) + 8 * (2 * (100 + 9) + 3 * 100)
    assert needed([(2, 9), (5, 2)], 8, 49) - needed([(2, 9), (5, 2)], 8) == 8 * 49


def test_a_limit_of_the_group_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = total(torch.device("cpu"))
    assert machine is not None
    for text, found in (("max\n", machine), ("4096\n", 4096), (f"{2**62}\n", machine)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(memory, "_GROUP_LIMIT", tmp_path / "memory.max")
        assert total(torch.device("cpu")) == found
    assert total(torch.device("meta")) is None
    check_memory([(10**9, 10**9)], torch.zeros((), device="meta"))
