"""Checkpoints: what is saved comes back, a crash leaves a complete file, and files of other runs or other programs are refused."""

from __future__ import annotations

import math
import os
import random
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from liftednn.runtime.files import digest
from liftednn.training.checkpoint import Checkpoint

TENSORS = {
    "float32": torch.tensor([1.5, -0.0, math.inf, 1e-42]),
    "float64": torch.linspace(0, 1, 12, dtype=torch.float64).reshape(3, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "long": torch.tensor([[2**62, -1]]),
    "number": torch.tensor(math.pi, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
}
THESE = {"settings": "these", "network": "this", "x": "float32 (3, 4) 12ab", "y": "int64 (3,) 34cd"}
FACTS: dict[str, Any] = {
    "identity": THESE,
    "taken": 17,
    "first_loss": math.inf,
    "seconds": 0.1 + 0.2,
    "history": [{"gaps": [1.0, 2.0], "loss": None}],
}


def saved(path: Path, tensors: dict[str, Tensor] = TENSORS, metadata: dict[str, Any] = FACTS) -> Checkpoint:
    checkpoint = Checkpoint(path)
    checkpoint.save(tensors, metadata)
    return checkpoint


def loaded(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    found = Checkpoint(path).load(THESE)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_saved_comes_back_to_the_last_bit(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    saved(path)
    tensors, metadata = loaded(kind(path))
    assert metadata == FACTS
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert math.copysign(1, tensors["float32"][1]) == -1


def test_tensors_that_carry_gradients_are_saved_as_their_values(tmp_path: Path) -> None:
    path = tmp_path / "run"
    saved(path, {"w": torch.tensor([1.0, 2.0], requires_grad=True) * 2})
    w = loaded(path)[0]["w"]
    assert w.tolist() == [2.0, 4.0]
    assert not w.requires_grad


def test_what_was_loaded_stays_when_the_file_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "run"
    saved(path)
    tensors, _ = loaded(path)
    saved(path, {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()})
    assert torch.equal(tensors["float64"], TENSORS["float64"])
    assert not loaded(path)[0]["float64"].any()


def test_without_a_file_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "none").load(THESE) is None


def test_other_parts_are_refused_and_named(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "run")
    with pytest.raises(ValueError, match=r"a run with other settings: (.|\n)*there: these\n  here:  those$"):
        checkpoint.load(THESE | {"settings": "those"})
    with pytest.raises(ValueError, match=r"with other x, y: give the same as there, or delete it to start again\nx\n"):
        checkpoint.load(THESE | {"x": "float32 (3, 4) 12ac", "y": "none"})
    with pytest.raises(ValueError, match="with other validation rows, y: "):
        checkpoint.load({name: THESE[name] for name in ("settings", "network", "x")} | {"validation rows": "none"})


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    checkpoint = saved(path)
    whole = path.read_bytes()
    for length in (0, 4, 8, 20, len(whole) // 2, len(whole) - 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"is not a complete checkpoint .*delete it to start again"):
            checkpoint.load(THESE)
    path.write_bytes(whole)
    assert checkpoint.load(THESE) is not None


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"facts": '{"settings": "these"}'}])
def test_a_safetensors_file_of_another_program_is_refused(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model", metadata)
    with pytest.raises(ValueError, match="model is not a checkpoint of liftednn: name another file"):
        Checkpoint(tmp_path / "model").load(THESE)


@pytest.mark.parametrize("metadata", ["[", "{}", "[]", '{"identity": "these"}', "[" * 100_000, None])
def test_invalid_metadata_is_refused(metadata: str | None, tmp_path: Path) -> None:
    head = {"format": "liftednn-checkpoint-10", "sha256": digest(metadata or "", {})}
    save_file({}, tmp_path / "run", head if metadata is None else head | {"facts": metadata})
    with pytest.raises(ValueError, match=r"is not a complete checkpoint .*delete it to start again"):
        Checkpoint(tmp_path / "run").load(THESE)


@pytest.mark.parametrize(("version", "age"), [(9, "an older"), (11, "a newer")])
def test_a_checkpoint_of_another_version_is_refused(version: int, age: str, tmp_path: Path) -> None:
    head = {"format": f"liftednn-checkpoint-{version}", "facts": '{"settings": "these"}'}
    save_file({"w": torch.ones(2)}, tmp_path / "run", head)
    with pytest.raises(ValueError, match=rf"was written by {age} liftednn .*reads 10\).*delete it to start again"):
        Checkpoint(tmp_path / "run").load(THESE)


@pytest.mark.parametrize("damage", ["bit", "byte"])
def test_damage_anywhere_is_noticed(damage: str, tmp_path: Path) -> None:
    path, draw = tmp_path / "run", random.Random(0)
    checkpoint = saved(path)
    whole = path.read_bytes()
    for place in [*range(8), *draw.sample(range(8, len(whole)), 120), len(whole) - 1]:
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8) if damage == "bit" else draw.randrange(1, 256)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"run (is|was|belongs)"):
            checkpoint.load(THESE)


