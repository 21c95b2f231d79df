"""What a checkpoint resumes with: the same settings, network and data by content, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import liftednn as lnn
from liftednn.data import identity
from liftednn.data.identity import content
from liftednn.moments import Moments
from liftednn.runtime.files import read_tensors


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y, WEIGHTS = draw(40, 3), torch.arange(40) % 2, torch.arange(40) / 40 + 0.5
NETWORK, TRAINER = lnn.LiftedNetwork.mlp([3, 4, 2]), lnn.MiniBatch(passes=1)
START = [lnn.Affine(draw(4, 3), draw(4)), lnn.Affine(draw(2, 4), draw(2))]
FIXED = [(None, None), (None, torch.zeros(2))]
MOMENTS = Moments.of(X, X[:, :0])
GIVEN: dict[str, Any] = {
    "x": X,
    "y": Y,
    "sample_weight": WEIGHTS,
    "validation": (X[:9], Y[:9]),
    "fixed": FIXED,
    "weights": START,
    "moments": MOMENTS,
}


def one_changed(given: Tensor) -> Tensor:
    copy = given.clone()
    copy.view(-1)[-1] += 1
    return copy


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "another value": ({"x": one_changed(X)}, "x"),
    "another order of rows": ({"x": X.flip(0)}, "x"),
    "another order of columns": ({"x": X.flip(1)}, "x"),
    "another y": ({"y": 1 - Y}, "y"),
    "y in another order": ({"y": Y.flip(0)}, "y"),
    "other weights": ({"sample_weight": WEIGHTS.flip(0)}, "sample weights"),
    "no weights": ({"sample_weight": None}, "sample weights"),
    "other validation rows": ({"validation": (one_changed(X[:9]), Y[:9])}, "validation rows"),
    "other validation responses": ({"validation": (X[:9], 1 - Y[:9])}, "validation rows"),
    "no validation": ({"validation": None}, "validation rows"),
    "other fixed weights": ({"fixed": [(None, None), (None, torch.ones(2))]}, "fixed weights"),
    "none fixed": ({"fixed": None}, "fixed weights"),
    "other start weights": ({"weights": [START[0], lnn.Affine(START[1].w, draw(2, seed=1))]}, "start weights"),
    "other moments": ({"moments": replace(MOMENTS, xx=one_changed(MOMENTS.xx))}, "moments"),
    "no moments": ({"moments": None}, "moments"),
    "x and y": ({"x": X.flip(0), "y": Y.flip(0)}, "x, y"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "run"
    TRAINER.run(NETWORK, **GIVEN, checkpoint=lnn.Checkpoint(path))
    return path


@pytest.mark.parametrize("case", OTHER)
def test_a_run_on_something_else_is_refused_and_the_part_is_named(case: str, written: Path) -> None:
    change, part = OTHER[case]
    before = written.read_bytes()
    with pytest.raises(ValueError, match=f"belongs to a run with other {part}: give the same as there, or delete it"):
        TRAINER.run(NETWORK, **GIVEN | change, checkpoint=lnn.Checkpoint(written))
    assert written.read_bytes() == before


def test_other_settings_and_another_network_are_named(written: Path) -> None:
    with pytest.raises(ValueError, match="with other settings: "):
        replace(TRAINER, seed=1).run(NETWORK, **GIVEN, checkpoint=lnn.Checkpoint(written))
    with pytest.raises(ValueError, match="with other network: "):
        TRAINER.run(NETWORK.with_lam(2.0), **GIVEN, checkpoint=lnn.Checkpoint(written))


def test_the_same_values_in_another_form_resume(written: Path) -> None:
    same: dict[str, Any] = {"x": np.asfortranarray(X.numpy()), "y": Y.numpy(), "fixed": tuple(FIXED)}
    same |= {"validation": (X.double().float()[:9], Y[:9].tolist()), "weights": [tuple(pair) for pair in START]}
    fit = TRAINER.run(NETWORK, **GIVEN | same, checkpoint=lnn.Checkpoint(written))
    assert len(fit.history) == 1


@pytest.mark.parametrize("lack", ["tensor", "shape", "history"])
def test_a_checkpoint_that_lacks_what_a_run_needs_is_refused(lack: str, written: Path, tmp_path: Path) -> None:
    facts, tensors = read_tensors(written, "", "", lambda _: None)
    if lack == "tensor":
        del tensors["good"]
    elif lack == "shape":
        tensors["good"] = tensors["good"][:-1].clone()
    else:
        del facts["history"]
    checkpoint = lnn.Checkpoint(tmp_path / "run")
    checkpoint.save(tensors, facts)
    with pytest.raises(ValueError, match=r"run cannot be rebuilt, since it holds .*: delete it to start again"):
        TRAINER.run(NETWORK, **GIVEN, checkpoint=checkpoint)


def test_an_iterable_is_identified_by_its_length_only(tmp_path: Path) -> None:
    def loader(rows: int, size: int) -> DataLoader[Any]:
        return DataLoader(TensorDataset(X[:rows], Y[:rows]), batch_size=size, shuffle=True)

    checkpoint = lnn.Checkpoint(tmp_path / "run")
    TRAINER.run(NETWORK, loader(40, 10), checkpoint=checkpoint)
    TRAINER.run(NETWORK, loader(40, 10), checkpoint=checkpoint)
    with pytest.raises(
        ValueError, match=r"other x: (.|\n)*there: an iterable of 40 rows in 4 batches, not compared by"
    ):
        TRAINER.run(NETWORK, loader(40, 20), checkpoint=checkpoint)
    with pytest.raises(ValueError, match="other number of rows, x, y, sample weights: "):
        TRAINER.run(NETWORK, X, Y, checkpoint=checkpoint)


def test_without_a_checkpoint_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "content", None)
    TRAINER.run(NETWORK, **GIVEN)


LAYOUTS: dict[str, Any] = {
    "Fortran order": lambda a: np.asfortranarray(a),
    "a view": lambda a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "a tensor": lambda a: torch.from_numpy(a),
    "a transposed tensor": lambda a: torch.from_numpy(a.T.copy()).T,
    "a tensor with gradients": lambda a: torch.from_numpy(a).requires_grad_(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_content_does_not_depend_on_layout_or_blocks(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: NDArray[Any] = draw(50, 7).numpy()
    expected = content(plain)
    assert content(LAYOUTS[layout](plain)) == expected
    monkeypatch.setattr(identity, "_BLOCK", 60)
    assert content(LAYOUTS[layout](plain)) == expected


@pytest.mark.parametrize(
    "given",
    [X.double(), X.T, X.reshape(-1), X[:0], X[:, :0], X.bfloat16(), torch.tensor(1.0), torch.tensor([1.0]), None, Y, [0, 1]],
    ids=lambda given: content(given)[:20],
)  # fmt: skip
def test_content_differs_for_dtypes_and_shapes(given: Any) -> None:
    assert content(given) == content(given)
    assert content(given) != content(X)
    assert content(torch.tensor(1.0)) != content(torch.tensor([1.0]))


def test_a_large_array_is_compared_by_blocks_and_a_map_by_its_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_WHOLE", 1000)
    monkeypatch.setattr(identity, "_BLOCK", 100)
    monkeypatch.setattr(identity, "_SAMPLED", 5)
    plain = np.arange(1000.0)
    (tmp_path / "x").write_bytes(plain.tobytes())
    mapped = np.memmap(tmp_path / "x", float, "r")
    assert "compared by samples" in content(plain)
    for place, seen in ((0, True), (999, True), (500, True), (300, False)):
        other = plain.copy()
        other[place] = -1
        assert (content(other) != content(plain)) == seen
    before = content(mapped)
    assert f"a file of {plain.nbytes} bytes changed at" in before
    os.utime(tmp_path / "x", ns=(1, 1))
    assert content(mapped) != before


@pytest.mark.gpu
def test_content_is_the_same_on_a_gpu() -> None:
    assert content(X.cuda()) == content(X) == content(X.cuda().T.contiguous().T)
