"""Data sets, from the folder that LIFTEDNN_DATA names or from the repository's own `data`.

Every file is checked against the sha256 below before it is used. Inputs are float32 rows; classes are numbered from 0.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "NAMES",
    "Dataset",
    "adult",
    "california",
    "cifar10",
    "content",
    "fashion",
    "folder",
    "friedman",
    "load",
    "mnist",
    "pendigits",
    "regression",
    "small",
    "uci",
]

# sha256 of the unpacked files of LeCun, Cortes and Burges.
_MNIST = {
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
}

# sha256 of the files of the other sets, as they are in their folders.
_SHA256 = {
    "fashion_mnist": {
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    },
    "cifar10": {
        "cifar10_test.npz": "dee7c6178b1181275d0a22d82e67f188b81f1e698171d2d87fe3ef9ecacff863",
        "cifar10_train_1.npz": "3a0696ea92f5bc043c0f7efc7f68c3cfe8f12081a3b1f1463af74535443086e4",
        "cifar10_train_2.npz": "2f4bec62227ee8518d74217dfed71a33b4e6e243fbd99a8bffd203a8b3776b83",
        "cifar10_train_3.npz": "7c641d0d0a49f93b136b4435cb77b30fc562dae2eaaa8ee4b03f00092fd3a77e",
        "cifar10_train_4.npz": "fe5b2a0ec6796585553d4231859c4a3ffe14237353a07dba3cd92d746a8c3fbc",
    },
    "adult": {
        "adult.data.gz": "fb9b6b419c38dd70d75d31f014b7f0905bf76e9625473c593455e31679a93184",
        "adult.test.gz": "101c462579e6bf92f0cab99013750d4c6090315d56dae0d4a64f7ea68e2e3aa5",
    },
    "california_housing": {
        "cal_housing.csv.gz": "4bce8679adfbb1ea776fc931440c9c7fc6348110f75097b893aa47098a3f0d6f",
    },
    "uci_regression": {
        "concrete.npz": "994898cc7956236221c77efccab65397bf3a18581aaabc8fc079b2e80eab4c64",
        "energy.npz": "24320235f193b28ccae891035d30f7b473e5194d26953713d71a9110d4ce4428",
        "kin8nm.npz": "c18925e9adb96d0207f99e3edf78c5bcb18472013315631da1900fa279dc8b0b",
        "naval_propulsion_plant.npz": "e5a94e37230db0efa1313258120e22100176e26cc73f41bd085466d130c56e1e",
        "power_plant.npz": "4d39859c86222484f70842c3fb95f77f05c2eeaebb935f80fdd112db6969a5f9",
        "protein_tertiary_structure.npz": "d9529cf164b71fcf0aa0fb3a98c46b3532cd4d1be8e25bb84c3193a0af9a1046",
        "wine_quality_red.npz": "dba94415bb0a542bc148d2c5a8ff7c6a9effa2b2a7a552103298e72cf87521cd",
        "yacht.npz": "843861accc9f695ebb5ef8442db260365d23fd79f728926f20f084116e62b302",
    },
    "sequences": {
        "pendigits.npz": "4b04ae071014401e5e27043e44d64da7144da92f90e3b26d23146fafe1765332",
    },
}

# Columns of the Adult table; the others hold words, the last one is the response.
_ADULT_NUMBERS = [0, 2, 4, 10, 11, 12]
_ADULT_WORDS = [1, 3, 5, 6, 7, 8, 9, 13]


class Dataset(NamedTuple):
    """Rows and responses, for training and for testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def folder(name: str) -> Path:
    """Where the files of a data set are; an error that says where they were looked for."""
    given = os.environ.get("LIFTEDNN_DATA")
    if given and not Path(given).is_dir():
        raise FileNotFoundError(
            f"LIFTEDNN_DATA is {given}, which is no folder: name the one that holds the data, or unset it"
        )
    places = ([Path(given)] if given else []) + [Path.cwd() / "data", Path(__file__).parents[1] / "data"]
    for place in places:
        if (place / name).is_dir():
            return place / name
    looked = ", ".join(str(place / name) for place in places)
    raise FileNotFoundError(
        f"no folder {name!r} of data found, looked at {looked}: set LIFTEDNN_DATA to the folder that holds it"
    )


def load(name: str, device: str = "cpu") -> Dataset:
    """A data set by one of `NAMES`, with its first split where it has several."""
    if name not in _LOADERS:
        raise ValueError(f"no data set {name!r}, the names are: {', '.join(NAMES)}")
    return _on(device, _LOADERS[name]())


