"""The public interface as text: names, signatures and methods. `python -m tests.api` writes it to tests/files/api.txt."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import liftednn

FILE = Path(__file__).parent / "files" / "api.txt"


def described() -> str:
    return "\n".join(_lines("liftednn", liftednn)) + "\n"


def _lines(path: str, module: types.ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        found = getattr(module, name)
        if isinstance(found, types.ModuleType):
            yield from _lines(f"{path}.{name}", found)
        elif inspect.isclass(found):
            yield from _class(f"{path}.{name}", found)
        else:
            yield f"{path}.{name}{_signature(found)}"


def _class(path: str, found: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object)
    yield f"{path}({bases}): {_signature(found)}"
    inherited = [base for base in found.__mro__[1:] if base.__module__.startswith("liftednn.base")]
    if inherited and not found.__module__.startswith("liftednn.base"):
        return  # its methods are those of the protocol, which is listed once
    for name, part in sorted(vars(found).items()):
        if not name.startswith("_"):
            yield f"{path}.{name}{_signature(part)}"


def _signature(found: Any) -> str:
    found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    if isinstance(found, property) or not callable(found):
        return ""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(found)))
    except ValueError:
        return "(...)"


if __name__ == "__main__":
    FILE.write_text(described())
