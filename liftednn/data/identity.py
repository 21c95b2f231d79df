"""What a run is trained on, as text and checksums: a run resumes from a checkpoint only where all of it is the same.

Arrays are compared by content: dtype, shape and values, whatever their memory layout or device. Arrays above 1 GiB are compared by blocks
spread over them and, where they are memory maps, by the size and the time of the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftednn.data.arrays import as_tensor
from liftednn.data.sources import Loader, Mapped, Memory, Source
from liftednn.moments import Moments

__all__ = ["content", "described", "identify"]

# Bytes up to which an array is read whole, bytes that are read at a time, and blocks that are read of a larger array.
_WHOLE = 1 << 30
_BLOCK = 1 << 22
_SAMPLED = 64


def identify(
    settings: str,
    network: object,
    source: Source,
    validation: tuple[Any, ...] | None,
    fixed: Sequence[tuple[Tensor | None, Tensor | None]],
    weights: Sequence[tuple[Tensor, Tensor]] | None,
    moments: Moments | None,
) -> dict[str, str]:
    """What must agree for a run to resume from a checkpoint, part by part; the parameters are those of `MiniBatch.run`."""
    return {
        "settings": settings,
        "network": described(network),
        **_data(source),
        "validation rows": _contents(validation or ()),
        "fixed weights": _contents(part for pair in fixed for part in pair),
        "start weights": _contents(part for pair in weights or () for part in pair),
        "moments": _contents(() if moments is None else vars(moments).values()),
    }


def _data(source: Source) -> dict[str, str]:
    """The rows, responses and sample weights of a source, part by part. Of an iterable only the lengths are compared."""
    if isinstance(source, Loader):
        known = f"an iterable of {source.rows or 'unknown'} rows in {source.steps(0) or 'unknown'} batches, not compared by content"
        return {"x": known, "y": "in the iterable", "sample weights": "in the iterable"}
    assert isinstance(source, Memory | Mapped)
    kind = "memory-mapped " if isinstance(source, Mapped) else ""  # which gives its rows in another order
    return {
        "number of rows": str(source.rows),
        "x": kind + content(source.x),
        "y": content(source.y),
        "sample weights": content(source.row_weights),
    }


def content(given: Any) -> str:
    """The dtype, shape and checksum of an array."""
    if given is None:
        return "none"
    array = given if isinstance(given, np.ndarray | Tensor) else as_tensor(given, "data")
    name, shape = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch.")), tuple(array.shape)
    return f"{name} {shape}{_file(array)} {_checksum(_blocks(array.reshape(1) if array.ndim == 0 else array))}"


def _contents(parts: Iterable[Any]) -> str:
    """One checksum for several arrays, some of which may be None."""
    all_of = [content(part) for part in parts]
    if set(all_of) <= {"none"}:
        return "none"
    return f"{len(all_of)} arrays {_checksum([np.frombuffer(repr(all_of).encode(), np.uint8)])}"


def described(thing: object) -> str:
    """The repr of an object of dataclasses and, since a repr shortens tensors, a checksum of the tensors in it."""
    tensors = list(_tensors(thing))
    return f"{thing!r}, its tensors {_contents(tensors)}," if tensors else repr(thing)


def _tensors(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif is_dataclass(thing):
        for each in fields(thing):
            yield from _tensors(getattr(thing, each.name))
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from _tensors(part)


def _file(array: NDArray[Any] | Tensor) -> str:
    """For an array that is too large to read whole: a note that says so, with size and time of the file of a memory map."""
    if array.nbytes <= _WHOLE:
        return ""
    name = array.filename if isinstance(array, np.memmap) else None
    if name is None:
        return " compared by samples"
    found = os.stat(name)
    return f" compared by samples, in a file of {found.st_size} bytes changed at {found.st_mtime_ns} ns"


def _blocks(array: NDArray[Any] | Tensor) -> Iterator[NDArray[np.uint8]]:
    """The bytes of an array, block by block; of a large array those of some blocks, the first and the last included."""
    if not array.nbytes:
        return
    rows = max(1, _BLOCK * len(array) // array.nbytes)
    count = -(-len(array) // rows)
    whole = array.nbytes <= _WHOLE or count <= _SAMPLED
    for index in range(count) if whole else np.linspace(0, count - 1, _SAMPLED).astype(int).tolist():
        yield _bytes(array[index * rows : (index + 1) * rows])


def _bytes(block: NDArray[Any] | Tensor) -> NDArray[np.uint8]:
    if isinstance(block, Tensor):
        return block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(block, block.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _checksum(blocks: Iterable[NDArray[np.uint8]]) -> str:
    found = hashlib.sha256()  # which processors have instructions for
    for block in blocks:
        found.update(block.data)
    return found.hexdigest()[:32]