def small(data: Dataset, rows: int, columns: int = 50) -> Dataset:
    """The first rows, and columns from the middle, where an image has its ink: for quick runs."""
    first = (data.x.shape[1] - columns) // 2
    part = slice(first, first + columns)
    return Dataset(data.x[:rows, part], data.y[:rows], data.x_test[:, part], data.y_test)


def mnist(device: str = "cpu") -> Dataset:
    """MNIST: pixels / 255 as float32, (60000, 784) and (10000, 784), labels 0 to 9."""
    return _on(device, _mnist())


def fashion(device: str = "cpu") -> Dataset:
    """Fashion-MNIST: pixels / 255 as float32, (60000, 784) and (10000, 784), labels 0 to 9."""
    return _on(device, _idx({name: gzip.decompress(_content("fashion_mnist", f"{name}.gz")) for name in _MNIST}))


def cifar10(device: str = "cpu") -> Dataset:
    """CIFAR-10 without its fifth batch: pixels / 255 as float32, (40000, 3072) and (10000, 3072), labels 0 to 9.

    The columns are ordered by channel (red, green, blue), row and column.
    """
    train = [_cifar_batch(f"train_{k}") for k in range(1, 5)]
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    images_test, labels_test = _cifar_batch("test")
    return _on(device, Dataset(_pixels(images), _labels(labels), _pixels(images_test), _labels(labels_test)))


def adult() -> Dataset:
    """Adult: (32561, 108) and (16281, 108), label 1 for an income above 50K.

    First the 6 columns of numbers, standardised, then an indicator for each word that a column holds in the train part, the
    words in sorted order. A missing word, `?`, is a word like any other; one that only the test part holds gives zeros.
    """
    train, test = _adult_table("adult.data.gz"), _adult_table("adult.test.gz")
    numbers = _standardised(train[:, _ADULT_NUMBERS].astype(np.float64), test[:, _ADULT_NUMBERS].astype(np.float64))
    words = [_one_hot(part[:, _ADULT_WORDS], train[:, _ADULT_WORDS]) for part in (train, test)]
    x, x_test = (torch.cat(pair, 1) for pair in zip(numbers, words, strict=True))
    y, y_test = (_labels(np.char.startswith(part[:, -1], ">50K")) for part in (train, test))
    return Dataset(x, y, x_test, y_test)


def pendigits() -> Dataset:
    """Pen-based digits: 8 pen positions (x, y), standardised, (7494, 16) and (3498, 16), labels 0 to 9."""
    file = _arrays("sequences", "pendigits.npz")
    rows = (file[part].reshape(-1, 16).astype(np.float64) for part in ("x_train", "x_test"))
    x, x_test = _standardised(*rows)
    return Dataset(x, _labels(file["y_train"]), x_test, _labels(file["y_test"]))


