"""Files that are complete or do not exist: a file is written in full or not at all, and a damaged one raises an error that says so.

A model or a checkpoint is a safetensors file whose header has three entries: its format, metadata as JSON, and a checksum of metadata and
tensors. Torch is imported with the first tensor that is read or written, not before, since the command line uses this module too.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["beside", "check_writable", "digest", "read_tensors", "rebuilding", "write_tensors"]


def check_writable(path: str | Path) -> None:
    """Refuse a path that no file can be written to; call it before the work, not after."""
    target = _target(path)
    try:
        _part(target).unlink()
    except OSError as error:
        reason = error.strerror or error
        raise PermissionError(f"{path} cannot be written ({reason}): name another file, or another folder") from error


@contextmanager
def beside(path: str | Path) -> Iterator[Path]:
    """A path to write to, beside `path`; renamed to it at the end, removed on failure, so that no half-written file is ever left.

    Where `path` is a link, the file that it points to is written, and the link stays. A file that is replaced keeps its permissions.
    """
    target, part = _target(path), None
    try:
        mode = _mode(target)
        part = _part(target, mode)
        yield part
        if mode is not None:
            part.chmod(mode)
        os.replace(part, target)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}; it is unchanged") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _target(path: str | Path) -> Path:
    """The file that is to be written, once links are followed."""
    _check_ordinary(Path(path))
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent}: make it first, or name another file")
    return target


def _mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced; None where there is none."""
    try:
        return stat.S_IMODE(target.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _part(target: Path, mode: int | None = None) -> Path:
    """A new, empty file beside the target, with a name that no other file has.

    Nobody may read it who may not read the target; its owner may write it, even where the target is read-only. Not by
    tempfile.mkstemp, whose files only their owner may read: to change that, the umask of all threads would have to be changed.
    """
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    part.touch(0o666 if mode is None else mode | stat.S_IWUSR, exist_ok=False)
    return part


def digest(metadata: str, tensors: dict[str, Tensor]) -> str:
    """A checksum of the metadata and of its tensors, their names, dtypes and shapes included; tensors are on the CPU."""
    import torch

    found = hashlib.sha256(metadata.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_tensors(path: str | Path, version: str, metadata: str, tensors: dict[str, Tensor]) -> None:
    """Write metadata (JSON) and tensors, contiguous ones on the CPU, with their checksum."""
    import safetensors.torch

    head = {"format": version, "facts": metadata, "sha256": digest(metadata, tensors)}
    with beside(path) as part:
        part.write_bytes(safetensors.torch.save(tensors, head))


def read_tensors(
    path: str | Path, what: str, cure: str, check: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a file that `write_tensors` wrote.

    what, cure   for a damaged file: what it should have been, and what to do
    check        is given the format before any tensor is read, to refuse a file of another kind
    """
    path = Path(path)
    _check_ordinary(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as stored:
            head: dict[str, str] = stored.metadata() or {}
            check(head.get("format", ""))
            # Copies, since tensors that map the file would change when the file is overwritten.
            tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
        whole = digest(head.get("facts", ""), tensors) == head.get("sha256")
        metadata = json.loads(head["facts"]) if whole else {}
        if not isinstance(metadata, dict):
            raise TypeError("its metadata is not a JSON object")
    except (SafetensorError, UnicodeDecodeError, json.JSONDecodeError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a complete {what} ({error}): {cure}") from error
    if not whole:
        raise ValueError(f"{path} is damaged, its checksum does not agree with what it holds: {cure}")
    return metadata, tensors


@contextmanager
def rebuilding(path: str | Path, cure: str) -> Iterator[None]:
    """Turn any error while objects are built from a file into a ValueError; `cure` says what to do.

    All exceptions, since a manipulated file can make a constructor raise any.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be rebuilt: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path} cannot be rebuilt, since it holds what liftednn never writes ({reason}): {cure}"
        ) from error


def _check_ordinary(path: Path) -> None:
    """Refuse folders, devices and pipes: writing would replace a device by a file, and reading a pipe could block."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file: name one that is")
