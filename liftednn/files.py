"""Files that are whole or not there: what is written appears at once or not at all, and what is damaged is refused in words.

Torch is imported with the first tensor that is read, not before, since the command line looks at places too.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["beside", "check_place", "read_tensors"]


def check_place(path: str | Path) -> None:
    """Refuse a path that no file can be written to: to be asked before the work, not after it."""
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
        raise OSError(f"{path} could not be written: {error.strerror or error}; it is as it was before") from error
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
    """A new, empty file beside the target, of a name that nothing else has: neither the user's own files nor another run's.

    Nobody may read it who may not read the target; its owner may write it, even where the target is read-only. Not by
    tempfile.mkstemp, whose files only their owner may read: to mend that, the umask of all threads would have to change.
    """
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    part.touch(0o666 if mode is None else mode | stat.S_IWUSR, exist_ok=False)
    return part


def read_tensors(
    path: str | Path, what: str, advice: str, check: Callable[[dict[str, str]], None]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Header and tensors of a safetensors file.

    what, advice   for a damaged file: what it should have been, and what to do
    check          is given the header before any tensor is read, to refuse a file of another kind
    """
    path = Path(path)
    _check_ordinary(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as stored:
            head: dict[str, str] = stored.metadata() or {}
            check(head)
            # Copies, since a tensor of the file's own memory would change when the file is written anew.
            return head, {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no whole {what} ({error}): {advice}") from error


def _check_ordinary(path: Path) -> None:
    """A device or a pipe must never be replaced by a file, and reading one could wait for ever."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no ordinary file: name one that is")
