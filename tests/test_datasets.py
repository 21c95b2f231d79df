"""The loaders on small files made here, in the formats of the originals, and on the originals where they are at hand."""

import gzip
import hashlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import datasets
from experiments.datasets import Dataset

DATA = Path(__file__).parents[1] / "data"
UCI = {
    "concrete": (1030, 8, 20),
    "energy": (768, 8, 20),
    "kin8nm": (8192, 8, 20),
    "naval_propulsion_plant": (11934, 16, 20),
    "power_plant": (9568, 4, 20),
    "protein_tertiary_structure": (45730, 9, 5),
    "wine_quality_red": (1599, 11, 20),
    "yacht": (308, 6, 20),
}
CIFAR_MD5 = [
    "5dd7e06a14cb22eb9f671a540d1b7c25",
    "5ea93a67294ea407fff1d09f752e9692",
    "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb",
]

Plant = Callable[[str, str, bytes], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Puts a file into a folder of data of its own and lets its checksum be the right one."""
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))

    def put(place: str, file: str, content: bytes) -> None:
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / file).write_bytes(content)
        monkeypatch.setitem(datasets._SHA256[place], file, hashlib.sha256(content).hexdigest())

    return put


def need(place: str) -> None:
    try:
        datasets.folder(place)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def check_shapes(data: Dataset, train: int, test: int, columns: int) -> None:
    assert (data.x.shape, data.x_test.shape) == ((train, columns), (test, columns))
    assert (data.y.shape, data.y_test.shape) == ((train,), (test,))
    assert data.x.dtype == data.x_test.dtype == torch.float32
    assert data.y.dtype == data.y_test.dtype
    assert all(bool(part.isfinite().all()) for part in data)


def check_standardised(x: torch.Tensor, constant: int = 0) -> None:
    deviation = x.double().std(0, correction=0)
    assert float(x.double().mean(0).abs().max()) < 1e-5
    assert int((deviation == 0).sum()) == constant
    torch.testing.assert_close(deviation[deviation > 0], torch.ones(x.shape[1] - constant).double())


def test_mnist_is_what_it_should_be() -> None:
    data = datasets.mnist()
    check_shapes(data, 60000, 10000, 784)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_fashion_is_what_it_should_be() -> None:
    need("fashion_mnist")
    data = datasets.fashion()
    check_shapes(data, 60000, 10000, 784)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert (data.y.bincount().tolist(), data.y_test.bincount().tolist()) == ([6000] * 10, [1000] * 10)


def test_cifar10_gives_back_the_original_binary_files() -> None:
    need("cifar10")
    data = datasets.cifar10()
    check_shapes(data, 40000, 10000, 3072)
    assert data.y_test.bincount().tolist() == [1000] * 10

    def md5(x: torch.Tensor, y: torch.Tensor) -> str:
        rows = np.concatenate([y[:, None].numpy().astype(np.uint8), (x * 255).round().numpy().astype(np.uint8)], 1)
        return hashlib.md5(rows.tobytes()).hexdigest()

    parts = zip(data.x.split(10000), data.y.split(10000), strict=True)
    assert [md5(x, y) for x, y in parts] == CIFAR_MD5
    assert md5(data.x_test, data.y_test) == "803d5f7f4d78ea53de84dbe85f74fb6d"


def test_adult_is_what_it_should_be() -> None:
    need("adult")
    data = datasets.adult()
    check_shapes(data, 32561, 16281, 108)
    check_standardised(data.x[:, :6])
    assert data.x[:, 6:].unique().tolist() == [0.0, 1.0]
    assert bool((data.x[:, 6:].sum(1) == 8).all())
    assert (data.y.bincount().tolist(), data.y_test.bincount().tolist()) == ([24720, 7841], [12435, 3846])


def test_pendigits_is_what_it_should_be() -> None:
    need("sequences")
    data = datasets.pendigits()
    check_shapes(data, 7494, 3498, 16)
    check_standardised(data.x)
    assert len(data.y.bincount()) == len(data.y_test.bincount()) == 10


def test_california_is_what_it_should_be() -> None:
    need("california_housing")
    data = datasets.california()
    check_shapes(data, 16512, 4128, 8)
    check_standardised(data.x)
    assert float(data.y.max()) == pytest.approx(5.00001)
    assert float(torch.cat([data.y, data.y_test]).double().mean()) == pytest.approx(2.068558, abs=1e-5)


@pytest.mark.parametrize("name", UCI)
def test_a_uci_set_is_cut_into_two_parts_without_rows_in_common(name: str) -> None:
    need("uci_regression")
    n, columns, splits = UCI[name]
    with np.load(datasets.folder("uci_regression") / f"{name}.npz") as file:
        y, test_index = file["y"].astype(np.float32), file["test_index"]
    data = datasets.uci(name, splits - 1)
    check_shapes(data, n - test_index.shape[1], test_index.shape[1], columns)
    check_standardised(data.x, constant=2 if name == "naval_propulsion_plant" else 0)
    assert np.array_equal(data.y_test.numpy(), y[test_index[-1]])
    assert np.array_equal(torch.cat([data.y, data.y_test]).sort().values.numpy(), np.sort(y))
    with pytest.raises(ValueError, match=f"has the splits 0 to {splits - 1}, got {splits}"):
        datasets.uci(name, splits)


def test_fashion_reads_images_and_labels_behind_their_headers(plant: Plant) -> None:
    for part, n in (("train", 3), ("t10k", 2)):
        plant("fashion_mnist", f"{part}-images-idx3-ubyte.gz", gzip.compress(bytes(16) + b"\xff" * 784 * n))
        plant("fashion_mnist", f"{part}-labels-idx1-ubyte.gz", gzip.compress(bytes(8) + bytes(range(n))))
    data = datasets.load("fashion")
    check_shapes(data, 3, 2, 784)
    assert bool((data.x == 1).all())
    assert data.y.tolist() == [0, 1, 2]


def test_cifar10_adds_up_the_differences(plant: Plant) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 3, 32, 32), dtype=np.uint8)
    delta = images.copy()
    delta[:, :, [0, 2]] -= images[:, :, [1]]
    for axis in (3, 4):
        delta = np.diff(delta, axis=axis, prepend=np.uint8(0))
    for part, k in zip(("train_1", "train_2", "train_3", "train_4", "test"), range(5), strict=True):
        plant("cifar10", f"cifar10_{part}.npz", npz(delta=delta[k], y=np.array([k, 9], np.uint8)))
    data = datasets.load("cifar10")
    check_shapes(data, 8, 2, 3072)
    assert np.array_equal((data.x * 255).round().numpy(), images[:4].reshape(8, -1))
    assert np.array_equal((data.x_test * 255).round().numpy(), images[4].reshape(2, -1))
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 9, 1, 9, 2, 9, 3, 9], [4, 9])


def test_a_category_of_adult_that_only_the_test_part_has_gives_zeros(plant: Plant) -> None:
    line = "{}, {}, 5, HS-grad, 9, Divorced, Sales, Wife, White, {}, 7, 0, 40, {}, {}\n"
    train = line.format(20, "State-gov", "Male", "Cuba", "<=50K") + line.format(40, "?", "Female", "Cuba", ">50K")
    test = line.format(50, "?", "Male", "Peru", ">50K.") + line.format(30, "Private", "Male", "Cuba", "<=50K.")
    plant("adult", "adult.data.gz", gzip.compress((train + "\n").encode()))
    plant("adult", "adult.test.gz", gzip.compress(test.encode()))
    data = datasets.load("adult")
    same = [1.0] * 5  # education, marital status, occupation, relationship and race, one word each
    assert data.x[:, 0].tolist() == [-1.0, 1.0]
    assert data.x_test[:, 0].tolist() == [2.0, 0.0]
    assert not data.x[:, 1:6].any()
    assert data.x[:, 6:].tolist() == [[0, 1, *same, 0, 1, 1], [1, 0, *same, 1, 0, 1]]
    assert data.x_test[:, 6:].tolist() == [[1, 0, *same, 0, 1, 0], [0, 0, *same, 0, 1, 1]]
    assert (data.y.tolist(), data.y_test.tolist()) == ([0, 1], [1, 0])


def test_pendigits_is_flattened_and_standardised_by_the_train_part(plant: Plant) -> None:
    x = np.arange(64, dtype=np.uint8).reshape(4, 8, 2)
    y = np.array([3, 1, 4, 1], np.uint8)
    plant("sequences", "pendigits.npz", npz(x_train=x[:2], y_train=y[:2], x_test=x[2:], y_test=y[2:]))
    data = datasets.load("pendigits")
    assert data.x.tolist() == [[-1.0] * 16, [1.0] * 16]
    assert data.x_test.tolist() == [[3.0] * 16, [5.0] * 16]
    assert (data.y.tolist(), data.y_test.tolist()) == ([3, 1], [4, 1])


def test_california_has_the_columns_of_scikit_learn(plant: Plant) -> None:
    table = np.random.default_rng(0).uniform(1, 100, (10, 9)).round(2)
    text = "a header\n" + "\n".join(",".join(map(str, row)) for row in table)
    plant("california_housing", "cal_housing.csv.gz", gzip.compress(text.encode()))
    data = datasets.load("california")
    check_shapes(data, 8, 2, 8)
    value = {round(float(v) * 1e5, 2): k for k, v in enumerate(table[:, 8] / 1e5)}
    train = [value[round(float(y) * 1e5, 2)] for y in data.y.double()]
    longitude, latitude, age, rooms, bedrooms, population, households, income, _ = table[train].T
    people, space, beds = population / households, rooms / households, bedrooms / households
    expected = np.stack([income, age, space, beds, population, people, latitude, longitude], 1)
    expected = (expected - expected.mean(0)) / expected.std(0)
    np.testing.assert_allclose(data.x.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert data.y.tolist() == datasets.california(seed=0).y.tolist() != datasets.california(seed=1).y.tolist()


def test_a_uci_set_keeps_to_its_split_and_a_constant_column_gives_zeros(plant: Plant) -> None:
    x = np.stack([np.arange(6.0), np.full(6, 0.1)], 1)
    plant(
        "uci_regression", "yacht.npz", npz(x=x, y=10 * np.arange(6.0), test_index=np.array([[5, 0], [1, 2]], np.int32))
    )
    data = datasets.load("uci/yacht")
    assert (data.y.tolist(), data.y_test.tolist()) == ([10.0, 20.0, 30.0, 40.0], [50.0, 0.0])
    assert data.y.dtype == torch.float32
    check_standardised(data.x, constant=1)
    assert not data.x_test[:, 1].any()
    assert datasets.uci("yacht", 1).y.tolist() == [0.0, 30.0, 40.0, 50.0]
    with pytest.raises(ValueError, match="has the splits 0 to 1, got -1"):
        datasets.uci("yacht", -1)


def test_the_environment_variable_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    assert datasets.folder("mnist") == tmp_path / "mnist"


def test_a_missing_folder_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFTEDNN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set LIFTEDNN_DATA to the folder"):
        datasets.folder("no-such-set")


def test_a_variable_that_names_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"LIFTEDNN_DATA is .*nowhere, which is no folder: name the one"):
        datasets.folder("mnist")


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sequences").mkdir()
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no file 'pendigits.npz' in .*sequences: put it there"):
        datasets.pendigits()


def test_the_error_for_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(
        ValueError, match=r"no data set 'svhn', the names are: mnist, fashion, .*uci/concrete, .*uci/yacht"
    ):
        datasets.load("svhn")
    with pytest.raises(ValueError, match=r"no UCI set 'boston', the names are: concrete, .*yacht"):
        datasets.uci("boston")
    assert {name for name in datasets.NAMES if "/" in name} == {f"uci/{name}" for name in UCI}


def test_a_damaged_file_of_mnist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DATA / "mnist", tmp_path / "mnist")
    labels, other = tmp_path / "mnist/t10k-labels-idx1-ubyte.gz", tmp_path / "mnist/train-labels-idx1-ubyte.gz"
    shutil.copyfile(other, labels)
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is damaged: its checksum"):
        datasets.mnist()


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"cut short", mtime=0)[:-4]], ids=["text", "cut"])
def test_a_file_of_mnist_that_cannot_be_unpacked_is_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()
    for name in datasets._MNIST:
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(content)
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is damaged: it cannot be unpacked"):
        datasets.mnist()


@pytest.mark.parametrize("name", [name for name in datasets.NAMES if name != "mnist"])
def test_a_damaged_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, files in datasets._SHA256.items():
        (tmp_path / place).mkdir()
        for file in files:
            (tmp_path / place / file).write_bytes(b"not what it should be")
    monkeypatch.setenv("LIFTEDNN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="is damaged: its checksum"):
        datasets.load(name)
