import shutil
from pathlib import Path

import pytest

from liftednn.experiments import datasets

DATA = Path(__file__).parents[1] / "data"


def test_mnist_is_what_it_should_be() -> None:
    data = datasets.mnist()
    assert (data.x.shape, data.x_test.shape) == ((60000, 784), (10000, 784))
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_the_variable_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    assert datasets.folder("mnist") == tmp_path / "mnist"


def test_a_missing_folder_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFTEDNN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set LIFTEDNN_DATA to the folder"):
        datasets.folder("no-such-set")


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATA / "mnist", tmp_path / "mnist")
    labels, other = tmp_path / "mnist/t10k-labels-idx1-ubyte.gz", tmp_path / "mnist/train-labels-idx1-ubyte.gz"
    shutil.copyfile(other, labels)
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is damaged"):
        datasets.mnist()
