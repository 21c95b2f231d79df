"""What experiments have found: one JSONL file per experiment and device, in the folder `results`.

A line is a record: the fields that name it, "value", which is what was found, and "machine", which says where and by which code. Lines
are only ever added; of two records with the same name the later one counts. So a run can be stopped at any moment, and the same command
goes on: what is stored is not run again. A field that a record lacks counts as that field's default, so that settings can be added later.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import liftednn

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

__all__ = ["RESULTS", "Fields", "Record", "Store", "code", "existing", "machine", "open_store"]

RESULTS = Path(__file__).parents[1] / "results"
Fields = dict[str, Any]


class Record(NamedTuple):
    fields: Fields
    value: Fields
    machine: Fields


def _lock(file: IO[bytes]) -> None:
    """Wait until no other process adds to the file, then lock it until it is closed. Windows has no fcntl: run one process there."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)


class Store:
    """The records of one file, in its order.

    device     that times are of
    defaults   of fields that records may lack; those of all other fields are None
    tell       is called with a line of text after each piece of work
    """

    def __init__(
        self,
        path: Path,
        device: str = "cpu",
        defaults: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path, self.device, self.tell = path, device, tell
        self.defaults: Fields = _plain(defaults or {})
        self._records: dict[str, Record] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        for number, line in enumerate(
            lines[:-1], 1
        ):  # what a crash has cut off, behind the last line's end, is forgotten
            self._keep(self._read(number, line))

    def _read(self, number: int, line: bytes) -> Record:
        try:
            fields = dict(json.loads(line))
            value, made = dict(fields.pop("value")), dict(fields.pop("machine"))
        except (ValueError, TypeError, KeyError) as error:
            problem = f"line {number} of {self.path} is no record with a value and a machine"
            raise ValueError(f"{problem}: remove the line, and run the same command again") from error
        return Record(fields, value, made)

    def _keep(self, record: Record) -> None:
        self._records[self._name(record.fields)] = record

    def _name(self, fields: Fields) -> str:
        whole = {name: value for name, value in (self.defaults | fields).items() if value is not None}
        return json.dumps(whole, sort_keys=True)

    @property
    def records(self) -> list[Record]:
        return list(self._records.values())

    def find(self, **wanted: Any) -> list[Record]:
        """All records that agree with the fields asked for."""
        found = self.records
        for name, value in _plain(wanted).items():
            default = self.defaults.get(name)
            found = [record for record in found if record.fields.get(name, default) == value]
        return found

    def get(self, **wanted: Any) -> Fields | None:
        """The value of the record of these fields, or else of the last one that agrees with them; None if there is none."""
        named = self._records.get(self._name(_plain(wanted)))
        found = [named] if named else self.find(**wanted)
        return found[-1].value if found else None

    def values(self, **wanted: Any) -> list[Fields]:
        return [record.value for record in self.find(**wanted)]

    def in_order(self, field: str, **wanted: Any) -> list[Record]:
        """What `find` gives, in the order of a number among the fields, such as a seed: several processes store records as they end."""
        return sorted(self.find(**wanted), key=lambda record: int(record.fields[field]))

    def add(self, value: Mapping[str, Any], **fields: Any) -> Fields:
        """Append a record; its value as a file gives it back."""
        self.add_all([(fields, value)])
        return _plain(value)

    def add_all(self, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], device: str | None = None) -> None:
        """Append records, all of them or, if the process is killed, the first few; `device` is where they were made, if elsewhere."""
        made = machine(device or self.device)
        records = [Record(_plain(fields), _plain(value), made) for fields, value in pairs]
        lines = [json.dumps({**r.fields, "value": r.value, "machine": r.machine}) + "\n" for r in records]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            _lock(file)
            file.truncate(self._whole(file.seek(0, os.SEEK_END)))
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        for record in records:
            self._keep(record)

    def _whole(self, size: int) -> int:
        """The length of the file without a last line that a crash has cut off."""
        with self.path.open("rb") as file:
            file.seek(max(size - 1, 0))
            if file.read() in (b"", b"\n"):
                return size
        return self.path.read_bytes().rfind(b"\n") + 1

    def __call__(self, work: Callable[[], Mapping[str, Any]], **fields: Any) -> Fields:
        """The value of these fields: from the store where it is there, else what the work gives, which is then stored."""
        found = self.get(**fields)
        if found is None:
            started = time.perf_counter()
            found = self.add(work(), **fields)
            names = ", ".join(str(value) for value in fields.values())
            self.tell(f"{self.path.stem}: {names}: {time.perf_counter() - started:.1f} s")
        return found


def open_store(folder: Path, experiment: str, device: str = "cpu", **more: Any) -> Store:
    return Store(folder / f"{experiment}-{device}.jsonl", device, **more)


def existing(folder: Path, experiment: str) -> list[Store]:
    """The stores of an experiment that are there, that of a GPU first."""
    given = [open_store(folder, experiment, device) for device in ("cuda", "cpu")]
    return [store for store in given if store.path.exists()]


@cache
def code(root: Path = Path(liftednn.__file__).parent) -> str:
    """Which code of the package runs, as the start of a sha256 of its files with their names: figures of one commit have it in common."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes() + b"\n")
    return found.hexdigest()[:12]


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a figure depends on."""
    import torch  # here, since a process that only does a job of workers.py may not need it

    return {
        "liftednn": liftednn.__version__,
        "code": code(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def _plain(given: Mapping[str, Any]) -> Fields:
    """As a file gives it back."""
    found: Fields = json.loads(json.dumps(given))
    return found
