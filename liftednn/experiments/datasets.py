"""Data sets, from the folder that LIFTEDNN_DATA names or from the repository's own `data`."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Dataset", "folder", "mnist"]

# sha256 of the unpacked files of LeCun, Cortes and Burges.
_MNIST = {
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
}


class Dataset(NamedTuple):
    """Rows and responses, for training and for testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def folder(name: str) -> Path:
    """Where the files of a data set lie; an error that says where they were looked for."""
    given = os.environ.get("LIFTEDNN_DATA")
    places = ([Path(given)] if given else []) + [Path.cwd() / "data", Path(__file__).parents[2] / "data"]
    for place in places:
        if (place / name).is_dir():
            return place / name
    looked = ", ".join(str(place / name) for place in places)
    raise FileNotFoundError(
        f"no folder {name!r} of data found, looked at {looked}: set LIFTEDNN_DATA to the folder that holds it"
    )


def mnist(device: str = "cpu") -> Dataset:
    """MNIST: pixels / 255 as float32, (60000, 784) and (10000, 784), labels 0 to 9."""
    place = folder("mnist")
    files = {name: _unpack(place / f"{name}.gz", digest) for name, digest in _MNIST.items()}
    images = {part: _images(files[f"{part}-images-idx3-ubyte"]) for part in ("train", "t10k")}
    labels = {part: _labels(files[f"{part}-labels-idx1-ubyte"]) for part in ("train", "t10k")}
    return Dataset(*(t.to(device) for t in (images["train"], labels["train"], images["t10k"], labels["t10k"])))


def _unpack(path: Path, digest: str) -> bytes:
    content = gzip.decompress(path.read_bytes())
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} is damaged: its checksum is not that of the original file; fetch it again")
    return content


def _images(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=16).reshape(-1, 784).astype(np.float32) / 255)


def _labels(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=8).astype(np.int64))