def california(seed: int = 0) -> Dataset:
    """California housing: (16512, 8) and (4128, 8), standardised; y, the median value of a house in 100,000 dollars, (n,).

    The columns are MedInc, HouseAge, AveRooms, AveBedrms, Population, AveOccup, Latitude and Longitude.
    """
    text = gzip.decompress(_content("california_housing", "cal_housing.csv.gz"))
    table = np.loadtxt(BytesIO(text), delimiter=",", skiprows=1)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    averages = rooms / households, bedrooms / households, population / households
    x = np.stack([income, age, averages[0], averages[1], population, averages[2], latitude, longitude], 1)
    order = np.random.default_rng(seed).permutation(len(x))
    return _regression(x, value / 100_000, order[len(x) // 5 :], order[: len(x) // 5])


def uci(name: str, split: int = 0) -> Dataset:
    """A UCI regression set with one of its standard splits: x standardised, (n, d); y in its own units, (n,)."""
    if name not in _UCI:
        raise ValueError(f"no UCI set {name!r}, the names are: {', '.join(_UCI)}")
    file = _arrays("uci_regression", f"{name}.npz")
    splits = file["test_index"]
    if not 0 <= split < len(splits):
        raise ValueError(f"{name} has the splits 0 to {len(splits) - 1}, got {split}")
    train = np.setdiff1d(np.arange(len(file["x"])), splits[split])
    return _regression(file["x"], file["y"], train, splits[split])


def friedman(seed: int = 0) -> Dataset:
    """Friedman's first problem, generated: (160, 10) and (40, 10), for runs that must not need a file."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(200, noise=1.0, random_state=seed)
    return _regression(x, y, np.arange(160), np.arange(160, 200))


def regression(name: str, seed: int) -> Dataset:
    """A set with a real response, with another split for each seed: california, friedman or a UCI set, with or without its uci/."""
    known = {"california": california, "friedman": friedman}
    return known[name](seed) if name in known else uci(name.removeprefix("uci/"), seed)


_UCI = [file.removesuffix(".npz") for file in _SHA256["uci_regression"]]
_LOADERS: dict[str, Callable[[], Dataset]] = {
    "mnist": mnist,
    "fashion": fashion,
    "cifar10": cifar10,
    "adult": adult,
    "pendigits": pendigits,
    "california": california,
    **{f"uci/{name}": partial(uci, name) for name in _UCI},
}
NAMES = tuple(_LOADERS)


def _mnist() -> Dataset:
    place = folder("mnist")
    return _idx({name: _unpacked(place / f"{name}.gz", digest) for name, digest in _MNIST.items()})


def _on(device: str, data: Dataset) -> Dataset:
    return Dataset(*(part.to(device) for part in data))


def content(path: Path, digest: str) -> bytes:
    """What a file holds, checked against its sha256."""
    return _checked(path, _bytes(path), digest)


def _content(place: str, file: str) -> bytes:
    return content(folder(place) / file, _SHA256[place][file])


def _unpacked(path: Path, digest: str) -> bytes:
    """For files that anyone may have packed again: the checksum is that of what is inside."""
    packed = _bytes(path)
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: it cannot be unpacked; fetch it again") from error
    return _checked(path, content, digest)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path.name!r} in {path.parent}: put it there or set LIFTEDNN_DATA")
    return path.read_bytes()


def _checked(path: Path, content: bytes, digest: str) -> bytes:
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} is damaged: its checksum is not that of the original file; fetch it again")
    return content


def _arrays(place: str, file: str) -> dict[str, NDArray[Any]]:
    with np.load(BytesIO(_content(place, file))) as arrays:
        return dict(arrays)


def _idx(files: dict[str, bytes]) -> Dataset:
    """The four files of MNIST's format: 16 bytes, then images of 28 x 28; 8 bytes, then labels."""
    tensors = []
    for part in ("train", "t10k"):
        images = np.frombuffer(files[f"{part}-images-idx3-ubyte"], np.uint8, offset=16)
        labels = np.frombuffer(files[f"{part}-labels-idx1-ubyte"], np.uint8, offset=8)
        tensors += [_pixels(images.reshape(-1, 784)), _labels(labels)]
    return Dataset(*tensors)


def _cifar_batch(part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32), kept as differences along rows and columns and, for red and blue, from green, modulo 256."""
    file = _arrays("cifar10", f"cifar10_{part}.npz")
    images = np.cumsum(np.cumsum(file["delta"], axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    images[:, [0, 2]] += images[:, [1]]
    return images, file["y"]


def _adult_table(file: str) -> NDArray[np.str_]:
    lines = gzip.decompress(_content("adult", file)).decode().splitlines()
    return np.array([line.split(", ") for line in lines if line])


def _one_hot(table: NDArray[np.str_], train: NDArray[np.str_]) -> Tensor:
    """Indicators of the words that each column holds in `train`, (n, number of words over all columns)."""
    columns = [table[:, [k]] == np.unique(train[:, k]) for k in range(train.shape[1])]
    return torch.from_numpy(np.concatenate(columns, 1).astype(np.float32))


def _regression(x: NDArray[np.float64], y: NDArray[np.float64], train: NDArray[Any], test: NDArray[Any]) -> Dataset:
    rows, rows_test = _standardised(x[train], x[test])
    targets, targets_test = (torch.from_numpy(y[part].astype(np.float32)) for part in (train, test))
    return Dataset(rows, targets, rows_test, targets_test)


def _standardised(train: NDArray[np.float64], test: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Both less the mean and over the deviation of `train`; a column that is constant there gives 0."""
    scale = np.where(np.ptp(train, axis=0) > 0, train.std(axis=0), np.inf)
    rows, rows_test = ((part - train.mean(axis=0)) / scale for part in (train, test))
    return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(rows_test.astype(np.float32))


def _pixels(images: NDArray[np.uint8]) -> Tensor:
    pixels = images.reshape(len(images), -1).astype(np.float32)
    pixels /= 255
    return torch.from_numpy(pixels)


def _labels(labels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))