def test_a_folder_and_a_pipe_are_refused_and_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (("folder", "is a folder: name a file in it"), ("pipe", "pipe is not a regular file")):
        with pytest.raises(ValueError, match=sentence):
            Checkpoint(tmp_path / name).load(THESE)
        with pytest.raises(ValueError, match=sentence):
            saved(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_a_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    saved(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o440, 0o664, 0o777], ids=oct)
def test_a_file_that_is_written_anew_keeps_its_permissions(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "run", []
    saved(path)
    path.chmod(mode)
    plain = Path.write_bytes

    def watched(self: Path, content: Any) -> int:
        seen.append(stat.S_IMODE(self.stat().st_mode))
        return plain(self, content)

    monkeypatch.setattr(Path, "write_bytes", watched)
    saved(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert len(seen) == 1
    assert seen[0] & ~mode & ~stat.S_IWUSR == 0  # nor was it open to more people while it was written


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("to be or not to be, that is the question")
    with pytest.raises(ValueError, match=r"notes\.txt is not a complete checkpoint"):
        Checkpoint(tmp_path / "notes.txt").load(THESE)


def cut_before_renaming(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no power")

    monkeypatch.setattr(os, "replace", fail)


def cut_while_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError("no power")

    monkeypatch.setattr(Path, "write_bytes", fail)


@pytest.mark.parametrize("cut", [cut_before_renaming, cut_while_writing])
def test_an_interrupted_write_leaves_the_old_file_complete(cut: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    checkpoint = saved(path)
    old = path.read_bytes()
    newer = {name: tensor + 1 for name, tensor in TENSORS.items()}
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        with pytest.raises(OSError, match="no power"):
            checkpoint.save(newer, FACTS | {"taken": 18})
    assert os.listdir(tmp_path) == ["run"]  # and nothing beside it
    assert path.read_bytes() == old
    assert loaded(path)[1] == FACTS
    (tmp_path / "run.part").write_text("somebody's own")  # is no hindrance, and stays
    checkpoint.save(newer, FACTS | {"taken": 18})
    assert loaded(path)[1]["taken"] == 18
    assert torch.equal(loaded(path)[0]["float64"], newer["float64"])
    assert sorted(os.listdir(tmp_path)) == ["run", "run.part"]
    assert (tmp_path / "run.part").read_text() == "somebody's own"


def test_an_interrupted_first_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_before_renaming(monkeypatch)
    with pytest.raises(OSError, match="no power"):
        saved(tmp_path / "run")
    assert Checkpoint(tmp_path / "run").load(THESE) is None


def test_it_is_due_when_its_seconds_have_passed_since_the_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    checkpoint = Checkpoint(tmp_path / "run", seconds=10, _last=100.0)

    def due_at(now: float) -> bool:
        clock["now"] = now
        return checkpoint.due

    assert [due_at(now) for now in (100.0, 109.9, 110.0, 125.0)] == [False, False, True, True]
    checkpoint.save(TENSORS, FACTS)
    assert [due_at(now) for now in (125.0, 134.9, 135.0)] == [False, False, True]
